"""Rounding to a float format, and the bits of a number.

A number x lies between two neighbours of the format, one step apart; the step doubles from octave to octave. Of two
that are equally near the one is taken whose last bit is 0 (IEEE 754).
"""

from __future__ import annotations

import math

from scaleout.numerics.formats import Format

MOST_BITS = 16  # of a format whose numbers can be listed


def _octave(x: float) -> int:
    """floor(log2(|x|)), exactly."""
    return math.frexp(x)[1] - 1


def ulp(x: float, f: Format) -> float:
    """The step between neighbours of the format at x, however large x is."""
    return math.ldexp(1.0, (max(_octave(x), f.lowest_octave) if x else f.lowest_octave) - f.mantissa)


def endless(x: float, f: Format) -> float:
    """x to the nearest, in a format that had no largest number. x: finite."""
    step = max(math.frexp(x)[1] - 1, f.lowest_octave) - f.mantissa
    return math.ldexp(round(math.ldexp(x, -step)), step) or math.copysign(0.0, x)


def beyond(x: float, f: Format) -> bool:
    """Whether x, which is not NaN, is above the largest number of the format after rounding to the nearest."""
    return not abs(x) <= f.largest and (math.isinf(x) or abs(endless(x, f)) > f.largest)


def rounded(x: float, f: Format) -> float:
    """x to the nearest number of the format, ties to even; what is too large as the format says. x: any float.

    A format without zero gives its smallest number for 0. Raises ValueError for what is negative in one without sign.
    """
    if not math.isfinite(x):
        return _past(x, f)
    if not f.signed and x <= f.smallest:
        return _least(x, f)
    step = max(math.frexp(x)[1] - 1, f.lowest_octave) - f.mantissa
    y = math.ldexp(round(math.ldexp(x, -step)), step)
    if -f.largest <= y <= f.largest:
        return y or math.copysign(0.0, x)
    return _past(y, f)


def _past(x: float, f: Format) -> float:
    """What the format makes of NaN, infinity and what is above its largest number."""
    if math.isnan(x):
        if f.codes == "all":
            raise ValueError(f"{f.name} has no NaN: every code is a number")
        return x
    if f.saturates:
        return math.copysign(f.largest, x)
    return math.copysign(math.inf, x) if f.codes == "ieee" else math.nan


def _least(x: float, f: Format) -> float:
    if x < 0:
        raise ValueError(f"{f.name} has no sign: use a number from 0 up, not {x!r}")
    return f.smallest


# --- codes ------------------------------------------------------------------------------------------------------------


def encode(x: float, f: Format) -> int:
    """The code of `rounded(x, f)`: sign, exponent, mantissa, from the highest bit down."""
    y = rounded(x, f)
    sign = (f.signed and math.copysign(1.0, y) < 0) << (f.exponent + f.mantissa)
    ones = 2 ** (f.exponent + f.mantissa) - 1
    if math.isnan(y):
        return 2 ** (f.bits - 1) if f.codes == "zero" else ones
    if math.isinf(y):
        return sign + ones - (2**f.mantissa - 1)
    if not y:
        return 0 if f.codes == "zero" else sign
    octave = max(_octave(y), f.lowest_octave)
    steps = int(math.ldexp(abs(y), f.mantissa - octave))  # from 2^mantissa on for a normal number
    return sign + ((octave - f.lowest_octave) << f.mantissa) + steps - (not f.signed)


def decode(code: int, f: Format) -> float:
    """The number, infinity or NaN of a code. Raises ValueError for what is no code of the format."""
    if not 0 <= code < 2**f.bits:
        raise ValueError(f"{f.name} has codes from 0 to {2**f.bits - 1}, not {code!r}")
    negative = f.signed and code >> (f.bits - 1)
    magnitude = code & (2 ** (f.exponent + f.mantissa) - 1)
    field, mantissa = magnitude >> f.mantissa, magnitude & (2**f.mantissa - 1)
    if f.codes == "zero" and negative and not magnitude:
        return math.nan
    if field == 2**f.exponent - 1 and f.codes == "ieee":
        return math.nan if mantissa else math.copysign(math.inf, -1 if negative else 1)
    if magnitude == 2 ** (f.exponent + f.mantissa) - 1 and f.codes == "nan":
        return math.nan
    normal = field > 0 or not f.signed
    steps = mantissa + 2**f.mantissa * normal
    value = math.ldexp(steps, max(field - f.signed, 0) + f.lowest_octave - f.mantissa)
    return -value if negative else value


def numbers(f: Format) -> tuple[float, ...]:
    """All numbers of the format from 0 up, ascending. Raises ValueError for a format of more than 16 bits."""
    if f.bits > MOST_BITS:
        raise ValueError(f"{f.name} has {2**f.bits:,} codes: list a format of at most {MOST_BITS} bits")
    values = (decode(code, f) for code in range(2 ** (f.exponent + f.mantissa)))
    return tuple(x for x in values if math.isfinite(x))
