"""FSDP from scratch: every rank stores one shard of every unit, and unshards a unit only while it computes with it.

Parameters, gradients and optimizer state are cut into p shards, one per rank. The memory saved is paid for with
communication: each unit is all-gathered before its forward and again before its backward, and its gradients are
reduce-scattered (Rajbhandari et al., arXiv 1910.02054; Zhao et al., arXiv 2304.11277). `HandFSDP` waits for every
collective; `Prefetching` overlaps them with computation. Both do what `fully_shard` does, in fp32.
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
    gradient; `step(optimizer)` updates the shards. Make the optimizer from `parameters()`: its state is sharded too.

    s: a lab.session.Session. `diary` logs what was done, in order: [("gather" | "compute" | "free" | "reduce", unit)].
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
        """Unit i is about to compute: unshard it, and wait."""
        self.gather(i)
        self.units[i].work.wait()
        self.note("compute", i)

    def after(self, i: int, out: Tensor) -> None:
        """Unit i has computed `out`: reshard it, but not the root, whose backward is next (nor while backward
        recomputes it). When `out` gets its gradient, the unit's backward is about to begin: unshard it again."""
        if self.sharding.reshard and i and not self.returning:
            self.free(i)
        if out.requires_grad:
            out.register_hook(lambda grad: self.before(i))

    def ready(self, i: int) -> None:
        """A parameter of unit i has this rank's gradient. When all have, the backward of the unit is over."""
        unit = self.units[i]
        unit.missing -= 1
        if unit.missing == 0:
            unit.missing = len(unit.parameters)
            self.free(i)
            self.reduce(i)

    def gather(self, i: int) -> None:
        """Start the all-gather of unit i, unless it is unsharded or was started already."""
        if self.units[i].work is None:
            self.note("gather", i)
            self.units[i].start()

    def free(self, i: int) -> None:
        """Reshard unit i: only the shard stays."""
        self.note("free", i)
        self.units[i].free()

    def reduce(self, i: int) -> None:
        """Reduce-scatter the gradients of unit i, and wait for this rank's shard of their mean."""
        self.note("reduce", i)
        self.units[i].send()
        self.units[i].receive()

    def backward(self, loss: Tensor) -> None:
        """Gradients of this rank's loss. Unit by unit they are averaged over ranks; this rank gets its shard."""
        self.returning = True
        loss.backward()
        self.returning = False

    # --- around the core ------------------------------------------------------------------------------------

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the shards and drop the gradients. No communication."""
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def note(self, what: str, i: int) -> None:
        """Log it in the diary."""
        self.diary.append((what, self.units[i].name))


class Prefetching(HandFSDP):
    """The same, with communication overlapped with compute: the next units are all-gathered while this one computes,
    and a unit's gradients are reduced while the next unit computes. It costs memory: several units are unsharded.
    """

    def before(self, i: int) -> None:
        """Unshard unit i; start the all-gathers of the next units of forward or backward; wait for unit i only."""
        self.gather(i)
        for k in range(1, self.sharding.prefetch + 1):
            j = (i or len(self.units)) - k if self.returning else i + k
            if 0 < j < len(self.units):  # the root, 0, stays unsharded from first to last
                self.gather(j)
        self.units[i].work.wait()
        self.note("compute", i)

    def reduce(self, i: int) -> None:
        """Start the reduce-scatter of unit i, after waiting for that of the unit before it."""
        self.note("reduce", i)
        for unit in self.units:
            unit.receive()  # at most one buffer of gradients is in use
        self.units[i].send()

    def backward(self, loss: Tensor) -> None:
        """As above; the last reduce-scatter has no computation left to hide behind."""
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
