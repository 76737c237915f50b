"""The ledger of a step under FSDP, by any way: a unit is freed and comes back by resizing its storage, which is no
operation, so that resizing is watched too. Kinds as in scaleout.memory.fsdp.KINDS.

What a collective works with inside (gloo's copies, NCCL's channels) and what an allocator rounds up is not seen.
"""

from __future__ import annotations

import contextlib
import weakref

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from scaleout.measure.ledger import Ledger, _on_moments
from scaleout.memory.fsdp import KINDS

UPDATE = "optimizer"        # the moment that the update is, in scaleout.memory.accounts.MOMENTS


class ShardLedger(Ledger):
    """A Ledger that knows units. events: [[moment, "gather" | "free" | "reduce" | "update", unit, fullest bytes from
    then to the next event, {kind: bytes} then, units that are whole]]."""

    def __init__(self, device: str) -> None:
        """device: "cpu" or "cuda", whose bytes are counted; offloaded shards lie elsewhere."""
        super().__init__()
        self.now, self.device = dict.fromkeys(KINDS, 0), device
        self.unit_of: dict[int, str] = {}       # of a storage, by its address as a C++ object
        self.whole: dict[str, int] = {}         # unit -> its bytes that are there
        self.events: list[list] = [["forward", "begin", "", 0, {}, ()]]

    # --- resizing -------------------------------------------------------------------------------------------

    def __enter__(self):
        plain = torch.UntypedStorage.resize_

        def resize_(storage, size):
            plain(storage, size)
            self._resized(storage, size)
        self._plain, torch.UntypedStorage.resize_ = plain, resize_
        return super().__enter__()

    def __exit__(self, *error):
        torch.UntypedStorage.resize_ = self._plain
        return super().__exit__(*error)

    def _resized(self, storage, size: int) -> None:
        entry = self._known.get(storage)
        if entry is None:
            entry = self._known[storage] = ["gathered", 0]
            weakref.finalize(storage, self._free, entry)
        change, entry[1] = size - entry[1], size
        self.now[entry[0]] += change
        unit = self.unit_of.get(storage._cdata)
        if unit is not None and change:
            before = self.whole.get(unit, 0)
            self.whole[unit] = before + change
            if bool(before) != bool(before + change):
                self._event("gather" if change > 0 else "free", unit)
        self._mark("resize")

    def claim(self, tensor: torch.Tensor, kind: str) -> None:
        """As in Ledger, for tensors of the device that is counted."""
        if tensor.device.type == self.device:
            super().claim(tensor, kind)

    # --- kinds ----------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented               # let it turn into operations on this rank's shard, which come here
        if func.is_view and args[0].untyped_storage() not in self._known:
            return func(*args, **(kwargs or {}))        # of gloo's own copy, which its threads free when they get to it
        if func is torch.ops.c10d._reduce_scatter_base_.default:
            self._event("reduce", "")
            self.claim(args[0], "gradients")
            self.claim(args[1], "buffers")
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops.fsdp.all_gather_copy_in.default:
            self.claim(out[1], "buffers")
        elif func is torch.ops.fsdp.chunk_cat.default:
            self.claim(kwargs["out"], "buffers")
        elif func is torch.ops.fsdp.split_with_sizes_copy.default and args[0].device.type == "cpu":
            self._retire(args[0])
        return out

    def _retire(self, buffer: torch.Tensor) -> None:
        """An all-gather's message has been copied out, and torch lets go of it; a thread of gloo's may hold it longer,
        by chance. (On a GPU torch keeps it until the next one.)"""
        entry = self._known[buffer.untyped_storage()]
        self.now[entry[0]] -= entry[1]
        entry[1] = 0

    def _kind(self, func, args, out: torch.Tensor) -> str:
        if func is torch.ops.aten.clone.default:                # what resharding to a number of ranks keeps of a unit
            source = self._known.get(args[0].untyped_storage())
            if source is not None and source[0] == "gathered":
                return "gathered"
        return super()._kind(func, args, out)

    def _event(self, what: str, unit: str) -> None:
        units = tuple(sorted(name for name, size in self.whole.items() if size))
        self.events.append([self.moment, what, unit, 0, {}, units])

    def _mark(self, operation: str) -> None:
        super()._mark(operation)
        total = sum(self.now.values())
        if total > self.events[-1][3]:
            self.events[-1][3:5] = total, dict(self.now)

    def update_begins(self) -> None:
        """What follows is the optimizer's."""
        self.enter(UPDATE)
        self._event("update", "")
        self._mark("")

    @property
    def peak(self) -> dict[str, int]:
        """Bytes by kind at the fullest instant of all."""
        return max(self.events, key=lambda event: event[3])[4]


@contextlib.contextmanager
def watch(way, *batch):
    """Give a ShardLedger of one step of a parallel.fsdp_ways.Way that runs inside the context. Call
    `ledger.update_begins()` before the update. The step must not be the way's first: shards are made, and the
    optimizer has its state.

    batch: the step's tokens and targets, counted as activations.
    """
    ledger = ShardLedger(way.s.device.type)
    for tensor in batch:
        ledger.claim(tensor, "activations")
    handles = [p.register_post_accumulate_grad_hook(lambda p: _claim(ledger, p)) for p in _found(way, ledger)]
    for bucket in way.buckets.values():
        ledger.claim(bucket, "gradients")
    local = lambda t: t.to_local() if isinstance(t, DTensor) else t  # noqa: E731
    for p in way.hand.parameters() if way.hand is not None else way.model.parameters():
        ledger.claim(local(p.data), "weights")
        if p.grad is not None:
            ledger.claim(local(p.grad), "gradients")
    for state in way.optimizer.state.values():
        for value in (v for v in state.values() if isinstance(v, torch.Tensor)):
            ledger.claim(local(value), "optimizer")
    handles += _on_moments(ledger, way.model)
    try:
        with ledger:
            yield ledger
    finally:
        for handle in handles:
            handle.remove()


def _claim(ledger: ShardLedger, p: nn.Parameter) -> None:
    if p.grad is not None:                      # by hand the unit's last gradient has been sent by now
        ledger.claim(p.grad, "whole gradients")


def _found(way, ledger: ShardLedger) -> list[nn.Parameter]:
    """The parameters that get whole gradients, after noting which unit their storage belongs to."""
    if way.hand is not None:
        for unit in way.hand.units:
            ledger.unit_of[unit.whole.untyped_storage()._cdata] = unit.name
        return list(way.model.parameters())
    sharded = {name: m for name, m in way.model.named_modules() if isinstance(m, FSDPModule)}
    for module in sharded.values():
        module.unshard()
    inner = sorted(sharded, key=len, reverse=True)
    whole = dict(way.model.named_parameters())
    for name, p in whole.items():
        unit = next((n for n in inner if not n or name.startswith(n + ".")), None)
        if unit is not None:
            ledger.unit_of[p.untyped_storage()._cdata] = unit
    for module in sharded.values():
        module.reshard()
    return [p for p in whole.values() if not isinstance(p, DTensor)]


def measured(way, batch):
    """({kind: bytes} at the peak of a step, ShardLedger.events) of a way that has made a step before."""
    with watch(way, *batch) as ledger:
        way.gradients([batch])
        ledger.update_begins()
        way.update()
    return ledger.peak, ledger.events
