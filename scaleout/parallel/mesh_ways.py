"""The three axes with torch's own modules on one `init_device_mesh`: `parallelize_module` inside a block, `fully_shard`
over the replicas, `torch.distributed.pipelining` along the depth.

Tensor parallelism comes with sequence parallelism, so that every parameter is a DTensor on the same mesh (torch's
fused optimizers take no mixture), and a stage sends only its own tokens. Accelerate has such a mesh without the
pipeline's axis. Its `Accelerator` accepts none on CPUs and cuts no matrix, so only its mesh is used here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils.checkpoint import checkpoint

from scaleout.parallel import shard, tensor_model, tensor_ways
from scaleout.parallel.pipeline_stage import Stage, stages_of, tied_weights
from scaleout.parallel.pipeline_ways import named, placed, with_torch
from scaleout.parallel.recipe import local_bytes
from scaleout.parallel.transformer import Transformer
from scaleout.spec import layout_words, mesh
from scaleout.spec.layout import Layout
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import Shape


class MeshStage(Stage):
    """A Stage whose activations are a DTensor inside, sharded along the tokens; its input and output are plain tensors
    of this rank's tokens. tp: the mesh of its tensor parallelism, None without."""

    tp: DeviceMesh | None = None
    full = False

    def _note(self, *_) -> None:
        """torch's schedules find the graph's edges themselves."""

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (b, s) or activations (b, s/t, h) in, activations or logits (b, s, V) out."""
        if self.first:
            tokens, x = x, self.tokens(x)
            x = x if self.positions is None else x + self.positions.weight[: tokens.shape[1]]
        elif self.tp:
            x = DTensor.from_local(x, self.tp, [Shard(1)])
        for block in self.blocks.values():
            x = checkpoint(block, x, use_reentrant=False) if self.full and self.training else block(x)
        if self.last:
            return self.head(self.norm(x))
        return x.to_local() if self.tp else x


class Together(nn.Module):
    """Several stages of a rank as one module, by the names of the whole model."""

    def __init__(self, stages: Iterable[MeshStage]) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict()
        for stage in stages:
            self.blocks.update(stage.blocks)
            for name, part in stage.named_children():
                if name != "blocks":
                    setattr(self, name, part)


def device_mesh(s, layout: Layout) -> DeviceMesh:
    """All ranks by their axes, as `spec.mesh.grid` numbers them. Without ZeRO each replica is
    a shard of its own, on an axis of one rank."""
    axes = [axis for axis in mesh.grid(layout).axes if axis[0] != "cp"]
    if layout.zero == 0:
        axes.insert([name for name, _ in axes].index("dp") + 1, ("shard", 1))
    return init_device_mesh(s.device.type, tuple(size for _, size in axes), mesh_dim_names=tuple(n for n, _ in axes))


def accelerate_mesh(s, layout: Layout) -> DeviceMesh:
    """The same by Accelerate's `ParallelismConfig`. ValueError for a pipeline, which it does not have, and for tensor
    parallelism without the transformers package."""
    if layout.pp > 1:
        raise ValueError(f"Accelerate's ParallelismConfig has no pipeline: use pp 1, not {layout.pp}, or torch's mesh")
    from accelerate.utils import ParallelismConfig  # a second: only where it is asked for

    degree = "dp_shard_size" if layout.zero else "dp_replicate_size"
    try:
        return ParallelismConfig(**{degree: layout.dp}, tp_size=layout.tp).build_device_mesh(s.device.type)
    except ImportError as error:
        raise ValueError(
            f"Accelerate's ParallelismConfig(tp_size={layout.tp}) asks for transformers ({error}): use tp "
            "1, or torch's mesh"
        ) from None


class TorchMesh:
    """This rank's stages of the book's Transformer, and steps with them. The same seed gives the same weights whatever
    the layout. `stages` is {stage: module}; `at` says the coordinates of this rank, by axis."""

    def __init__(
        self,
        s,
        shape: Shape,
        layout: Layout,
        seq: int,
        attention: str = "sdpa",
        checkpointing: str = "none",
        precision: str = "fp32",
        seed: int = 0,
        ready_mesh: DeviceMesh | None = None,
    ) -> None:
        """seq: tokens of a sequence. ready_mesh: else `device_mesh`. ValueError for what torch cannot do."""
        layout_words.refuse(shape, layout, s.world, seq)
        # torch warns of in-place sums on what a unit returns; the book's blocks add out of place
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        self.s, self.shape, self.layout = s, shape, layout
        self.mesh = device_mesh(s, layout) if ready_mesh is None else ready_mesh
        self.at = mesh.grid(layout).coordinates(s.rank)
        self.place = placed(layout.schedule, layout.pp, layout.m, layout.chunks) if layout.pp > 1 else (0,)
        torch.manual_seed(seed)
        with s.device:
            model = Transformer(shape, attention, 0.0, checkpointing)
        mine = [i for i, rank in enumerate(self.place) if rank == self.at["pp"]]
        self.stages = stages_of(model, mesh.blocks(shape.layers, layout.stages), mine, s.device, MeshStage)
        for stage in self.stages.values():
            self.cut(stage, model.full, precision)
        lines, ends = mesh.grid(layout).groups("pp"), sorted({self.place[0], self.place[-1]})
        self.ends = None  # the ranks that have one head and its table, where they are two
        if shape.tied_head and len(ends) > 1:
            self.ends = dist.new_subgroups_by_enumeration([[line[end] for end in ends] for line in lines])[0]
        if layout.pp > 1:
            self.schedule = with_torch(
                s, self.stages, layout.stages, layout.schedule, layout.m, self.mesh["pp"].get_group()
            )
        self.model = next(iter(self.stages.values())) if len(mine) == 1 else Together(self.stages.values())
        # names of parameters that are copies of others: what is kept of them is kept under the others' names
        self.model.copies = {"head.weight": "tokens.weight"} if shape.tied_head and layout.pp > 1 else {}
        self.assert_built()

    def cut(self, stage: MeshStage, full: bool, precision: str) -> None:
        """This rank's part of a stage: cut the matrices along tp, then shard the parameters over the replicas."""
        stage.full = full
        if self.layout.tp > 1:
            stage.tp = self.mesh["tp"]
            tensor_ways.cut(stage, stage.tp, tensor_ways.plan(self.shape, True))
        if stage.first and stage.last and self.shape.tied_head:
            stage.head.weight = stage.tokens.weight
        cut = Sharding(self.layout.dp if self.layout.zero else 1, parameter=precision)
        mixed, _ = shard.policies(self.s, cut)
        named = self.mesh.mesh_dim_names
        over = tuple(name for name in ("dp", "dp_shard", "dp_replicate", "shard") if name in named)
        for part in (*stage.blocks.values(), stage):
            fully_shard(
                part,
                mesh=self.mesh[over],
                mp_policy=mixed,
                reshard_after_forward=self.layout.zero == 3 and part is not stage,
            )

    # --- a step -----------------------------------------------------------------------------------------------

    def gradients(self, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Forward and backward of this replica's layout.m micro-batches; the mean loss of them, (), on the ranks that
        have the last stage, and zero on others. Gradients are means over all replicas."""
        with loss_parallel() if self.layout.tp > 1 else nullcontext():
            losses = self.pipelined(batches) if self.layout.pp > 1 else self.passes(batches)
        if self.shape.tied_head:
            self.tie()
        return torch.stack(losses).mean() if losses else torch.zeros((), device=self.s.device)

    def pipelined(self, batches: list[tuple[Tensor, Tensor]], train: bool = True) -> list[Tensor]:
        """Losses of one run of the schedule, where the last stage is; train: with the backward."""
        tokens, targets = (torch.cat(part) for part in zip(*batches, strict=True))
        losses: list[Tensor] = []
        run = self.schedule.step if train else self.schedule.eval
        run(
            *([tokens] if self.has("first") else []),
            return_outputs=False,
            **({"target": targets, "losses": losses} if self.has("last") else {}),
        )
        return [local(loss.detach()) for loss in losses]

    def passes(self, batches: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Without a pipeline: one micro-batch after the other; gradients are reduced after the last."""
        (stage,), losses = self.stages.values(), []
        for i, (tokens, targets) in enumerate(batches):
            stage.set_requires_gradient_sync(i == len(batches) - 1)
            loss = stage.loss(stage(tokens), targets)
            (loss / len(batches)).backward()
            losses.append(local(loss.detach()))
        return losses

    def tie(self) -> None:
        """Give the token table and the head's copy of it the gradient of both."""
        mine = [local(weight.grad) for weight in tied_weights(self.stages)]
        if self.layout.pp == 1:
            return
        if len(mine) == 2:
            mine[0] += mine[1]
            mine[1].copy_(mine[0])
        elif mine:
            dist.all_reduce(mine[0], group=self.ends)

    # --- a look -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def losses(self, batches: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Of layout.m micro-batches, forward only, where the last stage is; else none."""
        with loss_parallel() if self.layout.tp > 1 else nullcontext():
            if self.layout.pp > 1:
                return self.pipelined(batches, train=False)
            (stage,) = self.stages.values()
            return [local(stage.loss(stage(tokens), targets)) for tokens, targets in batches]

    @torch.no_grad()
    def logits(self, tokens: Tensor) -> Tensor | None:
        """(b, s) -> (b, s, V), where the last stage is; else None. Handed on from stage to stage without the schedule,
        which takes as many sequences as a step has."""
        x, (b, seq), last = tokens, tokens.shape, len(self.place) - 1
        for i, rank in enumerate(self.place):
            if i in self.stages:
                x = self.stages[i](x)
            elif i < last:
                x = torch.empty(b, seq // self.layout.tp, self.shape.hidden, device=x.device)
            if i < last:
                x = x.float()  # what arrives is fp32 in every precision
                dist.broadcast(x, group=self.mesh["pp"].get_group(), group_src=rank)
        return shard.full(x) if last in self.stages else None

    def train(self, mode: bool) -> None:
        """Train, or only look."""
        for stage in self.stages.values():
            stage.train(mode)

    def has(self, end: str) -> bool:
        """Whether the model's "first" or "last" stage is here."""
        return any(getattr(stage, end) for stage in self.stages.values())

    # --- what is there ----------------------------------------------------------------------------------------

    def named(self) -> dict[str, nn.Parameter]:
        """This rank's parameters by their names in the whole model."""
        return {named(name, stage): p for stage in self.stages.values() for name, p in stage.named_parameters()}

    def parameters(self) -> list[nn.Parameter]:
        """This rank's, each a DTensor."""
        return [p for stage in self.stages.values() for p in stage.parameters()]

    def stored(self) -> int:
        """Bytes of this rank's parameters."""
        return local_bytes(self.parameters())

    @property
    def built(self) -> str:
        """What was built, in words."""
        sizes = zip(self.mesh.mesh_dim_names, self.mesh.shape, strict=True)
        axes = " x ".join(f"{name} {size}" for name, size in sizes)
        runs = f", {type(self.schedule).__name__} of {self.layout.m}" if self.layout.pp > 1 else ""
        return (
            f"fully_shard of DTensors on {axes}: stage(s) {', '.join(map(str, self.stages))} of "
            f"{len(self.place)}{runs}, {self.stored():,} bytes of parameters here"
        )

    def shares(self) -> list[float]:
        """Of each of the model's parameters: the part of its squares that this rank adds to a sum over all ranks."""
        ranks, fractions = self.layout.dp * self.layout.tp, []
        for name, p in self.model.named_parameters():
            sizes = zip(p.device_mesh.shape, p.placements, strict=True)
            shards = prod(size for size, placement in sizes if not placement.is_replicate())
            fractions.append(0.0 if name in self.model.copies else shards / ranks)
        return fractions

    def assert_built(self) -> None:
        """RuntimeError where a parameter is not cut as the layout asks. Equal losses would not show it."""
        for name, p in self.named().items():
            dim = tensor_model.dimension(name)
            tp = (Shard(dim) if dim is not None else Replicate(),) if self.layout.tp > 1 else ()
            placements = p.placements if isinstance(p, DTensor) else ()
            replicas = placements[0].is_replicate() if placements else None
            if replicas != (self.layout.zero == 0) or placements[len(placements) - len(tp) :] != tp:
                raise RuntimeError(f"asked for {self.layout}, and {name} has the placements {placements}")

    def whole(self, gradients: bool = False) -> dict[str, Tensor]:
        """{name: full tensor}, copies, of this rank's stages. Collective among the ranks that have them."""
        return {name: shard.full(p.grad if gradients else p.detach()) for name, p in self.named().items()}


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
