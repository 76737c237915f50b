"""Exercises of `recompute` on a block's saved tensors: an old setting with a new kernel, and the cheapest bytes."""

from __future__ import annotations

from functools import partial
from math import ceil

from scaleout.exercises.engine import Choice, Function, Mistake, Option
from scaleout.exercises.recompute.sizes import BLOCK, CHEAP, FORWARD, NAME, SEQ, cost

_NAIVE, _FUSED = cost("naive", "scores", "attention"), cost("sdpa", "attention")
_CHEAP = cost("sdpa", *CHEAP)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


CORE = Choice(
    key="old-setting",
    level=2,
    minutes=4,
    title="An old setting, a new kernel",
    prompt=f"{NAME}, one sequence of {SEQ:,} tokens. With a naive kernel, which writes its probabilities to memory, "
    "*selective* recomputation freed the core of attention, its probabilities and its output: "
    f"**{_NAIVE[0] / 1e9:.2f} GB** per block, recomputed in {_ms(_NAIVE[1])}. Now the job uses a fused kernel "
    f"(FlashAttention), with which a block saves {BLOCK / 1e9:.2f} GB, and the setting is still on. What does it do "
    "now?",
    hints=(
        "What does a fused kernel save for its backward pass?",
        "How long does it take to free a byte by running attention again?",
    ),
    solution=f"It frees at most the output, {_FUSED[0] / 1e6:.0f} of {BLOCK / 1e6:,.0f} MB, for {_ms(_FUSED[1])} per "
    f"block: {1e12 * _FUSED[1] / _FUSED[0]:.1f} ms per GB, the most expensive bytes of the block. The probabilities "
    "are no longer saved, because the fused kernel recomputes them block by block in its own backward pass. The cheap "
    f"bytes are now elsewhere: norms, SiLU, SiLU times up and a copy are {_CHEAP[0] / 1e6:.0f} MB for "
    f"{_ms(_CHEAP[1])}, {1e12 * _CHEAP[1] / _CHEAP[0]:.1f} ms per GB.\n\n"
    "If only the core is checkpointed, even the output stays in memory, because the projection that follows saves its "
    "input: *No memory saving when enabling activation checkpointing for core_attn* (NVIDIA/Megatron-LM, issue 1886). "
    "Asked whether the two overlap, a maintainer of Megatron-LM first said *They are orthogonal*, and a year and a "
    "measurement later *Selective recomputation should not be needed if using Flash Attention* (issue 464). "
    "**Selective means to recompute what is large and cheap. Which tensors those are depends on the kernel.**",
    options=(
        Option(
            "little-and-dear",
            "Frees a twentieth of a block at most, at the highest cost",
            "Right. A fused kernel does not save the large tensor that the setting was made for.",
            True,
        ),
        Option(
            "as-before",
            "Frees as much as before, for less time than before",
            "The probabilities of the naive kernel were nearly all of it. A fused kernel does not save them.",
        ),
        Option(
            "nothing",
            "Nothing, for no time: the kernel recomputes anyway",
            "The kernel recomputes probabilities inside its backward pass. The setting runs the whole forward of "
            "attention "
            "once more, before that.",
        ),
        Option(
            "needed",
            "Lets the kernel recompute: without it, scores are saved",
            "The kernel does that by itself. It saves Q, K, V, its output, and one number per query and head.",
        ),
        Option(
            "mlp",
            "Frees the MLP's tensors, as attention has nothing to free",
            "It frees what it was set to free, attention's core. The MLP's tensors have to be named.",
        ),
    ),
)

_STUB = '''\
def to_drop(tiles, blocks, free):
    """In how many blocks each tensor is freed, in the given order.

    tiles: [[MB, ms], ...] for the saved tensors of one block: its
        size, and the time to recompute it
    blocks: number of blocks, all alike
    free: MB to be freed
    """
    return ...
'''

_SOLUTION = """\
from math import ceil


def to_drop(tiles, blocks, free):
    counts = [0] * len(tiles)
    price = lambda i: tiles[i][1] / tiles[i][0]      # ms per MB
    for i in sorted(range(len(tiles)), key=price):
        counts[i] = min(blocks, ceil(max(0, free) / tiles[i][0]))
        free -= counts[i] * tiles[i][0]
    return counts
"""


def _drop(tiles, blocks, free, key=lambda size, ms: ms / size, rounded=ceil, limit=None, at_once=False) -> list[int]:
    """Greedy in the order of `key`, or with something wrong: `most` blocks, or all of them at once."""
    counts = [0] * len(tiles)
    for i in sorted(range(len(tiles)), key=lambda i: key(*tiles[i])):
        size = tiles[i][0]
        n = rounded(free / size) if free > 0 else 0
        counts[i] = min(limit or blocks, n)
        if at_once and n:
            counts[i] = blocks
        free -= counts[i] * size
    return counts


def _one_tile(tiles, blocks, free) -> list[int]:
    """The cheapest tile alone."""
    counts = _drop(tiles, blocks, free)
    cheapest = min(range(len(tiles)), key=lambda i: tiles[i][1] / tiles[i][0])
    return [n if i == cheapest else 0 for i, n in enumerate(counts)]


_LLAMA = [[67, 0.08], [69, 0.51], [68, 1.05], [235, 1.45], [235, 0.23], [235, 0.33]]
DROP = Function(
    key="cheapest-bytes",
    level=2,
    minutes=10,
    title="Cheapest bytes first",
    prompt="Write `to_drop(tiles, blocks, free)`, which says which saved tensors to recompute so that at least `free` "
    "MB are freed, the cheapest byte first. `tiles` has, for each saved tensor of one block, its size in MB and the ms "
    "it takes to recompute; all `blocks` are alike.\n\n"
    "- Begin with the tensor that takes the least time per MB. Free it in as many blocks as needed and no more. If all "
    "blocks are not enough, go on with the next one.\n"
    "- Tensors are freed whole, so the total may be a little more than `free`.\n"
    "- If all tensors together have less than `free`, free everything.\n\n"
    "Return a list with the number of blocks for each tensor. No two tensors take the same time per MB.",
    hints=(
        "How long does one MB of a tensor take? Sort by that.",
        "A tensor is freed in free / MB blocks, rounded up, and in no more than `blocks`.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    f"In a block of {NAME}, for one sequence of {SEQ:,} tokens, {_CHEAP[0] / BLOCK:.0%} of the bytes are recomputed in "
    f"{_CHEAP[1] / FORWARD:.0%} of the forward time. All other bytes are outputs of matrix multiplications or of "
    "attention, and take about six times as long. That is the whole reason for being selective.\n\n"
    "Greedy is not always best. Because the last tensor is freed whole, another choice may free just enough in less "
    "time. `exact` in `scaleout/timing/knapsack.py` looks for it. In this model it saves a few percent of that time at "
    "most, and usually less than one.",
    function="to_drop",
    stub=_STUB,
    reference=_drop,
    lists=True,
    cases=(
        (_LLAMA, 32, 1000),
        (_LLAMA, 32, 10000),
        (_LLAMA, 32, 18000),
        (_LLAMA, 32, 40000),
        (_LLAMA, 4, 3000),
        (_LLAMA, 32, 0),
        ([[10, 1], [40, 2]], 3, 40),
        ([[10, 1], [40, 2]], 3, 41),
        ([[10, 1], [40, 2]], 3, 130),
        ([[10, 1], [40, 2]], 3, 151),
        ([[5, 4], [7, 1], [90, 9]], 7, 300),
        ([[100, 30], [8, 1], [30, 3]], 2, 70),
        ([[100, 30], [8, 1], [30, 3]], 2, 60),
        ([[20, 5]], 6, 65),
        ([[20, 5]], 6, 60),
        ([[20, 5]], 6, 500),
        ([[30, 9], [25, 1], [60, 7]], 5, 190),
        ([[12, 1], [50, 6], [9, 4]], 1, 55),
        # prices of more than 1 ms a MB, and prices that are alike when they are rounded
        ([[5, 40], [7, 9], [4, 30]], 4, 20),
        ([[8, 28], [6, 13], [9, 50]], 3, 25),
        ([[3, 20], [2, 5]], 6, 10),
        ([[52, 10], [58, 10], [30, 4]], 3, 200),
        ([[21, 10], [29, 10]], 4, 50),
        ([[70, 20], [65, 17]], 2, 100),
    ),
    mistakes=(
        Mistake(
            "by-time",
            partial(_drop, key=lambda size, ms: ms),
            "You took the fastest tensor first. It may free little: what does its MB cost?",
        ),
        Mistake(
            "largest",
            partial(_drop, key=lambda size, ms: -size),
            "You took the largest tensor first, however long it takes to recompute.",
        ),
        Mistake(
            "dearest",
            partial(_drop, key=lambda size, ms: -ms / size),
            "You begin with the tensor whose MB is the most expensive.",
        ),
        Mistake(
            "in-order",
            partial(_drop, key=lambda size, ms: 0),
            "You took the tensors in the order given. Sort them by the time per MB.",
        ),
        Mistake(
            "all-blocks",
            partial(_drop, at_once=True),
            "You free a tensor in all blocks or in none. Fewer blocks may be enough, and each costs time.",
        ),
        Mistake(
            "rounded-down",
            partial(_drop, rounded=int),
            "You rounded the number of blocks down. That frees a little less than asked for.",
        ),
        Mistake(
            "one-more",
            partial(_drop, rounded=lambda n: int(n) + 1),
            "You took one block more than needed where the division has no remainder.",
        ),
        Mistake(
            "one-block",
            partial(_drop, limit=1),
            "You free a tensor in one block at most. There are more blocks, all alike.",
        ),
        Mistake(
            "no-end",
            partial(_drop, limit=10**9),
            "You free a tensor in more blocks than there are. When all blocks are used, go on with the next tensor.",
        ),
        Mistake("one-tile", _one_tile, "You stop after the cheapest tensor. Where it is not enough, take the next."),
    ),
    right="The cheapest bytes first, until it fits: that is selective checkpointing.",
)

EXERCISES = (CORE, DROP)
