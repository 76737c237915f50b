"""FSDP from scratch: every rank stores one shard of every unit, and holds a unit whole only while it computes with it.

Parameters, gradients and optimizer state are cut into p shards, one a rank. What that saves in memory it costs in
communication: each unit is gathered before its forward, gathered again before its backward, and its gradients are
reduce-scattered (Rajbhandari et al., arXiv 1910.02054; Zhao et al., arXiv 2304.11277). `HandFSDP` waits for every
collective; `Prefetching` lets them run while the unit before computes. They do what `fully_shard` does, in fp32.
n: elements of a unit, p: ranks, N = p * ceil(n / p): padded, so that all shards are equally long.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scaleout.parallel import shard as parallel_shard
from scaleout.parallel.flat import FlatUnit, Shards
from scaleout.spec.sharding import Sharding, units


class HandFSDP(Shards):
    """The book's Transformer, sharded. Call it like the model; `backward(loss)` leaves each rank its shard of the mean
    gradient; `step(optimizer)` updates the shards. Make the optimizer of `parameters()`: its state is sharded too.

    s: a lab.session.Session. `diary` notes what was done, in order: [("gather" | "compute" | "free" | "reduce", unit)].
    ValueError for what only `fully_shard` does: offload, 16 bits, replicas, reshard to a number of ranks.
    """

    def __init__(self, s, model: nn.Module, sharding: Sharding) -> None:
        refuse(sharding)
        group = parallel_shard.mesh(s, sharding).get_group("shard")
        self.model, self.sharding, self.returning, self.diary = model, sharding, False, []
        named = dict(model.named_parameters())
        self.units = [
            FlatUnit(unit.name, [named[name] for name, _ in unit.tensors], group)
            for unit in units(model.shape, sharding)
        ]
        for i, unit in enumerate(self.units):
            module = model.get_submodule(unit.name)
            module.register_forward_pre_hook(lambda module, x, i=i: self.before(i))
            module.register_forward_hook(lambda module, x, out, i=i: self.after(i, out))
            for p in unit.parameters:
                p.register_post_accumulate_grad_hook(lambda p, i=i: self.ready(i))

    def before(self, i: int) -> None:
        """Unit i is about to compute: gather it, and wait."""
        self.gather(i)
        self.units[i].work.wait()
        self.note("compute", i)

    def after(self, i: int, out: Tensor) -> None:
        """Unit i has computed `out`: free it, but not the root, whose backward is next. The gradient of `out` is the
        first sign of its backward: gather it again then. (A block that is computed again keeps what it needs.)"""
        if self.sharding.reshard and i and not self.returning:
            self.free(i)
        if out.requires_grad:
            out.register_hook(lambda grad: self.before(i))

    def ready(self, i: int) -> None:
        """A parameter of unit i has its gradient, this rank's. With the last one the unit's backward is over."""
        unit = self.units[i]
        unit.missing -= 1
        if unit.missing == 0:
            unit.missing = len(unit.parameters)
            self.free(i)
            self.reduce(i)

    def gather(self, i: int) -> None:
        """Begin to gather unit i, unless it is whole or on its way."""
        if self.units[i].work is None:
            self.note("gather", i)
            self.units[i].start()

    def free(self, i: int) -> None:
        """Only the shard stays."""
        self.note("free", i)
        self.units[i].free()

    def reduce(self, i: int) -> None:
        """Send the gradients of unit i, and wait for this rank's shard of their mean."""
        self.note("reduce", i)
        self.units[i].send()
        self.units[i].receive()

    def backward(self, loss: Tensor) -> None:
        """Gradients of this rank's loss, then each shard's mean over ranks, unit by unit while it goes."""
        self.returning = True
        loss.backward()
        self.returning = False

    # --- around the core ------------------------------------------------------------------------------------

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the shards and forget the gradients. Nothing travels."""
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def note(self, what: str, i: int) -> None:
        """Write in the diary."""
        self.diary.append((what, self.units[i].name))


class Prefetching(HandFSDP):
    """The same, with communication beside compute: the next units are on their way while this one computes, and a
    unit's gradients travel while the one before it works out its own. The price is memory: more than one unit is whole.
    """

    def before(self, i: int) -> None:
        """Gather unit i; begin to gather the next ones, of the forward or of the backward; wait for unit i only."""
        self.gather(i)
        for k in range(1, self.sharding.prefetch + 1):
            j = (i or len(self.units)) - k if self.returning else i + k
            if 0 < j < len(self.units):  # the root, 0, is whole from the first to the last
                self.gather(j)
        self.units[i].work.wait()
        self.note("compute", i)

    def reduce(self, i: int) -> None:
        """Begin to send the gradients of unit i; of the unit before them, they must have come by now."""
        self.note("reduce", i)
        for unit in self.units:
            unit.receive()  # at most one buffer of gradients is under way
        self.units[i].send()

    def backward(self, loss: Tensor) -> None:
        """As above; the last reduce-scatter has nothing left to hide behind."""
        super().backward(loss)
        for unit in self.units:
            unit.receive()


def refuse(sharding: Sharding) -> None:
    """ValueError for what this FSDP does not do."""
    for wrong, option in (
        (sharding.offload, "offload"),
        (sharding.parameter != "fp32" or sharding.reduce != "fp32", "16-bit parameters or gradients"),
        (sharding.replicas > 1, "hybrid sharding"),
        (not isinstance(sharding.reshard, bool), "resharding to a number of ranks"),
    ):
        if wrong:
            raise ValueError(f"FSDP by hand has no {option}: use fully_shard for it")
