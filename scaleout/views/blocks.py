"""What a view tells beneath its sentence, as HTML: pictures at both widths, tables, words, and lines to copy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape


def bold(text: str) -> str:
    """Plain words as HTML, with **these** in bold."""
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(text, quote=False))


def html(section: dict) -> str:
    """What is inside one section: {"title", "blocks"} as a view's `beneath` gives them."""
    return f"<h2>{bold(section['title'])}</h2>" + "".join(
        _BLOCKS[kind](*content) for kind, *content in section["blocks"]
    )


def _words(text: str) -> str:
    return f"<p>{bold(text)}</p>"


def _pictures(wide: str, narrow: str) -> str:
    return "".join(
        f'<div class="live-figure live-{name}">{picture}</div>'
        for name, picture in (("wide", wide), ("narrow", narrow))
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first cell of a row names it. A head of "" stands above names."""
    top = "".join(f'<th scope="col">{bold(words)}</th>' if words else "<td></td>" for words in head)
    lines = (
        f'<tr><th scope="row">{bold(first)}</th>{"".join(f"<td>{bold(cell)}</td>" for cell in cells)}</tr>'
        for first, *cells in rows
    )
    above = f"<thead><tr>{top}</tr></thead>" if any(head) else ""
    return f"<table>{above}<tbody>{''.join(lines)}</tbody></table>"


def _fold(name: str, text: str) -> str:
    """Lines to copy; what may scroll sideways has to be reachable by keyboard."""
    inside = f'<pre tabindex="0"><code>{escape(text)}</code></pre>'
    return f"<details><summary>{bold(name)}</summary>{inside}</details>"


def _link(words: str, address: str) -> str:
    """What stands after the # joins it at the first touch (rest.js): a site's theme takes it for a selector, which a
    view's setting is not."""
    page, _, fragment = address.partition("#")
    data = f' data-fragment="{escape(fragment, quote=True)}"' if fragment else ""
    return f'<p><a href="{escape(page, quote=True)}"{data}>{bold(words)}</a></p>'


_BLOCKS: dict[str, Callable[..., str]] = {
    "words": _words,
    "pictures": _pictures,
    "table": _table,
    "fold": _fold,
    "link": _link,
}
