"""Rows of texts as a table: Markdown, aligned text, text of fixed columns, and HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str]) -> str:
    """A Markdown table; the columns headed `left` are set to the left, the others (numbers) to the right."""
    rule = [":---" if name in left else "---:" for name in head]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def aligned(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[bool]) -> str:
    """Columns as wide as their words, two spaces apart, with a rule below the head; `right` are set to the right."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    forms = [f"{'>' if to_the_right else '<'}{width}" for to_the_right, width in zip(right, widths, strict=True)]
    texts = ["  ".join(map(format, line, forms)).rstrip() for line in lines]
    return "\n".join([texts[0], "  ".join("-" * width for width in widths), *texts[1:]])


def columns(rows: Iterable[Sequence[object]], first: int, rest: int) -> str:
    """Columns of so many characters, narrow enough for a phone: the first to the left, the rest to the right."""
    return "\n".join(f"{name:{first}}" + "".join(f"{cell!s:>{rest}}" for cell in cells) for name, *cells in rows)


def html(head: Sequence[str], rows: Iterable[Sequence[str]], cell: Callable[[str], str], named: bool = False) -> str:
    """A table as HTML, each cell through `cell`. named: the first cell of a row names it, and a head of "" is above
    these names."""
    top = "".join(f'<th scope="col">{cell(words)}</th>' if words else "<td></td>" for words in head)
    lines = "".join(f"<tr>{''.join(f'<td>{cell(words)}</td>' for words in row)}</tr>" for row in rows)
    if named:
        lines = re.sub("<tr><td>(.*?)</td>", r'<tr><th scope="row">\1</th>', lines)
    return f"<table>{f'<thead><tr>{top}</tr></thead>' * any(head)}<tbody>{lines}</tbody></table>"
