"""ZeRO from scratch: three stages over the book's Transformer, each a few lines more than the one before it.

Data parallelism replicates weights, gradients and optimizer state on every rank. Stage 1 shards the optimizer state,
stage 2 the gradients too, stage 3 the weights too (Rajbhandari et al., arXiv 1910.02054). The tensors of a unit (one
block, or all parameters outside the blocks) are flattened into one buffer and padded (flat.py), so that p ranks own
equal shards. With N parameters, the communication volume of a step is 2N, 2N and 3N, of which a rank sends (p - 1) / p.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scaleout.parallel import shard as parallel_shard
from scaleout.parallel.flat import FlatUnit, Shards, WholeUnit, all_gather
from scaleout.spec.sharding import Sharding, units


def gather(unit: FlatUnit) -> None:
    """All-gather a unit: from a shard (N / p,) on each rank to the whole unit (N,) on all; and wait."""
    unit.start()
    unit.work.wait()


class Stage1(Shards):
    """Every rank has all weights and, after its backward, all gradients. It stores the optimizer state of its shards
    only, updates these, and gathers the new weights: an all-reduce with the update between its two halves.

    s: a lab.session.Session. apart: names of parameters that get units of their own, for another optimizer.
    `backward(loss)` leaves each rank its shard of the mean gradient.
    """

    kind = WholeUnit

    def __init__(self, s, model: nn.Module, apart=()) -> None:
        group = parallel_shard.mesh(s, Sharding(s.world)).get_group("shard")
        named, self.model, self.units = dict(model.named_parameters()), model, []
        for unit in units(model.shape, Sharding(s.world)):
            for other in (False, True):
                chosen = [named[name] for name, _ in unit.tensors if (name in apart) == other]
                self.units += [self.kind(unit.name, chosen, group)] if chosen else []

    def backward(self, loss: Tensor, last: bool = True) -> None:
        """The gradients of one micro-batch. Whole gradients accumulate; the last one reduces them to shards."""
        loss.backward()
        for unit in self.units if last else ():
            self.reduce(unit)

    def reduce(self, unit: FlatUnit) -> None:
        """Reduce-scatter a unit: from gradients (N,) on every rank to the mean of one shard (N / p,) on each."""
        unit.send()
        unit.receive()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update this rank's shards; then gather all new weights on all ranks."""
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for unit in self.units:
            gather(unit)
            unit.free()


class Stage2(Stage1):
    """Gradients are sharded too: those of a unit are reduced and freed as soon as its backward is over."""

    def __init__(self, s, model: nn.Module, apart=()) -> None:
        super().__init__(s, model, apart)
        for unit in self.units:
            for p in unit.parameters:
                p.register_post_accumulate_grad_hook(lambda p, unit=unit: self.ready(unit))

    def ready(self, unit: FlatUnit) -> None:
        """A parameter of the unit has its gradient. After the last one, the unit's gradients are reduced."""
        unit.missing -= 1
        if unit.missing == 0:
            unit.missing = len(unit.parameters)
            self.reduce(unit)

    def backward(self, loss: Tensor, last: bool = True) -> None:
        """The gradients of one micro-batch, reduced during the backward; over several, the shards accumulate."""
        loss.backward()


class Stage3(Stage2):
    """Weights are sharded too: a unit is gathered only while it computes, in the forward and in the backward."""

    kind = FlatUnit

    def __init__(self, s, model: nn.Module, apart=()) -> None:
        super().__init__(s, model, apart)
        for unit in self.units:
            module = model.get_submodule(unit.name)
            module.register_forward_pre_hook(lambda module, x, unit=unit: gather(unit))
            module.register_forward_hook(lambda module, x, out, unit=unit: self.after(unit, out))

    def after(self, unit: FlatUnit, out: Tensor) -> None:
        """The unit has computed `out`: free it. When `out` gets its gradient, the unit's backward begins: gather it."""
        unit.free()
        if out.requires_grad:
            out.register_hook(lambda grad: gather(unit))

    def reduce(self, unit: FlatUnit) -> None:
        """As above; the backward of the unit is over, so its weights are freed."""
        unit.free()
        super().reduce(unit)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update this rank's shards. The next forward gathers them."""
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


STAGES = {1: Stage1, 2: Stage2, 3: Stage3}


def assert_one_norm(norm: float, device: torch.device) -> None:
    """RuntimeError, in one line, if the ranks have not clipped by the same norm. Nothing else shows it: each rank
    updates its own shards and all ranks gather them, so copies stay equal. Collective."""
    gathered = torch.empty(dist.get_world_size(), dtype=torch.float64, device=device)
    all_gather(gathered, torch.tensor([norm], dtype=torch.float64, device=device))
    if gathered.min() != gathered.max():
        norms = ", ".join(f"{value:.4f}" for value in gathered.tolist())
        raise RuntimeError(
            f"the ranks clip by different norms ({norms}): each used the norm of its own shard; sum the squares over "
            "all ranks first"
        )
