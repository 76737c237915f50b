"""The review checklist of book/review.md, filled from a Record: what it shows, and what it cannot answer.

    python -m scaleout.writeup --review RECORD [BASELINE...]

The first Record is the run under review. The others are runs of the simplest baseline that it has to beat.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scaleout.memory import allocator
from scaleout.records.results import Record
from scaleout.spec.devices import GB, reported_as
from scaleout.writeup import facts
from scaleout.writeup.blocks import Block, Heading, Note, Table, Text

NOTHING = "nothing"
CLEAR = 0.01  # by so much one run has to be faster than another to beat it
JOB = ("model", "sequence_length", "precision", "device", "effective_batch")  # what a baseline has in common with a run


@dataclass(frozen=True)
class Answer:
    """A line of the checklist. chapter: of the book; shown: what the Record says; lacking: what still has to be
    brought, "" where the Record answers the question."""

    question: str
    chapter: str
    shown: str
    lacking: str


def _memory(record: Record) -> tuple[str, str]:
    if not record.peak_memory:
        return NOTHING, "the peak memory of each rank, by kind, and the usable memory of the GPU"
    peak = sum(record.peak_memory.values())
    largest = max(record.peak_memory, key=lambda kind: record.peak_memory[kind])
    shown = f"a peak of {facts.data_bytes(peak)} per rank, most of it {largest}"
    device = reported_as(record.device)
    if record.device_kind == "cpu" or device is None:
        return shown, f"the usable memory of the GPU that it shall run on: this Record was made on a {record.device}"
    usable = allocator.usable(device.memory_bytes)
    fits = "fits" if peak <= usable else "does not fit"
    return f"{shown}: {fits}, {peak / usable:.0%} of {usable / GB:.1f} GB usable", ""


def _utilization(record: Record) -> tuple[str, str]:
    timed, lacking = record.timed, []
    quarter = len(timed) // 4
    shown = f"{len(timed)} timed steps, median {facts.seconds(statistics.median(timed))}"
    if len(timed) < facts.MIN_TIMED:
        lacking.append(f"at least {facts.MIN_TIMED} timed steps")
    else:
        drift = statistics.median(timed[-quarter:]) / statistics.median(timed[:quarter])
        shown += f"; the last quarter takes {drift:.2f} times as long as the first"
    if record.mfu is None or record.mfu_peak is None:
        lacking.append("a utilization with its peak")
    else:
        shown += f"; MFU {record.mfu:.1%} of {record.mfu_peak['source']}"
    return shown, " and ".join(lacking)


def _checkpoints(record: Record) -> tuple[str, str]:
    again = "a checkpoint that was loaded, with the same losses afterwards"
    if record.checkpoint_cadence == "none":
        return "no checkpoints", f"a run that saves, and {again}"
    blocked = facts.series(facts.Run("run", record), "checkpoint", "seconds")
    shown = f"{record.checkpoint_cadence}; {len(blocked)} saved"
    if blocked:
        shown += f", each blocks the step for {facts.seconds(statistics.median(blocked))}, at most "
        shown += facts.seconds(max(blocked))
    return shown, again


def _recovery(record: Record) -> tuple[str, str]:
    seen = [*record.failures, *record.stalls]
    if not seen:
        return "no failure, no stall", "a run in which a rank is killed: seconds until it trains again, and steps lost"
    return "; ".join(seen), "seconds from each failure to the next step, and steps that were done again"


def _compared(ratio: float, record: Record, name: str, other: Record) -> str:
    """Whether a run of `ratio` times another's rate beats it: by more than CLEAR; of other devices only how many."""
    words = f"{ratio:.2f} times the tokens per second of {name}"
    if record.device_count != other.device_count:
        return f"{words}, on {record.device_count / other.device_count:g} times the devices"
    return f"{words}: it {'beats it' if ratio > 1 + CLEAR else 'does not beat it'}"


def _differing(record: Record, other: Record) -> list[str]:
    """Words for what two runs do not have in common."""
    return [name.replace("_", " ") for name in JOB if getattr(record, name) != getattr(other, name)]


def _baseline(record: Record, baselines: Sequence[tuple[str, Record]]) -> tuple[str, str]:
    shown, lacking = [], []
    for name, other in baselines:
        if differing := _differing(record, other):
            lacking.append(f"a baseline of the same job: {name} has another {', '.join(differing)}")
        elif record.tokens_per_second and other.tokens_per_second:
            shown.append(_compared(record.tokens_per_second / other.tokens_per_second, record, name, other))
        else:
            lacking.append(f"tokens per second of both runs: {name} cannot be compared")
    if not baselines:
        lacking.append("the Record of the simplest baseline: the same model and batch, one technique less")
    return "; ".join(shown) or NOTHING, "; ".join(lacking)


def answers(record: Record, baselines: Sequence[tuple[str, Record]] = ()) -> list[Answer]:
    """The five lines of the checklist. baselines: (name, Record) of runs that are simpler."""
    lines = {
        ("Does it fit into memory?", "01"): _memory(record),
        ("Is utilization high, and is it sustained?", "11"): _utilization(record),
        ("Are checkpoints stable?", "11"): _checkpoints(record),
        ("Is recovery predictable?", "11"): _recovery(record),
        ("Does it beat the simplest baseline?", "00"): _baseline(record, baselines),
    }
    return [Answer(question, chapter, *said) for (question, chapter), said in lines.items()]


def blocks(runs: Sequence[facts.Run]) -> list[Block]:
    """The page: the run under review, the checklist, and the state of the Record itself."""
    record = runs[0].record
    lines = answers(record, [(run.name, run.record) for run in runs[1:]])
    rows = tuple((line.question, line.shown, line.lacking or "-", line.chapter) for line in lines)
    done = sum(not line.lacking for line in lines)
    parts: list[Block] = [
        Heading(f"Review: {record.stem}, {runs[0].name}", 0),
        Text("; ".join(facts.places(runs[:1])) + "."),
        Text(f"The Record answers {done} of {len(lines)} questions."),
        Table(("question", "the Record shows", "still to bring", "chapter"), rows, left=4),
    ]
    failed = [name for name, check in record.checks.items() if not check["passed"]]
    if failed:
        parts.append(Note("Checks that failed:", "; ".join(failed) + "."))
    if record.skipped:
        parts.append(Note("Checks that were not made:", "; ".join(record.skipped) + "."))
    if record.commit == "unknown" or record.commit.endswith("+changes"):
        parts.append(Note("Not reproducible:", "the commit is unknown, or files differed from it."))
    return parts
