"""Hatched areas, which show exposed communication, waiting time or memory above a limit without relying on colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise

from scaleout.draw import svg

Box = tuple[float, float, float, float]  # x, y, width, height

PITCH = 6  # from one stripe to the next, along the edge
PALE, VEIL = 0.22, 0.45  # opacity of the ground, and of what is laid over colours so that stripes are seen on them
WINDOW, TALLEST = 8, 420  # pitch of the stripes behind a window that can grow, and how high it may become


def box(x: float, y: float, width: float, height: float, fill: str = "accent", title: str = "", mark: str = "") -> str:
    """A rectangle with a pale ground, and stripes that rise to the right."""
    ground = svg.rect(x, y, width, height, fill, title=title, opacity=PALE, mark=mark)
    return ground + _stripes([(x, y, width, height)], fill)


def excess(x: float, y: float, width: float, height: float, mark: str = "over") -> str:
    """What of a surface is over a limit, or exposed: a veil, for stripes must be seen on every colour, and stripes."""
    veil = svg.rect(x, y, width, height, "paper", opacity=VEIL, mark=mark)
    return veil + _stripes([(x, y, width, height)], "accent")


def area(boxes: Iterable[Box], fill: str = "accent", title: str = "") -> str:
    """Rectangles as one mark."""
    boxes = list(boxes)
    if not boxes:
        return ""
    corners = [[svg.num(part) for part in corner] for corner in boxes]
    ground = "".join(f"M{x} {y}h{width}v{height}h-{width}z" for x, y, width, height in corners)
    return (
        f'<path d="{ground}" fill="{svg.colour(fill)}" fill-opacity="{PALE}"><title>{escape(title)}</title></path>'
        f"{_stripes(boxes, fill)}"
    )


def _stripes(boxes: Iterable[Box], fill: str) -> str:
    """Lines on which x + y is a multiple of PITCH, cut at each rectangle. They are drawn, for a pattern would need a
    name that no other picture of the page has."""
    strokes = []
    for x, y, width, height in boxes:
        for n in range(int((x + y) // PITCH) + 1, int((x + y + width + height) // PITCH) + 1):
            low, high = max(x, n * PITCH - y - height), min(x + width, n * PITCH - y)
            if high - low > 0.2:
                long = svg.num(high - low)
                strokes.append(f"M{svg.num(low)} {svg.num(n * PITCH - low)}l{long} -{long}")
    return f'<path d="{"".join(strokes)}" fill="none" stroke="{svg.colour(fill)}" stroke-width="1.6"/>'


def band(upper: Sequence[tuple[float, float]], lower: Sequence[float], fill: str) -> str:
    """Stripes between two edges: points (x, y) of the upper one, and where the lower one is at each."""
    ends_by_stripe: dict[int, list[float]] = {}  # by stripe: where it begins and ends
    for ((x0, u0), (x1, u1)), (l0, l1) in zip(pairwise(upper), pairwise(lower), strict=True):
        if x1 - x0 < 0.1 or max(l0 - u0, l1 - u1) < 0.3:
            continue
        rise, fall = (u1 - u0) / (x1 - x0), (l1 - l0) / (x1 - x0)
        for n in range(int((x0 + min(u0, u1)) // PITCH) + 1, int((x1 + max(l0, l1)) // PITCH) + 1):
            low, high = x0, x1
            # on the stripe y is n * PITCH - x: it is beneath the upper edge, and above the lower one
            for slope, gap in ((-1 - rise, n * PITCH - x0 - u0), (1 + fall, l0 - n * PITCH + x0)):
                if slope > 0:
                    low = max(low, x0 - gap / slope)
                elif slope < 0:
                    high = min(high, x0 - gap / slope)
                elif gap < 0:
                    high = low
            if high - low > 0.2:
                ends = ends_by_stripe.setdefault(n, [low, high])
                if low - ends[-1] > 0.05:
                    ends += [low, high]
                ends[-1] = high
    strokes = [
        f"M{low:.1f} {n * PITCH - low:.1f}l{high - low:.1f} {low - high:.1f}"  # many, and a tenth of a pixel will do
        for n, ends in ends_by_stripe.items()
        for low, high in zip(ends[::2], ends[1::2], strict=True)
    ]
    return (
        f'<path d="{"".join(strokes)}" fill="none" stroke="{svg.colour(fill)}" stroke-width="1.6"/>' if strokes else ""
    )


def window(box: Box, fill: str, marks: tuple[str, str], title: str = "") -> str:
    """A rectangle with a pale ground and stripes on it that can grow. marks: of both."""
    return svg.rect(*box, fill, opacity=PALE, title=title, mark=marks[0]) + hatched(*box, fill, marks[1])


def beyond(limit: float, end: float, y: float, height: float, margin: float = 4) -> str:
    """Over a bar that ends at `end`: a dashed line at the limit, and what is beyond it under a veil and stripes, which
    can grow. margin: of the line, above and below the bar."""
    excess = max(0.0, end - limit)
    return (
        svg.rect(limit, y, excess, height, "paper", opacity=VEIL, mark="veil")
        + hatched(limit, y, excess, height, "accent", "over")
        + svg.line(limit, y - margin, limit, y + height + margin, "accent", 2, "4 2", mark="limit")
    )


def hatched(x: float, y: float, width: float, height: float, fill: str, mark: str) -> str:
    """A rectangle of slanted lines: a window on a field of them, so that it can grow without their moving."""
    strokes = "".join(f"M{k} {TALLEST}l{TALLEST} {-TALLEST}" for k in range(WINDOW - TALLEST, int(width), WINDOW))
    return (
        f'<svg x="{svg.num(x)}" y="{svg.num(y)}" width="{svg.num(width)}" height="{svg.num(height)}" '
        f'data-mark="{mark}"><path d="{strokes}" fill="none" stroke="{svg.colour(fill)}" stroke-width="1.5" '
        'stroke-opacity="0.55"/></svg>'
    )
