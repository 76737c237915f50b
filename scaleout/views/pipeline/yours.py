"""The reader's own schedule in the view `pipeline`: the rows it begins with, and blocks that a hand moves."""

from __future__ import annotations

from functools import lru_cache

from scaleout.draw import pipeline_lanes, svg
from scaleout.draw.pipeline_lanes import Rows
from scaleout.spec.pipeline import Action, Orders
from scaleout.views import rows_of

RANKS, MANY = 3, 4  # with one stage each; micro-batches
WORDS = {"F": "forward", "I": "input gradient", "W": "weight gradient"}


def opening() -> list[list[str]]:
    """GPipe's rows, their backward in two halves."""
    return [[f"F{n}" for n in range(MANY)] + [f"{kind}{n}" for n in range(MANY) for kind in "IW"]] * RANKS


@lru_cache(maxsize=16)
def orders(order: str) -> Orders:
    """The actions of the reader's rows."""
    return tuple(
        tuple(Action(item[0], rank, int(item[1:])) for item in row) for rank, row in enumerate(rows_of(order))
    )


def blocks(on: Rows, runs, lit: int) -> str:
    """A mark for each action that ran, to be moved along its row."""
    out = []
    for row, some in enumerate(runs):
        for one in some:
            fill, ink = pipeline_lanes.look(one.kind, one.micro == lit)
            wide = (one.end - one.start) * on.scale
            body = svg.rect(0.5, 0, wide - 1, on.bar, fill)
            if pipeline_lanes.numbered(one.micro, wide):
                body += svg.text(wide / 2, on.bar / 2 + 4, str(one.micro), anchor="middle", fill=ink, size=svg.SMALLEST)
            out.append(svg.movable(
                on.at(one.start), on.top(row), body, (wide, on.bar), "order", row, f"{one.kind}{one.micro}",
                f"{WORDS[one.kind]} of micro-batch {one.micro}, rank {row}", f"{one.kind}{one.micro}-rank{row}",
            ))  # fmt: skip
    return "".join(out)
