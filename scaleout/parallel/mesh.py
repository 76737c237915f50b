"""Three axes at once, from the pieces of the earlier rungs: data, tensor and pipeline parallelism on one grid of ranks.

A rank stands at one place of the grid (`spec.mesh`). Along pp its neighbours have the other stages of the model, along
tp the other parts of this stage's matrices, along dp a copy of what it has, and other sequences. The model is cut by
depth first (pipeline_stage), then by width (tensor_model); what is left is copied, and its gradients are averaged as
in ddp. Each axis speaks in groups of its own, and gradients are finished along all three: the mean along dp, the sum of
copies along tp, the sum of a tied table's ends along pp.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scaleout.parallel import tensor_model
from scaleout.parallel.ddp import Reducer
from scaleout.parallel.pipeline import HandPipeline, run
from scaleout.parallel.pipeline_stage import stages_of
from scaleout.parallel.tensor import Group
from scaleout.parallel.tensor_model import TensorTransformer
from scaleout.parallel.transformer import Transformer
from scaleout.spec import mesh as spec_mesh
from scaleout.spec import pipeline as spec_pipeline
from scaleout.spec.layout import Layout
from scaleout.spec.slices import check_sequence
from scaleout.spec.transformer import Shape

AXES = ("dp", "tp", "pp")


def groups(s, grid: spec_mesh.Grid) -> dict:
    """{axis: a session of the ranks along it}, of this rank: every group is made by all ranks, in one order."""
    if s.world == 1:
        return dict.fromkeys(grid.names, s)
    along = {}
    for axis in grid.names:
        for ranks in grid.groups(axis):
            group = dist.new_group(ranks)
            if s.rank in ranks:
                along[axis] = s.among(group)
    return along


class Line(HandPipeline):
    """A pipeline of which there are copies: with the last micro-batch's backward begin the messages among these."""

    reducer = None

    def backward(self, stage: int, i: int) -> None:
        """As a pipeline's own."""
        if self.reducer:
            self.reducer.syncing = i == len(self.tokens) - 1
        super().backward(stage, i)


class Mesh:
    """This rank's part of the book's Transformer on a grid of ranks, and the losses and gradients of a step with it.

    parts: {stage: TensorTransformer}, this rank's. along: {axis: a session of the ranks along it}. place: {axis: where
    this rank stands}. The same seed gives the same model, whatever the layout.
    """

    def __init__(self, s, shape: Shape, layout: Layout, batch: int, seq: int, order=spec_mesh.ORDER, seed: int = 0):
        """layout: dp x tp x pp ranks, and m micro-batches of `batch` sequences of `seq` tokens for each of dp."""
        refuse(shape, layout, s.world, seq)
        self.grid = spec_mesh.grid(layout, order)
        self.along, self.place = groups(s, self.grid), self.grid.coordinates(s.rank)
        line, tp = self.along["pp"], Group(self.along["tp"].group)
        torch.manual_seed(seed)
        ranks = spec_pipeline.ranks_of(layout.schedule, layout.pp, layout.chunks)
        mine = [stage for stage, rank in enumerate(ranks) if rank == line.rank]
        stages = stages_of(Transformer(shape), spec_mesh.blocks(shape.layers, layout.stages), mine, s.device)
        self.parts = {i: TensorTransformer(stage, tp, layout.sequence_parallel) for i, stage in stages.items()}
        tokens = seq // layout.tp if layout.sequence_parallel else seq
        like = torch.empty(batch, tokens, shape.hidden, device=s.device)
        self.pipe = Line(line, self.parts, tuple(ranks), like, lines=self.grid.groups("pp"))
        if layout.dp > 1:
            self.pipe.reducer = Reducer(nn.ModuleList(self.parts.values()), state=self.along["dp"].group)
        self.actions = spec_pipeline.orders(layout.schedule, layout.pp, layout.m, layout.chunks)[line.rank]

    def gradients(self, tokens: list[Tensor], targets: list[Tensor]) -> float:
        """Of m micro-batches, each (batch, seq), this replica's own: the mean loss over all replicas. Every weight's
        gradient is then the mean over all micro-batches of all replicas."""
        loss = self.pipe.step(tokens, targets, self.work)           # pp: ends with the sum of a tied table's gradients
        for part in self.parts.values():
            part.sum_copies()                                       # tp
        return self.along["dp"].mean(loss)

    def work(self, pipe: Line, m: int) -> None:
        """A rank's forwards and backwards, and the mean over replicas: before the tie adds to what it is a mean of."""
        run(self.actions)(pipe, m)
        if pipe.reducer:
            pipe.reducer.finish()                                   # dp


def refuse(shape: Shape, layout: Layout, ranks: int, seq: int) -> None:
    """ValueError, in one line with what works, for a layout that so many ranks, this shape or these pieces cannot have.
    """
    spec_mesh.refuse(shape, layout, ranks)
    tensor_model.refuse(shape, layout.tp)
    spec_mesh.blocks(shape.layers, layout.stages)
    if layout.sequence_parallel:
        check_sequence(seq, layout.tp)
    if layout.cp > 1:
        raise ValueError(f"context parallelism is none of the three axes here: use cp 1, not {layout.cp}")
    if spec_pipeline.SCHEDULES[layout.schedule].splits:
        raise ValueError(f"{layout.schedule} takes a backward in halves, which parts of matrices do not: use 1f1b")
