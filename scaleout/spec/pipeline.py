"""Pipeline schedules: what each rank does, in which order. Forward, backward, or backward in two halves.

A model of p x v stages runs on p ranks, v stages ("chunks") on each. A step has m micro-batches, and each needs every
stage's forward and backward once. A schedule only says in which order a rank takes them. Seven are here, as the
library has them (torch.distributed.pipelining, whose own tables the tests compare): GPipe (arXiv 1811.06965), 1F1B
(arXiv 1806.03377), interleaved (arXiv 2104.04473), breadth-first (arXiv 2211.05953), the zero-bubble ZB1 and ZBV
(arXiv 2401.10241) and DualPipeV (arXiv 2412.19437). `timing.pipeline` computes when each action starts.
How an order is woven from patterns is in `pipeline_weave`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from scaleout.spec import checks
from scaleout.spec.pipeline_weave import KINDS, order, row


class Action(NamedTuple):
    """One piece of work. kind: F forward, B whole backward, I input gradient, W weight gradient."""

    kind: str
    stage: int  # 0 to p * v - 1, in the order of the model
    micro: int  # 0 to m - 1

    def __str__(self) -> str:
        return f"{self.kind}{self.micro} of stage {self.stage}"


Orders = tuple[tuple[Action, ...], ...]  # of each rank


@dataclass(frozen=True)
class Schedule:
    """What a schedule is called and what it asks for.

    chunks: the fewest and the most stages a rank may have. v_shaped: the second chunk runs from the last rank back
    to the first. splits: backward comes as input gradient and weight gradient.
    """

    label: str
    torch: str  # its name in torch.distributed.pipelining, less "Schedule"
    chunks: tuple[int, int | None] = (1, 1)
    v_shaped: bool = False
    splits: bool = False


SCHEDULES = {
    "gpipe": Schedule("GPipe", "GPipe"),
    "1f1b": Schedule("1F1B", "1F1B"),
    "interleaved": Schedule("interleaved 1F1B", "Interleaved1F1B", (2, None)),
    "bfs": Schedule("looped breadth-first", "LoopedBFS", (2, None)),
    "zb1": Schedule("zero-bubble ZB1", "InterleavedZeroBubble", (1, None), splits=True),
    "zbv": Schedule("zero-bubble ZBV", "ZBVZeroBubble", (2, 2), v_shaped=True, splits=True),
    "dualpipev": Schedule("DualPipeV", "DualPipeV", (2, 2), v_shaped=True, splits=True),
}


def rank_of(schedule: str, stage: int, p: int) -> int:
    """The rank that has a stage: stages go round the ranks, or there and back again. ValueError as in `checked`."""
    facts = checked(schedule, p=p)
    checks.whole("stage", stage, 0)
    return _rank(facts, stage, p)


def ranks_of(schedule: str, p: int, v: int = 1) -> list[int]:
    """The rank of each stage, in the order of the model. ValueError as in `checked`."""
    facts = checked(schedule, p=p, v=v)
    return [_rank(facts, stage, p) for stage in range(p * v)]


def _rank(facts: Schedule, stage: int, p: int) -> int:
    """`rank_of`, for counts that are known to be sound."""
    lap, place = divmod(stage, p)
    return p - 1 - place if facts.v_shaped and lap % 2 else place


def checked(schedule: str, **counts: int) -> Schedule:
    """What a schedule asks for. ValueError lists the names for an unknown one, and refuses counts (p: ranks, m:
    micro-batches, v: chunks per rank) that are no whole numbers above 0."""
    facts = checks.known("schedule", schedule, SCHEDULES)
    for name, value in counts.items():
        checks.whole(name, value, unit=" (ranks, micro-batches, chunks per rank)")
    return facts


def stages_of(schedule: str, rank: int, p: int, v: int) -> tuple[int, ...]:
    """The stages of a rank, in the order of the model. ValueError as in `checked`, and for a rank that is not there."""
    facts = checked(schedule, p=p, v=v)
    checks.whole("rank", rank, 0, limit=p - 1)
    mirror = p - 1 - rank if facts.v_shaped else rank
    return tuple(lap * p + (mirror if lap % 2 else rank) for lap in range(v))


def allowed(schedule: str, p: int, m: int) -> bool:
    """Whether a schedule of p ranks can have m micro-batches. ValueError as in `checked`."""
    checked(schedule, p=p, m=m)
    if schedule in ("interleaved", "zb1"):
        return m % max(1, m // p) == 0
    return m >= {"1f1b": p, "dualpipev": 2 * p}.get(schedule, 1)


def nearest(schedule: str, p: int, m: int) -> int:
    """Of the micro-batches that a schedule of p ranks can have, the number nearest to m; of two the larger.
    ValueError as in `checked`."""
    checked(schedule, p=p, m=m)
    outward = (n for distance in range(2 * p + 1) for n in (m + distance, m - distance) if n > 0)
    return next(n for n in outward if allowed(schedule, p, n))


def refuse(schedule: str, p: int, m: int, v: int = 1) -> None:
    """Raise ValueError, with the nearest that works, for what the schedule cannot be."""
    facts = checked(schedule, p=p, m=m, v=v)
    least, highest = facts.chunks
    if v < least or (highest and v > highest):
        bound = f"{'' if highest == least else 'at least '}{least} chunk{'s' if least > 1 else ''}"
        raise ValueError(f"{schedule} has {bound} per rank, not {v}: use v = {least if v < least else highest}")
    if not allowed(schedule, p, m):
        reasons = {
            "1f1b": f"needs a micro-batch for each of {p} ranks",
            "dualpipev": f"needs two for each of {p} ranks",
        }
        rule = reasons.get(schedule, f"takes micro-batches in equal rounds of at least {p}")
        raise ValueError(f"{schedule} {rule}, not {m}: use m = {nearest(schedule, p, m)}")


def enough(schedule: str, p: int) -> int:
    """As many micro-batches as fill the pipeline: with more, no rank is idle for a shorter time. For fewer, ZBV's order
    is cut from that of as many. ValueError as in `checked`."""
    checked(schedule, p=p)
    return {"dualpipev": 2 * p, "zbv": 2 * p - 1}.get(schedule, p)


def coded(schedule: str, p: int, m: int, v: int = 1) -> list[list[int]]:
    """`orders` in the numbers of `pipeline_weave`, which take a tenth of the time. ValueError as there."""
    refuse(schedule, p, m, v)
    return [order(schedule, p, m, v, rank) for rank in range(p)]


def code(action: Action, stages: int, m: int) -> int:
    """The number of an action."""
    return row(action.kind, action.stage, stages, m)[action.micro]


def decode(number: int, stages: int, m: int) -> Action:
    """The action of a number."""
    place, micro = divmod(number, m)
    kind, place = divmod(place, stages)
    return Action(KINDS[kind], stages - 1 - place if kind else place, micro)


def orders(schedule: str, p: int, m: int, v: int = 1) -> Orders:
    """What each rank does, in order. Raises ValueError as `refuse` does."""
    refuse(schedule, p, m, v)
    return _orders(schedule, p, m, v)


@lru_cache(maxsize=8)
def _orders(schedule: str, p: int, m: int, v: int) -> Orders:
    return tuple(tuple(decode(n, p * v, m) for n in row) for row in coded(schedule, p, m, v))
