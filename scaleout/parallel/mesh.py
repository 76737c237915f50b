"""Three axes at once, from the parts of the earlier rungs: data, tensor and pipeline parallelism on one grid of ranks.

Each rank has one place on the grid (`spec.mesh`). Its neighbours along pp have the other stages of the model, those
along tp the other parts of this stage's matrices, and those along dp a copy of its weights, and other sequences. The
model is cut by depth first (pipeline_stage), then by width (tensor_model). The parts are copied to the replicas, whose
gradients are averaged as in ddp, or sharded as in stage 1 of zero. Each axis has process groups of its own, and a
gradient is reduced along all three axes: summed over the two ends of tied embeddings along pp, summed over copies along
tp, averaged along dp.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scaleout.parallel import tensor_model
from scaleout.parallel.ddp import Reducer
from scaleout.parallel.flat import WholeUnit
from scaleout.parallel.pipeline import HandPipeline, run
from scaleout.parallel.pipeline_stage import named, stages_of
from scaleout.parallel.recipe import local_bytes
from scaleout.parallel.tensor import Group
from scaleout.parallel.tensor_model import TensorTransformer
from scaleout.parallel.transformer import Transformer
from scaleout.parallel.zero import Stage1
from scaleout.spec import mesh as spec_mesh
from scaleout.spec import pipeline as spec_pipeline
from scaleout.spec.layout import Layout
from scaleout.spec.slices import check_sequence
from scaleout.spec.transformer import Shape


def groups(s, grid: spec_mesh.Grid, timeout=None) -> dict:
    """{axis: the session of the ranks along it}, of this rank. Collective: all ranks create all groups, in the same
    order. timeout: of a collective (timedelta; without one, torch's half an hour)."""
    along = dict.fromkeys(grid.names, s)
    for axis in grid.names if s.world > 1 else ():
        for ranks in grid.groups(axis):
            group = dist.new_group(ranks, timeout)
            if s.rank in ranks:
                along[axis] = s.among(group)
    return along


class Line(HandPipeline):
    """A pipeline with replicas: their gradients are averaged, overlapped with the last micro-batch's backward."""

    reducer = None

    def backward(self, stage: int, i: int) -> None:
        """As a pipeline's own."""
        if self.reducer:
            self.reducer.syncing = i == len(self.tokens) - 1
        super().backward(stage, i)


class Replicas(Stage1):
    """Stage 1 of ZeRO among ranks that have copies of the same parts: the optimizer states are sharded over them."""

    def __init__(self, parts: list[TensorTransformer], group) -> None:
        self.model = nn.ModuleList(parts)
        blocks = {f"block {i}": list(block.parameters()) for i, block in enumerate(b for p in parts for b in p.layers)}
        inside = {p for parameters in blocks.values() for p in parameters}
        ends = {"ends": [p for p in self.model.parameters() if p not in inside]}
        self.units = [WholeUnit(name, parameters, group) for name, parameters in (blocks | ends).items() if parameters]


class Mesh:
    """This rank's part of the book's Transformer on a grid of ranks, and the gradients of a step.

    along: {axis: the session of the ranks along it}. place: {axis: coordinate of this rank}. parts: {stage:
    TensorTransformer}, of this rank. The same seed gives the same model in every layout.
    """

    def __init__(
        self, s, shape: Shape, layout: Layout, batch: int, seq: int, order=spec_mesh.ORDER, seed: int = 0, timeout=None
    ):
        """layout: dp x tp x pp ranks; each of dp has m micro-batches of `batch` sequences of `seq` tokens. order: the
        axes, outermost first. timeout: as of `groups`. ValueError as `refuse`."""
        refuse(shape, layout, s.world, seq)
        self.s, self.shape, self.layout, self.grid = s, shape, layout, spec_mesh.grid(layout, order)
        self.along, self.place = groups(s, self.grid, timeout), self.grid.coordinates(s.rank)
        torch.manual_seed(seed)
        self.parts = self.cut(Transformer(shape))
        tokens = seq // layout.tp if layout.sequence_parallel else seq
        like = torch.empty(batch, tokens, shape.hidden, device=s.device)
        place = tuple(spec_pipeline.ranks_of(layout.schedule, layout.pp, layout.chunks))
        self.pipe = Line(self.along["pp"], self.parts, place, like, None, timeout, self.grid.groups("pp"))
        self.actions = spec_pipeline.orders(layout.schedule, layout.pp, layout.m, layout.chunks)[self.place["pp"]]
        self.model, self.replicas = nn.ModuleList(self.parts.values()), None
        if layout.dp > 1 and layout.zero:
            self.replicas = Replicas([*self.parts.values()], self.along["dp"].group)
        elif layout.dp > 1:
            self.pipe.reducer = Reducer(self.model, state=self.along["dp"].group)

    def cut(self, model: Transformer) -> dict[int, TensorTransformer]:
        """{stage: this rank's part}: some blocks of the model (pp), and columns or rows of their matrices (tp)."""
        layout, tp = self.layout, Group(self.along["tp"].group)
        mine = spec_pipeline.stages_of(layout.schedule, self.place["pp"], layout.pp, layout.chunks)
        stages = stages_of(model, spec_mesh.blocks(self.shape.layers, layout.stages), mine, self.s.device)
        return {i: TensorTransformer(stage, tp, layout.sequence_parallel) for i, stage in stages.items()}

    def gradients(self, tokens: list[Tensor], targets: list[Tensor]) -> float:
        """Run this replica's m micro-batches, each (batch, seq), and return the mean loss over all replicas. Afterwards
        each gradient is the mean over all micro-batches of all replicas."""
        loss = self.pipe.step(tokens, targets, self.work)  # pp: at the end sums the gradients of tied embeddings
        for part in self.parts.values():
            part.sum_copies()  # tp
        for unit in self.replicas.units if self.replicas else ():
            self.replicas.reduce(unit)  # dp, sharded
        return self.along["dp"].mean(loss)

    def work(self, pipe: Line, m: int) -> None:
        """This rank's forwards and backwards, then the mean over replicas. Tied embeddings are summed afterwards."""
        run(self.actions)(pipe, m)
        if pipe.reducer:
            pipe.reducer.finish()  # dp, unsharded

    # --- around the core --------------------------------------------------------------------------------------------

    def parameters(self) -> list[nn.Parameter]:
        """What this rank's optimizer steps."""
        return self.replicas.parameters() if self.replicas else list(self.model.parameters())

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Step the optimizer, free the gradients; with ZeRO, all-gather the new weights."""
        if self.replicas:
            self.replicas.step(optimizer)
        else:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def whole(self, gradients: bool = False) -> dict[str, Tensor]:
        """{name: full tensor}, copies, of this rank's stages: parameters or gradients, by the names of the whole model;
        a tied head's under that of the token table. Collective along tp, and along dp where gradients are dealt."""
        if gradients and self.replicas:
            dealt = self.replicas.whole(gradients=True)
            for name, p in self.model.named_parameters():
                p.grad = dealt[name]
        tensors = {
            named(name, part): tensor for part in self.parts.values() for name, tensor in part.whole(gradients).items()
        }
        if self.replicas:
            self.model.zero_grad(set_to_none=True)  # the shards have them
        return tensors

    @property
    def stored(self) -> int:
        """Bytes of this rank's weights."""
        return local_bytes(self.model.parameters())

    @property
    def built(self) -> str:
        """What was built, in words."""
        axes = " x ".join(f"{axis} {size}" for axis, size in self.grid.axes if axis != "cp")
        averaged = "" if self.layout.dp == 1 else ", ZeRO stage 1" if self.replicas else ", gradients in buckets"
        return (
            f"{axes}, outermost first: stage(s) {', '.join(map(str, self.parts))} of {self.layout.stages} here, "
            f"{self.layout.m} micro-batches{averaged}; {self.stored:,} bytes of weights"
        )

    def close(self) -> None:
        """Give the process groups back."""
        self.pipe.close()
        for group in self.along.values() if self.s.world > 1 else ():
            dist.destroy_process_group(group.group)


def refuse(shape: Shape, layout: Layout, ranks: int, seq: int) -> None:
    """ValueError, in one line with what works, for a layout that these ranks, shape or pieces cannot have."""
    spec_mesh.refuse(shape, layout, ranks)
    tensor_model.refuse(shape, layout.tp)
    spec_mesh.blocks(shape.layers, layout.stages)
    if layout.sequence_parallel:
        check_sequence(seq, layout.tp)
    if layout.cp > 1:
        raise ValueError(f"this mesh has no context parallelism: use cp 1, not {layout.cp}")
    if layout.zero > 1:
        raise ValueError(
            f"with a pipeline, ZeRO stage {layout.zero} would communicate in every micro-batch: use zero 0 or 1"
        )
    if spec_pipeline.SCHEDULES[layout.schedule].splits:
        raise ValueError(
            f"{layout.schedule} splits the backward in two, which tensor-parallel layers here do not: use 1f1b"
        )
