"""Rung 06: FSDP by hand, with fully_shard and with Accelerate: every rank stores a shard of one model.

torchrun --nproc-per-node 2 labs/fsdp.py --save
torchrun --nproc-per-node 2 labs/fsdp.py --wrap layer --reshard false --prefetch 2
torchrun --nproc-per-node 4 labs/fsdp.py --replicas 2         hybrid sharding on a mesh of 2 x 2
torchrun --nproc-per-node 2 labs/fsdp.py --sweep wrap,reshard,checkpointing
torchrun --nproc-per-node 2 labs/fsdp.py --via accelerate-naive   what Accelerate silently builds on a CPU
accelerate launch --config_file labs/launch/accelerate-fsdp2.yaml labs/fsdp.py --via accelerate      on GPUs
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

from dataclasses import asdict, dataclass
from functools import partial

from scaleout.lab import corpus, options, report, runner, session
from scaleout.lab import fsdp as lab_fsdp
from scaleout.measure import fsdp_knobs, fsdp_rounds, traces
from scaleout.memory import fsdp_account
from scaleout.parallel import fsdp, fsdp_ways, parity, shard
from scaleout.spec import WRAPS, Recipe, Sharding, checks, total_parameters

WARMUP = 3
PARITY_STEPS = 3
PARITY_TOKENS = 128  # at most, of each sequence: every rank also runs the sequences of all ranks
DTYPES = "fp32", "bf16"  # no fp16: this lab does not scale its loss, as labs/capstone.py does
PARITY_RATE = 0.1  # of SGD with momentum, see parallel.fsdp_ways.FSDPWay


@dataclass(frozen=True)
class Options(options.Model):
    """The model, the step, how the model is sharded, and what to do with the result."""

    layers: int = options.number(4, "blocks")
    hidden: int = options.number(160, "width of the residual stream")
    heads: int = options.number(5, "attention heads")
    seq: int = options.number(128, "tokens per sequence")
    micro_batch: int = options.number(4, "sequences per rank and micro-batch")
    accumulation: int = options.number(1, "micro-batches per step (gradient accumulation)", highest=1000)
    sync_every_pass: bool = options.flag(
        "reduce gradients after every micro-batch; without it they stay unsharded until the last", True
    )
    steps: int = options.number(10, "training steps", WARMUP + 2, 10**6)
    lr: float = options.number(1e-3, "learning rate", 0, 1000)
    seed: int = options.seed()
    clip: float | None = options.number(None, "largest norm of the gradient (clipping)", 1e-9, None)
    checkpointing: str = options.choice("none", ("none", "selective", "full"), "activations that backward recomputes")
    wrap: str = options.choice("block", WRAPS, "modules that become FSDP units")
    least_parameters: int = options.number(50_000, "least parameters of a unit, with --wrap size", highest=10**12)
    reshard: str = options.word("true", "reshard after forward: true, false, or to a group of N ranks", "true|false|N")
    prefetch: int = options.number(1, "units prefetched", 0, 1000)
    precision: str = options.choice("fp32", DTYPES, "param_dtype: of all-gathers and compute")
    reduce: str = options.choice("fp32", DTYPES, "reduce_dtype: of gradients in the reduce-scatter")
    offload: bool = options.flag("CPU offload of shards and optimizer")
    replicas: int = options.number(1, "replicas of the model (hybrid sharding), each sharded", highest=10**5)
    via: str = options.choice("torch", fsdp_ways.ROUTES, "adds a way; accelerate-forced and -naive are for CPUs")
    sweep: str | None = options.word(
        None,
        f"compare options in one launch: {', '.join(fsdp_knobs.KNOBS)}",
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
    return fsdp_ways.FSDPWay(
        s, o.shape, via, cut, o.checkpointing, **{"rate": o.lr, "seed": o.seed, "clip": o.clip} | settings
    )


def names(s, o, cut, plain=True):
    """The ways of this run: the baseline, by hand where possible, fully_shard and --via."""
    try:
        fsdp.refuse(cut)
        hand = ("naive", "prefetching") if o.sync_every_pass or o.accumulation == 1 else ()
    except ValueError:
        hand = ()
    return list(dict.fromkeys([*(("one" if s.world == 1 else "ddp",) if plain else ()), *hand, "torch", o.via]))


# --- the same as one process? -------------------------------------------------------------------------------


def equality(lab, vias):
    """Check losses and weights of a few steps of momentum SGD and the gradients of the first against this process alone
    on all batches, in fp32."""
    o = lab.short(PARITY_TOKENS, reduce="fp32")

    def trained(via):
        replica = way(lab.s, o, o.sharding(lab.s.world), via, optimizer="momentum", rate=PARITY_RATE)
        batches = [lab.batches(i, via == "one", o) for i in range(PARITY_STEPS)]
        return parity.trained(replica, batches, o.sync_every_pass)

    lab.equality(trained, vias)


def show_fallback(lab, cut):
    """What Accelerate builds on a CPU from an FSDP2 plugin: parity, and a look at what was built."""
    s, o = lab.s, lab.o
    equality(lab, ["accelerate-naive"])
    naive = way(s, o, cut, "accelerate-naive")
    counts = naive.counted(lab.batches(0))
    all_bytes = total_parameters(o.shape) * 4
    s.say(lab_fsdp.fallback(lab.checks, counts, naive.stored()["parameters"], all_bytes, naive.built))


# --- train, compare, record -----------------------------------------------------------------------------------


def count_checks(lab, rows):
    """Check collectives that CommDebugMode counted against those of the pure model."""
    for via, row in rows.items() if lab.s.world > 1 else ():
        for figure in (f for f in ("gathers", "scatters") if f in row["predicted"]):
            error = abs(row["predicted"][figure] - row["measured"][figure])
            lab.check(f"{lab.names[via]}: {lab_fsdp.FIGURES[figure]} as predicted", error, 0.0)


def memory(lab, cut):
    """Bytes by kind at the peak, {kind: bytes}, next to their prediction."""
    s, o = lab.s, lab.o
    seen, moments = fsdp_knobs.memory(s, o, cut, lab.batches(0)[0])
    account = fsdp_account(o.shape, o.micro_batch, o.seq, o.recipe, cut, s.device.type)
    s.say("\n" + lab_fsdp.memory(account.peak, seen))
    if o.timeline:
        s.say("\n" + lab_fsdp.timeline(moments))
    lab.check_prediction("peak within 2% of the prediction", account.peak_bytes, sum(seen.values()))
    lab.predict("peak bytes", account.peak_bytes, sum(seen.values()))
    for kind in seen:
        lab.predict(f"{kind} bytes at the peak", account.peak.get(kind, 0), seen[kind])
    return seen


def train(lab, cut):
    """Check, train all ways in alternation, compare, measure memory, record. Exit code 1 where a check failed."""
    s, o = lab.s, lab.o
    equality(lab, names(s, o, cut, plain=False))
    ways = {via: way(s, o, cut, via) for via in names(s, o, cut)}
    lab.note(ways)
    calibration = fsdp_rounds.Calibration(s, way(s, o, cut, "one"), shard.mesh(s, cut))
    timed = fsdp_rounds.Rounds(s, o, ways, calibration, lab.batches)
    timed.run(o.steps)
    rows = timed.rows(WARMUP)
    s.say("\n" + lab_fsdp.ways(rows))
    lab.predict_ways(rows, lab_fsdp.FIGURES)
    count_checks(lab, rows)
    seen = memory(lab, cut)
    lab.skip(
        not o.via.startswith("accelerate") and "Accelerate: not asked for (--via)",
        "naive" not in ways and "by hand: it only does fp32, one mesh, and a reduction in every micro-batch",
        s.world == 1 and "collectives: one process sends nothing (use torchrun --nproc-per-node 2)",
    )
    r = lab.record(
        timed.seconds,
        timed.losses,
        recipe=asdict(o.recipe)
        | {f"sharding: {k}": v for k, v in asdict(cut).items()}
        | {"accumulation": o.accumulation, "sync_every_pass": o.sync_every_pass, "clip": o.clip},
        batch=o.micro_batch * s.world * o.accumulation,
        precision="fp32" if o.precision == "fp32" else "bf16 by MixedPrecisionPolicy",
        peak_memory=seen | session.allocator(s, "allocator: "),
    )
    lab.report(r, "", report.closing(rows), *(f"built: {note}" for note in lab.notes), way=o.via)
    lab.write("trace", partial(traces.write, timed.traces.get(o.via)), runner.PERFETTO)
    lab.end()


def refuse(lab, cut):
    """Refuse what could not work, before any work. ValueError, one line."""
    s, o = lab.s, lab.o
    fsdp_ways.refuse(s, o.via, cut)
    fsdp_knobs.refuse(s, o)
    if o.sweep:
        lab.refuse_idle("--sweep", "timeline", "steps")
    if o.via == "accelerate-naive":
        lab.refuse_idle("--via accelerate-naive", "sweep", "timeline", "steps")
    if o.wrap != "size" and "wrap" not in (o.sweep or ""):
        lab.refuse_idle(f"--wrap {o.wrap}", "least_parameters")


def main(s, argv=None):
    """Train all ways, or run a grid of options, or show what Accelerate silently builds."""
    lab = runner.Lab(s, __file__, __doc__, TIERS, argv, names=lab_fsdp.NAMES, warmup=WARMUP)
    lab.refuse()
    o = lab.o
    cut = o.sharding(s.world)
    refuse(lab, cut)
    lab.begin(
        f"{o.accumulation} x {o.micro_batch} x {o.seq} tokens per rank and step\n"
        f"{cut.ranks} shard(s) x {cut.replicas} replica(s)"
    )
    if o.via == "accelerate-naive":
        show_fallback(lab, cut)
    elif o.sweep:
        fsdp_knobs.sweep(lab)
    else:
        train(lab, cut)


if __name__ == "__main__":
    session.run(main)
