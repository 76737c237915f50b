"""Rung 02: one model, five ways to train it on several processes.

torchrun --nproc-per-node 2 labs/ddp.py --save
torchrun --nproc-per-node 2 labs/ddp.py --inject straggler:1:0.5 --trace trace.json
accelerate launch --config_file labs/launch/accelerate.yaml --num_processes 2 labs/ddp.py --via accelerate
python labs/ddp.py --scaling 1,2,4         starts torchrun itself, for each number of processes
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import sys
import time
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import product

from scaleout.lab import corpus, ddp_scaling, fits, options, report, runner, session
from scaleout.lab import ddp as lab_ddp
from scaleout.measure import inject, rounds, traces
from scaleout.parallel import HOOKS, Settings, ddp_ways, parity
from scaleout.records import trace
from scaleout.spec import Recipe

WARMUP = 3  # DDP rebuilds its buckets in the second step
PARITY_TOKENS = 128  # at most, of each sequence: every rank also runs the sequences of all ranks
BY_HAND = ("hand", "buckets")


@dataclass(frozen=True)
class Options(options.Model):
    """The model, the step, how gradients are communicated, and what to do with the result."""

    layers: int = options.number(4, "blocks")
    hidden: int = options.number(160, "width of the residual stream")
    heads: int = options.number(5, "attention heads")
    seq: int = options.number(128, "tokens per sequence")
    micro_batch: int = options.number(4, "sequences per rank and pass")
    accumulation: int = options.number(
        1, "forward and backward passes per optimizer step (gradient accumulation)", highest=1000
    )
    sync_every_pass: bool = options.flag("all-reduce after every pass, which no_sync avoids")
    steps: int = options.number(12, "training steps", WARMUP + 1, 10**6)
    lr: float = options.number(1e-3, "learning rate", 0, 1000)
    seed: int = options.seed()
    precision: str = options.choice("fp32", ("fp32", "autocast-bf16"), "dtypes")
    bucket_mb: float | None = options.number(1.0, "largest bucket, MiB (torch's default: 25)", 1e-4, 1e5)
    bucket_view: bool = options.flag("gradients are views of DDP's buckets")
    static_graph: bool = options.flag("tell DDP that every step uses the same parameters")
    find_unused: bool = options.flag("let DDP look for parameters that a step does not use")
    unused_part: bool = options.flag("give the model a layer that its forward never uses")
    hook: str = options.choice("none", HOOKS, "compress the gradients that are all-reduced")
    hook_rank: int = options.number(1, "columns of PowerSGD's matrices", highest=1024)
    via: str = options.choice("torch", ("torch", "accelerate"), "accelerate adds the fifth way")
    trace: str | None = options.word(None, "write steps of --via for ui.perfetto.dev", "FILE.json")
    thin: bool = options.flag("a small trace: phases and collectives, with compute as one span")
    inject: str | None = options.word(None, "; ".join(inject.KINDS.values()), "FAULT")
    scaling: str | None = options.word(None, "numbers of processes to compare, strong and weak: 1,2,4", "N,N")
    brief: bool = options.flag("one process and --via alone, no parity: what --scaling runs")
    dataset: str | None = options.dataset()
    save: str | None = options.save("ddp")

    @property
    def settings(self):
        """How gradients are communicated."""
        return Settings(self.bucket_view, *(getattr(self, f.name) for f in fields(Settings)[1:]))


TIERS = {
    "smoke": Options(),
    "cpu": Options(layers=6, hidden=256, heads=8, steps=30),
    "gpu": Options(
        layers=24,
        hidden=1024,
        heads=16,
        seq=2048,
        steps=30,
        lr=3e-4,
        bucket_mb=None,
        precision="autocast-bf16",
        dataset=corpus.LIBRARY,
    ),
}


def way(s, o, via):
    """One Way of these options. "one" and "alone" are plain models without communication."""
    plain = via in ("one", "alone")
    result = ddp_ways.DDPWay(
        s,
        o.shape,
        "hand" if plain else via,
        Settings() if plain or via == "hand" else o.settings,
        Recipe(precision=o.precision),
        o.lr,
        o.seed,
        o.unused_part,
    )
    result.replicas.look.silent = plain
    return result


# --- the same as one process? ----------------------------------------------------------------------------


def equality(lab):
    """Check the gradients of all ranks against this process alone on all batches, in fp32, and note how far off they
    are where communication is compressed.

    The third backward pass on the same batch counts: DDP has its final buckets by then, and PowerSGD begins.
    """
    s, o = lab.s, lab.short(PARITY_TOKENS)

    def trained(via, hook="none"):
        replica, share = way(s, replace(o, hook=hook), via), lab.batches(0, via == "one", o)
        for _ in range(3):
            replica.training.clear()
            loss = replica.gradients(share, o.sync_every_pass)
        grads = parity.gradients(replica.model)
        return {"loss": [loss], "gradients": {name: g for name, g in grads.items() if not name.startswith("spare.")}}

    lab.equality(trained, (*BY_HAND, "torch", "accelerate")[: 3 + (o.via == "accelerate")])
    wanted = trained("one")
    for via, hook in product(("buckets", "torch"), (hook for hook in HOOKS if hook != "none")):
        worst = parity.errors(s, trained(via, hook), wanted)["gradients"]
        meant = ", as intended: it adds what it leaves out to the next step" if hook == "powersgd" else ""
        lab.notes.append(
            f"{lab.names[via]} with {hook}: gradients differ from one process by {worst:.2g} of the largest{meant}"
        )


# --- faults -----------------------------------------------------------------------------------------------


def faulty(lab, fault):
    """The Trace of a few steps by --via: healthy for fault None, else with the fault in it."""
    s, o = lab.s, lab.o
    kind, link = fault.kind if fault else "", None
    sick = way(s, replace(o, bucket_mb=inject.TINY_MB) if kind == "tiny-buckets" else o, o.via)
    if kind == "slow-link":
        link = sick.replicas.look.wrap = inject.SlowLink(s.world, fault.amount * 1e6)
    if kind == "straggler" and s.rank == fault.rank:
        inject.slow_down(sick.model, fault.amount)

    def one_step(i):
        with traces.phase("data"):
            time.sleep(fault.amount if kind == "starved" else 0.0)
            share = lab.batches(i)
        sick.step(share, o.sync_every_pass)

    for i in range(WARMUP):
        one_step(i)
    if link:
        link.events(s.rank)  # forget the warm-up
    return traces.traced(s, one_step, rounds.TRACED, lambda: link.events(s.rank) if link else ())


def keep_trace(lab, traced):
    """Write what --trace asks for."""
    lab.write("trace", lambda path: traces.write(trace.thin(traced) if lab.o.thin else traced, path), runner.PERFETTO)


def diagnose(lab, fault):
    """Print a healthy run and a faulty one side by side, rank by rank."""
    healthy, sick = (faulty(lab, one) for one in (None, fault))
    lab.s.say(lab_ddp.fault(trace.summary(healthy), trace.summary(sick), lab.o.inject))
    keep_trace(lab, sick)


# --- train, compare, record -----------------------------------------------------------------------------------


def checks(lab, timed, rows):
    """Check collectives against the schedule, and the weights of all ranks; note what was built."""
    o, sending = lab.o, [via for via in rows if via not in lab_ddp.NOT_WAYS]
    if o.hook != "powersgd" and not (o.find_unused or o.static_graph):
        for via in sending:
            error = abs(rows[via]["predicted"]["collectives"] - rows[via]["measured"]["collectives"])
            lab.check(f"{lab.names[via]}: collectives as predicted", error, 0.0)
    for via in sending:
        lab.check(f"{lab.names[via]}: weights are equal on all ranks", timed.ways[via].replicas.spread(), 0.0)
    lab.note({via: timed.ways[via].replicas for via in sending})
    lab.notes += timed.calibration.words(WARMUP)


def train(lab):
    """Check, train all ways in alternation, compare, record. Exit code 1 where a check failed."""
    s, o = lab.s, lab.o
    if s.world > 1 and not o.brief:
        equality(lab)
    names = ["one", o.via] if o.brief else ["one", *(BY_HAND if s.world > 1 else ()), "torch", o.via]
    names = list(dict.fromkeys(names))
    timed = rounds.Rounds(s, o, names, partial(way, s, o), lab.batches)
    timed.run(o.steps)
    rows = timed.rows(WARMUP)
    s.say("\n" + lab_ddp.ways(rows))
    s.say("\n" + lab_ddp.why(rows, s.world, timed.one_threads, timed.threads))
    lab.predict_ways(rows, lab_ddp.FIGURES)
    lab.skip(
        o.via != "accelerate" and "Accelerate: not asked for (--via accelerate)",
        s.world == 1 and "equal to one process: this run is one process (torchrun --nproc-per-node 2)",
        o.hook == "powersgd" and "prediction with PowerSGD: its cost is arithmetic, which the schedule does not model",
    )
    if s.world > 1:
        checks(lab, timed, rows)
    lab.series = timed.series()
    r = lab.record(
        timed.seconds[o.via],
        timed.losses[o.via],
        recipe=asdict(Recipe(precision=o.precision))
        | asdict(o.settings)
        | {"accumulation": o.accumulation, "sync_every_pass": o.sync_every_pass},
        batch=o.micro_batch * s.world * o.accumulation,
    )
    closing = report.closing(rows, lab_ddp.NOT_WAYS)
    lab.report(r, closing, *(f"note: {note}" for note in lab.notes), way=o.via)
    if s.world > 1:
        keep_trace(lab, timed.traces[o.via])
    lab.end()


def refuse(lab):
    """Refuse what could not work, before any work. ValueError, one line."""
    s, o = lab.s, lab.o
    lab.refuse(fits.REPLICATED, folder=bool(o.scaling))
    if o.inject:
        lab.refuse_idle("--inject", "scaling", "brief", "steps")
        inject.parse(o.inject, s.world)
    if o.scaling:
        lab.refuse_idle("--scaling", "trace", "brief")
        ddp_scaling.plan(ddp_scaling.worlds(o.scaling), o.micro_batch)
    if o.unused_part and not (o.find_unused or o.static_graph):
        raise ValueError("--unused-part: DDP would wait for gradients that never come: add --find-unused")
    if o.thin and not o.trace:
        raise ValueError("--thin is about the file of --trace: add --trace FILE.json, or leave out --thin")
    if o.trace and s.world == 1:
        raise ValueError("--trace is about several ranks: use torchrun --nproc-per-node 2")
    if o.static_graph and o.accumulation > 1 and not o.sync_every_pass:
        raise ValueError(
            "--static-graph with --accumulation: torch's DDP counts on a first step without no_sync: "
            "add --sync-every-pass"
        )


def main(s, argv=None):
    """Train all ways, or a few steps with a fault, or all of it at several numbers of processes."""
    lab = runner.Lab(s, __file__, __doc__, TIERS, argv, names=lab_ddp.NAMES, warmup=WARMUP)
    refuse(lab)
    o = lab.o
    if o.scaling:
        ddp_scaling.run(s, o, lab.tier, __file__, sys.argv[1:] if argv is None else argv, lab.folder)
        return
    fault = inject.parse(o.inject, s.world)
    if fault:
        diagnose(lab, fault)
    else:
        lab.begin(f"{o.precision}, {o.accumulation} x {o.micro_batch} x {o.seq} tokens per rank and step")
        train(lab)


if __name__ == "__main__":
    session.run(main)
