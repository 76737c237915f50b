"""Exercises of `mesh` on wires: what each axis sends in a step, and what the order of the axes makes of it."""

from __future__ import annotations

from scaleout.exercises.engine import Function, Mistake, Number, Slip
from scaleout.spec.devices import GB
from scaleout.spec.transformer import PRESETS

_STUB = '''\
def sent(pp, dp, tp, m, blocks, stream, held):
    """Bytes that a GPU sends in a step: a list of [pp, dp, tp].

    pp, dp, tp: ranks along each axis; the GPU's stage is neither
        the first nor the last, or pp is 1
    m: micro-batches of a step
    blocks: of the GPU's stage
    stream: bytes of the residual stream of one micro-batch
    held: bytes of the gradients that the GPU holds
    """
    return ...
'''

_SOLUTION = """\
def sent(pp, dp, tp, m, blocks, stream, held):
    def all_reduce(size, ranks):                       # in a ring
        return 2 * (ranks - 1) / ranks * size

    hops = 2 * m * stream if pp > 1 else 0             # there, and back
    replicas = all_reduce(held, dp)                    # once
    inside = blocks * m * 4 * all_reduce(stream, tp)
    return [hops, replicas, inside]
"""


def ring(size, ranks, halves=2):
    """Bytes that a rank sends for an all-reduce in a ring."""
    return halves * (ranks - 1) / ranks * size


def _sent(pp, dp, tp, m, blocks, stream, gradient_bytes, hop=2, reduces=4, often=1, halves=2, passes=1):
    return [
        hop * m * stream * (pp > 1),
        often * ring(gradient_bytes, dp, halves),
        blocks * passes * reduces * ring(stream, tp, halves),
    ]


def sent(pp, dp, tp, m, blocks, stream, gradient_bytes):
    """The reference."""
    return _sent(pp, dp, tp, m, blocks, stream, gradient_bytes, passes=m)


def _forward(*case):
    return _sent(*case, hop=1, reduces=2, passes=case[3])


def _every_pass(*case):
    return _sent(*case, often=case[3], passes=case[3])


def _half_a_ring(*case):
    return _sent(*case, halves=1, passes=case[3])


def _without_rings(pp, dp, tp, m, blocks, stream, gradient_bytes):
    return [2 * m * stream * (pp > 1), 2 * gradient_bytes * (dp > 1), blocks * m * 8 * stream * (tp > 1)]


def _hop_once(*case):
    return _sent(*case, hop=1, passes=case[3])


def _two_reduces(*case):
    return _sent(*case, reduces=2, passes=case[3])


def _hop_of_each_block(pp, dp, tp, m, blocks, stream, gradient_bytes):
    return [blocks * 2 * m * stream * (pp > 1), *sent(pp, dp, tp, m, blocks, stream, gradient_bytes)[1:]]


SENT = Function(
    key="bytes-by-axis",
    level=2,
    minutes=10,
    title="What each axis sends",
    lists=True,
    prompt="One GPU in a mesh of pp × dp × tp, without sequence parallelism, without ZeRO. Write "
    "`sent(pp, dp, tp, m, blocks, stream, held)`, the bytes that it **sends in one step** along each axis, as a list "
    "`[pp, dp, tp]`:\n\n"
    "- **pp**: to the next stage each micro-batch's stream, and to the one before its gradient. `pp` is 1, where "
    "nothing is sent, or at least 3 and the GPU is on a stage in the middle.\n"
    "- **dp**: one all-reduce of the gradients it holds, when the last micro-batch has added its own.\n"
    "- **tp**: all-reduces of the stream: two in the forward of each block, two in its backward, for each "
    "micro-batch.\n\n"
    "All-reduces are rings: of n bytes among r ranks each sends 2 (r − 1)/r · n. "
    "`sent(4, 2, 8, 10, 5, 100, 900)` is `[2000, 900, 35000]`.",
    hints=(
        "Which of the three are multiplied by m, and which by the blocks of a stage?",
        "tp: blocks × m × 4 all-reduces of `stream` bytes.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "tp is multiplied by blocks *and* micro-batches, pp by micro-batches, dp by neither. So in a job of some size they "
    "are apart by factors of 50 and more, and that is the whole reason for the order: **the axis that sends most gets "
    "the fastest wire.** With sequence parallelism tp sends as many bytes, as gathers and scatters, and each rank's "
    "hop is a part of the stream, 1/tp. How long it takes is one question; whether anything can run beside it is the "
    "other: tp's collectives stand between two matrix multiplications, unless the program cuts both into chunks, and "
    "dp's beside the last backward.",
    function="sent",
    stub=_STUB,
    reference=sent,
    cases=(
        (4, 2, 8, 10, 5, 100, 900),
        (1, 1, 2, 3, 7, 64, 1000),
        (3, 3, 1, 5, 4, 30, 600),
        (1, 4, 4, 1, 12, 8, 100),
        (8, 1, 8, 16, 10, 256, 5000),
        (5, 7, 3, 9, 6, 21, 350),
        (1, 1, 1, 6, 3, 10, 10),
        (3, 2, 2, 1, 2, 40, 80),
        (1, 16, 1, 12, 32, 77, 4096),
    ),
    mistakes=(
        Mistake(
            "forward-only", _forward, "You counted the forward alone. The backward sends as much again along tp and pp."
        ),
        Mistake(
            "every-micro-batch",
            _every_pass,
            "You reduced the gradients along dp for each micro-batch. They add up on the GPU and are reduced once.",
        ),
        Mistake("one-micro-batch", _sent, "You counted tp's messages for one micro-batch. A step has m."),
        Mistake(
            "half-a-ring",
            _half_a_ring,
            "You counted half of each ring. An all-reduce is a reduce-scatter and an all-gather.",
        ),
        Mistake("whole-message", _without_rings, "You left (r − 1)/r out: in a ring each rank keeps its own part."),
        Mistake("hop-one-way", _hop_once, "Along pp you counted one way. Gradients come back."),
        Mistake(
            "two-reduces",
            _two_reduces,
            "Along tp you counted two all-reduces for each block. It is two in the forward and two in the backward.",
        ),
        Mistake(
            "hop-of-blocks",
            _hop_of_each_block,
            "You let each block send to the next stage. Only the last of a stage does.",
        ),
    ),
    right="tp by blocks and micro-batches, pp by micro-batches, dp once.",
)

SHAPE, TP, PP, M, TOKENS = PRESETS["llama-3-70b"], 8, 4, 64, 8192
_STREAM = TOKENS * SHAPE.hidden * 2
_BLOCKS = SHAPE.layers // PP
NVLINK, NETWORK = 450 * GB, 50 * GB
INSIDE = sent(PP, 2, TP, M, _BLOCKS, _STREAM, 0)[2]


def _extra_seconds(size: float = INSIDE) -> float:
    """Seconds that so many bytes take more on the slow wire."""
    return size / NETWORK - size / NVLINK


ORDER = Number(
    key="order-seconds",
    level=2,
    minutes=5,
    title="The same bytes over another wire",
    prompt=f"Llama 3 70B ({SHAPE.layers} blocks, hidden size {SHAPE.hidden:,}) on 64 GPUs in nodes of 8: tp {TP}, pp "
    f"{PP}, dp 2. In a step each replica has **{M}** micro-batches of one sequence of {TOKENS:,} tokens, in bf16. In "
    "each block tp sums the stream twice in the forward and twice in the backward, by all-reduces in a ring, and "
    "nothing runs beside them. A GPU sends **450 GB/s** to its node, and **50 GB/s** through its adapter.\n\nSomebody "
    "makes tp the first axis of the mesh in place of the last. Every tp group now has one GPU on each node. By how "
    "much does a step grow, as far as tp goes?",
    hints=(
        "The stream of a micro-batch: tokens × hidden size × 2 bytes. How many blocks has a stage?",
        f"Bytes that a GPU sends: {_BLOCKS} × {M} × 4 × 2 · 7/8 × the stream. Divide by both rates.",
    ),
    solution=f"The stream has {TOKENS:,} × {SHAPE.hidden:,} × 2 = {_STREAM / 1e6:.1f} MB. {_BLOCKS} blocks × {M} "
    f"micro-batches × 4 all-reduces × 7/4 make **{INSIDE / GB:,.0f} GB** that a GPU sends: {INSIDE / NVLINK:.2f} s in "
    f"the node, {INSIDE / NETWORK:.2f} s between nodes, **{_extra_seconds():.1f} s** more. The model computes for "
    "about 14 s.\n\nThe two axes that get NVLink in exchange send 17 GB (pp) and 4.3 GB (dp) and gain 0.4 s. Nothing "
    "in the "
    'run says that anything is wrong: losses are the same, GPUs are "busy" while they wait. What tells you is a '
    "trace, or counters of the adapters. JAX's mesh builder learned in 2026 to give the axis that sends most the "
    "faster wire; a job's step fell from 11.28 to 10.84 s (jax-ml/jax, pull request 39340).",
    value=_extra_seconds(),
    unit="s",
    units=("ms", "s"),
    dimension="seconds",
    slips=(
        Slip(
            "all-of-it",
            INSIDE / NETWORK,
            "That is how long it takes over the adapters. The question is by how much that is more.",
        ),
        Slip(
            "half",
            _extra_seconds(INSIDE / 2),
            "Either the backward is missing, or you counted each all-reduce as one collective.",
        ),
        Slip("all-blocks", _extra_seconds(INSIDE * PP), f"You took all {SHAPE.layers} blocks. A GPU has a stage's."),
        Slip("one-micro-batch", _extra_seconds(INSIDE / M), "That is for one micro-batch."),
        Slip("whole-message", _extra_seconds(INSIDE * TP / (TP - 1)), "You let each rank send its own part as well."),
        Slip(
            "one-sum",
            _extra_seconds(INSIDE / 4),
            "That is one all-reduce for each block. How many has a block, forward and backward?",
        ),
        Slip("before", INSIDE / NVLINK, "That is how long it took inside the node."),
    ),
    right="No byte more, and nine times the seconds of each.",
)

EXERCISES = (SENT, ORDER)
