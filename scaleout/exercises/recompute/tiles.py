"""Exercises of `recompute` on tiles of a block: what an old setting does with a new kernel, and the cheapest bytes."""

from __future__ import annotations

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
    "*selective* recomputation dropped the core of attention: the probabilities and the output, "
    f"**{_NAIVE[0] / 1e9:.2f} GB** a block, for {_ms(_NAIVE[1])}. Now the job takes a fused kernel (FlashAttention), "
    f"with which a block keeps {BLOCK / 1e9:.2f} GB, and leaves the setting on. What does the setting do now?",
    hints=(
        "What does a fused kernel keep for its backward?",
        "What does a byte cost that is freed by running attention again?",
    ),
    solution=f"It frees at most the output, {_FUSED[0] / 1e6:.0f} of {BLOCK / 1e6:,.0f} MB, for {_ms(_FUSED[1])} a "
    f"block: {1e12 * _FUSED[1] / _FUSED[0]:.1f} ms a GB, the dearest bytes of the block. The probabilities are not "
    "kept any more: the fused kernel makes them again in its own backward, piece by piece. The cheap bytes are now "
    "elsewhere. "
    f"Norms, SiLU, the product behind it and a copy are {_CHEAP[0] / 1e6:.0f} MB for {_ms(_CHEAP[1])}, "
    f"{1e12 * _CHEAP[1] / _CHEAP[0]:.1f} ms a GB.\n\n"
    "Even the output stays where only the core is checkpointed, because the projection behind it keeps its input: *No "
    "memory saving when enabling activation checkpointing for core_attn* (NVIDIA/Megatron-LM, issue 1886). Asked "
    "whether the two overlap, a maintainer of Megatron-LM first said *They are orthogonal*, and a year and a "
    "measurement later *Selective recomputation should not be needed if using Flash Attention* (issue 464). "
    "**Selective means: what is large and cheap. Which that is depends on the kernel.**",
    options=(
        Option(
            "little-and-dear",
            "Frees a twentieth of a block at most, for the dearest bytes",
            "Right. The large tensor that it was made for is not kept by a fused kernel.",
            True,
        ),
        Option(
            "as-before",
            "Frees as much as before, for less time than before",
            "The probabilities of the naive kernel were nearly all of it. A fused kernel does not keep them.",
        ),
        Option(
            "nothing",
            "Nothing, for no time: the kernel recomputes anyway",
            "The kernel recomputes probabilities inside its backward. The setting runs the whole attention forward "
            "once more, before that.",
        ),
        Option(
            "needed",
            "Lets the kernel recompute: without it scores are kept",
            "The kernel does that by itself. It keeps Q, K, V, its output and one number a query and head.",
        ),
        Option(
            "mlp",
            "Frees the MLP's tiles, since attention has nothing to free",
            "It drops what it was told to drop, attention's core. The MLP's tiles have to be named.",
        ),
    ),
)

_STUB = '''\
def to_drop(tiles, blocks, free):
    """In how many blocks each tile is dropped, in the order of tiles.

    tiles: [[MB, ms], ...] of one block: what a tile keeps, and
        what it takes to make it again
    blocks: the model has so many, all alike
    free: MB that are to be freed
    """
    return ...
'''

_SOLUTION = """\
from math import ceil


def to_drop(tiles, blocks, free):
    counts = [0] * len(tiles)
    price = lambda i: tiles[i][1] / tiles[i][0]      # ms a MB
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
    prompt="Write `to_drop(tiles, blocks, free)`: which tiles to drop so that at least `free` MB become free, the "
    "cheapest byte first. `tiles` has the MB that a tile keeps and the ms it takes to make it again, in one block; all "
    "`blocks` are alike.\n\n"
    "- Drop the tile whose MB costs least, in as many blocks as are needed and no more; if all blocks are not enough, "
    "go on with the next tile.\n"
    "- Tiles are dropped whole, so a little more than `free` may become free.\n"
    "- If everything together does not free as much, drop everything.\n\n"
    "The answer is a list, for each tile the number of blocks in which it is dropped. No two tiles have the same "
    "price.",
    hints=(
        "What is the price of a MB? Sort by that.",
        "A tile is needed in free / MB blocks, rounded up, and there are no more than `blocks`.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    f"A block of {NAME}, one sequence of {SEQ:,} tokens: {_CHEAP[0] / BLOCK:.0%} of its bytes are made again in "
    f"{_CHEAP[1] / FORWARD:.0%} of a forward. Behind those every byte is the output of a product or of attention, and "
    "costs about six times as much. That is the whole reason for being selective.\n\n"
    "Greedy is not always best. Because the last tile is dropped whole, another choice may free just enough for less: "
    "`exact` in `scaleout/timing/knapsack.py` looks for it. In this model that saves a few per cent of the time at "
    "most, and mostly less than one.",
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
            lambda *case: _drop(*case, key=lambda size, ms: ms),
            "You took the fastest tile first. A fast tile may free little: what does its MB cost?",
        ),
        Mistake(
            "largest",
            lambda *case: _drop(*case, key=lambda size, ms: -size),
            "You took the largest tile first, whatever it costs to make again.",
        ),
        Mistake(
            "dearest",
            lambda *case: _drop(*case, key=lambda size, ms: -ms / size),
            "You begin with the tile whose MB is dearest.",
        ),
        Mistake(
            "in-order",
            lambda *case: _drop(*case, key=lambda size, ms: 0),
            "You took the tiles in the order given. Sort them by the price of a MB.",
        ),
        Mistake(
            "all-blocks",
            lambda *case: _drop(*case, at_once=True),
            "You drop a tile in all blocks or in none. Fewer blocks may be enough, and each costs time.",
        ),
        Mistake(
            "rounded-down",
            lambda *case: _drop(*case, rounded=int),
            "You rounded the number of blocks down. Then a little less than asked for is free.",
        ),
        Mistake(
            "one-more",
            lambda *case: _drop(*case, rounded=lambda n: int(n) + 1),
            "You took one block more than needed where the division leaves nothing.",
        ),
        Mistake(
            "one-block",
            lambda *case: _drop(*case, limit=1),
            "You drop a tile in one block at most. There are more of them, all alike.",
        ),
        Mistake(
            "no-end",
            lambda *case: _drop(*case, limit=10**9),
            "You drop a tile in more blocks than there are. When it is used up, go on with the next.",
        ),
        Mistake("one-tile", _one_tile, "You stop after the cheapest tile. Where it is not enough, take the next."),
    ),
    right="Cheap bytes first, until it fits: that is all that selective means.",
)

EXERCISES = (CORE, DROP)
