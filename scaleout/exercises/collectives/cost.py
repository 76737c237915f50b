"""The exercise of `collectives` that writes the cost model: where a ring and a tree take the same time."""

from __future__ import annotations

from math import log, log2

from scaleout.exercises.engine import Function, Mistake

_CROSS_STUB = '''\
from math import log2


def crossover_bytes(ranks, alpha, rate):
    """Bytes at which ring and tree take the same time.

    alpha: latency of each message, seconds
    rate: bytes per second
    """
    return ...
'''

_CROSS_SOLUTION = """\
from math import log2


def crossover_bytes(ranks, alpha, rate):
    ring_starts, ring_parts = 2 * (ranks - 1), 2 * (ranks - 1) / ranks
    tree_starts, tree_parts = 2 * log2(ranks), 2 * log2(ranks)
    return alpha * rate * (ring_starts - tree_starts) / (tree_parts - ring_parts)
"""


def _crossing(starts=lambda p: 2 * (p - 1), parts=lambda p: 2 * (p - 1) / p, levels=lambda p: 2 * log2(p)):
    """Where a ring of `starts(p)` latencies and `parts(p)` messages meets a tree of `levels(p)` of both, in bytes."""

    def bytes_(ranks: int, alpha: float, rate: float) -> float:
        tree = levels(ranks)
        return alpha * rate * (starts(ranks) - tree) / (tree - parts(ranks))

    return bytes_


_crossover = _crossing()


CROSSOVER = Function(
    key="crossover",
    level=3,
    title="Where the ring becomes faster",
    prompt="For small messages a tree is faster, for large ones a ring. Write `crossover_bytes(ranks, alpha, rate)`, "
    "which returns the message size at which both take the same time, not rounded. `ranks`, W below, is a power of "
    "two, 4 or more.\n\n"
    "- **Ring**: 2(W−1) steps. Each has a latency of `alpha` seconds and sends 1/W of the bytes at `rate` bytes per "
    "second.\n"
    "- **Tree** (a plain one): log2(W) steps up and log2(W) steps down. Each has the same latency and sends **all** "
    "the bytes.",
    hints=(
        "Write both times as a · alpha + b · n / rate. What are a and b?",
        "Set them equal and solve for n: (a of the ring − a of the tree) divided by (b of the tree − b of the ring), "
        "times alpha × rate.",
    ),
    solution="```python\n"
    f"{_CROSS_SOLUTION}```\n\n"
    f"8 ranks, 10 µs, 50 GB/s: {_crossover(8, 1e-5, 50e9) / 1e3:,.0f} kB. 512 ranks: "
    f"{_crossover(512, 1e-5, 50e9) / 1e6:.1f} MB. The more ranks, the larger a message must be for a ring to be "
    "faster. NCCL's trees are better than this one: they are pipelined, and two of them share the links.",
    function="crossover_bytes",
    stub=_CROSS_STUB,
    reference=_crossover,
    cases=(
        (8, 1e-5, 50e9),
        (4, 7.3e-6, 23.7e9),
        (64, 5e-6, 50e9),
        (16, 1e-3, 1e9),
        (512, 2e-5, 450e9),
        (32, 9.1e-7, 187.5e9),
        (2048, 3.1e-6, 12.5e9),
        (128, 1.7e-9, 1e9),
    ),
    mistakes=(
        Mistake(
            "ring-whole-message",
            _crossing(parts=lambda p: 2 * (p - 1)),
            "Your ring sends the whole message in each step. In a step a rank sends one chunk, 1/W of it.",
        ),
        Mistake(
            "ring-half",
            _crossing(lambda p: p - 1, lambda p: (p - 1) / p),
            "Your ring stops after the reduce-scatter. An all-reduce has 2(W−1) steps.",
        ),
        Mistake("tree-once", _crossing(levels=log2), "Your tree only goes up. The sum has to come down again."),
        Mistake(
            "ring-without-chunk-loss",
            _crossing(parts=lambda p: 2),
            "Your ring sends 2 n bytes. In each lap there is one chunk that a rank does not send.",
        ),
        Mistake(
            "natural-logarithm",
            _crossing(levels=lambda p: 2 * log(p)),
            "Your tree has ln(W) levels, by the natural logarithm. Each level doubles the ranks, so use log2.",
        ),
        Mistake(
            "negative",
            lambda ranks, alpha, rate: -_crossover(ranks, alpha, rate),
            "The sign is wrong: subtract the tree's latencies from the ring's, and the ring's bytes from the tree's.",
        ),
        Mistake(
            "tree-without-latency",
            lambda ranks, alpha, rate: alpha * rate * 2 * (ranks - 1) / (2 * log2(ranks) - 2 * (ranks - 1) / ranks),
            "Your tree has no latency. It takes alpha in each of its 2 log2(W) steps.",
        ),
        Mistake(
            "inverse-rate",
            lambda ranks, alpha, rate: _crossover(ranks, alpha, 1 / rate),
            "You took rate as seconds per byte. It is bytes per second.",
        ),
        Mistake(
            "forgot-alpha", lambda ranks, alpha, rate: _crossover(ranks, 1, rate), "alpha is missing in your result."
        ),
        Mistake(
            "start-as-its-bytes",
            lambda ranks, alpha, rate: alpha * rate,
            "At that size the latency and the bytes of one message cost the same. The question is where ring and tree "
            "take the same time.",
        ),
        Mistake(
            "starts-of-a-ring",
            lambda ranks, alpha, rate: alpha * rate * ranks,
            "At that size the latency and the bytes of a ring cost the same. The question is where ring and tree take "
            "the same time.",
        ),
    ),
    right="Below that size latency decides, above it bandwidth.",
)

EXERCISES = (CROSSOVER,)
