"""Allocations of a step, by kind and by moment: every tensor's storage, from its first use until it is freed.

A `TorchDispatchMode` sees the result of every operation that torch runs, forward, backward and optimizer alike, on
real tensors and on fake ones, on a CPU and on GPUs. A storage counts once, however many views it has. What a kernel
takes and gives back within one operation is not seen; nor is what an allocator rounds up or keeps.
"""

from __future__ import annotations

import contextlib
import weakref

import torch
from torch.utils.weak import WeakIdKeyDictionary

from scaleout.memory.accounts import KINDS, MOMENTS
from scaleout.parallel import private
from scaleout.parallel.norm import RMSNorm
from scaleout.parallel.recipe import Training, optimizer_tensors


class Ledger(private.TorchDispatchMode):
    """Bytes alive by kind while the mode is on, and the fullest instant of each moment.

    A tensor of the forward is "activations", and so is one that checkpointing computes again (gradients are enabled
    then, in the middle of backward); a 16-bit copy of a weight is "weights"; other tensors of the backward and of
    the update are "temporaries"; one with as many elements as the logits, while there are logits, is "logits". A
    weight's gradient is "gradients" once it is its .grad.

    moments: {moment: {kind: bytes}}. timeline: [(moment, operation, {kind: bytes})], or None.
    """

    def __init__(self, keep_timeline: bool = False) -> None:
        super().__init__()
        self.moment = MOMENTS[0]
        self.now = dict.fromkeys(KINDS, 0)
        self.moments: dict[str, dict[str, int]] = {}
        self.timeline: list[tuple[str, str, dict[str, int]]] | None = [] if keep_timeline else None
        self.adds_in_place = False  # set where the gradients of weights are casts
        self.logits = 0  # elements, while a tensor of that size is the logits
        self.names_logits = True  # else they are activations and temporaries, as in the account of transformers
        self._known = WeakIdKeyDictionary()  # storage -> [kind, bytes]
        self._most: dict[str, int] = {}

    def claim(self, tensor: torch.Tensor, kind: str) -> None:
        """Count the tensor's storage under `kind`, moving it there when it is counted already."""
        storage = tensor.untyped_storage()
        entry = self._known.get(storage)
        if entry is None:
            entry = self._known[storage] = [kind, storage.nbytes()]
            weakref.finalize(storage, self._free, entry)
        else:
            self.now[entry[0]] -= entry[1]
            entry[0] = kind
        self.now[kind] += entry[1]

    def enter(self, moment: str) -> None:
        """The moment begins."""
        self.moment = moment
        if moment not in ("forward", "loss"):
            self.logits = 0
        self._mark("")

    def _free(self, entry: list) -> None:
        self.now[entry[0]] -= entry[1]

    def _kind(self, func, args, tensor: torch.Tensor) -> str:
        if tensor.numel() == self.logits:
            return "logits"
        if self.moment == "optimizer" or not (self.moment == "forward" or torch.is_grad_enabled()):
            return "temporaries"
        if func is private.to_copy:
            source = self._known.get(args[0].untyped_storage())
            if source and source[0] == "weights":
                return "weights"
        return "activations"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if self.adds_in_place and self.moment == "embedding" and func is torch.ops.aten.add.Tensor:
            self._add_in_place(args[0], result)
        for leaf in private.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage() not in self._known:
                self.claim(leaf, self._kind(func, args, leaf))
        self._mark(str(func))
        return result

    def _add_in_place(self, first: torch.Tensor, tensor: torch.Tensor) -> None:
        """A tied head's gradient and the token table's are added. Where the first is a tensor of its own, as a cast
        is, autograd does that in place, but in a third tensor while a mode like this one looks on: count the sum as
        the first's bytes. The CPU allocator, which nothing disturbs, shows both (tests/memory/test_truth.py)."""
        entry = self._known.get(first.untyped_storage())
        self.claim(tensor, "temporaries")
        if entry is not None and entry[0] == "temporaries":
            self.now["temporaries"] -= entry[1]
            entry[1] = 0

    def _mark(self, operation: str) -> None:
        total = sum(self.now.values())
        if self.timeline is not None:
            self.timeline.append((self.moment, operation, dict(self.now)))
        if total > self._most.get(self.moment, -1):
            self._most[self.moment], self.moments[self.moment] = total, dict(self.now)


@contextlib.contextmanager
def watch(training: Training, *batch: torch.Tensor, timeline: bool = False):
    """Give a Ledger of one step of `training` that runs inside the context: forward, backward, update.

    batch: the step's tokens and targets, counted as activations. Call `ledger.enter("optimizer")` before the
    update; the other moments are found by hooks on the model's gradients.
    """
    ledger = Ledger(timeline)
    ledger.adds_in_place = training.recipe.autocast
    for tensor in batch:
        ledger.claim(tensor, "activations")
    for p in training.model.parameters():
        ledger.claim(p, "weights")
        if p.grad is not None:
            ledger.claim(p.grad, "gradients")
    for master in training.masters:
        ledger.claim(master, "master")
    for tensor in optimizer_tensors(training.optimizer):
        ledger.claim(tensor, "optimizer")
    claim = lambda p: ledger.claim(p.grad, "gradients")  # noqa: E731
    handles = [p.register_post_accumulate_grad_hook(claim) for p in training.trained]
    with contextlib.ExitStack() as stack:
        for handle in [*on_moments(ledger, training.model), *handles]:
            stack.callback(handle.remove)
        yield stack.enter_context(ledger)


def on_moments(ledger: Ledger, model: torch.nn.Module, prepend: bool = False) -> list:
    """Handles of hooks: moments hang on the gradients of three tensors, the logits, the last block's output and the
    first's input. prepend: before the hooks that are there."""

    def when_gradient(tensor: torch.Tensor | tuple, moment: str) -> None:
        tensor = tensor[0] if isinstance(tensor, tuple) else tensor  # a block of Falcon's returns more than its output
        if tensor.requires_grad and ledger.moment == "forward":  # not when checkpointing runs it again
            tensor.register_hook(lambda grad: ledger.enter(moment))

    def head_done(module, inputs, logits) -> None:
        if ledger.names_logits:
            ledger.logits = logits.numel()
            ledger.claim(logits, "logits")
        when_gradient(logits, "head")

    def norm_done(module, inputs, output) -> None:
        ledger.claim(output, "activations")  # a function written by hand runs without gradients, recomputed or not

    norms = [part for part in model.modules() if isinstance(part, RMSNorm)]
    first, last = model.blocks[0], model.blocks[-1]
    return [
        first.register_forward_pre_hook(lambda module, inputs: when_gradient(inputs[0], "embedding")),
        last.register_forward_hook(lambda module, inputs, output: when_gradient(output, "block")),
        model.head.register_forward_hook(head_done, prepend=prepend),
        model.register_forward_hook(lambda module, inputs, output: when_gradient(output, "loss"), prepend=prepend),
        *[norm.register_forward_hook(norm_done) for norm in norms],
    ]
