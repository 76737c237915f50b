"""What the lab of bottlenecks prints, and which run has which number. Standard library only."""

from __future__ import annotations

from zlib import crc32

from scaleout.lab.text import ms, table
from scaleout.timing.verdict import NAMES, RESOURCES, Counters, verdict

SEED = "eight runs"


def sealed() -> dict[int, str]:
    """{number: resource} of the runs, in an order that does not tell which is which."""
    return dict(enumerate(sorted(RESOURCES, key=lambda name: crc32(f"{SEED} {name}".encode())), 1))


def read(words: str) -> tuple[int, str]:
    """(number, resource) of "3=input". ValueError, one line, for anything else."""
    number, _, resource = words.partition("=")
    if not (number.strip().isdecimal() and int(number) in sealed()):
        raise ValueError(f"--verdict {words}: runs are numbered 1 to {len(RESOURCES)}: write 3=input")
    if resource.strip() not in RESOURCES:
        raise ValueError(f"--verdict {words}: a verdict is one of {', '.join(RESOURCES)}: write {number.strip()}=input")
    return int(number), resource.strip()


def counters(c: Counters, ranks: list[tuple[float, float]], emulated: bool) -> str:
    """The counters of a run as text. ranks: (compute, wait) seconds of each; emulated: the last is no real rank."""
    rows = [
        ("step, by the clock", ms(c.wall)),
        ("step, by its own timer", ms(c.timer)),
        ("step, with twice the sequences", ms(c.doubled)),
        ("input: waiting for the batch", ms(c.input)),
        ("compute: forward and backward", ms(c.compute)),
        ("all-reduce: until the last rank arrives", ms(c.wait)),
        ("all-reduce: after that", ms(c.transfer)),
        ("update and all else", ms(c.update)),
    ]
    gigaflops, gigabytes = c.flops / 1e9, c.bytes / 1e9
    at_full_rate = c.flops / c.flop_per_s, c.bytes / c.bytes_per_s
    lines = [
        table(("per step", "ms"), rows),
        "",
        f"arithmetic: {gigaflops:.2f} GFLOP, {ms(at_full_rate[0])} ms at this machine's "
        f"{c.flop_per_s / 1e9:.0f} GFLOP/s; the model needs {c.model_flops / 1e9:.2f}",
        f"memory traffic: {gigabytes:.2f} GB, {ms(at_full_rate[1])} ms at this machine's "
        f"{c.bytes_per_s / 1e9:.1f} GB/s",
        f"memory: {c.memory / 1e6:.1f} MB of {c.limit / 1e6:.1f} (an emulated limit)",
    ]
    for rank, (compute, wait) in enumerate(ranks):
        name = "an emulated rank" if emulated and rank == len(ranks) - 1 else f"rank {rank}"
        lines.append(f"{name}: compute {ms(compute)} ms, then waits {ms(wait)} ms for the others")
    return "\n".join(lines)


def judged(number: int, answer: str, c: Counters) -> str:
    """Whether a verdict is right, and what decided."""
    reached, truth = verdict(c), sealed()[number]
    right = "Right" if answer == truth else f"Not {NAMES[answer]}"
    return f"{right}. Run {number}: {reached.why}."


def remedies(rows: list[tuple[str, float]]) -> str:
    """Step times with each remedy, as text; the first row is the run as it is."""
    plain_seconds = rows[0][1]
    return table(("run", "step, ms", "of before"), [
        (words, ms(seconds), f"{seconds / plain_seconds:.2f}") for words, seconds in rows
    ])  # fmt: skip


def predicted(prediction: dict, measurement: dict) -> str:
    """Step times of all runs, predicted and measured, as text."""
    rows = [
        (name.rpartition(", ")[2], *(ms(values[name]) for values in (prediction, measurement)),
         f"{prediction[name] / measurement[name]:.2f}") for name in prediction
    ]  # fmt: skip
    return table(("step, ms", "predicted", "measured", "ratio"), rows)
