"""What the view `architecture` says: who waits least and why, the step as a sum, where wrong guesses come from."""

from __future__ import annotations

from math import fsum
from statistics import median

from scaleout.timing import stragglers
from scaleout.timing.stragglers import COLLECT, COMPUTE, INPUT, OTHER, SAVE, TRANSFER, UPDATE
from scaleout.views.architecture.setting import Setting

NAMES = {COMPUTE: "forward and backward", INPUT: "waiting for input", SAVE: "saving a checkpoint",
         COLLECT: "garbage collection", TRANSFER: "transfer of the all-reduce"}  # fmt: skip
SHORT = {**NAMES, UPDATE: "optimizer", OTHER: "other work", TRANSFER: "transfer", SAVE: "save", INPUT: "input"}


def sentence(setting: Setting) -> str:
    """Which rank waits least, by how much, and which part of its work explains it."""
    found, trace = setting.verdict, setting.trace
    if found.rank is None:
        return f"**No rank stands out.** A step takes {1e3 * setting.mean:.0f} ms on average."
    waited = [trace.waited(rank) for rank in range(trace.ranks)]
    least, middle = waited[found.rank], sorted(waited)[len(waited) // 2]
    cause = f"Most of the gap is {SHORT[found.part]}." if found.part else "No part of its work explains that."
    return (
        f"**Rank {found.rank} is slow: {least:.2f} s in the all-reduce, the median rank {middle:.2f} s.** "
        f"{cause} A step takes {1e3 * setting.mean:.0f} ms on average."
    )


def law(setting: Setting) -> list[str]:
    """The chosen step: the last rank's work, the transfer, and what follows."""
    rows, step = setting.rows, setting.step
    whole = round(1e3 * setting.length)
    transfer = round(1e3 * median(map(fsum, setting.trace.transfers(step))))
    last = min(rows, key=lambda row: row.waited).rank
    return [
        f"Step {step} waits for rank {last}. From its first start to its last end, work + transfer in ms:",
        f"{whole - transfer} + {transfer} = {whole}",
        "",
    ]


def slips() -> list[tuple[float, str]]:
    """The rank with the longest all-reduce, and the one with the slowest single step."""
    trace = stragglers.stored()
    waited = [trace.waited(rank) for rank in range(trace.ranks)]
    longest = max(range(trace.ranks), key=lambda rank: waited[rank])
    once = min((row for rows in trace.steps for row in rows), key=lambda row: row.waited - _most(trace, row.step))
    found = [
        (float(longest), "which waits longest, so it arrives early: the slow rank is the one that others wait for")
    ]
    if once.rank not in (longest, stragglers.culprit(trace).rank):
        found.append((float(once.rank), f"which delays step {once.step} alone; look at the whole row"))
    return found


def _most(trace: stragglers.Trace, step: int) -> float:
    return max(row.waited for row in trace.steps[step])
