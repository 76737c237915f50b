"""A mesh looked at from outside: what each axis sends, and what each rank holds, beside their prediction.

Every collective and every message of a pipeline is seen as it is asked for, and belongs to the axis along which the
ranks of its group differ. So a parallelism that is not there shows as an axis that sends nothing.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch.distributed.tensor import DTensor

from scaleout.collectives.tensor import block
from scaleout.collectives.vocabulary import ends
from scaleout.measure.zero import OPERATIONS, Calls
from scaleout.memory import mesh as memory_mesh
from scaleout.parallel import private
from scaleout.parallel.mesh import Mesh
from scaleout.spec.layout import Layout
from scaleout.spec.mesh import Grid
from scaleout.spec.pipeline import stages_of
from scaleout.spec.transformer import Shape, norm_parameters
from scaleout.timing.ddp import BUCKET_CAP, FIRST_BUCKET_CAP, Layer, buckets

SENT = OPERATIONS | {"send": ("send", 0), "reduce_scatter_tensor": ("reduce_scatter", 0)}    # a receive is another's send
LOSS = 8                                            # bytes of the loss that ranks add up, in fp64

# --- by looking -----------------------------------------------------------------------------------------------------


class Spoken(private.TorchDispatchMode):
    """Counts what is asked of torch.distributed while the context is open, by axis of the grid. found: {axis:
    {collective: Calls}}."""

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.grid, self.bytes, self.count = grid, Counter(), Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented               # let it turn into operations on this rank's part, which come here
        out = func(*args, **(kwargs or {}))
        space, _, name = func._schema.name.partition("::")
        if space in ("c10d", "_c10d_functional") and name in SENT:
            kind, at = SENT[name]
            key = axis_of(self.grid, private.ranks_of(func, args)), kind
            self.bytes[key] += sum(t.nbytes for t in private.tree_leaves(out if at is None else args[at])
                                   if isinstance(t, torch.Tensor))
            self.count[key] += 1
        return out

    @property
    def found(self) -> dict[str, dict[str, Calls]]:
        return by_axis({key: Calls(size, self.count[key]) for key, size in self.bytes.items()})


def by_axis(calls: dict[tuple[str, str], Calls]) -> dict[str, dict[str, Calls]]:
    """{(axis, collective): Calls} as {axis: {collective: Calls}}, in order."""
    found: dict[str, dict[str, Calls]] = {}
    for axis, kind in sorted(calls):
        found.setdefault(axis, {})[kind] = calls[axis, kind]
    return found


def axis_of(grid: Grid, ranks) -> str:
    """The axes along which ranks differ, joined by "x": one, where a group lies along an axis."""
    places = [grid.coordinates(rank) for rank in ranks]
    return "x".join(axis for axis in grid.names if len({place[axis] for place in places}) > 1) or "none"


def spoken(mesh: Mesh, batch) -> dict[str, dict[str, Calls]]:
    """What this rank sends in the gradients and the update of a step, by axis. batch: (tokens, targets)."""
    with Spoken(mesh.grid) as seen:
        mesh.gradients(*batch)
        mesh.update(torch.optim.SGD(mesh.parameters(), 0.0))
    return seen.found


def held(mesh: Mesh, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of each state on this rank, after a step's gradients and before its update."""
    grads = [p.grad for p in mesh.parameters()]
    states = [value for state in optimizer.state.values() for value in state.values()
              if isinstance(value, torch.Tensor) and value.dim()]
    return {"weights": mesh.stored, "gradients": sum(g.nbytes for g in grads),
            "optimizer": sum(x.nbytes for x in states)}


# --- by the pure models ---------------------------------------------------------------------------------------------

def messages(shape: Shape, batch: int, seq: int, layout: Layout, pp: int, sizes: list[int]):
    """What `spoken` should find on rank `pp` of a pipeline, in fp32: {axis: {collective: Calls}}. sizes: elements of
    its parameters, in their order, which make up buckets."""
    found: dict[tuple[str, str], Calls] = {}

    def add(axis: str, kind: str, size: int, times: int = 1) -> None:
        before = found.get((axis, kind), Calls(0, 0))
        if size and times:
            found[axis, kind] = Calls(before.bytes + times * size, before.count + times)
    mine = stages_of(layout.schedule, pp, layout.pp, layout.chunks)
    each, last = memory_mesh.blocks_of(shape, layout), layout.stages - 1
    for stage in mine:
        for kind, size, times in _tensor(shape, batch, seq, layout, each[stage], stage == 0, stage == last):
            add("tp", kind, size, times)
    hop = 4 * batch * seq * shape.hidden // (layout.tp if layout.sequence_parallel else 1)
    if layout.pp > 1:
        add("pp", "send", hop, layout.m * sum((stage < last) + (stage > 0) for stage in mine))
        add("pp", "all_reduce", LOSS)
        if shape.tied_head and (pp in (0, layout.last_rank)) and layout.last_rank != 0:
            add("pp", "all_reduce", 4 * shape.vocab * shape.hidden // layout.tp)
    if layout.dp > 1:
        for kind, size, times in _data(shape, layout, pp, sizes):
            add("dp", kind, size, times)
        add("dp", "all_reduce", LOSS)
    return by_axis(found)


def _tensor(shape, batch, seq, layout, blocks, first, last):
    """[(collective, bytes, times)] along tp, of a stage."""
    if layout.tp == 1:
        return []
    cut = {"sequence_parallel": layout.sequence_parallel, "width": 4, "gather_again": False}
    one, both = block(shape, batch, seq, layout.tp, **cut), ends(shape, batch, seq, layout.tp, **cut)
    parts = ["embedding"] * first + ["head", "loss"] * last
    found = [(move.collective, move.size, layout.m * blocks) for phase in ("forward", "backward")
             for move in one.moves(phase)]
    found += [(move.collective, move.size, layout.m) for phase in (both.forward, both.backward) for part in parts
              for move in phase[part]]
    once: Counter = Counter()                                   # gradients of copies, one message for the same ranks
    for move in one.sums:
        once[move.ranks] += blocks * move.size
    if layout.sequence_parallel:
        positions = shape.max_seq * shape.hidden if shape.positions == "learned" else 0
        once[layout.tp] += 4 * (first * positions + last * norm_parameters(shape))
    return found + [("all_reduce", size, 1) for size in once.values()]


def _data(shape, layout, pp, sizes):
    """[(collective, bytes, times)] along dp."""
    each = memory_mesh.blocks_of(shape, layout)
    n = memory_mesh.rank_parameters(shape, layout, pp, each)
    if not layout.zero:
        count = len(buckets([Layer("", 0.0, 0.0, 4 * size) for size in sizes], BUCKET_CAP, FIRST_BUCKET_CAP))
        return [("all_reduce", 4 * n / count, count)]
    blocks = sum(memory_mesh.rank_blocks(layout, pp, each))
    one = memory_mesh.parameters(shape, layout, pp, 1) - memory_mesh.parameters(shape, layout, pp, 0)
    pad = lambda size: 4 * (size + -size % layout.dp)  # noqa: E731
    units = [(pad(one), blocks), (pad(n - blocks * one), 1)]
    return [(kind, size, times) for kind in ("reduce_scatter", "all_gather") for size, times in units]
