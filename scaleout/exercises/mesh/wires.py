"""The exercise of `mesh` on links: what each axis sends per step, and what the order of the axes costs."""

from __future__ import annotations

from scaleout.exercises.engine import Number, Slip
from scaleout.spec.devices import GB
from scaleout.spec.transformer import PRESETS


def ring(size, ranks):
    """Bytes that a rank sends for an all-reduce in a ring."""
    return 2 * (ranks - 1) / ranks * size


def sent(pp, dp, tp, m, blocks, stream, gradient_bytes):
    """Bytes that a GPU of a middle stage sends per step, [pp, dp, tp]: without sequence parallelism and ZeRO.

    blocks: of its stage; stream: bytes of the activations between two blocks of one micro-batch.
    """
    return [2 * m * stream * (pp > 1), ring(gradient_bytes, dp), blocks * m * 4 * ring(stream, tp)]


SHAPE, TP, PP, M, TOKENS = PRESETS["llama-3-70b"], 8, 4, 64, 8192
_STREAM = TOKENS * SHAPE.hidden * 2
_BLOCKS = SHAPE.layers // PP
NVLINK, NETWORK = 450 * GB, 50 * GB
INSIDE = sent(PP, 2, TP, M, _BLOCKS, _STREAM, 0)[2]


def _extra_seconds(size: float = INSIDE) -> float:
    """Seconds that so many bytes take longer over the network than over NVLink."""
    return size / NETWORK - size / NVLINK


ORDER = Number(
    key="order-seconds",
    level=2,
    minutes=5,
    title="The same bytes over another link",
    prompt=f"Llama 3 70B ({SHAPE.layers} blocks, hidden size {SHAPE.hidden:,}) trains on 64 GPUs in nodes of 8: tp "
    f"{TP}, pp {PP}, dp 2. Per step each replica has **{M}** micro-batches of one sequence of {TOKENS:,} tokens, in "
    "bf16. Per block, tp runs two ring all-reduces of the activations between blocks in the forward and two in the "
    "backward, overlapped with nothing. A GPU sends **450 GB/s** inside its node and **50 GB/s** through its "
    "NIC.\n\n"
    "Somebody makes tp the first axis of the mesh, so every tp group has one GPU on each node. How much longer "
    "does the tp communication of a step take?",
    hints=(
        "The activations of a micro-batch: tokens × hidden size × 2 bytes. How many blocks does a stage have?",
        f"Bytes that a GPU sends: {_BLOCKS} × {M} × 4 × 2 · 7/8 × the activations. Divide by both rates.",
    ),
    solution=f"The activations of a micro-batch are {TOKENS:,} × {SHAPE.hidden:,} × 2 = {_STREAM / 1e6:.1f} MB. "
    f"{_BLOCKS} blocks × {M} micro-batches × 4 all-reduces × 7/4 make **{INSIDE / GB:,.0f} GB** that a GPU sends: "
    f"{INSIDE / NVLINK:.2f} s in the node, {INSIDE / NETWORK:.2f} s between nodes, **{_extra_seconds():.1f} s** more. "
    "The matmuls of the step take about 14 s.\n\nThe two axes that get NVLink in exchange send 17 GB (pp) and 4.3 GB "
    '(dp) and gain 0.4 s. The run does not say that anything is wrong: losses are the same, and GPUs are "busy" '
    "while they wait. A trace shows it, or the counters of the NICs. JAX's mesh builder learned in 2026 to give the "
    "axis that sends most the faster link; the step time of one job fell from 11.28 to 10.84 s (jax-ml/jax, pull "
    "request 39340).",
    value=_extra_seconds(),
    unit="s",
    units=("ms", "s"),
    dimension="seconds",
    slips=(
        Slip(
            "all-of-it",
            INSIDE / NETWORK,
            "That is the whole time over the adapters (NICs). The question is how much more it is than before.",
        ),
        Slip(
            "half",
            _extra_seconds(INSIDE / 2),
            "Either you left out the backward, or you counted only half of each all-reduce.",
        ),
        Slip(
            "all-blocks",
            _extra_seconds(INSIDE * PP),
            f"You counted all {SHAPE.layers} blocks. A GPU has only those of its stage.",
        ),
        Slip("one-micro-batch", _extra_seconds(INSIDE / M), "That is for one micro-batch."),
        Slip("whole-message", _extra_seconds(INSIDE * TP / (TP - 1)), "You let each rank send its own part as well."),
        Slip(
            "one-sum",
            _extra_seconds(INSIDE / 4),
            "That is one all-reduce per block. How many does a block need, in forward and backward?",
        ),
        Slip("before", INSIDE / NVLINK, "That is how long it took inside the node."),
    ),
    right="The same bytes, and each takes nine times as long.",
)

EXERCISES = (ORDER,)
