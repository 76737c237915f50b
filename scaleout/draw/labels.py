"""The space that labels need, texts cut to it, and keys that flow into it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaleout.draw import svg

ROW = 18  # from one row of keys to the next
DASHES = {"-": "5 2", ":": "2 2", "~": ""}
SWATCH, GAP = 10, 14  # of a key: its colour, and what is left free after it


def room(words: Iterable[str]) -> float:
    """CSS pixels that the labels of a vertical axis take left of it."""
    return 5 + max((svg.measure(word, svg.SMALL) for word in words), default=0.0)


def cut(words: str, width: float, size: float = svg.SMALL, bold: bool = False) -> str:
    """As much of the words as fits, with an ellipsis where some does not: for names that readers bring."""
    while words and svg.measure(words, size, bold) > width:
        words = words.rstrip("…")[:-1].rstrip() + "…"
    return words


def fitting(ways: Iterable[str], room: float, size: float = svg.SMALL, bold: bool = False) -> str:
    """The first of these words that fit so many CSS pixels; "" where none do."""
    return next((words for words in ways if svg.measure(words, size, bold) <= room), "")


def spread(wanted: Sequence[float], pitch: float, low: float, high: float) -> list[float]:
    """Heights for labels one beneath the other: as near as can be to those wanted, which rise, a pitch or more apart,
    between low and high where that many have room.

    >>> spread([50.0, 50.0, 90.0], 10.0, 0.0, 95.0)
    [45.0, 55.0, 90.0]
    """
    groups: list[tuple[float, int]] = []  # neighbours that touch: the sum of where their first would be, and how many
    for i, y in enumerate(wanted):
        groups.append((y - i * pitch, 1))
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] > groups[-1][0] / groups[-1][1]:
            total, count = groups.pop()
            groups[-1] = (groups[-1][0] + total, groups[-1][1] + count)
    firsts = [total / count for total, count in groups for _ in range(count)]
    last = high - (len(firsts) - 1) * pitch
    return [min(max(first, low), last) + i * pitch for i, first in enumerate(firsts)]


def keys(x: float, y: float, width: float, items: Sequence[tuple[str, str]], rows: int = 1) -> tuple[str, float]:
    """Pairs of colour and words in rows as full as they get, from (x, y) down: the marks, and the height they take,
    of at least so many rows.

    A colour of "" is words alone, muted; one that ends in "-" a dashed line, one in ":" a dotted
    one, one in "~" a line, one in "%" a pale square, one in "@" a ring, any other a square.
    """
    marks, left, row = [], x, y
    for fill, words in items:
        words = cut(words, width - SWATCH - 5)
        wide = (SWATCH + 5 if fill else 0) + svg.measure(words, svg.SMALL)
        if left > x and left + wide > x + width:
            left, row = x, row + ROW
        marks += [
            _swatch(left, row, fill),
            svg.text(
                left + (SWATCH + 5 if fill else 0), row + SWATCH, words, size=svg.SMALL, fill="ink" if fill else "muted"
            ),
        ]
        left += wide + GAP
    return "".join(marks), max(rows * ROW, row + ROW - y)


def _swatch(x: float, y: float, fill: str) -> str:
    if not fill:
        return ""
    if fill[-1] == "@":
        return svg.circle(x + SWATCH / 2, y + 1 + SWATCH / 2, 4, stroke=fill[:-1], thick=2)
    if fill[-1] in DASHES:
        return svg.line(x, y + SWATCH / 2 + 1, x + SWATCH + 2, y + SWATCH / 2 + 1, fill[:-1], 2.5, DASHES[fill[-1]])
    return svg.rect(x, y + 1, SWATCH, SWATCH, fill.rstrip("%"), opacity=0.55 if fill[-1] == "%" else 1.0)
