"""Where things lie in the picture of the view `precision`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from scaleout.draw import svg
from scaleout.draw.ruler import Ruler
from scaleout.views.precision.setting import Setting


@dataclass(frozen=True)
class Places:
    """In CSS pixels: baselines of the title and of the ends of the format; top and foot of the histogram, the strip and
    the panel; top and height of the bar of shares; and the height of all. ruler: lo, hi, left, right;
    tick_octaves: octaves from one number of its axis to the next."""

    title: float
    ends: float
    bars: tuple[float, float]
    strip: tuple[float, float]
    panel: tuple[float, float]
    shares: tuple[float, float]
    height: float
    ruler: tuple[float, float, float, float]
    tick_octaves: int


PLACES = {
    svg.WIDE: Places(13, 31, (46, 172), (216, 326), (350, 406), (426, 9), 474, (-53, 26, 8, 592), 8),
    svg.NARROW: Places(12, 28, (40, 132), (172, 249), (268, 324), (342, 8), 388, (-48, 25, 4, 354), 12),
}  # fmt: skip
BITS = 11  # of the highest strip


@dataclass(frozen=True)
class Axes(svg.Sized):
    """A setting on a picture of this width."""

    setting: Setting
    width: int

    @cached_property
    def places(self) -> Places:
        return PLACES[self.width]

    @cached_property
    def ruler(self) -> Ruler:
        """Shorter where no loss scale moves anything."""
        lo, hi, left, right = self.places.ruler
        return Ruler(lo + 4, 2, left, right) if self.setting.shares else Ruler(lo, hi, left, right)

    @property
    def bit(self) -> float:
        """CSS pixels of a significant bit."""
        return (self.places.strip[1] - self.places.strip[0]) / BITS
