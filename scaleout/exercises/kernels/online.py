"""Exercises of `kernels` on the online softmax: two blocks merged by hand, and by a function; a row of the backward."""

from __future__ import annotations

from math import exp

from scaleout.exercises.engine import Function, Mistake, Number, Slip

FIRST, SECOND = (2.0, 3.0, 4.0), (4.0, 1.5, 8.0)  # maximum, sum of exp(score - maximum), the same times v
SHRINK = exp(FIRST[0] - SECOND[0])
OUTPUT = (SHRINK * FIRST[2] + SECOND[2]) / (SHRINK * FIRST[1] + SECOND[1])
TWO_BLOCKS = Number(
    key="two-blocks",
    level=1,
    minutes=3,
    short=True,
    title="Two blocks of keys",
    prompt="A query has seen two blocks of keys. With the largest score $m$ of a block, its sum $\\ell$ of "
    "$e^{x-m}$ over the scores $x$, and its sum $u$ of $e^{x-m} v$ over the values $v$, which are plain numbers "
    f"here:\n\n| block | $m$ | $\\ell$ | $u$ |\n|---|---:|---:|---:|\n| 1 | {FIRST[0]:.0f} | {FIRST[1]} | "
    f"{FIRST[2]} |\n| 2 | {SECOND[0]:.0f} | {SECOND[1]} | {SECOND[2]} |\n\nWhat is the output of attention over "
    f"both blocks?",
    hints=(
        "Both blocks need the same maximum. Which one?",
        "To change block 1 from its own maximum to the common one, multiply its sums by $e^{2-4}$.",
    ),
    solution=f"The common maximum is 4. Block 1 shrinks by $e^{{-2}}$ = {SHRINK:.4f}: ℓ = {SHRINK * FIRST[1]:.3f} + "
    f"1.5 = {SHRINK * FIRST[1] + SECOND[1]:.3f} and u = {SHRINK * FIRST[2]:.3f} + 8 = "
    f"{SHRINK * FIRST[2] + SECOND[2]:.3f}. The output is u / ℓ = **{OUTPUT:.2f}**. Block 2, whose scores are "
    f"larger, weighs most.",
    value=OUTPUT,
    unit="times",
    units=("times",),
    dimension="times",
    slips=(
        Slip(
            "no-shrinking",
            (FIRST[2] + SECOND[2]) / (FIRST[1] + SECOND[1]),
            "You added sums that were made with two different maxima.",
        ),
        Slip(
            "other-way",
            (FIRST[2] + SHRINK * SECOND[2]) / (FIRST[1] + SHRINK * SECOND[1]),
            "You shrank block 2. Its maximum is the common one, so it stays as it is.",
        ),
        Slip(
            "mean",
            (FIRST[2] / FIRST[1] + SECOND[2] / SECOND[1]) / 2,
            "You averaged the outputs of the blocks. A block with larger scores weighs more.",
        ),
        Slip(
            "sum-alone",
            (FIRST[2] + SECOND[2]) / (SHRINK * FIRST[1] + SECOND[1]),
            "You shrank the sum of block 1, and not its weighted sum of values.",
        ),
        Slip(
            "values-alone",
            (SHRINK * FIRST[2] + SECOND[2]) / (FIRST[1] + SECOND[1]),
            "You shrank the weighted sum of block 1, and not its sum of exponentials.",
        ),
        Slip("last-block", SECOND[2] / SECOND[1], "That is the output of block 2 alone."),
    ),
    right="Nothing was approximated: one pass over the keys in any order gives the softmax over all of them.",
)

P, DP = (0.2, 0.3, 0.5), (1.0, 3.0, 5.0)  # probabilities of a row, and the gradients that come back to them
INNER = sum(p * g for p, g in zip(P, DP, strict=True))
DS = P[2] * (DP[2] - INNER)
ROW_SUM = Number(
    key="score-gradient",
    level=2,
    minutes=4,
    title="One row of the backward",
    prompt=f"In one row of attention the probabilities are {P[0]}, {P[1]} and {P[2]}, and the gradients of the loss "
    f"with respect to them are {DP[0]:.0f}, {DP[1]:.0f} and {DP[2]:.0f}. What is the gradient with respect to the "
    "**third** score, before the softmax?",
    hints=(
        "$\\partial L / \\partial x_j = p_j (g_j - \\sum_i p_i g_i)$, where $g$ are the gradients of the "
        "probabilities.",
        "The sum is one number per row.",
    ),
    solution=f"The sum is {P[0]} · 1 + {P[1]} · 3 + {P[2]} · 5 = {INNER:.1f}, and the gradient is {P[2]} · (5 − "
    f"{INNER:.1f}) = **{DS:.2f}**. The sum equals the row's output times the gradient of that output, summed over "
    "the head (`rowsum(dO * O)`), so a kernel computes it once per query before it looks at any tile, and needs no "
    "tile's probabilities for it.",
    value=DS,
    unit="times",
    units=("times",),
    dimension="times",
    slips=(
        Slip("no-sum", P[2] * DP[2], "That is p times g. A larger score also makes the other probabilities smaller."),
        Slip(
            "plain-mean",
            P[2] * (DP[2] - sum(DP) / 3),
            "You subtracted the plain mean of the gradients. It has to be weighted by the probabilities.",
        ),
        Slip("not-scaled", DP[2] - INNER, "You left out the factor p of this score."),
        Slip(
            "diagonal-alone",
            P[2] * (1 - P[2]) * DP[2],
            "That is what this score does to its own probability. It changes the other two as well.",
        ),
        Slip("the-sum", INNER, "That is the weighted sum of the row, which every score of the row needs."),
    ),
    right="One number per query replaces a whole row of probabilities.",
)

_STUB = '''\
def merge(a, b):
    """The partial result over the keys of a and of b together.

    a, b: [m, l, u], for one query: the largest score, the sum of
          exp(score - m), and that sum weighted by the values
    A block in which the mask hides every key has l = 0 and u = 0.
    Its m means nothing.
    """
    return ...
'''
_SOLUTION = """\
from math import exp

def merge(a, b):
    if not a[1]:
        return b
    if not b[1]:
        return a
    m = max(a[0], b[0])
    p, q = exp(a[0] - m), exp(b[0] - m)
    return [m, p * a[1] + q * b[1], p * a[2] + q * b[2]]
"""


def merged(a, b) -> list:
    """Both as one. Each is [m, l, u]."""
    if not a[1] or not b[1]:
        return list(b if not a[1] else a)
    return _common(a, b, max(a[0], b[0]))


def _common(a, b, m) -> list:
    p, q = exp(a[0] - m), exp(b[0] - m)
    return [m, p * a[1] + q * b[1], p * a[2] + q * b[2]]


def _plain(a, b) -> list:
    """Sums of two maxima, added as they are; an empty block is seen."""
    return merged(a, b) if not a[1] or not b[1] else [max(a[0], b[0]), a[1] + b[1], a[2] + b[2]]


def _half(a, b, number: int) -> list:
    """One of the two sums brought to the common maximum, the other added as it is."""
    right = merged(a, b)
    return right if not a[1] or not b[1] else [x if i == number or not i else y for i, (x, y) in
                                               enumerate(zip(right, _plain(a, b), strict=True))]  # fmt: skip


MERGE = Function(
    key="merge-blocks",
    level=2,
    minutes=7,
    title="Blocks in any order",
    prompt="Write `merge(a, b)`, which puts the partial results of two blocks of keys together. Each is `[m, l, u]` "
    "for one query: the largest score, the sum of exp(score − m), and the sum of exp(score − m) · value, where a "
    "value is a plain number.\n\n- Return the same three numbers for the keys of both blocks.\n"
    "- If the mask hides all keys of a block, its `l` and `u` are 0, and its `m` means nothing.\n"
    "- Scores may be as large as 1,000 or as small as −1,000.",
    hints=(
        "Bring both blocks to the larger of the two maxima.",
        "exp(m_a − m) is at most 1 if m is the larger maximum, so it cannot overflow.",
    ),
    solution=f"```python\n{_SOLUTION}```\n\nThe order of the blocks does not matter, and neither does who computed "
    "them: another block of threads (FlashAttention's split over keys), or another GPU, which is the idea of ring "
    "attention. A hidden block with an arbitrary maximum is the classic fault: with −∞ as its maximum, "
    "exp(−∞ − (−∞)) is NaN.",
    function="merge",
    stub=_STUB,
    reference=merged,
    lists=True,
    cases=(
        ([1, 2, 5], [3, 1.5, 6]),
        ([3, 1.5, 6], [1, 2, 5]),
        ([0, 1, 1], [0, 1, 3]),
        ([2, 4, -3], [2.5, 1, 7]),
        ([-3, 2.5, 1], [-1, 1.25, -4]),
        ([1000, 2, 5], [999, 1, 1]),
        ([999, 1.5, 3], [1000, 3, 4]),
        ([-1000, 2, 5], [-1001, 1, 8]),
        ([-998, 2, 5], [-1000, 4, 8]),
        ([2, 3, 4], [9, 0, 0]),
        ([9, 0, 0], [2, 3, 4]),
        ([5, 0, 0], [-2, 1, 7]),
        ([-2, 1.5, 7], [6, 0, 0]),
        ([-500, 3, -2], [0, 0, 0]),
        ([4, 1, 2], [2, 6, 1]),
        ([1, 2, 0], [3, 1.5, 6]),
        ([3, 1.5, 6], [2, 4, 0]),
        ([-2, 3, 0], [-1, 1.25, -4]),
    ),
    mistakes=(
        Mistake("as-they-are", _plain, "You add sums that were made with two different maxima."),
        Mistake("sum-alone", lambda a, b: _half(a, b, 1), "You bring the sum l to the common maximum, and not u."),
        Mistake("values-alone", lambda a, b: _half(a, b, 2), "You bring the sum u to the common maximum, and not l."),
        Mistake(
            "hidden-maximum",
            lambda a, b: _common(a, b, max(a[0], b[0])),
            "Where all keys of a block are hidden, its maximum means nothing. You still use it.",
        ),
        Mistake(
            "hidden-by-values",
            lambda a, b: list(b if not a[2] else a) if not a[2] or not b[2] else merged(a, b),
            "You take a block whose u is 0 for a hidden one. Its values may be 0, or cancel. Look at l.",
        ),
        Mistake(
            "lower-maximum",
            lambda a, b: merged(a, b) if not a[1] or not b[1] else _common(a, b, min(a[0], b[0])),
            "You bring both blocks to the smaller maximum. With scores far apart, exp then overflows.",
        ),
        Mistake(
            "normalized",
            lambda a, b: [*merged(a, b)[:2], merged(a, b)[2] / (merged(a, b)[1] or 1)],
            "Your third number is divided by the sum already. A further block could not be added to it.",
        ),
    ),
    right="This function is all that a kernel, a split over keys, or a ring of GPUs needs to compute an exact softmax.",
)

EXERCISES = (TWO_BLOCKS, ROW_SUM, MERGE)
