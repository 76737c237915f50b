"""ZeRO from scratch: three stages over the book's Transformer, each a few lines more than the one before it.

Data parallelism keeps weights, gradients and the optimizer's state on every rank. Stage 1 splits the optimizer's state,
stage 2 the gradients too, stage 3 the weights too (Rajbhandari et al., arXiv 1910.02054). A unit, which is a block or
what lies around the blocks, is laid end to end and dealt in p equal shards (flat.py), so that nothing has to be
divisible by p. One piece is every weight once, of which a rank sends (p - 1) / p: a step sends 2, 2 and 3 pieces.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scaleout.parallel import shard as parallel_shard
from scaleout.parallel.flat import FlatUnit, Shards, WholeUnit, all_gather
from scaleout.spec.sharding import Sharding, units


def gather(unit: FlatUnit) -> None:
    """Every rank's shard (N / p,) to every rank's whole unit (N,), and wait."""
    unit.start()
    unit.work.wait()


class Stage1(Shards):
    """Every rank has all weights and, after its backward, all gradients. It has the optimizer's state of its shards,
    updates these, and gets the others' new weights: an all-reduce with the update between its two halves.

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
        """The gradients of one pass, reduced into shards in the last of several: until then they add up, whole."""
        loss.backward()
        for unit in self.units if last else ():
            self.reduce(unit)

    def reduce(self, unit: FlatUnit) -> None:
        """Every rank's gradients of a unit (N,) to the mean of one shard (N / p,) on each."""
        unit.send()
        unit.receive()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update this rank's shards; then all ranks have all new weights."""
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for unit in self.units:
            gather(unit)
            unit.free()


class Stage2(Stage1):
    """Gradients are split too: those of a unit are reduced, and forgotten, as soon as its backward is over."""

    def __init__(self, s, model: nn.Module, apart=()) -> None:
        super().__init__(s, model, apart)
        for unit in self.units:
            for p in unit.parameters:
                p.register_post_accumulate_grad_hook(lambda p, unit=unit: self.ready(unit))

    def ready(self, unit: FlatUnit) -> None:
        """A parameter of the unit has its gradient, this rank's. With the last one its whole gradients can go."""
        unit.missing -= 1
        if unit.missing == 0:
            unit.missing = len(unit.parameters)
            self.reduce(unit)

    def backward(self, loss: Tensor, last: bool = True) -> None:
        """The gradients of one pass, reduced while it goes: of several passes, the shards add up."""
        loss.backward()


class Stage3(Stage2):
    """Weights are split too: a unit is whole while it computes, once in the forward and once in the backward."""

    kind = FlatUnit

    def __init__(self, s, model: nn.Module, apart=()) -> None:
        super().__init__(s, model, apart)
        for unit in self.units:
            module = model.get_submodule(unit.name)
            module.register_forward_pre_hook(lambda module, x, unit=unit: gather(unit))
            module.register_forward_hook(lambda module, x, out, unit=unit: self.after(unit, out))

    def after(self, unit: FlatUnit, out: Tensor) -> None:
        """The unit has computed `out`. The gradient of `out` is the first sign of its backward."""
        unit.free()
        if out.requires_grad:
            out.register_hook(lambda grad: gather(unit))

    def reduce(self, unit: FlatUnit) -> None:
        """As above; the backward of the unit is over, and with it the need for its weights."""
        unit.free()
        super().reduce(unit)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update this rank's shards. The next forward gathers them."""
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


STAGES = {1: Stage1, 2: Stage2, 3: Stage3}


def assert_one_norm(norm: float, device: torch.device) -> None:
    """RuntimeError, in one line, where the ranks have not clipped by the same norm. Nothing else shows it: each rank
    steps its own shards, and all get them from it, so that copies stay equal. Collective."""
    gathered = torch.empty(dist.get_world_size(), dtype=torch.float64, device=device)
    all_gather(gathered, torch.tensor([norm], dtype=torch.float64, device=device))
    if gathered.min() != gathered.max():
        norms = ", ".join(f"{value:.4f}" for value in gathered.tolist())
        raise RuntimeError(
            f"the ranks clip by different norms ({norms}): each took its own shard's; add the squares "
            "of all shards up over the ranks first"
        )
