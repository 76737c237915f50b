"""Check the lab exercise `prefetch-by-hand`: the next unit is prefetched while one computes, and no third is in memory.

The all-gathers that a rank has started are counted, and the bytes of its tensors. Rank 1 stays in each forward until
rank 0 is in the next one: a rank 0 that waits at once for the all-gather that it prefetches does not get there.
"""

from __future__ import annotations

import gc
import time

import torch
import torch.distributed as dist

from scaleout.exercises.engine import Verdict
from scaleout.exercises.fsdp.ranks.step import (
    OVERHEAD,
    PATIENCE_SECONDS,
    SIZES,
    Wrong,
    check_whole,
    cut,
    weights,
)
from scaleout.exercises.ranks.check import LOST, Check, wrong
from scaleout.exercises.ranks.count import counted
from scaleout.exercises.ranks.guard import line
from scaleout.exercises.ranks.sure import Fault, all_right

STORES: list[dist.Store] = []


def padded(unit: int, world: int) -> int:
    """Bytes of a whole unit as it is gathered."""
    return 4 * world * -(-SIZES[unit] // world)


class Watch:
    """The callback: it notes the order, the all-gathers and the memory, and raises `Wrong` at the first fault."""

    def __init__(self, rank: int, world: int, calls: counted, store: dist.Store) -> None:
        self.rank, self.world, self.calls, self.store, self.next = rank, world, calls, store, 0

    def forward(self, unit: int, whole: torch.Tensor) -> None:
        with self.calls.paused():
            if unit != self.next:
                raise Wrong("order", f"forward was called for unit {unit!r}, and the next is unit {self.next}")
            self.next += 1
            check_whole("forward", unit, whole)
            self._started(unit)
            self._check_memory(unit)
            if self.rank == 0:
                self.store.set(f"forward {unit}", "1")
            elif self.next < len(SIZES):
                self._stay(unit)

    def _started(self, unit: int) -> None:
        """The all-gather of the next unit has been started, and none further ahead."""
        gathered_bytes = sum(call.bytes for call in self.calls.calls if call.bytes > OVERHEAD // 2)
        expected_bytes = sum(padded(index, self.world) for index in range(min(unit + 2, len(SIZES))))
        if gathered_bytes < expected_bytes:
            raise Wrong(
                "not-ahead",
                f"while unit {unit} computes, the all-gather of unit {unit + 1} has not been started: "
                "start it before you call forward, with async_op=True",
            )
        if gathered_bytes > expected_bytes + OVERHEAD * len(self.calls.calls):
            raise Wrong(
                "too-far-ahead",
                f"while unit {unit} computes, {gathered_bytes:,} bytes have been all-gathered, but units 0 "
                f"to {min(unit + 1, len(SIZES) - 1)} have only {expected_bytes:,}: prefetch one unit, and all-gather "
                "each unit once",
            )

    def _check_memory(self, unit: int) -> None:
        """No more memory than of two units side by side."""
        limit = max(padded(index, self.world) + padded(index + 1, self.world) for index in range(len(SIZES) - 1))
        end = time.monotonic() + PATIENCE_SECONDS
        while (used := sum(storage.nbytes() for storage in self.calls.alive())) > 1.05 * limit:
            if time.monotonic() > end:
                raise Wrong(
                    "too-much-held",
                    f"while unit {unit} computes, your tensors use {used:,} bytes, but no two "
                    f"consecutive units have more than {limit:,}: free the unit before, and any second "
                    "copy of a unit",
                )
            gc.collect()  # torch's first collective of a process leaves a frame in a cycle, with its tensors
            time.sleep(0.005)

    def _stay(self, unit: int) -> None:
        while not self.store.check([f"forward {unit + 1}"]):
            if self.store.check(["ended"]):
                if self.store.get("ended") != b"lost":
                    return  # what is wrong there, rank 0 says
                raise Wrong(
                    "waited",
                    f"while rank 1 computed with unit {unit}, rank 0 did not reach unit {unit + 1}, although "
                    "both had started its all-gather: rank 0 waited for a later one. Wait for a unit's "
                    "all-gather when its turn comes, not where you start it",
                )
            time.sleep(0.005)


def meeting(rank: int) -> dist.Store:
    """A store of rank 0's, of which the reader's code knows nothing. It lasts as long as the process."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    port = torch.tensor([store.port if store else 0])
    dist.broadcast(port, 0)
    STORES.append(store or dist.TCPStore("127.0.0.1", int(port), is_master=False))
    return STORES[-1]


def rank_report(function, rank: int, world: int) -> Verdict | None:
    """A forward on this rank: what is wrong with it, or None."""
    shards = [cut(weights(unit), rank, world) for unit in range(len(SIZES))]
    calls, store = counted(), meeting(rank)
    watch = Watch(rank, world, calls, store)
    gc.disable()  # a freed tensor goes at once, and what lies in a cycle only where `_check_memory` collects it
    try:
        with calls:
            returned = function(shards, list(SIZES), watch.forward)
    except Wrong as stopped:
        slip, words = stopped.args
        return wrong(f"rank {rank}: {words}", slip)
    except RuntimeError as error:
        if rank == 0 and any(mark in line(error, 10**6) for mark in LOST):
            store.set("ended", "lost")
        raise
    finally:
        gc.enable()
        if rank == 0 and not store.check(["ended"]):
            store.set("ended", "1")
    fault = _end(returned, watch)
    return wrong(f"rank {rank}: {fault[1]}", fault[0]) if fault else None


def _end(returned: object, watch: Watch) -> Fault:
    if returned is ...:
        return "stub", "the function returns its ... at once: put your forward in its place"
    if watch.next < len(SIZES):
        return "order", f"forward was called for {watch.next} of {len(SIZES)} units"
    return None


CHECK = Check(
    "scaleout.exercises.fsdp.ranks",
    "prefetched",
    (2,),
    rank_report,
    all_right(
        f"right: {{}} ranks prefetched the next of {len(SIZES)} units while one computed, and never had a "
        "third in memory",
    ),
    wait_seconds=10,
)
