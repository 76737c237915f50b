"""What each axis of a mesh sends in a step, hidden or not: bytes of one rank, their seconds, and the wire they take.

The order of the axes changes no byte; it decides whose bytes go through a node's adapters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from math import fsum

from scaleout.collectives.alpha_beta import bus_factor
from scaleout.collectives.placements import Move
from scaleout.collectives.tensor import block
from scaleout.collectives.vocabulary import ends, sums
from scaleout.memory.mesh import blocks_of, rank_blocks, rank_parameters
from scaleout.spec import mesh
from scaleout.spec.hardware import Device
from scaleout.spec.layout import Layout, within
from scaleout.spec.pipeline import stages_of
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import Cluster
from scaleout.spec.transformer import Shape
from scaleout.timing.mesh_machine import MeshMachine, machine
from scaleout.timing.mesh_work import cut, hop_bytes, tied_bytes, tied_seconds

Sent = tuple[int, float, float]  # messages, their bytes, their seconds
NOTHING: Sent = (0, 0.0, 0.0)


@dataclass(frozen=True)
class Traffic:
    """Of one axis, one rank and one step. ranks: of a group; messages: that a rank begins or takes part in, a
    collective counted once; bytes: sent, and as many received; seconds: of all its messages one after another;
    crossing: whether groups lie on several nodes; bytes_per_s: of the slowest wire between two neighbours, by the
    datasheet."""

    axis: str
    ranks: int
    messages: int
    bytes: float
    seconds: float
    crossing: bool
    bytes_per_s: float


def traffic(
    shape: Shape, batch: int, seq: int, layout: Layout, device: Device, cluster: Cluster, recipe: Recipe | None = None,
    *, order: tuple[str, ...] = mesh.ORDER, rank: int | None = None, context: str = "ring",
) -> dict[str, Traffic]:  # fmt: skip
    """By axis, in the order of the grid; of a rank of the pipeline (None: the one in the middle). ValueError as in
    `timing.mesh.step`.

    Replicas are one group of dp x cp ranks: what they send is told under dp, or under cp where there is no dp; each of
    their collectives is one message here, which a program cuts into buckets.
    """
    recipe = recipe or Recipe("bf16-master")
    on, grid = machine(device, cluster, layout, order), mesh.grid(layout, order)
    rank = layout.pp // 2 if rank is None else rank
    _, tokens = within(layout, seq)
    each = blocks_of(shape, layout)
    found = {
        "tp": _tensor(shape, batch, tokens, layout, recipe, on, sum(rank_blocks(layout, rank, each)), rank),
        "cp": _context(shape, batch, tokens, layout, recipe, on, sum(rank_blocks(layout, rank, each)), context),
        "dp": NOTHING, "pp": _hops(shape, batch, tokens, layout, recipe, on, rank),
    }  # fmt: skip
    under = "dp" if layout.dp > 1 else "cp"
    more = _replicas(rank_parameters(shape, layout, rank, each), layout, recipe, on)
    found[under] = _added(found[under], more)
    return {
        axis: Traffic(axis, grid.size(axis), *found[axis], axis in on.crossing,
                      mesh.link(cluster, grid, axis).bytes_per_s)
        for axis in grid.names
    }  # fmt: skip


def _tensor(shape, batch, tokens, layout, recipe, on: MeshMachine, blocks: int, rank: int) -> Sent:
    one = block(shape, batch, tokens, layout.tp, **cut(layout, recipe))
    both = ends(shape, batch, tokens, layout.tp, **cut(layout, recipe))
    parts = ["embedding"] * (rank == 0) + ["head", "loss"] * (rank == layout.last_rank)
    again = 1 + (recipe.checkpointing == "full")
    of_ends = [move for phase in (both.forward, both.backward) for part in parts for move in phase[part]]
    once = [Move("all_reduce", size, ranks, ()) for ranks, size in sums(one, both, blocks).items()]
    each = again * layout.m * blocks, layout.m * blocks, layout.m, 1
    some = one.moves("forward"), one.moves("backward"), of_ends, once
    return reduce(_added, (_sent(moves, on, times) for moves, times in zip(some, each, strict=True)))


def _added(one: Sent, other: Sent) -> Sent:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _sent(moves: Iterable[Move], on: MeshMachine, times: int) -> Sent:
    moves = [move for move in moves if move.ranks > 1]
    return (times * len(moves), times * fsum(move.sent for move in moves),
            times * fsum(on.rank.inside(move.collective, move.size) for move in moves))  # fmt: skip


def _context(shape, batch, tokens, layout, recipe, on: MeshMachine, blocks: int, context: str) -> Sent:
    """Keys and values forward, and once more with their gradients backward; the gather's sizes are the same."""
    if layout.cp == 1:
        return NOTHING
    kept = 2 * next(t.bytes for t in block(shape, batch, tokens, layout.tp, **cut(layout, recipe)).tensors
                    if t.name == "k")  # fmt: skip
    passes = 2 + (recipe.checkpointing != "none") + 1
    size = layout.m * blocks * passes * (layout.cp - 1) * kept
    if context == "ring":
        turns = layout.m * blocks * passes * (layout.cp - 1)
        return turns, size, turns * on.turn(kept)
    calls = ["all_gather"] * (passes - 1) + ["reduce_scatter"]
    times = layout.m * blocks
    return times * passes, size, times * fsum(on.context(call, layout.cp * kept) for call in calls)


def _hops(shape, batch, tokens, layout: Layout, recipe, on: MeshMachine, rank: int) -> Sent:
    if layout.pp == 1:
        return NOTHING
    size = hop_bytes(shape, batch, tokens, layout, recipe)
    stages = stages_of(layout.schedule, rank, layout.pp, layout.chunks)
    count = layout.m * sum((stage > 0) + (stage < layout.stages - 1) for stage in stages)
    tied = tied_bytes(shape, layout, recipe) if rank in (0, layout.last_rank) else 0
    more = (1, tied, tied_seconds(shape, layout, recipe, on.hop)) if tied else NOTHING
    return _added((count, count * size, count * on.hop(size)), more)


def _replicas(n: int, layout: Layout, recipe: Recipe, on: MeshMachine) -> Sent:
    if layout.replicas == 1:
        return NOTHING
    fine, wide = n * recipe.gradient_bytes, n * recipe.width("compute")
    m = layout.m if layout.zero >= 2 else 1
    calls = [("all_reduce", fine, 1)] if not layout.zero else [
        ("reduce_scatter", fine, m), ("all_gather", wide, 2 * m if layout.zero == 3 else 1),
    ]  # fmt: skip
    return (sum(times for _, _, times in calls),
            fsum(times * size * bus_factor(call, layout.replicas) for call, size, times in calls),
            fsum(times * on.rank.across(call, size) for call, size, times in calls))  # fmt: skip
