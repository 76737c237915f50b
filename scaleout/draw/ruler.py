"""A ruler in octaves, and what lies on it: bars of a histogram, the strip of a number format, powers of two."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaleout.draw import svg
from scaleout.numerics.formats import Format
from scaleout.numerics.octaves import kept_bits

RAISED = str.maketrans("0123456789-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁻")
STEPS = 10  # stairs that every strip is drawn with, so that one can become another
GAP = 1.2  # CSS pixels between bars
LEAST = 0.5  # and of the lowest


def power(n: int) -> str:
    """A power of two as words of HTML and of titles.

    >>> power(-25), power(16)
    ('2⁻²⁵', '2¹⁶')
    """
    return f"2{str(n).translate(RAISED)}"


def two(n: int) -> str:
    """A power of two as `raised` reads it.

    >>> two(-25)
    '2^−25'
    """
    return f"2^{n}".replace("-", "−")


def raised(text: str) -> str:
    """A text of `svg.text` with exponents after ^ above the line: raised letters of a face are too small to read."""

    def lift(match: re.Match) -> str:
        tail = f'<tspan dy="4">{match[2]}</tspan>' if match[2] else ""
        return f'<tspan dy="-4" font-size="{svg.SMALLEST}">{match[1]}</tspan>{tail}'

    return re.sub(r"\^([−\d]+)([^<^]*)", lift, text)


@dataclass(frozen=True)
class Ruler:
    """Octaves from lo to hi lie evenly from left to right, in CSS pixels."""

    lo: float
    hi: float
    left: float
    right: float

    @property
    def octave(self) -> float:
        """CSS pixels of one."""
        return (self.right - self.left) / (self.hi - self.lo)

    def at(self, size: float) -> float:
        """Of log2 of a size, wherever it lies."""
        return self.left + (size - self.lo) * self.octave

    def x(self, size: float) -> float:
        """The same, at most the ruler's own ends."""
        return min(max(self.at(size), self.left), self.right)

    def holds(self, size: float) -> bool:
        return self.lo <= size <= self.hi

    def axis(self, y: float, stride: int) -> str:
        """The line, with a power of two at each so many octaves, 16 CSS pixels beneath it."""
        marks = [svg.line(self.left, y + 0.5, self.right, y + 0.5, "muted")]
        for n in range(math.ceil(self.lo / stride) * stride, int(self.hi) + 1, stride):
            x, words = self.at(n), two(n)
            if self.left < x - svg.measure(words, svg.SMALL) / 2 and x + 12 < self.right:
                marks += [
                    svg.line(x, y, x, y + 4, "muted"),
                    raised(svg.text(x, y + 16, words, anchor="middle", fill="muted", size=svg.SMALL)),
                ]
        return "".join(marks)


def bars(
    ruler: Ruler,
    rows: Sequence[tuple[int, float, str]],
    shift: int,
    y: float,
    fills: Iterable[tuple[str, float]],
) -> str:
    """Bars of (octave, height in CSS pixels, title), standing on y, moved by so many octaves as one; those that then
    lie beyond the ruler are left out. fills: colour and strength of each."""
    marks = []
    for (octave, high, title), (fill, strong) in zip(rows, fills, strict=True):
        if high > 0 and ruler.holds(octave + shift) and ruler.holds(octave + shift + 1):
            high = max(LEAST, high)
            marks.append(
                svg.rect(
                    ruler.at(octave) + GAP / 2,
                    y - high,
                    ruler.octave - GAP,
                    high,
                    fill,
                    opacity=strong,
                    title=title,
                    mark=f"bar {octave}",
                )
            )
    return svg.group(shift * ruler.octave, 0, "".join(marks), "histogram")


def strip(ruler: Ruler, f: Format, y: float, bit: float) -> str:
    """The outline of a format as a path's `d`, standing on y: as wide as its range, `bit` CSS pixels high for each
    significant bit, with the stairs of its subnormal numbers."""
    start = f.lowest_octave - STEPS
    path = [f"M{svg.num(ruler.x(start))} {svg.num(y)}"]
    for octave in range(start, f.lowest_octave):
        high = y - kept_bits(octave, f) * bit
        path.append(f"L{svg.num(ruler.x(octave))} {svg.num(high)}L{svg.num(ruler.x(octave + 1))} {svg.num(high)}")
    top, end = svg.num(y - f.digits * bit), svg.num(ruler.x(math.log2(f.largest)))
    path.append(f"L{svg.num(ruler.x(f.lowest_octave))} {top}L{end} {top}L{end} {svg.num(y)}Z")
    return "".join(path)


def outline(d: str, fill: str, strong: float, stroke: str, width: float, dash: str = "", mark: str = "") -> str:
    """A path with a fill (none where strength is 0) and an edge."""
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    named = f' data-mark="{mark}"' if mark else ""
    inside = f'fill="{svg.colour(fill)}" fill-opacity="{svg.num(strong)}"' if strong else 'fill="none"'
    return (
        f'<path d="{d}" {inside} stroke="{svg.colour(stroke)}" stroke-width="{svg.num(width)}" '
        f'stroke-linejoin="round"{dashes}{named}/>'
    )


class Clear:
    """Words that keep clear of each other: each takes the first place that is free, or is left out."""

    def __init__(self, left: float, right: float, low: float) -> None:
        """All between left and right, and above `low`."""
        self.left, self.right, self.low = left, right, low
        self.boxes: list[tuple[float, float, float, float]] = []

    def take(self, left: float, right: float, y: float, size: float = svg.SMALLEST) -> bool:
        """Whether words with their baseline at y are free to stand there; then nothing else does."""
        box = (left, right, y - 0.8 * size, y + 0.24 * size)
        if left < self.left or right > self.right or box[3] > self.low:
            return False
        for a, b, top, low in self.boxes:
            if left < b + 3 and a < right + 3 and box[2] < low and top < box[3]:
                return False
        self.boxes.append(box)
        return True

    def words(
        self,
        words: str,
        places: Iterable[tuple[float, float, str]],
        *,
        fill: str = "ink",
        bold: bool = False,
        size: float = svg.SMALLEST,
        halo: bool = False,
        mark: str = "",
    ) -> str:
        """The words at the first free place (x, y, anchor)."""
        wide = svg.measure(words, size, bold=bold)
        for x, y, anchor in places:
            left = x - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
            if self.take(left, left + wide, y, size):
                return raised(
                    svg.text(x, y, words, anchor=anchor, fill=fill, bold=bold, size=size, halo=halo, mark=mark)
                )
        return ""
