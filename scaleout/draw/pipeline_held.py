"""Activations that a pipeline's ranks hold over time, as SVG: a life for each micro-batch, from its forward to the end
of its backward; where they are too many for that, how many there are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import compress, repeat
from operator import sub

from scaleout.draw import svg
from scaleout.draw.pipeline_lanes import Lane, Rows, steps
from scaleout.memory.pipeline import CHANGES

Times = tuple[Sequence[float], Sequence[float]]  # when activations come, and when they go

COME, GO = ({kind for kind, change in CHANGES.items() if change == one} for one in (1, -1))
PALE = 0.5
COLUMN = 5  # CSS pixels of a step


def lives(on: Rows, lanes: Sequence[Lane], unit: float, lit: int) -> str:
    """A bar for each life, `unit` CSS pixels high, in the lowest place that is free."""
    pale, full = [], []
    for row, lane in enumerate(lanes):
        floor, ends, chunks = on.top(row) + on.bar, [], lane.chunks
        for start, end, stage, micro in _lives(lane):
            place = next((n for n, until in enumerate(ends) if until <= start + 1e-9), len(ends))
            ends[place : place + 1] = [end]
            (full if micro == lit else pale).append(
                f'<rect x="{on.at(start):.1f}" y="{floor - (place + 1) * unit + 0.5:.1f}" '
                f'width="{max(0.5, (end - start) * on.scale - 1):.1f}" height="{unit - 0.5:.1f}" '
                f'data-mark="v{micro}r{lane.rank}c{chunks[stage]}"/>'
            )
    green = svg.colour("c3")
    return f'<g fill="{green}" fill-opacity="{PALE}">{"".join(pale)}</g><g fill="{green}">{"".join(full)}</g>'


def amounts(on: Rows, lanes: Sequence[Times], unit: float, slots: float) -> str:
    """How many a rank holds, each `unit` CSS pixels high, in the middle of each COLUMN of pixels. lanes: of `times`."""
    count = max(1, int(slots * on.scale / COLUMN))
    places = [on.at(slots * k / count) for k in range(count + 1)]
    middles = [slots * (k + 0.5) / count for k in range(count)]
    path = []
    for row, times in enumerate(lanes):
        begun, ended = (map(bisect_right, repeat(some), middles) for some in times)
        path.append(steps(places, on.top(row) + on.bar, [-unit * one for one in map(sub, begun, ended)]))
    return f'<path d="{"".join(path)}" fill="{svg.colour("c3")}" fill-opacity="{PALE}"/>'


def held_at(begun: Sequence[float], ended: Sequence[float], slots: float) -> int:
    """How many have begun by then and not ended."""
    return bisect_right(begun, slots) - bisect_right(ended, slots)


def times(lane: Lane) -> Times:
    """When activations come, and when they go: with the weight gradient, where that is apart."""
    begun = compress(lane.starts, map(COME.__contains__, lane.kinds))
    return [*begun], [*compress(lane.ends, map(GO.__contains__, lane.kinds))]


def _lives(lane: Lane) -> list[tuple[float, float, int, int]]:
    """(start, end, stage, micro-batch) of each, by their start."""
    begun, out = {}, []
    for kind, stage, micro, start, end in lane.actions:
        if CHANGES[kind] > 0:
            begun[stage, micro] = start
        elif CHANGES[kind] < 0:
            out.append((begun[stage, micro], end, stage, micro))
    return sorted(out)
