"""Check the lab exercise `ring-on-ranks` on 2, 3 and 4 processes.

    python -m scaleout.exercises.collectives.ranks ring.py

Besides the sums it counts the bytes sent, to tell a ring from other ways to the same result.
"""

from __future__ import annotations

from itertools import product
from math import isclose
from operator import mul
from traceback import walk_tb

import torch

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, main, wrong
from scaleout.exercises.ranks.count import counted
from scaleout.exercises.ranks.guard import line
from scaleout.exercises.ranks.sure import Fault, Seen, by_mistakes

# (length, dtype): shorter than the ranks, not divisible by 2, 3 or 4, none, whole numbers no float32 can hold, and one
# so large that a chunk does not fit into the buffers of the network.
CASES = ((7, torch.float32), (1, torch.float64), (0, torch.float32), (1001, torch.int64), (10, torch.float16),
         (2_000_003, torch.float32))  # fmt: skip
HALF = 2e-3  # relative: float16 rounds above 2,048
OVERHEAD = 1000  # bytes per step may send beside its chunk, as for a length or the wrapping of an object

MISTAKES = {
    "unchanged": "the tensor is unchanged. Write into it (tensor += ..., chunk.copy_(...)): tensor = ... only "
                 "rebinds the name",
    "dropped-rest": "the end is unchanged. If the length does not divide by the ranks, tensor_split still puts every "
                    "number into a chunk",
    "mean": "that is the mean over the ranks. An all-reduce adds: do not divide the sum",
    "rounded": "the last digits of integers are lost: a buffer has another dtype than the tensor. Use "
               "empty_like",
    "counted-twice": "some ranks' numbers were added more than once. In steps 0 to ranks - 2 the arriving chunk is "
                     "added, after that it replaces",
    "forgot-all-gather": "one chunk is complete and the others have sums of some ranks, as after the reduce-scatter. "
                         "The complete chunks have to be passed on, in ranks - 1 more steps",
    "one-step-short": "one chunk has the sum of only some ranks, and the others are complete, as if a step were "
                      "missing. There are 2 * (ranks - 1)",
}  # fmt: skip


def message(length: int, dtype: torch.dtype, rank: int) -> torch.Tensor:
    """A tensor whose numbers are all different, and different on each rank; exact in every dtype."""
    large = 2**53 if dtype == torch.int64 else 0
    return (torch.arange(length) % 100 + 100 * rank + 1).to(dtype) + large


def rank_report(function, rank: int, world: int) -> Verdict | list[Seen]:
    """Run all cases on this rank: what was seen in each, or what is wrong whatever else it does."""
    seen = []
    for length, dtype in CASES:
        tensor = message(length, dtype, rank)
        place = f"rank {rank} of {world}, {length:,} numbers of {str(dtype).removeprefix('torch.')}"
        try:
            with counted() as calls:
                returned = function(tensor)
        except IndexError as error:
            if not _too_few(error, len(tensor.chunk(world)), world):
                raise
            return wrong(
                f"{place}: {line(error)}. torch.chunk gave fewer chunks than ranks; tensor_split does not", "few-chunks"
            )
        messages = [message(length, dtype, sender) for sender in range(world)]
        if returned is ...:
            return wrong(f"{place}: the tensor is unchanged: put your ring in place of the ...", "stub")
        fault = _fault(tensor, sum(messages), returned, world)
        fault = fault or _not_a_ring(calls, tensor, world)
        inferred = not fault or fault[0] == "wrong-sum"
        seen.append(Seen(place, fault, frozenset(_agree(tensor, messages, rank) if inferred else ())))
    return seen


def _too_few(error: IndexError, chunks: int, world: int) -> bool:
    """Whether the code that raised it has cut the tensor in fewer pieces than there are ranks."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return chunks < world and any(
        isinstance(value, (tuple, list)) and len(value) == chunks and all(isinstance(x, torch.Tensor) for x in value)
        for value in frame.f_locals.values()
    )


def _fault(tensor: torch.Tensor, expected: torch.Tensor, returned: object, world: int) -> Fault:
    """What is to be seen in a wrong sum."""
    if torch.equal(tensor, expected):
        return None
    if isinstance(returned, torch.Tensor) and returned.shape == expected.shape and torch.equal(returned, expected):
        return "not-in-place", "you returned the sum, but the tensor has to hold it: write into it, in place"
    index = int((tensor != expected).nonzero()[0])
    right = [torch.equal(*pair) for pair in zip(tensor.tensor_split(world), expected.tensor_split(world), strict=True)]
    return "wrong-sum", (
        f"number {index} is {tensor[index].item():,} and the sum is {expected[index].item():,}; {sum(right)} "
        f"of {world} chunks are right. In step s rank r sends chunk r - s and receives chunk r - s - "
        "1, modulo ranks"
    )


def _agree(tensor: torch.Tensor, messages: list[torch.Tensor], rank: int) -> list[str]:
    """The mistakes that give this tensor, or that do no harm where it is right."""
    world, expected, mine = len(messages), sum(messages), messages[rank]
    divisible, right = len(tensor) - len(tensor) % world, torch.equal(tensor, expected)
    chunks = zip(tensor.tensor_split(world), *(sent.tensor_split(world) for sent in messages), strict=True)
    # how often each rank's numbers are in each chunk
    times = [(1,) * world if right else _times(chunk, *parts) for chunk, *parts in chunks if len(chunk)]
    complete = [counts is not None and set(counts) == {1} for counts in times]
    partial = [counts is not None and set(counts) == {0, 1} for counts in times]
    summed = all(a or b for a, b in zip(complete, partial, strict=True))
    tests = {
        "unchanged": torch.equal(tensor, mine),
        "dropped-rest": torch.equal(tensor[:divisible], expected[:divisible])
        and torch.equal(tensor[divisible:], mine[divisible:]),
        "mean": torch.allclose(tensor.double() * world, expected.double(), rtol=0.01),
        "rounded": right
        or (not tensor.dtype.is_floating_point and torch.allclose(tensor.double(), expected.double(), rtol=1e-6)),
        "counted-twice": all(counts is not None and min(counts) == 1 for counts in times),
        "forgot-all-gather": summed and sum(complete) <= 1 and (sum(complete) or len(complete) < world),
        "one-step-short": summed and sum(partial) <= 1,
    }
    return [slip for slip, holds in tests.items() if holds]


def _times(chunk: torch.Tensor, *parts: torch.Tensor) -> tuple[int, ...] | None:
    """How often each rank's part was added to make the chunk, where it was made so."""
    tolerance = HALF if chunk.dtype == torch.float16 else 0
    ends = [(chunk[index].item(), [part[index].item() for part in parts]) for index in (0, -1)]
    candidates = product(range(len(parts) + 1), repeat=len(parts))
    for times in sorted(candidates, key=lambda counts: sum(abs(n - 1) for n in counts)):
        if all(isclose(end, sum(map(mul, times, terms)), rel_tol=tolerance) for end, terms in ends):
            total = sum(n * part for n, part in zip(times, parts, strict=True))
            return times if torch.allclose(chunk, total, rtol=tolerance, atol=0) else None
    return None


def _not_a_ring(calls: counted, tensor: torch.Tensor, world: int) -> Fault:
    """What is wrong with the sends; their bytes are checked for a message that is much longer than there are ranks."""
    if calls.names:
        return "used-a-collective", (
            f"the sum is right, but your code calls {calls.names[0]}. Write the ring yourself, with isend and irecv"
        )
    length, size, sent = len(tensor), tensor.element_size(), calls.sent_to()
    if length < 1000 * world:
        return None
    total, steps = sum(sent.values()), 2 * (world - 1)
    ring = steps * -(-length // world)
    if len(sent) > 1:
        return "not-a-ring", (
            f"the sum is right, but it sent to {len(sent)} other ranks. In a ring every rank sends only to its right"
        )
    if total > ring * size + OVERHEAD * steps:
        return "sent-too-much", (
            f"the sum is right, but it sent {total / size:,.0f} numbers, and a ring sends at most {ring:,}: "
            "one chunk per step, not the whole tensor"
        )
    if total < steps * (length // world) * size:
        return "not-a-ring", (
            f"the sum is right, but it sent {total / size:,.0f} numbers, and a ring sends {ring:,}"
            ": the sum came by another way"
        )
    return None


CHECK = Check(
    "scaleout.exercises.collectives.ranks",
    "ring_all_reduce",
    (3, 2, 4),
    rank_report,
    by_mistakes(MISTAKES),
    wait_seconds=5,
    right=f"right on 2, 3 and 4 processes, in {len(CASES)} cases each: every sum, and the bytes of a ring",
)

if __name__ == "__main__":
    main(CHECK)
