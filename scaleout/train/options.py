"""The options of the training job, its three sizes, and what is refused before any work. Standard library only."""

import os
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

from scaleout.lab import corpus, options
from scaleout.records import checkpoints, profiles
from scaleout.spec import layout_words, mesh
from scaleout.spec.recipe import CHOICES
from scaleout.spec.sharding import WRAPS, Sharding
from scaleout.spec.transformer import Shape
from scaleout.train import faults, order
from scaleout.train.metrics import CHECKPOINTS

WARMUP = 3  # steps that no rate counts: memory is allocated, kernels are chosen, units learn their order
RESULTS = Path(__file__).resolve().parents[2] / "labs" / "results" / "capstone"
STYLES = {
    "llama": {"gated_mlp": True, "bias": False, "norm": "rmsnorm", "positions": "rotary", "tied_head": False},
    "gpt": {},
}


size = partial(options.number, highest=10**9)


@dataclass(frozen=True)
class Options:
    """The model, the data, the steps, how they are spread over ranks, and what is saved."""

    layers: int = size(4, "blocks")
    hidden: int = size(128, "width of the residual stream")
    heads: int = size(4, "attention heads")
    ff: int | None = size(352, "width of the MLP (default: 8/3 of hidden for llama, 4 times for gpt)")
    style: str = options.choice("llama", tuple(STYLES), "rotary, RMS norm and SwiGLU, or GPT-2's")
    seq: int = size(128, "tokens per sequence")
    batch: int = size(8, "sequences per step, over all ranks and micro-batches")
    micro_batch: int | None = size(None, "sequences per rank and micro-batch, at most (default: one micro-batch)")
    steps: int = size(300, "training steps", lowest=WARMUP + 1)
    minutes: float | None = options.number(
        None, "train for so long instead; the first steps are timed to find their number", 0.01, 1e5
    )
    lr: float = options.number(3e-3, "peak of the learning rate", 1e-9, 10.0)
    warmup: int = size(20, "steps in which the learning rate rises", lowest=0)
    clip: float = options.number(1.0, "largest norm of the gradient; 0: no clipping", 0.0, 1e9)
    weight_decay: float = options.number(0.1, "of matrices and embeddings", 0.0, 10.0)
    seed: int = size(0, "of weights, order and samples", lowest=0)
    strategy: str | None = options.choice(None, ("fsdp", "ddp", "one"), "default: fsdp, and one on a single process")
    wrap: str = options.choice("block", WRAPS, "fsdp: units of wrapping")
    least_parameters: int = size(1_000_000, "fsdp: least size of a unit with --wrap size")
    reshard: str = options.word("true", "fsdp: after forward, true, false, or a number of ranks", "WHEN")
    prefetch: int = size(1, "fsdp: units prefetched", lowest=0, highest=1000)
    replicas: int = size(1, "fsdp: copies of the model (hybrid sharding)")
    offload: bool = options.flag("fsdp: shards and optimizer offloaded to CPU memory")
    layout: str | None = options.word(
        None, "axes of the ranks, as in tp=2,pp=2 (pp, dp, tp, zero, m, v, schedule; dp is the rest)", "AXES"
    )
    precision: str = options.choice(
        "fp32", ("fp32", "bf16", "fp16"), "of matmuls; weights are fp32; fp16 scales the loss"
    )
    checkpointing: str = options.choice("none", CHOICES["checkpointing"], "activation checkpointing")
    attention: str = options.choice("sdpa", CHOICES["attention"], "kernel")
    compile: bool = options.flag("torch.compile, per block")
    sync_every_pass: bool = options.flag("reduce gradients after every micro-batch")
    dataset: str | None = options.dataset()
    held_out: float = options.number(
        0.05, "share of the text's bytes to validate on, by whole files if small", 1e-6, 0.999999
    )
    validate_every: int = size(50, "steps between validations")
    validation_batches: int = size(8, "batches of a validation, at most")
    log_every: int = size(10, "steps between looks at the loss: the host waits for the device then")
    folder: str | None = options.word(None, "for the run: metrics, checkpoints, plot, sample", "FOLDER")
    resume: str = options.word("auto", "auto (the newest good checkpoint in --folder), none, or a step", "WHICH")
    checkpoint_every: str | None = options.word(None, "steps, auto (by Young's formula; the default), or none", "N")
    keep: int = size(2, "checkpoints to keep, besides the best")
    mtbf_hours: float = options.number(24.0, "mean time between failures of the whole job", 1e-6, 1e9)
    inject: str | None = options.word(None, "; ".join(faults.FORMS.values()), "FAULT")
    sample: int = size(400, "bytes to write at the end; 0: none", lowest=0, highest=100_000)
    prompt: str = options.word("def ", "what the sample begins with", "TEXT")
    temperature: float = options.number(0.7, "of the sample; 0: the likeliest byte", 0.0, 10.0)
    machine: str | None = options.word(None, "profile by labs/calibrate.py")
    save: str | None = options.save("capstone")

    @property
    def shape(self):
        """The transformer of these options, on bytes."""
        ff = self.ff
        if ff is None and self.style == "llama":
            ff = -(-self.hidden * 8 // 3 // 32) * 32
        return Shape(
            self.layers, self.hidden, self.heads, corpus.VOCABULARY, ff=ff, max_seq=self.seq, **STYLES[self.style]
        )

    def strategy_on(self, world):
        """The strategy on so many processes; "mesh" with a --layout of several."""
        if self.layout and world > 1:
            return "mesh"
        return self.strategy or ("fsdp" if world > 1 else "one")

    def layout_on(self, world):
        """The Layout of `world` processes that --layout asks for, None without. ValueError for what cannot be."""
        if self.layout is None:
            return None
        layout = layout_words.parse(self.layout, world, self.shape, 0 if self.strategy == "ddp" else 3)
        layout_words.refuse(self.shape, layout, world, self.seq)
        return layout_words.micro_batches(layout, self.batch, self.micro_batch)

    def share(self, rank, world):
        """(which, of how many): the part of each batch that a rank reads. Ranks that share a model read the same."""
        layout = self.layout_on(world)
        return (mesh.grid(layout).coordinates(rank)["dp"], layout.dp) if layout else (rank, world)

    def sharding(self, world):
        """The Sharding of strategy fsdp on `world` processes. ValueError for what cannot be."""
        if world % self.replicas:
            raise ValueError(
                f"--replicas {self.replicas} does not divide {world} processes: use one of {order.divisors(world)}"
            )
        return Sharding(
            world // self.replicas,
            self.replicas,
            self.wrap,
            self.least_parameters,
            self.resharding,
            self.prefetch,
            self.offload,
            parameter=self.precision,
        )

    @property
    def resharding(self):
        """--reshard as True, False or a number of ranks. ValueError for anything else."""
        text = self.reshard.lower()
        if text not in ("true", "false") and not options.digits(text):
            raise ValueError(f"--reshard {self.reshard}: use true, false, or a number of ranks")
        return text == "true" if text in ("true", "false") else int(text)

    def passes(self, world):
        """Passes of a step on `world` processes; of a pipeline, its micro-batches."""
        layout = self.layout_on(world)
        return layout.m if layout else order.passes(self.batch, world, self.micro_batch)


TIERS = {
    "smoke": Options(),
    "cpu": Options(
        layers=4,
        hidden=192,
        heads=6,
        ff=512,
        seq=256,
        batch=8,
        steps=1500,
        lr=2e-3,
        warmup=50,
        validate_every=250,
        dataset=corpus.LIBRARY,
    ),
    "gpu": Options(
        layers=20,
        hidden=2048,
        heads=16,
        ff=5632,
        seq=2048,
        batch=64,
        micro_batch=8,
        steps=1000,
        lr=3e-4,
        warmup=100,
        precision="bf16",
        compile=True,
        validate_every=250,
        dataset=corpus.LARGE,
    ),
}


USUAL = {f.name: f.default for f in fields(Options)}
SHARDS = ("wrap", "least_parameters", "reshard", "prefetch", "replicas", "offload")  # of --strategy fsdp alone


def idle(o):
    """Names of the options about shards that are not as they are where nobody asks for another value."""
    return [name for name in SHARDS if getattr(o, name) != USUAL[name]]


def unsharded(o):
    """The options with those about shards as nobody asked for them, and the words that undo them."""
    undo = [["--no-offload"] if name == "offload" else [options.named(name), str(USUAL[name])] for name in idle(o)]
    return replace(o, **{name: USUAL[name] for name in SHARDS}), [word for words in undo for word in words]


def check(o, s):
    """Refuse what could not work. ValueError, one line."""
    options.check_save(o.save, RESULTS)
    options.check_folder(o.folder, "--folder")
    if o.folder and o.save and Path(os.path.realpath(o.folder)).is_relative_to(os.path.realpath(o.save)):
        raise ValueError(f"--save {o.save} would be a file where --folder {o.folder} is a folder: give it another name")
    if o.layout:
        check_layout(o, s.world)
    if o.strategy == "one" and s.world > 1:
        raise ValueError(f"--strategy one is for one process, and this job has {s.world}: use fsdp or ddp")
    if o.strategy_on(s.world) == "fsdp":
        o.sharding(s.world)
        if o.wrap != "size" and o.least_parameters != USUAL["least_parameters"]:
            raise ValueError(
                f"--least-parameters is about --wrap size, and this is --wrap {o.wrap}: leave out one of the two"
            )
    elif o.strategy and idle(o):
        flags = " and ".join(map(options.named, idle(o)))
        raise ValueError(
            f"--strategy {o.strategy} shards nothing and does not use {flags}: leave that out, or use fsdp"
        )
    elif o.offload or o.replicas > 1:
        raise ValueError("--offload and --replicas are for --strategy fsdp")
    if o.offload and o.precision == "fp16":  # GradScaler's ranks agree where the gradients are: NCCL cannot there
        raise ValueError("--offload puts gradients where loss scaling cannot reach them: use --precision bf16 or fp32")
    _ = o.passes(s.world), o.shape, o.resharding
    profile = profiles.find(o.machine, s.device.type, s.world)
    if profile and o.precision not in profile["matmul_flops_per_second"]:
        raise ValueError(f"the machine profile holds no rate for {o.precision}: run labs/calibrate.py again")
    check_kept(o)
    check_steps(o, s.world)


def check_kept(o):
    """ValueError, one line, for options of checkpoints that are not there, or that nobody makes."""
    if o.resume not in ("auto", "none") and not options.digits(o.resume):
        raise ValueError(f"--resume {o.resume}: use auto, none, or the step of a checkpoint")
    usual = USUAL | {"checkpoint_every": o.checkpoint_every}
    if checkpoint_steps(o) != 0 and o.folder is None:
        usual["checkpoint_every"] = None
    if o.folder is None or checkpoint_steps(o) == 0:
        mend = (
            "is about checkpoints, and --checkpoint-every none makes none: leave out one of the two"
            if checkpoint_steps(o) == 0
            else "needs a place: add --folder FOLDER"
        )
        for name in ("checkpoint_every", "keep", "mtbf_hours", "resume"):
            if getattr(o, name) not in (usual[name], "none"):
                raise ValueError(f"{options.named(name)} {mend}")
    elif checkpoint_steps(o) and o.mtbf_hours != usual["mtbf_hours"]:
        raise ValueError("--mtbf-hours is about --checkpoint-every auto: leave one of the two out")


def check_resume(o):
    """ValueError, one line, for a --resume of a step that the folder has not, before anything is written to it."""
    if options.digits(o.resume):
        steps = [checkpoints.step_of(path) for path in checkpoints.listing(Path(o.folder) / CHECKPOINTS)]
        if int(o.resume) not in steps:
            have = f"one of {sorted(steps)}" if steps else "it has none yet"
            raise ValueError(f"--resume {o.resume}: {o.folder} has no checkpoint of that step: use auto, or {have}")


def check_steps(o, world):
    """ValueError, one line, for what would happen in steps that this job does not make."""
    usual = next((tier.warmup for tier in TIERS.values() if tier.warmup == o.warmup), None)
    last = float("inf") if o.minutes else o.steps
    if o.minutes and o.steps not in {tier.steps for tier in TIERS.values()}:
        raise ValueError("--minutes fixes the number of steps: leave out --steps, or --minutes")
    if usual is None and o.warmup > last:
        raise ValueError(
            f"--warmup {o.warmup:,} is more than --steps {o.steps:,}: the learning rate would never reach "
            "--lr: use a smaller --warmup"
        )
    for fault in faults.parse(o.inject, 0, world).every:
        if not 1 <= fault.step <= last:
            raise ValueError(f"--inject: there is no step {fault.step:,}: this job has the steps 1 to {last:,}")
        if (fault.saving or fault.kind == "full") and (o.folder is None or checkpoint_steps(o) == 0):
            raise ValueError(
                f"--inject {fault.kind}: strikes while a checkpoint is written, and this job writes none: "
                "add --folder FOLDER"
            )


def check_layout(o, world):
    """ValueError, one line, for what --layout leaves no room for."""
    try:
        o.layout_on(world)
    except ValueError as error:
        raise ValueError(f"--layout {o.layout}: {error}") from None
    for name in ("wrap", "reshard", "prefetch", "replicas", "offload", "sync_every_pass", "compile"):
        if getattr(o, name) != USUAL[name]:
            flag = options.named(name)
            mend = f"use --no-{flag[2:]}" if getattr(o, name) is True else f"leave out {flag}"
            raise ValueError(f"--layout makes units of blocks and does not use {flag}: {mend}")
    if o.strategy == "one" and world > 1:
        raise ValueError("--layout is for several processes, --strategy one for one: leave out one of them")
    if o.precision == "fp16":
        raise ValueError("--layout: torch's schedules scale no loss, which fp16 needs: use --precision bf16 or fp32")


def checkpoint_steps(o):
    """Steps between checkpoints: None for auto, 0 for none. ValueError for what is no number of steps."""
    words = {None: None, "auto": None, "none": 0}
    if o.checkpoint_every in words:
        return words[o.checkpoint_every]
    if not options.digits(o.checkpoint_every) or int(o.checkpoint_every) < 1:
        raise ValueError(f"--checkpoint-every {o.checkpoint_every}: use auto, none, or a number of steps from 1")
    return int(o.checkpoint_every)
