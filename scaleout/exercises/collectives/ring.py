"""Exercises of `collectives` that write the ring in pure Python: who sends which chunk when, and the result."""

from __future__ import annotations

from itertools import accumulate

from scaleout.collectives.messages import chunk_sizes
from scaleout.exercises.engine import Function, Mistake

_CHUNK_STUB = '''\
def chunk_to_send(rank, step, ranks):
    """Number of the chunk that `rank` sends in `step`.

    step: 0 to 2 * (ranks - 1) - 1
    """
    return ...
'''

_CHUNK_SOLUTION = """\
def chunk_to_send(rank, step, ranks):
    return (rank - step) % ranks
"""


def _chunk(rank: int, step: int, ranks: int) -> int:
    return (rank - step) % ranks


CHUNK = Function(
    key="chunk-to-send",
    level=2,
    title="Who sends which chunk",
    short=True,
    prompt="The message is cut into as many chunks as there are ranks, numbered from 0. In every step each rank sends "
    "one chunk to its right, to rank + 1 (the last rank sends to rank 0), and receives one from its left.\n\n"
    "- In step 0, rank r sends chunk **r**.\n"
    "- After that, it sends the chunk that it received in the step before. This holds in both laps: in the first, an "
    "arriving chunk is added, and in the second it replaces.\n\n"
    "Write `chunk_to_send(rank, step, ranks)`. Steps are numbered from 0 to 2(W−1) − 1 through both laps; W is "
    "`ranks`.",
    hints=(
        "In step 0 rank 2 receives chunk 1 from rank 1. So it sends chunk 1 in step 1, and chunk 0 in step 2.",
        "With each step the number is one lower. In Python, `-1 % 4` is 3.",
    ),
    solution="```python\n"
    f"{_CHUNK_SOLUTION}```\n\n"
    "One formula serves both laps. After step W−2 rank r has the complete chunk r+1, and it sends that chunk in "
    "step W−1: (r − (W−1)) mod W = (r + 1) mod W.",
    function="chunk_to_send",
    index=True,
    stub=_CHUNK_STUB,
    reference=_chunk,
    cases=(
        (0, 0, 4),
        (2, 1, 4),
        (0, 1, 4),
        (3, 2, 4),
        (1, 3, 4),
        (3, 5, 4),
        (1, 1, 2),
        (0, 1, 2),
        (2, 3, 3),
        (0, 2, 3),
        (0, 7, 5),
        (4, 4, 5),
        (1, 9, 6),
        (5, 11, 7),
        (6, 9, 8),
    ),
    mistakes=(
        Mistake(
            "other-direction",
            lambda rank, step, ranks: (rank + step) % ranks,
            "Your numbers rise with the steps. The chunk that a rank sends next came from its left, and there the "
            "number is one lower.",
        ),
        Mistake(
            "received",
            lambda rank, step, ranks: (rank - step - 1) % ranks,
            "That is the chunk that the rank receives in this step. It sends it in the next one.",
        ),
        Mistake(
            "no-modulo",
            lambda rank, step, ranks: rank - step,
            "Some numbers are no chunk's. The ring is closed: take the number modulo ranks.",
        ),
        Mistake(
            "starts-again",
            lambda rank, step, ranks: (rank - step % (ranks - 1)) % ranks,
            "Your second lap starts again with the rank's own chunk. But the chunk that it has finished by then is "
            "the next one, rank + 1.",
        ),
        Mistake(
            "own-chunk",
            lambda rank, step, ranks: rank,
            "Your rank sends its own chunk in every step. It has to pass on the chunk that it received.",
        ),
        Mistake(
            "wrong-modulo",
            lambda rank, step, ranks: (rank - step) % (ranks - 1),
            "There are as many chunks as ranks: take the number modulo ranks, not ranks - 1.",
        ),
    ),
    right="With this one line, every rank knows what to send without asking any other.",
)

_SCATTER_STUB = '''\
def reduce_scatter(held):
    """[parts, sent] after a ring reduce-scatter.

    parts: for each rank, the part of the sum that it ends with
    sent: for each rank, how many numbers it has sent
    held: one list per rank, all of the same length
    """
    ranks, length = len(held), len(held[0])
    return ...
'''

_SCATTER_SOLUTION = """\
def reduce_scatter(held):
    ranks, length = len(held), len(held[0])
    bounds = [part * (length // ranks) + min(part, length % ranks) for part in range(ranks + 1)]
    held, sent = [list(one) for one in held], [0] * ranks
    for step in range(ranks - 1):
        for rank in range(ranks):
            right, part = (rank + 1) % ranks, (rank - 1 - step) % ranks
            for place in range(bounds[part], bounds[part + 1]):
                held[right][place] += held[rank][place]
                sent[rank] += 1
    return [[one[bounds[rank]:bounds[rank + 1]] for rank, one in enumerate(held)], sent]
"""


def _bounds(sizes: list[int]) -> list[slice]:
    """The places of each part in a list."""
    ends = list(accumulate(sizes))
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _sums(lists: list[list[float]]) -> list[float]:
    return [sum(column) for column in zip(*lists, strict=True)]


def _scatter(lists: list[list[float]], ends=lambda rank: rank, cut=chunk_sizes) -> list:
    """What must come out, without a ring: the sum of a part, and what a rank never sends, the part it ends with.

    With something wrong in it: with which part rank r ends, or how the lists are cut.
    """
    ranks, length, sums = len(lists), len(lists[0]), _sums(lists)
    sizes = cut(length, ranks)
    parts = [ends(rank) % ranks for rank in range(ranks)]
    return [[sums[_bounds(sizes)[part]] for part in parts], [sum(sizes) - sizes[part] for part in parts]]


def _ring(
    lists, steps=lambda ranks: ranks - 1, first=-1, ascending=False, keep=False, fresh=False, part=True, by_rank=False
):
    """The ring with something wrong in it.

    steps: how many; first: rank r begins with part r + first; ascending: the parts count up; keep: what arrives
    replaces; fresh: a rank sends its own numbers, not what was added to them; part: it gives part r of its list, not
    all of it; by_rank: it makes all its steps before the next rank begins.
    """
    ranks = len(lists)
    buffers, sent = [list(numbers) for numbers in lists], [0] * ranks
    bounds = _bounds(chunk_sizes(len(lists[0]), ranks))
    turns = [(step, rank) for step in range(steps(ranks)) for rank in range(ranks)]
    for step, rank in sorted(turns, key=lambda turn: turn[by_rank]):
        places = bounds[(rank + first + (step if ascending else -step)) % ranks]
        right, moved = buffers[(rank + 1) % ranks], (lists if fresh else buffers)[rank][places]
        right[places] = moved if keep else [a + b for a, b in zip(right[places], moved, strict=True)]
        sent[rank] += len(moved)
    return [[numbers[bounds[rank]] if part else numbers for rank, numbers in enumerate(buffers)], sent]


def _all_reduce(lists: list[list[float]]) -> list:
    """Both halves of a ring in which rank r begins with part r: it never sends part r+1, then part r+2."""
    ranks, length = len(lists), len(lists[0])
    sizes = chunk_sizes(length, ranks)
    sent = [2 * length - sizes[(rank + 1) % ranks] - sizes[(rank + 2) % ranks] for rank in range(ranks)]
    return [[_sums(lists) for _ in lists], sent]


def _no_rest(length: int, ranks: int) -> list[int]:
    return [length // ranks] * ranks


def _rest_last(length: int, ranks: int) -> list[int]:
    return [length // ranks] * (ranks - 1) + [length - length // ranks * (ranks - 1)]


def _rounded_up(length: int, ranks: int) -> list[int]:
    size = -(-length // ranks)
    return [max(0, min(size, length - size * part)) for part in range(ranks)]


def _counted(count):
    """The right parts, and count(ranks, length) numbers sent by each rank."""
    return lambda lists: [_scatter(lists)[0], [count(len(lists), len(lists[0]))] * len(lists)]


SCATTER = Function(
    key="reduce-scatter",
    level=3,
    title="Each rank its own part",
    lists=True,
    prompt="In a ring in which rank r begins by sending part r, it has the complete part **r + 1** after W−1 steps. A "
    "library promises something else: after a reduce-scatter, rank r has part **r**. Write `reduce_scatter(held)`, a "
    "ring with that result, in as many steps. `held` is one list per rank, all of the same length. Return "
    "`[parts, sent]`: the part of the sum that each rank ends with (one list per rank), and how many **numbers** each "
    "rank has sent.\n\n"
    "- Cut each list into as many parts as there are ranks. If the length does not divide evenly, the first parts are "
    "one longer, as in `torch.tensor_split`: 7 numbers on 3 ranks make parts of 3, 2 and 2.\n"
    "- In each step every rank sends one part to its right, where it is added: first a part of its own, and after that "
    "the part that it has just received and added to.",
    hints=(
        "Follow one part backwards. Part r has to reach rank r in the last step, so where did it start, W−1 steps "
        "earlier?",
        "Part 0 starts on rank 1. So which part does rank 1 send first, and which one does rank r?",
        "Put the loop over the steps outside and the loop over the ranks inside: no rank sends the part that it "
        "receives in the same step.",
    ),
    solution="```python\n"
    f"{_SCATTER_SOLUTION}```\n\n"
    "Part r starts on rank r + 1, visits every rank and ends on rank r, the only one that never sends it. NCCL's "
    "rings begin in this way too. An all-gather in which rank r begins with part r then completes an all-reduce, in "
    "2(W−1) steps.",
    function="reduce_scatter",
    stub=_SCATTER_STUB,
    reference=_scatter,
    cases=(
        ([[1, 2, 3], [10, 20, 30], [100, 200, 300]],),
        ([[1, 2, 3, 4, 5, 6, 7], [10, 20, 30, 40, 50, 60, 70], [100, 200, 300, 400, 500, 600, 700]],),
        ([[1, 2, 3, 4, 5], [50, 40, 30, 20, 10]],),
        ([[rank * 10 + place for place in range(11)] for rank in range(1, 5)],),
        ([[1], [2], [4], [8]],),
        ([[rank * place - 9.5 for place in range(17)] for rank in range(1, 8)],),
        ([[(rank + 2) ** place for place in range(9)] for rank in range(6)],),
        ([[rank - place * place for place in range(10)] for rank in range(5)],),
        ([[], []],),
        ([[3, 4]],),
    ),
    mistakes=(
        Mistake(
            "next-part",
            lambda lists: _scatter(lists, lambda rank: rank + 1),
            "Your rank r ends with part r + 1, as if it began with part r. With which part does it have to begin?",
        ),
        Mistake(
            "reads-another-part",
            lambda lists: _ring(lists, first=0),
            "Your parts have only one rank's own numbers. If rank r begins with part r, that part does not come back "
            "to it in W−1 steps. With which part does rank r have to begin?",
        ),
        Mistake(
            "wrong-way",
            lambda lists: _ring(lists, first=1),
            "Your parts have the numbers of two ranks: part r reaches rank r in the first step and is passed on. You "
            "moved the beginning the wrong way.",
        ),
        Mistake(
            "one-too-far",
            lambda lists: _ring(lists, first=-2),
            "Your parts lack the numbers of one rank: part r reaches rank r one step before the last and is passed "
            "on. You moved the beginning one too far.",
        ),
        Mistake(
            "counts-up",
            lambda lists: _ring(lists, ascending=True),
            "Your part numbers go up with the steps. The part that a rank sends next came from its left, where the "
            "number is one lower.",
        ),
        Mistake(
            "counts-up-from-its-own",
            lambda lists: _ring(lists, first=0, ascending=True),
            "Your part numbers go up from the rank's own. The part that a rank sends next came from its left, where "
            "the number is one lower.",
        ),
        Mistake(
            "one-step-short",
            lambda lists: _ring(lists, steps=lambda ranks: ranks - 2),
            "Your parts have only one rank's own numbers: the last of the W−1 steps is missing, in which the sum of "
            "all other ranks arrives.",
        ),
        Mistake(
            "replaced",
            lambda lists: _ring(lists, keep=True),
            "In your ring an arriving part replaces the old one. In a reduce-scatter it is added.",
        ),
        Mistake(
            "sends-its-own",
            lambda lists: _ring(lists, fresh=True),
            "Your ranks send their own numbers in every step, and never the sums that they have made. That also "
            "happens if the part numbers go up with the steps.",
        ),
        Mistake(
            "rank-by-rank",
            lambda lists: _ring(lists, by_rank=True),
            "Each of your ranks takes all its steps before the next rank begins. In a step all ranks send at the same "
            "time: put the loop over the steps outside.",
        ),
        Mistake(
            "all-gathered",
            _all_reduce,
            "That is an all-reduce: you continued until every rank had all parts. A reduce-scatter stops halfway.",
        ),
        Mistake(
            "whole-lists",
            lambda lists: _ring(lists, part=False),
            "You returned whole lists, in which some parts are not complete. For each rank, return the one part that "
            "is.",
        ),
        Mistake(
            "dropped-rest",
            lambda lists: _scatter(lists, cut=_no_rest),
            "The last numbers are left out. If the length does not divide evenly by the ranks, the first parts are one "
            "longer.",
        ),
        Mistake(
            "rest-last",
            lambda lists: _scatter(lists, cut=_rest_last),
            "Your last part takes the whole rest. Here the first parts are one longer.",
        ),
        Mistake(
            "rounded-up",
            lambda lists: _scatter(lists, cut=_rounded_up),
            "Your parts are all as long as the first, until nothing is left, as in torch.chunk. Here their lengths "
            "differ by one at most.",
        ),
        Mistake(
            "counted-another-ring",
            lambda lists: [_scatter(lists)[0], _scatter(lists, lambda rank: rank + 1)[1]],
            "The parts are right, but you counted for a ring that ends with part r + 1 on rank r. Which part does a "
            "rank never send here?",
        ),
        Mistake(
            "one-step-more",
            lambda lists: _ring(lists, steps=lambda ranks: ranks),
            "There is one step too many: after W−1 steps every part is complete.",
        ),
        Mistake(
            "whole-list",
            _counted(lambda ranks, length: length if ranks > 1 else 0),
            "The parts are right, but each rank sent its whole list, as in W steps. W−1 are enough if each rank "
            "begins with the right part.",
        ),
        Mistake(
            "whole-every-step",
            _counted(lambda ranks, length: (ranks - 1) * length),
            "The parts are right, but your ranks sent the whole list in every step. In a step a rank sends one part.",
        ),
        Mistake(
            "counted-messages",
            _counted(lambda ranks, length: ranks - 1),
            "The parts are right, but you counted messages. Count the numbers in them.",
        ),
        Mistake(
            "sent-nothing",
            _counted(lambda ranks, length: 0),
            "The parts are right, but you say that no rank has sent anything. Count the numbers in every message.",
        ),
        Mistake("swapped", lambda lists: _scatter(lists)[::-1], "You returned [sent, parts]: the parts come first."),
    ),
    right="Each rank sent all parts but its own: (W−1)/W of its list, half of what a ring all-reduce sends.",
)

EXERCISES = (CHUNK, SCATTER)
