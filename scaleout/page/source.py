"""`{source}`: a function, a class or a file of the package, folded under the words that say what it is.

    :::{source} scaleout/parallel/ring.py::ring_all_reduce
    **The ring that the labs run.** It cuts a piece again, so that one is added while the next is on its way.
    :::

Without words the fold says "The version of the package".
"""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path
from textwrap import dedent

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
UNNAMED = "**The version of the package**"
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def excerpt(source: str, name: str) -> str:
    """The lines of a function or a class, `Class.method` too, with its decorators; all of them where `name` is "".

    KeyError where nothing of that name is defined.
    """
    if not name:
        return source.strip("\n")
    body: list[ast.stmt] = ast.parse(source).body
    for part in name.split("."):
        named = [node for node in body if isinstance(node, DEFINITIONS) and node.name == part]
        if not named:
            raise KeyError(part)
        definition = named[0]
        body = definition.body
    first = min(node.lineno for node in (definition, *definition.decorator_list))
    return dedent("\n".join(source.splitlines()[first - 1 : definition.end_lineno]))


class Source(SphinxDirective):
    """The directive."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        path, _, name = self.arguments[0].partition("::")
        file = ROOT / path
        if not (file.is_file() and file.resolve().is_relative_to(ROOT / "scaleout")):
            raise self.error(f"there is no file {path} in the package: write scaleout/ROOM/MODULE.py::NAME")
        self.env.note_dependency(str(file))
        try:
            text = excerpt(file.read_text(encoding="utf-8"), name)
        except (SyntaxError, UnicodeDecodeError) as unread:
            raise self.error(f"{path} is no Python that can be read: {unread}") from None
        except KeyError as missing:
            raise self.error(f"{path} defines no {missing.args[0]}: name a function or a class of it") from None
        code = nodes.literal_block(text, text, language="python")
        return [
            _html('<details class="fold"><summary>'),
            self.words(path, len(text.splitlines())),
            _html("</summary>"),
            code,
            _html("</details>"),
        ]

    def words(self, path: str, lines: int) -> nodes.inline:
        """What the code is, where it is, and how long."""
        words, messages = self.parse_inline(" ".join(self.content) or UNNAMED, lineno=self.lineno)
        place = _html(f' <span class="where"><code>{escape(path)}</code>, {lines} lines</span>')
        return nodes.inline("", "", *words, *messages, place)


def _html(text: str) -> nodes.raw:
    return nodes.raw("", text, format="html")


DIRECTIVES = {"source": Source}
