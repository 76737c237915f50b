"""What a step allocates, by kind and by moment: every tensor storage from its first sight until it is freed.

A `TorchDispatchMode` sees the result of every operation that torch runs, forward, backward and optimizer alike,
on real tensors and on fake ones, on a CPU and on GPUs. A storage counts once, however many views it has. What a
kernel takes and gives back within one operation is not seen; nor is what the allocator rounds up or keeps.
"""

import weakref
from contextlib import contextmanager

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from scaleout.memory import KINDS


class Tracker(TorchDispatchMode):
    """Bytes alive by kind while the mode is on.

    model: a `scaleout.model.Transformer`. Moments follow the gradient on its way back: "forward" until the loss
    is there, "loss" until the logits have their gradient, "head" until the last block's output has, "block" until
    the first block's input has, "embedding" until the backward ends, "optimizer" while it steps.

    fullest: {moment: {kind: bytes}} at the fullest instant of each moment. timeline: [(moment, {kind: bytes})],
    one entry an operation that changed something.
    """

    def __init__(self, model, keep_timeline=False):
        super().__init__()
        self.model, self.keep_timeline = model, keep_timeline
        self.storages = {}                     # id of a storage -> [weak reference, kind, bytes]
        self.alive = dict.fromkeys(KINDS, 0)
        self.fullest, self.timeline, self.moment = {}, [], "forward"
        self.logits = 0                        # elements of the logits, while logits may appear
        for p in model.parameters():
            self.adopt(p, "weights")
            if p.grad is not None:
                self.adopt(p.grad, "gradients")

    # --- which storage is what ------------------------------------------------------------------------------

    def adopt(self, tensor, kind):
        """Count the tensor's storage as `kind` from now on, whatever it was before."""
        storage = tensor.untyped_storage()
        entry = self.storages.get(id(storage))
        if entry is None:
            gone = weakref.ref(storage, lambda _, key=id(storage): self._freed(key))
            entry = self.storages[id(storage)] = [gone, kind, 0]
        self.alive[entry[1]] -= entry[2]
        entry[1:] = kind, storage.nbytes()
        self.alive[kind] += entry[2]

    def adopt_states(self, optimizer):
        """Count what the optimizer holds: fp32 copies of the weights as "master", the rest as "optimizer"."""
        known = {id(p) for p in self.model.parameters()}
        for group in optimizer.param_groups:
            for p in (p for p in group["params"] if id(p) not in known):
                self.adopt(p, "master")
        for held in optimizer.state.values():
            for value in held.values():
                if isinstance(value, torch.Tensor):
                    self.adopt(value, "optimizer")

    def _freed(self, key):
        _, kind, size = self.storages.pop(key)
        self.alive[kind] -= size
        self._note()

    def _kind(self, tensor):
        """What a new tensor is. Backward runs without gradients, but for what checkpointing computes again."""
        if self.logits and tensor.numel() == self.logits:
            return "logits"
        return "activations" if torch.is_grad_enabled() and self.moment != "optimizer" else "temporaries"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor) and id(tensor.untyped_storage()) not in self.storages:
                self.adopt(tensor, self._kind(tensor))
        self._note()
        return result

    def _note(self):
        if sum(self.alive.values()) > sum(self.fullest.get(self.moment, {}).values()):
            self.fullest[self.moment] = dict(self.alive)
        if self.keep_timeline and (not self.timeline or self.timeline[-1] != (self.moment, self.alive)):
            self.timeline.append((self.moment, dict(self.alive)))

    # --- where in the step ----------------------------------------------------------------------------------

    def at(self, moment):
        """The moment begins."""
        self.moment = moment
        if moment not in ("forward", "loss"):
            self.logits = 0
        self._note()

    @contextmanager
    def step(self, optimizer):
        """Track one training step that runs inside: hooks on, then the mode; all off at the end."""
        self.adopt_states(optimizer)
        self.at("forward")
        hooks = [*self._on_gradients(), *self._on_forward(), *self._on_optimizer()]
        try:
            with self:
                yield self
        finally:
            for hook in hooks:
                hook.remove()

    def _on_gradients(self):
        """A finished weight gradient stops being temporary."""
        return [p.register_post_accumulate_grad_hook(lambda p: self.adopt(p.grad, "gradients"))
                for p in self.model.parameters() if p.requires_grad]

    def _on_forward(self):
        """Moments hang on the gradients of three tensors: first block's input, last block's output, logits."""
        def when_gradient(tensor, moment):
            if tensor.requires_grad and self.moment == "forward":      # not when checkpointing computes again
                tensor.register_hook(lambda _: self.at(moment))

        def head_done(module, inputs, output):
            self.logits = output.numel()
            self.adopt(output, "logits")
            when_gradient(output, "head")

        first, last = self.model.blocks[0], self.model.blocks[-1]
        return [first.register_forward_pre_hook(lambda _, inputs: when_gradient(inputs[0], "embedding")),
                last.register_forward_hook(lambda _, inputs, output: when_gradient(output, "block")),
                self.model.head.register_forward_hook(head_done),
                self.model.register_forward_hook(lambda _, inputs, output: self.at("loss"))]

    def _on_optimizer(self):
        """The update begins, and what it added to the optimizer's state is there."""
        return [register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self.at("optimizer")),
                register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self.adopt_states(optimizer))]
