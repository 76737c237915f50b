"""How a run scales with the number of ranks: its efficiency, by tokens per second or by step time."""

from __future__ import annotations

import math
from collections.abc import Mapping


def efficiency(tokens_per_second: Mapping[int, float]) -> dict[int, float]:
    """By number of ranks, tokens per second of a rank over those at the fewest. ValueError unless all are above 0."""
    if not tokens_per_second or not all(r >= 1 and 0 < rate < math.inf for r, rate in tokens_per_second.items()):
        raise ValueError("efficiency needs tokens per second above 0 by number of ranks, such as {1: 9000, 2: 17000}")
    first = min(tokens_per_second)
    base = tokens_per_second[first] / first
    return {ranks: rate / ranks / base for ranks, rate in sorted(tokens_per_second.items())}


def strong_efficiency(seconds_by_ranks: dict[int, float]) -> dict[int, float]:
    """By rank count, the speed-up over the fewest ranks divided by the ideal one; the same work is shared.

    t(r0) r0 / (t(r) r), 1 at the fewest ranks r0. Raises ValueError for no ranks, or seconds that are not above 0.
    """
    first, start = _reference(seconds_by_ranks)
    return {ranks: start * first / (t * ranks) for ranks, t in sorted(seconds_by_ranks.items())}


def weak_efficiency(seconds_by_ranks: dict[int, float]) -> dict[int, float]:
    """By rank count, t(r0) / t(r): each rank has the same work, so that the ideal step takes as long as at r0."""
    _, start = _reference(seconds_by_ranks)
    return {ranks: start / t for ranks, t in sorted(seconds_by_ranks.items())}


def _reference(seconds_by_ranks: dict[int, float]) -> tuple[int, float]:
    good = seconds_by_ranks and all(r >= 1 and 0 < t < math.inf for r, t in seconds_by_ranks.items())
    if not good:
        raise ValueError("efficiency needs seconds above 0 by rank count from 1 up, such as {1: 0.5, 2: 0.6}")
    first = min(seconds_by_ranks)
    return first, seconds_by_ranks[first]
