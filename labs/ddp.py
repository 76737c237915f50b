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
from pathlib import Path

from scaleout.lab import corpus, ddp_scaling, fits, options, recording, report, session
from scaleout.lab import ddp as lab_ddp
from scaleout.measure import inject, rounds, traces
from scaleout.parallel import HOOKS, Settings, parity, step
from scaleout.records import trace
from scaleout.spec import Recipe

WARMUP = 3  # DDP rebuilds its buckets in the second step
PARITY_TOKENS = 128  # at most, of each sequence: every rank also runs the sequences of all ranks
RESULTS = Path(__file__).resolve().parent / "results" / "ddp"
BY_HAND = ("hand", "buckets")


@dataclass(frozen=True)
class Options(options.Model):
    """The model, the step, how gradients travel, and what to do with the result."""

    layers: int = options.number(4, "blocks")
    hidden: int = options.number(160, "width of the residual stream")
    heads: int = options.number(5, "attention heads")
    seq: int = options.number(128, "tokens a sequence")
    micro_batch: int = options.number(4, "sequences a rank and pass")
    accumulation: int = options.number(1, "passes a step, whose gradients add up", highest=1000)
    sync_every_pass: bool = options.flag("average after every pass: what no_sync is there to avoid")
    steps: int = options.number(12, "training steps", WARMUP + 1, 10**6)
    lr: float = options.number(1e-3, "learning rate", 0, 1000)
    seed: int = options.seed()
    precision: str = options.choice("fp32", ("fp32", "autocast-bf16"), "dtypes")
    bucket_mb: float | None = options.number(1.0, "largest bucket, MiB (torch's default: 25)", 1e-4, 1e5)
    bucket_view: bool = options.flag("gradients are views of DDP's buckets")
    static_graph: bool = options.flag("tell DDP that every step uses the same parameters")
    find_unused: bool = options.flag("let DDP look for parameters that a step has not used")
    unused_part: bool = options.flag("give the model a layer that its forward never uses")
    hook: str = options.choice("none", HOOKS, "compress what travels")
    hook_rank: int = options.number(1, "columns of PowerSGD's matrices", highest=1024)
    via: str = options.choice("torch", ("torch", "accelerate"), "accelerate adds the fifth way")
    trace: str | None = options.word(None, "write steps of --via for ui.perfetto.dev", "FILE.json")
    thin: bool = options.flag("a small trace: phases, collectives, compute in one piece")
    inject: str | None = options.word(None, "; ".join(inject.KINDS.values()), "FAULT")
    scaling: str | None = options.word(None, "numbers of processes to compare, strong and weak: 1,2,4", "N,N")
    brief: bool = options.flag("one process and --via alone, no parity: what --scaling runs")
    dataset: str | None = options.dataset()
    save: str | None = options.save("ddp")

    @property
    def settings(self):
        """How gradients travel."""
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
    """One Way of these options. "one" and "alone" are plain models that send nothing."""
    plain = via in ("one", "alone")
    result = step.Way(
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


def equality(s, o, text):
    """(checks, notes): this rank's and the others' gradients against this process alone on all batches, in fp32.

    The third backward on the same batch counts: DDP has its buckets by then, and PowerSGD begins.
    """
    checks, notes = {}, []
    if s.world == 1:
        return checks, notes
    o = replace(o, seq=min(o.seq, PARITY_TOKENS), micro_batch=1, precision="fp32")
    wanted_loss, wanted = _gradients(way(s, o, "one"), session.batches(s, o, text, 0, alone=True), o)
    for via in ("hand", "buckets", "torch", "accelerate")[: 3 + (o.via == "accelerate")]:
        for hook in ("none",) if via in ("hand", "accelerate") else HOOKS:
            replica = way(s, replace(o, hook=hook), via)
            loss, grads = _gradients(replica, session.batches(s, o, text, 0), o)
            error = abs(s.mean(loss) - wanted_loss) / wanted_loss
            worst, name = parity.worst(s, grads, wanted), lab_ddp.NAMES[via]
            if hook == "none":
                checks[f"{name}: loss equals one process"] = parity.check(error)
                checks[f"{name}: gradients equal one process"] = parity.check(worst)
            else:
                meant = ", as meant: what it leaves out goes into the next step" if hook == "powersgd" else ""
                notes.append(
                    f"{name} with {hook}: gradients differ from one process by {worst:.2g} of their largest{meant}"
                )
    return checks, notes


def _gradients(replica, share, o):
    for _ in range(3):
        replica.training.clear()
        loss = replica.gradients(share, o.sync_every_pass)
    grads = parity.gradients(replica.model)
    return loss, {name: g for name, g in grads.items() if not name.startswith("spare.")}


# --- faults -----------------------------------------------------------------------------------------------


def faulty(s, o, text, fault):
    """The Trace of a few steps by --via: healthy for fault None, else with the fault in it."""
    kind, link = fault.kind if fault else "", None
    sick = way(s, replace(o, bucket_mb=inject.TINY_MB) if kind == "tiny-buckets" else o, o.via)
    if kind == "slow-link":
        link = sick.replicas.look.wrap = inject.SlowLink(s.world, fault.amount * 1e6)
    if kind == "straggler" and s.rank == fault.rank:
        inject.slow_down(sick.model, fault.amount)

    def one_step(i):
        with traces.phase("data"):
            time.sleep(fault.amount if kind == "starved" else 0.0)
            share = session.batches(s, o, text, i)
        sick.step(share, o.sync_every_pass)

    for i in range(WARMUP):
        one_step(i)
    if link:
        link.events(s.rank)  # forget the warm-up
    return traces.traced(s, one_step, rounds.TRACED, lambda: link.events(s.rank) if link else ())


def keep_trace(s, o, traced):
    """Write what --trace asks for."""
    if o.trace and s.main:
        traces.write(trace.thin(traced) if o.thin else traced, o.trace)
        s.say(f"trace: {Path(o.trace).name}; open it at https://ui.perfetto.dev")


def diagnose(s, o, text, fault):
    """A healthy run and a faulty one, side by side, rank by rank."""
    healthy, sick = faulty(s, o, text, None), faulty(s, o, text, fault)
    s.say(lab_ddp.fault(trace.summary(healthy), trace.summary(sick), o.inject))
    keep_trace(s, o, sick)


# --- train, compare, record -----------------------------------------------------------------------------------


def record(s, tier, o, timed, rows, checks, notes):
    """The Record of this run."""
    prediction, measurement = report.pairs(rows, lab_ddp.NAMES, lab_ddp.FIGURES)
    skipped = [] if o.via == "accelerate" else ["Accelerate: not asked for (--via accelerate)"]
    sending = [via for via in rows if via not in lab_ddp.NOT_WAYS] if s.world > 1 else []
    if s.world == 1:
        skipped.append("equal to one process: this run is one process (torchrun --nproc-per-node 2)")
    if o.hook == "powersgd":
        skipped.append("prediction with PowerSGD: its cost is arithmetic, which the schedule does not model")
    elif not (o.find_unused or o.static_graph):
        for via in sending:
            error = abs(rows[via]["predicted"]["collectives"] - rows[via]["measured"]["collectives"])
            checks[f"{lab_ddp.NAMES[via]}: collectives as predicted"] = parity.check(error, 0.0)
    for via in sending:
        built = timed.ways[via].replicas
        checks[f"{lab_ddp.NAMES[via]}: weights are equal on all ranks"] = parity.check(built.spread(), 0.0)
        notes.append(f"{lab_ddp.NAMES[via]}: {built.built}")
    notes += timed.calibration.words(WARMUP) if s.world > 1 else []
    return recording.record(
        s,
        "ddp",
        tier,
        dataset=o.dataset,
        notes=notes,
        model=asdict(o.shape),
        recipe=asdict(Recipe(precision=o.precision))
        | asdict(o.settings)
        | {"accumulation": o.accumulation, "sync_every_pass": o.sync_every_pass},
        effective_batch=o.micro_batch * s.world * o.accumulation,
        sequence_length=o.seq,
        precision=o.precision,
        step_seconds=timed.seconds[o.via],
        warmup_steps=WARMUP,
        losses=timed.losses[o.via],
        peak_memory=session.allocator(s),
        prediction=prediction,
        measurement=measurement,
        checks=checks,
        skipped=skipped,
        series=timed.series(),
    )


def train(s, tier, o, text):
    """Check, train all ways in alternation, compare, record. Exit code 1 where a check failed."""
    s.say(
        f"{recording.heading(s, o.shape)}, {o.precision}, {o.accumulation} x {o.micro_batch} x {o.seq} tokens a rank "
        "and step"
    )
    checks, notes = ({}, []) if o.brief else equality(s, o, text)
    names = ["one", o.via] if o.brief else ["one", *(BY_HAND if s.world > 1 else ()), "torch", o.via]
    timed = rounds.Rounds(
        s, o, list(dict.fromkeys(names)), lambda via: way(s, o, via), partial(session.batches, s, o, text)
    )
    timed.run(o.steps)
    rows = timed.rows(WARMUP)
    s.say("\n" + lab_ddp.ways(rows))
    s.say("\n" + lab_ddp.why(rows, s.world, timed.one_threads, timed.threads))
    r = record(s, tier, o, timed, rows, checks, notes)
    s.say(
        "\n".join(
            [
                report.closing(rows, lab_ddp.NOT_WAYS),
                *(f"note: {note}" for note in notes),
                *report.verdicts(r.checks, r.skipped, r.stalls, r.failures),
            ]
        )
    )
    recording.keep(s, r, o.save, RESULTS, o.via)
    if s.world > 1:
        keep_trace(s, o, timed.traces[o.via])
    recording.end(s, r.checks)


def check(s, tier, o):
    """Refuse what could not work, before any work. ValueError, one line."""
    options.check_sound(o.save, o.inject)
    if o.inject:
        options.check_idle("--inject", o, TIERS[tier], ("scaling", "brief", "steps"))
        inject.parse(o.inject, s.world)
    if o.scaling:
        options.check_idle("--scaling", o, TIERS[tier], ("trace", "brief"))
        ddp_scaling.plan(ddp_scaling.worlds(o.scaling), o.micro_batch)
    fits.check(s, o.shape, fits.REPLICATED)
    options.check_target(o.trace, (".json",))
    if o.scaling:
        options.check_folder(RESULTS if o.save == "auto" else o.save, "--save")
    else:
        options.check_save(o.save, RESULTS)
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
    tier, o = options.parse(TIERS, __doc__, argv)
    check(s, tier, o)
    if o.scaling:
        folder = None if o.save is None else RESULTS if o.save == "auto" else Path(o.save)
        ddp_scaling.run(s, o, tier, __file__, sys.argv[1:] if argv is None else argv, folder)
        return
    fault = inject.parse(o.inject, s.world)
    text = session.dataset(o.dataset, o.seq)
    if fault:
        diagnose(s, o, text, fault)
    else:
        train(s, tier, o, text)


if __name__ == "__main__":
    session.run(main)
