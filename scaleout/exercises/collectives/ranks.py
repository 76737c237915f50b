"""Check the lab exercise `ring-on-ranks` on 2, 3 and 4 processes.

    python -m scaleout.exercises.collectives.ranks ring.py

Besides the sums it counts what was sent, so that a ring is told from something else with the same result.
"""

from __future__ import annotations

from linecache import getlines
from traceback import walk_tb

import torch

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, main, wrong
from scaleout.exercises.ranks.count import Calls, counted
from scaleout.exercises.ranks.guard import line

# (length, dtype): shorter than the ranks, not divisible by 2, 3 or 4, none, whole numbers no float32 can hold, and one
# so large that a chunk does not fit into the buffers of the network.
CASES = ((7, torch.float32), (1, torch.float64), (0, torch.float32), (1001, torch.int64), (10, torch.float16),
         (2_000_003, torch.float32))  # fmt: skip


def message(length: int, dtype: torch.dtype, rank: int) -> torch.Tensor:
    """A tensor whose numbers are all different, and different on each rank; exact in every dtype."""
    large = 2**53 if dtype == torch.int64 else 0
    return (torch.arange(length) % 100 + 100 * rank + 1).to(dtype) + large


def own(function, rank: int, world: int) -> Verdict | None:
    """Run all cases on this rank, up to the first that is wrong."""
    for length, dtype in CASES:
        tensor = message(length, dtype, rank)
        where = f"rank {rank} of {world}, {length:,} numbers of {str(dtype).removeprefix('torch.')}"
        try:
            with counted() as calls:
                given = function(tensor)
        except IndexError as error:
            if len(tensor.chunk(world)) == world or not _calls_chunk(error):
                raise
            return wrong(f"{where}: {line(error)}. torch.chunk may give fewer chunks than ranks; tensor_split does not",
                         "few-chunks")  # fmt: skip
        expected = sum(message(length, dtype, other) for other in range(world))
        if not torch.equal(tensor, expected):
            words, slip = _slip(tensor, expected, given, rank, world)
            return wrong(f"{where}: {words}", slip)
        if calls.names:
            return wrong(f"{where}: the sum is right, but your code calls {calls.names[0]}. Write the ring yourself, "
                         "with isend and irecv", "used-a-collective")  # fmt: skip
        bad = _not_a_ring(calls, length, rank, world)
        if bad:
            return wrong(f"{where}: the sum is right, but {bad[0]}", bad[1])
    return None


def _calls_chunk(error: IndexError) -> bool:
    """Whether the code that raised it cuts with torch.chunk, and missed one of a tuple or list."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return "index out of range" in str(error) and ".chunk(" in "".join(getlines(frame.f_code.co_filename))


def _slip(tensor, expected, given, rank: int, world: int) -> tuple[str, str]:
    """The misconception behind a wrong sum, and what to do about it."""
    mine = message(len(tensor), tensor.dtype, rank)
    if given is ...:
        return "the tensor is as it was: put your ring in the place of the ...", "stub"
    if isinstance(given, torch.Tensor) and torch.equal(given, expected):
        return "you returned the sum, but the tensor has to hold it: write into it, in place", "not-in-place"
    if torch.equal(tensor, mine):
        return ("the tensor is as it was. Write into it (tensor += ..., chunk.copy_(...)): tensor = ... only renames",
                "unchanged")  # fmt: skip
    rest = len(tensor) - len(tensor) % world
    if len(tensor) % world and torch.equal(tensor[:rest], expected[:rest]):
        return (f"the end is wrong, from number {rest} on. The length does not divide by {world}: "
                "tensor_split gives every number to a chunk", "dropped-rest")  # fmt: skip
    if len(tensor) and torch.allclose(tensor.double() * world, expected.double(), rtol=0.01):
        return "that is the mean over the ranks. All-reduce adds: leave the sum as it is", "mean"
    if not tensor.dtype.is_floating_point and torch.allclose(tensor.double(), expected.double(), rtol=1e-6):
        return "the last digits are lost: a buffer has another dtype than the tensor. Use empty_like", "rounded"
    finished = [torch.equal(*pair) for pair in zip(tensor.tensor_split(world), expected.tensor_split(world),
                                                   strict=True)]  # fmt: skip
    if (tensor > expected).any() and not (tensor < expected).any():
        return ("some numbers are too large, so something was added more than once. In steps 0 to ranks - 2 what "
                "arrives is added, from then on it replaces", "counted-twice")  # fmt: skip
    if sum(finished) == 1:
        return ("only one chunk is finished, as after the reduce-scatter. The finished chunks have to go round, in "
                "ranks - 1 more steps", "forgot-all-gather")  # fmt: skip
    if sum(finished) == world - 1:
        return "one chunk is not finished, as where a step is missing. There are 2 * (ranks - 1)", "one-step-short"
    return (f"{sum(finished)} of {world} chunks are right. In step s rank r sends chunk r - s and receives chunk r - s "
            "- 1, modulo ranks", "wrong-sum")  # fmt: skip


def _not_a_ring(calls: Calls, length: int, rank: int, world: int) -> tuple[str, str] | None:
    """What is wrong with what was sent, for a message that is much longer than there are ranks."""
    if length < 100 * world:
        return None
    total, steps = sum(calls.sent.values()), 2 * (world - 1)
    ring = steps * -(-length // world)
    if len([to for to, numbers in calls.sent.items() if numbers]) > 1:
        return (f"it sent to {len(calls.sent)} other ranks. In a ring every rank sends to its right only",
                "not-a-ring")  # fmt: skip
    if total > ring:
        return (f"it sent {total:,} numbers, where a ring sends at most {ring:,}: one chunk a step, not the whole "
                "tensor", "sent-too-much")  # fmt: skip
    if total < steps * (length // world):
        return (f"it sent {total:,} numbers with isend, where a ring sends {ring:,}: another way brought the sum",
                "not-a-ring")  # fmt: skip
    return None


def judge(reports: list, world: int) -> Verdict:
    """All ranks are right when none has said otherwise."""
    return Verdict(True, f"right on {world} processes")


CHECK = Check("scaleout.exercises.collectives.ranks", "ring_all_reduce", (3, 2, 4), own, judge, wait_seconds=5,
              right=f"right on 2, 3 and 4 processes, in {len(CASES)} cases each: every sum, and the bytes of a ring")

if __name__ == "__main__":
    main(CHECK)
