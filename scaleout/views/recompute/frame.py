"""Positions in the picture of the view `recompute`: bytes of a block, time per byte, and added step time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil

from scaleout.draw import svg
from scaleout.views.recompute.setting import Setting

MICRO = 1e12  # seconds a byte as microseconds a MB
BREAK, BELOW = 0.4, 0.74  # shares up to which the axis has BELOW of its height; the rest is for guesses


@dataclass(frozen=True)
class Places:
    """In CSS pixels: the words above, the left end, (top, height) of each part, and the whole height."""

    words: float
    left: float
    tiles: tuple[float, float]
    curve: tuple[float, float]
    memory: tuple[float, float]
    seconds: tuple[float, float]
    height: float


PLACES = {
    svg.WIDE: Places(13, 44, (38, 158), (236, 120), (408, 16), (458, 12), 478),
    svg.NARROW: Places(12, 34, (34, 114), (188, 92), (325, 14), (369, 10), 387),
}


@dataclass(frozen=True)
class Axes:
    """Positions of bytes, of times per byte and of added step time."""

    setting: Setting
    width: int

    @cached_property
    def places(self) -> Places:
        return PLACES[self.width]

    @cached_property
    def right(self) -> float:
        return self.width - (8 if self.width == svg.WIDE else 5)

    @cached_property
    def words(self) -> float:
        """Where words above a bar begin."""
        return self.places.left if self.width == svg.WIDE else 4.0

    @cached_property
    def bytes(self) -> int:
        return self.setting.case.block + self.setting.case.input

    def x(self, size: float) -> float:
        return self.places.left + (self.right - self.places.left) * size / self.bytes

    @cached_property
    def dearest(self) -> float:
        """Microseconds a MB at the upper end of the tiles' axis."""
        return 1.08 * MICRO * max(item.price for item in self.setting.tiles)

    def high(self, price: float) -> float:
        return self.places.tiles[1] * price * MICRO / self.dearest

    @cached_property
    def base(self) -> float:
        return sum(self.places.tiles)

    @cached_property
    def low(self) -> float:
        return sum(self.places.curve)

    @cached_property
    def scale(self) -> list[tuple[float, float]]:
        """Pairs of share and height above the curve's base line, between which both rise evenly."""
        high = self.places.curve[1]
        top = max(self.setting.other(dropped=100, way=way).share for way in ("rebuild", self.setting.way))
        if top <= BREAK:
            return [(0.0, 0.0), (BREAK, BELOW * high), (1.0, high)]
        step = svg.ticks(top)[1]
        return [(0.0, 0.0), (step * ceil(top / step), high)]

    def y(self, share: float) -> float:
        """Of a share of the step, at most the curve's upper edge."""
        for (low, low_y), (high, high_y) in pairwise(self.scale):
            if share <= high:
                return self.low - low_y - (high_y - low_y) * (share - low) / (high - low)
        return self.low - self.places.curve[1]
