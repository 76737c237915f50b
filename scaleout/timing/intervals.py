"""Sets of points in time as intervals (start, end): union, difference, and communication that nothing covers."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum  # exact: sum adds otherwise from Python 3.12 on, and the page has a newer one

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same points in time as disjoint (start, end), in order; empty ones are dropped."""
    out: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def subtract(intervals: Iterable[Interval], covers: Iterable[Interval]) -> list[Interval]:
    """The parts of `intervals` that no interval of `covers` covers, disjoint and in order."""
    out, covers, first = [], union(covers), 0
    for start, end in union(intervals):
        while first < len(covers) and covers[first][1] <= start:
            first += 1
        for a, b in covers[first:]:
            if a >= end:
                break
            if a > start:
                out.append((start, a))
            start = max(start, b)
        if start < end:
            out.append((start, end))
    return out


def common(intervals: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """The parts of `intervals` that lie in one of `others`, disjoint and in order."""
    intervals = list(intervals)
    return subtract(intervals, subtract(intervals, others))


def length(intervals: Iterable[Interval]) -> float:
    """Seconds that the intervals cover; what several cover counts once."""
    return fsum(end - start for start, end in union(intervals))


def exposed(compute: Iterable[Interval], communication: Iterable[Interval]) -> float:
    """Seconds of communication during which no compute runs: what the step waits for."""
    return length(subtract(communication, compute))
