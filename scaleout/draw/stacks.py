"""Rows of bytes, each a bar by kind with its name and its sum: of one parameter, of an operation, of a whole run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaleout.draw import hatch, kinds, svg

PITCH, THICK = 26, 17  # CSS pixels, from row to row and of a bar
NAME = 17  # of a row's name, where it stands above its bar


@dataclass(frozen=True)
class Row:
    """A bar: its name, (kind, amount) from left to right, and words after it."""

    name: str
    parts: tuple[tuple[str, float], ...]
    words: str

    @property
    def total(self) -> float:
        return sum(size for _, size in self.parts)


def draw(
    width: float,
    rows: Sequence[Row],
    label: str,
    cell: float = 0,
    limit: tuple[str, float] | None = None,
    key: bool = True,
) -> str:
    """The rows on one scale. cell: amount that a white seam ends, so that it can be counted; limit: words, and the
    amount at which a line is drawn through all rows. ValueError for no rows."""
    if not rows:
        raise ValueError("there is no row to draw")
    wide = svg.broad(width)
    left = 12 + max(svg.measure(row.name, svg.FONT) for row in rows) if wide else 0
    words_width = 10 + max(svg.measure(row.words, svg.SMALL) for row in rows) if wide else 0
    largest = max([limit[1] if limit else 0, *(row.total for row in rows)])
    scale, y = (width - left - words_width - 2) / largest, 20.0 if limit else 2.0
    shapes, top = [], y
    for row in rows:
        y += 0 if wide else NAME
        shapes.append(_row(row, left, y, scale, cell, wide, width))
        if limit and row.total > limit[1]:
            limit_x = left + limit[1] * scale
            shapes.append(hatch.excess(limit_x, y, (row.total - limit[1]) * scale, THICK))
        y += PITCH
    if limit:
        limit_x = left + limit[1] * scale
        anchor = "end" if limit_x > width - svg.measure(limit[0], svg.SMALL) else "start"
        shapes += [
            svg.line(limit_x, top - 4, limit_x, y - PITCH + THICK + 4, "ink", 1.5, "5 3"),
            svg.text(limit_x, top - 8, limit[0], anchor=anchor, size=svg.SMALL, bold=True),
        ]
    for i, row in enumerate(rows if wide else ()):  # last: the line at the limit stops where they stand
        x, base = left + row.total * scale + 8, top + PITCH * i + 13
        shapes += [
            svg.rect(x - 3, base - 12, svg.measure(row.words, svg.SMALL) + 6, 16, "paper"),
            svg.text(x, base, row.words, size=svg.SMALL, fill="muted"),
        ]
    y += 2
    if key:
        marks, tall = kinds.keys((kind for row in rows for kind, size in row.parts if size), 0, y, width)
        shapes.append(marks)
        y += tall
    summary = "; ".join(f"{row.name}: {row.words}" for row in rows)
    return svg.figure(width, y, "".join(shapes), f"{label} {summary}.")


def _row(row: Row, left: float, y: float, scale: float, cell: float, wide: bool, width: float) -> str:
    marks, x = [], left
    if wide:
        marks.append(svg.text(0, y + 13, row.name))
    else:
        marks += [
            svg.text(0, y - 4, row.name),
            svg.text(width, y - 4, row.words, anchor="end", size=svg.SMALL, fill="muted"),
        ]
    for kind, size in row.parts:
        marks.append(svg.rect(x, y, size * scale, THICK, kinds.COLOURS[kind], opacity=kinds.PALE.get(kind, 1.0)))
        x += size * scale
    if cell:
        count = round(row.total / cell)
        marks += [
            svg.line(left + i * cell * scale, y, left + i * cell * scale, y + THICK, "paper", 1.5)
            for i in range(1, count)
        ]
    return "".join(marks)
