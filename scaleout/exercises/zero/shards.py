"""Exercises of `zero` on shards: which rank owns which elements, and how shards are saved."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Option

_STUB = '''\
def owned(sizes, ranks, rank):
    """A rank's shard: a list of [tensor, first, end].

    sizes: elements of each tensor, in order
    tensor: its index in sizes, from 0
    first, end: elements of that tensor, as in a slice
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
    """The elements from `low` to `high` of all tensors, flattened into one buffer."""
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
    """Every tensor cut separately."""
    cut = ((tensor, size, -(-size // ranks)) for tensor, size in enumerate(sizes))
    return [
        [tensor, rank * length, min((rank + 1) * length, size)] for tensor, size, length in cut if rank * length < size
    ]


def _whole_by_size(sizes, ranks, rank) -> Pieces:
    """Whole tensors, the largest first, each to the rank that has the fewest elements."""
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
    """Indices among all elements instead of those in a tensor."""
    starts = [sum(sizes[:tensor]) for tensor in range(len(sizes))]
    return [[tensor, starts[tensor] + first, starts[tensor] + end] for tensor, first, end in _owned(sizes, ranks, rank)]


OWNED = Function(
    key="whose-elements",
    level=3,
    minutes=10,
    title="Whose elements",
    lists=True,
    index=True,
    prompt="ZeRO flattens all tensors into one buffer, pads its end to a multiple of the ranks, and cuts it into equal "
    "shards: rank 0 owns the first, rank 1 the second, and so on. A tensor is cut wherever a shard ends. Write "
    "`owned(sizes, ranks, rank)`: a list with one `[tensor, first, end]` for each tensor of which the rank has "
    "elements, in order. No rank owns the padding, and a rank with nothing but padding gives an empty list.\n\n"
    "`owned([6, 4, 1], 2, 0)` is `[[0, 0, 6]]`, and `owned([6, 4, 1], 2, 1)` is `[[1, 0, 4], [2, 0, 1]]`: a shard has "
    "6 elements, and the last one of rank 1 is padding.",
    hints=(
        "A shard has sum(sizes) / ranks elements, rounded up. Which elements of the buffer are this rank's?",
        "In a tensor that begins at `start`, the rank owns low − start to high − start, limited to the tensor.",
        "Leave out empty ranges.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "Reduce-scatter and all-gather need equal shards. AdamW does not mind where a tensor is cut, because it updates "
    "each element independently. What looks at a whole tensor does mind: a norm per tensor, Adafactor's rows and "
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
            "tail-lost",
            _tail_lost,
            "You rounded the size of a shard down: the last elements have no owner, and are never updated.",
        ),
        Mistake(
            "tail-to-last",
            _tail_to_last,
            "You rounded down and gave the last rank the rest. Collectives need equal parts: round up, and pad.",
        ),
        Mistake(
            "spread",
            _spread,
            "You gave the first ranks one element more. Collectives need equal parts, so the end is padded and "
            "only the last ranks own fewer.",
        ),
        Mistake(
            "each-tensor",
            _each_tensor,
            "You cut every tensor separately. Here all tensors are joined end to end first, and then cut once.",
        ),
        Mistake(
            "whole-by-size",
            _whole_by_size,
            "You assigned whole tensors, the largest first, like ZeroRedundancyOptimizer. Here tensors are cut where "
            "a shard ends.",
        ),
        Mistake(
            "whole-by-place",
            _whole_by_place,
            "You gave each tensor whole to the rank where it begins. It is cut where a shard ends.",
        ),
        Mistake(
            "flat-places",
            _flat,
            "Your first and end are indices in the buffer. Count from the tensor's own first element.",
        ),
        Mistake(
            "end-counted",
            lambda *case: [[tensor, first, end - 1] for tensor, first, end in _owned(*case)],
            "Your end is the last element. It is the one after it, as in a slice.",
        ),
        Mistake(
            "length",
            lambda *case: [[tensor, first, end - first] for tensor, first, end in _owned(*case)],
            "Your third number is the number of elements. It should be where they end.",
        ),
        Mistake(
            "padding-too",
            _padded_end,
            "You counted the padding as elements of the last tensor. A range must end where the tensor does.",
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
    prompt="A job under DDP saves with these lines. Every rank loads the file, and all is well:\n\n"
    "```\nif rank == 0:\n    torch.save([weights, moments], path)\n\n# after a restart, on every rank\n"
    "weights, moments = torch.load(path)\n```\n\n"
    "Now the job runs with a handwritten stage 1 on 4 ranks: `weights` is whole, and `moments` is the rank's own "
    "shard, with the same number of elements on each rank. The lines above stay as they are. The job stops and "
    "restarts. With what does each rank continue?",
    hints=("What is in the file?", "Does a shard contain anything that says which rank owns it?"),
    solution="**Right weights, and rank 0's moments on all four ranks.** The shards have the same shape, so nothing "
    "fails: ranks 1, 2 and 3 update their weights with another rank's moments. The loss jumps and recovers, and no "
    "line of the log says why. But the *file* shows it: its moments are a quarter of what they should be. So check the "
    "bytes after the first save: AdamW's moments in fp32 take 8 bytes per parameter.\n\nEither every rank saves its "
    "own shard, together with its rank and the number of ranks, or all ranks send theirs to one that saves. That is a "
    "collective, so every rank has to call it. `ZeroRedundancyOptimizer` raises an error if you ask for its state "
    "before `consolidate_state_dict()` has gathered it. And if that call is inside the `if`, rank 0 waits forever for "
    "the others, as in DeepSpeed's issue 2993.",
    options=(
        Option(
            "all-of-rank-0",
            "Right weights, and rank 0's moments on all ranks",
            "Right: the shapes are equal, so nothing fails. Only the size of the file shows it.",
            True,
        ),
        Option(
            "zero-elsewhere",
            "Right weights; moments on rank 0, zeros elsewhere",
            "Nothing here creates zeros. Ranks 1 to 3 load what is in the file, and it fits.",
        ),
        Option(
            "all-right",
            "Right weights, and on each rank its own moments",
            "The file holds one list, written by rank 0. The moments of ranks 1 to 3 were never saved.",
        ),
        Option(
            "fails",
            "Nothing: the load fails, as the shapes do not fit",
            "All four shards have the same shape, so nothing fails. An error would be better.",
        ),
        Option(
            "quarter",
            "A quarter of the weights, and a quarter of moments",
            "At stage 1 the weights are whole on each rank, and so is what rank 0 saves of them.",
        ),
        Option(
            "hangs",
            "Nothing: the save hangs, as ranks wait for rank 0",
            "No line here is a collective, so no rank waits. It would hang if only rank 0 called a gather.",
        ),
    ),
)

EXERCISES = (OWNED, SAVED)
