"""Muon under ZeRO: an optimizer of whole matrices, where a rank has a shard of them.

AdamW steps each number by itself, so that a shard is all it needs. Muon (Jordan et al. 2024, kellerjordan.github.io/
posts/muon) makes a matrix's momentum nearly orthogonal: every row of it decides about every other. Its momentum may lie
in shards, but what it makes orthogonal must be whole. All here is in the dtype of the weights; torch.optim.Muon makes
matrices orthogonal in bf16.
"""

from __future__ import annotations

from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from scaleout.parallel.flat import FlatUnit, all_gather
from scaleout.parallel.recipe import by_parts

A, B, C = 3.4445, -4.7750, 2.0315  # torch.optim.Muon's: singular values go to about 1 in five steps
DECAY = 0.1  # its weight decay


def orthogonal(matrix: Tensor, steps: int = 5) -> Tensor:
    """U S V^T to about U V^T by Newton-Schulz steps: polynomials of a matrix, no singular value is ever computed."""
    x = matrix / matrix.norm().clamp(min=1e-7)
    x = x.T if len(x) > len(x.T) else x
    for _ in range(steps):
        gram = x @ x.T
        x = A * x + (B * gram + C * gram @ gram) @ x
    return x.T if len(x) != len(matrix) else x


class Muon(torch.optim.Optimizer):
    """Muon by hand, for matrices that this rank has whole."""

    def __init__(self, parameters, lr: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        """Momentum and Nesterov's look ahead number by number, then the direction, then weight decay and the step."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                momentum = state.setdefault("momentum_buffer", torch.zeros_like(p.grad))
                momentum.lerp_(p.grad, 1 - group["momentum"])
                direction = self.direction(p, p.grad.lerp(momentum, group["momentum"]))
                p.mul_(1 - group["lr"] * DECAY).add_(direction, alpha=-group["lr"])

    def direction(self, p: nn.Parameter, update: Tensor) -> Tensor:
        """The update of a matrix, orthogonal, and larger where it is tall."""
        return orthogonal(update) * max(1, update.shape[0] / update.shape[1]) ** 0.5


class GatheredMuon(Muon):
    """Muon for flat units of matrices, of which this rank has shards: it gathers what it must see whole."""

    def __init__(self, units: list[FlatUnit], lr: float) -> None:
        super().__init__([unit.shard for unit in units], lr)
        self.unit_of = {unit.shard: unit for unit in units}

    def direction(self, p: nn.Parameter, update: Tensor) -> Tensor:
        """This rank's shard (N / p,) of the orthogonal updates of all matrices of its unit: one piece more to send, and
        every rank makes every matrix orthogonal."""
        unit = self.unit_of[p]
        buffer = torch.empty_like(unit.whole)  # (N,)
        all_gather(buffer, update, unit.group)
        for matrix in unit.pieces(buffer):
            matrix.copy_(super().direction(p, matrix))
        return buffer.view(-1, len(p))[dist.get_rank(unit.group)]


def rows_muon(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """The wrong way, over `fully_shard`: each rank makes the rows orthogonal that it has. Nothing errors."""
    return by_parts(parameters, lambda parts: Muon(parts, lr))


class Joined:
    """Several optimizers as one: Muon's for the blocks' matrices, AdamW for the rest."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers

    @property
    def state(self) -> dict:
        return dict(chain.from_iterable(optimizer.state.items() for optimizer in self.optimizers))

    @property
    def param_groups(self) -> list[dict]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)


def split(kind: type, parameters: list[nn.Parameter], **options) -> ZeroRedundancyOptimizer:
    """An optimizer whose tensors are dealt to the ranks, each whole: stage 1, and all that Muon needs."""
    optimizer = ZeroRedundancyOptimizer(parameters, kind, **options)
    optimizer.state = optimizer.optim.state  # where the one of this rank's tensors has it
    return optimizer
