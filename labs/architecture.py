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
from scaleout.lab import architecture_modes, hosts, nodes, options, recording, runner, session
from scaleout.lab import report as lab_report
from scaleout.measure import architecture, architecture_input, architecture_saves
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
    injected_ms: int = options.number(150, "milliseconds per step, on average, that a fault costs", 20)
    seed: int = options.seed()
    sealed: int | None = options.number(None, "print the counters of this run, 1 to 10", 1, len(diagnosis.FAULTS))
    verdict: str | None = options.word(None, "judge a verdict on a run", "N=FAULT[:RANK]")
    score: str | None = options.word(None, "score the verdicts in a file, one N=FAULT[:RANK] per line")
    mixed: bool = options.flag("one run with several faults at once")
    input: bool = options.flag("a loader with 0, 1 and 2 workers, packing, and exact resume")
    saves: bool = options.flag("synchronous and asynchronous saves, and the step after each")
    placement: str | None = options.word(
        None, "two hosts with two ranks each, placed well and badly over a link of so many Mbit/s", "N", const="200"
    )
    rows: str | None = options.word(None, "write the run's rows: JSON Lines per rank, and all in rows.json", "FOLDER")
    trace: str | None = options.word(None, "write the run as a Chrome trace, for Perfetto")
    dataset: str | None = options.dataset()
    save: str | None = options.save("architecture")


TIERS = {
    "smoke": Options(),
    "cpu": Options(layers=4, hidden=192, heads=6, seq=128, steps=16),
    "gpu": Options(layers=12, hidden=1024, heads=16, seq=1024, micro_batch=4, steps=16),
}
MODES = ("sealed", "verdict", "score", "mixed", "input", "saves", "placement")
HOSTS, HOST_RANKS = 2, 2  # of --placement, and ranks on each
# Of a step of --placement: seconds of compute, bytes of an all-reduce of activations, how many, bytes of gradients.
PLACED = {"device": 0.04, "activations": 2**20, "calls": 8, "gradients": 2**20, "steps": 3, "threads": 1}
KEEPS = ("rows", "trace")


def amounts(o, ranks):
    """{fault: measure.architecture.Amounts} of these options on so many ranks."""
    return architecture.faults(o.injected_ms / 1e3, o.steps, ranks, lab_architecture.culprits(ranks))


def recorded(lab, bench, chosen, provenance):
    """The trace of a run, which is written where --rows or --trace ask for it. provenance: how it
    was made."""
    rows, o = bench.run(chosen), lab.o
    trace = stragglers.read(rows, provenance)
    if o.rows:
        folder = Path(o.rows)
        mine = {rank: [row for row in rows if row["rank"] == rank] for rank in range(trace.ranks)}
        for rank, rank_rows in mine.items():
            if rank == lab.s.rank or rank >= lab.s.world:
                with files.written_whole(folder / f"rank-{rank}.jsonl") as path:
                    path.write_text(lab_architecture.lines(rank_rows), encoding="utf-8")
        if lab.s.main:
            with files.written_whole(folder / "rows.json") as path:
                path.write_text(lab_architecture.stored(rows, provenance), encoding="utf-8")
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
    provenance = lab_architecture.made(bench.ranks, lab.s.world, lab.s.backend, o.steps, injected)
    trace = recorded(lab, bench, chosen, provenance)
    culprit = stragglers.culprit(trace)
    lab.s.say(f"{lab_architecture.counters(trace, lab.s.world == 1)}\n\n{culprit.why}")
    lab.s.say(lab_architecture.lost(diagnosis.losses(trace), trace.seconds))


def judge_all(lab, bench):
    """Make a run without a fault and all ten, let the rule name each, and keep a Record."""
    s, o, named = lab.s, lab.o, []
    healthy = stragglers.read(bench.run(architecture.Amounts()))
    for number, fault in lab_architecture.sealed().items():
        chosen = amounts(o, bench.ranks)[fault]
        trace = stragglers.read(bench.run(chosen))
        finding = diagnosis.diagnose(trace)
        lab.check(f"run {number}: the rule names {diagnosis.NAMES[fault]}", float(finding.fault != fault), 0.0)
        origin = lab_architecture.culprits(bench.ranks).get(fault)
        lab.check(f"run {number}: it begins on {lab_architecture.place(origin)}", float(finding.rank != origin), 0.0)
        lab.predict(f"seconds, run {number}", bench.predict(healthy, chosen), trace.seconds)
        lab.series[f"seconds per step, run {number}"] = trace.step_seconds
        for part, lost in diagnosis.losses(trace).items():
            lab.series[f"lost to {part}, run {number}"] = [lost]
        named.append(f"run {number}: {finding.why}")
    lab.notes += named
    s.say("\n".join(["", *named, "", lab_architecture.predicted(lab.prediction, lab.measurement), ""]))
    lab.skip(s.world == 1 and "a real second rank: one is emulated (torchrun --nproc-per-node 2)")
    recipe = {"injected milliseconds": o.injected_ms, "emulated device ms per step": architecture.DEVICE * 1e3}
    lossy = [row.values["loss"] for row in healthy.rows(0)]
    batch = o.micro_batch * s.world
    lab.report(lab.record(healthy.step_seconds, lossy, recipe, batch, sequence_length=bench.usual))
    lab.end()


# --- input, saves, placement ------------------------------------------------------------------------------------


def read_input(lab):
    """Loaders with several numbers of workers, packing, and ways to resume."""
    s, o, loaders = lab.s, lab.o, architecture_input.Input(lab.s, lab.o, lab.text)
    s.say(architecture_modes.speeds(loaders.speeds(), o.micro_batch * s.world * architecture_input.ROW))
    padded, packed = architecture_input.padded_share(loaders.documents), architecture_input.packed_share(loaders.packed)
    s.say(architecture_modes.packing(len(loaders.documents), architecture_input.ROW, padded, packed))
    resumed = loaders.resumed()
    s.say(architecture_modes.resumed(resumed, {way: architecture_input.first_batch(way) for way in resumed}))
    for way in ("by reading on", "by position"):
        lab.check(f"resumed {way}: the batches are those of a run that was never stopped", resumed[way][1], 0)
    lab.check("the ranks' rows are those of one process", loaders.same_on_one(), 0)
    stateful = loaders.stateful()
    if stateful is not None:
        lab.check("torchdata's StatefulDataLoader: the batches are those of a run never stopped", stateful, 0)
    lab.skip(stateful is None and "torchdata's StatefulDataLoader: torchdata is not installed")


def save_often(lab):
    """Saves that block, that do not, and that come too often."""
    idle, runs, errors = architecture_saves.Saver(lab.s).measure()
    rows = []
    for way, (seconds, blocked) in runs.items():
        if blocked:
            expected = architecture_saves.waits(way, idle)
            next_steps = architecture_saves.after(way, seconds)
            rows.append((way, len(blocked), expected, sum(blocked) / len(blocked), *next_steps))
    lab.s.say(architecture_modes.saves(rows))
    lab.s.say(f"\nA thread that writes the live weights saves others than were asked for: off by {errors['live']:.2g}")
    lab.check("the asynchronous checkpoint has the weights of its step", errors["copied"], 0.0)


def place(lab):
    """Groups placed well and badly on two hosts; or the recorded run."""
    s, o, lack = lab.s, lab.o, hosts.refused()
    if lack:
        s.say(f"labs/architecture.py: {lack}; this run was recorded elsewhere")
        records = architecture_modes.recorded(lab.results)
    else:
        s.say(f"{HOSTS} hosts with {HOST_RANKS} ranks each")
        plan = PLACED | {"rates": [None, nodes.rates(o.placement, "--placement")[-1] * 1e6]}
        module = "scaleout.measure.architecture_link"
        figures, _ = nodes.run(module, plan, HOSTS, lab.results.parents[2], processes=HOST_RANKS)
        records = [architecture_modes.record(lab.tier, plan, figures, HOSTS)]
    for r in records:
        s.say(f"\n{r.device}, size {r.tier}\n{architecture_modes.placement(r)}")
    if o.save and not lack:
        recording.keep(s, records[0], o.save, lab.results, "placement")


def refuse(lab, judged):
    """ValueError, one line, for options that do not go together. judged: the verdicts that are asked about."""
    o = lab.o
    modes = [options.named(name) for name in MODES if getattr(o, name)]
    if len(modes) > 1:
        raise ValueError(f"{' and '.join(modes)} are shown by themselves: leave out all but one")
    if modes and o.save and not o.placement:
        raise ValueError(f"--save keeps all ten runs: leave out {modes[0]}")
    if o.placement:
        nodes.rates(o.placement, "--placement")
        if lab.s.world > 1:
            raise ValueError("--placement starts its own processes: start it with python, not with torchrun")
    if o.saves and lab.s.nodes > 1:
        raise ValueError("--saves writes to a temporary folder of one machine: start it on one")
    files_asked = [options.named(name) for name in KEEPS if getattr(o, name)]
    if files_asked and modes not in (["--sealed"], ["--verdict"], ["--mixed"]):
        raise ValueError(f"{files_asked[0]} writes one run: add --sealed N or --mixed")
    for verdict in judged:
        if (verdict.rank or 0) >= max(2, lab.s.world):
            raise ValueError(lab_architecture.no_rank(verdict, max(2, lab.s.world)))
    options.check_folder(o.rows, "--rows")
    lab.refuse()


def main(s, argv=None):
    """All runs, or one, or a verdict, or a score, or one of the other modes."""
    lab = runner.Lab(s, __file__, __doc__, TIERS, argv)
    o = lab.o
    verdict = lab_architecture.read(o.verdict) if o.verdict is not None else None
    tool_verdicts = lab_architecture.verdicts(o.score) if o.score is not None else None
    refuse(lab, [*([verdict] if verdict else []), *(tool_verdicts or [])])
    if tool_verdicts:
        s.say(lab_architecture.score(tool_verdicts, max(2, s.world)))
        return
    if o.placement:
        place(lab)
        return
    lab.begin(f"{o.micro_batch} x {o.seq // architecture.LONG} tokens per rank and step")
    for wanted, mode in ((o.input, read_input), (o.saves, save_often)):
        if wanted:
            mode(lab)
            s.say("\n" + "\n".join(lab_report.verdicts(lab.checks, lab.skipped)))
            lab.end()
            return
    bench = architecture.Bench(s, o, lab.batches)
    if o.sealed is not None:
        show(lab, bench, o.sealed)
    elif verdict:
        s.say("\n" + lab_architecture.judged(verdict, show(lab, bench, verdict.number)))
    elif o.mixed:
        show_mixed(lab, bench)
    else:
        judge_all(lab, bench)


if __name__ == "__main__":
    session.run(main)
