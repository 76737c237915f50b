"""The sections of a view below its sentence, as HTML: pictures at both widths, tables, texts, and lines to copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape

from scaleout.words import tables
from scaleout.words.markup import bold, typed


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


def _fold(name: str, text: str) -> str:
    """Lines to copy."""
    return f"<details><summary>{bold(name)}</summary>{typed(text)}</details>"


def _link(words: str, address: str) -> str:
    """What stands after the # joins it at the first touch (rest.js): a site's theme takes it for a selector, which a
    view's setting is not."""
    page, _, fragment = address.partition("#")
    data = f' data-fragment="{escape(fragment, quote=True)}"' if fragment else ""
    return f'<p><a href="{escape(page, quote=True)}"{data}>{bold(words)}</a></p>'


_BLOCKS: dict[str, Callable[..., str]] = {
    "words": _words,
    "pictures": _pictures,
    "table": partial(tables.html, cell=bold, named=True),
    "fold": _fold,
    "link": _link,
}
