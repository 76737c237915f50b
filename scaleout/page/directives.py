"""The directives that a page of the book can use besides Markdown.

`view` and `tabs` are here; accuracy.py, tables.py, ladder.py, source.py, cards.py and projector.py have the others.
"""

from __future__ import annotations

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from scaleout.page import accuracy, cards, form, ladder, projector, source, tables


class View(SphinxDirective):
    """A live view on a page that is no notebook: `{view} front`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # what it stands on may have changed
        try:
            markup = form.html(form.view(self.arguments[0]))
        except ValueError as error:
            raise self.error(str(error)) from None
        return [nodes.container("", nodes.raw("", markup, format="html"), classes=["cell"])]


class Tabs(SphinxDirective):
    """Live views of which one is shown at a time, one a line: `planner: A cluster`."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        lines = [line.partition(":") for line in self.content]
        try:
            markup = form.tabs([(words.strip(), form.view(stem.strip())) for stem, _, words in lines])
        except ValueError as error:
            raise self.error(str(error)) from None
        return [nodes.container("", nodes.raw("", markup, format="html"), classes=["cell"])]


DIRECTIVES = {
    **tables.DIRECTIVES, **source.DIRECTIVES, **accuracy.DIRECTIVES, "ladder": ladder.Ladder, "view": View,
    "tabs": Tabs, "chapter-card": cards.ChapterCard, "for-the-room": projector.ForTheRoom,
}  # fmt: skip
