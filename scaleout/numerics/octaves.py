"""Histograms of sizes by octave, and what a format makes of them. Octave e holds 2^e <= |x| < 2^(e+1): there a float
format has the same number of values everywhere, and a loss scale of 2^k moves a histogram by k octaves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from scaleout.numerics.formats import Format
from scaleout.spec import checks

MAX_OCTAVES = 512  # octaves that a scale moves numbers, either way: what is left of fp32's is a float still


@dataclass(frozen=True)
class Histogram:
    """first: the octave of counts[0], and so on upward. zeros: numbers that are 0. largest: the largest |x|."""

    first: int
    counts: tuple[int, ...]
    zeros: int = 0
    largest: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.counts) + self.zeros

    def items(self) -> list[tuple[int, int]]:
        """[(octave, numbers in it)], ascending, zeros left out."""
        return [(self.first + i, n) for i, n in enumerate(self.counts)]

    def scaled(self, octaves: int) -> Histogram:
        """All numbers times 2^octaves, at most MAX_OCTAVES either way."""
        _check_octaves(octaves)
        return Histogram(self.first + octaves, self.counts, self.zeros, math.ldexp(self.largest, octaves))

    def below(self, octave: int) -> float:
        """Share of the numbers that are not zero in octaves below this one."""
        return sum(n for e, n in self.items() if e < octave) / max(sum(self.counts), 1)

    def middle(self) -> int:
        """The octave of the median of the numbers that are not zero: as many lie in octaves below it as above, or
        fewer. Raises ValueError where there is none."""
        seen, half = 0, sum(self.counts) / 2
        for octave, n in self.items():
            seen += n
            if n and seen >= half:
                return octave
        raise ValueError("a histogram of zeros alone has no middle")


def _check_octaves(octaves: int) -> None:
    checks.whole("octaves", octaves, -MAX_OCTAVES, limit=MAX_OCTAVES)


def of_counts(counts: dict[int, int], zeros: int, largest: float) -> Histogram:
    """A Histogram of {octave: numbers}."""
    octaves = [e for e, n in counts.items() if n]
    first, last = min(octaves, default=0), max(octaves, default=-1)
    return Histogram(first, tuple(counts.get(e, 0) for e in range(first, last + 1)), zeros, largest)


def histogram(values: Iterable[float]) -> Histogram:
    """The Histogram of finite numbers. Raises ValueError for one that is not."""
    counts: Counter[int] = Counter()
    zeros, largest = 0, 0.0
    for value in values:
        if not math.isfinite(value):
            raise ValueError(f"a histogram is of finite numbers, not {value!r}")
        if value:
            counts[math.frexp(value)[1] - 1] += 1
            largest = max(largest, abs(value))
        else:
            zeros += 1
    return of_counts(counts, zeros, largest)


def together(histograms: Iterable[Histogram]) -> Histogram:
    """The sum of several Histograms."""
    parts = list(histograms)
    counts: Counter[int] = Counter()
    for h in parts:
        counts.update(dict(h.items()))
    return of_counts(counts, sum(h.zeros for h in parts), max((h.largest for h in parts), default=0.0))


@dataclass(frozen=True)
class Fate:
    """What a format makes of numbers that are not zero, in shares that add up to 1: they become zero; keep fewer bits,
    for they are subnormal; keep all; are beyond the largest number."""

    zero: float
    few: float
    whole: float
    beyond: float


def kept_bits(octave: int, f: Format) -> int:
    """Significant bits that a number of this octave keeps: all above the lowest octave, one fewer for each octave below
    it, 0 where it becomes the smallest number or zero, or is too large."""
    if octave > f.highest_octave:
        return 0
    return max(0, min(f.digits, octave - (f.lowest_octave - f.mantissa) + 1))


def fate(h: Histogram, f: Format, octaves: int = 0) -> Fate:
    """What a format makes of a Histogram after a loss scale of 2^octaves.

    Exact but for the octave of the format's largest number, whose numbers are taken to be spread evenly over the
    logarithm: half of the smallest number, where zero begins, is the end of an octave.
    """
    checks.instance("h", h, Histogram)
    _check_octaves(octaves)
    count = max(sum(h.counts), 1)
    zero_below = f.lowest_octave - f.mantissa - 1
    edge = f.largest + math.ldexp(0.5, f.highest_octave - f.mantissa)
    share_beyond = max(0.0, f.highest_octave + 1 - math.log2(edge)) if math.ldexp(h.largest, octaves) > edge else 0.0
    numbers = {"zero": 0.0, "few": 0.0, "whole": 0.0, "beyond": 0.0}
    for unscaled, n in h.items():
        octave = unscaled + octaves
        part = share_beyond if octave == f.highest_octave else float(octave > f.highest_octave)
        kind = "zero" if octave < zero_below else "few" if octave < f.lowest_octave else "whole"
        numbers["beyond"] += part * n
        numbers[kind] += (1 - part) * n
    return Fate(**{kind: n / count for kind, n in numbers.items()})
