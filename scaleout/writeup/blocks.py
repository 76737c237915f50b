"""What a page is made of, and the two forms it takes: Markdown for a file, HTML for a notebook's output.

A notebook's Markdown output has no tables on the published page (its reader is plain CommonMark), HTML has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

from scaleout.draw import svg
from scaleout.words import tables
from scaleout.words.markup import literal, typed
from scaleout.writeup.tables import table

_STYLED = re.compile(r"var\(--[\w-]+, (#[0-9a-f]{6})\)")


@dataclass(frozen=True)
class Heading:
    """A heading; `depth` 0 is the page's own, 1 a section, 2 a part of one."""

    words: str
    depth: int = 1


@dataclass(frozen=True)
class Text:
    """A paragraph, after `lead` in bold where it has one."""

    words: str
    lead: str = ""


@dataclass(frozen=True)
class Note:
    """A paragraph set apart, with its first words in bold."""

    lead: str
    words: str


@dataclass(frozen=True)
class Items:
    """A list of one-line texts."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Code:
    """Lines as typed."""

    text: str


@dataclass(frozen=True)
class Table:
    """Columns of text: the first `left` of them set to the left, the others to the right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


@dataclass(frozen=True)
class Figure:
    """A picture as SVG text, with the name of the file it may be kept in (without its ending)."""

    svg: str
    name: str
    caption: str


Block = Heading | Text | Note | Items | Code | Table | Figure


# --- Markdown ----------------------------------------------------------------------------------------------


def markdown(blocks: list[Block], links: dict[str, str] | None = None) -> str:
    """The page as Markdown. links: figure name -> address of its file; a figure without one stands inline."""
    return "\n\n".join(_markdown(block, links or {}) for block in blocks) + "\n"


def _markdown(block: Block, links: dict[str, str]) -> str:
    match block:
        case Heading():
            return "#" * (1 + block.depth) + " " + literal(block.words)
        case Text():
            return (f"**{literal(block.lead)}** " if block.lead else "") + literal(block.words)
        case Note():
            return f"> **{literal(block.lead)}** {literal(block.words)}"
        case Items():
            return "\n".join(f"- {literal(item)}" for item in block.items)
        case Code():
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", block.text)), default=0))
            return f"{fence}sh\n{block.text}\n{fence}"
        case Table():
            head, *rows = ([literal(cell) for cell in row] for row in (block.header, *block.rows))
            return tables.markdown(head, rows, head[: block.left])
    if block.name in links:
        return f"![{literal(block.caption)}]({links[block.name]})\n\n{literal(block.caption)}"
    return _figure(block)


# --- HTML --------------------------------------------------------------------------------------------------


def html(blocks: list[Block], top: int = 3, folded: bool = False) -> str:
    """The page as one HTML element of class "writeup"; `top` is the level of its own heading (h3 in a chapter). folded:
    what follows its first section is folded."""
    sections = [index for index, block in enumerate(blocks) if isinstance(block, Heading) and block.depth == 1]
    end = sections[1] if folded and len(sections) > 1 else len(blocks)
    first, folded_html = ("\n".join(_html(block, top) for block in part) for part in (blocks[:end], blocks[end:]))
    fold = f"\n<details><summary>The rest of the page</summary>\n{folded_html}\n</details>" if folded_html else ""
    return f'<div class="writeup">\n{first}{fold}\n</div>'


def _html(block: Block, top: int) -> str:
    match block:
        case Heading():
            level = min(6, top + block.depth)
            return f"<h{level}>{escape(block.words)}</h{level}>"
        case Text():
            lead = f"<strong>{escape(block.lead)}</strong> " if block.lead else ""
            return f"<p>{lead}{escape(block.words)}</p>"
        case Note():
            return f"<blockquote><p><strong>{escape(block.lead)}</strong> {escape(block.words)}</p></blockquote>"
        case Items():
            return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in block.items) + "</ul>"
        case Code():
            return typed(block.text)
        case Table():
            return table(block.header, block.rows, left=block.left)._repr_html_()
    return _figure(block)


# --- figures -----------------------------------------------------------------------------------------------


def _figure(block: Figure) -> str:
    """One HTML block without an empty line, which Markdown passes through as it is."""
    return (
        f'<figure style="max-width:40rem;margin:1rem 0">\n{block.svg}\n'
        f"<figcaption>{escape(block.caption)}</figcaption>\n</figure>"
    )


def files(blocks: list[Block], page: str | Path) -> dict[str, str]:
    """{file name beside `page`: text of the SVG} of the page's figures, for viewers without a style sheet.

    Colours are the style sheet's fallbacks, on a white ground: a page in dark mode shows them readable.
    """
    return {name: standalone(block.svg) for block, name in named(blocks, page)}


def named(blocks: list[Block], page: str | Path) -> list[tuple[Figure, str]]:
    """Each figure of the page, with the name of its file beside the page."""
    return [(block, f"{Path(page).stem}-{block.name}.svg") for block in blocks if isinstance(block, Figure)]


def standalone(picture: str) -> str:
    """An SVG with fixed colours on white, as a file of its own."""
    ground = f'<rect width="100%" height="100%" fill="{svg.FALLBACK["paper"]}"/>'
    return _STYLED.sub(r"\1", picture.replace(">", ">" + ground, 1)) + "\n"
