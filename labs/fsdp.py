"""Rung 06: FSDP by hand, with fully_shard and with Accelerate: every rank stores a share of one model.

torchrun --nproc-per-node 2 labs/fsdp.py --save
torchrun --nproc-per-node 2 labs/fsdp.py --wrap layer --reshard false --prefetch 2
torchrun --nproc-per-node 4 labs/fsdp.py --replicas 2         hybrid sharding on a grid of 2 x 2
torchrun --nproc-per-node 2 labs/fsdp.py --sweep wrap,reshard,checkpointing
torchrun --nproc-per-node 2 labs/fsdp.py --via accelerate-naive   what Accelerate quietly builds on a CPU
accelerate launch --config_file labs/launch/accelerate-fsdp2.yaml labs/fsdp.py --via accelerate      on GPUs
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from scaleout.lab import corpus, fits, options, recording, report, session
from scaleout.lab import fsdp as lab_fsdp
from scaleout.measure import fsdp_knobs, fsdp_rounds, traces
from scaleout.memory import fsdp_account
from scaleout.parallel import fsdp, fsdp_ways, parity, shard
from scaleout.spec import WRAPS, Recipe, Sharding, checks, total_parameters

WARMUP = 3
PARITY_STEPS = 3
PARITY_TOKENS = 128  # at most, of each sequence: every rank also runs the sequences of all ranks
DTYPES = "fp32", "bf16"  # no fp16: this lab does not scale its loss, as labs/capstone.py does
PARITY_RATE = 0.1  # of SGD with momentum, see parallel.fsdp_ways.Way
MEMORY = 0.02  # of the peak, and what the book promises
RESULTS = Path(__file__).resolve().parent / "results" / "fsdp"


@dataclass(frozen=True)
class Options(options.Model):
    """The model, the step, how the model is sharded, and what to do with the result."""

    layers: int = options.number(4, "blocks")
    hidden: int = options.number(160, "width of the residual stream")
    heads: int = options.number(5, "attention heads")
    seq: int = options.number(128, "tokens a sequence")
    micro_batch: int = options.number(4, "sequences a rank and pass")
    accumulation: int = options.number(1, "passes a step, whose gradients add up", highest=1000)
    sync_every_pass: bool = options.flag(
        "reduce gradients in every pass; without, they stay whole until the last", True
    )
    steps: int = options.number(10, "training steps", WARMUP + 2, 10**6)
    lr: float = options.number(1e-3, "learning rate", 0, 1000)
    seed: int = options.seed()
    clip: float | None = options.number(None, "largest norm of the gradient", 1e-9, None)
    checkpointing: str = options.choice("none", ("none", "selective", "full"), "what backward computes again")
    wrap: str = options.choice("block", WRAPS, "what becomes a unit")
    least_parameters: int = options.number(50_000, "of a unit, with --wrap size", highest=10**12)
    reshard: str = options.word(
        "true", "free units after their forward: true, false, or ranks that keep a copy", "true|false|N"
    )
    prefetch: int = options.number(1, "units gathered ahead", 0, 1000)
    precision: str = options.choice("fp32", DTYPES, "dtype that is gathered and computed in")
    reduce: str = options.choice("fp32", DTYPES, "dtype that gradients are reduced in")
    offload: bool = options.flag("shards and optimizer live in the host's memory")
    replicas: int = options.number(1, "copies of the model, each sharded over the rest: hybrid sharding", highest=10**5)
    via: str = options.choice("torch", fsdp_ways.ROUTES, "adds a way; accelerate-forced and -naive are for CPUs")
    sweep: str | None = options.word(
        None,
        f"compare knobs in one launch: {', '.join(fsdp_knobs.KNOBS)}",
        "KNOB,KNOB",
        const="wrap,reshard,checkpointing",
    )
    trace: str | None = options.word(None, "write steps of --via for ui.perfetto.dev", "FILE.json")
    timeline: bool = options.flag("print memory over time, moment by moment")
    dataset: str | None = options.dataset()
    save: str | None = options.save("fsdp")

    @property
    def recipe(self):
        """The memory recipe."""
        return Recipe(precision="fp32", checkpointing=self.checkpointing, foreach=not self.offload)

    def sharding(self, world):
        """The Sharding of these options on `world` processes. ValueError where they do not fit."""
        if world % self.replicas:
            raise ValueError(
                f"--replicas {self.replicas} does not divide {world} process(es): use "
                f"{' or '.join(map(str, checks.divisors(world)))}"
            )
        ranks = world // self.replicas
        return Sharding(
            ranks,
            self.replicas,
            self.wrap,
            self.least_parameters,
            lab_fsdp.reshard(self.reshard, ranks),
            self.prefetch,
            self.offload,
            self.precision,
            self.reduce,
        )


TIERS = {
    "smoke": Options(),
    "cpu": Options(layers=6, hidden=256, heads=8, steps=20),
    "gpu": Options(
        layers=20,
        hidden=2048,
        heads=16,
        seq=2048,
        steps=20,
        lr=3e-4,
        precision="bf16",
        checkpointing="full",
        dataset=corpus.LIBRARY,
    ),
}


def way(s, o, cut, via, **settings):
    """One Way of these options."""
    return fsdp_ways.Way(
        s, o.shape, via, cut, o.checkpointing, **{"rate": o.lr, "seed": o.seed, "clip": o.clip} | settings
    )


def names(s, o, cut, plain=True):
    """The ways of this run: the baseline, by hand where that can, fully_shard and --via."""
    try:
        fsdp.refuse(cut)
        hand = ("naive", "prefetching") if o.sync_every_pass or o.accumulation == 1 else ()
    except ValueError:
        hand = ()
    return list(dict.fromkeys([*(("one" if s.world == 1 else "ddp",) if plain else ()), *hand, "torch", o.via]))


# --- the same as one process? -------------------------------------------------------------------------------


def equality(s, o, text, vias):
    """Checks of a Record: losses and weights of a few steps of momentum SGD and the gradients of the first against this
    process alone on all batches, in fp32."""
    checks = {}
    o = replace(o, seq=min(o.seq, PARITY_TOKENS), micro_batch=1, precision="fp32", reduce="fp32")
    cut, settings = o.sharding(s.world), {"optimizer": "momentum", "rate": PARITY_RATE}
    whole_batches = [session.batches(s, o, text, i, alone=True) for i in range(PARITY_STEPS)]
    wanted = parity.trained(way(s, o, cut, "one", **settings), whole_batches, o.sync_every_pass)
    for via in vias:
        batches = [session.batches(s, o, text, i) for i in range(PARITY_STEPS)]
        result = parity.trained(way(s, o, cut, via, **settings), batches, o.sync_every_pass)
        losses = max(abs(s.mean(f) - w) / w for f, w in zip(result[0], wanted[0], strict=True))
        checks[f"{lab_fsdp.NAMES[via]}: losses equal one process"] = parity.check(losses)
        for kind, f, w in (("gradients", result[1], wanted[1]), ("weights", result[2], wanted[2])):
            checks[f"{lab_fsdp.NAMES[via]}: {kind} equal one process"] = parity.check(parity.worst(s, f, w))
    return checks


def show_fallback(s, o, text, cut):
    """What Accelerate builds on a CPU from an FSDP2 plugin: parity, and a look at what there is."""
    checks = equality(s, o, text, ["accelerate-naive"])
    naive = way(s, o, cut, "accelerate-naive")
    counts = naive.counted(session.batches(s, o, text, 0))
    all_bytes = total_parameters(o.shape) * 4
    s.say(lab_fsdp.fallback(checks, counts, naive.stored()["parameters"], all_bytes, naive.built))


# --- train, compare, record -----------------------------------------------------------------------------------


def record(s, tier, o, cut, timed, rows, checks, notes, seen):
    """The Record of this run."""
    prediction, measurement = report.pairs(rows, lab_fsdp.NAMES, lab_fsdp.FIGURES)
    account = fsdp_account(o.shape, o.micro_batch, o.seq, o.recipe, cut, s.device.type)
    prediction["peak bytes"], measurement["peak bytes"] = account.peak_bytes, sum(seen.values())
    for kind in seen:
        prediction[f"{kind} bytes at the peak"] = account.peak.get(kind, 0)
        measurement[f"{kind} bytes at the peak"] = seen[kind]
    skipped = [] if o.via.startswith("accelerate") else ["Accelerate: not asked for (--via)"]
    if "naive" not in timed.ways:
        skipped.append("by hand: it has fp32, one mesh and a reduction in every pass only")
    return recording.record(
        s,
        "fsdp",
        tier,
        dataset=o.dataset,
        notes=notes,
        model=asdict(o.shape),
        recipe=asdict(o.recipe)
        | {f"sharding: {k}": v for k, v in asdict(cut).items()}
        | {"accumulation": o.accumulation, "sync_every_pass": o.sync_every_pass, "clip": o.clip},
        effective_batch=o.micro_batch * s.world * o.accumulation,
        sequence_length=o.seq,
        precision="fp32" if o.precision == "fp32" else "bf16 by MixedPrecisionPolicy",
        step_seconds=timed.seconds[o.via],
        warmup_steps=WARMUP,
        losses=timed.losses[o.via],
        peak_memory=seen | session.allocator(s, "allocator: "),
        prediction=prediction,
        measurement=measurement,
        checks=checks,
        skipped=skipped,
        series={f"seconds a step, {lab_fsdp.NAMES[via]}": seconds for via, seconds in timed.seconds.items()},
    )


def count_checks(s, rows):
    """Checks of a Record: collectives that CommDebugMode counted against those of the pure model."""
    checks = {}
    for via, row in rows.items() if s.world > 1 else ():
        for figure in (f for f in ("gathers", "scatters") if f in row["predicted"]):
            error = abs(row["predicted"][figure] - row["measured"][figure])
            checks[f"{lab_fsdp.NAMES[via]}: {lab_fsdp.FIGURES[figure]} as predicted"] = parity.check(error, 0.0)
    return checks


def train(s, tier, o, text, cut):
    """Check, train all ways in alternation, compare, measure memory, record. Exit code 1 where a check failed."""
    vias, skipped = names(s, o, cut), s.world == 1
    checks = equality(s, o, text, names(s, o, cut, plain=False))
    ways = {via: way(s, o, cut, via) for via in vias}
    notes = [f"{lab_fsdp.NAMES[via]}: {built_way.built}" for via, built_way in ways.items()]
    calibration = fsdp_rounds.Calibration(s, way(s, o, cut, "one"), shard.mesh(s, cut))
    timed = fsdp_rounds.Rounds(s, o, ways, calibration, partial(session.batches, s, o, text))
    timed.run(o.steps)
    rows = timed.rows(WARMUP)
    s.say("\n" + lab_fsdp.ways(rows))
    seen, moments = fsdp_knobs.memory(s, o, cut, session.batches(s, o, text, 0)[0])
    account = fsdp_account(o.shape, o.micro_batch, o.seq, o.recipe, cut, s.device.type)
    s.say("\n" + lab_fsdp.memory(account.peak, seen))
    if o.timeline:
        s.say("\n" + lab_fsdp.timeline(moments))
    checks |= count_checks(s, rows) | {
        "peak within 2% of the prediction": parity.check(abs(account.peak_bytes / sum(seen.values()) - 1), MEMORY)
    }
    r = record(s, tier, o, cut, timed, rows, checks, notes, seen)
    r.skipped.extend(["collectives: one process sends nothing (torchrun --nproc-per-node 2)"] if skipped else [])
    s.say(
        "\n".join(
            [
                "",
                report.closing(rows),
                *(f"built: {note}" for note in notes),
                *report.verdicts(r.checks, r.skipped, r.stalls, r.failures),
            ]
        )
    )
    recording.keep(s, r, o.save, RESULTS, o.via)
    if o.trace and s.main:
        traces.write(timed.traces[o.via], o.trace)
        s.say(f"trace: {Path(o.trace).name}; open it at https://ui.perfetto.dev")
    recording.end(s, r.checks)


def main(s, argv=None):
    """Train all ways, or walk a grid of knobs, or show what Accelerate quietly builds."""
    tier, o = options.parse(TIERS, __doc__, argv)
    fits.check(s, o.shape)
    options.check_target(o.trace, (".json",))
    options.check_save(o.save, RESULTS)
    cut = o.sharding(s.world)
    fsdp_ways.refuse(s, o.via, cut)
    fsdp_knobs.refuse(s, o)
    if o.sweep:
        options.check_idle("--sweep", o, TIERS[tier], ("timeline", "steps"))
    if o.via == "accelerate-naive":
        options.check_idle("--via accelerate-naive", o, TIERS[tier], ("sweep", "timeline", "steps"))
    if o.wrap != "size" and "wrap" not in (o.sweep or ""):
        options.check_idle(f"--wrap {o.wrap}", o, TIERS[tier], ("least_parameters",))
    text = session.dataset(o.dataset, o.seq)
    s.say(
        f"{recording.heading(s, o.shape)}, {o.accumulation} x {o.micro_batch} x {o.seq} tokens "
        f"a rank and step\n{cut.ranks} shard(s) x {cut.replicas} replica(s)"
    )
    if o.via == "accelerate-naive":
        show_fallback(s, o, text, cut)
    elif o.sweep:
        fsdp_knobs.sweep(s, tier, o, lambda step, q: session.batches(s, q, text, step), RESULTS)
    else:
        train(s, tier, o, text, cut)


if __name__ == "__main__":
    session.run(main)
