"""The exercise of `precision` on rounding to any float format."""

from __future__ import annotations

import math

from scaleout.exercises.engine import Function, Mistake

_STUB = '''\
def round_to(x, exponent, mantissa):
    """x as the nearest number of a float format.

    exponent, mantissa: bits; the sign has one of its own
    x is not above the format's largest number.
    """
    return ...
'''

_SOLUTION = """\
import math

def round_to(x, exponent, mantissa):
    lowest = 2 - 2 ** (exponent - 1)            # 1 - bias
    octave = math.frexp(x)[1] - 1               # floor(log2 |x|)
    step = 2.0 ** (max(octave, lowest) - mantissa)
    return round(x / step) * step               # ties to even
"""


def _truncated(x: float) -> float:
    return float(math.trunc(x))


def _half_away(x: float) -> float:
    return math.copysign(math.floor(abs(x) + 0.5), x)


def _rounded(x, exponent, mantissa, rounding=round, low=0, subnormal=True):
    """x in the format; `to` rounds a number of steps, `low` moves the lowest octave, None takes it away."""
    lowest = -math.inf if low is None else 2 - 2 ** (exponent - 1) + low
    octave = math.frexp(x)[1] - 1
    if not subnormal and octave < lowest:
        return 0.0
    step = 2.0 ** (max(octave, lowest) - mantissa) if x else 1.0
    return rounding(x / step) * step


ROUND = Function(
    key="round-to",
    level=3,
    minutes=10,
    title="Round to any format",
    prompt="Write `round_to(x, exponent, mantissa)`: the number of a float format that is nearest to x; of two that "
    "are equally near, the one whose last bit is 0. The format has a sign, `exponent` bits of exponent with IEEE's "
    "bias of 2^(exponent − 1) − 1, and `mantissa` bits behind the leading one.\n\n"
    "- Between 2^e and 2^(e+1) its numbers are 2^(e − mantissa) apart.\n"
    "- The lowest normal octave is 1 − bias. Below it numbers go on **in that octave's steps** down to zero.\n\n"
    "`round_to(1.003, 8, 7)` is 1.0 and `round_to(0.3, 4, 3)` is 0.3125. No x here is above the largest number.",
    hints=(
        "`math.frexp(x)[1] - 1` is floor(log2 |x|), exactly, and -1 for 0.",
        "Python's `round` takes ties to the even number. Round x in steps.",
        "Which step has a number below the lowest normal octave?",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "Four lines are fp16 (5, 10), bf16 (8, 7), e4m3 and e5m2 between their ends. What is left are the upper ends, "
    "where formats differ: fp16 and e5m2 go to infinity, e4m3 has one NaN and no infinity and ends at 448, e2m1 has "
    "neither and ends at 6. And ties to even matter: always up would add half a step on average to whatever is added "
    "up.",
    function="round_to",
    stub=_STUB,
    reference=_rounded,
    cases=(
        (1.003, 8, 7),
        (0.3, 4, 3),
        (1.003, 5, 10),
        (-0.3, 4, 3),
        (0.0, 5, 10),
        (2.5, 4, 1),
        (3.5, 2, 1),
        (1.25, 2, 1),
        (2**-24 * 1.4, 5, 10),
        (2**-25 * 0.9, 5, 10),
        (-(2**-16), 5, 2),
        (2**-17, 5, 2),
        (3e-5, 5, 10),
        (3e-9, 8, 7),
        (100_000.0, 8, 7),
        (1.99, 5, 2),
        (-0.7, 2, 1),
        (0.0117, 4, 3),
        (0.004, 4, 3),
        (0.0009, 4, 3),
        (0.2, 2, 3),
        (-7.3, 3, 2),
        (1.0 + 2**-8, 8, 7),
        (1.0 + 3 * 2**-8, 8, 7),
        (-5.0, 4, 1),
        (0.99, 8, 7),
        (2**-14 * 0.99, 5, 10),
    ),
    mistakes=(
        Mistake(
            "cut-off",
            lambda *case: _rounded(*case, rounding=_truncated),
            "You cut the rest off. The nearest number may be the next one.",
        ),
        Mistake(
            "ties-away",
            lambda *case: _rounded(*case, rounding=_half_away),
            "Ties go to the number whose last bit is 0, yours all go away from zero.",
        ),
        Mistake(
            "flushed",
            lambda *case: _rounded(*case, subnormal=False),
            "What is below the lowest normal octave is zero with you. It goes on there, in that octave's steps.",
        ),
        Mistake(
            "endless",
            lambda *case: _rounded(*case, low=None),
            "Your numbers never end below: hold the octave at 1 − bias.",
        ),
        Mistake(
            "bias",
            lambda *case: _rounded(*case, low=-1),
            "Your lowest octave is one too low: it is 1 − bias, for the exponent's field of 0 is for subnormal "
            "numbers.",
        ),
        Mistake(
            "one-bit-more",
            lambda x, e, m: _rounded(x, e, m + 1),
            "Your steps are half as long: one bit too many, or an octave that is one too low.",
        ),
        Mistake(
            "one-bit-fewer",
            lambda x, e, m: _rounded(x, e, m - 1),
            "Your steps are twice as long: the leading one is not among the bits of the mantissa, or the octave is "
            "one too high (math.frexp gives a half to one).",
        ),
    ),
    right="Four lines, and every format of this chapter between its ends.",
)

EXERCISES = (ROUND,)
