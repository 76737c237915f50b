"""The ranks of a layout as a grid with one axis per degree, the groups along its axes, and their links.

Ranks are numbered along the grid as torch's `init_device_mesh` and Megatron number them: the last axis fastest. So the
order of the axes decides which groups share a node. Any names may be axes. The world of a dense model is pp x dp x cp x
tp; experts are no factor of it: their mesh is another grid over the same ranks, such as pp, edp, ep, etp (Megatron's
parallel folding), so that world = dp tp pp cp ep, as one reads it, is wrong wherever ep is above 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import gcd, prod

from scaleout.spec import checks
from scaleout.spec.layout import Layout
from scaleout.spec.pipeline import stages_of
from scaleout.spec.slices import divides
from scaleout.spec.topology import Cluster, Wire
from scaleout.spec.transformer import Shape

# Outermost first: Megatron's default, "tp-cp-ep-dp-pp", read from the right (megatron/core/parallel_state.py).
ORDER = ("pp", "dp", "cp", "tp")
MOST_GPUS = 10**9  # GPUs whose divisors are all tried in a moment


@dataclass(frozen=True)
class Grid:
    """Axes by name and size, outermost first: `init_device_mesh(device, sizes, mesh_dim_names=names)`."""

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        for name, size in self.axes:
            checks.whole(name, size)
        if len(set(self.names)) != len(self.names) or not self.axes:
            raise ValueError(f"the axes are {', '.join(self.names) or 'none'}: name at least one, and each once")

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for _, size in self.axes)

    @property
    def ranks(self) -> int:
        return prod(self.sizes)

    def size(self, *axes: str) -> int:
        """Ranks of a group along these axes."""
        return prod(self.sizes[self._place(axis)] for axis in axes)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """How far apart in rank two neighbours along each axis are."""
        return tuple(prod(self.sizes[place + 1 :]) for place in range(len(self.sizes)))

    def stride(self, axis: str) -> int:
        """The same along one axis."""
        return self.strides[self._place(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        """The coordinates of a rank, by axis. ValueError for a rank outside the grid."""
        if not checks.is_whole(rank) or not 0 <= rank < self.ranks:
            raise ValueError(f"rank {rank!r} is not there: ranks go from 0 to {self.ranks - 1}")
        return {name: rank // step % size for (name, size), step in zip(self.axes, self.strides, strict=True)}

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """The rank at these coordinates. ValueError for other axes, and for coordinates outside the grid."""
        if set(coordinates) != set(self.names):
            raise ValueError(f"coordinates are of {', '.join(self.names)}, not {', '.join(map(str, coordinates))}")
        for name, size in self.axes:
            if not checks.is_whole(coordinates[name]) or not 0 <= coordinates[name] < size:
                raise ValueError(f"{name} {coordinates[name]!r} is not there: it goes from 0 to {size - 1}")
        return sum(self.stride(name) * coordinates[name] for name in self.names)

    def group(self, rank: int, *axes: str) -> tuple[int, ...]:
        """The ranks that differ from a rank along these axes only, in the order of the grid; itself among them."""
        origin = self.coordinates(rank)
        free = [name for name in self.names if name in {self.names[self._place(axis)] for axis in axes}]
        ranks = [rank - sum(self.stride(name) * origin[name] for name in free)]
        for name in free:
            steps = range(0, self.stride(name) * self.size(name), self.stride(name))
            ranks = [start + step for start in ranks for step in steps]
        return tuple(ranks)

    def groups(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """All groups along these axes: each rank is in one of them."""
        return tuple(dict.fromkeys(self.group(rank, *axes) for rank in range(self.ranks)))

    def _place(self, axis: str) -> int:
        if axis not in self.names:
            raise ValueError(f"axis {axis!r} is unknown: use one of {', '.join(self.names)}")
        return self.names.index(axis)


def grid(layout: Layout, order: Iterable[str] = ORDER) -> Grid:
    """The grid of a layout's ranks. order: pp, dp, cp and tp, the one whose neighbours lie farthest apart first.
    ValueError for other names."""
    order = tuple(order) if isinstance(order, Iterable) else (order,)
    if not all(axis in ORDER for axis in order) or sorted(order) != sorted(ORDER):
        names = ", ".join(axis if axis in ORDER else checks.said(axis) for axis in order) or "nothing"
        raise ValueError(f"the order names {', '.join(ORDER)}, each once, not {names}")
    return Grid(tuple((axis, getattr(layout, axis)) for axis in order))


# --- on nodes -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def group_cluster(cluster: Cluster, *axes: tuple[int, int]) -> Cluster:
    """A group of ranks along axes, (stride, size) of each, as a cluster of its own.

    All groups of the same axes send at once, and share what leaves a node: a group's adapter is its part of them.
    Where a group neither lies in one node nor has as many ranks on each, it is taken for one with fewer on each.
    """
    g, size = cluster.gpus_per_node, prod(size for _, size in axes)
    in_node = prod(gcd(size, g // stride) if stride < g and g % stride == 0 else 1 for stride, size in axes)
    if in_node == size:
        return replace(cluster, nodes=1, gpus_per_node=size)
    share = replace(cluster.across, bytes_per_s=cluster.pool.bytes_per_s * in_node / g)
    return Cluster(size // in_node, in_node, cluster.inside, share, 1)


def group_on(cluster: Cluster, grid: Grid, *axes: str) -> Cluster:
    """The group along these axes as a cluster of its own. Those that lie side by side in the grid are one; another
    axis may lie between, as the pipeline's between Llama 3's replicas (arXiv 2407.21783, section 3.3.2)."""
    merged: list[tuple[int, int]] = []
    for axis in reversed(grid.names):
        if axis in axes and grid.size(axis) > 1:
            stride, size = grid.stride(axis), grid.size(axis)
            if merged and stride == prod(merged[-1]):
                stride, size = merged[-1][0], merged.pop()[1] * size
            merged.append((stride, size))
    return group_cluster(cluster, *merged)


def shard_group(group: Cluster, ranks: int) -> Cluster:
    """Neighbours of a group, so many of them, as a cluster of their own: in one node, or filling whole ones."""
    per_node = group.gpus_per_node
    if ranks <= per_node and per_node % ranks == 0:
        return Cluster(1, ranks, group.inside, group.across, group.nics_per_node, group.in_network)
    if ranks % per_node == 0 and group.nodes % (ranks // per_node) == 0:
        return Cluster(ranks // per_node, per_node, group.inside, group.across, group.nics_per_node, group.in_network)
    raise ValueError(
        f"{ranks} ranks neither divide the {per_node} of a group in a node nor fill whole nodes of "
        f"{group.nodes}: use a divisor of {per_node}, or {per_node} times a divisor of {group.nodes}"
    )


def shard_sizes(group: Cluster) -> list[int]:
    """How many neighbours of a group can be a cluster of their own (`shard_group`)."""
    nodes = [group.gpus_per_node * n for n in checks.divisors(group.nodes)]
    return sorted({*checks.divisors(group.gpus_per_node), *nodes})


def link(cluster: Cluster, grid: Grid, axis: str) -> Wire:
    """The slowest wire between two neighbours along an axis, the last one back to the first among them, while all
    ranks send: within the node, or a rank's part of the node's adapters."""
    reach = grid.stride(axis) * grid.size(axis)
    inside = reach <= cluster.gpus_per_node and cluster.gpus_per_node % reach == 0
    return cluster.near if inside else cluster.share


def crosses(cluster: Cluster, grid: Grid, axis: str) -> bool:
    """Whether groups along an axis lie on several nodes."""
    return grid.size(axis) > 1 and link(cluster, grid, axis) is not cluster.near


# --- which layouts there are ------------------------------------------------------------------------------------------


def refuse(shape: Shape, layout: Layout, gpus: int) -> None:
    """ValueError, in one line with the nearest layout that works, unless this one has as many ranks as there are
    GPUs."""
    checks.whole("gpus", gpus)
    if layout.ranks != gpus:
        best = nearest(shape, layout, gpus)
        degrees = f"dp {layout.dp} x cp {layout.cp} x tp {layout.tp} x pp {layout.pp}"
        use = f"dp {best.dp}, cp {best.cp}, tp {best.tp}, pp {best.pp}"
        raise ValueError(f"{degrees} is {layout.ranks:,} ranks, there are {gpus:,}: the nearest that works is {use}")


def nearest(
    shape: Shape, layout: Layout, gpus: int, accepted: Callable[[Layout], bool] = lambda layout: True
) -> Layout:
    """Of the layouts that fill so many GPUs with this shape the one nearest to a layout: as many of tp, pp and cp kept
    as can be, the others changed by the smallest factor, and dp what is left. A tp above the key-value heads, which
    copies them and which torch's own parts do not cut, is kept where it was asked for, and never proposed. accepted: by
    whoever asks; where it takes none, it is the nearest whatsoever. ValueError for more than MOST_GPUS."""
    checks.whole("gpus", gpus, limit=MOST_GPUS)
    keys = []
    for tp in checks.divisors(gpus):
        if not divides(shape, tp) or (tp > shape.kv and tp != layout.tp):
            continue
        for pp in checks.divisors(gpus // tp):
            if pp > shape.layers:
                break
            for cp in checks.divisors(gpus // (tp * pp)):
                key = (_ratio(tp, layout.tp) * _ratio(pp, layout.pp) * _ratio(cp, layout.cp), tp, pp, cp)
                keys.append(key)
    keys.sort()
    layouts = (_filling(shape, layout, gpus, *degrees) for _, *degrees in keys)
    return next(filter(accepted, layouts), None) or _filling(shape, layout, gpus, *keys[0][1:])


def _filling(shape: Shape, layout: Layout, gpus: int, tp: int, pp: int, cp: int) -> Layout:
    """A layout with these degrees: of one chunk and 1F1B in another pipeline, or where it cannot have its own, and with
    as few micro-batches as fill the pipeline where it has not enough."""
    dp = gpus // (tp * pp * cp)
    wide = replace(layout, dp=dp, tp=tp, cp=cp, pp=1, chunks=1, schedule="1f1b", micro_batches=layout.m)
    usual = (layout.chunks, layout.schedule) if pp == layout.pp else (1, "1f1b")
    for chunks, schedule in (usual, (1, "1f1b")):
        try:
            near = replace(wide, pp=pp, chunks=chunks, schedule=schedule, micro_batches=layout.micro_batches)
            if near.stages <= shape.layers:
                return near
        except ValueError:
            continue
    return replace(wide, pp=pp, micro_batches=None)


def _ratio(a: int, b: int) -> float:
    return max(a, b) / min(a, b)


def filled(layers: int, stages: int) -> None:
    """ValueError, in one line with what works, where some stage would have no layer."""
    if layers < stages:
        are, limit = ("s are", f"{layers} stages") if layers > 1 else (" is", "1 stage")
        raise ValueError(f"{layers} layer{are} fewer than {stages} stages: use at most {limit}")


def blocks(layers: int, stages: int) -> tuple[int, ...]:
    """Blocks of each stage of a pipeline: as many on each where they divide.

    Where they do not, the token table and the head count as a block each (Llama 3 takes one block from the first stage
    and one from the last: arXiv 2407.21783, section 3.3.2), and what is left over goes to the middle. ValueError for
    fewer blocks than stages.
    """
    checks.whole("layers", layers)
    checks.whole("stages", stages)
    filled(layers, stages)
    if not layers % stages:
        return (layers // stages,) * stages
    size, longer = divmod(layers + 2, stages)
    sizes = [size] * stages
    first = (stages - longer) // 2
    for stage in range(first, first + longer):
        sizes[stage] += 1
    sizes[0] -= 1
    sizes[-1] -= 1
    if min(sizes) == 0:  # two of the ends have nothing but a table: even, with the longer ones in the middle
        size, longer = divmod(layers, stages)
        first = (stages - longer) // 2
        return tuple(size + (first <= stage < first + longer) for stage in range(stages))
    return tuple(sizes)


def blocks_of(shape: Shape, layout: Layout, sizes: Sequence[int] | None = None) -> tuple[int, ...]:
    """Blocks of each stage: those given, or as `blocks` shares them out. ValueError where they are not the
    model's, or a stage has none."""
    if sizes is None:
        return blocks(shape.layers, layout.stages)
    for n in sizes:
        checks.whole("the blocks of a stage", n)
    if len(sizes) != layout.stages or sum(sizes) != shape.layers:
        raise ValueError(
            f"there are {layout.stages} stages of {shape.layers} blocks in all, not {len(sizes)} of {sum(sizes)}"
        )
    return tuple(sizes)


def rank_blocks(layout: Layout, rank: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Blocks of each chunk of a rank of the pipeline."""
    return tuple(sizes[stage] for stage in stages_of(layout.schedule, rank, layout.pp, layout.chunks))
