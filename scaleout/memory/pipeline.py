"""Activations in flight: how many micro-batches' activations of one stage a rank holds, action by action.

A forward adds one, the whole backward takes it away. Where backward comes in halves it goes with the weight gradient,
which needs the inputs of every matrix: so the figures of zero-bubble schedules are upper bounds, for the input
gradient lets go of what only it needed (arXiv 2401.10241, section 3). In pieces of one stage: with v chunks per rank a
piece is 1/v of what the rank holds for one micro-batch in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from scaleout.spec.pipeline import Action, refuse
from scaleout.spec.pipeline_weave import phases

CHANGES = {"F": 1, "B": -1, "I": 0, "W": -1, "Q": -1}


def held(order: Sequence[Action]) -> tuple[int, ...]:
    """Activations that a rank holds after each of its actions, in stages of one micro-batch each."""
    return tuple(accumulate(CHANGES[action.kind] for action in order))


def in_flight(schedule: str, p: int, m: int, v: int = 1) -> tuple[int, ...]:
    """The largest number of activations on each rank at one time. Raises ValueError as `spec.pipeline.refuse` does."""
    refuse(schedule, p, m, v)
    return _in_flight(schedule, p, m, v)


@lru_cache(maxsize=64)
def _in_flight(schedule: str, p: int, m: int, v: int) -> tuple[int, ...]:
    return tuple(rank_in_flight(schedule, p, m, v, rank) for rank in range(p))


def rank_in_flight(schedule: str, p: int, m: int, v: int, rank: int) -> int:
    """`in_flight` of one rank, of a schedule that exists. From the phases: a pattern that repeats is fullest in its
    first or in its last turn."""
    highest = current = 0
    for pattern, times in phases(schedule, p, m, v, rank):
        if times:
            top, net = _pattern_change(pattern)
            highest = max(highest, current + top + max(0, net * (times - 1)))
            current += net * times
    return highest


def ends_in_flight(schedule: str, p: int, m: int) -> tuple[int, int]:
    """Micro-batches of which the last stage has (the inputs of its norm and head, the logits) at one time.

    One, where their backward follows their forward at once; all, where all forwards come first. ZB1 puts off the
    gradients of the weights, which need the inputs.
    """
    if schedule in ("gpipe", "bfs"):
        return m, m
    return (min(p, m), 1) if schedule == "zb1" else (1, 1)


@lru_cache(maxsize=64)
def _pattern_change(pattern: str) -> tuple[int, int]:
    """The most that a pattern adds at any time, and what it adds in all."""
    changes = list(accumulate(CHANGES[letter.upper()] for letter in pattern))
    return max(changes), changes[-1]


def most_held(orders: Sequence[Sequence[Action]], stage_bytes: Sequence[dict[str, int]]) -> list[int]:
    """The most bytes that each rank keeps at a time, in a step of these orders, of stages that keep `kept`
    (`loss.stage_kept`)."""
    change = {
        "F": lambda k: k["weights"] + k["input"],
        "B": lambda k: -k["weights"] - k["input"],
        "I": lambda k: -k["input"],
        "W": lambda k: -k["weights"],
    }
    return [max(accumulate(change[action.kind](stage_bytes[action.stage]) for action in order)) for order in orders]
