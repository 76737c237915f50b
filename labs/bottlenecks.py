"""Rung 00: eight runs, each short of one resource, with the same counters; and the wrong remedy beside the right one.

python labs/bottlenecks.py                      all eight, each judged by the book's rule
python labs/bottlenecks.py --sealed 3           the counters of run 3
python labs/bottlenecks.py --verdict 3=input    judge your verdict, and try its remedy beside the right one
torchrun --nproc-per-node 2 labs/bottlenecks.py --save
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

from dataclasses import asdict, dataclass

from scaleout.lab import bottlenecks as lab_bottlenecks
from scaleout.lab import options, runner, session
from scaleout.measure import bottlenecks
from scaleout.timing import verdict as rule


@dataclass(frozen=True)
class Options(options.Model):
    """The job, and how much of each scarcity."""

    layers: int = options.number(2, "blocks")
    hidden: int = options.number(64, "width of the residual stream")
    heads: int = options.number(4, "attention heads")
    seq: int = options.number(32, "tokens per sequence")
    micro_batch: int = options.number(2, "sequences per rank and step")
    steps: int = options.number(3, "steps whose seconds count", 2, 1000)
    injected_ms: int = options.number(200, "milliseconds per step of what is injected: input, link, slow rank ...", 20)
    matmuls: int = options.number(12, "extra matrix multiplications of the run that is short of arithmetic", 2)
    additions: int = options.number(30, "extra additions of 32 MiB of the run that is short of memory bandwidth", 4)
    seed: int = options.seed()
    sealed: int | None = options.number(
        None, "print the counters of this run, 1 to 8, and nothing else", 1, len(rule.RESOURCES)
    )
    verdict: str | None = options.word(
        None, "judge a verdict on a run, and try its remedy beside the right one", "N=WORD"
    )
    dataset: str | None = options.dataset()
    save: str | None = options.save("bottlenecks")


TIERS = {
    "smoke": Options(),
    "cpu": Options(layers=6, hidden=256, heads=8, seq=128, steps=8),
    "gpu": Options(layers=12, hidden=1024, heads=16, seq=1024, micro_batch=4, steps=10, matmuls=4000, additions=1500),
}


def show(lab, bench, number):
    """Print the counters of one run; they are returned."""
    counters, ranks = bench.counters(bottlenecks.workloads(lab.o)[lab_bottlenecks.sealed()[number]])
    lab.s.say(f"Run {number}\n{lab_bottlenecks.counters(counters, ranks, lab.s.world == 1)}")
    return counters


def try_remedies(lab, bench, number, verdict):
    """Step times of a run as it is, with the remedy for what was said, and with the right one, as rows of a table."""
    truth = lab_bottlenecks.sealed()[number]
    workload = bottlenecks.workloads(lab.o)[truth]
    wrong = verdict if verdict != truth else next(name for name in rule.RESOURCES if name != truth)
    rows = [("as it is", bench.counters(workload)[0].wall)]
    for label, name in (("wrong", wrong), ("right", truth)):
        words, change = bottlenecks.REMEDIES[name]
        rows.append((f"{label}: {words}", bench.counters(change(workload))[0].wall))
    return rows


def judge_all(lab, bench):
    """Run all eight, let the rule name each, and keep a Record."""
    s, named, steps = lab.s, [], []
    plain = bench.counters(bottlenecks.Workload())[0].wall
    for number, resource in lab_bottlenecks.sealed().items():
        workload = bottlenecks.workloads(lab.o)[resource]
        counters, ranks = bench.counters(workload)
        verdict = rule.verdict(counters)
        lab.check(f"run {number}: the rule names {rule.NAMES[resource]}", float(verdict.resource != resource), 0.0)
        lab.predict(f"seconds per step, run {number}", plain + bench.added(workload, counters), counters.wall)
        lab.series |= {f"{name}, run {number}": [value] for name, value in asdict(counters).items()}
        for name, by_rank in zip(("compute", "wait"), zip(*ranks, strict=True), strict=True):
            lab.series[f"{name} by rank, run {number}"] = list(by_rank)
        named.append(f"run {number}: {verdict.why}")
        steps.append(counters.wall)
    s.say("\n".join(["", *named, "", lab_bottlenecks.predicted(lab.prediction, lab.measurement), ""]))
    lab.skip(
        s.world == 1 and "a real second rank: the run that waits has an emulated one (torchrun --nproc-per-node 2)"
    )
    recipe = {"injected milliseconds": lab.o.injected_ms, "matmuls": lab.o.matmuls, "additions": lab.o.additions}
    lab.report(lab.record(steps, [], recipe, lab.o.micro_batch * s.world))
    lab.end()


def main(s, argv=None):
    """All runs, or one, or a verdict."""
    lab = runner.Lab(s, __file__, __doc__, TIERS, argv)
    o = lab.o
    answer = lab_bottlenecks.read(o.verdict) if o.verdict is not None else None
    if o.sealed is not None and o.verdict is not None:
        raise ValueError("--sealed shows a run, --verdict judges one: leave out one of them")
    if (o.sealed or o.verdict) and o.save:
        raise ValueError("--save keeps all eight runs: leave out --sealed and --verdict")
    lab.refuse()
    lab.begin(f"{o.micro_batch} x {o.seq} tokens per rank and step")
    bench = bottlenecks.Bench(s, o, lab.batches)
    if o.sealed is not None:
        show(lab, bench, o.sealed)
    elif answer:
        counters = show(lab, bench, answer[0])
        s.say("\n" + lab_bottlenecks.judged(*answer, counters))
        s.say("\n" + lab_bottlenecks.remedies(try_remedies(lab, bench, *answer)))
    else:
        judge_all(lab, bench)


if __name__ == "__main__":
    session.run(main)
