"""Exercises of `precision` on blocks that share a scale: bytes, what the specification's rule clips, and both rules."""

from __future__ import annotations

import math

from scaleout.exercises.engine import Function, Mistake, Number, Slip
from scaleout.numerics.blocks import BLOCKS
from scaleout.numerics.formats import FORMATS

WEIGHTS = 12 * 10**9
NVFP4, MXFP4 = BLOCKS["nvfp4"], BLOCKS["mxfp4"]


def _stored(bits: float) -> float:
    return WEIGHTS * bits / 8


BYTES = Number(
    key="four-bit-weights",
    level=1,
    minutes=2,
    title="Four bits and a scale",
    prompt="The weights of a model with **12 billion** parameters are stored in NVFP4: numbers of 4 bits, in blocks of "
    "**16**, each block with a scale in e4m3, which has **8 bits**. (The scale of a whole tensor is one number; leave "
    "it out, and all layers that stay in 16 bits.) How many bytes is that?",
    hints=("How many bits of scale does each number pay for?", "4 + 8/16 bits, and 8 bits are a byte."),
    solution=f"A number has 4 bits and a sixteenth of 8: **{NVFP4.bits():g} bits**. 12·10^9 × {NVFP4.bits():g} / 8 = "
    f"**{_stored(NVFP4.bits()) / 1e9:.2f} GB**. MXFP4, with 8 bits for 32 numbers, has {MXFP4.bits():g} bits, and "
    f"MXFP8 {BLOCKS['mxfp8'].bits():g}.\n\n"
    "A format of 4 bits is never 4 bits. What NVFP4 pays for twice as many scales is finer ones: in e4m3 they are not "
    "powers of two, so that the largest number of a block can be put where the format ends. In *training* weights have "
    "an fp32 copy all the same, so that this size is the one of what products read, and of what is shipped.",
    value=_stored(NVFP4.bits()),
    unit="GB",
    units=("GB", "GiB"),
    slips=(
        Slip("numbers-alone", _stored(4), "That is 4 bits a number. Each pays for its part of a scale, too."),
        Slip(
            "blocks-of-32", _stored(MXFP4.bits()), "That is MXFP4, with a scale for 32 numbers. NVFP4 has one for 16."
        ),
        Slip("scale-of-16", _stored(5), "You gave a scale 16 bits. e4m3 has 8."),
        Slip("scale-each", _stored(12), "You gave each number a scale of its own. 16 of them share one."),
        Slip("bits", _stored(NVFP4.bits() * 8), "That is a number of bits. 8 of them are a byte."),
    ),
    right="A block's scale is part of each of its numbers: 8/16 of a bit.",
)

TOP = FORMATS["e2m1"].largest
E4M3 = FORMATS["e4m3"]
CLIPPED = math.log2(2 ** (FORMATS["e2m1"].highest_octave + 1) / TOP)
CLIPS = Number(
    key="floor-clips",
    level=2,
    minutes=4,
    title="Whose largest is cut",
    prompt="In MX formats the scale of a block is a power of two. By the specification's rule the block's largest "
    "|number| is brought into the **octave** of the format's largest: for FP4 (e2m1, whose largest is **6**) between 4 "
    "and 8. What is above 6 then is cut to 6. Blocks' largest numbers are spread evenly over an octave, on a "
    "**logarithmic** scale. In which share of blocks is the largest above 6?",
    hints=("From 4 to 8 is one octave. Which part of it lies above 6, in octaves?", "log2(8 / 6)"),
    solution=f"log2(8/6) = **{CLIPPED:.1%}**. Up to a quarter is cut off, and always from the largest number of the "
    f"block, which matters most in a product. For e4m3, whose largest is 448 of 512, it is log2(512/448) = "
    f"{math.log2(512 / 448):.0%}, and up to an eighth.\n\n"
    "So round the scale **up**: the least power of two with which the largest fits. The block then lies an octave "
    "lower, which costs a bit at its lower end, and nothing is cut: *rounding up with saturation is the most "
    "beneficial for training accuracy*, says jax-ml/ml_dtypes' issue 298 of arXiv 2506.08027. There is a third way to "
    "do it, dividing by the largest and then rounding the scale's exponent to the nearest, which cuts half of all "
    "blocks: MLX did (ml-explore/mlx, pull request 4353: 243 of 512 blocks lost more than rounding could explain, the "
    "worst 29%, and none after the change).",
    value=CLIPPED,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip(
            "linear",
            (8 - TOP) / 4,
            "That is the part of a ruler from 4 to 8. On a logarithmic scale 6 is above the middle.",
        ),
        Slip("fits", 1 - CLIPPED, "That is the share of blocks whose largest number fits."),
        Slip(
            "e4m3",
            math.log2(512 / E4M3.largest),
            "That is e4m3's share, or of what is above 7 and would be rounded to 8. Here all above 6 counts.",
        ),
        Slip("from-the-largest", (8 - TOP) / 8, "That is the most that is cut off a number, not how often."),
        Slip("one-third", (8 - TOP) / TOP, "That is how far 8 lies above 6. How much of an octave is it?"),
    ),
    right="The rule of the specification looks at octaves alone, and the format's largest number is not at the end of "
    "one.",
)

_STUB = '''\
def exponents(values, size, top, up):
    """The scale's exponent for each block: a list of whole numbers.

    values: none of them zero; cut into blocks of size, of which
        the last may be shorter
    top: the largest number of the format, such as 448 or 6
    up: True: round up, so that nothing is cut; False: by octaves
    """
    return ...
'''

_SOLUTION = """\
from math import ceil, floor, log2

def exponents(values, size, top, up):
    found = []
    for start in range(0, len(values), size):
        largest = max(abs(x) for x in values[start:start + size])
        if up:
            found.append(ceil(log2(largest / top)))
        else:
            found.append(floor(log2(largest)) - floor(log2(top)))
    return found
"""


def _rounded_up(largest: float, top: float) -> int:
    return math.ceil(math.log2(largest / top))


def _octaves(largest: float, top: float) -> int:
    return math.floor(math.log2(largest)) - math.floor(math.log2(top))


def _exponents(values, size, top, round_up, statistic=max, rules=(_octaves, _rounded_up), last=True, sign=1):
    """Exponents by the two rules; `of` makes one number of a block's absolute values."""
    starts = range(0, len(values) if last else len(values) - size + 1, size)
    return [sign * rules[bool(round_up)](statistic(map(abs, values[start : start + size])), top) for start in starts]


def _not_absolute(values, size, top, round_up):
    return _exponents([x if x > 0 else 1e-3 for x in values], size, top, round_up)


def _one_for_all(values, size, top, round_up):
    largest = max(map(abs, values), default=1)
    return _exponents([largest for _ in values], size, top, round_up)


_MIXED = [0.3, -7.1, 2.0, 0.04, -0.9, 0.6, 130.0, -20.0, 5.5, -500.0, 60.0]
SCALES = Function(
    key="block-scales",
    level=3,
    minutes=10,
    title="Two rules for a block's scale",
    lists=True,
    index=True,
    prompt="In an MX format each block is divided by 2^e, one e for all of its numbers. Write "
    "`exponents(values, size, top, up)`, the list of e, a whole number for each block of `size` values in order. By "
    "the block's largest |value|:\n\n"
    "- `up` is False: floor(log2 largest) − floor(log2 top), the rule of the specification. Afterwards the largest "
    "lies in the octave of `top`.\n"
    "- `up` is True: the least e with which nothing is above `top`, that is ceil(log2(largest / top)).\n\n"
    "`exponents([3.0, -7.5, 0.2], 2, 6, False)` is `[0, -5]`, and with True `[1, -4]`.",
    hints=(
        "`range(0, len(values), size)` gives where blocks start, and a slice may go beyond the end.",
        "A block's largest is that of the absolute values.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "`log2` of floats is good enough for an exercise; kernels read the exponent's bits. The two rules differ by one "
    "where the largest lies above `top` in its octave, and there the first one cuts. With e8m0 the exponent is held "
    "between -127 and 127. A cast of a scale to e8m0 by a library may do a third thing, round to the nearest: "
    "*different libraries have adopted different rounding behaviors* (jax-ml/ml_dtypes, issue 298).",
    function="exponents",
    stub=_STUB,
    reference=_exponents,
    cases=(
        ([3.0, -7.5, 0.2], 2, 6, False),
        ([3.0, -7.5, 0.2], 2, 6, True),
        (_MIXED, 4, 448, False),
        (_MIXED, 4, 448, True),
        (_MIXED, 3, 6, False),
        (_MIXED, 3, 6, True),
        ([448.0, 1.0], 2, 448, True),
        ([449.0, 1.0], 2, 448, True),
        ([-511.0, 3.0], 2, 448, False),
        ([1e-5, -3e-5, 2e-6], 32, 448, True),
        ([1e-5, -3e-5, 2e-6], 32, 448, False),
        ([5.0, 0.7, 12.0, -100.0], 1, 6, True),
        ([5.0, 0.7, 12.0, -100.0], 1, 6, False),
        ([24.0, -6.5], 2, 6, True),
        ([], 4, 6, True),
    ),
    mistakes=(
        Mistake(
            "not-absolute",
            _not_absolute,
            "You took the largest value with its sign. A block's largest may be below zero.",
        ),
        Mistake(
            "rules-swapped",
            lambda *case: _exponents(*case, rules=(_rounded_up, _octaves)),
            "You have the two rules the other way round.",
        ),
        Mistake(
            "to-the-nearest",
            lambda *case: _exponents(*case, rules=(_octaves, lambda a, b: round(math.log2(a / b)))),
            "You rounded the exponent to the nearest: half of all blocks have a largest number above top.",
        ),
        Mistake(
            "floor-of-the-ratio",
            lambda *case: _exponents(*case, rules=(lambda a, b: math.floor(math.log2(a / b)), _rounded_up)),
            "Without up you took floor(log2(largest / top)). It is the octave of each that is compared.",
        ),
        Mistake(
            "up-by-octaves",
            lambda *case: _exponents(
                *case, rules=(_octaves, lambda a, b: math.ceil(math.log2(a)) - math.floor(math.log2(b)))
            ),
            "With up you rounded the largest up to a power of two, and top down: that is more room than is needed.",
        ),
        Mistake(
            "upside-down",
            lambda *case: _exponents(*case, sign=-1),
            "Your signs are turned: a block is divided by 2^e, so larger numbers have a larger e.",
        ),
        Mistake("one-for-all", _one_for_all, "Yours is one scale for all values. Each block has its own."),
        Mistake(
            "last-lost",
            lambda *case: _exponents(*case, last=False),
            "You left the last block out where it is shorter than the others.",
        ),
    ),
    right="Octaves alone, or what really fits: the second rule cuts nothing.",
)

EXERCISES = (BYTES, CLIPS, SCALES)
