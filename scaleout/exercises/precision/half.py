"""The exercise of `precision` on memory: what 16-bit products halve."""

from __future__ import annotations

from scaleout.exercises.engine import Number, Slip

PEAK_BEFORE, PEAK_AFTER = 41.80, 33.77  # GB at the peak, of micdoh/XLRON's pull request 29
SHARE = 2 * (PEAK_BEFORE - PEAK_AFTER) / PEAK_BEFORE

HALVED = Number(
    key="what-halves",
    level=1,
    minutes=3,
    title="What 16 bits halve",
    prompt="A training in fp32 has a peak of **41.80 GB**. Then products are made in bf16, while weights, gradients "
    "and the optimizer's states stay in fp32, as autocast does it, and the peak is **33.77 GB**. Leave out the 16-bit "
    "copies of the weights, which were small here. What is kept in 16 bits now had been kept in 32. Which share of the "
    "*first* peak was that?",
    hints=("What became smaller, and to which part of itself?", "8.03 GB are gone. That is half of what?"),
    solution=f"What is kept in 16 bits is half of what it was, so {PEAK_BEFORE - PEAK_AFTER:.2f} GB saved were "
    f"{2 * (PEAK_BEFORE - PEAK_AFTER):.2f} GB before: **{SHARE:.1%}** of the peak. They are activations. *AMP keeps "
    "float32 master weights + Adam state unchanged*, says the report: what drops to bf16 are activations, and *at "
    "batch 768 those are ~40% of the footprint, and their share (so the saving) grows with batch size* (micdoh/XLRON, "
    "pull request 29).\n\nSo *mixed precision halves the memory* holds for activations alone. States are 16 bytes a "
    "parameter in fp32, and 16 with a master copy, which takes what weight and gradient save. A run whose peak is "
    "states gains hardly anything; one whose peak is activations gains nearly half. And what comes on top are the "
    "copies of weights in 16 bits, 2 bytes for each, as long as the backward needs them.",
    value=SHARE,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip("saved", SHARE / 2, "That is the share that was saved, not the share of what became smaller."),
        Slip(
            "of-the-second",
            2 * (PEAK_BEFORE - PEAK_AFTER) / PEAK_AFTER,
            "That is of the second peak. The question is of the first.",
        ),
        Slip("still-there", 1 - SHARE / 2, "That is the second peak as a share of the first."),
        Slip("fp32", 1 - SHARE, "That is what stayed in fp32."),
        Slip("all", 1.0, "Had all of it been halved, the peak would be 20.9 GB."),
    ),
    right="Products in 16 bits halve activations. Weights, gradients and states are as large as before.",
)

EXERCISES = (HALVED,)
