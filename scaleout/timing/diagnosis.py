"""Which of ten faults slows a synchronous run down or breaks it, told from its trace. The rule abstains where no fault
stands out, and separates what began it (initiating) from what followed on other ranks (cascade).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaleout.timing import stragglers
from scaleout.timing.stragglers import COLLECT, COMPUTE, COVERED, EVALUATE, INPUT, OTHER, PARTS, SAVE, TRANSFER, Trace

SLOW_RANK, SLOW_DISK, SLOW_LINK, COLLECTIONS, CHECKPOINT, LENGTHS, NAN, HEAT, LATE, EVALUATOR = FAULTS = (
    "slow-rank", "slow-disk", "slow-link", "collections", "checkpoint", "lengths", "nan", "heat", "late", "evaluator",
)  # fmt: skip
NAMES = {
    SLOW_RANK: "a rank that computes slowly", SLOW_DISK: "a rank whose disk is slow", SLOW_LINK: "a slow link",
    COLLECTIONS: "garbage collections at different steps on each rank", CHECKPOINT: "a save that stalls",
    LENGTHS: "sequences of uneven length", NAN: "NaN on one rank", HEAT: "a rank that becomes slower as it heats up",
    LATE: "a rank that joins late", EVALUATOR: "an evaluation that one rank makes while the others wait",
}  # fmt: skip
FAULT_OF = {INPUT: SLOW_DISK, COLLECT: COLLECTIONS, SAVE: CHECKPOINT, EVALUATE: EVALUATOR, TRANSFER: SLOW_LINK}
ALONE = {NAN, SLOW_RANK, SLOW_DISK, CHECKPOINT, HEAT, LATE, EVALUATOR}  # faults of one rank
LOST = 0.1  # of the run's time: what costs less is no fault
CLEAR = 1.5  # times the next largest loss: what is named must stand out
MOST = 0.75  # of the steps in which the rank with most tokens computes longest: then lengths explain it


@dataclass(frozen=True)
class Diagnosis:
    """fault: one of FAULTS, None if none stands out. rank: where it began, None if it is no single rank's. why: the
    numbers that decided. cascade: what followed on other ranks."""

    fault: str | None
    rank: int | None
    why: str
    cascade: str = ""


def losses(trace: Trace) -> dict[str, float]:
    """Seconds that the run loses to each part of the work: what it would save if no rank took longer for it than the
    median rank; to TRANSFER, all that collectives take after their last rank has arrived."""
    lost = {part: saving(trace, part) for part in PARTS}
    steps = range(len(trace.steps))
    return lost | {TRANSFER: sum(min(map(sum, trace.transfers(step))) for step in steps)}


def saving(trace: Trace, part: str, rank: int | None = None) -> float:
    """Seconds that the run would save without the excess of one part, on one rank or on all."""
    return trace.seconds - stragglers.what_if(trace, stragglers.without(part, rank)).seconds


def culprit(trace: Trace, part: str, lost: float) -> int | None:
    """The rank whose excess of a part explains most of what is lost to it, None if several ranks share it."""
    if part == TRANSFER:
        return None
    saved = [saving(trace, part, rank) for rank in range(trace.ranks)]
    return saved.index(max(saved)) if max(saved) >= COVERED * lost else None


def diagnose(trace: Trace) -> Diagnosis:
    """The fault: first a value that is not finite, then the part that costs most time, if it stands out."""
    bad = stragglers.not_finite(trace)
    if bad is not None:
        return _not_finite(trace, *bad)
    lost = losses(trace)
    part, following = sorted(lost, key=lambda name: lost[name], reverse=True)[:2]
    shown = f"{lost[part]:.2f} of {trace.seconds:.2f} s are lost to {part}, {lost[following]:.2f} s to {following}"
    if lost[part] < max(LOST * trace.seconds, CLEAR * lost[following]):
        return Diagnosis(None, None, f"no fault stands out: {shown}")
    rank = culprit(trace, part, lost[part])
    fault, reason = _named(trace, part, rank)
    return Diagnosis(fault, rank, f"{shown}{reason}", cascade(trace, rank) if fault else "")


def cascade(trace: Trace, rank: int | None) -> str:
    """How long the other ranks wait in collectives for the one where it began."""
    waits = [sum(row.waited for row in trace.rows(one)) / len(trace.steps) * 1e3 for one in range(trace.ranks)]
    if rank is None:
        return f"ranks are in collectives for {min(waits):.0f} to {max(waits):.0f} ms per step"
    others = [wait for one, wait in enumerate(waits) if one != rank]
    span = f"{min(others):.0f}" if len(others) == 1 else f"{min(others):.0f} to {max(others):.0f}"
    return f"the others are in collectives for {span} ms per step, rank {rank} for {waits[rank]:.0f}"


def _named(trace: Trace, part: str, rank: int | None) -> tuple[str | None, str]:
    """(fault, what decided it) of a part that stands out."""
    if part in FAULT_OF:
        return FAULT_OF[part], "" if rank is None else f", by rank {rank}"
    if rank is None:
        share = longest_are_slowest(trace)
        decided = f"; in {share:.0%} of the steps the rank with most tokens computes longest"
        return (LENGTHS if part == COMPUTE and share >= MOST else None), decided
    pattern = stragglers.pattern(stragglers.excesses(trace, rank, part))
    names = {(COMPUTE, stragglers.ALWAYS): SLOW_RANK, (COMPUTE, stragglers.GROWING): HEAT,
             (OTHER, stragglers.ONCE): LATE}  # fmt: skip
    return names.get((part, pattern)), f", by rank {rank} ({pattern})"


def longest_are_slowest(trace: Trace) -> float:
    """The share of the steps in which ranks have different numbers of tokens and the one with most computes longest."""
    agreeing = 0
    for rows in trace.steps:
        tokens = [row.values.get("tokens", 0) for row in rows]
        seconds = [row.local(COMPUTE) for row in rows]
        agreeing += len(set(tokens)) > 1 and tokens[seconds.index(max(seconds))] == max(tokens)
    return agreeing / len(trace.steps)


def _not_finite(trace: Trace, rank: int, step: int) -> Diagnosis:
    """The diagnosis of a run in which a value of this rank was the first that is not finite."""
    later = [
        (row.rank, row.step)
        for rows in trace.steps
        for row in rows
        if row.rank != rank and any(not math.isfinite(value) for value in row.values.values())
    ]
    number = trace.steps[step][rank].step
    followed = f"{len({one for one, _ in later})} more from step {later[0][1]}" if later else "no other rank"
    return Diagnosis(NAN, rank, f"rank {rank} has the first value that is not finite, in step {number}", followed)
