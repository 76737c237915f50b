"""The exercise of `precision` on memory: what 16-bit matrix multiplications halve."""

from __future__ import annotations

from scaleout.exercises.engine import Number, Slip

PEAK_BEFORE, PEAK_AFTER = 41.80, 33.77  # GB at the peak, of micdoh/XLRON's pull request 29
SHARE = 2 * (PEAK_BEFORE - PEAK_AFTER) / PEAK_BEFORE

HALVED = Number(
    key="what-halves",
    level=1,
    minutes=3,
    title="What 16 bits halve",
    prompt="A training run in fp32 has a peak of **41.80 GB**. Then its matrix multiplications are done in bf16 with "
    "autocast, while weights, gradients and optimizer states stay in fp32, and the peak is **33.77 GB**. Leave out the "
    "16-bit copies of the weights, which were small here. Some tensors that were stored in fp32 are now stored in 16 "
    "bits. What share of the *first* peak were they?",
    hints=(
        "What became smaller, and what fraction of its size is it now?",
        "The peak fell by 8.03 GB. Half of which amount is that?",
    ),
    solution=f"The tensors stored in 16 bits take half of what they took, so {PEAK_BEFORE - PEAK_AFTER:.2f} GB saved "
    f"were {2 * (PEAK_BEFORE - PEAK_AFTER):.2f} GB before: **{SHARE:.1%}** of the peak. They are activations. *AMP "
    f"keeps "
    "float32 master weights + Adam state unchanged*, says the report. What becomes bf16 are activations, and *at batch "
    "768 those are ~40% of the footprint, and their share (so the saving) grows with batch size* (micdoh/XLRON, pull "
    "request 29).\n\nSo *mixed precision halves the memory* is true for activations only. Model states take 16 bytes "
    "per parameter in fp32, and 16 in 16 bits with a master copy, which takes what the weight and the gradient save. A "
    "run whose peak is mostly states gains hardly anything, and a run whose peak is mostly activations gains nearly "
    "half. The 16-bit copies of weights add 2 bytes per parameter for as long as the backward pass needs them.",
    value=SHARE,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip(
            "saved", SHARE / 2, "That is the share that was saved. The tensors that became smaller were more than that."
        ),
        Slip(
            "of-the-second",
            2 * (PEAK_BEFORE - PEAK_AFTER) / PEAK_AFTER,
            "That is a share of the second peak. The question asks for a share of the first.",
        ),
        Slip("still-there", 1 - SHARE / 2, "That is the second peak as a share of the first."),
        Slip("fp32", 1 - SHARE, "That is the share that stayed in fp32."),
        Slip("all", 1.0, "If all of it had been halved, the second peak would be 20.9 GB."),
    ),
    right="16-bit matrix multiplications halve activations. Weights, gradients and states are as large as before.",
)

EXERCISES = (HALVED,)
