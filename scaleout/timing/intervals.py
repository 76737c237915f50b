"""Sets of points in time as intervals (start, end): union, difference, and communication that nothing covers."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum  # exact: sum adds otherwise from Python 3.12 on, and the page has a newer one

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same points in time as disjoint (start, end), in order; empty ones are dropped."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def subtract(intervals: Iterable[Interval], covers: Iterable[Interval]) -> list[Interval]:
    """The parts of `intervals` that no interval of `covers` covers, disjoint and in order."""
    parts, covers, first = [], union(covers), 0
    for start, end in union(intervals):
        while first < len(covers) and covers[first][1] <= start:
            first += 1
        for a, b in covers[first:]:
            if a >= end:
                break
            if a > start:
                parts.append((start, a))
            start = max(start, b)
        if start < end:
            parts.append((start, end))
    return parts


def common(intervals: Iterable[Interval], second: Iterable[Interval]) -> list[Interval]:
    """The parts of `intervals` that lie in one of `others`, disjoint and in order."""
    intervals = list(intervals)
    return subtract(intervals, subtract(intervals, second))


def length(intervals: Iterable[Interval]) -> float:
    """Seconds that the intervals cover; what several cover counts once."""
    return fsum(end - start for start, end in union(intervals))


def exposed(compute: Iterable[Interval], communication: Iterable[Interval]) -> float:
    """Seconds of communication during which no compute runs: what the step waits for."""
    return length(subtract(communication, compute))
