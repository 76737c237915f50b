"""Allocations of a step under FSDP, in any implementation: the book's Ledger, extended to units.

A unit is freed and comes back by resizing its storage, which is no operation, so that resizing is watched too. Kinds as
in scaleout.memory.fsdp_tape.KINDS. What a collective works with inside (gloo's copies, NCCL's channels) and what an
allocator rounds up is not seen.
"""

from __future__ import annotations

import contextlib
import functools
import weakref

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakIdKeyDictionary

from scaleout.measure.ledger import Ledger, on_moments
from scaleout.memory.fsdp_tape import KINDS
from scaleout.parallel import private
from scaleout.parallel.recipe import optimizer_tensors

COLLECTIVES = {private.all_gather_op: "all_gather", private.reduce_scatter_op: "reduce_scatter",
               torch.ops.c10d.allreduce_.default: "all_reduce"}  # fmt: skip
UPDATE = "optimizer"  # the moment that the update is, in scaleout.memory.accounts.MOMENTS
PHASES = dict.fromkeys(("head", "block", "embedding"), "backward") | {UPDATE: "update"}


def _phase(moment: str) -> str:
    """The phase of scaleout.memory.fsdp.Moment that a moment lies in."""
    return PHASES.get(moment, moment)


class FsdpLedger(Ledger):
    """A Ledger that knows units.

    events: [[moment, "gather" | "free" | "reduce" | "update", unit, fullest bytes from then to the next event, {kind:
    bytes} then, units that are whole]]. by_unit: {(phase, unit, what): most bytes}, in the order of time, for what =
    "gather", "compute" and "reduce", of a model under `fully_shard`. collectives: {name: {"count", "bytes"}}, of the
    whole message: an all-gather's output, a reduce-scatter's input.
    """

    def __init__(self, device: str) -> None:
        """device: "cpu" or "cuda", whose bytes are counted; offloaded shards lie elsewhere."""
        super().__init__()
        self.now, self.device = dict.fromkeys(KINDS, 0), device
        self.unit_of = WeakIdKeyDictionary()  # storage -> name
        self.whole: dict[str, int] = {}  # unit -> its bytes that are there
        self.events: list[list] = [["forward", "begin", "", 0, {}, ()]]
        self.by_unit: dict[tuple[str, str, str], int] = {}
        self.collectives = {name: {"count": 0, "bytes": 0} for name in COLLECTIVES.values()}
        self.unit, self.what = "", "compute"
        self.moving = 0  # above 0 while `fully_shard` gathers, frees or reduces

    @property
    def phases(self) -> dict[str, dict[str, int]]:
        """Bytes by kind at the fullest instant of "forward", "loss", "backward" and "update"."""
        peaks: dict[str, dict[str, int]] = {}
        for moment, sizes in self.moments.items():
            peaks[_phase(moment)] = max(peaks.get(_phase(moment), sizes), sizes, key=lambda kinds: sum(kinds.values()))
        return peaks

    @property
    def peak(self) -> dict[str, int]:
        """Bytes by kind at the fullest instant of all."""
        return max(self.events, key=lambda event: event[3])[4]

    def enter(self, moment: str) -> None:
        """The moment begins."""
        if _phase(moment) != _phase(self.moment):
            self.unit, self.what = "", "compute"
        if moment == UPDATE:
            self.moment = moment
            self._event("update", "")
        super().enter(moment)

    # --- resizing -------------------------------------------------------------------------------------------

    def __enter__(self):
        self._mode, plain = private.active_fake_mode(), torch.UntypedStorage.resize_

        @functools.wraps(plain)
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
        unit = self.unit_of.get(storage)
        if unit is not None and change:
            old = self.whole.get(unit, 0)
            self.whole[unit] = old + change
            if bool(old) != bool(old + change):
                self._event("gather" if change > 0 else "free", unit)
        self._mark("resize")

    # --- kinds ----------------------------------------------------------------------------------------------

    def claim(self, tensor: torch.Tensor, kind: str) -> None:
        """As in Ledger, for tensors of the device that is counted, and the part of a DTensor that this rank has."""
        if tensor.device.type == self.device:
            super().claim(tensor.to_local() if isinstance(tensor, DTensor) else tensor, kind)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # let it turn into operations on this rank's shard, which come here
        if private.active_fake_mode() is not self._mode:
            return func(*args, **(kwargs or {}))  # DTensor works out sizes on fake tensors of its own
        if func.is_view and args[0].untyped_storage() not in self._known:
            return func(*args, **(kwargs or {}))  # of gloo's own copy, which its threads free when they get to it
        if func in COLLECTIVES:
            self._count(COLLECTIVES[func], args)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops.fsdp.split_with_sizes_copy.default and self._mode is None and args[0].device.type == "cpu":
            self._retire(args[0])
        return result

    def _count(self, name: str, args) -> None:
        message = args[0] if name == "all_gather" else args[1] if name == "reduce_scatter" else args[0][0]
        self.collectives[name]["count"] += 1
        self.collectives[name]["bytes"] += message.numel() * message.element_size()
        if name == "reduce_scatter":
            self._event("reduce", "")
            if not self.moving:  # by hand; a group of `fully_shard` says when its gradients are there
                self.claim(args[0], "gradients")
                self.claim(args[1], "buffers")

    def _retire(self, buffer: torch.Tensor) -> None:
        """An all-gather's message has been copied out, and torch lets go of it; a thread of gloo's may hold it longer,
        by chance. (On a GPU torch keeps it until the next one.)"""
        entry = self._known[buffer.untyped_storage()]
        self.now[entry[0]] -= entry[1]
        entry[1] = 0

    def _kind(self, func, args, tensor: torch.Tensor) -> str:
        if func is torch.ops.aten.clone.default:  # what resharding to a number of ranks keeps of a unit
            source = self._known.get(args[0].untyped_storage())
            if source is not None and source[0] == "gathered":
                return "gathered"
        return "buffers" if self.moving else super()._kind(func, args, tensor)

    def _event(self, action: str, unit: str) -> None:
        units = tuple(sorted(name for name, size in self.whole.items() if size))
        self.events.append([self.moment, action, unit, 0, {}, units])

    def _mark(self, operation: str) -> None:
        super()._mark(operation)
        total = sum(self.now.values())
        if total > self.events[-1][3]:
            self.events[-1][3:5] = total, dict(self.now)
        # the embedding is the root's, which has no hook between the first block's backward and its own
        root = self.moment == "embedding" and self.what == "compute"
        stretch = _phase(self.moment), "" if root else self.unit, self.what
        self.by_unit[stretch] = max(total, self.by_unit.get(stretch, 0))


@contextlib.contextmanager
def watch(way, *batch, prepend: bool = False):
    """Give an FsdpLedger of one step that runs inside the context, of a parallel.fsdp_ways.FSDPWay, or of what has its
    model, optimizer, session `s`, `hand` and `buckets`. Call `ledger.enter("optimizer")` before the update. The step
    must not be the way's first: shards are made, and the optimizer has its state.

    batch: the step's tokens and targets, counted as activations. prepend: what `fully_shard` gathers for the loss's
    backward is the loss's, as it is in the memory model, and not still the forward's.
    """
    ledger = FsdpLedger(way.s.device.type)
    for tensor in batch:
        ledger.claim(tensor, "activations")
    sharded = {name: module for name, module in way.model.named_modules() if isinstance(module, FSDPModule)}
    handles = [
        p.register_post_accumulate_grad_hook(lambda p: _claim(ledger, p, "whole gradients"))
        for p in _gathered(way, sharded, ledger)
    ]
    for bucket in way.buckets.values():
        ledger.claim(bucket, "gradients")
    for p in way.hand.parameters() if way.hand is not None else way.model.parameters():
        ledger.claim(p.data, "weights")
        _claim(ledger, p, "gradients")
    for tensor in optimizer_tensors(way.optimizer):
        ledger.claim(tensor, "optimizer")
    with contextlib.ExitStack() as stack:
        for handle in [*handles, *on_moments(ledger, way.model, prepend)]:
            stack.callback(handle.remove)
        stack.enter_context(ledger)
        for name, module in sharded.items():
            if private.group(module) is not None:
                stack.enter_context(_stretches(ledger, name, module))
        yield ledger


def _claim(ledger: FsdpLedger, p: nn.Parameter, kind: str) -> None:
    if p.grad is not None:  # by hand the unit's last gradient has been sent by now
        ledger.claim(p.grad, kind)


def _gathered(way, sharded: dict[str, FSDPModule], ledger: FsdpLedger) -> list[nn.Parameter]:
    """The parameters that get whole gradients, after noting which unit their storage belongs to."""
    if way.hand is not None:
        for unit in way.hand.units:
            ledger.unit_of[unit.whole.untyped_storage()] = unit.name
    parameters = [p for p in way.model.parameters() if not isinstance(p, DTensor)]
    for name, module in sharded.items():
        module.unshard()
        gathered = [p for p in module.parameters() if not isinstance(p, DTensor)]
        for p in gathered:
            ledger.unit_of[p.untyped_storage()] = name
        parameters += gathered
        module.reshard()
    return parameters


@contextlib.contextmanager
def _stretches(ledger: FsdpLedger, name: str, module: FSDPModule):
    """Inside, the ledger knows what unit is at work and at what: by what `fully_shard` calls of a module's group."""
    group = private.group(module)
    attributes, plain = dict(vars(group)), {method: getattr(group, method) for method in private.METHODS}

    def moving(method: str, action: str, *args, **kwargs):
        """A gather, a reshard or a reduction: what it makes are buffers, until it is known what they become."""
        outer = ledger.unit, ledger.what
        ledger.unit, ledger.what = (name, action) if action else outer
        ledger.moving += 1
        try:
            return plain[method](*args, **kwargs)
        finally:
            ledger.moving -= 1
            ledger.unit, ledger.what = outer
            if action == "reduce":
                for p in module.parameters():
                    _claim(ledger, p, "gradients")

    def followed(method: str, unit: str, *args, **kwargs):
        """What follows is computed for `unit`."""
        result = plain[method](*args, **kwargs)
        ledger.unit, ledger.what = unit, "compute"
        return result

    for method, action in (
        ("unshard", ""),
        ("wait_for_unshard", "gather"),
        ("reshard", ""),
        ("post_backward", "reduce"),
    ):
        setattr(group, method, functools.partial(moving, method, action))
    for method, unit in (("pre_forward", name), ("pre_backward", name), ("post_forward", "")):
        setattr(group, method, functools.partial(followed, method, unit))
    try:
        yield
    finally:
        for method in plain:
            if method in attributes:  # another witness had wrapped it
                setattr(group, method, attributes[method])
            else:
                delattr(group, method)


def measured(way, batch):
    """({kind: bytes} at the peak of a step, FsdpLedger.events) of a way that has made a step before."""
    with watch(way, *batch) as ledger:
        way.gradients([batch])
        ledger.enter(UPDATE)
        way.update()
    return ledger.peak, ledger.events
