"""A table for the reader of a notebook: HTML where that can be shown, aligned text elsewhere.

table([("link", "GB/s one way"), ...], rows, caption="**Measured** on two nodes.", best=(0, 1))
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import cast

from scaleout.words import tables
from scaleout.words.markup import inline, plain

Words = str | int | float | None
NOTHING = "–"


@dataclass(frozen=True, repr=False)
class Table:
    """Heads and cells are pairs: the words, and a small second line, for a unit or a remark, or ""."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[tuple[str, str], ...], ...]
    caption: str
    best: frozenset[tuple[int, int]]
    left: int | None = None

    def numbers(self) -> list[bool]:
        """Of each column, whether it is set to the right: those after the first `left`, else those of numbers only."""
        if self.left is not None:
            return [column >= self.left for column in range(len(self.columns))]
        return [all(_is_number(row[column][0]) for row in self.rows) for column in range(len(self.columns))]

    def _repr_html_(self) -> str:
        numbers = self.numbers()
        head = "".join(
            _cell("th", words, ["number"] * number) for words, number in zip(self.columns, numbers, strict=True)
        )
        lines = []
        for r, row in enumerate(self.rows):
            classes = [["number"] * number + ["best"] * ((r, i) in self.best) for i, number in enumerate(numbers)]
            cells = "".join(_cell("td", words, names) for words, names in zip(row, classes, strict=True))
            lines.append(f"<tr>{cells}</tr>")
        caption = f"<caption>{inline(self.caption, quote=True)}</caption>" if self.caption else ""
        label = escape(plain(self.caption).partition(". ")[0] or self.columns[0][0])
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table class="plain">{caption}\n'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody></table></div>"
        )

    def __repr__(self) -> str:
        head, *rows = ([" ".join(filter(None, words)) for words in row] for row in (self.columns, *self.rows))
        return "\n".join([tables.aligned(head, rows, self.numbers()), *filter(None, [plain(self.caption)])])


def table(
    columns: Sequence[str | tuple[str, str]],
    rows: Iterable[Sequence[Words | tuple[Words, str]]],
    caption: str = "",
    best: tuple[int, int] | Sequence[tuple[int, int]] = (),
    left: int | None = None,
) -> Table:
    """A table of `rows` under `columns`. A head or a cell that is a pair has its second part as a small line beneath.

    caption: may hold **bold** and `code`. best: (row, column), from 0, of the cell to mark, or several such.
    left: how many columns are words, where the cells do not tell. ValueError where a row is not as long as the head,
    or the best cell is outside.
    """
    heads = tuple(map(_pair, columns))
    cells = tuple(tuple(map(_pair, row)) for row in rows)
    wrong = next((index for index, row in enumerate(cells) if len(row) != len(heads)), None)
    if wrong is not None:
        raise ValueError(f"row {wrong} has {len(cells[wrong])} cells under {len(heads)} columns")
    chosen = frozenset(cast("Sequence[tuple[int, int]]", [best] if best and isinstance(best[0], int) else best))
    for row, column in chosen:
        if not (0 <= row < len(cells) and 0 <= column < len(heads)):
            raise ValueError(f"best is row {row}, column {column}: the table has {len(cells)} and {len(heads)}")
    return Table(heads, cells, caption, chosen, left)


def _pair(value: Words | tuple[Words, str]) -> tuple[str, str]:
    words, small = value if isinstance(value, tuple) else (value, "")
    if words is None:
        return NOTHING, small
    if isinstance(words, int | float) and not isinstance(words, bool):
        return f"{words:,.10g}" if isinstance(words, float) else f"{words:,}", small
    return str(words), small


def _is_number(words: str) -> bool:
    return bool(re.fullmatch(r"[<>≈~]? ?[-−+]?[\d.,_]*\d ?(%|×|e[-+]?\d+)?|–|", words))


def _cell(tag: str, words: tuple[str, str], classes: list[str]) -> str:
    """With its side said twice, in a class and in a style: a notebook has no style sheet of ours."""
    small = f'<small style="display:block">{escape(words[1])}</small>' if words[1] else ""
    names = f' class="{" ".join(classes)}"' if classes else ""
    side = "right" if "number" in classes else "left"
    text = f"<strong>{escape(words[0])}</strong>" if "best" in classes else escape(words[0])
    return f'<{tag}{names} style="text-align:{side}">{text}{small}</{tag}>'
