"""The implementations of sharded data-parallel training that the lab of ZeRO compares, behind one interface.

Each way says what it built, and refuses to go on where that is not what was asked for.
"""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function as phase

from scaleout.parallel import fsdp_ways, shard, zero, zero_muon
from scaleout.parallel.recipe import local_bytes
from scaleout.spec import muon
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import total_parameters

MUON_RATE = 0.02  # Jordan et al.'s, of matrices
HAND = {f"stage-{number}": stage for number, stage in zero.STAGES.items()}
SHARDED = {"keep": False, "reshard": True, "rows": True}  # fully_shard's reshard_after_forward
WAYS = ("one", "ddp", *HAND, "zero-redundancy", "keep", "reshard", "accelerate")
DEEPSPEED = "deepspeed-1", "deepspeed-2", "deepspeed-3"  # zero_deepspeed.DeepSpeedWay
DEALT = "zero-redundancy", "accelerate"  # whole tensors to ranks
MUON = ("one", *HAND, "zero-redundancy", "reshard", "rows")


class ZeroWay(fsdp_ways.FSDPWay):
    """A model whose states are sharded, or replicated to compare with.

    via: one of WAYS. "one" is a plain model that sends nothing; "stage-1" to "stage-3" are by hand; "zero-redundancy"
    is torch's optimizer of that name over DistributedDataParallel, and "accelerate" over Accelerate's; "keep" and
    "reshard" are `fully_shard`. optimizer: "adamw", or "muon" for the blocks' matrices, with one of MUON: "reshard" is
    then torch.optim.Muon itself, and "rows" is wrong.
    """

    names = WAYS

    def __init__(self, s, shape, via: str, optimizer: str = "adamw", **options) -> None:
        self.muon = optimizer == "muon"
        if self.muon:
            self.names = MUON
        super().__init__(s, shape, via, Sharding(s.world, reshard=SHARDED.get(via, True)), **options)

    def build(self, recipe: Recipe, rate: float) -> None:
        """Wrap or cut the model as the way does, and make its optimizer."""
        matrix_names = tuple(muon.matrices(self.shape)) if self.muon else ()
        if self.via in HAND:
            self.hand = self.call = HAND[self.via](self.s, self.model, matrix_names)
        elif self.via in SHARDED:
            shard.shard(self.s, self.model, self.sharding)
        elif self.via != "one":
            shard.mesh(self.s, self.sharding)  # ZeroRedundancyOptimizer wants a group, of one process too
            if self.via == "accelerate":
                with_accelerate(self)
            elif self.s.world > 1:
                self.replicate(gradient_as_bucket_view=True)
        if self.hand is not None:
            names = {p: name for name, p in self.model.named_parameters()}
            is_matrix = {unit: names[unit.parameters[0]] in matrix_names for unit in self.hand.units}
        else:
            is_matrix = {p: name in matrix_names for name, p in self.model.named_parameters()}
        self.optimizer = self.make(
            [key for key in is_matrix if not is_matrix[key]], [key for key in is_matrix if is_matrix[key]], rate
        )

    def make(self, vectors: list, matrices: list, rate: float):
        """AdamW of what this rank has to step, and Muon of the matrices; by hand both are given as units."""
        adamw, options = torch.optim.AdamW, {"lr": rate, "foreach": True}
        if self.via in DEALT:
            optimizer = zero_muon.split(adamw, vectors, **options)
            return (
                zero_muon.Joined(zero_muon.split(zero_muon.Muon, matrices, lr=MUON_RATE), optimizer)
                if matrices
                else optimizer
            )
        optimizer = adamw([unit.shard for unit in vectors] if self.hand is not None else vectors, **options)
        kinds = {"one": zero_muon.Muon, "reshard": torch.optim.Muon, "rows": zero_muon.rows_muon}
        kind = kinds.get(self.via, zero_muon.GatheredMuon)
        return zero_muon.Joined(kind(matrices, lr=MUON_RATE), optimizer) if matrices else optimizer

    def gradients(self, batches, every_pass: bool | None = None) -> float:
        """Forward and backward of [(tokens, targets)], with the mean of their gradients; returns the mean loss.

        every_pass: reduce gradients in every pass, or in the last one; None: in every pass if they are sharded, so that
        no rank stores whole gradients for long.
        """
        split = self.via not in ("one", "ddp", "stage-1", *DEALT)
        return super().gradients(batches, split if every_pass is None else every_pass)

    def one_pass(self, batch, passes: int = 1, last: bool = True):
        """As `FSDPWay`; the stages by hand reduce what is in their own hands."""
        if self.hand is None:
            return super().one_pass(batch, passes, last)
        with phase("forward"):
            loss = self.call(*batch) / passes
        with phase("backward"):
            self.hand.backward(loss, last)
        return loss.detach()

    # --- what is there ------------------------------------------------------------------------------------------

    def states(self) -> dict[str, dict[str, torch.Tensor]]:
        """{state of the optimizer: {name of a parameter: full tensor}}, copies, of all ranks together. Collective."""
        kinds = {kind for state in self.optimizer.state.values() for kind, value in state.items() if value.dim()}
        if self.hand is not None:
            return {
                kind: self.hand.together(lambda parameter, kind=kind: self.optimizer.state[parameter].get(kind))
                for kind in sorted(kinds)
            }
        states = {kind: {} for kind in sorted(set().union(*self.s.gathered(kinds)))}
        for name, p in self.model.named_parameters():
            for kind in states:
                if kind in (state := self.optimizer.state.get(p, {})):
                    states[kind][name] = shard.full(state[kind])
        if self.via in DEALT:  # each rank has those of its own tensors
            ranks = self.s.gathered(states)
            states = {kind: {name: tensor for rank in ranks for name, tensor in rank[kind].items()} for kind in states}
        return states

    def stored(self) -> dict[str, int]:
        """Bytes of this rank now: "weights" and "gradients" that are there, and each state of the optimizer."""
        owned = list((self.hand or self.model).parameters())
        sizes = {"weights": self.hand.gathered_bytes if self.via in ("stage-1", "stage-2") else local_bytes(owned)}
        parameters = {id(p): p for p in (*owned, *self.model.parameters())}.values()
        sizes["gradients"] = local_bytes(p.grad for p in parameters if p.grad is not None)
        for state in self.optimizer.state.values():
            for kind, tensor in state.items():
                if tensor.dim():  # not AdamW's count of steps
                    sizes[kind] = sizes.get(kind, 0) + local_bytes([tensor])
        return sizes

    @property
    def built(self) -> str:
        """What was built, in words."""
        if self.via in SHARDED:
            return super().built
        steps, all_parameters = self.steps(), total_parameters(self.shape)
        kind = type(self.call).__name__ + (", ZeroRedundancyOptimizer" if self.via in DEALT else "")
        units = f" in {len(self.hand.units)} unit(s)" if self.hand is not None else ""
        return (
            f"{kind}{units} on {self.s.world} rank(s): {self.stored()['weights']:,} of {4 * all_parameters:,} bytes of "
            f"weights on this rank, which steps {steps:,} of {all_parameters:,} parameters{self.said}"
        )

    def steps(self) -> int:
        """Parameters that this rank's optimizer steps, padding too."""
        optimizers = getattr(self.optimizer, "optimizers", [self.optimizer])
        return sum(
            p.numel()
            for optimizer in optimizers
            for group in getattr(optimizer, "optim", optimizer).param_groups
            for p in group["params"]
        )

    def assert_built(self) -> None:
        """RuntimeError where the way is not what its name says. Equal losses would not show it."""
        if self.via in SHARDED:
            shard.assert_built(self.s, self.model, self.shape, self.sharding)
            return
        super().assert_built()
        all_parameters, ranks = total_parameters(self.shape), self.s.world
        shares = self.s.gathered(self.steps())
        unsharded = self.via in ("one", "ddp")
        padding = ranks * (len(self.hand.units) if self.hand is not None else 0)
        if not (
            all(n == all_parameters for n in shares)
            if unsharded
            else all_parameters <= sum(shares) < all_parameters + max(1, padding)
        ):
            raise RuntimeError(f"asked for {self.via}, and the ranks step {shares} of {all_parameters:,} parameters")
        weights = self.stored()["weights"]
        if (weights < 4 * all_parameters) != (self.via == "stage-3" and ranks > 1):
            raise RuntimeError(
                f"asked for {self.via}, and this rank has {weights:,} of {4 * all_parameters:,} bytes of weights"
            )


# --- Accelerate ---------------------------------------------------------------------------------------------------


def refuse(s, via: str) -> None:
    """ValueError, in one line, for what Accelerate would quietly not do."""
    if via == "accelerate" and s.world == 1:
        raise ValueError("--via accelerate is about several processes: use torchrun --nproc-per-node 2")


def with_accelerate(way: ZeroWay) -> None:
    """Prepare the model of `way` by Accelerate, and look at what came out.

    Accelerate (1.15) splits no state itself. It hands over to DeepSpeed, on GPUs only: on CPUs a DeepSpeedPlugin is
    accepted, and the model becomes DistributedDataParallel (accelerate/state.py, `and not cpu`). It hands over to
    FSDP2, as labs/fsdp.py shows. A ZeroRedundancyOptimizer it cannot prepare: it asks for a state that is on one rank
    only once it has been consolidated. So the model is prepared alone, and the optimizer is made beside it.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs  # a second: only where it is asked for
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # it is one object for the whole process
    views = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    way.accelerator = Accelerator(cpu=way.s.device.type == "cpu", mixed_precision="no", kwargs_handlers=[views])
    way.call = way.accelerator.prepare(way.model)
    if not isinstance(way.call, DistributedDataParallel) or way.accelerator.num_processes != way.s.world:
        raise RuntimeError(f"asked Accelerate for DistributedDataParallel, and got: {type(way.call).__name__}")
    way.note_buckets()
    way.said = f" ({way.accelerator.distributed_type})"
