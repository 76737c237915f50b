"""FSDP from scratch: every rank stores one shard of every unit, and holds a unit whole only while it computes with it.

Parameters, gradients and optimizer state are cut into p shards, one a rank. What that saves in memory it costs in
communication: each unit is gathered before its forward, gathered again before its backward, and its gradients are
reduce-scattered (Rajbhandari et al., arXiv 1910.02054; Zhao et al., arXiv 2304.11277). `HandFSDP` waits for every
collective; `Prefetching` lets them run while the unit before computes. They do what `fully_shard` does, in fp32.
n: elements of a unit, p: ranks, N = p * ceil(n / p): padded, so that all shards are equally long.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from scaleout.parallel import shard as parallel_shard
from scaleout.spec.sharding import Sharding, units

# One flat tensor in, one out. torch 2.13 gave both a new name.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class FlatUnit:
    """The parameters of one unit, laid end to end and cut. They stay the model's own, as views of `whole`."""

    def __init__(self, name: str, parameters: list[nn.Parameter], group) -> None:
        self.name, self.parameters, self.group = name, parameters, group
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        flat = torch.cat([p.detach().flatten() for p in parameters])              # (n,)
        self.whole = F.pad(flat, (0, -flat.numel() % ranks))                      # (N,), or no bytes at all
        self.shard = nn.Parameter(self.whole.view(ranks, -1)[rank].clone())       # (N / p,): what this rank stores
        self.work, self.sending, self.missing = None, None, len(parameters)
        for p, piece in zip(parameters, self.pieces(self.whole), strict=True):
            p.data = piece                                                        # the layer computes with `whole`
        self.free()

    def pieces(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat tensor (N,) in the shapes of the unit's parameters."""
        sizes = [p.numel() for p in self.parameters]
        return [piece.view(p.shape) for piece, p in zip(flat[:sum(sizes)].split(sizes), self.parameters, strict=True)]

    def start(self) -> None:
        """Begin the all-gather: every rank's shard (N / p,) to every rank's `whole` (N,). Returns at once."""
        if self.work is None:
            self.whole.untyped_storage().resize_(self.whole.numel() * self.whole.element_size())
            self.work = all_gather(self.whole, self.shard.data, self.group, async_op=True)

    def free(self) -> None:
        """Give the bytes of `whole` back. What autograd saved are views of it: they come back with the next gather."""
        self.whole.untyped_storage().resize_(0)
        self.work = None

    def send(self) -> None:
        """Begin the reduce-scatter: every rank's gradients (N,) to the sum of one shard (N / p,) on each."""
        flat = torch.cat([p.grad.flatten() for p in self.parameters])             # (n,)
        flat = F.pad(flat, (0, self.whole.numel() - flat.numel()))                # (N,)
        for p in self.parameters:
            p.grad = None
        mean = torch.empty_like(self.shard)
        self.sending = mean, flat, reduce_scatter(mean, flat, group=self.group, async_op=True)

    def receive(self) -> None:
        """Wait for the shard of the gradient; several passes add up."""
        if self.sending is not None:
            mean, _, work = self.sending
            work.wait()
            mean /= dist.get_world_size(self.group)
            self.shard.grad = mean if self.shard.grad is None else self.shard.grad + mean
            self.sending = None


class HandFSDP:
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
        self.units = [FlatUnit(unit.name, [named[name] for name, _ in unit.tensors], group)
                      for unit in units(model.shape, sharding)]
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

    def __call__(self, *inputs: Tensor) -> Tensor:
        return self.model(*inputs)

    def parameters(self) -> list[nn.Parameter]:
        """This rank's shards, one flat tensor a unit: what the optimizer steps."""
        return [unit.shard for unit in self.units]

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the shards and forget the gradients. Nothing travels."""
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def clip(self, most: float) -> float:
        """Scale the gradient to a norm of at most `most`: squares of shards add up over ranks. The norm before."""
        square = sum(shard.grad.double().square().sum() for shard in self.parameters())       # padding is zero
        dist.all_reduce(square, group=self.units[0].group)
        norm = square.sqrt().item()
        for shard in self.parameters():
            shard.grad *= min(1.0, most / (norm + 1e-6))        # as torch.nn.utils.clip_grad_norm_ does
        return norm

    def whole(self, gradients: bool = False) -> dict[str, Tensor]:
        """{name: full tensor}, copies, of parameters or gradients. Collective: all ranks call it."""
        names, found = {p: name for name, p in self.model.named_parameters()}, {}
        for unit in self.units:
            mine = unit.shard.grad if gradients else unit.shard.data
            flat = torch.empty_like(unit.whole)
            all_gather(flat, mine, unit.group)
            found |= {names[p]: piece.clone() for p, piece in zip(unit.parameters, unit.pieces(flat), strict=True)}
        return found

    @property
    def gathered_bytes(self) -> int:
        """Bytes of the units that are whole now."""
        return sum(unit.whole.untyped_storage().nbytes() for unit in self.units)

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
            if 0 < j < len(self.units):                          # the root, 0, is whole from the first to the last
                self.gather(j)
        self.units[i].work.wait()
        self.note("compute", i)

    def reduce(self, i: int) -> None:
        """Begin to send the gradients of unit i; of the unit before them, they must have come by now."""
        self.note("reduce", i)
        for unit in self.units:
            unit.receive()                                       # at most one buffer of gradients is under way
        self.units[i].send()

    def backward(self, loss: Tensor) -> None:
        """As above; the last reduce-scatter has nothing left to hide behind."""
        super().backward(loss)
        for unit in self.units:
            unit.receive()


def refuse(sharding: Sharding) -> None:
    """ValueError for what this FSDP does not do."""
    for wrong, what in ((sharding.offload, "offload"), (sharding.parameter != "fp32" or sharding.reduce != "fp32",
                        "16-bit parameters or gradients"), (sharding.replicas > 1, "hybrid sharding"),
                        (not isinstance(sharding.reshard, bool), "resharding to a number of ranks")):
        if wrong:
            raise ValueError(f"FSDP by hand has no {what}: use fully_shard for it")
