"""Rung 02: one model, five ways to train it on several processes.

    torchrun --nproc-per-node 2 labs/ddp.py --save
    torchrun --nproc-per-node 2 labs/ddp.py --inject straggler:1:0.5 --trace trace.json
    accelerate launch --config_file labs/launch/accelerate.yaml --num_processes 2 labs/ddp.py --via accelerate
    python labs/ddp.py --scaling 1,2,4         starts torchrun itself, for each number of processes
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import sys
import time
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from scaleout.lab import ddp as lab_ddp
from scaleout.lab import fits, report, session
from scaleout.lab import text as lab_text
from scaleout.measure import inject as measure_inject
from scaleout.measure import profile as profiler
from scaleout.measure.rounds import TRACED, Rounds
from scaleout.parallel import Settings
from scaleout.parallel import ddp as parallel_ddp
from scaleout.parallel import parity as parallel_parity
from scaleout.parallel.step import Way
from scaleout.records import results
from scaleout.records import trace as chrome_trace
from scaleout.spec import Recipe, Shape, total_parameters
from scaleout.train import scaling as train_scaling

WARMUP = 3                  # DDP rebuilds its buckets in the second step
PARITY_TOKENS = 128         # at most, of each sequence: every rank also runs the sequences of all ranks
RESULTS = Path(__file__).resolve().parent / "results" / "ddp"
BY_HAND = ("hand", "buckets")


def _size(default, what, highest=10**7):
    return field(default=default, metadata={"help": what, "lowest": 1, "highest": highest})


def _flag(what):
    return field(default=False, metadata={"help": what})


def _file(what, name="FILE.json"):
    return field(default=None, metadata={"help": what, "metavar": name})


@dataclass(frozen=True)
class Options:
    """The model, the step, how gradients travel, and what to do with the result."""

    layers: int = _size(4, "blocks")
    hidden: int = _size(160, "width of the residual stream")
    heads: int = _size(5, "attention heads")
    seq: int = _size(128, "tokens a sequence")
    micro_batch: int = _size(4, "sequences a rank and pass")
    accumulation: int = _size(1, "passes a step, whose gradients add up", 1000)
    sync_every_pass: bool = _flag("average after every pass: what no_sync is there to avoid")
    steps: int = field(default=12, metadata={"help": "training steps", "lowest": WARMUP + 1, "highest": 10**6})
    lr: float = field(default=1e-3, metadata={"help": "learning rate", "lowest": 0, "highest": 1000})
    seed: int = field(default=0, metadata={"help": "of weights and batches", "lowest": 0, "highest": 10**9})
    precision: str = field(default="fp32", metadata={"help": "dtypes", "choices": ("fp32", "autocast-bf16")})
    bucket_mb: float | None = field(default=1.0, metadata={
        "help": "largest bucket, MiB (torch's default: 25)", "lowest": 1e-4, "highest": 1e5})
    bucket_view: bool = _flag("gradients are views of DDP's buckets")
    static_graph: bool = _flag("tell DDP that every step uses the same parameters")
    find_unused: bool = _flag("let DDP look for parameters that a step has not used")
    unused_part: bool = _flag("give the model a layer that its forward never uses")
    hook: str = field(default="none", metadata={"help": "compress what travels", "choices": parallel_ddp.HOOKS})
    hook_rank: int = _size(1, "columns of PowerSGD's matrices", 1024)
    via: str = field(default="torch", metadata={"help": "accelerate adds the fifth way",
                                                "choices": ("torch", "accelerate")})
    trace: str | None = _file("write steps of --via for ui.perfetto.dev")
    thin: bool = _flag("a small trace: phases, collectives, compute in one piece")
    inject: str | None = _file("; ".join(measure_inject.KINDS.values()), "FAULT")
    scaling: str | None = _file("numbers of processes to compare, strong and weak: 1,2,4", "N,N")
    brief: bool = _flag("one process and --via alone, no parity: what --scaling runs")
    dataset: str | None = _file("text (default: Python's standard library)", "PATH")
    save: str | None = field(default=None, metadata={"help": "write the Record (alone: to labs/results/ddp/)",
                                                     "const": "auto", "metavar": "FILE"})

    @property
    def shape(self):
        """The transformer of these options, on bytes."""
        return Shape(self.layers, self.hidden, self.heads, lab_text.VOCABULARY, max_seq=self.seq)

    @property
    def settings(self):
        """How gradients travel."""
        return Settings(self.bucket_view, *(getattr(self, f.name) for f in fields(Settings)[1:]))


TIERS = {"smoke": Options(),
         "cpu": Options(layers=6, hidden=256, heads=8, steps=30),
         "gpu": Options(layers=24, hidden=1024, heads=16, seq=2048, steps=30, lr=3e-4, bucket_mb=None,
                        precision="autocast-bf16")}


def batches(s, o, text, step, ranks=None):
    """Batches of a step, one a pass: this rank's, or with ranks=1 those of all ranks together."""
    rank, world, each = (0, 1, o.micro_batch * s.world) if ranks == 1 else (s.rank, s.world, o.micro_batch)
    return [session.batch(text, step * o.accumulation + i, each, o.seq, rank, world, o.seed, s.device)
            for i in range(o.accumulation)]


def way(s, o, via):
    """One Way of these options. "one" and "alone" are plain models that send nothing."""
    plain = via in ("one", "alone")
    made = Way(s, o.shape, "hand" if plain else via, Settings() if plain or via == "hand" else o.settings,
               Recipe(precision=o.precision), o.lr, o.seed, o.unused_part)
    made.replicas.look.silent = plain
    return made


# --- the same as one process? ----------------------------------------------------------------------------

def parity(s, o, text):
    """(checks, notes): this rank's and the others' gradients against this process alone on all batches, in fp32.

    The third backward on the same batch counts: DDP has its buckets by then, and PowerSGD begins.
    """
    checks, notes = {}, []
    if s.world == 1:
        return checks, notes
    o = replace(o, seq=min(o.seq, PARITY_TOKENS), micro_batch=1, precision="fp32")
    wanted_loss, wanted = _gradients(way(s, o, "one"), batches(s, o, text, 0, ranks=1), o)
    for via in ("hand", "buckets", "torch", "accelerate")[:3 + (o.via == "accelerate")]:
        for hook in ("none",) if via in ("hand", "accelerate") else parallel_ddp.HOOKS:
            one = way(s, replace(o, hook=hook), via)
            loss, found = _gradients(one, batches(s, o, text, 0), o)
            off = abs(s.mean(loss) - wanted_loss) / wanted_loss
            worst = s.largest(min(parallel_parity.relative_error(found, wanted), 1e300))
            name = lab_ddp.NAMES[via]
            if hook == "none":
                checks[f"{name}: loss equals one process"] = parallel_parity.check(off, parallel_parity.TOLERANCE)
                checks[f"{name}: gradients equal one process"] = parallel_parity.check(worst, parallel_parity.TOLERANCE)
            else:
                meant = ", as meant: what it leaves out goes into the next step" if hook == "powersgd" else ""
                notes.append(f"{name} with {hook}: gradients differ from one process by {worst:.2g} of their "
                             f"largest{meant}")
    return checks, notes


def _gradients(one, share, o):
    for _ in range(3):
        one.training.clear()
        loss = one.gradients(share, o.sync_every_pass)
    found = parallel_parity.gradients(one.model)
    return loss, {name: g for name, g in found.items() if not name.startswith("spare.")}


# --- faults -----------------------------------------------------------------------------------------------

def faulty(s, o, text, fault):
    """The Trace of a few steps by --via: healthy for fault None, else with the fault in it."""
    kind, link = fault.kind if fault else "", None
    one = way(s, replace(o, bucket_mb=measure_inject.TINY_MB) if kind == "tiny-buckets" else o, o.via)
    if kind == "slow-link":
        link = one.replicas.look.wrap = measure_inject.SlowLink(s.world, fault.amount * 1e6)
    if kind == "straggler" and s.rank == fault.rank:
        measure_inject.slow_down(one.model, fault.amount)

    def step(i):
        with profiler.phase("data"):
            time.sleep(fault.amount if kind == "starved" else 0.0)
            share = batches(s, o, text, i)
        one.step(share, o.sync_every_pass)
    for i in range(WARMUP):
        step(i)
    if link:
        link.events(s.rank)                        # forget the warm-up
    return profiler.traced(s, step, TRACED, lambda: link.events(s.rank) if link else ())


def keep_trace(s, o, found):
    """Write what --trace asks for."""
    if o.trace and s.main:
        profiler.write(chrome_trace.thin(found) if o.thin else found, o.trace)
        s.say(f"trace: {Path(o.trace).name}; open it at https://ui.perfetto.dev")


def diagnose(s, o, text, fault):
    """A healthy run and a faulty one, side by side, rank by rank."""
    healthy, sick = faulty(s, o, text, None), faulty(s, o, text, fault)
    s.say(lab_ddp.fault(chrome_trace.summary(healthy), chrome_trace.summary(sick), o.inject))
    keep_trace(s, o, sick)


# --- train, compare, record -----------------------------------------------------------------------------------

def record(s, tier, o, rounds, rows, checks, notes):
    """The Record of this run; the same on every rank but for the facts of its own device."""
    prediction, measurement = report.pairs(rows, lab_ddp.NAMES, lab_ddp.FIGURES)
    facts, spent = session.facts(s), rounds.seconds[o.via]
    skipped = [] if o.via == "accelerate" else ["Accelerate: not asked for (--via accelerate)"]
    if s.world == 1:
        skipped.append("equal to one process: this run is one process (torchrun --nproc-per-node 2)")
    if o.hook == "powersgd":
        skipped.append("prediction with PowerSGD: its cost is arithmetic, which the schedule does not model")
    elif s.world > 1 and not (o.find_unused or o.static_graph):
        for via in (name for name in rows if name not in ("one", "alone")):
            off = abs(rows[via]["predicted"]["collectives"] - rows[via]["measured"]["collectives"])
            checks[f"{lab_ddp.NAMES[via]}: collectives as predicted"] = parallel_parity.check(off, 0.0)
    if s.world > 1:
        for via in (name for name in rows if name not in ("one", "alone")):
            built = rounds.ways[via].replicas
            checks[f"{lab_ddp.NAMES[via]}: weights are equal on all ranks"] = parallel_parity.check(built.spread(), 0.0)
            notes.append(f"{lab_ddp.NAMES[via]}: {built.built}")
    notes += rounds.calibration.words(WARMUP) if s.world > 1 else []
    total = o.micro_batch * s.world * o.accumulation
    return results.Record(
        stem="ddp", tier=tier, **facts | {"notes": [*facts["notes"], *notes]}, model=asdict(o.shape),
        recipe=asdict(Recipe(precision=o.precision)) | asdict(o.settings) | {
            "accumulation": o.accumulation, "sync_every_pass": o.sync_every_pass}, effective_batch=total,
        sequence_length=o.seq, precision=o.precision, checkpoint_cadence="none", step_seconds=spent,
        warmup_steps=WARMUP, tokens_per_second=results.tokens_per_second(spent, WARMUP, total, o.seq),
        losses=rounds.losses[o.via], peak_memory=session.allocator(s), prediction=prediction, measurement=measurement,
        checks=checks, skipped=skipped, series=rounds.series())


def train(s, tier, o, text):
    """Check, train all ways in alternation, compare, record. Exit code 1 where a check failed."""
    s.say(f"{session.device_name(s.device)}, {s.world} process(es), backend {s.backend}: "
          f"{total_parameters(o.shape) / 1e6:,.2f} M parameters, {o.precision}, {o.accumulation} x {o.micro_batch} x "
          f"{o.seq} tokens a rank and step")
    checks, notes = ({}, []) if o.brief else parity(s, o, text)
    names = ["one", o.via] if o.brief else ["one", *(BY_HAND if s.world > 1 else ()), "torch", o.via]
    rounds = Rounds(s, o, list(dict.fromkeys(names)), lambda via: way(s, o, via),
                    lambda step, ranks: batches(s, o, text, step, ranks))
    rounds.run(o.steps)
    rows = rounds.rows(WARMUP)
    s.say("\n" + lab_ddp.ways(rows))
    s.say("\n" + lab_ddp.why(rows, s.world, rounds.one_threads, rounds.threads))
    r = record(s, tier, o, rounds, rows, checks, notes)
    s.say("\n".join([report.closing(rows, lab_ddp.NOT_WAYS), *(f"note: {note}" for note in notes),
                     *report.verdicts(r.checks, r.skipped, r.stalls, r.failures)]))
    if o.save and s.main:
        s.say(f"record saved: {results.save(r, record_path(s, tier, o)).name}")
    if s.world > 1:
        keep_trace(s, o, rounds.traces[o.via])
    if not s.agree(all(check["passed"] for check in r.checks.values())):
        sys.exit(1)


def record_path(s, tier, o):
    """Where --save puts the Record: the file given, or labs/results/ddp/TIER-DEVICE-PROCESSES[-ROUTE].json."""
    route = "" if o.via == "torch" else f"-{o.via}"
    name = f"{tier}-{s.device.type}-{s.world}{route}.json"
    return RESULTS / name if o.save == "auto" else Path(o.save)


def check(s, o):
    """Refuse what could not work, before any work. ValueError, one line."""
    fits.check(s, o.shape)
    lab_text.check_target(o.trace, (".json",))
    if o.scaling:
        lab_text.check_folder(RESULTS if o.save == "auto" else o.save, "--save")
    else:
        lab_text.check_save(o.save, RESULTS)
    if o.unused_part and not (o.find_unused or o.static_graph):
        raise ValueError("--unused-part: DDP would wait for gradients that never come: add --find-unused")
    if o.trace and s.world == 1:
        raise ValueError("--trace is about several ranks: use torchrun --nproc-per-node 2")
    if o.static_graph and o.accumulation > 1 and not o.sync_every_pass:
        raise ValueError("--static-graph with --accumulation: torch's DDP counts on a first step without no_sync: "
                         "add --sync-every-pass")


def main(s, argv=None):
    """Train all ways, or a few steps with a fault, or all of it at several numbers of processes."""
    tier, o = lab_text.parse(TIERS, __doc__, argv)
    check(s, o)
    if o.scaling:
        folder = None if o.save is None else RESULTS if o.save == "auto" else Path(o.save)
        train_scaling.run(s, o, tier, __file__, sys.argv[1:] if argv is None else argv, folder)
        return
    fault = measure_inject.parse(o.inject, s.world)
    text = session.as_tensor(lab_text.corpus(o.dataset))
    if fault:
        diagnose(s, o, text, fault)
    else:
        train(s, tier, o, text)


if __name__ == "__main__":
    session.run(main)
