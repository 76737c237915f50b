"""How a run scales with the number of ranks: its efficiency, by tokens a second."""

from __future__ import annotations

import math
from collections.abc import Mapping


def efficiency(tokens_per_second: Mapping[int, float]) -> dict[int, float]:
    """By number of ranks, tokens a second of a rank over those at the fewest. ValueError unless all are above 0."""
    if not tokens_per_second or not all(r >= 1 and 0 < rate < math.inf for r, rate in tokens_per_second.items()):
        raise ValueError("efficiency needs tokens a second above 0 by number of ranks, such as {1: 9000, 2: 17000}")
    first = min(tokens_per_second)
    each = tokens_per_second[first] / first
    return {ranks: rate / ranks / each for ranks, rate in sorted(tokens_per_second.items())}
