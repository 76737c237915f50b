"""The scale of an axis of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log10

from scaleout.words.amounts import UNITS

GIGA = 3  # where GB and GiB stand among them
STEPS = (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10)  # ends of scales in a decade: a lever that moves little keeps one


@dataclass(frozen=True)
class Scale:
    """Bytes from 0 to `top`; `size` bytes are one `unit` of the axis."""

    top: float
    size: int
    unit: str

    @classmethod
    def above(cls, largest: float, giga: int) -> Scale:
        """A scale with a round end that has room above `largest` bytes, in GB or what is above."""
        need = largest * 1.06
        kilo = 1000 if giga == 10**9 else 1024
        power = next((k for k in range(GIGA, 5) if need <= 0.8 * kilo ** (k + 1)), 5)
        size = kilo**power
        decade = 10.0 ** floor(log10(need / size))
        top = next(step * decade * size for step in STEPS if step * decade * size >= need)
        return cls(top, size, UNITS[giga][power])
