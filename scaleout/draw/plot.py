"""Axes, curves and points of the book's live pictures, as SVG strings; `scaleout.draw.svg` has the marks below them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from scaleout.draw import labels, svg
from scaleout.words.amounts import clock, short

TICK = 15  # from a plane's lower edge to the baseline of what stands under it


@dataclass(frozen=True)
class Axis:
    """A range of data from `lo` to `hi`; with `log`, equal distances are equal ratios. ValueError if it is empty."""

    lo: float
    hi: float
    log: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lo) and math.isfinite(self.hi) and self.lo < self.hi):
            raise ValueError(f"an axis needs finite ends with lo < hi, not {self.lo!r} and {self.hi!r}")
        if self.log and self.lo <= 0:
            raise ValueError(f"a logarithmic axis starts above 0, not at {self.lo!r}")

    def part(self, value: float) -> float:
        """Where `value` lies: 0 at lo, 1 at hi, beyond them outside. On a log axis a value <= 0 is far below."""
        if not self.log:
            return (value - self.lo) / (self.hi - self.lo)
        if value <= 0:
            return -math.inf
        return math.log(value / self.lo) / math.log(self.hi / self.lo)

    def ticks(self) -> list[float]:
        """Round values to label: powers of ten on a log axis, steps of 1, 2 or 5 times one otherwise."""
        if self.log:
            return log_ticks(self.lo, self.hi)
        step = svg.ticks(self.hi - self.lo)[1]
        first = math.ceil(self.lo / step - 1e-9)
        return [i * step for i in range(first, int(self.hi / step + 1e-9) + 1)]


def ringed(x: float, y: float, title: str) -> str:
    """A point of the reader's own."""
    return svg.circle(x, y, 3.5, "key", title=title) + svg.circle(x, y, 7, stroke="key", thick=2)


def log_ticks(lo: float, hi: float, limit: int = 6) -> list[float]:
    """Powers of ten from lo to hi, thinned evenly to at most `limit`."""
    first, last = math.ceil(math.log10(lo) - 1e-9), math.floor(math.log10(hi) + 1e-9)
    stride = max(1, -(-(last - first + 1) // limit))
    return [10.0**k for k in range(first, last + 1, stride)]


@dataclass(frozen=True)
class Plane:
    """A rectangle of the figure with a horizontal axis `x` and a vertical axis `y`. Marks are clipped to it."""

    left: float
    top: float
    width: float
    height: float
    x: Axis
    y: Axis

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def at_x(self, value: float) -> float:
        """User units of a value on the horizontal axis, at most the plane's own edges."""
        return self.left + self.width * _clip(self.x.part(value))

    def at_y(self, value: float) -> float:
        """User units of a value on the vertical axis, at most the plane's own edges."""
        return self.bottom - self.height * _clip(self.y.part(value))

    def grid(
        self,
        x_label: str,
        y_label: str,
        x_ticks: Iterable[tuple[float, str]] | None = None,
        y_ticks: Iterable[tuple[float, str]] | None = None,
    ) -> str:
        """Grid lines, tick labels, and what the axes show: x_label below, y_label above, flush with the labels of y.

        Ticks are pairs (value, words); None: round values with plain numbers. Takes 20 units below the plane, 38 with
        an x_label, and 20 above it; the labels of y take `labels.room` left of it. A label of x that would stand
        beyond the plane on the right ends at its edge.
        """
        rows = _named(y_ticks, self.y)
        start = max(0.0, self.left - labels.room([words for _, words in rows]))
        marks = [svg.text(start, self.top - 9, y_label, fill="muted", size=svg.SMALL)]
        for value, words in _named(x_ticks, self.x):
            position = self.at_x(value)
            marks.append(svg.line(position, self.top, position, self.bottom))
            edge = position + svg.measure(words, svg.SMALL) / 2 > self.right + 4
            marks.append(
                svg.text(
                    self.right + 4 if edge else position,
                    self.bottom + TICK,
                    words,
                    anchor="end" if edge else "middle",
                    fill="muted",
                    size=svg.SMALL,
                )
            )
        for value, words in rows:
            position = self.at_y(value)
            marks += [
                svg.line(self.left, position, self.right, position),
                svg.text(self.left - 5, position + 4, words, anchor="end", fill="muted", size=svg.SMALL),
            ]
        if x_label:
            middle, position = self.left + self.width / 2, self.bottom + 2 * TICK + 3
            marks.append(svg.text(middle, position, x_label, anchor="middle", fill="muted", size=svg.SMALL))
        return "".join(marks)

    def curve(
        self,
        points: Iterable[tuple[float, float]],
        colour: str,
        width: float = 2,
        dash: str = "",
        title: str = "",
    ) -> str:
        """A line through (x, y) points, in order; points beyond the plane are not drawn."""
        shown = " ".join(f"{svg.num(x)},{svg.num(y)}" for x, y in self._inside(list(points)))
        inner = f"<title>{escape(title)}</title>" if title else ""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        return (
            f'<polyline points="{shown}" fill="none" stroke="{svg.colour(colour)}" stroke-width="{svg.num(width)}" '
            f'stroke-linejoin="round"{dashes}>{inner}</polyline>'
        )

    def dots(self, points: Iterable[tuple[float, float]], colour: str, radius: float = 3.5, title: str = "") -> str:
        """A disc at each (x, y) that lies inside the plane."""
        inner = f"<title>{escape(title)}</title>" if title else ""
        return "".join(
            f'<circle cx="{svg.num(self.at_x(x))}" cy="{svg.num(self.at_y(y))}" r="{svg.num(radius)}" '
            f'fill="{svg.colour(colour)}" stroke="{svg.colour("paper")}" stroke-width="1.5">{inner}</circle>'
            for x, y in points
            if 0 <= self.x.part(x) <= 1 and 0 <= self.y.part(y) <= 1
        )

    def own(self, x: float, y: float, title: str) -> str:
        """A point of the reader's own, ringed, on a disc, for what lies there may be dark; at the edge where it lies
        beyond the plane."""
        at_x, at_y = self.at_x(x), self.at_y(y)
        return svg.circle(at_x, at_y, 9, "paper") + ringed(at_x, at_y, title)

    def rule(self, value: float, colour: str = "accent", words: str = "") -> str:
        """A dashed vertical line at `value` of the horizontal axis, with words beside its upper end."""
        x = self.at_x(value)
        marks = svg.line(x, self.top, x, self.bottom, colour, 1.5, "5 4")
        if words:
            left = x < self.left + self.width * 0.6
            marks += svg.text(
                x + (6 if left else -6),
                self.top + 13,
                words,
                anchor="start" if left else "end",
                fill=colour,
                halo=True,
            )
        return marks

    def _inside(self, points: list[tuple[float, float]]) -> list[tuple[float, float]]:
        """User units of the part of a line that lies inside: a segment that leaves is cut at the edge."""
        parts = [(self.x.part(x), self.y.part(y)) for x, y in points]
        inside: list[tuple[float, float]] = []
        for a, b in itertools.pairwise(parts):
            for u, v in _cut(a, b):
                point = (self.left + self.width * u, self.bottom - self.height * v)
                if not inside or inside[-1] != point:
                    inside.append(point)
        return inside


def time_axis(x: float, y: float, width: float, seconds: float, grid_to: float) -> str:
    """A horizontal axis from 0 to `seconds` at height y, with grid lines up to `grid_to`, in the unit that people would
    use; about a label for each 100 pixels, 20 of them beneath y."""
    unit, unit_seconds = clock(seconds)
    marks = svg.ticks(seconds / unit_seconds, max(2, round(width / 100)))
    lines = []
    for value in marks:
        tick = x + width * value * unit_seconds / seconds
        words = short(value) + (f" {unit}" if value == marks[-1] else "")
        half = svg.measure(words, svg.SMALL) / 2
        anchor = "start" if tick - half < x else "end" if tick + half > x + width else "middle"
        lines += [
            svg.line(tick, y, tick, grid_to),
            svg.text(tick, y + TICK, words, anchor=anchor, fill="muted", size=svg.SMALL),
        ]
    return "".join(lines)


def _clip(part: float) -> float:
    return min(1.0, max(0.0, part))


def _named(ticks: Iterable[tuple[float, str]] | None, axis: Axis) -> list[tuple[float, str]]:
    return [(v, short(v)) for v in axis.ticks()] if ticks is None else list(ticks)


def _cut(a: tuple[float, float], b: tuple[float, float]) -> list[tuple[float, float]]:
    """The piece of the segment a-b within the unit square, as its two ends; empty where there is none.

    Liang and Barsky, A new concept and method for line clipping, ACM Transactions on Graphics 3 (1984).
    """
    if min(*a, *b) >= 0.0 and max(*a, *b) <= 1.0:
        return [a, b]
    if not all(math.isfinite(part) for part in (*a, *b)):
        return []
    start, end = 0.0, 1.0
    for origin, step in ((a[0], b[0] - a[0]), (a[1], b[1] - a[1])):
        for toward, room in ((-step, origin), (step, 1 - origin)):
            if toward == 0:
                if room < 0:
                    return []
            elif toward < 0:
                start = max(start, room / toward)
            else:
                end = min(end, room / toward)
    if start > end:
        return []
    return [(a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])) for t in (start, end)]
