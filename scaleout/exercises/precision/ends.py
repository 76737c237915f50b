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
    prompt="fp16 has 5 bits of exponent and 10 of mantissa. Its smallest **normal** number is 2^-14, about 6.1e-5. A "
    "gradient of exactly that size is **halved** again and again, and each result is rounded to the nearest number in "
    "fp16. After how many halvings is it zero?",
    hints=(
        "Below 2^-14 the numbers continue in equal steps. How large is a step, with 10 bits of mantissa?",
        "Exactly half of the last step is a tie, and ties go to the even number: to zero.",
    ),
    solution="Below 2^-14, fp16 continues in steps of 2^-14 · 2^-10 = 2^-24. Half a step, 2^-25, is as near to zero as "
    "to 2^-24, and ties go to zero. It takes **11** halvings from 2^-14 to 2^-25.\n\n"
    "The number loses one bit with each halving: at 2^-20 it has 5 of its 11 left. That is coarse, and far from "
    "nothing. The statement *fp16's smallest normal is 6.1e-05; anything below that flushes to zero in the backward "
    "pass* (engichang1467/Open-Rig3R, issue 35) is off by eleven powers of two, and that is where gradients are: in "
    f"the book's own run, of the gradients that come back to block 3's MLP, {UNDERFLOWS:.0%} lie below 2^-14, and "
    f"{LOST:.1%} become zero in fp16. The paper on mixed precision has the right limit, apart from rounding to the "
    "nearest: *any value whose magnitude is smaller than 2^-24 becomes zero in FP16* (Micikevicius et al. 2018, "
    "section 3.1).",
    value=HALVINGS,
    unit="steps",
    units=("steps",),
    dimension="steps",
    slips=(
        Slip(
            "at-once",
            1,
            "You took everything below 2^-14 to be zero. Only the normal numbers end there, and subnormal ones follow.",
        ),
        Slip(
            "still-there",
            HALVINGS - 1,
            "After that many halvings it is the smallest number in fp16, so it is still there.",
        ),
        Slip("below-half", HALVINGS + 1, "It was zero one halving earlier. How is a tie rounded?"),
        Slip("from-one", 25, "You counted from 1. The gradient is smaller than 1 at the start."),
        Slip("normal-from-one", 14, "That is how many halvings lead from 1 to the size of the gradient."),
    ),
    right="Each halving loses one bit, and at 2^-25 the last one is lost.",
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
    short=True,
    prompt="Round each of these three numbers to the nearest one in bf16 and in fp16:\n\n"
    "```\na normalized activation         1.003\na sum before a norm           100,000\n"
    "a small gradient                 3e-9\n```\n\nWhich of the two formats comes nearer to each?",
    hints=(
        "The next number above 1 is 2^-7 away in bf16 and 2^-10 away in fp16.",
        "The largest number in fp16 is 65,504, and 2^-25 = 3.0e-8 or less becomes zero.",
    ),
    solution=f"```\n{'':10}{'bf16':>12}{'fp16':>12}\n"
    + "\n".join(
        f"{words:10}{rounded(x, BF16):>12.6g}{rounded(x, FP16):>12.6g}"
        for words, x in zip(("1.003", "100,000", "3e-9"), THREE, strict=True)
    )
    + "\n```\n\n"
    "**fp16 is more precise, and bf16 has the larger range.** With 7 bits of mantissa, bf16 has 2 to 3 decimal digits, "
    "and rounds 1.003 to 1; fp16 has 3 to 4. With 8 bits of exponent, bf16 has the range of fp32, and no number in "
    "training leaves that. fp16 turns a number beyond its range into infinity or zero, and more digits do not help "
    "there. So training uses bf16 *although* it is less precise. Somebody asked for bf16 since it seemed *almost as "
    "good as float32 in precision* (nagadomi/nunif, issue 437), and the answer was: *In my experience, using bfloat16 "
    "for image regression problems significantly degrades the results.* Those numbers lie inside the range of fp16, "
    "where its three extra bits count.",
    options=(
        Option(
            "fp16-bf16-bf16",
            "fp16 the first; bf16 the second and the third",
            "Right: fp16 is more precise inside its range, and no number in training leaves the range of bf16.",
            True,
        ),
        Option(
            "bf16-all",
            "bf16 all of them, as it has the larger exponent",
            "More exponent bits give a larger range. The mantissa decides the size of a step: bf16 rounds 1.003 to 1.",
        ),
        Option(
            "fp16-all",
            "fp16 all of them, as it has the longer mantissa",
            "A longer mantissa gives smaller steps inside the range. Where does fp16's range end, and what happens "
            "beyond?",
        ),
        Option(
            "fp16-fp16-bf16",
            "fp16 the first and the second; bf16 the third",
            "The largest number in fp16 is 65,504, so 100,000 becomes infinity.",
        ),
        Option(
            "fp16-bf16-fp16",
            "fp16 the first and the third; bf16 the second",
            "3e-9 is below 2^-25, which is half of fp16's smallest number, so it becomes zero.",
        ),
        Option(
            "bf16-bf16-fp16",
            "bf16 the first and the second; fp16 the third",
            "Near 1, the steps of bf16 are 0.008, so 1.003 rounds to 1. And 3e-9 is zero in fp16.",
        ),
    ),
)

EXERCISES = (REACH, FINER)
