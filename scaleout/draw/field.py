"""A field of points, too many to be buttons: one shape for all of a kind, and one control that finds the nearest.

Where a script runs, a pointer or the arrow keys go from point to point: a ring shows which, a line of words says what
it is, and a press sets the view's controls to it (page/static/field.js).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from scaleout.draw import svg

# Shapes of a point, from its middle on, for a radius of 3.
SHAPES = {
    "disc": "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0",
    "triangle": "m0-3.5l3.5 6.2h-7z",
    "diamond": "m0-4l4 4l-4 4l-4-4z",
    "square": "m-2.8-2.8h5.6v5.6h-5.6z",
    "cross": "m-2.2-2.2l4.4 4.4m0-4.4l-4.4 4.4",
}


def shapes(
    places: Iterable[tuple[float, float]],
    shape: str,
    fill: str,
    filled: bool,
    opacity: float = 1.0,
    named: bool = False,
) -> str:
    """All points of a kind as one path; those that are not filled cover what lies behind them, but for a cross. named:
    by the picture's `field`, so that they glide to where they are in the next picture (page/static/glide.js)."""
    path = "".join(f"M{x:.1f} {y:.1f}{SHAPES[shape]}" for x, y in places)
    if not path:
        return ""
    inside = svg.colour(fill) if filled else "none" if shape == "cross" else svg.colour("paper")
    outline = svg.colour("paper" if filled else fill)
    faded = "" if opacity == 1 else f' opacity="{svg.num(opacity)}"'
    cloud = ' data-cloud=""' if named else ""
    line = f'stroke="{outline}" stroke-width="{0.6 if filled else 1.4}"'
    return f'<path d="{path}" fill="{inside}" {line}{faded}{cloud}/>'


def field(
    box: tuple[float, float, float, float],
    controls: Sequence[str],
    points: Iterable[tuple[float, float, Sequence[object], str]],
    words: tuple[float, float, str],
    label: str,
    columns: int = 1,
    reach: float = 0.0,
) -> str:
    """The control over the shapes. box: (x, y, width, height) in which it listens. points: (x, y, a value for each of
    `controls`, what is said of it), in the order in which arrow keys go. words: where that is said, and what stands
    there before. label: names the field to who does not see it. columns: of a grid, whose rows go upward and are what
    the arrows up and down go through; reach: of a point, in CSS pixels, 0 for the usual one."""
    data = ";".join(f"{x:.1f} {y:.1f} {' '.join(map(str, values))}|{text}" for x, y, values, text in points)
    x, y, width, height = box
    ring = f'<circle r="7" fill="none" stroke="{svg.colour("key")}" stroke-width="2" visibility="hidden"/>'
    grid = f' data-columns="{columns}" data-reach="{svg.num(reach)}"' if columns > 1 else ""
    return (
        f'<g data-mark="field"{grid} data-field="{escape(" ".join(controls), quote=True)}" '
        f'data-points="{escape(data, quote=True)}" data-label="{escape(label, quote=True)}">'
        f'<rect x="{svg.num(x)}" y="{svg.num(y)}" width="{svg.num(width)}" height="{svg.num(height)}" rx="4" '
        f'fill="transparent" class="live-hit"/>{ring}'
        f"{svg.text(words[0], words[1], words[2], fill='muted', size=svg.SMALL)}</g>"
    )
