"""A tensor as sheets of paper, by what each rank of a group holds: strips are parts, a stack is copies, a hatched
stack is sums that are still to be made. What one rank holds is solid, the others' is pale.

Each tensor is three marks with names at most, however many the ranks: what moves is the paper, not the rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from scaleout.draw import hatch, svg

STACK = 4  # sheets that a stack is drawn with
DEPTH = 8.0  # CSS pixels by which the last of them stands off, to the right and up
PALE = 0.3


@dataclass(frozen=True)
class Sheet:
    """A tensor at (x, y), its lower left sheet as wide and high as given, in CSS pixels.

    parts: strips along `cut`, "columns" or "rows"; copies: ranks that hold each of them; partial: what they hold are
    terms of a sum. lit: the strip that is solid. fill: its colour; name: of its marks; strong: how much it is there,
    from 0 to 1.
    """

    name: str
    x: float
    y: float
    width: float
    height: float
    fill: str
    parts: int = 1
    cut: str = "columns"
    copies: int = 1
    partial: bool = False
    lit: int = 0
    strong: float = 1.0
    title: str = ""


def draw(sheet: Sheet) -> str:
    """The stack behind, the strips of the others, and the lit one's on top."""
    strips = [_strip(sheet, part) for part in range(sheet.parts)]
    solid = strips[sheet.lit]
    if sheet.partial:
        front = hatch.box(*solid, sheet.fill, mark=f"{sheet.name}-lit")
    else:
        front = svg.rect(*solid, sheet.fill, mark=f"{sheet.name}-lit")
    unlit = _path([box for part, box in enumerate(strips) if part != sheet.lit])
    pale = f'<path d="{unlit}" fill="{svg.colour(sheet.fill)}" fill-opacity="{PALE}" data-mark="{sheet.name}-rest"/>'
    title = f"<title>{escape(sheet.title)}</title>" if sheet.title else ""
    faded = "" if sheet.strong == 1 else f' opacity="{svg.num(sheet.strong)}"'
    return f"<g{faded}>{title}{_copies(sheet, strips)}{pale * bool(unlit)}{front}</g>"


def _strip(sheet: Sheet, part: int) -> hatch.Box:
    """Where a part lies; a little paper shows between two of them."""
    gap = 0.0 if sheet.parts == 1 else 1.2 if sheet.parts <= 8 else 0.6
    if sheet.cut == "columns":
        pitch = sheet.width / sheet.parts
        return sheet.x + part * pitch, sheet.y, max(0.6, pitch - gap * (part < sheet.parts - 1)), sheet.height
    pitch = sheet.height / sheet.parts
    return sheet.x, sheet.y + part * pitch, sheet.width, max(0.6, pitch - gap * (part < sheet.parts - 1))


def _copies(sheet: Sheet, strips: list[hatch.Box]) -> str:
    """The other copies, the last one first, each with its edge."""
    count = min(sheet.copies, STACK)
    if count == 1:
        return ""
    step, marks = DEPTH / (STACK - 1), []
    for k in range(count - 1, 0, -1):
        moved = [(x + k * step, y - k * step, width, height) for x, y, width, height in strips]
        marks.append(
            f'<path d="{_path(moved)}" fill="{svg.colour("paper")}" stroke="{svg.colour(sheet.fill)}" '
            f'stroke-width="1" data-mark="{sheet.name}-copy{k}"/>'
        )
    # so that what is behind does not show through the front
    paper = f'<path d="{_path(strips)}" fill="{svg.colour("paper")}" data-mark="{sheet.name}-paper"/>'
    return "".join([*marks, paper])


def _path(boxes: list[hatch.Box]) -> str:
    return "".join(
        f"M{svg.num(x)} {svg.num(y)}h{svg.num(width)}v{svg.num(height)}h-{svg.num(width)}z"
        for x, y, width, height in boxes
    )
