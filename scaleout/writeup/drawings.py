"""A drawing in a notebook: for a wide column and for a phone, with its caption.

drawing(patterns.six, "**Six collectives on four ranks.** A square is what one rank holds.")
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from scaleout.words.markup import inline, plain

WIDE, NARROW = 680, 354  # CSS pixels: the column of code and figures, and a phone's
GROUND = "background: var(--paper, #fff)"  # ink without the book's palette is black: JupyterLab may be dark
# An editor that does not trust a notebook drops drawings, but not the words in them, and styles, but not `hidden`.
SHOWN = "<style>.drawing > .wide { display: block !important } .drawing > .live-asleep { display: none }</style>"
ASLEEP = '<p class="live-asleep"><em>Run this cell to see the picture.</em></p>'


@dataclass(frozen=True, repr=False)
class Drawing:
    """The same picture at both widths. Without the book's style sheet the wide one shows, once the cell is trusted."""

    wide: str
    narrow: str
    caption: str

    def _repr_html_(self) -> str:
        words = f"\n<figcaption>{inline(self.caption, quote=True)}</figcaption>" if self.caption else ""
        return (
            f'<figure class="drawing">{SHOWN}<div class="wide" style="{GROUND}" hidden="hidden">{self.wide}</div>\n'
            f'<div class="narrow" style="{GROUND}" hidden="hidden">{self.narrow}</div>\n{ASLEEP}{words}</figure>'
        )

    def __repr__(self) -> str:
        label = re.search(r'aria-label="([^"]*)"', self.wide)
        return "\n".join(filter(None, [label and label[1], plain(self.caption)]))


def drawing(picture: Callable[[float], str], caption: str = "") -> Drawing:
    """What `picture` draws at a width in CSS pixels, as SVG. caption: may hold **bold** and `code`."""
    return Drawing(picture(WIDE), picture(NARROW), caption)
