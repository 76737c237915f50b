"""The reader's own order in the view `pipeline`: the rows it begins with, what becomes of them, and blocks that a hand
moves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import fsum, inf

from scaleout.draw import pipeline_lanes, svg
from scaleout.draw.pipeline_lanes import Lane, Rows
from scaleout.memory.pipeline import held
from scaleout.spec import pipeline as spec
from scaleout.spec.pipeline import Action, Orders
from scaleout.timing.pipeline import Costs, Summary
from scaleout.timing.pipeline_waits import Wait, blocked
from scaleout.views import rows_of
from scaleout.views.pipeline import words

RANKS, MICRO_BATCHES = 3, 4  # with one stage each; micro-batches


def opening() -> list[list[str]]:
    """1F1B's rows, each backward in two halves."""
    return [
        [f"{kind}{action.micro}" for action in row for kind in ("IW" if action.kind == "B" else "F")]
        for row in spec.orders("1f1b", RANKS, MICRO_BATCHES)
    ]


@lru_cache(maxsize=16)
def orders(order: str) -> Orders:
    """The actions of the reader's rows."""
    return tuple(tuple(Action(item[0], rank, int(item[1:])) for item in row) for rank, row in enumerate(rows_of(order)))


def waits(order: str) -> tuple[Wait, ...]:
    """The ranks that wait for one another, in a ring; () where the order comes to its end."""
    return blocked(orders(order))


def queue(order: str, rank: int, costs: Costs) -> Lane:
    """A rank's actions one after another, of an order that never ends: they have no times."""
    row = orders(order)[rank]
    ends = [*accumulate(costs.of(action) for action in row)]
    return Lane(rank, *zip(*row, strict=True), [0.0, *ends[:-1]], ends)


def stuck(order: str, costs: Costs) -> Summary:
    """What can be said of an order that never ends."""
    rows = orders(order)
    work = tuple(fsum(costs.of(action) for action in row) for row in rows)
    return Summary(inf, work, tuple(max(held(row)) for row in rows))


def blocks(rows: Rows, lanes: Sequence[Lane], lit: int) -> str:
    """A mark for each action that ran, to be moved along its row."""
    parts = []
    for row, lane in enumerate(lanes):
        for kind, _, micro, start, end in lane.actions:
            fill, edge, ink = pipeline_lanes.look(kind, micro == lit)
            wide = (end - start) * rows.scale
            body = svg.rect(0, 0, wide, rows.bar, edge) + svg.rect(1, 1, wide - 2, rows.bar - 2, fill)
            if pipeline_lanes.numbered(micro, wide):
                loud = ink == pipeline_lanes.LOUD
                body += svg.text(
                    wide / 2,
                    rows.bar / 2 + 4,
                    str(micro),
                    anchor="middle",
                    fill="ink" if loud else ink,
                    size=svg.SMALLEST,
                    halo=loud,
                )
            parts.append(
                svg.movable(
                    rows.at(start),
                    rows.top(row),
                    body,
                    (wide, rows.bar),
                    "order",
                    row,
                    f"{kind}{micro}",
                    f"{words.KINDS[kind]} of micro-batch {micro}, rank {row}",
                    f"{kind}{micro}-rank{row}",
                )
            )
    return "".join(parts)
