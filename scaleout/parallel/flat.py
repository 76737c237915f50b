"""A model as flat units, each cut into one shard per rank: ZeRO (zero.py) and FSDP (fsdp.py) by hand are made of these.

n: elements of a unit, p: ranks, N = p * ceil(n / p): padded, so that all shards are equally long.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

# One flat tensor in, one out. torch 2.13 gave both a new name.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class FlatUnit:
    """The parameters of one unit, laid end to end and sharded. The model's own parameters are views of `whole`."""

    def __init__(self, name: str, parameters: list[nn.Parameter], group) -> None:
        self.name, self.parameters, self.group = name, parameters, group
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        flat = torch.cat([p.detach().flatten() for p in parameters])  # (n,)
        self.whole = F.pad(flat, (0, -flat.numel() % ranks))  # (N,), or no bytes at all
        self.shard = nn.Parameter(self.whole.view(ranks, -1)[rank].clone())  # (N / p,): what this rank stores
        self.work, self.sending, self.missing = None, None, len(parameters)
        for p, piece in zip(parameters, self.pieces(self.whole), strict=True):
            p.data = piece  # the layer computes with `whole`
        self.free()

    def pieces(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat tensor (N,) in the shapes of the unit's parameters."""
        sizes = [p.numel() for p in self.parameters]
        return [piece.view(p.shape) for piece, p in zip(flat[: sum(sizes)].split(sizes), self.parameters, strict=True)]

    def start(self) -> None:
        """Unshard: start the all-gather of every rank's shard (N / p,) into `whole` (N,). Returns at once."""
        if self.work is None:
            self.whole.untyped_storage().resize_(self.whole.numel() * self.whole.element_size())
            self.work = all_gather(self.whole, self.shard.data, self.group, async_op=True)

    def free(self) -> None:
        """Reshard: give the bytes of `whole` back. Views that autograd saved are filled by the next all-gather."""
        self.whole.untyped_storage().resize_(0)
        self.work = None

    def send(self) -> None:
        """Start the reduce-scatter: from every rank's gradients (N,) to the sum of one shard (N / p,) on each rank."""
        flat = torch.cat([p.grad.flatten() for p in self.parameters])  # (n,)
        flat = F.pad(flat, (0, self.whole.numel() - flat.numel()))  # (N,)
        for p in self.parameters:
            p.grad = None
        mean = torch.empty_like(self.shard)
        self.sending = mean, flat, reduce_scatter(mean, flat, group=self.group, async_op=True)

    def receive(self) -> None:
        """Wait for the shard of the gradient, and add it to that of earlier micro-batches."""
        if self.sending is not None:
            mean, _, work = self.sending
            work.wait()
            mean /= dist.get_world_size(self.group)
            self.shard.grad = mean if self.shard.grad is None else self.shard.grad + mean
            self.sending = None


class WholeUnit(FlatUnit):
    """A unit that every rank keeps whole. Its shard is a view of its own part of `whole`: stepping it changes the
    model, and a gather brings the other ranks' parts."""

    def __init__(self, name: str, parameters: list[nn.Parameter], group) -> None:
        super().__init__(name, parameters, group)
        self.shard.data = self.whole.view(-1, len(self.shard))[dist.get_rank(group)]

    def free(self) -> None:
        """Nothing is given back; the next `start` gathers again."""
        self.work = None


class Shards:
    """A model in flat units, of which this rank has one shard each. Call it like the model; make the optimizer of
    `parameters()`: its state is sharded too. `model` and `units` are the heir's to set."""

    def __call__(self, *inputs: Tensor) -> Tensor:
        return self.model(*inputs)

    def parameters(self) -> list[nn.Parameter]:
        """This rank's shards, one flat tensor a unit: what the optimizer steps."""
        return [unit.shard for unit in self.units]

    def clip(self, max_norm: float) -> float:
        """Scale the gradient to a norm of at most `max_norm`: squares of shards add up over ranks. The norm before."""
        square = sum(shard.grad.double().square().sum() for shard in self.parameters())  # padding is zero
        dist.all_reduce(square, group=self.units[0].group)
        norm = square.sqrt().item()
        for shard in self.parameters():
            shard.grad *= min(1.0, max_norm / (norm + 1e-6))  # as torch.nn.utils.clip_grad_norm_ does
        return norm

    def whole(self, gradients: bool = False) -> dict[str, Tensor]:
        """{name: full tensor}, copies, of parameters or gradients. Collective: all ranks call it."""
        return self.together(lambda shard: shard.grad if gradients else shard.data)

    def together(self, select: Callable[[nn.Parameter], Tensor | None]) -> dict[str, Tensor]:
        """{name of a parameter: full tensor} of what `of(shard)` has of each shard, (N / p,), or None. Collective."""
        names, tensors = {p: name for name, p in self.model.named_parameters()}, {}
        for unit in self.units:
            mine, flat = select(unit.shard), torch.empty_like(unit.whole)
            if mine is None:
                continue
            all_gather(flat, mine, unit.group)
            tensors |= {names[p]: piece.clone() for p, piece in zip(unit.parameters, unit.pieces(flat), strict=True)}
        return tensors

    @property
    def gathered_bytes(self) -> int:
        """Bytes of the units that are whole now."""
        return sum(unit.whole.untyped_storage().nbytes() for unit in self.units)
