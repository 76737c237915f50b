"""Float formats: bits of exponent and mantissa, codes that are not numbers, and the limits of each format.

A normal number is (1 + k / 2^mantissa) 2^octave with 0 <= k < 2^mantissa; below the lowest octave numbers go on in the
same steps to zero (subnormal numbers). Sources: IEEE 754 (fp16, fp32); OCP 8-bit Floating Point v1.0 (e4m3, e5m2); OCP
Microscaling Formats v1.0 (e3m2, e2m3, e2m1, e8m0); arXiv 2206.02915 (fnuz).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from scaleout.spec import checks

CODES = ("ieee", "nan", "zero", "all")


@dataclass(frozen=True)
class Format:
    """A float format. exponent, mantissa: bits; bias: what is taken from the exponent's field.

    codes: which are no numbers. "ieee": the highest exponent is infinity and NaN. "nan": all ones is NaN, and there is
    no infinity. "zero": -0 is NaN (fnuz). "all": every code is a number.
    signed: False for a format of scales, which has neither sign nor zero. saturates: a cast of what is too large gives
    the largest number, as torch casts; else infinity, or NaN where there is none.
    """

    name: str
    exponent: int
    mantissa: int
    bias: int
    codes: str = "ieee"
    saturates: bool = False
    signed: bool = True

    def __post_init__(self) -> None:
        checks.whole("exponent", self.exponent)
        checks.whole("mantissa", self.mantissa, 0)
        checks.one_of("codes", self.codes, CODES)
        if self.exponent > 8 or self.mantissa > 23 or abs(self.bias) > 128:
            raise ValueError(f"{self.name}: at most 8 bits of exponent, 23 of mantissa and a bias of 128")

    @property
    def bits(self) -> int:
        return self.signed + self.exponent + self.mantissa

    @property
    def digits(self) -> int:
        """Significant bits of a normal number, the leading one included."""
        return self.mantissa + 1

    @cached_property
    def lowest_octave(self) -> int:
        """Exponent of the smallest normal number."""
        return self.signed - self.bias

    @cached_property
    def highest_octave(self) -> int:
        """Exponent of the largest number."""
        reserved = self.codes == "ieee" or (self.codes == "nan" and not self.mantissa)
        return 2**self.exponent - 1 - reserved - self.bias

    @cached_property
    def largest(self) -> float:
        steps = 2**self.digits - 1 - (self.codes == "nan" and self.mantissa > 0)
        return math.ldexp(steps, self.highest_octave - self.mantissa)

    @cached_property
    def smallest_normal(self) -> float:
        return math.ldexp(1.0, self.lowest_octave)

    @cached_property
    def smallest(self) -> float:
        """The smallest number above zero."""
        return math.ldexp(1.0, self.lowest_octave - self.mantissa * self.signed)

    @property
    def epsilon(self) -> float:
        """From 1 to the next number: 2^-mantissa."""
        return math.ldexp(1.0, -self.mantissa)


FORMATS = {
    f.name: f
    for f in (
        Format("fp32", 8, 23, 127),
        Format("tf32", 8, 10, 127),
        Format("fp16", 5, 10, 15),
        Format("bf16", 8, 7, 127),
        Format("e5m2", 5, 2, 15),
        Format("e4m3", 4, 3, 7, "nan", saturates=True),
        Format("e5m2fnuz", 5, 2, 16, "zero"),
        Format("e4m3fnuz", 4, 3, 8, "zero"),
        Format("e3m2", 3, 2, 3, "all", saturates=True),
        Format("e2m3", 2, 3, 1, "all", saturates=True),
        Format("e2m1", 2, 1, 1, "all", saturates=True),
        Format("e8m0", 8, 0, 127, "nan", signed=False),
    )
}


def named(name: str) -> Format:
    """The format of this name. Raises ValueError that lists the names."""
    return checks.known("format", name, FORMATS)
