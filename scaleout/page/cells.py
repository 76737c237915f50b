"""Code cells of a notebook on the site: those tagged `live` get a frame, in which the page's own Python can run them,
and those with a hidden part a fold beneath what they give.

In JupyterLab a live cell is a cell like any other. Its first line may be a comment: that is its name on the page.
"""

from __future__ import annotations

from html import escape

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import SphinxError

from scaleout.page import form, live

NAMELESS = "Python"
PRINTED = "What it prints"
DRAWN = "How this figure was drawn"


def name_and_code(source: str) -> tuple[str, str]:
    """The name of a cell, which is its first line where that is a comment, and its code."""
    first, _, body = source.partition("\n")
    return (first.lstrip("# "), body.strip("\n")) if first.startswith("#") else (NAMELESS, source)


def frame(name: str) -> tuple[str, str]:
    """The HTML before and after the code and the output of a live cell."""
    data = {"form": "cell", "name": name, "seconds": live.LEARNER_SECONDS, "stopped": live.CELL_STOPPED}
    return (
        f'<div class="live-widget" data-form="cell"><div class="live-bar"><span class="live-name">{escape(name)}</span>'
        "</div>",
        f"{form.carried(data)}</div>",
    )


def frame_live_cells(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put every cell tagged `live` into its frame."""
    for cell in list(doctree.findall(nodes.container)):
        if "tag_live" not in cell["classes"]:
            continue
        code = next(cell.findall(nodes.literal_block))
        for output in (part for part in cell.children[1:] for part in part.children):
            if not isinstance(output, nodes.literal_block):
                raise SphinxError(f"{docname}: a live cell shows text, for that is what a run of it on the page gives")
        name, code.rawsource = name_and_code(code.astext())
        code.children = [nodes.Text(code.rawsource)]
        start, end = (nodes.raw("", html, format="html") for html in frame(name))
        cell.children = [start, *cell.children, end]


def name_folds(app: Sphinx, doctree: nodes.document) -> None:
    """Give the fold of a hidden output, and of the code of a figure, words of its own; a cell's own stay. They are the
    same when it is open."""
    for cell in (node for node in doctree.findall(nodes.container) if node.get("hide_mode")):
        drawn = any(str(part.get("mime_type")).startswith("image/") for part in cell.findall(nodes.container))
        words = {"output": PRINTED, "input": DRAWN if drawn else None}.get(cell["hide_mode"])
        if words and cell["prompt_show"] == app.config.nb_code_prompt_show:
            cell["prompt_show"] = words
        cell["prompt_hide"] = cell["prompt_show"]


def fold_beneath(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """What a cell gives comes first, and the fold with its hidden code beneath."""
    for cell in doctree.findall(nodes.container):
        if cell.get("hide_mode") == "input":
            cell.children.reverse()


def setup(app: Sphinx) -> None:
    """What the book's extension gets from here."""
    app.connect("doctree-read", name_folds)
    app.connect("doctree-resolved", fold_beneath)
    app.connect("doctree-resolved", frame_live_cells)
