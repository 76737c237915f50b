"""Where the parts of the picture of the view `capstone` are: two panels side by side, at both widths."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.draw import labels, svg
from scaleout.draw.plot import Axis, Plane
from scaleout.views.capstone.levers import MOST_GPUS

X, Y = Axis(1, MOST_GPUS, log=True), Axis(0, 1)
PERCENT = [(0.0, "0%"), (0.5, "50%"), (1.0, "100%")]


@dataclass(frozen=True)
class Panel:
    """Strong or weak scaling, from x on."""

    x: float
    width: float


@dataclass(frozen=True)
class Frame(svg.Sized):
    """Heights and sizes. From the top: titles, what is dealt out, a key, areas, bars."""

    width: int

    small = svg.either(svg.SMALL, svg.SMALLEST)
    gap = svg.either(24, 14)
    tall = svg.either(168, 112)  # of the areas

    @property
    def panels(self) -> tuple[Panel, Panel]:
        wide = (self.width - self.gap) / 2
        return Panel(0, wide), Panel(wide + self.gap, wide)

    title = svg.either(12, 11)
    caption = svg.either(30, 26)
    deal = svg.either((38.0, 84.0), (33.0, 62.0))  # where it begins, and its height
    price = svg.either(38, 32)  # from a plane's lower edge to the words of the bars
    bars = svg.either(44, 34)  # height

    @property
    def key(self) -> float:
        """Where the key begins."""
        return sum(self.deal) + (12 if self.wide else 9)

    def plane(self, panel: Panel, used: float) -> Plane:
        """The areas, beneath a key that takes `used`."""
        left = panel.x + labels.room(["100%"])
        wide = panel.x + panel.width - left - 4
        return Plane(left, self.key + used + 6, wide, self.tall, X, Y)

    def height(self, used: float) -> float:
        """Of the whole picture."""
        return self.plane(self.panels[0], used).bottom + self.price + self.bars + 26
