"""The exercise of `precision` on rounding to any float format."""

from __future__ import annotations

import math
from functools import partial

from scaleout.exercises.engine import Function, Mistake

_STUB = '''\
def round_to(x, exponent, mantissa):
    """The number of a float format that is nearest to x.

    exponent, mantissa: bits of each; the sign is not counted
    x is not above the format's largest number.
    """
    return ...
'''

_SOLUTION = """\
import math

def round_to(x, exponent, mantissa):
    lowest = 2 - 2 ** (exponent - 1)            # 1 - bias
    e = math.frexp(x)[1] - 1                    # floor(log2 |x|)
    step = 2.0 ** (max(e, lowest) - mantissa)
    return round(x / step) * step               # ties to even
"""


def _truncated(x: float) -> float:
    return float(math.trunc(x))


def _half_away(x: float) -> float:
    return math.copysign(math.floor(abs(x) + 0.5), x)


def _rounded(x, exponent, mantissa, rounding=round, low=0, subnormal=True):
    """x in the format; `rounding` rounds a number of steps, `low` moves the lowest binade, None takes it away."""
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
    prompt="Write `round_to(x, exponent, mantissa)`, the number of a float format that is nearest to x. If two are "
    "equally near, take the one whose last bit is 0. The format has a sign, `exponent` bits of exponent with IEEE's "
    "bias of 2^(exponent − 1) − 1, and `mantissa` bits after the leading one.\n\n"
    "- Between 2^e and 2^(e+1) its numbers are 2^(e − mantissa) apart.\n"
    "- The lowest normal e is 1 − bias. Below that, numbers continue down to zero **in the same steps**.\n\n"
    "`round_to(1.003, 8, 7)` is 1.0 and `round_to(0.3, 4, 3)` is 0.3125. No x here is above the largest number.",
    hints=(
        "`math.frexp(x)[1] - 1` is floor(log2 |x|), exactly, and -1 for 0.",
        "Python's `round` takes ties to the even number. Divide x by the step, round, and multiply again.",
        "How large is the step of a number below the lowest normal e?",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "These four lines are fp16 (5, 10), bf16 (8, 7), e4m3 and e5m2 inside their ranges. The upper ends differ: fp16 "
    "and e5m2 go to infinity; e4m3 ends at 448, with one NaN and no infinity; e2m1 ends at 6 and has neither. Ties to "
    "even matter: if every tie were rounded up, each would add half a step, always in the same direction.",
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
            partial(_rounded, rounding=_truncated),
            "You cut the rest off. The number above may be nearer.",
        ),
        Mistake(
            "ties-away",
            partial(_rounded, rounding=_half_away),
            "Ties go to the number whose last bit is 0. All of yours go away from zero.",
        ),
        Mistake(
            "flushed",
            partial(_rounded, subnormal=False),
            "You make everything below the lowest normal number zero. Numbers continue there, in the same steps.",
        ),
        Mistake(
            "endless",
            partial(_rounded, low=None),
            "Your numbers have no lower end: e must not fall below 1 − bias.",
        ),
        Mistake(
            "bias",
            partial(_rounded, low=-1),
            "Your lowest e is one too low. It is 1 − bias, because the exponent field 0 is reserved for subnormal "
            "numbers.",
        ),
        Mistake(
            "one-bit-more",
            lambda x, e, m: _rounded(x, e, m + 1),
            "Your steps are half as large as they should be: one bit too many, or an e that is one too low.",
        ),
        Mistake(
            "one-bit-fewer",
            lambda x, e, m: _rounded(x, e, m - 1),
            "Your steps are twice as large as they should be. Either you counted the leading one among the bits of the "
            "mantissa, or e is one too high (math.frexp gives a fraction from a half to one).",
        ),
    ),
    right="Four lines give every format in this chapter, inside its range.",
)

EXERCISES = (ROUND,)
