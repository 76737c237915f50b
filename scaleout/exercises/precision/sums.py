"""The exercise of `precision` on additions in few bits: a weight that stops moving."""

from __future__ import annotations

from scaleout.exercises.engine import Number, Slip
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.rounding import rounded
from scaleout.numerics.sums import swamped_from

BF16, FP16 = FORMATS["bf16"], FORMATS["fp16"]
BEGIN, UPDATE = 0.01, 3e-4
BEGIN_BF16 = rounded(BEGIN, BF16)


STOPS, STOPS_FP16 = (swamped_from(UPDATE, f) for f in (BF16, FP16))

STUCK = Number(
    key="no-further",
    level=2,
    minutes=4,
    title="A weight that stops",
    prompt=f"Weights are in **bf16**, without an fp32 copy. A weight begins at **{BEGIN}**. AdamW's updates are at "
    f"most about as large as the learning rate. Those of this weight are that large, **{UPDATE:g}**, and all are "
    f"positive. "
    "Each is computed in fp32 and added, and the sum is rounded to the nearest number in bf16. At how many times its "
    "first value does the weight stop moving?",
    hints=(
        "How large are the steps of bf16 between 2^-4 and 2^-3? It has 7 bits of mantissa.",
        "An update of less than half a step is rounded away. Above which power of two is it less?",
        "Between 2^e and 2^(e+1) the steps are 2^(e-7). Half of one has to be above 3e-4.",
    ),
    solution="Between 2^e and 2^(e+1) the steps of bf16 are 2^(e-7), and an update counts if it is above half a step, "
    "2^(e-8). From 2^-4 = 0.0625 to 0.125 half a step is 2.4e-4, and 3e-4 is above it. From 0.125 on it is 4.9e-4. So "
    f"the weight stops at **0.125**, {STOPS / BEGIN_BF16:.1f} times {BEGIN}.\n\n"
    "In fp32 it would have continued. Nor does it get there at the right speed: just below 0.125, each update of 3e-4 "
    "is rounded up to a step of 4.9e-4, and between 0.03 and 0.06 it is rounded down to 2.4e-4. In general, a bf16 "
    "weight stops moving where it is more than 2^8 to 2^9 times its update.\n\n"
    "Large weights are hit first, and those are the weights of norms, which begin at 1. *All models trained with "
    "speculators end up with untrained normalization layers (.weight == 1.0)*, found vllm-project/speculators (pull "
    "request 765), after several models had been published. With fp32 weights they measured an improvement of 10 to "
    "15% in an ablation. The remedies are an fp32 copy that the optimizer updates (4 bytes per parameter), a second "
    "bf16 number for the part that was cut off (Kahan's method, 2 bytes), and stochastic rounding (no bytes).",
    value=STOPS / BEGIN_BF16,
    unit="times",
    units=("times",),
    dimension="times",
    slips=(
        Slip("the-weight", STOPS, "That is the weight at which it stops. How many times its first value is that?"),
        Slip(
            "whole-step",
            0.0625 / BEGIN_BF16,
            "From there on the update is less than a whole step. Does it have to be that much?",
        ),
        Slip(
            "fp16",
            STOPS_FP16 / rounded(BEGIN, FP16),
            "Those are the steps of fp16, with 10 bits of mantissa. bf16 has 7.",
        ),
        Slip(
            "one-bit-more",
            0.25 / BEGIN_BF16,
            "You counted 8 bits of mantissa. bf16 has 7, and a leading one that is not stored.",
        ),
        Slip(
            "256",
            256 * UPDATE / BEGIN_BF16,
            "You took a multiple of the update. Steps are equal up to the next power of two, so the weight gets that "
            "far.",
        ),
        Slip(
            "512",
            512 * UPDATE / BEGIN_BF16,
            "You took a multiple of the update. Steps change at a power of two, so the weight stops at one.",
        ),
    ),
    right="In bf16 an update below 2^-9 to 2^-8 of the weight has no effect.",
)

EXERCISES = (STUCK,)
