"""How a run scales with the number of ranks, and what it takes: efficiency, hours, energy, price."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from scaleout.spec import checks
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


@dataclass(frozen=True)
class RunCost:
    """What a run takes: hours of wall clock, GPU-hours, energy in kWh, and the price in the price's own currency."""

    hours: float
    gpu_hours: float
    kwh: float
    price: float


def run_cost(tokens: float, tokens_per_second: float, ranks: int, watts: float, price_per_hour: float) -> RunCost:
    """The cost of `tokens` at that rate on `ranks` GPUs, each drawing `watts` with its share of the node and costing
    price_per_hour. ValueError for a rate that is not above 0, and for amounts below 0."""
    for name, value in (("tokens", tokens), ("watts", watts), ("price_per_hour", price_per_hour)):
        checks.number(name, value, 0)
    if not 0 < tokens_per_second < math.inf or ranks < 1:
        raise ValueError(f"a run needs tokens a second above 0 and ranks from 1, not {tokens_per_second!r}, {ranks!r}")
    hours = tokens / tokens_per_second / 3600
    return RunCost(hours, hours * ranks, hours * ranks * watts / 1000, hours * ranks * price_per_hour)
