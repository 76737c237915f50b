"""The card of a chapter: its formulas, symbols and numbers to remember, from book/cards/STEM.yml.

The directive `chapter-card` makes the box in the page, `write` the page cards/STEM.html: one sheet of A4, printable,
with lines for the reader's own figures.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from html import escape
from pathlib import Path

import yaml
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util.docutils import SphinxDirective

from scaleout import views
from scaleout.draw import (
    attention_tiles,
    batches,
    cuts,
    format_strips,
    fsdp_life,
    mesh_cuts,
    moments,
    patterns,
    recompute_hills,
    stages,
    steps,
    svg,
    zero_stages,
)
from scaleout.page import describe
from scaleout.page.ladder import rungs
from scaleout.words import tables
from scaleout.words.markup import inline
from scaleout.writeup.drawings import NARROW

ROOT = Path(__file__).resolve().parents[2]
CARDS = ROOT / "book" / "cards"
PARTS = {"pictures", "sum", "formulas", "symbols", "numbers", "tables", "yours"}

Tex = Callable[[str], str]  # a formula as HTML


def stems() -> list[str]:
    """The chapters that have a card."""
    return sorted(path.stem for path in CARDS.glob("*.yml"))


def load(stem: str) -> dict:
    """A chapter's card. ValueError where there is none, or where it has a part that no card has."""
    if stem not in stems():
        raise ValueError(f"there is no card {stem!r}: use one of {', '.join(stems())}")
    card = yaml.safe_load((CARDS / f"{stem}.yml").read_text(encoding="utf-8"))
    if wrong := card.keys() - PARTS:
        raise ValueError(f"book/cards/{stem}.yml has {', '.join(sorted(wrong))}: a card has {', '.join(sorted(PARTS))}")
    return card


def mathjax(tex: str) -> str:
    """A formula for a page of the book, where MathJax sets it as it sets the others."""
    return f'<span class="math notranslate nohighlight">\\({escape(tex)}\\)</span>'


def displayed(tex: str) -> str:
    """`mathjax`, with fractions as large as on a line of their own."""
    return mathjax(rf"\displaystyle {tex}")


def mathml(tex: str) -> str:
    """A formula that the browser sets by itself: paper waits for no script."""
    return re.sub(r">\s+<", "><", tex2mathml(tex).strip()).replace("<math", '<math displaystyle="true"', 1)


def rich(words: str, tex: Tex) -> str:
    """Words with $formulas$, `code` and **strong**."""
    parts = re.split(r"\$([^$]+)\$", words)
    return "".join(tex(part) if i % 2 else inline(part) for i, part in enumerate(parts))


def _pairs(items: list[dict], tex: Tex) -> str:
    """Symbols or numbers with their meanings."""
    rows = (
        f"<dt>{tex(item['tex']) if 'tex' in item else escape(item['value'])}</dt><dd>{rich(item['words'], tex)}</dd>"
        for item in items
    )
    return f"<dl>{''.join(rows)}</dl>"


def _formulas(card: dict, tex: Tex) -> str:
    rows = (f"<div>{tex(formula['tex'])}<p>{rich(formula['words'], tex)}</p></div>" for formula in card["formulas"])
    return f'<div class="card-formulas">{"".join(rows)}</div>'


def _table(table: dict, tex: Tex) -> str:
    inside = tables.html(table.get("head", ()), table["rows"], lambda words: rich(words, tex))
    return f"<section><h2>{escape(table['title'])}</h2>{inside}</section>"


def _patterns() -> str:
    figures = (
        f"<div>{patterns.draw(key)}<b>{name}</b><small>{patterns.USES[key]}</small></div>"
        for key, name in patterns.NAMES.items()
    )
    return f'<h2>Six patterns, before and after</h2><div class="card-pictures">{"".join(figures)}</div>'


def _mesh() -> str:
    figures = (f"<div>{mesh_cuts.panel(name)}<b>{name.replace('x', '×')}</b></div>" for name in mesh_cuts.CUTS)
    head = "Eight GPUs, four layouts: blue splits the model, green the batch"
    return f'<h2>{head}</h2><div class="card-pictures card-four">{"".join(figures)}</div>'


def _picture(words: str, draw: Callable[[float], str], width: float = NARROW, paper: int = 72) -> str:
    """width: in CSS pixels, of the drawing; paper: its width in millimetres, large enough to read its words."""
    return f'<h2>{words}</h2><div class="card-picture" style="width: {paper}mm">{draw(width)}</div>'


def _view(stem: str, _: float) -> str:
    """The first picture of a view, as narrow as views draw."""
    return views.render(stem, {}, svg.NARROW)["svg"]


PICTURES: dict[str, Callable[[], str]] = {
    "patterns": _patterns,
    "cuts": partial(_picture, "A matrix multiplication on two ranks", cuts.product, 560.0, 102),
    "steps": partial(_picture, "One step, few tokens and many", steps.opening),
    "life": partial(_picture, "The life of a unit on four ranks", fsdp_life.six),
    "schedules": partial(_picture, "Four ranks, eight micro-batches", stages.split),
    "zero": partial(_picture, "Four GPUs, 16 bytes per parameter", zero_stages.opening),
    "mesh": _mesh,
    "precision": partial(_picture, "Five formats on one ruler", format_strips.strips),
    "memory": partial(_picture, "A step on few tokens, and on many", moments.small),
    "recompute": partial(_picture, "Memory of the blocks through a step", recompute_hills.hills),
    "bottlenecks": partial(_picture, "Where the time of a step goes", partial(_view, "bottlenecks")),
    "architecture": partial(
        _picture, "Who waits least: eight ranks, twenty steps", partial(_view, "architecture"), paper=70
    ),
    "attention": partial(_picture, "The scores of one head", attention_tiles.naive_beside_tiled),
    "budget": partial(_picture, "One budget, with one sample and with 64", partial(_view, "budget")),
    "batches": partial(_picture, "Strong scaling above weak: one row per GPU", batches.strong_beside_weak),
}
BROAD = {"cuts", "batches"}  # next to these there is space for a sentence, next to the others for the formulas


def title(stem: str) -> tuple[str, str]:
    """(number, title) of a rung."""
    return next((rung["number"], rung["title"]) for rung in rungs() if rung["stem"] == stem)


def box_html(stem: str, sheet: str) -> str:
    """The box in the page: formulas, symbols and numbers, and a link to the sheet."""
    card = load(stem)
    return (
        f'<div class="chapter-card" id="card-{stem}"><p class="card-title">{escape(title(stem)[1])} on a card '
        f'<a href="{escape(sheet)}">on one page, to print</a></p>{_formulas(card, displayed)}'
        f'<div class="card-columns"><div><p class="card-head">Symbols</p>{_pairs(card["symbols"], mathjax)}</div>'
        f'<div><p class="card-head">Numbers to remember</p>{_pairs(card["numbers"], mathjax)}</div></div></div>'
    )


SHEET = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: the card</title>
{meta}
<link rel="icon" href="../_static/favicon.svg">
<link rel="stylesheet" href="../_static/live/palette.css">
<link rel="stylesheet" href="../_static/card.css">
</head>
<body class="card-desk">
<nav><a href="{back}">Back to the chapter</a><span>Prints on one page of A4</span></nav>
<main class="card-sheet">
<header><h1>{title}</h1><span>Rung {number} of Copy, Split, Move, Recompute</span></header>
{body}
<footer><span>Prose and figures: CC BY 4.0</span><span>GB is 10<sup>9</sup> bytes, GiB is 2<sup>30</sup></span></footer>
</main>
</body>
</html>
"""


def sheet_html(stem: str) -> str:
    """The whole sheet, as a page of its own."""
    card, (number, name) = load(stem), title(stem)
    summary = f"<p>{rich(card['sum'], mathml)}</p>" if "sum" in card else ""
    seen = PICTURES[card["pictures"]]() if "pictures" in card else ""
    costs = f"<h2>What it costs</h2>{_formulas(card, mathml)}"
    if card.get("pictures") in BROAD:
        parts = [f'<section class="card-beside"><div>{seen}</div>{summary}</section>', f"<section>{costs}</section>"]
    elif 'class="card-picture"' in seen:
        parts = [f'<section class="card-beside"><div>{seen}{summary}</div><div>{costs}</div></section>']
    else:
        parts = [f"<section>{seen}{summary}</section>", f"<section>{costs}</section>"]
    parts += [
        f'<section class="card-columns"><div><h2>Symbols</h2>{_pairs(card["symbols"], mathml)}</div>'
        f"<div><h2>Numbers to remember</h2>{_pairs(card['numbers'], mathml)}</div></section>"
    ]
    parts += [_table(table, mathml) for table in card.get("tables", ())]
    if mine := card.get("yours"):
        lines = "".join(f"<span>{rich(line, mathml)}</span>" for line in mine["lines"])
        parts.append(f'<section class="card-yours"><h2>{escape(mine["title"])}</h2>{lines}</section>')
    href = f"../notebooks/{number}_{stem}.html#card-{stem}"
    tag = describe.meta(f"cards/{stem}")
    return SHEET.format(title=escape(name), meta=tag, number=number, back=href, body="\n".join(parts))


def write(folder: Path) -> None:
    """Every card as cards/STEM.html."""
    (folder / "cards").mkdir(exist_ok=True)
    for stem in stems():
        (folder / "cards" / f"{stem}.html").write_text(sheet_html(stem), encoding="utf-8")


class ChapterCard(SphinxDirective):
    """The card of a chapter in its page: `{chapter-card} collectives`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        stem = self.arguments[0]
        self.env.note_dependency(str(CARDS / f"{stem}.yml"))
        sheet = "../" * self.env.docname.count("/") + f"cards/{stem}.html"
        try:
            return [nodes.raw("", box_html(stem, sheet), format="html")]
        except ValueError as error:
            raise self.error(str(error)) from None
