"""Hatching: what is over a limit, exposed or waiting is told by slanted lines as well as by colour."""

from __future__ import annotations

from scaleout.draw import svg

PITCH, TALLEST = 8, 420  # CSS pixels between lines; the highest window


def hatched(x: float, y: float, width: float, height: float, fill: str, mark: str) -> str:
    """A rectangle of slanted lines: a window on a field of them, so that it can grow without their moving."""
    strokes = "".join(f"M{k} {TALLEST}l{TALLEST} {-TALLEST}" for k in range(PITCH - TALLEST, int(width), PITCH))
    return (
        f'<svg x="{svg.num(x)}" y="{svg.num(y)}" width="{svg.num(width)}" height="{svg.num(height)}" '
        f'data-mark="{mark}"><path d="{strokes}" fill="none" stroke="{svg.colour(fill)}" stroke-width="1.5" '
        'stroke-opacity="0.55"/></svg>'
    )
