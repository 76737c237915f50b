"""Rung 12: ten runs of a training job, each with one fault of the whole system, and the traces that tell them apart.

python labs/architecture.py                          all ten, each judged by the book's rule
torchrun --nproc-per-node 4 labs/architecture.py --sealed 3           the counters of run 3
torchrun --nproc-per-node 4 labs/architecture.py --verdict 3=slow-disk:1    judge your verdict on run 3
torchrun --nproc-per-node 4 labs/architecture.py --score verdicts.txt       score any tool's verdicts
python labs/architecture.py --input                  a loader with 0, 1 and 2 workers, packing, exact resume
python labs/architecture.py --saves                  synchronous and asynchronous saves, and the next step
sudo .venv/bin/python labs/architecture.py --placement   ranks placed well and badly on two hosts
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

from dataclasses import dataclass
from pathlib import Path

from scaleout.lab import architecture as lab_architecture
from scaleout.lab import options, runner, session
from scaleout.measure import architecture
from scaleout.records import files
from scaleout.timing import diagnosis, stragglers


@dataclass(frozen=True)
class Options(options.Model):
    """The job, and how much of each fault."""

    layers: int = options.number(1, "blocks")
    hidden: int = options.number(32, "width of the residual stream")
    heads: int = options.number(2, "attention heads")
    seq: int = options.number(32, "tokens of the longest sequences; usual ones have a quarter", 4)
    micro_batch: int = options.number(2, "sequences per rank and step")
    steps: int = options.number(8, "steps of a run", 8, 1000)
    injected_ms: int = options.number(150, "milliseconds per step that a fault costs", 20)
    seed: int = options.seed()
    sealed: int | None = options.number(None, "print the counters of this run, 1 to 10", 1, len(diagnosis.FAULTS))
    verdict: str | None = options.word(None, "judge a verdict on a run", "N=FAULT[:RANK]")
    score: str | None = options.word(None, "score the verdicts in a file, one N=FAULT[:RANK] per line")
    mixed: bool = options.flag("one run with several faults at once")
    rows: str | None = options.word(None, "write the run's rows: JSON Lines per rank, and all in rows.json", "FOLDER")
    trace: str | None = options.word(None, "write the run as a Chrome trace, for Perfetto")
    dataset: str | None = options.dataset()
    save: str | None = options.save("architecture")


TIERS = {
    "smoke": Options(),
    "cpu": Options(layers=4, hidden=192, heads=6, seq=128, steps=16),
    "gpu": Options(layers=12, hidden=1024, heads=16, seq=1024, micro_batch=4, steps=16),
}
MODES = ("sealed", "verdict", "score", "mixed")
KEEPS = ("rows", "trace")


def amounts(o, ranks):
    """{fault: measure.architecture.Amounts} of these options on so many ranks."""
    return architecture.faults(o.injected_ms / 1e3, o.steps, ranks, lab_architecture.culprits(ranks))


def recorded(lab, bench, chosen, made):
    """The trace of a run, which is written where --rows or --trace ask for it. made: how it was made."""
    rows, o = bench.run(chosen), lab.o
    trace = stragglers.read(rows, made)
    if o.rows:
        folder = Path(o.rows)
        mine = {rank: [row for row in rows if row["rank"] == rank] for rank in range(trace.ranks)}
        for rank, own in mine.items():
            if rank == lab.s.rank or rank >= lab.s.world:
                with files.written_whole(folder / f"rank-{rank}.jsonl") as path:
                    path.write_text(lab_architecture.lines(own), encoding="utf-8")
        if lab.s.main:
            with files.written_whole(folder / "rows.json") as path:
                path.write_text(lab_architecture.stored(rows, made), encoding="utf-8")
            lab.s.say(f"rows: {len(rows)} of {trace.ranks} ranks")
    events = lab_architecture.events(trace)
    lab.write("trace", lambda path: files.write_json({"displayTimeUnit": "ms", "traceEvents": events}, path),
              runner.PERFETTO)  # fmt: skip
    return trace


def show(lab, bench, number):
    """Print the counters of a sealed run; its trace is returned."""
    fault = lab_architecture.sealed()[number]
    trace = recorded(lab, bench, amounts(lab.o, bench.ranks)[fault], f"run {number} of labs/architecture.py")
    lab.s.say(f"Run {number}\n{lab_architecture.counters(trace, lab.s.world == 1)}")
    return trace


def show_mixed(lab, bench):
    """Run with several faults at once, and print counters, the culprit and what each part costs."""
    o = lab.o
    chosen, injected = architecture.mixed(o.injected_ms / 1e3, o.steps, bench.ranks)
    made = lab_architecture.made(bench.ranks, lab.s.world, lab.s.backend, o.steps, injected)
    trace = recorded(lab, bench, chosen, made)
    found = stragglers.culprit(trace)
    lab.s.say(f"{lab_architecture.counters(trace, lab.s.world == 1)}\n\n{found.why}")
    lab.s.say(lab_architecture.lost(diagnosis.losses(trace), trace.seconds))


def judge_all(lab, bench):
    """Make a run without a fault and all ten, let the rule name each, and keep a Record."""
    s, o, named = lab.s, lab.o, []
    healthy = stragglers.read(bench.run(architecture.Amounts()))
    for number, fault in lab_architecture.sealed().items():
        chosen = amounts(o, bench.ranks)[fault]
        trace = stragglers.read(bench.run(chosen))
        found = diagnosis.diagnose(trace)
        lab.check(f"run {number}: the rule names {diagnosis.NAMES[fault]}", float(found.fault != fault), 0.0)
        origin = lab_architecture.culprits(bench.ranks).get(fault)
        lab.check(f"run {number}: it begins on {lab_architecture.place(origin)}", float(found.rank != origin), 0.0)
        lab.predict(f"seconds, run {number}", bench.predict(healthy.seconds, chosen), trace.seconds)
        lab.series[f"seconds per step, run {number}"] = trace.step_seconds
        for part, lost in diagnosis.losses(trace).items():
            lab.series[f"lost to {part}, run {number}"] = [lost]
        named.append(f"run {number}: {found.why}")
    s.say("\n".join(["", *named, "", lab_architecture.predicted(lab.prediction, lab.measurement), ""]))
    lab.skip(s.world == 1 and "a real second rank: one is emulated (torchrun --nproc-per-node 2)")
    recipe = {"injected milliseconds": o.injected_ms, "emulated device ms per step": architecture.DEVICE * 1e3}
    lossy = [row.values["loss"] for row in healthy.rows(0)]
    batch = o.micro_batch * s.world
    lab.report(lab.record(healthy.step_seconds, lossy, recipe, batch, sequence_length=bench.usual))
    lab.end()


def refuse(lab):
    """ValueError, one line, for options that do not go together."""
    o = lab.o
    asked = [options.named(name) for name in MODES if getattr(o, name)]
    if len(asked) > 1:
        raise ValueError(f"{' and '.join(asked)} are shown by themselves: leave out all but one")
    if asked and o.save:
        raise ValueError(f"--save keeps all ten runs: leave out {asked[0]}")
    kept = [options.named(name) for name in KEEPS if getattr(o, name)]
    if kept and asked not in (["--sealed"], ["--verdict"], ["--mixed"]):
        raise ValueError(f"{kept[0]} writes one run: add --sealed N or --mixed")
    options.check_folder(o.rows, "--rows")
    lab.refuse()


def main(s, argv=None):
    """All runs, or one, or a verdict, or a score, or one of the other modes."""
    lab = runner.Lab(s, __file__, __doc__, TIERS, argv)
    o = lab.o
    said = lab_architecture.read(o.verdict) if o.verdict is not None else None
    found = lab_architecture.verdicts(o.score) if o.score is not None else None
    refuse(lab)
    if found:
        s.say(lab_architecture.score(found, max(2, s.world)))
        return
    lab.begin(f"{o.micro_batch} x {o.seq // architecture.LONG} tokens per rank and step")
    bench = architecture.Bench(s, o, lab.batches)
    if o.sealed is not None:
        show(lab, bench, o.sealed)
    elif said:
        s.say("\n" + lab_architecture.judged(said, show(lab, bench, said.number)))
    elif o.mixed:
        show_mixed(lab, bench)
    else:
        judge_all(lab, bench)


if __name__ == "__main__":
    session.run(main)
