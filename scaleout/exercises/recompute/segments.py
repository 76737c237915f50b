"""The exercise of `recompute` on which inputs are kept: a segment made again at once, or every k-th block alone."""

from __future__ import annotations

from math import ceil

from scaleout.exercises.engine import Function, Mistake
from scaleout.exercises.recompute.sizes import BLOCK, NAME, SHAPE, X

_STUB = '''\
def segments(layers, k, x, block, together):
    """[MB held at most, blocks made again] in one step.

    layers: blocks of the model, all alike
    x: MB of a block's input
    block: MB that a block keeps for its backward, x among them
    together: True: of every k blocks the first keeps its input,
            and all k are made again at once.
        False: of every k blocks the first keeps its input and is
            made again alone; the others keep all.
    """
    return ...
'''

_SOLUTION = """\
def segments(layers, k, x, block, together):
    firsts = range(0, layers, k)
    if together:
        most = 0
        for number, first in enumerate(firsts):
            last = min(first + k, layers)       # the end may be short
            most = max(most, number * x + (last - first) * block)
        return [most, layers]
    kept = len(firsts) * x + (layers - len(firsts)) * block
    rebuilt = block - x if firsts[-1] == layers - 1 else 0
    return [kept + rebuilt, len(firsts)]
"""


def _segments(layers, k, x, block, together) -> list:
    """What stands after each forward, rebuild and backward, played through."""
    missing = [together or i % k == 0 for i in range(layers)]
    saved = [(x if i % k == 0 else 0) if missing[i] else block for i in range(layers)]
    peak, recomputed = sum(saved), sum(missing)
    for i in reversed(range(layers)):
        for j in range(i // k * k, i + 1) if missing[i] and together else [i]:
            saved[j], missing[j] = block, False
        peak = max(peak, sum(saved))
        saved[i] = 0
    return [peak, recomputed]


def _count(layers: int, k: int) -> int:
    return ceil(layers / k)


def _plain(layers, k, x, block, together, peak=None, recomputed=None) -> list:
    """The right answer, with one of its two numbers replaced."""
    right = _segments(layers, k, x, block, together)
    return [right[0] if peak is None else peak, right[1] if recomputed is None else recomputed]


def _doubled(layers, k, x, block, together) -> list:
    """All inputs, and beside them a segment with its own input in it once more."""
    if not together:
        return _segments(layers, k, x, block, together)
    return _plain(layers, k, x, block, together, peak=_count(layers, k) * x + min(k, layers) * block)


def _after_forward(layers, k, x, block, together) -> list:
    """What stands when the forward is over."""
    n = _count(layers, k)
    return _plain(layers, k, x, block, together, peak=n * x + (0 if together else (layers - n) * block))


def _floored(layers, k, x, block, together) -> list:
    """Segments rounded down, so that the short one at the end is nowhere."""
    n = max(layers // k, 1)
    if together:
        return [(n - 1) * x + min(k, layers) * block, layers]
    remaining = layers - n
    return [n * x + remaining * block + (block - x if k == 1 else 0), n]


def _one_by_one(layers, k, x, block, together) -> list:
    """In a segment one block whole at a time."""
    if not together:
        return _segments(layers, k, x, block, together)
    return _plain(layers, k, x, block, together, peak=(_count(layers, k) - 1) * x + block)


def _rebuilt_at_the_end(layers, k, x, block, together) -> list:
    """A rebuilt block on top of all that others keep, wherever it lies."""
    if together:
        return _segments(layers, k, x, block, together)
    n = _count(layers, k)
    return [n * x + (layers - n) * block + block - x, n]


def _last_short(layers, k, x, block, together) -> list:
    """The last segment, though it may be short and an earlier one larger."""
    if not together:
        return _segments(layers, k, x, block, together)
    n = _count(layers, k)
    return [(n - 1) * x + (layers - (n - 1) * k) * block, layers]


def _peak(k: int) -> float:
    return _segments(SHAPE.layers, k, X, BLOCK, True)[0] / 1e9


ROOT = ceil(SHAPE.layers**0.5)
SEGMENTS = Function(
    key="segments",
    level=3,
    minutes=12,
    title="Segments, or every k-th block",
    prompt="Two ways to keep fewer blocks. Write `segments(layers, k, x, block, together)`, which gives "
    "`[MB held at most, blocks made again]` of one step. Count the blocks' activations alone.\n\n"
    "- `together`: the model is cut into segments of k blocks, and the last may be shorter. A segment keeps the input "
    "of its first block. Before the backward of its last block all of it is made again.\n"
    "- Not `together`: blocks 0, k, 2k, ... keep their input alone, and each is made again before its own backward. "
    "All other blocks keep everything.\n"
    "- What a block has is freed when its backward is done. A block's `block` MB have its input, `x` MB, among them.",
    hints=(
        "Play it through: forward to the end, then backward from the last block. When is most held?",
        "While a segment is whole, which inputs are still kept? Those of the segments before it.",
        "Not together: the fullest moment is the end of the forward, unless the very last block is made again.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    f"{NAME}, one sequence of 8,192 tokens: x = {X / 1e6:.0f} and block = {BLOCK / 1e6:,.0f} MB in {SHAPE.layers} "
    f"layers. Segments of one block hold {_peak(1):.1f} GB at most, segments of √{SHAPE.layers} ≈ {ROOT} hold "
    f"{_peak(ROOT):.1f} GB, and both make all blocks again. **√L is for a chain whose layers keep no more than their "
    "input:** L/k segments' inputs and the k layers of one are least where they are equal (arXiv 1604.06174). A "
    f"transformer's block keeps {BLOCK / X:.0f} inputs' worth, so that k² = L · x / block, and k is "
    f"{(SHAPE.layers * X / BLOCK) ** 0.5:.1f}. *Marking every √n-th node as a checkpoint optimizes memory usage* "
    "(akash5100.github.io, *Deep network training hack*), and a site with interview questions has as its answer "
    "`activation_bytes_per_layer * round(sqrt(n_layers))` (torchedup.dev, *Gradient checkpointing savings*): that "
    "forgets the segment that is made again.\n\n"
    "Every k-th block is another thing: it makes fewer blocks again. torchtitan does so, and `every_n_layers` in "
    "transformers (pull request 48200).",
    function="segments",
    stub=_STUB,
    reference=_segments,
    lists=True,
    cases=(
        (32, 1, 67, 1448, True),
        (32, 6, 67, 1448, True),
        (32, 4, 67, 1448, True),
        (32, 32, 67, 1448, True),
        (32, 1, 67, 1448, False),
        (32, 2, 67, 1448, False),
        (32, 4, 67, 1448, False),
        (7, 3, 2, 30, True),
        (7, 3, 2, 30, False),
        (9, 4, 1, 10, True),
        (9, 4, 1, 10, False),
        (10, 4, 1, 10, False),
        (16, 4, 1, 1, True),
        (17, 4, 3, 40, True),
        (11, 5, 3, 50, False),
        (5, 7, 2, 20, True),
        (1, 1, 4, 9, True),
        (1, 1, 4, 9, False),
        (12, 5, 8, 10, True),
        (13, 3, 5, 11, True),
        (12, 5, 2, 25, False),
    ),
    mistakes=(
        Mistake(
            "input-twice",
            _doubled,
            "You added a whole segment to the inputs of all. Its own input is among what it holds, so count those "
            "of the segments before it.",
        ),
        Mistake(
            "after-forward",
            _after_forward,
            "You gave what is held after the forward. In the backward something is made again, and lies there as well.",
        ),
        Mistake(
            "rounded-down",
            _floored,
            "You rounded the number of segments down. The last one may be shorter, but it is there.",
        ),
        Mistake(
            "one-by-one",
            _one_by_one,
            "You have one block of a segment whole at a time. A segment is made again at once: all its blocks are "
            "whole.",
        ),
        Mistake(
            "ways-swapped",
            lambda *case: _segments(*case[:4], not case[4]),
            "You have the two ways the wrong way round. Together: all k are made again at once.",
        ),
        Mistake(
            "rebuilt-on-top",
            _rebuilt_at_the_end,
            "You added the block that is made again to all that others keep. Before its backward the blocks behind "
            "it are freed.",
        ),
        Mistake(
            "last-segment",
            _last_short,
            "You looked at the last segment. Where it is short, the one before it holds more.",
        ),
        Mistake(
            "one-a-segment",
            lambda *case: _plain(*case, recomputed=_count(case[0], case[1])),
            "You counted one block a segment. Where segments are made again at once, all their blocks are.",
        ),
        Mistake(
            "firsts-kept",
            lambda *case: _plain(*case, recomputed=case[0] - _count(case[0], case[1]) if case[4] else None),
            "You left the first block of each segment out. Its input is kept, not what it makes of it.",
        ),
        Mistake(
            "all-again",
            lambda *case: _plain(*case, recomputed=case[0]),
            "You say that all blocks are made again. Where each is made again alone, those that keep everything "
            "are not.",
        ),
    ),
    right="Fewer inputs kept, more of them whole at a time: what counts is how much a block keeps beside its input.",
)

EXERCISES = (SEGMENTS,)
