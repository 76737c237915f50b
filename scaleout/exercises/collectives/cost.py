"""Exercises of `collectives` that write the cost model: where two algorithms cross, α and β from measured points."""

from __future__ import annotations

from math import log, log2

from scaleout.exercises.engine import Function, Mistake

_CROSS_STUB = '''\
from math import log2


def crossover_bytes(ranks, alpha, rate):
    """Bytes at which ring and tree take the same time.

    alpha: seconds for each message
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
    title="Where the ring begins to win",
    prompt="For small messages a tree is faster, for large ones a ring. Write `crossover_bytes(ranks, alpha, rate)`: "
    "the size of the message at which both take the same time, not rounded. `ranks`, W below, is a power of two, 4 or "
    "more.\n\n"
    "- **Ring**: 2(W−1) steps. Each starts one message (`alpha` seconds) and moves 1/W of the bytes at `rate` bytes "
    "per second.\n"
    "- **Tree**, the simple one: log2(W) steps up and log2(W) down. Each starts one message and moves **all** the "
    "bytes.",
    hints=(
        "Write both times as a · alpha + b · n / rate. What are a and b?",
        "Set them equal and solve for n: starts of the ring less those of the tree, over parts of the tree less "
        "those of the ring.",
    ),
    solution="```python\n"
    f"{_CROSS_SOLUTION}```\n\n"
    f"8 ranks, 10 µs, 50 GB/s: {_crossover(8, 1e-5, 50e9) / 1e3:,.0f} kB. 512 ranks: "
    f"{_crossover(512, 1e-5, 50e9) / 1e6:.1f} MB. The more ranks, the larger a message has to be before a ring pays. "
    "NCCL's trees are better than this one: they are pipelined, and two of them share the links.",
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
            "Your ring moves the whole message in each step. A step moves one chunk, 1/W of it.",
        ),
        Mistake(
            "ring-half",
            _crossing(lambda p: p - 1, lambda p: (p - 1) / p),
            "Your ring stops after the reduce-scatter. It has 2(W−1) steps.",
        ),
        Mistake("tree-once", _crossing(levels=log2), "Your tree goes up only. The sum has to come down again."),
        Mistake(
            "ring-without-chunk-loss",
            _crossing(parts=lambda p: 2),
            "Your ring moves 2 n bytes. In each half there is one chunk that a rank never sends.",
        ),
        Mistake(
            "natural-logarithm",
            _crossing(levels=lambda p: 2 * log(p)),
            "Your tree has ln(W) levels, by the natural logarithm. Each level doubles the ranks.",
        ),
        Mistake(
            "negative",
            lambda ranks, alpha, rate: -_crossover(ranks, alpha, rate),
            "The sign is turned: take the tree's part from the ring's on one side, the ring's from the tree's on "
            "the other.",
        ),
        Mistake(
            "tree-without-latency",
            lambda ranks, alpha, rate: alpha * rate * 2 * (ranks - 1) / (2 * log2(ranks) - 2 * (ranks - 1) / ranks),
            "Your tree starts its messages for free. It pays alpha in each of its 2 log2(W) steps.",
        ),
        Mistake(
            "inverse-rate",
            lambda ranks, alpha, rate: _crossover(ranks, alpha, 1 / rate),
            "You took rate for seconds per byte. It is bytes per second.",
        ),
        Mistake(
            "forgot-alpha", lambda ranks, alpha, rate: _crossover(ranks, 1, rate), "alpha is missing in your result."
        ),
        Mistake(
            "start-as-its-bytes",
            lambda ranks, alpha, rate: alpha * rate,
            "That is where the start and the bytes of one message cost the same. The question is where ring and "
            "tree take the same time.",
        ),
        Mistake(
            "starts-of-a-ring",
            lambda ranks, alpha, rate: alpha * rate * ranks,
            "That is where the starts and the bytes of a ring cost the same. The question is where ring and tree "
            "take the same time.",
        ),
    ),
    right="Below that size the latency decides, above it the bandwidth.",
)

# Seconds of gloo's all_reduce by bytes on 2 CPU processes: a run of labs/collectives.py, cpu tier.
MEASURED = ((4096, 0.000267), (65_536, 0.000310), (1_048_576, 0.000864), (4_194_304, 0.003086),
            (16_777_216, 0.011486), (67_108_864, 0.048200))  # fmt: skip

_FIT_STUB = '''\
def fit(points):
    """[alpha, beta] of seconds = alpha + beta * bytes.

    points: (bytes, seconds) pairs, at least two sizes
    """
    return ...
'''

_FIT_SOLUTION = """\
def fit(points):
    n = len(points)
    mean_size = sum(size for size, _ in points) / n
    mean_time = sum(time for _, time in points) / n
    together = sum((size - mean_size) * (time - mean_time) for size, time in points)
    spread = sum((size - mean_size) ** 2 for size, _ in points)
    beta = together / spread
    return [mean_time - beta * mean_size, beta]
"""


def _fit(points) -> list[float]:
    """Least squares by the normal equations, in exact fractions of the floats."""
    from fractions import Fraction

    pairs = [(Fraction(size), Fraction(time)) for size, time in points]
    n, x, y = len(pairs), sum(size for size, _ in pairs), sum(time for _, time in pairs)
    xx, xy = sum(size * size for size, _ in pairs), sum(size * time for size, time in pairs)
    beta = (n * xy - x * y) / (n * xx - x * x)
    return [float((y - beta * x) / n), float(beta)]


def _origin(points) -> list[float]:
    beta = sum(size * time for size, time in points) / sum(size * size for size, _ in points)
    return [0.0, beta]


def _ends(points) -> list[float]:
    (first, start), (last, end) = min(points), max(points)
    beta = (end - start) / (last - first)
    return [start - beta * first, beta]


def _smallest(points) -> list[float]:
    """The smallest message's time taken as α, and the rest of the largest one's as its bytes."""
    (_, alpha), (size, time) = min(points), max(points)
    return [alpha, (time - alpha) / size]


def _mean_rate(points) -> list[float]:
    alpha, _ = _fit(points)
    return [alpha, sum(time / size for size, time in points) / len(points)]


def _turned(points) -> list[float]:
    """Bytes fitted to seconds, and solved for seconds."""
    offset, slope = _fit([(time, size) for size, time in points])
    return [-offset / slope, 1 / slope]


FIT = Function(
    key="fit",
    level=3,
    title="Alpha and beta of a machine",
    lists=True,
    prompt="Write `fit(points)`. `points` are pairs (bytes, seconds) of measured collectives, in any order. "
    "Return `[alpha, "
    "beta]` of the straight line seconds = alpha + beta × bytes that fits them best by **least squares**: alpha in "
    "seconds, beta in seconds for each byte. Where the points are noisy one of them can come out below zero: return "
    "it as it is.\n\nOne of the cases is a real measurement: gloo's all-reduce on two "
    "processes.",
    hints=(
        "beta = sum of (x − mean x)(y − mean y) over the points, divided by the sum of (x − mean x)².",
        "The line passes through the point (mean x, mean y): that gives alpha.",
    ),
    solution="```python\n"
    f"{_FIT_SOLUTION}```\n\n"
    f"For the measured points: alpha = {_fit(MEASURED)[0] * 1e6:.0f} µs and 1/beta = "
    f"{1e-9 / _fit(MEASURED)[1]:.2f} GB/s. Look at the residuals too: the smallest message took "
    f"{MEASURED[0][1] * 1e6:.0f} µs. Plain least squares listens to the large messages and hardly sees the small ones. "
    "The lab therefore minimises the *relative* errors.",
    function="fit",
    stub=_FIT_STUB,
    reference=_fit,
    cases=(
        ([(1_000, 0.003), (2_000, 0.004), (5_000, 0.007)],),
        (list(MEASURED),),
        ([(10**6, 0.02), (10**3, 0.01), (10**7, 0.09), (10**5, 0.012), (10**6, 0.023)],),
        ([(1_000, 0.001), (2_000, 0.003), (4_000, 0.009), (7_000, 0.013)],),
        ([(512, 2e-6), (512, 9e-6), (4096, 3e-5), (65_536, 9e-4)],),
        ([(7, 3.0), (3, 0.5), (5, 1.0)],),
        ([(64, 3.1e-5), (128, 2.6e-5), (256, 2.9e-5), (1024, 2.2e-5)],),
        ([(8, 2.1e-5), (16, 1.9e-5), (8, 2.4e-5), (16, 2.0e-5), (24, 2.0e-5)],),
        ([(2048, 5.5e-5), (1024, 6e-5)],),
    ),
    mistakes=(
        Mistake("swapped", lambda points: _fit(points)[::-1], "You returned [beta, alpha]: alpha comes first."),
        Mistake(
            "rate",
            lambda points: [_fit(points)[0], 1 / _fit(points)[1] if _fit(points)[1] else 0.0],
            "Your second number is bytes per second. beta is seconds for each byte, one over that.",
        ),
        Mistake(
            "through-origin",
            _origin,
            "Your line goes through zero, so alpha is 0. But starting a message takes time, also for no bytes.",
        ),
        Mistake(
            "two-points", _ends, "Your line joins the smallest and the largest message. Least squares uses all points."
        ),
        Mistake(
            "smallest-is-alpha",
            _smallest,
            "You took the time of the smallest message as alpha. It has bytes too, and one point is a noisy witness.",
        ),
        Mistake(
            "alpha-not-below-zero",
            lambda points: [max(_fit(points)[0], 0), _fit(points)[1]],
            "Your alpha is never below zero. Least squares does not know that: return what comes out.",
        ),
        Mistake(
            "beta-not-below-zero",
            lambda points: [_fit(points)[0], max(_fit(points)[1], 0)],
            "Your beta is never below zero. Least squares does not know that: return what comes out.",
        ),
        Mistake(
            "mean-of-ratios",
            _mean_rate,
            "Your beta is the mean of the points' own ratios. For small messages that is nearly all latency: use "
            "the slope.",
        ),
        Mistake("turned", _turned, "You fitted bytes to seconds. The errors are in the seconds: fit seconds to bytes."),
    ),
    right="With these two numbers you can predict a collective that you have not run.",
)

EXERCISES = (CROSSOVER, FIT)
