"""Figures that notebooks store (matplotlib's SVG), as the site shows them: inline, in the palette's variables.

A stored figure is the light one, on a ground of its own: it is read in JupyterLab and on GitHub too, whatever their
ground is. An <img> takes no variables of its page, so here the picture itself goes into the page, and each colour of
the palette becomes its variable: light, dark and on paper it is drawn in the colours of the live pictures.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from xml.etree import ElementTree

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from scaleout.draw import svg

NAMES = {code: name for name, code in svg.FALLBACK.items()}
SPACES = {"": "http://www.w3.org/2000/svg", "xlink": "http://www.w3.org/1999/xlink"}
HEX = re.compile(r"#[0-9a-f]{6}\b")
USED = re.compile(r'(?:href="|url\()#([^")]+)')
PX_PER_PT = 4 / 3


def strange(stored: str) -> set[str]:
    """The colours of a stored figure that are none of the palette's."""
    painted = re.findall(r'\b(?:style|fill|stroke)="([^"]*)"', stored)
    return set(HEX.findall(" ".join(painted))) - set(NAMES)


def inline(stored: str, label: str, key: str) -> str:
    """A stored figure as a part of a page. `label` says what it shows; names of its parts begin with `key`, which no
    other figure of the page has."""
    for prefix, space in SPACES.items():
        ElementTree.register_namespace(prefix, space)
    root = ElementTree.fromstring(stored)
    used = set(USED.findall(stored))
    for part in list(root.iter()):
        for child in list(part):
            if child.tag.endswith(("}metadata", "}style")):  # a style would be the whole page's
                part.remove(child)
        if part.get("id") not in used:
            part.attrib.pop("id", None)
        for paint in {"style", "fill", "stroke"} & set(part.attrib):
            part.set(paint, HEX.sub(_variable, part.attrib[paint]))
    for side in ("width", "height"):
        root.set(side, svg.num(float(root.attrib[side].removesuffix("pt")) * PX_PER_PT))
    body = ElementTree.tostring(root, encoding="unicode")
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{key}-", body)
    return body.replace("<svg ", f'<svg class="plot" role="img" aria-label="{escape(label)}" ', 1)


def _variable(match: re.Match) -> str:
    name = NAMES.get(match.group())
    return f"var(--{name})" if name else match.group()


class InlinePlots(SphinxTransform):
    """Put stored figures into the page, before Sphinx copies their files."""

    default_priority = 400

    def apply(self, **_options: object) -> None:
        stored = [
            node for node in self.document.findall(nodes.image) if node.parent.get("mime_type") == "image/svg+xml"
        ]
        for number, image in enumerate(stored, 1):
            path = Path(self.env.relfn2path(image["uri"])[1])
            html = inline(path.read_text(encoding="utf-8"), image.get("alt", ""), f"plot{number}")
            image.replace_self(nodes.raw("", html, format="html"))


def setup(app: Sphinx) -> None:
    """What the book's extension gets from here."""
    app.add_transform(InlinePlots)
