"""How a GPU spends its time, by number of GPUs, in the view `capstone`: four stacked shares."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from math import fsum

from scaleout.draw import hatch, labels, svg
from scaleout.draw.plot import TICK, Plane
from scaleout.views.capstone.frame import PERCENT, Frame
from scaleout.views.capstone.speedup import Size

KINDS = (("compute", "work of one GPU alone", "work"), ("c5", "update, host, slowest GPU", "update, host"),
         ("accent", "communication", "communication"), ("muted", "idle: no sequence", "idle"))  # fmt: skip
TICKS = (1, 8, 64, 512, 4096)


def keys(frame: Frame, measured: Iterable[tuple[str, str]]) -> tuple[str, float]:
    """The four kinds and what was measured, and the height that they take."""
    items = [(fill, long if frame.wide else short) for fill, long, short in KINDS] + list(measured)
    size, row = frame.small, 17 if frame.wide else 15
    parts, x, y = [], 0.0, frame.key
    for n, (fill, words) in enumerate(items):
        words = labels.cut(words, frame.width - 16, size)
        swatch = 15 if fill else 0
        wide = swatch + svg.measure(words, size)
        if x and (x + wide > frame.width or n == len(KINDS)):
            x, y = 0.0, y + row
        parts += [_swatch(x, y, fill), svg.text(x + swatch, y + 9, words, size=size)]
        x += wide + 12
    return "".join(parts), max(y + row - frame.key, 2 * row)  # the room of what was measured, before it is told too


def _swatch(x: float, y: float, fill: str) -> str:
    """The mark that a key is of; none for "", words alone."""
    if not fill:
        return ""
    if fill in ("accent", "muted"):
        return hatch.box(x, y, 10, 10, fill)
    if fill == "measured":
        return square(x + 5, y + 5, "")
    if fill == "key":
        return svg.circle(x + 5, y + 5, 4, stroke=fill, thick=2)
    return svg.rect(x, y, 10, 10, fill)


def square(x: float, y: float, title: str) -> str:
    """A published point, as a square."""
    inner = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{svg.num(x - 3.5)}" y="{svg.num(y - 3.5)}" width="7" height="7" fill="{svg.colour("paper")}" '
        f'stroke="{svg.colour("ink")}" stroke-width="1.5">{inner}</rect>'
    )


def draw(plane: Plane, sizes: dict[int, Size], world: int, kind: str) -> str:
    """From below: works, copies, waits, idle. The chosen number is a corner of its own, so that corners keep their
    number while it moves."""
    counts = sorted([*sizes, world] if len(sizes) % 2 else sizes)
    xs = [plane.at_x(n) for n in counts]
    shares = [sizes[n].shares for n in counts]
    edges = [
        [plane.at_y(fsum(share[:k])) for share in shares] for k in range(4)
    ]  # beneath the first, second, third, fourth
    parts = [svg.rect(plane.left, plane.top, plane.width, plane.height, "paper", mark=f"{kind} ground")]
    top = [plane.top] * len(xs)
    for name, upper, lower in (("muted", top, edges[3]), ("accent", edges[3], edges[2])):
        if max(low - high for low, high in zip(lower, upper, strict=True)) > 0.3:
            parts += [
                _area(xs, upper, lower, name, hatch.PALE, f"{kind} {name}"),
                hatch.band([*zip(xs, upper, strict=True)], lower, name),
            ]
    parts += [
        _area(xs, edges[2], edges[1], "c5", 1.0, f"{kind} copies"),
        _area(xs, edges[1], edges[0], "compute", 1.0, f"{kind} works"),
    ]
    return "".join([*parts, _axes(plane, world)])


def empty(plane: Plane, world: int) -> str:
    """The axes, with nothing in them."""
    x = plane.at_x(world)
    return _axes(plane, world) + svg.line(x, plane.top, x, plane.bottom, "ink", 1.5, mark="now")


def chosen_line(plane: Plane, world: int, efficiency: float, title: str, kind: str) -> str:
    """A line at the chosen number, and a point where the work ends."""
    x = plane.at_x(world)
    return svg.line(x, plane.top - 3, x, plane.bottom, "ink", 1.5, mark=f"{kind} now") + svg.circle(
        x, plane.at_y(efficiency), 5, "paper", "ink", 2, title=title, mark=f"{kind} point"
    )


def _area(xs: list[float], upper: list[float], lower: list[float], fill: str, opacity: float, mark: str) -> str:
    upper_points = [f"{svg.num(x)},{svg.num(y)}" for x, y in zip(xs, upper, strict=True)]
    lower_points = [f"{svg.num(x)},{svg.num(y)}" for x, y in zip(reversed(xs), reversed(lower), strict=True)]
    faded = "" if opacity == 1.0 else f' fill-opacity="{opacity}"'
    points = " ".join(upper_points + lower_points)
    return f'<polygon points="{points}" fill="{svg.colour(fill)}"{faded} data-mark="{mark}"/>'


def _axes(plane: Plane, world: int) -> str:
    """A frame, percent at its left, and numbers of GPUs beneath: the chosen one, and those that leave it room."""
    parts = [svg.frame(plane.left, plane.top, plane.width, plane.height)]
    parts += [
        svg.text(plane.left - 5, plane.at_y(value) + 4, words, anchor="end", fill="muted", size=svg.SMALLEST)
        for value, words in PERCENT
    ]
    spans: list[tuple[float, float]] = []  # the chosen one first, then the ends
    for n in dict.fromkeys((world, TICKS[-1], *TICKS)):
        words, (low, high) = _tick(plane, n, n == world)
        if all(low > right + 3 or high < left - 3 for left, right in spans):
            parts.append(words)
            spans.append((low, high))
    return "".join(parts)


def _tick(plane: Plane, world: int, bold: bool) -> tuple[str, tuple[float, float]]:
    """A number of GPUs beneath the plane, and from where to where it goes."""
    words = f"{world:,}"
    half = svg.measure(words, svg.SMALLEST, bold) / 2
    middle = min(max(plane.at_x(world), plane.left - 8 + half), plane.right + 2 - half)
    return svg.text(
        middle,
        plane.bottom + TICK - 1,
        words,
        anchor="middle",
        bold=bold,
        size=svg.SMALLEST,
        fill="ink" if bold else "muted",
    ), (middle - half, middle + half)
