"""Activations that a pipeline's ranks hold over time, as SVG: a life for each micro-batch, from its forward to the end of
its backward; where they are too many for that, how many there are."""

from __future__ import annotations

from collections.abc import Sequence

from scaleout.draw import svg
from scaleout.draw.pipeline_lanes import COLUMN, Rows

Life = tuple[float, float, int, int]  # start and end in slots, stage, micro-batch
LIVES = 140  # in a picture, at most, that are marks of their own
PALE = 0.5


def lives(on: Rows, rows: Sequence[Sequence[Life]], unit: float, lit: int | None) -> str:
    """A bar for each life, `unit` CSS pixels high, in the lowest place that is free."""
    pale, full = [], []
    for row, some in enumerate(rows):
        floor, ends = on.top(row) + on.bar, []
        for start, end, stage, micro in some:
            place = next((n for n, until in enumerate(ends) if until <= start + 1e-9), len(ends))
            ends[place : place + 1] = [end]
            (full if micro == lit else pale).append(
                f'<rect x="{on.at(start):.1f}" y="{floor - (place + 1) * unit + 0.5:.1f}" '
                f'width="{max(0.5, (end - start) * on.scale - 1):.1f}" height="{unit - 0.5:.1f}" '
                f'data-mark="v{micro}s{stage}"/>'
            )
    green = svg.colour("c3")
    return (f'<g fill="{green}" fill-opacity="{PALE}">{"".join(pale)}</g><g fill="{green}">{"".join(full)}</g>')  # fmt: skip


def amounts(on: Rows, rows: Sequence[Sequence[tuple[float, float]]], unit: float, slots: float) -> str:
    """How much a rank holds, as steps of COLUMN pixels, in each the most; `rows` are pairs of slots, in order, and what
    is held from then on; `unit` is CSS pixels of one."""
    path, count = [], max(1, int(slots * on.scale / COLUMN))
    for row, some in enumerate(rows):
        most = [0.0] * count
        held, at = 0.0, 0
        for when, now in some:
            here = min(count - 1, int(when / slots * count))
            for k in range(at, here + 1):
                most[k] = max(most[k], held)
            held, at = now, here
            most[here] = max(most[here], now)
        floor, before = on.top(row) + on.bar, None
        path.append(f"M{svg.num(on.x)} {svg.num(floor)}")
        for k, one in enumerate(most):
            if one != before:
                path.append(f"{f'H{on.x + k * COLUMN:.0f}' if k else ''}V{floor - one * unit:.1f}")
                before = one
        path.append(f"H{on.x + count * COLUMN:.0f}V{svg.num(floor)}Z")
    return f'<path d="{"".join(path)}" fill="{svg.colour("c3")}" fill-opacity="{PALE}"/>'
