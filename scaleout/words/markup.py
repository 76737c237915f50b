"""Simple Markdown as HTML. Everything else is text: HTML in it is shown as written."""

from __future__ import annotations

import re
from html import escape

_SPECIAL = re.compile(r"([\\`*_<>\[\]|$~])")


def bold(text: str, quote: bool = False) -> str:
    """Words as HTML, with **these** in bold. quote: quotation marks as entities, which stored captions have."""
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(text, quote))


def inline(text: str, quote: bool = False) -> str:
    """`code`, **strong** and *emphasis* of a line as HTML; code may stand in either. quote: as in `bold`."""
    codes = iter(re.findall(r"`([^`]+)`", text))
    words = re.sub(
        r"(?<![\w*])\*(\S(?:.*?\S)?)\*(?![\w*])", r"<em>\1</em>", bold(re.sub(r"`[^`]+`", "\0", text), quote)
    )
    return re.sub("\0", lambda _: f"<code>{escape(next(codes))}</code>", words)


def html(text: str) -> str:
    """Paragraphs, lists with "- ", fenced blocks, `code`, **strong**, *emphasis*."""
    parts = []
    for index, block in enumerate(re.split(r"^```\w*\n(.*?)^```[ ]*$", text, flags=re.S | re.M)):
        if index % 2:
            parts.append(typed(block.rstrip()))
        else:
            parts += [_block(part) for part in re.split(r"\n\s*\n", block.strip()) if part.strip()]
    return "\n".join(parts)


def typed(text: str) -> str:
    """Lines as typed, which the keyboard reaches: they may scroll sideways."""
    return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'


def _block(block: str) -> str:
    lines = block.splitlines()
    if all(line.lstrip().startswith("- ") for line in lines):
        return "<ul>" + "".join(f"<li>{inline(line.lstrip()[2:])}</li>" for line in lines) + "</ul>"
    return f"<p>{inline(' '.join(lines))}</p>"


def plain(text: str) -> str:
    """Words without their marks for **bold** and `code`."""
    return re.sub(r"\*\*|`", "", text)


def literal(words: str) -> str:
    """Words in which Markdown reads no mark: `_`, `*`, `|`, `$` and the like get a backslash."""
    return _SPECIAL.sub(r"\\\1", words)
