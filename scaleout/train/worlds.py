"""The training job at several numbers of processes: which runs there are, and what each should take."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from scaleout.lab.options import parse
from scaleout.records import results
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import MEASURED
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.topology import cluster
from scaleout.timing import machine
from scaleout.timing.job import step_on
from scaleout.train import options as train_options

MODES, STRATEGIES = ("strong", "weak"), ("fsdp", "ddp")
ONE = "one"  # the strategy of a single process, whatever the others do
# Figures of a Record. The job predicts the first three from a copy of the model that every rank steps by itself; BEYOND
# is what messages, FSDP's copies and waiting add to that. FROM_ONE needs no other run than that on one process.
SECONDS, RATE, BEYOND = "seconds per step", "tokens per second", "seconds per step beyond a rank alone"
FROM_ONE = "seconds per step, from the run on one process"
READER = "tokens per second, the reader's prediction"


@dataclass(frozen=True, order=True)
class Run:
    """One run of a scaling series. batch: sequences per step, over all processes."""

    mode: str
    world: int
    strategy: str
    batch: int

    def name(self, tier, kind):
        """The file of its Record."""
        return f"{tier}-{kind}-{self.mode}-{self.world}-{self.strategy}.json"

    @property
    def work(self):
        """What decides what is run: the largest run of "strong" is that of "weak" too."""
        return self.world, self.strategy, self.batch


def choices(text, allowed, flag):
    """("strong", "weak") of "strong,weak". ValueError, one line, for anything else."""
    chosen = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not set(chosen) <= set(allowed):
        raise ValueError(f"{flag} {text}: give one or several of {', '.join(allowed)}")
    return chosen


def plan(worlds, modes, strategies, batch):
    """The runs, in order. "strong" shares `batch` sequences at every size; "weak" gives each process what it has at
    the largest, so that the largest run is in both. A single process is run once, as it is whatever the strategy.

    ValueError where a number of processes does not divide the batch.
    """
    for world in worlds:
        if batch % world:
            raise ValueError(
                f"--worlds: {world} processes do not divide --batch {batch}: give --batch a multiple of "
                f"{math.lcm(*worlds)}"
            )
    share = batch // worlds[-1]
    return [
        Run(mode, world, strategy, batch if mode == "strong" else share * world)
        for mode in modes
        for world in worlds
        for strategy in (strategies if world > 1 else (ONE,))
    ]


TAKEN = ("strategy", "machine", "save", "folder", "resume", "minutes", "checkpoint_every", "inject")


def job(tier, words):
    """The options of the training job (`train.options.Options`) that `words` ask for. ValueError, one line, for a flag
    that scaling sets itself, or that the job does not know."""
    for word in words:
        flag = word.split("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and flag in TAKEN:
            raise ValueError(f"--{flag.replace('_', '-')} is chosen by this lab: leave it out")
    return parse(train_options.TIERS, "", ["--tier", tier, *words], anywhere=True)[1]


def command(run, words, path, machine=None):
    """The words that start labs/capstone.py for a run: its last validation is all that is beside the steps. What is
    asked of shards is for the runs of fsdp.

    path: of its Record; machine: of a profile of as many processes."""
    undo = [] if run.strategy == "fsdp" else train_options.unsharded(job("smoke", words))[1]
    words = [*words, *undo, *(["--machine", str(machine)] if machine else [])]
    return [
        *words,
        "--strategy",
        run.strategy,
        "--batch",
        str(run.batch),
        "--sample",
        "0",
        "--validate-every",
        "1000000",
        "--validation-batches",
        "1",
        "--save",
        str(path),
    ]


# --- prediction ---------------------------------------------------------------------------------------------------


def at_the_time(profile, record):
    """The profile with the matmuls that the job itself timed at its end: a machine that others use too is not
    the machine it was a minute ago."""
    if record.mfu_peak is None:
        return profile
    rate = record.mfu_peak["flops_per_second"] / record.device_count
    return profile | {"matmul_flops_per_second": profile["matmul_flops_per_second"] | {record.precision: rate}}


def efficiency(profile, record, o):
    """The share of the calibrated matrix multiplications that the run on one process reached: what else its step takes
    (norms, softmax, launches) is in it."""
    run = Run("strong", 1, ONE, record.effective_batch)
    return share_of(run, o, profile, record.median)


def share_of(run, o, profile, seconds):
    """The share with which `predict` gives `seconds` for a run on one process. ValueError where the rest of the step
    alone takes longer."""
    if profile["world"] != run.world:
        raise ValueError(f"the profile is of {profile['world']} processes: efficiency is measured with one")
    bare = predict(run, o, profile, 1e9).seconds
    if not bare < seconds < math.inf:
        raise ValueError(f"{seconds:g} s is less than the update alone takes: give the time of a whole step")
    low, high = 1e-9, 1e9  # its logarithm is halved: a step is the longer, the less is reached
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if predict(run, o, profile, middle).seconds < seconds else (middle, high)
    return math.sqrt(low * high)


def predict(run, o, profile, share):
    """The step (`timing.job.Step`) of a run on the machine of `profile`, whose processes reach `share` of its matrix
    multiplications.

    On a CPU nothing overlaps: gloo computes on the cores that the model computes on, and fully_shard waits for it.
    """
    o, world = replace(o, batch=run.batch), run.world
    overlap = profile["device_kind"] == "cuda"
    sharded = run.strategy == "fsdp"
    sharding = o.sharding(world) if sharded else None
    shape = Job(
        o.shape,
        o.seq,
        device_of(profile, o.precision),
        cluster(1, world),
        run.batch // world // o.passes(world),
        Layout(dp=world, zero=(2 if sharding.reshard is False else 3) if sharded else 0, micro_batches=o.passes(world)),
        Recipe("fp32" if o.precision == "fp32" else "autocast-bf16", checkpointing=o.checkpointing),
        replace(MEASURED, data_overlap=overlap, moves=0.0, update_passes=1.0),
        replicas(sharding, o.sync_every_pass),
    )
    return step_on(shape, machine.from_profiles(shape, {world: profile}, share))


def device_of(profile, dtype):
    """The machine of a profile, whose 16-bit format is the one asked for."""
    device = machine.device_of(profile)
    return replace(device, bf16_flop_per_s=None) if dtype == "fp16" else device


def replicas(sharding, every_pass):
    """What processes exchange. sharding: a Sharding, None for DDP."""
    if sharding is None:
        return Replicas(every_pass=every_pass)
    return Replicas(
        every_pass=every_pass,
        wrap=sharding.wrap,
        least_parameters=sharding.least_parameters,
        reshard=sharding.reshard,
        prefetch=sharding.prefetch,
        shards=sharding.ranks,
        offload="parameters" if sharding.offload else "none",
    )


def with_prediction(record, guess):
    """The Record with the step (`timing.job.Step`) that the run on one process predicts beside the measured."""
    return replace(
        record,
        prediction=record.prediction | {FROM_ONE: guess.seconds},
        measurement=record.measurement | {FROM_ONE: record.median},
    )


def basis(profile, share, dtype):
    """What the prediction stands on, in words, for a Record's notes."""
    lines = [
        f"{name}: alpha {line['alpha_seconds'] * 1e3:.3f} ms, 1/beta "
        f"{1e-6 / max(line['seconds_per_byte'], 1e-15):,.0f} MB/s"
        for name, line in profile["collectives"].items()
        if name != "broadcast"
    ]
    rate = profile["matmul_flops_per_second"][dtype]
    return (
        f"predicted from {rate / 1e9:,.1f} GFLOP/s per process in {dtype} matmuls, timed in this run, of which the "
        f"run on one process reached {share:.2f}, and from collectives timed just before: "
        + "; ".join(lines or ["none"])
    )


# --- Records ---------------------------------------------------------------------------------------------------


def found_in(folder, tier, kind):
    """{Run: Record} of the Records that `Run.name` names in a folder (Path). {} without any.

    What "strong" and "weak" share has one file, named "strong"; it is in both.
    """
    pattern = re.compile(rf"{tier}-{kind}-({'|'.join(MODES)})-(\d+)-(\w+)\.json")
    records = {}
    for path in sorted(folder.glob(f"{tier}-{kind}-*.json")) if folder.is_dir() else ():
        match = pattern.fullmatch(path.name)
        if match:
            record = results.load(path)
            records[Run(match[1], int(match[2]), match[3], record.effective_batch)] = record
    shares = {run.batch // run.world for run in records if run.mode == "weak"}
    shared = {
        replace(run, mode="weak"): record
        for run, record in records.items()
        if run.mode == "strong" and {run.batch // run.world} == shares
    }
    return dict(sorted((shared | records).items()))


def file_of(folder, run, tier, kind):
    """The file of a run that `found_in` found: its own, or the one it shares."""
    file = folder / run.name(tier, kind)
    return file if file.exists() else folder / replace(run, mode="strong").name(tier, kind)
