"""Exercises of `precision` on where 16-bit formats end, and how fine they are in between."""

from __future__ import annotations

import math

from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.octaves import fate
from scaleout.numerics.recorded import GRADIENTS
from scaleout.numerics.rounding import rounded

FP16, BF16 = FORMATS["fp16"], FORMATS["bf16"]
ZERO = FP16.smallest / 2  # half of it and less becomes zero
MLP = GRADIENTS["last step"]["activations"]["block 3, MLP"]
HALVINGS = FP16.lowest_octave - round(math.log2(ZERO))
UNDERFLOWS, LOST = MLP.below(FP16.lowest_octave), fate(MLP, FP16).zero

REACH = Number(
    key="below-normal",
    level=1,
    minutes=2,
    title="Below the smallest normal number",
    prompt="fp16 has 5 bits of exponent and 10 of mantissa. Its smallest **normal** number is 2^-14, about 6.1e-5. "
    "A gradient of exactly that size is **halved** again and again, and each result is rounded to the nearest number "
    "of fp16. After how many halvings is it zero?",
    hints=(
        "Below 2^-14 numbers go on in equal steps. How long is a step, with 10 bits of mantissa?",
        "What is exactly half of the last step is a tie, and ties go to the even number: to zero.",
    ),
    solution="From 2^-14 down fp16 goes on in steps of 2^-14 · 2^-10 = 2^-24. Half a step, 2^-25, is as near to zero "
    "as to 2^-24, and ties go to zero. From 2^-14 to 2^-25 it is halved **11** times.\n\n"
    "On the way the number loses one bit for each halving: at 2^-20 it has 5 of its 11 left. That is coarse, and far "
    "from nothing. *fp16's smallest normal is 6.1e-05; anything below that flushes to zero in the backward pass* "
    "(engichang1467/Open-Rig3R, issue 35) is wrong by eleven octaves, which are those where gradients are. Of the "
    f"gradients that came back to block 3's MLP in the book's own run {UNDERFLOWS:.0%} lie below 2^-14, and {LOST:.1%} "
    "become zero in fp16. The paper on mixed precision draws the line where it is: *any value whose magnitude is "
    "smaller than 2^-24 becomes zero in FP16* (Micikevicius et al. 2018, section 3.1), rounding to the nearest aside.",
    value=HALVINGS,
    unit="steps",
    units=("steps",),
    dimension="steps",
    slips=(
        Slip("at-once", 1, "That would be zero below 2^-14. There the normal numbers end, and subnormal ones begin."),
        Slip("still-there", HALVINGS - 1, "After so many it is the smallest number of fp16, and still there."),
        Slip("below-half", HALVINGS + 1, "By then it has been zero before. What becomes of a tie?"),
        Slip("from-one", 25, "You counted from 1. The gradient begins below it."),
        Slip("normal-from-one", 14, "So many halvings lead from 1 to where the gradient begins."),
    ),
    right="One bit is lost at each, and the last at 2^-25: there fp16 is zero.",
)

THREE = (1.003, 100_000.0, 3e-9)


def relative_error(x: float, name: str) -> float:
    """How far the nearest number of a format is from x, relative to x; infinity where there is none."""
    return abs(rounded(x, FORMATS[name]) / x - 1)


FINER = Choice(
    key="which-is-nearer",
    level=1,
    minutes=2,
    title="Three numbers in two formats",
    prompt="Somebody asks for bf16: *It seems that bfloat16 is almost as good as float32 in precision, and about the "
    "same speed as float16* (nagadomi/nunif, issue 437). Round three numbers to bf16 and to fp16, each to the "
    "nearest:\n\n```\na normalized activation         1.003\na sum before a norm           100,000\na small gradient   "
    "              3e-9\n```\n\nWhich of the two formats comes nearer to each?",
    hints=(
        "From 1 to the next number it is 2^-7 in bf16 and 2^-10 in fp16.",
        "The largest number of fp16 is 65,504, and below 2^-25 = 3.0e-8 it has zero.",
    ),
    solution=f"```\n{'':10}{'bf16':>12}{'fp16':>12}\n"
    + "\n".join(
        f"{words:10}{rounded(x, BF16):>12.6g}{rounded(x, FP16):>12.6g}"
        for words, x in zip(("1.003", "100,000", "3e-9"), THREE, strict=True)
    )
    + "\n```\n\n"
    "**fp16 is finer, and bf16 reaches further.** With 7 bits of mantissa bf16 has 2 to 3 decimal digits and takes "
    "1.003 for 1; fp16 has 3 to 4. With 8 bits of exponent it has fp32's range, and nothing in a training leaves that. "
    "What fp16 is given beyond its ends is infinity or zero, and no number of digits helps there. So bf16 is what "
    "training takes *although* it is the coarser one. In the thread above the answer was: *In my experience, using "
    "bfloat16 for image regression problems significantly degrades the results.* Their numbers lie inside fp16's "
    "range, where its three more bits count.",
    options=(
        Option(
            "fp16-bf16-bf16",
            "fp16 the first; bf16 the second and the third",
            "Right: fp16 is finer between its ends, and bf16 has no ends that a training meets.",
            True,
        ),
        Option(
            "bf16-all",
            "bf16 all of them, as it has the larger exponent",
            "A larger exponent reaches further. How fine the steps are is the mantissa's: bf16 takes 1.003 for 1.",
        ),
        Option(
            "fp16-all",
            "fp16 all of them, as it has the longer mantissa",
            "A longer mantissa gives finer steps, between fp16's ends. Where are they, and what lies beyond?",
        ),
        Option(
            "fp16-fp16-bf16",
            "fp16 the first and the second; bf16 the third",
            "fp16's largest number is 65,504. 100,000 becomes infinity.",
        ),
        Option(
            "fp16-bf16-fp16",
            "fp16 the first and the third; bf16 the second",
            "3e-9 is below 2^-25, half of fp16's smallest number. It becomes zero.",
        ),
        Option(
            "bf16-bf16-fp16",
            "bf16 the first and the second; fp16 the third",
            "Near 1 bf16's steps are 0.008: the next number to 1.003 is 1. And 3e-9 is zero in fp16.",
        ),
    ),
)

EXERCISES = (REACH, FINER)
