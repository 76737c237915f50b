"""Amounts of bytes for people, and scales for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

from scaleout.draw import svg

UNITS = {10**9: ("B", "kB", "MB", "GB", "TB", "PB"), 2**30: ("B", "KiB", "MiB", "GiB", "TiB", "PiB")}
GIGA = 3  # where GB and GiB stand among them
STEPS = (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10)  # ends of scales in a decade: a lever that moves little keeps one


def _thousand(giga: int) -> int:
    return 1000 if giga == 10**9 else 1024


def unit(size: float, giga: int) -> tuple[int, str]:
    """(bytes, name) of the unit in which so many bytes are from 1 to 1000. giga: 10**9 or 2**30."""
    power = next((k for k in range(5, 0, -1) if size >= 0.9995 * _thousand(giga) ** k), 0)
    return _thousand(giga) ** power, UNITS[giga][power]


def amount(size: float, giga: int) -> str:
    """Bytes with three digits: '27.0 GB', '786 MB'."""
    unit_bytes, name = unit(size, giga)
    return f"{svg.quantity(size / unit_bytes)} {name}"


def adding_up(sizes: Sequence[float], unit_bytes: float, places: int) -> list[float]:
    """The sizes in units of `unit_bytes`, rounded so that they add up to their rounded sum: the largest
    remainders go up."""
    steps = [size / unit_bytes * 10**places for size in sizes]
    floors = [int(step) for step in steps]
    order = sorted(range(len(steps)), key=lambda i: floors[i] - steps[i])
    for i in order[: round(sum(steps)) - sum(floors)]:
        floors[i] += 1
    return [part / 10**places for part in floors]


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
        power = next((k for k in range(GIGA, 5) if need <= 0.8 * _thousand(giga) ** (k + 1)), 5)
        size = _thousand(giga) ** power
        decade = 10.0 ** floor(log10(need / size))
        top = next(step * decade * size for step in STEPS if step * decade * size >= need)
        return cls(top, size, UNITS[giga][power])
