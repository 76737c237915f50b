"""Exercises of `precision` on FP8: what it speeds up, what a scale for a whole tensor does, and which format where."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.numerics.formats import FORMATS
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import Shape
from scaleout.timing.job import step
from scaleout.timing.precision import FASTER, linear_share

E4M3, E5M2 = FORMATS["e4m3"], FORMATS["e5m2"]

# Nemotron-4 15B on 16 H100: https://github.com/NVIDIA/dgxc-benchmarking, commit 35a9aec.
NEMOTRON = Shape(32, 6144, 48, 256_000, 8, ff=24_576, bias=False, positions="rotary", max_seq=4096, tied_head=False)
JOB = Job(
    NEMOTRON,
    4096,
    DEVICES["h100-sxm"],
    cluster(2, 8),
    4,
    Layout(dp=4, tp=4, zero=1, micro_batches=4, sequence_parallel=True),
)
BF16_SECONDS, FP8_SECONDS = 2.83, 2.08
SHARE = round(linear_share(step(JOB)), 2)


def faster(times: float, share: float = SHARE) -> float:
    """How many times as fast a step is whose linear layers' matrix multiplications are `times` as fast (Amdahl)."""
    return 1 / (1 - share + share / times)


TWICE = Number(
    key="products-twice",
    level=2,
    minutes=3,
    title="Matrices twice as fast",
    prompt="A step of Nemotron-4 15B in bf16 takes 2.83 s on 16 H100, with 64 sequences of 4,096 tokens. By the book's "
    f"model the matrix multiplications of its linear layers take **{SHARE:.0%}** of a step. In FP8 an H100 multiplies "
    "twice as fast. If those multiplications took half the time, and everything else as long as before, how many times "
    "as fast would the step be?",
    hints=("Which part of the time is halved, and which stays?", "The step takes 1 in bf16. How long is it now?"),
    solution=f"The matrix multiplications take {SHARE:.0%} / 2 = {SHARE / 2:.1%}, the rest {1 - SHARE:.0%}: together "
    f"{1 - SHARE / 2:.1%}, so **{faster(2):.2f} times**. Even multiplications that took no time would give "
    f"{faster(1e9):.1f} times.\n\n"
    f"Measured were 2.08 s, {BF16_SECONDS / FP8_SECONDS:.2f} times (NVIDIA/dgxc-benchmarking; for 8B and 70B it is "
    "1.34). Between the two lies what FP8 adds: largest values, scales and casts are passes over memory, and small "
    f"matrices do not fill the units. The book's model takes all that into one factor, {FASTER} in place of 2.\n\n"
    "*The fp8 should have 100% speed up compared with bf16. But I only got 35% speed up on Megatron*, somebody asks "
    "(NVIDIA/Megatron-LM, issue 396), and the answer is Amdahl's: *that figure is simply stating that fp8 is "
    "computationally 2x the throughput of bf16, when isolating individual operations. The actual end-to-end speedup "
    "will be less than this.* Attention, the head, norms, the optimizer and the communication are as long as before.",
    value=faster(2),
    unit="times",
    units=("times",),
    dimension="times",
    tolerance=0.008,  # half of the share added, and what was measured, are 2% apart
    slips=(
        Slip("doubled", 2.0, "That would be so if the whole step were matrix multiplications of linear layers."),
        Slip("share-added", 1 + SHARE, "You added the share to 1. Times add up, not speeds: how long is the step now?"),
        Slip(
            "half-added",
            1 + SHARE / 2,
            "You added half of the share to 1. The step is shorter by that: how many times as fast is it?",
        ),
        Slip("no-time", 1 / (1 - SHARE), "That is for matrix multiplications that take no time at all."),
        Slip(
            "measured",
            BF16_SECONDS / FP8_SECONDS,
            "That is what was measured. What if the multiplications took exactly half the time?",
        ),
    ),
    right="Only the matrices of linear layers get faster. The rest of the step is what limits it.",
)

# --- a scale for the whole tensor -------------------------------------------------------------------------------------

ZERO = E4M3.smallest / 2
LARGE = 6.6e4
_UNIT = LARGE / E4M3.largest  # what one e4m3 is worth beside the outlier

OUTLIER = Number(
    key="beside-an-outlier",
    level=2,
    minutes=4,
    title="Beside an outlier",
    prompt="A tensor goes to FP8 with **one** scale: its largest number becomes 448, the largest of e4m3 (4 bits of "
    "exponent, bias 7, 3 of mantissa). All others are divided by the same, and rounded to the nearest. How many times "
    "smaller than the largest can a number be before it becomes **zero**?",
    hints=(
        "e4m3's smallest normal number is 2^-6. Which is the smallest of all, with 3 bits of mantissa?",
        "What is more than half of that is rounded up to it.",
    ),
    solution=f"e4m3's smallest number is 2^-6 · 2^-3 = 2^-9, and zero begins at half of it, 2^-10. 448 / 2^-10 = "
    f"**{E4M3.largest / ZERO:,.0f} times**. All its bits a number keeps down to 2^-6: 28,672 times smaller.\n\n"
    "So what does an outlier do? In a model for images the largest input of an MLP was 6.6e4, and the usual ones lay "
    "between 1 and 30. There *a single outlier forces a tensor-wide scale that pushes every normal value (~1-30) below "
    "fp8 resolution, so they quantize to ~0*, says unslothai/unsloth's pull request 6772. Count: beside 6.6e4 zero "
    f"begins below {LARGE * ZERO / E4M3.largest:.2f}, and fewer bits below {_UNIT * E4M3.smallest_normal:.1f}. Numbers "
    f"from {_UNIT * E4M3.smallest_normal:.1f} to 30 keep all four of theirs, and 1 is kept in steps of "
    f"{_UNIT * E4M3.smallest:.2f}, a seventh of it off at most. That is not ~0, and one layer alone was measured there "
    "with an error of 3.7%. A scale for each row was the remedy all the same, for errors like that add up over layers. "
    "Beside an outlier a thousand times as large they would have been zero: count before you blame.",
    value=E4M3.largest / ZERO,
    unit="times",
    units=("times",),
    dimension="times",
    slips=(
        Slip(
            "smallest",
            E4M3.largest / E4M3.smallest,
            "That leads to the smallest number. Is all that lies below it zero?",
        ),
        Slip(
            "normal",
            E4M3.largest / E4M3.smallest_normal,
            "That leads to the smallest normal number. Below it e4m3 goes on with fewer bits.",
        ),
        Slip("from-one", 1 / ZERO, "You counted from 1. The largest number becomes 448."),
        Slip("largest", E4M3.largest, "That is the largest number itself: where it lies, not how far it is from zero."),
        Slip("e5m2", E5M2.largest / (E5M2.smallest / 2), "That is e5m2, with 5 bits of exponent."),
    ),
    right="One scale covers 18.8 octaves in e4m3, of which the last few have fewer bits.",
)

HISTORY, SPIKE = (1.6, 2.4, 2.1, 1.9), 9.0
DELAYED = Number(
    key="delayed-scale",
    level=2,
    minutes=3,
    title="A scale from yesterday",
    prompt="*Delayed scaling* makes a tensor's scale from the largest values of the **last** steps, so that the tensor "
    "is read once: scale = 448 / the largest of the history. In the last four steps they were "
    f"**{', '.join(map(str, HISTORY))}**. In this step the largest is **{SPIKE:g}**, and what is above 448 after "
    "scaling is clipped. Which share of its size comes back of that number?",
    hints=("Which number of this tensor becomes 448?", f"{SPIKE:g} is cut to it, and then divided by the scale again."),
    solution=f"The scale is 448 / {max(HISTORY)}, so {SPIKE:g} would be {448 * SPIKE / max(HISTORY):,.0f} and is cut "
    f"to 448, which is {max(HISTORY)} again: {max(HISTORY)} / {SPIKE:g} = **{max(HISTORY) / SPIKE:.1%}**. From the "
    f"next step on {SPIKE:g} is in the history, and for as long as it stays there the scale is "
    f"{SPIKE / max(HISTORY):.2g} times lower, at the cost of the small numbers.\n\n"
    "Nothing of this shows: no infinity, no step left out, since *values exceeding FP8 range are clipped* (Transformer "
    "Engine's documentation of delayed scaling, which names as what is gained *tensor reads per quantization from two "
    "to one*). So a run with delayed scales logs how often values are clipped. Current scaling reads the tensor twice "
    "and clips nothing. With the most recent value in place of the largest of a history a scale adapts in one step, "
    "and clips whenever a step's largest is above the last one's.",
    value=max(HISTORY) / SPIKE,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip(
            "most-recent",
            HISTORY[-1] / SPIKE,
            "That is with the last step's value. Here it is the largest of the history.",
        ),
        Slip("mean", sum(HISTORY) / len(HISTORY) / SPIKE, "You took the mean of the history. It is the largest of it."),
        Slip(
            "current",
            1.0,
            f"That is current scaling: {SPIKE:g} would become 448. This step's largest value is not known yet.",
        ),
        Slip("lost", 1 - max(HISTORY) / SPIKE, "That is the share that is lost."),
        Slip("overshoot", SPIKE / max(HISTORY), "That is by how much it is beyond 448. It is cut: how much is left?"),
    ),
    right="A delayed scale clips what is larger than all of its history, and no log says so.",
)

ALL_E4M3 = Choice(
    key="all-e4m3",
    level=2,
    minutes=3,
    title="No e5m2 any more",
    prompt="FP8 with a scale for each tensor uses two formats: e4m3 for weights and activations, and e5m2 for "
    "gradients, which *are less susceptible to precision loss but require higher dynamic range* (Transformer Engine's "
    "documentation). MXFP8, with a scale of 8 bits for each **32** numbers, takes e4m3 for all of them. Why do "
    "gradients not need e5m2's range any more?",
    hints=(
        "How far apart are the largest and the smallest of 32 numbers that lie side by side, and of a whole tensor?",
        "What has the scale to cover, and what the numbers?",
    ),
    solution="**A tensor's numbers span many octaves, 32 neighbours few.** The block's scale, an e8m0 with 254 "
    "octaves, says where the block lies; e4m3 has to cover only what is *inside*, and its 18.8 octaves are enough for "
    "that. Then the mantissa decides, and e4m3 has one bit more: half the error. *The finer-grained scaling provides "
    "sufficient dynamic range without requiring the E5M2 format*, says Transformer Engine of MXFP8. ROCm/Megatron-LM "
    "*changed both fwd and bwd to use e4m3 for mxfp8* with arXiv 2506.08027 as its reason (pull request 100).\n\n"
    "So ask of a format with scales: which range must the scale cover, and which the numbers? In a block of 16 that is "
    "so little that 1 bit of mantissa and 2 of exponent have to do, in FP4.",
    options=(
        Option(
            "inside",
            "Inside a block they span few octaves; the scale has the rest",
            "Right: range is the scale's part now, and digits are what is left to gain.",
            True,
        ),
        Option(
            "loss-scale",
            "A loss scale lifts all gradients into e4m3's range",
            "It moves all of them by the same number of octaves. How far they lie apart stays.",
        ),
        Option(
            "larger",
            "e4m3 reaches further up in blocks, beyond its 448",
            "The format is what it was. The scale of a block says what 448 stands for.",
        ),
        Option(
            "precise",
            "Gradients turned out to need more digits than activations",
            "They need fewer. More is taken because the range has become free.",
        ),
        Option(
            "fp32",
            "Products add up in fp32, which gives back what was cut",
            "They did so with e5m2 as well. What became zero before a product stays zero in the sum.",
        ),
        Option(
            "norms",
            "Norms keep gradients of all the layers in one octave",
            "They do not: gradients span dozens of octaves, within one layer too. That is why they had e5m2.",
        ),
    ),
)

EXERCISES = (TWICE, OUTLIER, DELAYED, ALL_E4M3)
