"""Exercises of `zero` on shards: whose elements they are, and what becomes of them in a checkpoint."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Option

_STUB = '''\
def owned(sizes, ranks, rank):
    """What a rank owns: a list of [tensor, first, end].

    sizes: elements of each tensor, in order
    tensor: its place in sizes, from 0
    first, end: elements of that tensor, end not counted
    """
    return ...
'''

_SOLUTION = """\
def owned(sizes, ranks, rank):
    each = -(-sum(sizes) // ranks)        # rounded up: the padding
    low, high = rank * each, (rank + 1) * each
    found, start = [], 0
    for tensor, size in enumerate(sizes):
        first, end = max(low - start, 0), min(high - start, size)
        if first < end:
            found.append([tensor, first, end])
        start += size
    return found
"""

Pieces = list[list[int]]


def _pieces_between(sizes, low: int, high: int) -> Pieces:
    """What lies from `low` to `high` of the tensors end to end."""
    pieces, start = [], 0
    for tensor, size in enumerate(sizes):
        first, end = max(low - start, 0), min(high - start, size)
        if first < end:
            pieces.append([tensor, first, end])
        start += size
    return pieces


def _owned(sizes, ranks, rank) -> Pieces:
    length = -(-sum(sizes) // ranks)
    return _pieces_between(sizes, rank * length, (rank + 1) * length)


def _tail_lost(sizes, ranks, rank) -> Pieces:
    length = sum(sizes) // ranks
    return _pieces_between(sizes, rank * length, (rank + 1) * length)


def _tail_to_last(sizes, ranks, rank) -> Pieces:
    length = sum(sizes) // ranks
    return _pieces_between(sizes, rank * length, sum(sizes) if rank == ranks - 1 else (rank + 1) * length)


def _spread(sizes, ranks, rank) -> Pieces:
    """The first ranks with one element more, and no padding."""
    length, remainder = divmod(sum(sizes), ranks)
    low = rank * length + min(rank, remainder)
    return _pieces_between(sizes, low, low + length + (rank < remainder))


def _each_tensor(sizes, ranks, rank) -> Pieces:
    """Every tensor cut for itself."""
    cut = ((tensor, size, -(-size // ranks)) for tensor, size in enumerate(sizes))
    return [
        [tensor, rank * length, min((rank + 1) * length, size)] for tensor, size, length in cut if rank * length < size
    ]


def _whole_by_size(sizes, ranks, rank) -> Pieces:
    """Whole tensors, the largest first, each to the rank that has least."""
    sizes_by_rank, pieces = [0] * ranks, []
    for tensor in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        least = sizes_by_rank.index(min(sizes_by_rank))
        sizes_by_rank[least] += sizes[tensor]
        if least == rank and sizes[tensor]:
            pieces.append([tensor, 0, sizes[tensor]])
    return sorted(pieces)


def _whole_by_place(sizes, ranks, rank) -> Pieces:
    """Whole tensors, each with the rank that owns its first element."""
    return [[tensor, 0, sizes[tensor]] for tensor, first, _ in _owned(sizes, ranks, rank) if not first]


def _padded_end(sizes, ranks, rank) -> Pieces:
    """The padding counted as elements of the last tensor."""
    return _owned([*sizes[:-1], sizes[-1] + -sum(sizes) % ranks], ranks, rank) if sizes else []


def _flat(sizes, ranks, rank) -> Pieces:
    """Places among all elements in place of those in a tensor."""
    starts = [sum(sizes[:tensor]) for tensor in range(len(sizes))]
    return [[tensor, starts[tensor] + first, starts[tensor] + end] for tensor, first, end in _owned(sizes, ranks, rank)]


OWNED = Function(
    key="whose-elements",
    level=3,
    minutes=10,
    title="Whose elements",
    lists=True,
    index=True,
    prompt="ZeRO lays all tensors end to end, pads the end to a multiple of the ranks, and cuts it into equal parts: "
    "rank 0 owns the first, rank 1 the second, and so on. Tensors are cut wherever a part ends. Write "
    "`owned(sizes, ranks, rank)`, a list with one `[tensor, first, end]` for each tensor that the rank has elements "
    "of, in order. Padding is nobody's, and a rank that has padding alone gives an empty list.\n\n"
    "`owned([6, 4, 1], 2, 0)` is `[[0, 0, 6]]`, and `owned([6, 4, 1], 2, 1)` is `[[1, 0, 4], [2, 0, 1]]`: a part has 6 "
    "elements, and the last of rank 1's is padding.",
    hints=(
        "A part has sum(sizes) / ranks elements, rounded up. Which of all elements are this rank's?",
        "A tensor that begins at `start` has the rank's elements from low − start to high − start, as far as the "
        "tensor goes.",
        "Leave out what is empty.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "Equal parts are what a reduce-scatter and an all-gather want. AdamW does not mind where a tensor is cut, for it "
    "looks at one element at a time. Whatever looks at a whole tensor minds: a norm by tensor, Adafactor's rows and "
    "columns, Muon's matrices. torch's `ZeroRedundancyOptimizer` gives each rank whole tensors instead, and "
    "`fully_shard` cuts each tensor by rows.",
    function="owned",
    stub=_STUB,
    reference=_owned,
    cases=(
        ([6, 4, 1], 2, 0),
        ([6, 4, 1], 2, 1),
        ([10, 3, 7, 5], 3, 0),
        ([10, 3, 7, 5], 3, 1),
        ([10, 3, 7, 5], 3, 2),
        ([8, 8], 4, 1),
        ([5], 7, 6),
        ([5], 7, 4),
        ([12, 2, 2, 11, 4], 4, 3),
        ([12, 2, 2, 11, 4], 4, 1),
        ([7, 9], 1, 0),
        ([], 2, 1),
        ([3, 0, 4, 4], 2, 1),
        ([30, 1, 1, 1], 3, 2),
        ([2, 3, 4], 5, 4),
        ([2, 3, 4], 5, 3),
        ([100, 1], 7, 6),
        ([4, 4, 4, 4, 9], 3, 1),
        ([1, 20, 2], 4, 2),
        ([9, 9, 9], 2, 0),
    ),
    mistakes=(
        Mistake(
            "tail-lost", _tail_lost, "You rounded a part down: the last elements have no owner, and are never updated."
        ),
        Mistake(
            "tail-to-last",
            _tail_to_last,
            "You rounded down and gave the last rank the rest. Collectives want equal parts: round up, and pad.",
        ),
        Mistake(
            "spread",
            _spread,
            "You gave the first ranks one element more. Collectives want equal parts, so the end is padded and "
            "only the last ranks have less.",
        ),
        Mistake(
            "each-tensor",
            _each_tensor,
            "You cut every tensor into as many parts as ranks. Here they are laid end to end first, and then cut once.",
        ),
        Mistake(
            "whole-by-size",
            _whole_by_size,
            "You gave whole tensors away, the largest first. That is ZeroRedundancyOptimizer's way; here tensors "
            "are cut where a part ends.",
        ),
        Mistake(
            "whole-by-place",
            _whole_by_place,
            "You gave each tensor whole to the rank where it begins. It is cut where a part ends.",
        ),
        Mistake(
            "flat-places",
            _flat,
            "Your first and end count all elements. They count from the tensor's own first element.",
        ),
        Mistake(
            "end-counted",
            lambda *case: [[tensor, first, end - 1] for tensor, first, end in _owned(*case)],
            "Your end is the last element. It is the one after it, as in a slice.",
        ),
        Mistake(
            "length",
            lambda *case: [[tensor, first, end - first] for tensor, first, end in _owned(*case)],
            "Your third number is how many elements there are. It is where they end.",
        ),
        Mistake(
            "padding-too",
            _padded_end,
            "You counted the padding as elements of the last tensor. A slice must end where the tensor does.",
        ),
        Mistake(
            "from-one",
            lambda sizes, ranks, rank: _owned(sizes, ranks, rank - 1) if rank else [],
            "You numbered the ranks from 1. The first is rank 0.",
        ),
    ),
    right="Every element has one owner, whatever the shapes.",
)

SAVED = Choice(
    key="rank-0-saves",
    level=2,
    minutes=4,
    title="Saved by rank 0",
    prompt="A job under DDP saves with these lines. Every rank loads, and all is well:\n\n"
    "```\nif rank == 0:\n    torch.save([weights, moments], path)\n\n# after a restart, on every rank\n"
    "weights, moments = torch.load(path)\n```\n\n"
    "Now it runs with a stage 1 written by hand on 4 ranks: `weights` is whole, and `moments` is the rank's own shard, "
    "which has as many elements on each rank. These lines are left as they are. The job stops, and starts again. What "
    "does each rank go on with?",
    hints=("What is in the file?", "Does anything in a shard say whose it is?"),
    solution="**Right weights, and rank 0's moments on all four ranks.** The shards have one shape, so nothing fails: "
    "ranks 1, 2 and 3 update their weights with the moments of others. The loss bumps and heals, and no line of the "
    "log says why. But the *file* says it: its moments are a quarter of what they should be. So compare bytes after "
    "the first save, 8 for each parameter with AdamW in fp32.\n\nEither every rank saves its own shard, with its rank "
    "and the number of ranks beside it, or all send theirs to one that saves: a collective, which every rank has to "
    "call. `ZeroRedundancyOptimizer` refuses to give its state before `consolidate_state_dict()` has gathered it, "
    "where it used to warn and give the shard (zhijian-liu/torchpack, issue 18). And with the call inside the `if`, "
    "rank 0 waits for ranks that never come, as in DeepSpeed's issue 2993.",
    options=(
        Option(
            "all-of-rank-0",
            "Right weights, and rank 0's moments on all ranks",
            "Right: equal shapes, so that nothing fails. Only the size of the file shows it.",
            True,
        ),
        Option(
            "zero-elsewhere",
            "Right weights; moments on rank 0, zeros elsewhere",
            "Nothing here makes zeros. Ranks 1 to 3 load what is in the file, and it fits.",
        ),
        Option(
            "all-right",
            "Right weights, and on each rank its own moments",
            "The file holds one list, written by rank 0. The moments of ranks 1 to 3 were never saved.",
        ),
        Option(
            "fails",
            "Nothing: the load fails, as the shapes do not fit",
            "All four shards have the same shape. An error here would be a kindness.",
        ),
        Option(
            "quarter",
            "A quarter of the weights, and a quarter of moments",
            "At stage 1 the weights are whole on each rank, and so is what rank 0 saves of them.",
        ),
        Option(
            "hangs",
            "Nothing: the save hangs, as ranks wait for rank 0",
            "No line here is a collective, so nobody waits. It would hang if only rank 0 called one that gathers.",
        ),
    ),
)

EXERCISES = (OWNED, SAVED)
