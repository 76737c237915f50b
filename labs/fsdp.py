"""Rung 06: FSDP by hand, with fully_shard and with Accelerate: every rank stores a share of one model.

    torchrun --nproc-per-node 2 labs/fsdp.py --save
    torchrun --nproc-per-node 2 labs/fsdp.py --wrap layer --reshard false --prefetch 2
    torchrun --nproc-per-node 4 labs/fsdp.py --replicas 2         hybrid sharding on a grid of 2 x 2
    torchrun --nproc-per-node 2 labs/fsdp.py --sweep wrap,reshard,checkpointing
    torchrun --nproc-per-node 2 labs/fsdp.py --via accelerate-naive   what Accelerate quietly builds on a CPU
    accelerate launch --config_file labs/launch/accelerate-fsdp2.yaml labs/fsdp.py --via accelerate      on GPUs
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from scaleout.lab import NAMES, fits, report, session
from scaleout.lab import fsdp as lab_fsdp
from scaleout.lab import text as lab_text
from scaleout.measure import fsdp_knobs
from scaleout.measure import profile as profiler
from scaleout.measure.fsdp_rounds import Calibration, Rounds
from scaleout.memory import fsdp_account
from scaleout.parallel import Way, fsdp_ways, shard
from scaleout.parallel import fsdp as parallel_fsdp
from scaleout.parallel import parity as parallel_parity
from scaleout.records import results
from scaleout.spec import WRAPS, Recipe, Shape, Sharding, total_parameters

WARMUP = 3
PARITY_STEPS = 3
PARITY_TOKENS = 128         # at most, of each sequence: every rank also runs the sequences of all ranks
DTYPES = "fp32", "bf16"     # no fp16: this lab does not scale its loss, as labs/capstone.py does
PARITY_RATE = 0.1           # of SGD with momentum, see parallel.fsdp_ways.Way
MEMORY = 0.02               # of the peak, and what the book promises
RESULTS = Path(__file__).resolve().parent / "results" / "fsdp"


def _size(default, what, highest=10**7, lowest=1):
    return field(default=default, metadata={"help": what, "lowest": lowest, "highest": highest})


def _choice(default, what, choices):
    return field(default=default, metadata={"help": what, "choices": choices})


def _file(what, name="FILE.json", const=None):
    more = {"const": const} if const else {}
    return field(default=None, metadata={"help": what, "metavar": name, **more})


@dataclass(frozen=True)
class Options:
    """The model, the step, how the model is sharded, and what to do with the result."""

    layers: int = _size(4, "blocks")
    hidden: int = _size(160, "width of the residual stream")
    heads: int = _size(5, "attention heads")
    seq: int = _size(128, "tokens a sequence")
    micro_batch: int = _size(4, "sequences a rank and pass")
    accumulation: int = _size(1, "passes a step, whose gradients add up", 1000)
    sync_every_pass: bool = field(default=True, metadata={
        "help": "reduce gradients in every pass; without, they stay whole until the last"})
    steps: int = field(default=10, metadata={"help": "training steps", "lowest": WARMUP + 2, "highest": 10**6})
    lr: float = field(default=1e-3, metadata={"help": "learning rate", "lowest": 0, "highest": 1000})
    seed: int = field(default=0, metadata={"help": "of weights and batches", "lowest": 0, "highest": 10**9})
    clip: float | None = field(default=None, metadata={"help": "largest norm of the gradient", "lowest": 1e-9})
    checkpointing: str = _choice("none", "what backward computes again", ("none", "selective", "full"))
    wrap: str = _choice("block", "what becomes a unit", WRAPS)
    least_parameters: int = _size(50_000, "of a unit, with --wrap size", 10**12)
    reshard: str = field(default="true", metadata={
        "help": "free units after their forward: true, false, or ranks that keep a copy", "metavar": "true|false|N"})
    prefetch: int = _size(1, "units gathered ahead", 1000, 0)
    precision: str = _choice("fp32", "dtype that is gathered and computed in", DTYPES)
    reduce: str = _choice("fp32", "dtype that gradients are reduced in", DTYPES)
    offload: bool = field(default=False, metadata={"help": "shards and optimizer live in the host's memory"})
    replicas: int = _size(1, "copies of the model, each sharded over the rest: hybrid sharding", 10**5)
    via: str = _choice("torch", "adds a way; accelerate-forced and -naive are for CPUs", fsdp_ways.ROUTES)
    sweep: str | None = _file(f"compare knobs in one launch: {', '.join(fsdp_knobs.KNOBS)}", "KNOB,KNOB",
                              "wrap,reshard,checkpointing")
    trace: str | None = _file("write steps of --via for ui.perfetto.dev")
    timeline: bool = field(default=False, metadata={"help": "print memory over time, moment by moment"})
    dataset: str | None = _file("text (default: Python's standard library)", "PATH")
    save: str | None = _file("write the Record (alone: to labs/results/fsdp/)", "FILE", "auto")

    @property
    def shape(self):
        """The transformer of these options, on bytes."""
        return Shape(self.layers, self.hidden, self.heads, lab_text.VOCABULARY, max_seq=self.seq)

    @property
    def recipe(self):
        """The memory recipe."""
        return Recipe(precision="fp32", checkpointing=self.checkpointing, foreach=not self.offload)

    def sharding(self, world):
        """The Sharding of these options on `world` processes. ValueError where they do not fit."""
        if world % self.replicas:
            raise ValueError(f"--replicas {self.replicas} does not divide {world} process(es): use "
                             f"{' or '.join(str(n) for n in range(1, world + 1) if world % n == 0)}")
        ranks = world // self.replicas
        return Sharding(ranks, self.replicas, self.wrap, self.least_parameters, lab_fsdp.reshard(self.reshard, ranks),
                        self.prefetch, self.offload, self.precision, self.reduce)


TIERS = {"smoke": Options(),
         "cpu": Options(layers=6, hidden=256, heads=8, steps=20),
         "gpu": Options(layers=20, hidden=2048, heads=16, seq=2048, steps=20, lr=3e-4, precision="bf16",
                        checkpointing="full")}


def batches(s, o, text, step, alone=False):
    """Batches of a step, one a pass: this rank's, or those of all ranks together."""
    rank, world, each = (0, 1, o.micro_batch * s.world) if alone else (s.rank, s.world, o.micro_batch)
    return [session.batch(text, step * o.accumulation + i, each, o.seq, rank, world, o.seed, s.device)
            for i in range(o.accumulation)]


def way(s, o, cut, via, **more):
    """One Way of these options."""
    return Way(s, o.shape, via, cut, o.checkpointing, **{"rate": o.lr, "seed": o.seed, "clip": o.clip} | more)


def names(s, o, cut, plain=True):
    """The ways of this run: the baseline, by hand where that can, fully_shard and --via."""
    try:
        parallel_fsdp.refuse(cut)
        hand = ("naive", "prefetching") if o.sync_every_pass or o.accumulation == 1 else ()
    except ValueError:
        hand = ()
    return list(dict.fromkeys([*(("one" if s.world == 1 else "ddp",) if plain else ()), *hand, "torch", o.via]))


# --- the same as one process? -------------------------------------------------------------------------------

def parity(s, o, text, vias):
    """Checks of a Record: losses, gradients and weights of a few steps of momentum SGD against this process alone on
    all batches, in fp32."""
    checks = {}
    o = replace(o, seq=min(o.seq, PARITY_TOKENS), micro_batch=1, precision="fp32", reduce="fp32")
    cut, more = o.sharding(s.world), {"optimizer": "momentum", "rate": PARITY_RATE}
    wanted = _trained(way(s, o, cut, "one", **more), o, [batches(s, o, text, i, True) for i in range(PARITY_STEPS)])
    for via in vias:
        found = _trained(way(s, o, cut, via, **more), o, [batches(s, o, text, i) for i in range(PARITY_STEPS)])
        losses = max(abs(s.mean(f) - w) / w for f, w in zip(found[0], wanted[0], strict=True))
        checks[f"{NAMES[via]}: losses equal one process"] = parallel_parity.check(losses, parallel_parity.TOLERANCE)
        for what, f, w in (("gradients", found[1], wanted[1]), ("weights", found[2], wanted[2])):
            worst = s.largest(min(parallel_parity.relative_error(f, w), 1e300))
            checks[f"{NAMES[via]}: {what} equal one process"] = parallel_parity.check(worst, parallel_parity.TOLERANCE)
    return checks


def _trained(one, o, steps):
    """(losses of the steps, gradients of the last, weights after it)."""
    losses = []
    for share in steps:
        losses.append(one.gradients(share, o.sync_every_pass))
        gradients = one.whole(gradients=True)
        one.update()
    return losses, gradients, one.whole()


def show_fallback(s, o, text, cut):
    """What Accelerate builds on a CPU from an FSDP2 plugin: parity, and a look at what there is."""
    checks = parity(s, o, text, ["accelerate-naive"])
    one = way(s, o, cut, "accelerate-naive")
    counts = one.counted(batches(s, o, text, 0))
    whole = total_parameters(o.shape) * 4
    s.say(lab_fsdp.fallback(checks, counts, one.stored()["parameters"], whole, one.built))


# --- train, compare, record -----------------------------------------------------------------------------------

def record(s, tier, o, cut, rounds, rows, checks, notes, seen):
    """The Record of this run; the same on every rank but for the facts of its own device."""
    prediction, measurement = report.pairs(rows, lab_fsdp.NAMES, lab_fsdp.FIGURES)
    account = fsdp_account(o.shape, o.micro_batch, o.seq, o.recipe, cut, s.device.type)
    prediction["peak bytes"], measurement["peak bytes"] = account.peak_bytes, sum(seen.values())
    for kind in seen:
        prediction[f"{kind} bytes at the peak"] = account.peak.get(kind, 0)
        measurement[f"{kind} bytes at the peak"] = seen[kind]
    facts, spent = session.facts(s), rounds.seconds[o.via]
    skipped = [] if o.via.startswith("accelerate") else ["Accelerate: not asked for (--via)"]
    if "naive" not in rounds.ways:
        skipped.append("by hand: it has fp32, one mesh and a reduction in every pass only")
    total = o.micro_batch * s.world * o.accumulation
    return results.Record(
        stem="fsdp", tier=tier, **facts | {"notes": [*facts["notes"], *notes]}, model=asdict(o.shape),
        recipe=asdict(o.recipe) | {f"sharding: {k}": v for k, v in asdict(cut).items()} | {
            "accumulation": o.accumulation, "sync_every_pass": o.sync_every_pass, "clip": o.clip},
        effective_batch=total, sequence_length=o.seq,
        precision="fp32" if o.precision == "fp32" else "bf16 by MixedPrecisionPolicy", checkpoint_cadence="none",
        step_seconds=spent, warmup_steps=WARMUP,
        tokens_per_second=results.tokens_per_second(spent, WARMUP, total, o.seq), losses=rounds.losses[o.via],
        peak_memory=seen | {f"allocator: {k}": v for k, v in session.allocator(s).items()}, prediction=prediction,
        measurement=measurement, checks=checks, skipped=skipped,
        series={f"seconds a step, {NAMES[via]}": found for via, found in rounds.seconds.items()})


def count_checks(s, rows):
    """Checks of a Record: collectives that CommDebugMode counted against those of the pure model."""
    checks = {}
    for via, row in rows.items() if s.world > 1 else ():
        for figure in (f for f in ("gathers", "scatters") if f in row["predicted"]):
            off = abs(row["predicted"][figure] - row["measured"][figure])
            checks[f"{NAMES[via]}: {lab_fsdp.FIGURES[figure]} as predicted"] = parallel_parity.check(off, 0.0)
    return checks


def train(s, tier, o, text, cut):
    """Check, train all ways in alternation, compare, measure memory, record. Exit code 1 where a check failed."""
    vias, skipped = names(s, o, cut), s.world == 1
    checks = parity(s, o, text, names(s, o, cut, plain=False))
    made = {via: way(s, o, cut, via) for via in vias}
    notes = [f"{NAMES[via]}: {one.built}" for via, one in made.items()]
    rounds = Rounds(s, o, made, Calibration(s, way(s, o, cut, "one"), shard.mesh(s, cut)))
    rounds.run(o.steps, lambda step: batches(s, o, text, step))
    rows = rounds.rows(WARMUP)
    s.say("\n" + lab_fsdp.ways(rows))
    seen, moments = fsdp_knobs.memory(s, o, cut, batches(s, o, text, 0)[0])
    account = fsdp_account(o.shape, o.micro_batch, o.seq, o.recipe, cut, s.device.type)
    s.say("\n" + lab_fsdp.memory(account.peak, seen))
    if o.timeline:
        s.say("\n" + lab_fsdp.timeline(moments))
    checks |= count_checks(s, rows) | {"peak within 2% of the prediction": parallel_parity.check(
        abs(account.peak_bytes / sum(seen.values()) - 1), MEMORY)}
    r = record(s, tier, o, cut, rounds, rows, checks, notes, seen)
    r.skipped.extend(["collectives: one process sends nothing (torchrun --nproc-per-node 2)"] if skipped else [])
    s.say("\n".join(["", report.closing(rows), *(f"built: {note}" for note in notes),
                     *report.verdicts(r.checks, r.skipped, r.stalls, r.failures)]))
    if o.save and s.main:
        s.say(f"record saved: {results.save(r, record_path(s, tier, o)).name}")
    if o.trace and s.main:
        profiler.write(rounds.traces[o.via], o.trace)
        s.say(f"trace: {Path(o.trace).name}; open it at https://ui.perfetto.dev")
    if not s.agree(all(check["passed"] for check in r.checks.values())):
        sys.exit(1)


def record_path(s, tier, o):
    """Where --save puts the Record: the file given, or labs/results/fsdp/TIER-DEVICE-PROCESSES[-ROUTE].json."""
    route = "" if o.via == "torch" else f"-{o.via}"
    return RESULTS / f"{tier}-{s.device.type}-{s.world}{route}.json" if o.save == "auto" else Path(o.save)


def main(s, argv=None):
    """Train all ways, or walk a grid of knobs, or show what Accelerate quietly builds."""
    tier, o = lab_text.parse(TIERS, __doc__, argv)
    fits.check(s, o.shape)
    lab_text.check_target(o.trace, (".json",))
    lab_text.check_save(o.save, RESULTS)
    cut = o.sharding(s.world)
    fsdp_ways.refuse(s, o.via, cut)
    fsdp_knobs.refuse(s, o)
    text = session.as_tensor(lab_text.corpus(o.dataset))
    s.say(f"{session.device_name(s.device)}, {s.world} process(es), backend {s.backend}: "
          f"{total_parameters(o.shape) / 1e6:,.2f} M parameters, {o.accumulation} x {o.micro_batch} x {o.seq} tokens "
          f"a rank and step, {cut.ranks} shard(s) x {cut.replicas} replica(s)")
    if o.via == "accelerate-naive":
        show_fallback(s, o, text, cut)
    elif o.sweep:
        fsdp_knobs.sweep(s, tier, o, lambda step, q: batches(s, q, text, step), RESULTS)
    else:
        train(s, tier, o, text, cut)


if __name__ == "__main__":
    session.run(main)
