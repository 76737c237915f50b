"""Exercises of `collectives` that write the ring in pure Python: who sends which chunk when, and what comes of it."""

from __future__ import annotations

from scaleout.collectives.messages import chunk_sizes
from scaleout.exercises.engine import Function, Mistake

_CHUNK_STUB = '''\
def chunk_to_send(rank, step, ranks):
    """Number of the chunk that `rank` sends to its right in `step`, 0 to 2 * (ranks - 1) - 1."""
    return ...
'''

_CHUNK_SOLUTION = '''\
def chunk_to_send(rank, step, ranks):
    return (rank - step) % ranks
'''


def _chunk(rank: int, step: int, ranks: int) -> int:
    return (rank - step) % ranks


CHUNK = Function(
    key="chunk-to-send", level=2, title="Who sends which chunk",
    prompt="The message is cut into as many chunks as there are ranks, numbered from 0. In every step each rank sends "
    "one chunk to its right, to rank + 1 (the last one to rank 0), and receives one from its left.\n\n"
    "- In step 0, rank r sends chunk **r**.\n"
    "- From then on, it sends what it received in the step before. That holds in the reduce-scatter, where "
    "what arrives is added, and in the all-gather, where it replaces.\n\n"
    "Write `chunk_to_send(rank, step, ranks)`. Steps count on from 0 to 2(W−1) − 1, through both halves: W is `ranks`.",
    hints=("In step 0 rank 2 receives chunk 1 from rank 1. So that is what it sends in step 1, and chunk 0 in step 2.",
           "One step later, one chunk less. In Python, `-1 % 4` is 3."),
    solution="```python\n"
    f"{_CHUNK_SOLUTION}```\n\n"
    "One formula for both halves. After step W−2 rank r holds the finished chunk r+1, and that is what it sends "
    "in step W−1: (r − (W−1)) mod W = (r + 1) mod W.",
    function="chunk_to_send", stub=_CHUNK_STUB, reference=_chunk,
    cases=((0, 0, 4), (2, 1, 4), (0, 1, 4), (3, 2, 4), (1, 3, 4), (3, 5, 4), (1, 1, 2), (0, 1, 2), (2, 3, 3), (0, 2, 3),
           (0, 7, 5), (4, 4, 5), (1, 9, 6), (5, 11, 7), (6, 9, 8)),
    mistakes=(
        Mistake("other-direction", lambda rank, step, ranks: (rank + step) % ranks,
                "Your chunks count up with the steps. What a rank sends next came from its left, and there the chunk "
                "number is one lower."),
        Mistake("received", lambda rank, step, ranks: (rank - step - 1) % ranks,
                "That is the chunk which the rank receives in this step. It sends it in the next one."),
        Mistake("no-modulo", lambda rank, step, ranks: rank - step,
                "The number leaves the range of chunks. The ring is closed: take it modulo ranks."),
        Mistake("starts-again", lambda rank, step, ranks: (rank - step % (ranks - 1)) % ranks,
                "Your second half starts again with the rank's own chunk. But the chunk that it has finished by then "
                "is the next one, rank + 1."),
        Mistake("own-chunk", lambda rank, step, ranks: rank,
                "That sends the rank's own chunk in every step. It has to pass on what it received."),
        Mistake("wrong-modulo", lambda rank, step, ranks: (rank - step) % (ranks - 1),
                "There are as many chunks as ranks: take it modulo ranks, not ranks - 1."),
    ),
    right="With this one line, every rank knows what to do without asking anybody.",
)  # fmt: skip

_RING_STUB = '''\
def ring_all_reduce(held):
    """[sums, sent]: what each rank holds at the end, and how many numbers each has sent.

    held: a list for each rank, all of the same length
    """
    ranks, length = len(held), len(held[0])
    return ...
'''

_RING_SOLUTION = '''\
def ring_all_reduce(held):
    ranks, length = len(held), len(held[0])
    held, sent = [list(one) for one in held], [0] * ranks
    sizes = [length // ranks + (chunk < length % ranks) for chunk in range(ranks)]
    spans = [(sum(sizes[:chunk]), sum(sizes[:chunk + 1])) for chunk in range(ranks)]
    for step in range(2 * (ranks - 1)):
        for rank in range(ranks):
            start, end = spans[(rank - step) % ranks]
            sent[rank] += end - start
            right = held[(rank + 1) % ranks]
            for place in range(start, end):
                right[place] = held[rank][place] + (right[place] if step < ranks - 1 else 0)
    return [held, sent]
'''


def _ring(held: list[list[float]]) -> list:
    """What must come out, without a ring: the sums by column, and the sizes of all chunks but one, twice."""
    ranks, length = len(held), len(held[0])
    sizes = chunk_sizes(length, ranks)
    sums = [sum(column) for column in zip(*held, strict=True)]
    # In the reduce-scatter a rank keeps back chunk r+1, in the all-gather chunk r+2.
    sent = [2 * length - sizes[(rank + 1) % ranks] - sizes[(rank + 2) % ranks] for rank in range(ranks)]
    return [[list(sums) for _ in held], sent]


def _played(held, steps=lambda ranks: 2 * (ranks - 1), adds=lambda step, ranks: step < ranks - 1,
            cut=chunk_sizes):  # fmt: skip
    """The ring with something wrong in it: its number of steps, when it adds, or how the lists are cut."""
    ranks, length = len(held), len(held[0])
    held, sent = [list(one) for one in held], [0] * ranks
    sizes = cut(length, ranks)
    for step in range(steps(ranks)):
        for rank in range(ranks):
            chunk, right = (rank - step) % ranks, (rank + 1) % ranks
            sent[rank] += sizes[chunk]
            for place in range(sum(sizes[:chunk]), sum(sizes[: chunk + 1])):
                held[right][place] = held[rank][place] + (held[right][place] if adds(step, ranks) else 0)
    return [held, sent]


def _no_rest(length: int, ranks: int) -> list[int]:
    return [length // ranks] * ranks


def _rest_last(length: int, ranks: int) -> list[int]:
    return [length // ranks] * (ranks - 1) + [length - length // ranks * (ranks - 1)]


def _counted(count):
    """The right sums, and count(ranks, length) numbers sent by each rank."""
    return lambda held: [_ring(held)[0], [count(len(held), len(held[0]))] * len(held)]


RING = Function(
    key="ring-function", level=3, title="Play the ring", lists=True,
    prompt="Write `ring_all_reduce(held)`. `held` is a list for each rank, all of the same length. Play both halves of "
    "the ring, and return `[sums, sent]`: what each rank holds at the end (a list for each rank), and how many "
    "**numbers** each rank has sent.\n\n"
    "- Cut each list into as many chunks as there are ranks. Where the length does not divide, the first chunks "
    "are one longer, as in `torch.tensor_split`: 7 numbers on 3 ranks make chunks of 3, 2 and 2.\n"
    "- With W ranks, in step s rank r sends chunk (r − s) modulo W to its right. In steps 0 to W−2 the receiver adds; "
    "in steps W−1 to 2(W−1) − 1 it replaces what it has.",
    hints=("First the bounds of each chunk: `length // ranks`, and one more for the first `length % ranks` chunks.",
           "What rank r sends goes into the same places of rank r + 1.",
           "You may let the ranks take turns within a step: no rank sends the chunk that it receives in that step."),
    solution="```python\n"
    f"{_RING_SOLUTION}```\n\n"
    "In torch the lists are tensors and the messages are `isend` and `irecv`, which have to be under way at the same "
    "time on every rank; the rest stays.",
    function="ring_all_reduce", stub=_RING_STUB, reference=_ring,
    cases=(
        ([[1, 2, 3], [10, 20, 30], [100, 200, 300]],),
        ([[1, 2, 3, 4, 5, 6, 7], [10, 20, 30, 40, 50, 60, 70], [100, 200, 300, 400, 500, 600, 700]],),
        ([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]],),
        ([[rank * 10 + place for place in range(11)] for rank in range(1, 5)],),
        ([[1], [2], [4], [8]],),
        ([[rank * place - 9.5 for place in range(17)] for rank in range(1, 8)],),
        ([[], []],),
        ([[3, 4]],),
    ),
    mistakes=(
        Mistake("forgot-all-gather", lambda held: _played(held, steps=lambda ranks: ranks - 1),
                "You stopped after the reduce-scatter: each rank has one finished chunk. Send those round too, in W−1 "
                "more steps."),
        Mistake("counted-twice", lambda held: _played(held, adds=lambda step, ranks: True),
                "You add in the all-gather too, so numbers count more than once. From step W−1 on, what arrives is "
                "finished: it replaces."),
        Mistake("adds-too-long", lambda held: _played(held, adds=lambda step, ranks: step < ranks),
                "You add for one step too long: W−1 steps add, 0 to W−2."),
        Mistake("replaces-too-early", lambda held: _played(held, adds=lambda step, ranks: step < ranks - 2),
                "You replace one step too early: W−1 steps add, 0 to W−2."),
        Mistake("one-step-short", lambda held: _played(held, steps=lambda ranks: max(0, 2 * (ranks - 1) - 1)),
                "The last step is missing: there are 2(W−1). With the last chunk, each rank is complete."),
        Mistake("one-step-more", lambda held: _played(held, steps=lambda ranks: 2 * ranks - 1 if ranks > 1 else 0),
                "There is a step too many: there are 2(W−1), and everybody has everything by then."),
        Mistake("dropped-rest", lambda held: _played(held, cut=_no_rest),
                "The last numbers are left out: the length does not divide by the ranks, and the first chunks are one "
                "longer."),
        Mistake("rest-last", lambda held: _played(held, cut=_rest_last),
                "The sums are right, but your last chunk takes the rest. Here the first chunks are one longer."),
        Mistake("whole-message", _counted(lambda ranks, length: (ranks - 1) * length),
                "The sums are right, but each rank sent its whole list W−1 times. A step moves one chunk."),
        Mistake("whole-every-step", _counted(lambda ranks, length: 2 * (ranks - 1) * length),
                "The sums are right, but your ranks sent the whole list in every step. A step moves one chunk."),
        Mistake("counted-messages", _counted(lambda ranks, length: 2 * (ranks - 1)),
                "The sums are right, but you counted messages. Count the numbers in each of them."),
        Mistake("sent-nothing", _counted(lambda ranks, length: 0),
                "The sums are right, but no rank has sent anything: count the numbers of every message."),
    ),
    right="Each rank sent 2(W−1)/W of its list, to one neighbour, and nobody waited for a leader.",
)  # fmt: skip

EXERCISES = (CHUNK, RING)
