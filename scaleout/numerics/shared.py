"""The effect of shared scales on the numbers of a histogram, averaged over blocks that are drawn from it.

A block's scale follows its largest number, so a block lays its own window on the numbers. With F the distribution of
|x|, the largest of n is at most x with probability F(x)^n; a smaller number meets a window at x where the other n - 1
are at most x. Sums over both give what `blocks.quantized` finds on average, without drawing any. Two things are
assumed: that sizes are spread evenly over the logarithm within an octave, and that numbers of a block have nothing in
common, where those of a real tensor are alike and lose less.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from scaleout.numerics.blocks import Blocks, scale_of
from scaleout.numerics.formats import FORMATS, Format
from scaleout.numerics.octaves import Histogram
from scaleout.numerics.rounding import beyond, rounded

PARTS = 8  # of an octave: the resolution of sizes
RARE = 1e-7  # a window that so few numbers meet is left out
CHECKED = 8  # numbers of a part at which the largest of a block is rounded


@dataclass(frozen=True)
class Shared:
    """Shares of numbers that add up to 1: they become zero; keep fewer bits than the element has; keep all; are cut to
    the element's largest. error: root of the mean square of the errors, over that of the numbers."""

    zero: float
    few: float
    whole: float
    clipped: float
    error: float


class Spread:
    """Sizes of a histogram by part of an octave. first: the part of share[0]; below[i]: the share of all parts
    before it."""

    def __init__(self, h: Histogram) -> None:
        total, edge = sum(h.counts), math.log2(h.largest)
        self.first = h.first * PARTS
        self.share: list[float] = []
        for octave, n in h.items():
            inside = max(1, min(PARTS, round((edge - octave) * PARTS)))  # no number is above the largest
            self.share += [n / total / inside] * inside
        self.below = [0.0, *accumulate(self.share)]
        self.size = [2.0 ** ((self.first + i + 0.5) / PARTS) for i in range(len(self.share))]
        self.sum = self._sums(self.size)
        self.squares = self._sums([x * x for x in self.size])
        self._steps: dict[int, list[float]] = {}

    def _sums(self, values: Sequence[float]) -> list[float]:
        return [0.0, *accumulate(p * x for p, x in zip(self.share, values, strict=True))]

    def position(self, part: int) -> int:
        """The index of a part of the logarithm in the sums."""
        return min(max(part - self.first, 0), len(self.share))

    def steps(self, phase: int) -> list[float]:
        """Sums of 4^octave of x / 2^(phase / PARTS)."""
        if phase not in self._steps:
            start = self.first - phase
            self._steps[phase] = self._sums([4.0 ** ((start + i) // PARTS) for i in range(len(self.share))])
        return self._steps[phase]

    def quantile(self, share: float) -> float:
        """log2 of the size that this share of the numbers lies below."""
        i = min(max(bisect_left(self.below, share), 1), len(self.share))
        inside = (share - self.below[i - 1]) / self.share[i - 1] if self.share[i - 1] else 0.0
        return (self.first + i - 1 + inside) / PARTS

    def share_below(self, size: float) -> float:
        """The share of the numbers below this log2 of a size."""
        i = min(max(math.floor(size * PARTS) - self.first, 0), len(self.share) - 1)
        return self.below[i] + self.share[i] * min(1.0, max(0.0, size * PARTS - self.first - i))


@lru_cache(maxsize=64)
def spread(h: Histogram) -> Spread:
    """The Spread of a histogram. Raises ValueError for one of zeros alone."""
    if not sum(h.counts):
        raise ValueError("a histogram of zeros alone has no sizes")
    return Spread(h)


def tensor_scale(h: Histogram, b: Blocks) -> float:
    """The fp32 scale of the whole tensor, where there is one beside those of the blocks."""
    return rounded(h.largest / b.element.largest / b.scale.largest, FORMATS["fp32"]) if b.tensor else 1.0


def windows(h: Histogram, b: Blocks, rule: str, count: int) -> list[tuple[float, float]]:
    """(log2 of the largest number, scale with that of the tensor) of so many blocks, one for each equal part of all
    that can be drawn, ascending."""
    sizes, tensor, pairs = spread(h), tensor_scale(h, b), []
    for i in range(count):
        top = sizes.quantile(((i + 0.5) / count) ** (1 / b.size)) if b.size else math.log2(h.largest)
        top = min(top, math.log2(h.largest))
        pairs.append((top, scale_of(2.0**top if b.size else h.largest, b, rule, tensor) * tensor))
    return pairs


@lru_cache(maxsize=256)
def shared(h: Histogram, b: Blocks, rule: str = "floor") -> Shared:
    """What becomes of the numbers of a histogram in blocks."""
    sizes, tensor, n = spread(h), tensor_scale(h, b), (b.size or 1) - 1
    last, sums = len(sizes.share), [0.0] * 5
    if not b.size:
        scale = scale_of(h.largest, b, rule)
        _add(sums, 1.0, _smaller(sizes, b, scale, last))
    for k in range(last) if b.size else ():
        smaller_weight = sizes.below[k + 1] ** n - (sizes.below[k] ** n if n else 0.0)
        weight = sizes.share[k] * sizes.below[k + 1] ** n
        if weight < RARE and smaller_weight < RARE:
            continue
        _add(sums, smaller_weight, _smaller(sizes, b, scale_of(sizes.size[k], b, rule, tensor) * tensor, k))
        clipped, error_at_largest = _largest(_phase(sizes.first + k, tensor), b, rule, tensor)
        _add(sums, weight, (0.0, 0.0, clipped, error_at_largest * sizes.size[k] ** 2, 1.0))
    zero, fewer_bits, clipped, error, seen = sums
    all_bits = max(0.0, seen - zero - fewer_bits - clipped)
    return Shared(zero / seen, fewer_bits / seen, all_bits / seen, clipped / seen, math.sqrt(error / sizes.squares[-1]))


def _add(sums: list[float], weight: float, terms: Sequence[float]) -> None:
    for i, term in enumerate(terms):
        sums[i] += weight * term


def _smaller(sizes: Spread, b: Blocks, scale: float, k: int) -> tuple[float, ...]:
    """Sums over the numbers in parts before k under a scale: of shares that become zero, keep fewer bits, are clipped;
    of squared errors; and of all shares. Rounding has a mean squared error of a twelfth of the square of a step."""
    f, place = b.element, round(math.log2(scale) * PARTS)
    top = f.largest * scale
    ends = [
        place + (f.lowest_octave - f.mantissa - 1) * PARTS,
        place + f.lowest_octave * PARTS,
        round(math.log2(top) * PARTS),
        round(math.log2(top + _half(f) * scale) * PARTS),
    ]
    zero, low, high, clip_start = (min(sizes.position(end), k) for end in ends)
    shares, phase = sizes.below, place % PARTS
    fixed = math.ldexp(scale, f.lowest_octave - f.mantissa) ** 2 / 12
    rising = 4.0 ** (phase / PARTS - f.mantissa) / 12
    steps = sizes.steps(phase)
    error = sizes.squares[zero] + fixed * (shares[low] - shares[zero]) + rising * (steps[high] - steps[low])
    error += sizes.squares[k] - sizes.squares[high] - 2 * top * (sizes.sum[k] - sizes.sum[high])
    error += top * top * (shares[k] - shares[high])
    return shares[zero], shares[low] - shares[zero], shares[k] - shares[clip_start], error, shares[k]


def _phase(part: int, tensor: float) -> int:
    """Where in its octave a part lies, counted from the scale of the tensor."""
    return (part - round(math.log2(tensor) * PARTS)) % PARTS


def _half(f: Format) -> float:
    """Half of the step at the format's largest number."""
    return math.ldexp(0.5, f.highest_octave - f.mantissa)


@lru_cache(maxsize=512)
def _largest(phase: int, b: Blocks, rule: str, tensor: float) -> tuple[float, float]:
    """(share clipped, mean squared relative error) of the largest number of a block, in a part of the
    logarithm: it is rounded, or cut. The same in every octave, but where the scales end, and few are."""
    clipped, error = 0, 0.0
    for i in range(CHECKED):
        part = phase + b.element.highest_octave * PARTS  # an octave in which scales are normal numbers
        x = 2.0 ** ((part + (i + 0.5) / CHECKED) / PARTS) * tensor
        scale = scale_of(x, b, rule, tensor) * tensor
        clipped += beyond(x / scale, b.element)
        error += (min(rounded(x / scale, b.element), b.element.largest) * scale / x - 1) ** 2
    return clipped / CHECKED, error / CHECKED
