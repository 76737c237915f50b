"""Tiles side by side, each as wide as what it keeps and as high as what a unit of that costs, with a part of it gone;
and a curve beneath that is drawn as far as a line has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from scaleout.draw import hatch, svg

INSET = 4  # CSS pixels between words and the ends of their tile
UPRIGHT = 13  # that a line of words on end takes
GAP = 0.75  # between a tile and its edge: neighbours stay apart


@dataclass(frozen=True)
class Tile:
    """A tile on the line y = 0, upwards, in CSS pixels. removed: the part of its width that is no more there."""

    name: str
    x: float
    width: float
    height: float
    removed: float
    title: str


def tile(tile: Tile, base: float, fill: str, cover: str = "", offloaded: bool = False) -> str:
    """A tile on a base line. cover: the colour over the part that is removed; offloaded: that part is striped."""
    left, top, wide = tile.x + GAP, base - tile.height, max(0.5, tile.width - 2 * GAP)
    marks = [
        svg.rect(left, top, wide, tile.height, "paper", mark=f"bare {tile.name}"),
        svg.rect(left, top, wide, tile.height, fill, opacity=0.5, title=tile.title, mark=f"tile {tile.name}"),
    ]
    if cover:
        end = wide * tile.removed
        marks.append(svg.rect(left, top, end, tile.height, "paper", mark=f"cover {tile.name}"))
        if offloaded:
            marks.append(hatch.hatched(left, top, end, tile.height, fill, f"away {tile.name}"))
        else:
            marks.append(
                svg.rect(left, top, end, tile.height, cover, opacity=0.38, title=tile.title, mark=f"gone {tile.name}")
            )
    return "".join(marks)


def name(tile: Tile, base: float, top: float, words: str = "") -> str:
    """A tile's name: along it where it is wide enough, else upright; in it where it is high enough, else above. ""
    where neither fits below `top`."""
    words = words or tile.name
    long, middle = svg.measure(words, svg.SMALLEST), tile.x + tile.width / 2
    above = base - tile.height - INSET
    if long <= tile.width - INSET:
        inside = tile.height >= 18
        y = base - tile.height / 2 + 4 if inside else above
        return _placed(words, middle, y, False, inside, tile.name) if y > top + svg.SMALLEST else ""
    inside = tile.height >= long + 2 * INSET
    start = base - INSET - 2 if inside else above
    if tile.width < UPRIGHT or start - long < top:
        return ""
    return _placed(words, middle + 4, start, True, inside, tile.name)


def _placed(words: str, x: float, y: float, upright: bool, inside: bool, mark: str) -> str:
    turn, anchor = (-90, "start") if upright else (0, "middle")
    clear = "" if inside else f' stroke="{svg.colour("paper")}" stroke-width="3" paint-order="stroke"'
    return (
        f'<text transform="translate({svg.num(x)} {svg.num(y)}) rotate({turn})" text-anchor="{anchor}" '
        f'fill="{svg.colour("ink")}" font-size="{svg.SMALLEST}"{clear} '
        f'data-mark="name {escape(mark, quote=True)}">{escape(words)}</text>'
    )


def line(points: Sequence[tuple[float, float]], stroke: str, width: float, dash: str = "", mark: str = "") -> str:
    """Through the points, in order."""
    shown = " ".join(f"{svg.num(x)},{svg.num(y)}" for x, y in points)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    named = f' data-mark="{mark}"' if mark else ""
    return (
        f'<polyline points="{shown}" fill="none" stroke="{svg.colour(stroke)}" stroke-width="{svg.num(width)}" '
        f'stroke-linejoin="round"{dashes}{named}/>'
    )


def so_far(points: Sequence[tuple[float, float]], base: float, top: float, until: float, stroke: str) -> str:
    """The same line, and what lies between it and a base line, from its first point as far as x = until: a window that
    grows."""
    left = points[0][0]
    moved = [(x - left, y - top) for x, y in points]
    outline = " ".join(f"{svg.num(x)},{svg.num(y)}" for x, y in [*moved, (moved[-1][0], base - top), (0, base - top)])
    ground = f'<polygon points="{outline}" fill="{svg.colour(stroke)}" fill-opacity="0.15"/>'
    wide, high = svg.num(max(0.0, until - left)), svg.num(base - top + 2)
    return (
        f'<svg x="{svg.num(left)}" y="{svg.num(top)}" width="{wide}" height="{high}" data-mark="so far">'
        f"{ground}{line(moved, stroke, 2.5)}</svg>"
    )
