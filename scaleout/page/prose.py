"""What a page adds to its words: under a chapter's title which rung it is, numbers that keep their units, and where a
name in a table may break."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

from scaleout.page.ladder import page, rungs

# A number and its unit are one word: no line ends between them.
UNIT = re.compile(
    r"(?<=\d) (?=(?:[kMGTP]i?B|[kMGTP]?bit|B|GB/s|bytes?|bits?|ns|µs|ms|s|min|h|GPUs?|ranks?|steps?|nodes?|%|FLOP)\b)"
)
# A name in code in a cell of a table, and where in it a line may end: unlike a zero-width space a <wbr> is not copied.
NAME = re.compile(r'(?<=<span class="pre">)[^<]{8,}(?=</span>)')
PARTS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[_.=(/-])(?=\w)")
CELL = re.compile(r"<td\b.*?</td>", re.S)
VERBATIM = (nodes.table, nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.raw, nodes.comment)


def keep_units(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """A no-break space between a number and its unit, in prose: tables have names of devices as they are sold."""
    for text in list(doctree.findall(nodes.Text)):
        # The code of a live cell is in its node's attributes too: there it has no ancestors.
        ancestors = [*_ancestors(text)]
        if UNIT.search(text) and ancestors and not any(isinstance(node, VERBATIM) for node in ancestors):
            text.parent.replace(text, nodes.Text(UNIT.sub("\N{NO-BREAK SPACE}", text)))


def _ancestors(node: nodes.Node):
    while node.parent is not None:
        node = node.parent
        yield node


def break_names(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """On a phone a long name in a table goes on in the next line (book/static/parts.css says so for narrow pages)."""

    def broken(cell: re.Match) -> str:
        return NAME.sub(lambda name: PARTS.sub("<wbr>", name.group()), cell.group())

    if "body" in context:
        context["body"] = CELL.sub(broken, context["body"])


def say_rung(app: Sphinx, doctree: nodes.document) -> None:
    """Beneath the title of a chapter: its number, what is scarce, and the levers it pulls."""
    if not app.env.docname.startswith("notebooks/"):
        return
    rung = next((row for row in rungs() if app.env.docname == page(row)), None)
    title = next(doctree.findall(nodes.title), None)
    if rung and title:
        levers = ", ".join(rung["levers"])
        words = f"Rung {rung['number']} \N{MIDDLE DOT} scarce: {rung['scarce']} \N{MIDDLE DOT} what it does: {levers}"
        position = title.parent.index(title) + 1
        title.parent.insert(position, nodes.paragraph("", words, classes=["rung-line"]))


def setup(app: Sphinx) -> None:
    """What the book's extension gets from here."""
    app.connect("doctree-read", say_rung)
    app.connect("doctree-resolved", keep_units)
    app.connect("html-page-context", break_names)
