"""Blocks that know the room they take, and arrangements of them: a picture says what stands below or beside what, and
where it lies follows. A line more moves what is under it by itself.

    body = column(key(items), tiles([panel(name) for name in names], width, columns=2, gap=14))
    return body.figure(width, label)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from scaleout.draw import svg

SWATCH = 12.0  # a square of a key
BASELINE = 14.0  # of words below the top of their block, and from one line of small words to the next
TITLE = 24.0  # a title with the space below it


@dataclass(frozen=True)
class Block:
    """Marks of a size in CSS pixels. at(x, y): the marks with their upper left corner there."""

    width: float
    height: float
    at: Callable[[float, float], str]

    def figure(self, width: float, label: str, foot: float = 0.0) -> str:
        """A whole picture of it. foot: space below."""
        return svg.figure(width, self.height + foot, self.at(0.0, 0.0), label)


def share(width: float, columns: int, gap: float) -> float:
    """The width of each of so many columns."""
    return (width - gap * (columns - 1)) / columns


def words(text: str, height: float = BASELINE, **look) -> Block:
    """A line of words, as `svg.text` writes it."""
    long = svg.measure(text, look.get("size", svg.FONT), look.get("bold", False))
    return Block(long, height, lambda x, y: svg.text(x, y + BASELINE, text, **look))


def space(height: float) -> Block:
    """Nothing, so high."""
    return Block(0.0, height, lambda x, y: "")


def title(text: str) -> Block:
    """The name of a panel."""
    return words(text, TITLE, bold=True)


def key(items: Iterable[tuple[str, str]]) -> Block:
    """Pairs of colour and words, beside each other."""
    return column(row([_swatch(fill, text) for fill, text in items], BASELINE), space(SWATCH + 4))


def _swatch(fill: str, text: str) -> Block:
    label, offset = words(text, size=svg.SMALLEST, fill="muted"), SWATCH + 4
    return Block(
        offset + label.width,
        BASELINE,
        lambda x, y: svg.rect(x, y + 4, SWATCH, SWATCH, fill) + label.at(x + offset, y),
    )


def column(*blocks: Block) -> Block:
    """Blocks below each other."""

    def at(x: float, y: float) -> str:
        marks = []
        for block in blocks:
            marks.append(block.at(x, y))
            y += block.height
        return "".join(marks)

    return Block(max(block.width for block in blocks), sum(block.height for block in blocks), at)


def row(blocks: Sequence[Block], gap: float) -> Block:
    """Blocks beside each other."""

    def at(x: float, y: float) -> str:
        marks = []
        for block in blocks:
            marks.append(block.at(x, y))
            x += block.width + gap
        return "".join(marks)

    width = sum(block.width for block in blocks) + gap * (len(blocks) - 1)
    return Block(width, max(block.height for block in blocks), at)


def tiles(blocks: Sequence[Block], width: float, columns: int, gap: float) -> Block:
    """Blocks in rows of so many, which share the width."""
    cells = [replace(block, width=share(width, columns, gap)) for block in blocks]
    return column(*(row(cells[i : i + columns], gap) for i in range(0, len(cells), columns)))


@dataclass(frozen=True)
class Lane:
    """A row of boxes along an axis: left end and top, CSS pixels per unit of the axis, height; inset: what is free
    above and below a box."""

    x: float
    y: float
    scale: float
    height: float
    inset: float = 1.0

    def box(self, start: float, end: float, fill: str, names: Sequence[str] = (), strong: float = 1.0) -> str:
        """From start to end on the axis, with the first of the names that fits."""
        x, long = self.x + start * self.scale, max((end - start) * self.scale - 1, 1.6)
        box = svg.rect(x, self.y + self.inset, long, self.height - 2 * self.inset, fill, opacity=strong)
        name = next((name for name in names if svg.measure(name, svg.SMALLEST) < long - 2), "")
        if not name:
            return box
        ink = "paper" if fill == "compute" and strong == 1 else "ink"
        base = self.y + self.height / 2 + 4
        return box + svg.text(x + (long + 1) / 2, base, name, anchor="middle", size=svg.SMALLEST, fill=ink)
