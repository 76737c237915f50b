"""The mark of a reader's guess: Python draws it and says where each value is, the front end moves it."""

from __future__ import annotations

from itertools import pairwise

from scaleout.draw import svg

HAND = 28  # how broad the part is that a finger can take hold of


def mark(
    stops: list[tuple[float, float]],
    ends_across: tuple[float, float],
    way: str = "y",
    hold: float | None = None,
) -> str:
    """A dashed line from across[0] to across[1] that lies across `way` ("y": it moves up and down).

    `stops` are pairs of value and coordinate along `way`, values rising; between two of them the mark moves linearly,
    beyond the last it stays there. Hidden until there is a guess, or the picture is locked and asks for one. hold: the
    y of the knob and the words of a mark that moves along x, else its middle.
    """
    if way not in ("x", "y"):
        raise ValueError(f"a mark moves along x or y, not {way!r}")
    if len(stops) < 2 or any(b[0] <= a[0] for a, b in pairwise(stops)):
        raise ValueError(f"a mark needs two or more stops with rising values, not {stops!r}")
    data = " ".join(f"{value:.10g}:{svg.num(position)}" for value, position in stops)
    low, high = ends_across
    ends = (low, 0.0, high, 0.0) if way == "y" else (0.0, low, 0.0, high)
    corner, size = ((low, -HAND / 2), (high - low, HAND)) if way == "y" else ((-HAND / 2, low), (HAND, high - low))
    knob = (low, 0.0) if way == "y" else (0.0, (low + high) / 2 if hold is None else hold)
    x, y, anchor = (high - 4, -6.0, "end") if way == "y" else (12.0, knob[1] + 4, "start")
    body = (
        f'<rect x="{svg.num(corner[0])}" y="{svg.num(corner[1])}" width="{svg.num(size[0])}" '
        f'height="{svg.num(size[1])}" fill="transparent" class="live-hand"/>'
        f"{svg.line(*ends, 'key', 2, '5 4')}{_knob(*knob)}"
        f"{svg.text(x, y, 'your guess', anchor=anchor, fill='key', bold=True, halo=True)}"
    )
    return f'<g class="live-mark" data-way="{way}" data-stops="{data}" visibility="hidden">{body}</g>'


def _knob(x: float, y: float) -> str:
    return f'<circle cx="{svg.num(x)}" cy="{svg.num(y)}" r="7" fill="{svg.colour("key")}" class="live-knob"/>'
