"""Exercises of `precision` on FP8: what it speeds up, and what one scale for a whole tensor does."""

from __future__ import annotations

from scaleout.exercises.engine import Number, Slip
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
    prompt="A step of Nemotron-4 15B in bf16 takes 2.83 s on 16 H100s, with 64 sequences of 4,096 tokens. By the "
    "book's "
    f"model, the matrix multiplications of its linear layers take **{SHARE:.0%}** of that. In FP8 an H100 multiplies "
    "twice as fast. If these multiplications took half the time and everything else as long as before, how many times "
    "as fast would the step be?",
    hints=(
        "Which part of the time is halved, and which stays?",
        "Say the step takes 1 in bf16. How long is it in FP8?",
    ),
    solution=f"The matrix multiplications take {SHARE:.0%} / 2 = {SHARE / 2:.1%}, and the rest {1 - SHARE:.0%}. "
    f"Together that is {1 - SHARE / 2:.1%}, so the step is **{faster(2):.2f} times** as fast. Even if the "
    f"multiplications took no time, it would be only {faster(1e9):.1f} times.\n\n"
    f"NVIDIA measured 2.08 s, which is {BF16_SECONDS / FP8_SECONDS:.2f} times as fast (NVIDIA/dgxc-benchmarking; for "
    f"8B "
    "and 70B it is 1.34). The difference is what FP8 adds: finding the largest values, scaling and casting are passes "
    "over memory, and small matrices do not fill the GPU. The book's model puts all of that into one factor, "
    f"{FASTER} in place of 2.\n\n"
    "*The fp8 should have 100% speed up compared with bf16. But I only got 35% speed up on Megatron*, somebody asks "
    "(NVIDIA/Megatron-LM, issue 396). The answer is Amdahl's law: *that figure is simply stating that fp8 is "
    "computationally 2x the throughput of bf16, when isolating individual operations. The actual end-to-end speedup "
    "will be less than this.* Attention, the head, norms, the optimizer and communication take as long as before.",
    value=faster(2),
    unit="times",
    units=("times",),
    dimension="times",
    tolerance=0.008,  # half of the share added, and what was measured, are 2% apart
    slips=(
        Slip("doubled", 2.0, "That would be so if the whole step were matrix multiplications of linear layers."),
        Slip(
            "share-added",
            1 + SHARE,
            "You added the share to 1. Times can be added, speeds cannot: how long is the step now?",
        ),
        Slip(
            "half-added",
            1 + SHARE / 2,
            "You added half of the share to 1. The step is shorter by that much: how many times as fast is it?",
        ),
        Slip("no-time", 1 / (1 - SHARE), "That would be right if the matrix multiplications took no time at all."),
        Slip(
            "measured",
            BF16_SECONDS / FP8_SECONDS,
            "That is what was measured. What if the multiplications took exactly half the time?",
        ),
    ),
    right="Only the matrix multiplications of linear layers get faster, and the rest of the step limits the gain.",
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
    prompt="A tensor is converted to FP8 with **one** scale, so that its largest number becomes 448, the largest in "
    "e4m3 (4 bits of exponent, bias 7, 3 bits of mantissa). All other numbers are multiplied by the same scale and "
    "rounded to the nearest. How many times smaller than the largest can a number be before it becomes **zero**?",
    hints=(
        "The smallest normal number in e4m3 is 2^-6. What is the smallest of all, with 3 bits of mantissa?",
        "A number above half of that is rounded up to it.",
    ),
    solution=f"The smallest number in e4m3 is 2^-6 · 2^-3 = 2^-9, and half of it, 2^-10, becomes zero. 448 / 2^-10 = "
    f"**{E4M3.largest / ZERO:,.0f} times**. A number keeps all of its bits down to 2^-6, which is 28,672 times "
    "smaller.\n\n"
    "So what does an outlier do? In one image model the largest input of an MLP was 6.6e4, and the usual inputs were "
    "between 1 and 30. There *a single outlier forces a tensor-wide scale that pushes every normal value (~1-30) below "
    "fp8 resolution, so they quantize to ~0*, says unslothai/unsloth's pull request 6772. Check it: with 6.6e4 as the "
    f"largest, numbers below {LARGE * ZERO / E4M3.largest:.2f} become zero, and numbers below "
    f"{_UNIT * E4M3.smallest_normal:.1f} lose bits. Numbers from {_UNIT * E4M3.smallest_normal:.1f} to 30 keep all "
    f"four bits, and near 1 the steps are {_UNIT * E4M3.smallest:.2f}, so a number there is off by a seventh at most. "
    f"That is "
    "not ~0, and for one layer alone an error of 3.7% was measured there. One scale per row was the remedy all the "
    "same, because such errors accumulate over layers. With an outlier a thousand times larger they would have become "
    "zero.",
    value=E4M3.largest / ZERO,
    unit="times",
    units=("times",),
    dimension="times",
    slips=(
        Slip(
            "smallest",
            E4M3.largest / E4M3.smallest,
            "That leads to the smallest number. Does everything below it become zero?",
        ),
        Slip(
            "normal",
            E4M3.largest / E4M3.smallest_normal,
            "That leads to the smallest normal number. Below it e4m3 has more numbers, with fewer bits.",
        ),
        Slip("from-one", 1 / ZERO, "You counted from 1, but the largest number becomes 448."),
        Slip(
            "largest",
            E4M3.largest,
            "That is the largest number itself: where it lies, and not how far it is above the numbers that become "
            "zero.",
        ),
        Slip("e5m2", E5M2.largest / (E5M2.smallest / 2), "That is e5m2, with 5 bits of exponent."),
    ),
    right="With one scale, e4m3 covers 18.8 powers of two, and loses bits in the last few.",
)

EXERCISES = (TWICE, OUTLIER)
