"""The ways to train one model on several ranks that the lab of FSDP compares, behind one interface.

Each way says what it built, and refuses to go on where that is not what was asked for.
"""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import nullcontext
from math import ceil

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function as phase

from scaleout.parallel import fsdp, shard
from scaleout.parallel.recipe import local_bytes, make_optimizer, optimizer_tensors
from scaleout.parallel.step import Way
from scaleout.parallel.transformer import Transformer
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding, units

WAYS = ("one", "ddp", "naive", "prefetching", "torch", "accelerate", "accelerate-forced", "accelerate-naive")
ROUTES = ("torch", "accelerate", "accelerate-forced", "accelerate-naive")  # what --via may be
HAND = {"naive": fsdp.HandFSDP, "prefetching": fsdp.Prefetching}
KINDS = {"_allgather_base_": "gathers", "_reduce_scatter_base_": "scatters", "allreduce_": "all_reduces"}


class FSDPWay(Way):
    """A model that is sharded, or replicated to compare with.

    via: one of WAYS. "one" is a plain model that sends nothing. optimizer: "adamw", or "momentum" for comparisons of
    weights: AdamW divides a gradient by its own size, so that one which is rounding and nothing else (a key's bias,
    which softmax does not see) moves its weight as far as any other.
    """

    names = WAYS

    def __init__(
        self,
        s,
        shape,
        via: str,
        sharding: Sharding,
        checkpointing: str = "none",
        rate: float = 1e-3,
        seed: int = 0,
        clip: float | None = None,
        optimizer: str = "adamw",
    ) -> None:
        if via not in self.names:
            raise ValueError(f"way {via!r} is unknown: use one of {', '.join(self.names)}")
        self.s, self.shape, self.via, self.sharding, self.clip = s, shape, via, sharding, clip
        self.hand, self.accelerator, self.said, self.buckets = None, None, "", {}
        torch.manual_seed(seed)
        with s.device:
            self.model = Transformer(shape, checkpointing=checkpointing)
        self.call = self.model
        self.build(Recipe(precision="fp32", optimizer=optimizer, foreach=not sharding.offload), rate)
        self.assert_built()

    def build(self, recipe: Recipe, rate: float) -> None:
        """Wrap or cut the model as the way does, and make its optimizer."""
        s, via, sharding = self.s, self.via, self.sharding
        if via in HAND:
            self.hand = self.call = HAND[via](s, self.model, sharding)
            self.optimizer = make_optimizer(self.hand.parameters(), recipe, rate)
        elif via.startswith("accelerate"):
            with_accelerate(self, make_optimizer(list(self.model.parameters()), recipe, rate))
        else:
            if via == "torch":
                shard.shard(s, self.model, sharding)
            elif via == "ddp" and s.world > 1:
                self.replicate()
            self.optimizer = make_optimizer(list(self.model.parameters()), recipe, rate)

    def replicate(self, **options) -> None:
        """Wrap the model in DistributedDataParallel, and note its buckets."""
        device = [self.s.device] if self.s.device.type == "cuda" else None
        self.call = DistributedDataParallel(self.model, device, **options)
        self.note_buckets()

    def note_buckets(self) -> None:
        """Have DDP's buckets in `buckets` from its first step on."""
        self.call.register_comm_hook(self.buckets, _average)

    # --- a step -----------------------------------------------------------------------------------------------

    def gradients(self, batches, every_pass: bool = True) -> float:
        """Forward and backward of [(tokens, targets)], whose gradients sum to their mean; the mean loss.

        every_pass: reduce gradients in every pass; else only in the last, and keep them whole until then.
        """
        total = 0.0
        for i, batch in enumerate(batches):
            total += self.one_pass(batch, len(batches), every_pass or i == len(batches) - 1)
        return total.item()

    def one_pass(self, batch, passes: int = 1, last: bool = True):
        """Forward and backward of one batch among `passes`; its share of the mean loss, a tensor. last: gradients are
        reduced."""
        low = self.via == "ddp" and self.sharding.parameter == "bf16"  # replicas have no policy: they autocast
        with self.syncing(last):
            with phase("forward"), torch.autocast(self.s.device.type, torch.bfloat16, enabled=low):
                loss = self.call(*batch) / passes
            with phase("backward"):
                self.backward(loss)
        return loss.detach()

    def backward(self, loss) -> None:
        """Gradients of this rank's loss, averaged over ranks as the way does it."""
        if self.accelerator is not None:
            self.accelerator.backward(loss)
        elif self.hand is not None:
            self.hand.backward(loss)
        else:
            loss.backward()

    def syncing(self, last: bool):
        """A context for one pass: with last=False nothing is reduced in it."""
        if self.accelerator is not None:
            return nullcontext() if last else self.accelerator.no_sync(self.call)
        if self.hand is not None and not last:
            raise ValueError("FSDP by hand reduces gradients in every pass: leave out --no-sync-every-pass")
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(last)
        copies = isinstance(self.call, DistributedDataParallel)
        return self.call.no_sync() if copies and not last else nullcontext()

    def make_update(self) -> None:
        """Clip where asked, step the optimizer, forget the gradients."""
        if self.clip is not None:
            self.clipped()
        if self.hand is not None:
            self.hand.step(self.optimizer)
        else:
            super().make_update()

    def clipped(self) -> float:
        """Scale the gradient of the whole model to a norm of at most `clip`; the norm before, equal on all ranks."""
        if self.hand is not None:
            return self.hand.clip(self.clip)
        clip = self.accelerator.clip_grad_norm_ if self.accelerator is not None else nn.utils.clip_grad_norm_
        norm = clip(self.call.parameters(), self.clip)
        return (norm.full_tensor() if hasattr(norm, "full_tensor") else norm).item()

    # --- what is there ----------------------------------------------------------------------------------------

    def whole(self, gradients: bool = False) -> dict:
        """{name: full tensor}, copies, of the parameters or their gradients. Collective."""
        return self.hand.whole(gradients) if self.hand is not None else shard.whole(self.model, gradients)

    def counted(self, batches, every_pass: bool = True) -> dict:
        """{"gathers", "scatters", "all_reduces", "others": calls} of forward and backward, as CommDebugMode sees them.
        It loses count of modules in a second forward, so that every pass has one of its own."""
        calls = Counter()
        for i, batch in enumerate(batches):
            with CommDebugMode() as seen, warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Full backward hook is firing")  # of its own hooks
                self.one_pass(batch, len(batches), every_pass or i == len(batches) - 1)
            for kind, count in seen.get_comm_counts().items():
                calls[KINDS.get(str(kind).split(".")[-1], "others")] += count
        return {name: calls[name] for name in (*KINDS.values(), "others")}

    def stored(self) -> dict:
        """Bytes of this rank: parameters, and the optimizer's state (tensors of more than one number)."""
        parameters = self.hand.parameters() if self.hand is not None else self.model.parameters()
        states = [tensor for tensor in optimizer_tensors(self.optimizer) if tensor.dim()]
        return {"parameters": local_bytes(parameters), "optimizer": local_bytes(states)}

    @property
    def built(self) -> str:
        """What was built, in words."""
        if isinstance(self.model, FSDPModule):
            seen = shard.built(self.model)
            grid = " x ".join(str(n) for n in seen["mesh"].values())
            return (
                f"{', '.join(seen['kinds'])} in {len(seen['units'])} unit(s) on a mesh of {grid}: "
                f"{seen['shard_bytes']:,} of {seen['whole_bytes']:,} bytes of parameters on this rank{self.said}"
            )
        mine = self.stored()["parameters"]
        kind = type(self.call).__name__
        units = f" in {len(self.hand.units)} unit(s)" if self.hand is not None else ""
        total = local_bytes(self.model.parameters())
        share = f"{mine:,} of {total:,} bytes of parameters on this rank"
        return f"{kind}{units} on {self.s.world} rank(s): {share}{self.said}"

    def assert_built(self) -> None:
        """RuntimeError where the way is not what its name says. Equal losses would not show it."""
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        wrapped = {"one": type(self.model), "ddp": DistributedDataParallel if self.s.world > 1 else type(self.model)}
        if ranks != self.s.world:
            raise RuntimeError(f"asked for {self.s.world} rank(s), and the process group has {ranks}")
        if self.via == "torch":
            shard.assert_built(self.s, self.model, self.shape, self.sharding)
        elif self.via in HAND:
            wanted = sum(4 * ceil(unit.parameters / ranks) for unit in units(self.shape, self.sharding))
            if self.stored()["parameters"] != wanted or self.hand.gathered_bytes:
                raise RuntimeError(f"asked for shards of {wanted:,} bytes and nothing gathered, and got: {self.built}")
        elif self.via in wrapped and type(self.call) is not wrapped[self.via]:
            raise RuntimeError(f"asked for {self.via}, and got: {self.built}")


def _average(buckets, bucket):
    """DDP's own mean, which also notes where its buckets are: a second set of gradients that stays."""
    buckets[bucket.index()] = bucket.buffer()
    return allreduce_hook(None, bucket)


# --- Accelerate ---------------------------------------------------------------------------------------------


def refuse(s, via: str, sharding: Sharding) -> None:
    """ValueError, in one line, for what Accelerate would quietly not do, or does otherwise than the lab's flags."""
    if via == "accelerate" and s.device.type == "cpu":
        raise ValueError(
            "Accelerate takes its FSDP2 path on GPUs only; here it would quietly train replicas: use "
            "--via accelerate-forced for its FSDP2 code, or --via accelerate-naive to see what it does"
        )
    if via == "accelerate-forced" and s.device.type != "cpu":
        raise ValueError("--via accelerate-forced is for CPUs: here --via accelerate shards by itself")
    if via.startswith("accelerate") and s.world == 1:
        raise ValueError("Accelerate shards over several processes: use torchrun --nproc-per-node 2")
    alike = sharding.wrap == "block" and sharding.replicas == sharding.prefetch == 1
    plain = alike and isinstance(sharding.reshard, bool)
    if via.startswith("accelerate") and not plain:
        raise ValueError(
            "--via accelerate wraps by block, on one mesh of all ranks, with torch's own prefetch and "
            "--reshard true or false: use --via torch for others"
        )


def with_accelerate(way: FSDPWay, optimizer) -> None:
    """Prepare `way` by Accelerate and its FSDP2 plugin, and look at what came out.

    accelerate/state.py (1.15) turns MULTI_GPU and its like into FSDP, and never MULTI_CPU: a plugin is accepted, and
    the model becomes DistributedDataParallel. "accelerate-forced" sets that one decision by hand; from `prepare` on
    all is Accelerate's own code. "accelerate-naive" is what a script does that trusts the plugin.
    """
    from accelerate import Accelerator, FullyShardedDataParallelPlugin  # a second: only where it is asked for
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    s, cut = way.s, way.sharding
    precision, _ = shard.policies(s, cut)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        reshard_after_forward=cut.reshard,
        mixed_precision_policy=precision,
        cpu_ram_efficient_loading=False,
        cpu_offload=CPUOffloadPolicy(pin_memory=s.device.type == "cuda") if cut.offload else False,
    )
    AcceleratorState._reset_state(reset_partial_state=True)  # it is one object for the whole process
    way.accelerator = Accelerator(cpu=s.device.type == "cpu", mixed_precision="no", fsdp_plugin=plugin)
    if way.via == "accelerate-forced":
        way.accelerator.state.distributed_type = DistributedType.FSDP
        way.accelerator.state.fsdp_plugin = plugin
        way.said = ", by Accelerate, told by hand that this is FSDP"
    way.call, way.optimizer = way.accelerator.prepare(way.model, optimizer)
    if way.via == "accelerate-naive":
        way.said = f", by Accelerate, which was given an FSDP2 plugin ({way.accelerator.distributed_type})"
        return
    layout = shard.built(way.call)
    if layout["units"] != accelerate_units(s, way.shape, cut) or layout["unsharded"]:
        raise RuntimeError(f"asked Accelerate for FSDP2 by block, and got: {way.built}")


def accelerate_units(s, shape, sharding: Sharding) -> dict[str, int]:
    """{unit: elements of this rank} that Accelerate 1.15 makes: the blocks, the last norm on its own, the rest."""
    cut = {unit.name: unit for unit in units(shape, sharding)}
    norm = {name: size for name, size in cut[""].tensors if name.startswith("norm.")}
    share = lambda unit: unit.own(sharding.ranks, s.rank)  # noqa: E731
    without_norm = type(cut[""])("", tuple((name, size) for name, size in cut[""].tensors if name not in norm))
    return {
        "": share(without_norm),
        **{name: share(unit) for name, unit in cut.items() if name},
        "norm": share(type(without_norm)("norm", tuple(norm.items()))),
    }
