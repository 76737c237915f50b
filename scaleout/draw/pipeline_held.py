"""Saved activations of a pipeline's ranks over time, as SVG: a bar for each micro-batch, from its forward to the end of
its backward; where they are too many for that, how many there are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import repeat
from operator import sub

from scaleout.draw import svg
from scaleout.draw.pipeline_lanes import Lane, Rows, step_edges, steps
from scaleout.memory.pipeline import CHANGES

GO = [kind for kind, change in CHANGES.items() if change < 0]
PALE = 0.5
COLUMN = 5  # CSS pixels of a step


def lives(rows: Rows, lanes: Sequence[Lane], unit: float, lit: int) -> str:
    """A bar for each life, `unit` CSS pixels high, in the lowest place that is free."""
    pale: list[str] = []
    full: list[str] = []
    for row, lane in enumerate(lanes):
        floor, chunks = rows.top(row) + rows.bar, lane.chunks
        ends: list[float] = []
        for start, end, stage, micro in _lives(lane):
            place = next((n for n, until in enumerate(ends) if until <= start + 1e-9), len(ends))
            ends[place : place + 1] = [end]
            (full if micro == lit else pale).append(
                f'<rect x="{rows.at(start):.1f}" y="{floor - (place + 1) * unit + 0.5:.1f}" '
                f'width="{max(0.5, (end - start) * rows.scale - 1):.1f}" height="{unit - 0.5:.1f}" '
                f'data-mark="v{micro}r{lane.rank}c{chunks[stage]}"/>'
            )
    green = svg.colour("c3")
    return f'<g fill="{green}" fill-opacity="{PALE}">{"".join(pale)}</g><g fill="{green}">{"".join(full)}</g>'


def amounts(rows: Rows, lanes: Sequence[Lane], unit: float, slots: float) -> str:
    """The number of micro-batches with saved activations, each `unit` CSS pixels high, in each COLUMN of pixels."""
    count = max(1, int(slots * rows.scale / COLUMN))
    edges = step_edges(rows.at(slots * k / count) for k in range(count + 1))
    middles = [slots * (k + 0.5) / count for k in range(count)]
    path = [
        steps(edges, rows.top(row) + rows.bar, [-unit * n for n in in_flight(lane, middles)])
        for row, lane in enumerate(lanes)
    ]
    return f'<path d="{"".join(path)}" fill="{svg.colour("c3")}" fill-opacity="{PALE}"/>'


def in_flight(lane: Lane, moments: Sequence[float]) -> list[int]:
    """Micro-batches whose activations are saved at each moment: the weight gradient frees them, where it is apart."""
    strands = lane.strands
    begun = map(bisect_right, repeat(strands["F"].starts), moments)
    freed = [strands[kind].ended(moments) for kind in GO if kind in strands]
    return [*map(sub, begun, map(sum, zip(*freed, strict=True)))]


def _lives(lane: Lane) -> list[tuple[float, float, int, int]]:
    """(start, end, stage, micro-batch) of each, by their start."""
    begun, result = {}, []
    for kind, stage, micro, start, end in lane.actions:
        if CHANGES[kind] > 0:
            begun[stage, micro] = start
        elif CHANGES[kind] < 0:
            result.append((begun[stage, micro], end, stage, micro))
    return sorted(result)
