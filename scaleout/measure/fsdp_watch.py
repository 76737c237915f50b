"""What a step under `fully_shard` allocates, by kind and over time: the book's Ledger, taught what FSDP does.

FSDP frees and refills the storage of whole parameters in place (`UntypedStorage.resize_`), which no operation shows:
the ledger watches that call too. It wraps what torch's own parameter groups do; those are private parts of FSDP2,
used here and in measure/fsdp_memory.py.
"""

from __future__ import annotations

import contextlib
import functools

import torch
from torch import nn
from torch._guards import active_fake_mode
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from scaleout.measure.ledger import Ledger
from scaleout.memory.fsdp_tape import KINDS
from scaleout.parallel.norm import RMSNorm

c10d = torch.ops.c10d
COLLECTIVES = {c10d._allgather_base_.default: "all_gather", c10d._reduce_scatter_base_.default: "reduce_scatter",
               c10d.allreduce_.default: "all_reduce"}  # fmt: skip


class GroupLedger(Ledger):
    """Bytes alive by kind, and the fullest instant of each phase.

    moments: {"forward", "loss", "backward", "update": {kind: bytes}}. by_unit: {(phase, unit, what): most bytes}, in
    the order of time, for what = "gather", "compute" and "reduce". collectives: {name: {"count", "bytes"}}, of the
    whole message: an all-gather's output, a reduce-scatter's input.
    """

    def __init__(self, keep_timeline: bool = False) -> None:
        super().__init__(keep_timeline)
        self.now = dict.fromkeys(KINDS, 0)
        self.by_unit: dict[tuple[str, str, str], int] = {}
        self.collectives = {name: {"count": 0, "bytes": 0} for name in COLLECTIVES.values()}
        self.unit, self.what = "", "compute"
        self.moving = 0  # above 0 while FSDP gathers or reduces
        self._mode = None

    def __enter__(self):
        self._mode = active_fake_mode()
        return super().__enter__()

    def enter(self, moment: str) -> None:
        """The phase begins."""
        self.unit, self.what = "", "compute"
        super().enter(moment)

    def _kind(self, func, args, out: torch.Tensor) -> str:
        if self.moving:  # a copy-out makes the whole parameters, the first time that it happens
            return "gathered" if self.what == "gather" else "buffers"
        if out.numel() == self.logits:
            return "logits"
        forward = self.moment == "forward" or (torch.is_grad_enabled() and self.moment != "update")
        return "activations" if forward else "temporaries"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(kind is DTensor for kind in types):
            return NotImplemented  # it comes back as an operation on the shard
        if active_fake_mode() is not self._mode:
            return func(*args, **(kwargs or {}))  # DTensor works out sizes on fake tensors of its own
        if func in COLLECTIVES:
            self._count(func, args)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _count(self, func, args) -> None:
        name = COLLECTIVES[func]
        message = args[0] if name == "all_gather" else args[1] if name == "reduce_scatter" else args[0][0]
        self.collectives[name]["count"] += 1
        self.collectives[name]["bytes"] += message.numel() * message.element_size()

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage has another size now."""
        entry = self._known.get(storage)
        if entry is not None:
            self.now[entry[0]] += storage.nbytes() - entry[1]
            entry[1] = storage.nbytes()
            self._mark("resize")

    def _mark(self, operation: str) -> None:
        super()._mark(operation)
        key, total = (self.moment, self.unit, self.what), sum(self.now.values())
        self.by_unit[key] = max(total, self.by_unit.get(key, 0))


@contextlib.contextmanager
def watch(model: nn.Module, optimizer: torch.optim.Optimizer, *batch: torch.Tensor, timeline: bool = False):
    """Give a GroupLedger of one step of a model under `fully_shard` that runs inside the context.

    model: the book's Transformer, sharded, called with targets. batch: tokens and targets. Call
    `ledger.enter("update")` before the optimizer's step.
    """
    ledger = GroupLedger(timeline)
    for tensor in batch:
        ledger.claim(tensor, "activations")
    groups = [group for module in model.modules() if isinstance(module, FSDPModule)
              for group in module._get_fsdp_state()._fsdp_param_groups]  # fmt: skip
    _claim_states(ledger, groups, optimizer)
    handles = _on_phases(ledger, model)
    undo = [_instrument(ledger, group, _name(model, group), handles) for group in groups]
    original = torch.UntypedStorage.resize_

    @functools.wraps(original)
    def resize_(storage, size):
        original(storage, size)
        ledger.resized(storage)

    torch.UntypedStorage.resize_ = resize_
    try:
        with ledger:
            yield ledger
    finally:
        torch.UntypedStorage.resize_ = original
        for handle in handles:
            handle.remove()
        for put_back in undo:
            put_back()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """A DTensor's part of this rank; any other tensor itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _name(model: nn.Module, group) -> str:
    return next(name for name, module in model.named_modules() if module is group.modules[0])


def _claim_states(ledger: GroupLedger, groups: list, optimizer: torch.optim.Optimizer) -> None:
    for group in groups:
        for p in group.fsdp_params:
            ledger.claim(p._sharded_local_tensor, "weights")
            if p.sharded_param.grad is not None:
                ledger.claim(_local(p.sharded_param.grad), "gradients")
            for whole in p.all_gather_outputs:
                ledger.claim(whole, "gathered")
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                ledger.claim(_local(value), "optimizer")


METHODS = ("unshard", "wait_for_unshard", "reshard", "pre_forward", "post_forward", "pre_backward", "post_backward")


def _instrument(ledger: GroupLedger, group, name: str, handles: list):
    """Wrap what a unit does, so that its tensors get their kind; returns what unwraps it."""
    before = {method: group.__dict__.get(method) for method in METHODS}  # another witness may have wrapped them
    wrapped = {method: getattr(group, method) for method in METHODS}
    hooked: set[int] = set()
    for method, what in (("unshard", ""), ("wait_for_unshard", "gather"), ("reshard", ""), ("post_backward", "reduce")):
        setattr(group, method, functools.partial(_move, ledger, group, name, what, wrapped[method], hooked, handles))
    for method, unit in (("pre_forward", name), ("pre_backward", name), ("post_forward", "")):
        setattr(group, method, functools.partial(_then, ledger, unit, wrapped[method]))

    def put_back() -> None:
        for method, own in before.items():
            if own is None:
                group.__dict__.pop(method, None)
            else:
                setattr(group, method, own)

    return put_back


def _move(ledger: GroupLedger, group, name: str, what: str, call, hooked: set[int], handles: list, *args, **kwargs):
    """A gather, a reshard or a reduction: what it makes are buffers, until it is known what they become."""
    before = (ledger.unit, ledger.what)
    if what:
        ledger.unit, ledger.what = name, what
    ledger.moving += 1
    try:
        return call(*args, **kwargs)
    finally:
        ledger.moving -= 1
        for p in group.fsdp_params:
            _claim(ledger, p, hooked, handles)
        ledger.unit, ledger.what = before


def _then(ledger: GroupLedger, unit: str, call, *args, **kwargs):
    """What follows is computed for `unit`."""
    out = call(*args, **kwargs)
    ledger.unit, ledger.what = unit, "compute"
    return out


def _claim(ledger: GroupLedger, p, hooked: set[int], handles: list) -> None:
    """Give the tensors of one parameter their kind, as far as they exist by now."""
    for whole in p.all_gather_outputs:
        ledger.claim(whole, "gathered")
    kept = getattr(p, "_sharded_post_forward_param_data", None)
    if kept is not None:
        ledger.claim(kept, "gathered")
    if p.sharded_param.grad is not None:
        ledger.claim(_local(p.sharded_param.grad), "gradients")
    whole = getattr(p, "_unsharded_param", None)
    if whole is not None and id(p) not in hooked:
        hooked.add(id(p))
        take = lambda w: ledger.claim(w.grad, "whole gradients")  # noqa: E731
        handles.append(whole.register_post_accumulate_grad_hook(take))


def _on_phases(ledger: GroupLedger, model: nn.Module) -> list:
    def head_done(module, inputs, logits) -> None:
        ledger.logits = logits.numel()
        ledger.claim(logits, "logits")
        logits.register_hook(lambda grad: ledger.enter("backward"))

    def loss_done(module, inputs, loss) -> None:  # before FSDP's own hook, whose gather belongs to the loss
        loss.register_hook(lambda grad: ledger.enter("loss"))

    def norm_done(module, inputs, out) -> None:
        ledger.claim(out, "activations")

    norms = [part for part in model.modules() if isinstance(part, RMSNorm)]
    return [model.head.register_forward_hook(head_done, prepend=True),
            model.register_forward_hook(loss_done, prepend=True),
            *[norm.register_forward_hook(norm_done) for norm in norms]]  # fmt: skip
