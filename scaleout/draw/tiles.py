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
    """A tile on the line y = 0, upwards, in CSS pixels. gone: the part of its width that is no more there."""

    name: str
    x: float
    width: float
    height: float
    gone: float
    title: str


def tile(one: Tile, base: float, fill: str, gone: str = "", away: bool = False) -> str:
    """A tile on a base line. gone: the colour of what is gone; away: it is elsewhere, striped."""
    left, top, wide = one.x + GAP, base - one.height, max(0.5, one.width - 2 * GAP)
    out = [
        svg.rect(left, top, wide, one.height, "paper", mark=f"bare {one.name}"),
        svg.rect(left, top, wide, one.height, fill, opacity=0.5, title=one.title, mark=f"tile {one.name}"),
    ]
    if gone:
        end = wide * one.gone
        out.append(svg.rect(left, top, end, one.height, "paper", mark=f"cover {one.name}"))
        if away:
            out.append(hatch.hatched(left, top, end, one.height, fill, f"away {one.name}"))
        else:
            out.append(
                svg.rect(left, top, end, one.height, gone, opacity=0.38, title=one.title, mark=f"gone {one.name}")
            )
    return "".join(out)


def name(one: Tile, base: float, top: float, words: str = "") -> str:
    """A tile's name: along it where it is wide enough, else upright; in it where it is high enough, else above. ""
    where neither fits below `top`."""
    words = words or one.name
    long, middle = svg.measure(words, svg.SMALLEST), one.x + one.width / 2
    above = base - one.height - INSET
    if long <= one.width - INSET:
        inside = one.height >= 18
        y = base - one.height / 2 + 4 if inside else above
        return _placed(words, middle, y, False, inside, one.name) if y > top + svg.SMALLEST else ""
    inside = one.height >= long + 2 * INSET
    start = base - INSET - 2 if inside else above
    if one.width < UPRIGHT or start - long < top:
        return ""
    return _placed(words, middle + 4, start, True, inside, one.name)


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
    under = " ".join(f"{svg.num(x)},{svg.num(y)}" for x, y in [*moved, (moved[-1][0], base - top), (0, base - top)])
    ground = f'<polygon points="{under}" fill="{svg.colour(stroke)}" fill-opacity="0.15"/>'
    wide, high = svg.num(max(0.0, until - left)), svg.num(base - top + 2)
    return (
        f'<svg x="{svg.num(left)}" y="{svg.num(top)}" width="{wide}" height="{high}" data-mark="so far">'
        f"{ground}{line(moved, stroke, 2.5)}</svg>"
    )
