"""What a reader's code sends, and what it holds: seen where torch dispatches, whatever the code calls it by.

A name that was imported, another name for it, a method of a group, a collective of objects, a functional one, what
autograd or a wrapper calls: all of them arrive here as operations of torch.distributed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from scaleout.parallel import private

SPACES = ("c10d", "_c10d_functional")
# torch's operation: the name that torch.distributed has for it. A receive is another rank's send.
NAMES = {
    "allreduce_": "all_reduce", "allreduce_coalesced_": "all_reduce", "all_reduce": "all_reduce", "reduce_": "reduce",
    "all_reduce_": "all_reduce", "all_reduce_coalesced": "all_reduce", "all_reduce_coalesced_": "all_reduce",
    "allgather_": "all_gather", "_allgather_base_": "all_gather", "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather", "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather", "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_": "reduce_scatter", "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter", "broadcast_": "broadcast", "broadcast": "broadcast",
    "gather_": "gather", "scatter_": "scatter", "alltoall_": "all_to_all", "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all", "send": "send",
}  # fmt: skip


RANDOM = torch.get_rng_state().nbytes  # of a copy of the random state, which torch's checkpoint takes each time


@dataclass(frozen=True)
class Call:
    """One collective, or a send. bytes: of the whole message, the larger of what goes in and what comes out;
    destination: the rank that a send goes to, -1 for a collective."""

    name: str
    bytes: int
    ranks: int
    destination: int = -1

    @property
    def sent(self) -> float:
        """Bytes that a rank sends for it in a ring, the mean over the ranks."""
        if self.name == "send":
            return self.bytes
        return (2 if self.name == "all_reduce" else 1) * self.bytes * (self.ranks - 1) / self.ranks


class counted(private.TorchDispatchMode):
    """Notes every collective and send of the code inside, by this thread and its backward, and the memory it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.memory: dict[int, StorageWeakRef] = {}
        self.looking = True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a DTensor, say: let it turn into operations on plain tensors, which come here
        result = func(*args, **(kwargs or {}))
        if not self.looking:
            return result
        space, _, name = func._schema.name.partition("::")
        if space in SPACES and name in NAMES:
            group = private.ranks_of(func, args)
            size = max(sum(tensor.nbytes for tensor in _tensors(side)) for side in (*args[:2], result))
            self.calls.append(Call(NAMES[name], size, len(group), group[args[2]] if name == "send" else -1))
        for tensor in _tensors(result):
            storage = StorageWeakRef(tensor.untyped_storage())
            self.memory[storage.cdata] = storage
        return result

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What the checker does itself, in the middle of the reader's code, is not noted."""
        was_looking, self.looking = self.looking, False
        try:
            yield
        finally:
            self.looking = was_looking

    @property
    def names(self) -> list[str]:
        """Of the collectives, in order."""
        return [call.name for call in self.calls if call.name != "send"]

    @property
    def sent(self) -> float:
        """Bytes that this rank sent, those of a ring for a collective."""
        return sum(call.sent for call in self.calls)

    def sent_to(self) -> dict[int, int]:
        """Bytes of sends by the rank that they went to."""
        bytes_by_rank: dict[int, int] = {}
        for call in self.calls:
            if call.destination >= 0 and call.bytes:
                bytes_by_rank[call.destination] = bytes_by_rank.get(call.destination, 0) + call.bytes
        return bytes_by_rank

    def alive(self, excluded: Iterable[torch.Tensor] = ()) -> Iterator[torch.UntypedStorage]:
        """Memory that operations inside have given and that somebody still holds, but for that of these tensors and
        copies of the random state."""
        known = {tensor.untyped_storage()._cdata for tensor in excluded}
        for cdata, weak in list(self.memory.items()):
            storage = None if cdata in known else torch.UntypedStorage._new_with_weak_ptr(cdata)
            if storage is not None and storage.nbytes() not in (0, RANDOM):
                yield storage
            elif weak.expired():
                del self.memory[cdata]  # another storage may get its place


def _tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in private.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
