"""How a run scales with the number of ranks: its efficiency, by tokens a second."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from scaleout.timing.step import StepTime


@dataclass(frozen=True)
class Point:
    """One size of a scaling curve. efficiency: tokens a second of a rank, over those at the fewest ranks."""

    ranks: int
    time: StepTime
    efficiency: float
    speed_up: float


def scaling(step_of: Callable[[int], StepTime], worlds: Iterable[int]) -> dict[int, Point]:
    """By number of ranks, the step that step_of gives and its efficiency; 1 at the fewest ranks.

    Strong scaling where step_of shares one batch, weak where each rank's stays the same: counted in tokens a second
    both are one formula, and equal `timing.ddp.strong_efficiency` and `weak_efficiency` of the seconds. ValueError
    without any number of ranks.
    """
    found = {ranks: step_of(ranks) for ranks in sorted(set(worlds))}
    shares = efficiency({ranks: one.tokens_per_second for ranks, one in found.items()})
    first = min(found)
    return {ranks: Point(ranks, one, shares[ranks], shares[ranks] * ranks / first) for ranks, one in found.items()}


def efficiency(tokens_per_second: Mapping[int, float]) -> dict[int, float]:
    """By number of ranks, tokens a second of a rank over those at the fewest. ValueError unless all are above 0."""
    if not tokens_per_second or not all(r >= 1 and 0 < rate < math.inf for r, rate in tokens_per_second.items()):
        raise ValueError("efficiency needs tokens a second above 0 by number of ranks, such as {1: 9000, 2: 17000}")
    first = min(tokens_per_second)
    each = tokens_per_second[first] / first
    return {ranks: rate / ranks / each for ranks, rate in sorted(tokens_per_second.items())}
