"""Measurements of a mesh: the bytes sent on each axis and the memory of each rank, with predictions.

Every collective and every message of a pipeline is seen as it is asked for, and belongs to the axis along which the
ranks of its group differ. So a parallelism that is not there shows as an axis that sends nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from math import ceil

import torch

from scaleout.collectives.tensor import block
from scaleout.collectives.vocabulary import ends
from scaleout.lab import join, session
from scaleout.lab.mesh import NAMES
from scaleout.measure.zero import OPERATIONS, Calls, Wire
from scaleout.memory import mesh as memory_mesh
from scaleout.parallel import mesh_ways, private
from scaleout.parallel.mesh import Mesh
from scaleout.parallel.recipe import by_parts, local_bytes, make_optimizer
from scaleout.parallel.step import Way
from scaleout.parallel.transformer import Transformer
from scaleout.spec import layout_words
from scaleout.spec.layout import Layout
from scaleout.spec.mesh import ORDER, Grid, blocks_of, grid, rank_blocks
from scaleout.spec.pipeline import stages_of
from scaleout.spec.recipe import Recipe
from scaleout.spec.slices import block_parameters
from scaleout.spec.transformer import Shape, norm_parameters
from scaleout.timing.ddp import BUCKET_CAP, FIRST_BUCKET_CAP, Layer, buckets

# Of each operation the collective and the tensor that is its size; a receive is another rank's send.
SENT = OPERATIONS | {"send": ("send", 0), "reduce_scatter_tensor": ("reduce_scatter", 0)}
LOSS = 8  # bytes of the loss that ranks reduce, in fp64

WAYS = ("one", "hand", "torch", "accelerate")
SPREAD = 77  # odd: times it, modulo a power of two, is another order of all bytes

# --- by looking -----------------------------------------------------------------------------------------------------


class Spoken(Wire):
    """Counts what is asked of torch.distributed while the context is open, by axis of the grid. found: {axis:
    {collective: Calls}}."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(SENT)
        self.grid = grid

    def key(self, collective: str, func, args):
        """The axis along which an operation communicates, and its collective."""
        return axis_of(self.grid, private.ranks_of(func, args)), collective

    @property
    def found(self) -> dict:
        return by_axis(super().found)


def by_axis(calls: dict[tuple[str, str], Calls]) -> dict[str, dict[str, Calls]]:
    """{(axis, collective): Calls} as {axis: {collective: Calls}}, in order."""
    axes: dict[str, dict[str, Calls]] = {}
    for axis, kind in sorted(calls):
        axes.setdefault(axis, {})[kind] = calls[axis, kind]
    return axes


def axis_of(grid: Grid, ranks) -> str:
    """The axes along which ranks differ, joined by "x": one, where a group lies along an axis."""
    places = [grid.coordinates(rank) for rank in ranks]
    return "x".join(axis for axis in grid.names if len({place[axis] for place in places}) > 1) or "none"


class MeshWay(Way):
    """The book's Transformer with all its axes cut, by hand or by torch.

    `place` says where this rank stands, by axis. "one" is a plain model, which every rank trains whole on what all
    replicas have.
    """

    def __init__(
        self,
        s,
        o,
        layout: Layout,
        batch: int,
        via: str = "hand",
        order=ORDER,
        optimizer: str = "adamw",
        rate: float | None = None,
        kind: type[Mesh] = Mesh,
    ) -> None:
        """o: options with shape, seq, lr and seed. batch: sequences of a micro-batch."""
        self.s, self.o, self.layout, self.batch, self.via = s, o, layout, batch, via
        self.grid = grid(layout, order)
        self.place = self.grid.coordinates(s.rank)
        if via == "one":
            torch.manual_seed(o.seed)
            module = self.model = Transformer(o.shape).to(s.device)
        elif via == "hand":
            module = self.mesh = kind(s, o.shape, layout, batch, o.seq, order, o.seed, join.GROUP_TIMEOUT)
        else:
            # what it says of the two all-gathers that DTensor needs to show a whole tensor, on every rank
            logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
            device_mesh = mesh_ways.accelerate_mesh(s, layout) if via == "accelerate" else None
            module = self.mesh = mesh_ways.TorchMesh(
                s, o.shape, as_torch(layout), o.seq, seed=o.seed, ready_mesh=device_mesh
            )
        recipe, rate = Recipe("fp32", optimizer=optimizer, foreach=False), o.lr if rate is None else rate
        self.optimizer = by_parts(module.parameters(), lambda parts: make_optimizer(parts, recipe, rate))

    def gradients(self, batches) -> float:
        """Of a step's batches, (tokens, targets) with the shape (dp, m, b, s) each; the mean loss."""
        if self.via == "hand":
            return self.mesh.gradients(*(list(part[self.place["dp"]]) for part in batches))
        if self.via != "one":
            mine = zip(*(part[self.place["dp"]] for part in batches), strict=True)
            last = self.layout.tp * self.layout.dp  # ranks that have the last stage
            return self.s.total(self.mesh.gradients(list(mine)).item()) / last
        loss = self.model(*(part.flatten(0, 2) for part in batches))
        loss.backward()
        return loss.item()

    def make_update(self) -> None:
        """Step the optimizer, forget the gradients."""
        if self.via == "hand":
            self.mesh.update(self.optimizer)
        else:
            super().make_update()

    def whole(self, gradients: bool = False) -> dict[str, torch.Tensor]:
        """{name: full tensor}, copies, of this rank's stages: parameters or gradients."""
        return super().whole(gradients) if self.via == "one" else self.mesh.whole(gradients)

    def spoken(self, batches) -> dict[str, dict[str, Calls]]:
        """What this rank sends in a step, by axis: {axis: {collective: Calls}}."""
        with Spoken(self.grid) as seen:
            self.step(batches)
        return seen.found

    def held(self, batches) -> dict[str, int]:
        """Bytes of each state on this rank, after a step's gradients; its update follows."""
        self.gradients(batches)
        states = [value for state in self.optimizer.state.values() for value in state.values() if value.dim()]
        kinds = {
            "weights": self.mesh.stored,
            "gradients": local_bytes(p.grad for p in self.mesh.parameters()),
            "optimizer": local_bytes(states),
        }
        self.update()
        return kinds

    @property
    def built(self) -> str:
        """What was built, in words."""
        return self.mesh.built

    def close(self) -> None:
        """Give the process groups back."""
        if self.via == "hand":
            self.mesh.close()


def batches(s, o, text, layout: Layout, batch: int, step: int) -> list[torch.Tensor]:
    """(tokens, targets) of all replicas in a step, each (dp, m, b, s), int64, the same on every rank. o: options with
    seq, seed and shape.

    Bytes are numbered otherwise than ASCII numbers them, so that each tensor-parallel rank's part of the vocabulary
    occurs: nearly all of a text is in the first half of 256.
    """
    pair = session.batch(text, step, layout.dp * layout.m * batch, o.seq, seed=o.seed, device=s.device)
    return [(SPREAD * part % o.shape.vocab).unflatten(0, (layout.dp, layout.m, batch)) for part in pair]


def as_torch(layout: Layout) -> Layout:
    """The layout as torch's parts have it: tensor parallelism with sequence parallelism, and stage 2 of ZeRO for 1."""
    return replace(layout, sequence_parallel=layout.tp > 1, zero=2 if layout.zero == 1 else layout.zero)


def vias(s, o, layout: Layout) -> list[str]:
    """The ways of a run that can have this layout."""
    names = ["hand"]
    for via in WAYS[2:] if s.world > 1 else ():
        if not lacking(s, o, layout, via):
            names.append(via)
    return names


def lacking(s, o, layout: Layout, via: str) -> str:
    """Why a way cannot have this layout, "" where it can."""
    if via == "accelerate" and o.via != via:
        return "not asked for (--via accelerate); it has no pipeline, and cuts no matrix"
    if via != "hand" and s.world == 1:
        return "one process is no mesh (torchrun --nproc-per-node 8)"
    if via != "hand" and o.order != "pp,dp,tp":
        return f"its mesh is made in the order pp,dp,tp, not {o.order}"
    try:
        if via != "hand":
            layout_words.refuse(o.shape, as_torch(layout), s.world, o.seq)
        if via == "accelerate" and (layout.pp > 1 or layout.tp > 1 or not layout.zero):
            raise ValueError(
                "its ParallelismConfig has no pipeline, asks for transformers where tp is above 1, and "
                "fully_shard splits over its one axis: use --layout zero=1,tp=1,pp=1"
            )
    except ValueError as error:
        return str(error)
    return ""


def refuse(s, o, layout: Layout) -> None:
    """ValueError, in one line, where the way that is asked for cannot have this layout."""
    reason = lacking(s, o, layout, o.via)
    if reason:
        raise ValueError(f"--via {o.via}: {reason}")


def skips(s, o, layout: Layout) -> list[str]:
    """What a run leaves out, and why."""
    reasons = {via: lacking(s, o, layout, via) for via in WAYS[2:]}
    lines = [f"{NAMES[via]}: {reason}" for via, reason in reasons.items() if reason]
    if not reasons["torch"] and o.via != "torch" and not o.search:
        lines.append("seconds of torch's way: not asked for (--via torch)")
    return lines + ["messages: one process sends nothing (torchrun --nproc-per-node 8)"] * (s.world == 1)


# --- by the pure models ---------------------------------------------------------------------------------------------


def states(shape: Shape, layout: Layout, pp: int) -> dict[str, int]:
    """What `MeshWay.held` should find on rank `pp` of a pipeline, in fp32 with AdamW; stage 1 has dealt gradients."""
    n = 4 * memory_mesh.rank_parameters(shape, layout, pp)
    share = layout.dp if layout.zero else 1
    return {"weights": n, "gradients": ceil(n / share), "optimizer": ceil(2 * n / share)}


def messages(shape: Shape, batch: int, seq: int, layout: Layout, pp: int, sizes: list[int]):
    """What `spoken` should find on rank `pp` of a pipeline, in fp32: {axis: {collective: Calls}}. sizes: elements of
    its parameters, in their order, which make up buckets."""
    calls: dict[tuple[str, str], Calls] = {}
    count = len(buckets([Layer("", 0.0, 0.0, 4 * size) for size in sizes], BUCKET_CAP, FIRST_BUCKET_CAP))
    for axis, kind, _, size, times in planned_calls(shape, batch, seq, layout, pp, count):
        counted = calls.get((axis, kind), Calls(0, 0))
        calls[axis, kind] = Calls(counted.bytes + times * size, counted.count + times)
    return by_axis(calls)


def planned_calls(shape: Shape, batch: int, seq: int, layout: Layout, pp: int, pieces: int | None = None):
    """[(axis, collective, ranks, bytes, times)] of a step of rank `pp` of a pipeline. pieces: of what replicas reduce,
    None: as many as there are buckets of torch's size in it."""
    mine, last = stages_of(layout.schedule, pp, layout.pp, layout.chunks), layout.stages - 1
    blocks, calls = blocks_of(shape, layout), []
    for stage in mine:
        calls += [
            ("tp", *call) for call in _tensor(shape, batch, seq, layout, blocks[stage], stage == 0, stage == last)
        ]
    if layout.pp > 1:
        hop = 4 * batch * seq * shape.hidden // (layout.tp if layout.sequence_parallel else 1)
        hops = layout.m * sum((stage < last) + (stage > 0) for stage in mine)
        calls += [("pp", "send", 2, hop, hops), ("pp", "all_reduce", layout.pp, LOSS, 1)]
        if shape.tied_head and pp in (0, layout.last_rank) and layout.last_rank != 0:
            calls.append(("pp", "all_reduce", 2, 4 * shape.vocab * shape.hidden // layout.tp, 1))
    if layout.dp > 1:
        calls += [("dp", kind, layout.dp, size, times) for kind, size, times in _data(shape, layout, pp, pieces)]
        calls.append(("dp", "all_reduce", layout.dp, LOSS, 1))
    return [call for call in calls if call[3] and call[4]]


def _tensor(shape, batch, seq, layout, blocks, first, last):
    """[(collective, ranks, bytes, times)] along tp, of a stage."""
    if layout.tp == 1:
        return []
    cut = {"sequence_parallel": layout.sequence_parallel, "width": 4, "gather_again": False}
    layer, edges = block(shape, batch, seq, layout.tp, **cut), ends(shape, batch, seq, layout.tp, **cut)
    parts = ["embedding"] * first + ["head", "loss"] * last
    calls = [
        (move.collective, layout.tp, move.size, layout.m * blocks)
        for phase in ("forward", "backward")
        for move in layer.moves(phase)
    ]
    calls += [
        (move.collective, layout.tp, move.size, layout.m)
        for phase in (edges.forward, edges.backward)
        for part in parts
        for move in phase[part]
    ]
    once: Counter = Counter()  # gradients of copies, one message for the same ranks
    for move in layer.sums:
        once[move.ranks] += blocks * move.size
    if layout.sequence_parallel:
        positions = shape.max_seq * shape.hidden if shape.positions == "learned" else 0
        once[layout.tp] += 4 * (first * positions + last * norm_parameters(shape))
    return calls + [("all_reduce", ranks, size, 1) for ranks, size in once.items()]


def _data(shape, layout, pp, pieces):
    """[(collective, bytes, times)] along dp."""
    n = memory_mesh.rank_parameters(shape, layout, pp)
    if not layout.zero:
        pieces = pieces or ceil(4 * n / BUCKET_CAP)
        return [("all_reduce", 4 * n / pieces, pieces)]
    blocks = sum(rank_blocks(layout, pp, blocks_of(shape, layout)))
    block_size = block_parameters(shape, layout.tp)
    pad = lambda size: 4 * (size + -size % layout.dp)  # noqa: E731
    units = [(pad(block_size), blocks), (pad(n - blocks * block_size), 1)]
    return [(kind, size, times) for kind in ("reduce_scatter", "all_gather") for size, times in units]
