"""Check the lab exercise `sharded-step`: unshard, compute, reshard, and reduce-scatter.

The callbacks look at what they are given, and at which other units have memory on this rank; bytes are counted.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, wrong
from scaleout.exercises.ranks.count import counted
from scaleout.exercises.ranks.sure import Fault, all_right

SIZES = (600, 351, 1000, 451)  # elements of the units: two of them need padding
ROOM = 4 * max(SIZES)  # bytes of the largest unit: what a buffer needs that holds one unit after the other
OVERHEAD = 1000  # bytes of a message beside its tensor, as for the wrapping of an object
CLOSE = 1e-5  # of numbers of about 1 in fp32; in bf16 they would be off by 1e-2
PATIENCE_SECONDS = 2.0  # for a whole unit to be freed


class Wrong(Exception):
    """Raised inside the reader's step, out of a callback: (slip, words)."""


def weights(unit: int) -> torch.Tensor:
    """The whole unit, the same on every rank."""
    return torch.randn(SIZES[unit], generator=torch.Generator().manual_seed(unit))


def gradient(unit: int, rank: int) -> torch.Tensor:
    """What the backward of a rank gives for the whole unit."""
    generator = torch.Generator().manual_seed(100 + 10 * unit + rank)
    return weights(unit) * torch.randn(SIZES[unit], generator=generator)


def cut(flat: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """The shard of a flat tensor: padded with zeros to a multiple of the ranks."""
    return torch.nn.functional.pad(flat, (0, -len(flat) % world)).view(world, -1)[rank].clone()


class Watch:
    """The callbacks: they note the order and raise `Wrong` at the first thing that is not as it should be."""

    def __init__(self, rank: int, calls: counted) -> None:
        self.rank, self.calls = rank, calls
        self.order: list[tuple] = []
        self.seen: list[tuple] = []

    def forward(self, unit: int, whole: torch.Tensor) -> None:
        with self.calls.paused():
            self._look("forward", unit, whole)

    def backward(self, unit: int, whole: torch.Tensor) -> torch.Tensor:
        with self.calls.paused():
            self._look("backward", unit, whole)
            return gradient(unit, self.rank)

    def _look(self, phase: str, unit: int, tensor: torch.Tensor) -> None:
        self.order.append((phase, unit))
        check_whole(phase, unit, tensor)
        storage = StorageWeakRef(tensor.untyped_storage())
        for earlier_phase, earlier_unit, earlier_storage in self.seen:
            last = earlier_phase == "forward" and phase == "backward" and earlier_unit == unit == len(SIZES) - 1
            shared = earlier_storage.cdata == storage.cdata
            if not (shared or last or _is_freed(earlier_storage)):
                raise Wrong(
                    "not-freed",
                    f"while unit {unit} computes in the {phase}, unit {earlier_unit} of the {earlier_phase} is "
                    "still unsharded: free it first, and keep no list of unsharded units",
                )
            if shared and earlier_unit != unit and tensor.untyped_storage().nbytes() > ROOM:
                raise Wrong(
                    "not-freed",
                    f"units {earlier_unit} and {unit} are in one buffer that holds more than one unit: all-gather "
                    "them one at a time",
                )
        self.seen.append((phase, unit, storage))
        foreign_unit = self._foreign_unit(unit, tensor)
        if foreign_unit is not None:
            raise Wrong(
                "not-freed",
                f"while unit {unit} computes in the {phase}, the other rank's shard of unit "
                f"{foreign_unit} is in memory too: all-gather a unit when its turn comes, and keep no other",
            )

    def _foreign_unit(self, unit: int, tensor: torch.Tensor) -> int | None:
        """Another unit of which this rank has what is not its own, whatever tensor it lies in."""
        end = time.monotonic() + PATIENCE_SECONDS
        foreign = {
            candidate: cut(weights(candidate), 1 - self.rank, 2)[: size // 2]
            for candidate, size in enumerate(SIZES)
            if candidate != unit
        }
        while True:
            memory = [
                storage
                for storage in self.calls.alive()
                if storage._cdata != tensor.untyped_storage()._cdata or storage.nbytes() > ROOM + 4
            ]
            kept_unit = next(
                (candidate for candidate, part in foreign.items() if any(map(part_in(part), memory))), None
            )
            if kept_unit is None or time.monotonic() > end:
                return kept_unit
            del memory
            time.sleep(0.005)


def part_in(part: torch.Tensor) -> Callable[[torch.UntypedStorage], bool]:
    """Whether memory has these numbers in it, in a row."""

    def contains(storage: torch.UntypedStorage) -> bool:
        if storage.nbytes() < part.nbytes or storage.nbytes() % 4:
            return False
        flat = torch.empty(0).set_(storage)
        starts = (flat[: len(flat) - len(part) + 1] == part[0]).nonzero().flatten().tolist()
        return any(torch.equal(flat[start : start + len(part)], part) for start in starts)

    return contains


def _is_freed(storage_ref: StorageWeakRef) -> bool:
    """Whether a storage has no bytes any more. gloo's thread may hold a gathered tensor a moment longer than `wait`."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        storage = torch.UntypedStorage._new_with_weak_ptr(storage_ref.cdata)
        if storage is None or not storage.nbytes():
            return True
        del storage
        time.sleep(0.005)
    return False


def check_whole(phase: str, unit: Any, tensor: object) -> None:
    """Raises `Wrong` where a callback was not given the unit's whole weights."""
    if unit not in range(len(SIZES)):
        raise Wrong("order", f"{phase} was called for unit {unit!r}: units are numbered from 0 to {len(SIZES) - 1}")
    if not isinstance(tensor, torch.Tensor):
        raise Wrong("not-whole", f"{phase}({unit}, ...) was given a {type(tensor).__name__}, not a flat tensor")
    size, count = SIZES[unit], tensor.numel()
    if count == size + size % 2 != size:
        raise Wrong(
            "padding", f"{phase}({unit}, ...) was given {count} elements, and the unit has {size}: cut the padding off"
        )
    if count != size or tensor.dim() != 1:
        raise Wrong(
            "not-whole",
            f"{phase}({unit}, ...) was given a tensor of {tuple(tensor.shape)}, and the whole unit "
            f"has ({size},): all-gather it",
        )
    error = (tensor - weights(unit)).abs().max().item()
    if error > CLOSE:
        turned = torch.cat([cut(weights(unit), rank, 2) for rank in (1, 0)])[:size]
        cause = (
            "put the shards in the order of the ranks"
            if (tensor - turned).abs().max() <= CLOSE
            else (f"they are off by up to {error:.2g}")
        )
        raise Wrong("wrong-weights", f"{phase}({unit}, ...) was not given the unit's weights: {cause}")


def rank_report(function, rank: int, world: int) -> Verdict | None:
    """One step on this rank: what is wrong with it, or None."""
    shards = [cut(weights(unit), rank, world) for unit in range(len(SIZES))]
    calls = counted()
    watch = Watch(rank, calls)
    gc.disable()  # a freed tensor goes at once; only a cycle of the reader's own would wait
    try:
        with calls:
            returned = function([shard.clone() for shard in shards], list(SIZES), watch.forward, watch.backward)
    except Wrong as error:
        slip, words = error.args
        return wrong(f"rank {rank}: {words}", slip)
    finally:
        gc.enable()
    fault = _stub(returned) or _order(watch.order) or _shards(returned, rank, world) or _talk(calls, world)
    return wrong(f"rank {rank}: {fault[1]}", fault[0]) if fault else None


def _stub(returned: object) -> Fault:
    if returned is ...:
        return "stub", "the function returns its ... at once: put your step in its place"
    if not isinstance(returned, (list, tuple)) or len(returned) != len(SIZES):
        return "no-list", f"the step gave {type(returned).__name__}: return a list of {len(SIZES)} gradient shards"
    return None


def _order(order: list[tuple[str, int]]) -> Fault:
    count = range(len(SIZES))
    if order != [("forward", unit) for unit in count] + [("backward", unit) for unit in reversed(count)]:
        return "order", (
            "the callbacks came in the wrong order: call forward from the first unit to the last, then backward "
            "from the last to the first, each once"
        )
    return None


def _shards(shards: list, rank: int, world: int) -> Fault:
    """What is wrong with the gradient shards."""
    lengths = [-(-size // world) for size in SIZES]
    if [getattr(shard, "shape", None) for shard in shards] == [(length,) for length in reversed(lengths)]:
        return "units-turned", "the gradient shards begin with the last unit: return them in the order of the units"
    for unit, shard in enumerate(shards):
        gradients = [gradient(unit, peer) for peer in range(world)]
        mean = sum(gradients) / world
        right = cut(mean, rank, world)
        if not isinstance(shard, torch.Tensor) or shard.numel() not in (len(right), len(mean), 2 * len(right)):
            return "wrong-gradient", f"the gradient of unit {unit} is no tensor of {len(right)} elements"
        if shard.numel() != len(right):
            return "whole-gradient", (
                f"the gradient of unit {unit} has {shard.numel()} elements, and this rank's shard "
                f"has {len(right)}: keep only the shard"
            )
        if (shard.flatten() - right).abs().max() > CLOSE:
            return _cause(shards, rank, world) or (
                "wrong-gradient",
                f"the gradient of unit {unit} is not this rank's shard of the mean over the ranks",
            )
        if shard.untyped_storage().nbytes() > right.untyped_storage().nbytes():
            return "view", (
                f"the gradient shard of unit {unit} is a view of {shard.untyped_storage().nbytes()} bytes, "
                f"which it keeps alive; a shard has {right.untyped_storage().nbytes()}. Reduce-scatter "
                "into a tensor of its own, or clone"
            )
    return None


def _cause(shards: list, rank: int, world: int) -> Fault:
    """The mistake that gives the gradients of all units."""
    known = {
        "not-averaged": f"are {world} times too large: a reduce-scatter sums. Divide by the world size",
        "own-gradient": "are this rank's own: they were not averaged with the other's",
        "other-shard": "are the shards of the other rank",
    }
    for unit, shard in enumerate(shards):
        gradients = [gradient(unit, peer) for peer in range(world)]
        values = {
            "not-averaged": cut(sum(gradients), rank, world),
            "own-gradient": cut(gradients[rank], rank, world),
            "other-shard": cut(sum(gradients) / world, 1 - rank, world),
        }
        known = {
            slip: words
            for slip, words in known.items()
            if isinstance(shard, torch.Tensor)
            and shard.numel() == len(values[slip])
            and (shard.flatten() - values[slip]).abs().max() <= CLOSE
        }
    return next(((slip, f"the gradients of all units {words}") for slip, words in known.items()), None)


def _talk(calls: counted, world: int) -> Fault:
    """What is wrong with how a right step communicated."""
    large = [call for call in calls.calls if call.bytes > OVERHEAD // 2]
    names = {call.name for call in large}
    if "all_reduce" in names:
        return "all-reduce", (
            "the shards are right, but you used an all-reduce: every rank then gets the whole gradient, for "
            "twice the bytes. Use a reduce-scatter"
        )
    if not names & {"reduce_scatter", "reduce", "all_to_all", "send"}:
        return "unseen", "the shards are right, but no reduce-scatter of yours was seen"
    longest, limit = max(call.bytes for call in large), ROOM + 4 + OVERHEAD
    if longest > limit:
        return "more-than-a-unit", (
            f"the shards are right, but one of your collectives has {longest:,} bytes, and the "
            f"largest unit has {ROOM:,}: communicate one unit at a time"
        )
    gathers = sum(call.name == "all_gather" for call in large)
    if gathers > 2 * len(SIZES):
        return "too-many", f"you made {gathers} all-gathers: {len(SIZES)} units need at most {2 * len(SIZES)}"
    # a gather that is a broadcast of each part sends twice as much as a ring would
    model = 4 * sum(SIZES)
    if calls.sent > 3 * model + OVERHEAD * len(calls.calls):
        return "sent-too-much", (
            f"the shards are right, but this rank sent {calls.sent:,.0f} bytes for a model of "
            f"{model:,}: all-gather each unit twice, and reduce-scatter its gradient once"
        )
    return None


CHECK = Check(
    "scaleout.exercises.fsdp.ranks",
    "sharded_step",
    (2,),
    rank_report,
    all_right(
        f"right: {{}} ranks gathered {len(SIZES)} units one at a time, freed each, and keep only their "
        "shard of the mean gradient",
    ),
    wait_seconds=10,
)
