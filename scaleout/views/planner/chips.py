"""Above the landscape of the view `planner`: the number of layouts of each kind, as buttons that highlight them."""

from __future__ import annotations

from scaleout.draw import svg
from scaleout.draw.field import shapes
from scaleout.draw.labels import fitting
from scaleout.views.planner import words
from scaleout.views.planner.setting import Setting

# For each kind: shape, color, whether it is filled, and its names, the longest first.
LOOKS = {
    "alike": ("disc", "ink", True, ("equal", "equal")),
    "link": ("triangle", "c4", True, ("communication", "comm.")),
    "bubble": ("diamond", "accent", False, ("bubble", "bubble")),
    "recompute": ("square", "compute", False, ("recomputation", "recomp.")),
    "rest": ("disc", "muted", False, ("kernels", "kernels")),
    "over": ("cross", "muted", False, ("does not fit", "no fit")),
}
HIGH = 27  # of a chip, as a finger finds it


def drawn(setting: Setting, width: int, top: float, show: str) -> str:
    """A title, and from `top` down the chips, in one row where the kinds' long names or short ones allow it. show: the
    kind that is lit, "" for all; a press on its chip lights all again."""
    total = len(setting.plans)
    titles = [f"{total:,} layouts of {words.head(setting)}", f"{total:,} layouts"]
    parts = [svg.text(4, 13, fitting(titles, width - 8, svg.FONT, True), bold=True)]
    kinds = {kind: count for kind, count in setting.counts.items() if count}
    long, short = ([f"{count:,} {LOOKS[kind][3][place]}" for kind, count in kinds.items()] for place in (0, 1))
    x, y = 4.0, top
    for kind, text in zip(kinds, long if sum(map(_long, long)) <= width - 2 else short, strict=True):
        if x > 4 and x + _long(text) > width + 2:
            x, y = 4.0, y + HIGH + 2
        parts.append(_chip(kind, text, x, y, show == kind))
        x += _long(text)
    return "".join(parts)


def _long(text: str) -> float:
    """From a chip's left edge to the next one's."""
    return 23 + svg.measure(text, svg.SMALLEST, True)


def _chip(kind: str, text: str, x: float, y: float, lit: bool) -> str:
    shape, fill, filled, _ = LOOKS[kind]
    box = x - 3, y - 8, _long(text) - 4, HIGH
    body = svg.rect(*box, "key", opacity=0.18) if lit else ""
    body += shapes([(x + 5, y + 5.5)], shape, fill, filled)
    body += svg.text(x + 12, y + 9.5, text, size=svg.SMALLEST, bold=lit, mark=f"count {kind}")
    label = f"{text}: {'show all layouts again' if lit else 'show only these layouts'}"
    return svg.press(body, box, "show", "all" if lit else kind, label, f"chip {kind}")
