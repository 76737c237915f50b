"""Numbers in blocks that share a scale: MX (OCP Microscaling Formats v1.0), NVFP4, and FP8 with a scale per tensor.

A number is stored as element · scale (· scale of the tensor). Where the scale is a power of two (e8m0) two rules make
it from the largest |x| of the block:

    floor   2^(floor(log2 largest) - octave of the element's largest number): the specification's section 6.3. What then
            lies between the element's largest number and the next power of two is clipped.
    up      2^ceil(log2(largest / the element's largest number)): nothing is clipped (arXiv 2506.08027, appendix).

NVFP4 (arXiv 2509.25149): a scale in e4m3 for 16 numbers, rounded to the nearest, times an fp32 scale of the tensor that
brings the largest block to e4m3's largest number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scaleout.numerics.formats import FORMATS, Format
from scaleout.numerics.rounding import beyond, rounded
from scaleout.spec import checks

RULES = ("floor", "up")


@dataclass(frozen=True)
class Blocks:
    """How numbers share scales. size: numbers of a block, None for the whole tensor. scale: the format of the scales.
    tensor: there is an fp32 scale of the whole tensor too."""

    name: str
    element: Format
    size: int | None
    scale: Format
    tensor: bool = False

    def bits(self, count: int | None = None) -> float:
        """Bits that a number takes, its part of the scales included; the tensor's own scale over `count` numbers, or
        left out for a tensor without end."""
        if count is not None:
            checks.whole("count", count)
        shared = self.scale.bits / self.size if self.size else 0.0
        tensor_bits = (32 if self.tensor or not self.size else 0) / count if count else 0.0
        return self.element.bits + shared + tensor_bits


def _blocks(name: str, element: str, size: int | None, scale: str, tensor: bool = False) -> Blocks:
    return Blocks(name, FORMATS[element], size, FORMATS[scale], tensor)


BLOCKS = {
    b.name: b
    for b in (
        _blocks("mxfp8", "e4m3", 32, "e8m0"),
        _blocks("mxfp8-e5m2", "e5m2", 32, "e8m0"),
        _blocks("mxfp6", "e2m3", 32, "e8m0"),
        _blocks("mxfp6-e3m2", "e3m2", 32, "e8m0"),
        _blocks("mxfp4", "e2m1", 32, "e8m0"),
        _blocks("nvfp4", "e2m1", 16, "e4m3", tensor=True),
        _blocks("fp8-tensor", "e4m3", None, "fp32"),
        _blocks("fp8-tensor-e5m2", "e5m2", None, "fp32"),
    )
}


@dataclass(frozen=True)
class Quantized:
    """Numbers after quantization in blocks. scales: one a block, without that of the tensor. clipped: how many numbers
    were cut to the element's largest; flushed: how many were not zero before, and are now."""

    values: tuple[float, ...]
    scales: tuple[float, ...]
    tensor: float
    clipped: int
    flushed: int


def scale_of(largest: float, b: Blocks, rule: str = "floor", tensor: float = 1.0) -> float:
    """The scale of a block whose largest |x| is `largest`; a block of zeros has the least one. tensor: the scale of
    the tensor. The rule is for scales that are powers of two."""
    checks.one_of("rule", rule, RULES)
    checks.number("largest", largest, 0)
    checks.above_0("tensor", tensor)
    if b.scale.mantissa == 0:
        if not largest:
            return b.scale.smallest
        significand, octave = math.frexp(largest if rule == "floor" else largest / b.element.largest)
        exponent = octave - 1 - b.element.highest_octave if rule == "floor" else octave - (significand == 0.5)
        return math.ldexp(1.0, min(max(exponent, b.scale.lowest_octave), b.scale.highest_octave))
    least = b.scale.smallest_normal
    return rounded(min(max(largest / b.element.largest / tensor, least), b.scale.largest), b.scale)


def quantized(
    values: Sequence[float],
    b: Blocks,
    rule: str = "floor",
    largest: float = 0.0,
) -> Quantized:
    """Quantize numbers in blocks, and return them as floats; the last block may be shorter.

    largest: the largest |x| of the tensor, where the numbers are a part of it that may lack it. Raises ValueError for a
    number that fp32 cannot represent.
    """
    values, fp32 = list(values), FORMATS["fp32"]
    checks.one_of("rule", rule, RULES)
    if not all(abs(x) <= fp32.largest for x in [largest, *values]):
        raise ValueError("blocks hold finite numbers, of fp32 at most: look for what overflowed before")
    largest = max(map(abs, [largest, *values]))
    tensor = rounded(largest / b.element.largest / b.scale.largest, fp32) if b.tensor and largest else 1.0
    tensor = max(tensor, fp32.smallest_normal)
    size = b.size or max(len(values), 1)
    restored: list[float] = []
    scales, clipped = [], 0
    for start in range(0, len(values), size):
        block = values[start : start + size]
        scale = scale_of(max(map(abs, block)) if b.size else largest, b, rule, tensor)
        scales.append(scale)
        inside = [x / (scale * tensor) for x in block]
        clipped += sum(beyond(x, b.element) for x in inside)
        top = b.element.largest
        restored += [min(max(rounded(x, b.element), -top), top) * scale * tensor for x in inside]
    flushed = sum(1 for x, y in zip(values, restored, strict=True) if x and not y)
    return Quantized(tuple(restored), tuple(scales), tensor, clipped, flushed)


def relative_error(values: Sequence[float], wanted: Sequence[float]) -> float:
    """Root of the mean square of values - wanted, over that of wanted; 0 where all are zero."""
    error = math.fsum((x - y) ** 2 for x, y in zip(values, wanted, strict=True))
    size = math.fsum(y * y for y in wanted)
    return math.sqrt(error / size) if size else math.sqrt(error)
