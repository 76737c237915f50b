"""The ways to split the states of data-parallel training that the lab of ZeRO sets side by side, behind one surface.

Each way says what it built, and refuses to go on where that is not what was asked for.
"""

from __future__ import annotations

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from scaleout.parallel import fsdp_ways, shard, zero
from scaleout.parallel.recipe import local_bytes, make_optimizer
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import total_parameters

HAND = {f"stage-{number}": stage for number, stage in zero.STAGES.items()}
SHARDED = {"keep": False, "reshard": True}          # fully_shard's reshard_after_forward
WAYS = ("one", "ddp", *HAND, "zero-redundancy", *SHARDED)


class Way(fsdp_ways.Way):
    """A model on every rank, its optimizer, and steps with them; as `fsdp_ways.Way`, whose surface it has.

    via: one of WAYS. "one" is a plain model that sends nothing; "stage-1" to "stage-3" are by hand; "zero-redundancy" is
    torch's optimizer of that name over DistributedDataParallel; "keep" and "reshard" are `fully_shard`.
    """

    names = WAYS

    def __init__(self, s, shape, via: str, **more) -> None:
        super().__init__(s, shape, via, Sharding(s.world, reshard=SHARDED.get(via, True)), **more)

    def build(self, recipe: Recipe, rate: float) -> None:
        """Wrap or cut the model as the way does, and make its optimizer."""
        if self.via in HAND:
            self.hand = self.call = HAND[self.via](self.s, self.model)
        elif self.via in SHARDED:
            shard.shard(self.s, self.model, self.sharding)
        elif self.via != "one":
            shard.mesh(self.s, self.sharding)           # a process alone has no group yet, and both want one
            self.replicate()
        self.optimizer = self.make(recipe, rate)

    def make(self, recipe: Recipe, rate: float) -> torch.optim.Optimizer:
        """The optimizer of what this rank has to step."""
        held = list((self.hand or self.model).parameters())
        if self.via != "zero-redundancy":
            return make_optimizer(held, recipe, rate)
        optimizer = ZeroRedundancyOptimizer(held, torch.optim.AdamW, lr=rate, foreach=recipe.foreach)
        optimizer.state = optimizer.optim.state         # where the one of this rank's tensors has it
        return optimizer

    # --- what is there ------------------------------------------------------------------------------------------

    def states(self) -> dict[str, dict[str, torch.Tensor]]:
        """{state of the optimizer: {name of a parameter: full tensor}}, copies, of all ranks together. Collective."""
        kinds = {kind for state in self.optimizer.state.values() for kind, value in state.items() if value.dim()}
        if self.hand is not None:
            return {kind: self.hand.together(lambda own, kind=kind: self.optimizer.state[own][kind])
                    for kind in sorted(kinds)}
        found = {kind: {} for kind in sorted(set().union(*self.s.gathered(kinds)))}
        for name, p in self.model.named_parameters():
            for kind in found:
                if kind in (state := self.optimizer.state.get(p, {})):
                    found[kind][name] = shard.full(state[kind])
        if self.via == "zero-redundancy":               # each rank has those of its own tensors
            every = self.s.gathered(found)
            found = {kind: {name: one for rank in every for name, one in rank[kind].items()} for kind in found}
        return found

    def stored(self) -> dict[str, int]:
        """Bytes of this rank now: "weights" and "gradients" that are there, and each state of the optimizer."""
        owned = list((self.hand or self.model).parameters())
        found = {"weights": self.hand.gathered_bytes if self.via in ("stage-1", "stage-2") else local_bytes(owned)}
        every = {id(p): p for p in (*owned, *self.model.parameters())}.values()
        found["gradients"] = local_bytes(p.grad for p in every if p.grad is not None)
        for state in self.optimizer.state.values():
            for kind, tensor in state.items():
                if tensor.dim():                        # not AdamW's count of steps
                    found[kind] = found.get(kind, 0) + local_bytes([tensor])
        return found

    @property
    def built(self) -> str:
        """What was built, in words."""
        if self.via in SHARDED:
            return super().built
        steps, every = self.steps(), total_parameters(self.shape)
        kind = type(self.call).__name__ + (", ZeroRedundancyOptimizer" if self.via == "zero-redundancy" else "")
        units = f" in {len(self.hand.units)} unit(s)" if self.hand is not None else ""
        return (f"{kind}{units} on {self.s.world} rank(s): {self.stored()['weights']:,} of {4 * every:,} bytes of weights "
                f"on this rank, which steps {steps:,} of {every:,} parameters")

    def steps(self) -> int:
        """Parameters that this rank's optimizer steps, padding too."""
        local = self.optimizer.optim if self.via == "zero-redundancy" else self.optimizer
        return sum(p.numel() for group in local.param_groups for p in group["params"])

    def assert_built(self) -> None:
        """RuntimeError where the way is not what its name says. Equal losses would not show it."""
        if self.via in SHARDED:
            shard.assert_built(self.s, self.model, self.shape, self.sharding)
            return
        super().assert_built()
        every, ranks = total_parameters(self.shape), self.s.world
        shares = self.s.gathered(self.steps())
        whole = self.via in ("one", "ddp")
        padding = ranks * (len(self.hand.units) if self.hand is not None else 0)
        if not (all(n == every for n in shares) if whole else every <= sum(shares) < every + max(1, padding)):
            raise RuntimeError(f"asked for {self.via}, and the ranks step {shares} of {every:,} parameters")
        weights = self.stored()["weights"]
        if (weights < 4 * every) != (self.via == "stage-3" and ranks > 1):
            raise RuntimeError(f"asked for {self.via}, and this rank has {weights:,} of {4 * every:,} bytes of weights")
