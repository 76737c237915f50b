"""A job, and one cut of it priced at once: its peak from parts that many cuts share, its seconds by a closed form.

The pipeline's closed form: the busiest rank works without a pause, and before its first and after its last action a
micro-batch goes once through the others' first chunks. That is the step of 1F1B whose hops take no time; with hops, and
in an interleaved pipeline, ranks wait a little more, and the step is within 2% of the form
(tests/timing/test_mesh_search.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import fsum
from typing import NamedTuple

from scaleout.memory import mesh as memory
from scaleout.memory.accounts import Account
from scaleout.memory.allocator import room
from scaleout.memory.mesh_peaks import End, ends_of, peaks
from scaleout.spec import checks, mesh
from scaleout.spec.hardware import Device
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import Cluster
from scaleout.spec.transformer import Shape
from scaleout.timing import mesh_replicas
from scaleout.timing.ddp_seconds import ADAMW_BYTES
from scaleout.timing.mesh import PARTS, MeshTime, beside, step, straggling, usual_overlap
from scaleout.timing.mesh_machine import MeshMachine, sends
from scaleout.timing.mesh_work import Work, block_work, end_work, hop_seconds, tied_seconds
from scaleout.timing.tensor import OVERLAPS
from scaleout.timing.tensor_machine import Price, priced, rates

# What a part that a plan has more of than the best is called, with the part of its step that it is.
WORDS = {
    "compute": "computes", "recompute": "recomputes", "exposed tensor": "tp waits", "exposed context": "cp waits",
    "imbalance": "unequal stages", "bubble": "bubble", "hops": "hops", "exposed data": "dp waits", "update": "update",
    "stragglers": "stragglers",
}  # fmt: skip
WITHIN = {"exposed tensor": "tp", "exposed context": "cp"}  # axes whose groups belong in one node
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Job:
    """What is trained and on what: `sequences` of `seq` tokens in a step, of all ranks together.

    recipe: of its checkpointing the search makes every choice; its gradients must stay from micro-batch to micro-batch.
    order: the axes of ranks, outermost first. overlap, context: as `timing.mesh.step` has them. memory_bytes: what
    tensors may take on a GPU, None for `allocator.room`. most_cp: of context parallelism's degrees, the largest tried.
    ValueError, in one line, for what cannot be.
    """

    shape: Shape
    seq: int
    sequences: int
    device: Device
    cluster: Cluster
    recipe: Recipe = field(default_factory=lambda: Recipe("bf16-master", main_gradients="instead"))
    order: tuple[str, ...] = mesh.ORDER
    overlap: str | None = None
    context: str = "ring"
    memory_bytes: int | None = None
    most_cp: int = 16

    def __post_init__(self) -> None:
        for name, kind in (("shape", Shape), ("device", Device), ("cluster", Cluster), ("recipe", Recipe)):
            checks.instance(name, getattr(self, name), kind)
        for name in ("seq", "sequences", "most_cp"):
            checks.whole(name, getattr(self, name))
        mesh.grid(Layout(), self.order)
        if not self.recipe.keeps_gradients or self.recipe.adapter != "none":
            raise ValueError('micro-batches add up gradients: use a recipe with gradients="kept" or main_gradients, '
                             "and no adapter")  # fmt: skip
        checks.one_of("overlap", self.overlap, (None, *OVERLAPS))
        checks.one_of("context", self.context, memory.CONTEXTS)
        if self.memory_bytes is not None:
            checks.whole("memory_bytes", self.memory_bytes)

    @cached_property
    def room(self) -> int:
        """Bytes that tensors may take on a GPU."""
        return room(self.device.memory_bytes) if self.memory_bytes is None else self.memory_bytes

    def time(self, plan: Plan) -> MeshTime:
        """The step of a plan, action by action."""
        return step(
            self.shape, plan.batch, self.seq, plan.layout, self.device, self.cluster, plan.recipe, order=self.order,
            overlap=self.overlap, context=self.context,
        )  # fmt: skip

    def accounts(self, plan: Plan) -> tuple[Account, ...]:
        """What each rank of the plan's pipeline holds."""
        return memory.accounts(self.shape, plan.batch, self.seq, plan.recipe, plan.layout, context=self.context)


@dataclass(frozen=True)
class Plan:
    """A layout with micro-batches of `batch` sequences. bytes: the peak of its fullest rank, `rank` of the pipeline;
    over: by how much that is more than there is room for; crossing: the axes whose groups lie on several nodes."""

    layout: Layout
    batch: int
    recipe: Recipe
    each: tuple[int, ...]  # blocks of each stage
    bytes: int
    rank: int
    over: int
    crossing: tuple[str, ...] = ()
    seconds: float = 0.0
    parts: dict[str, float] | None = None

    @property
    def fits(self) -> bool:
        return self.over <= 0

    @property
    def axes(self) -> int:
        """Axes along which the model is cut, recomputation counted as one."""
        at = self.layout
        return sum((at.tp > 1, at.cp > 1, at.pp > 1, at.zero == 3, self.recipe.checkpointing != "none"))

    def lost(self, best: Plan) -> str:
        """The part (PARTS) of this plan's step that is the most longer than in the best one's."""
        return max(PARTS, key=lambda name: self.parts[name] - best.parts[name])

    def loses_by(self, best: Plan) -> str:
        """What this plan's step has most more of than the best one's, with its share of the step."""
        part = self.lost(best)
        share = f"{100 * self.parts[part] / self.seconds:.0f}%"
        across = f", {WITHIN[part]} across nodes" if WITHIN.get(part) in self.crossing else ""
        return f"{WORDS[part]} {share}{across}"


class Cut(NamedTuple):
    """Blocks of each stage, of the pipeline's ends, of all stages and of the first lap. ranks: of those that may be the
    busiest, (blocks, blocks of the first chunk, whether the token table is there, whether the head is)."""

    each: tuple[int, ...]
    ends: tuple[End, ...]
    blocks: int
    lap: int
    ranks: tuple[tuple[int, int, bool, bool], ...]


class Spent(NamedTuple):
    """Seconds of a micro-batch, forward and backward: of a block, of the first end and the last; work: the same in
    detail; whole: of the whole model, the parts that are not computed."""

    block: float
    first: float
    last: float
    work: tuple[Work, Work, Work]
    whole: dict[str, float]


class Way(NamedTuple):
    """A layout with micro-batches of `batch` sequences, and what of its price does not depend on what is recomputed.

    held: parameters of each of the cut's ends; hops, update: those parts of a step; waits: of all others, for the
    slowest rank."""

    layout: Layout
    batch: int
    cut: Cut
    on: MeshMachine
    held: tuple[int, ...]
    hops: float
    update: float
    waits: float


class Pricer:
    """Prices the cuts of a job; what several of them share is worked out once."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.peaks = peaks(job.shape, job.seq, job.context, job.recipe)
        self.recipes = {how: replace(job.recipe, checkpointing=how) for how in RECOMPUTE}
        self.prices: dict[Cluster, Price] = {}
        self.spent: dict[tuple, Spent] = {}
        self.machines: dict[tuple, MeshMachine] = {}
        self.cuts: dict[tuple[int, int], Cut] = {}

    def way(self, layout: Layout, batch: int) -> Way:
        """What all ways to recompute share."""
        job, on, cut = self.job, self._machine(layout), self._cut(layout)
        hop = hop_seconds(job.shape, batch, job.seq // layout.cp, layout, job.recipe, on.hop)
        hops = 2 * (layout.pp - 1) * hop + tied_seconds(job.shape, layout, job.recipe, on.hop)
        held = tuple(self.peaks.parameters(layout, end) for end in cut.ends)
        own = max(held) / (layout.replicas if layout.zero else 1)
        update = own * ADAMW_BYTES / on.rank.memory_bytes_per_s
        return Way(layout, batch, cut, on, held, hops, update, straggling(layout.ranks))

    def peak(self, way: Way, checkpointing: str) -> tuple[int, int]:
        """Bytes of the fullest rank, and which of the pipeline's it is."""
        return self.peaks.peak(way.batch, self.recipes[checkpointing], way.layout, way.cut.ends)

    def least(self, way: Way, checkpointing: str) -> float:
        """Seconds without what replicas send."""
        busiest, fill = in_line(way.layout, self._spent(way, checkpointing), way.cut)
        return (1 + way.waits) * (way.layout.m * busiest + fill + way.hops + way.update)

    def plan(self, way: Way, checkpointing: str, peak: int, rank: int) -> Plan:
        """With its seconds."""
        parts = self._parts(way, checkpointing)
        return Plan(
            way.layout, way.batch, self.recipes[checkpointing], way.cut.each, peak, rank, peak - self.job.room,
            way.on.crossing, fsum(parts.values()), {name: parts[name] for name in PARTS},
        )  # fmt: skip

    def _parts(self, way: Way, checkpointing: str) -> dict[str, float]:
        layout, cut = way.layout, way.cut
        spent = self._spent(way, checkpointing)
        parts = pipelined(layout, spent, cut) | {"hops": way.hops, "update": way.update}
        one, first, last = spent.work
        there, back = (cut.ends[0].blocks * a + b + c * (layout.pp == 1) for a, b, c in (
            (one.there, first.there, last.there), (one.back, first.back, last.back),
        ))  # fmt: skip
        parts["exposed data"] = mesh_replicas.exposed(
            way.held[0], layout, self.job.recipe, way.on.rank.across, there, back, max(cut.each[0], cut.each[-1])
        )
        parts["stragglers"] = way.waits * fsum(parts.values())
        return parts

    def _cut(self, layout: Layout) -> Cut:
        key = p, _ = layout.pp, layout.chunks
        if key not in self.cuts:
            each = mesh.blocks(self.job.shape.layers, layout.stages)
            inside = max(range(1, p - 1), key=lambda rank: sum(each[rank::p]), default=0)
            some = [(sum(each[rank::p]), each[rank], rank == 0, rank == p - 1) for rank in sorted({0, inside, p - 1})]
            self.cuts[key] = Cut(each, ends_of(layout, each), sum(each), sum(each[:p]), tuple(some))
        return self.cuts[key]

    def _machine(self, layout: Layout) -> MeshMachine:
        key = layout.dp, layout.cp, layout.tp, layout.pp
        if key not in self.machines:
            cluster, grid = self.job.cluster, mesh.grid(layout, self.job.order)
            tp, cp, both = (self._price(mesh.on(cluster, grid, *axes)) for axes in (("tp",), ("cp",), ("dp", "cp")))
            self.machines[key] = MeshMachine(
                rates(self.job.device, tp, both), cp, sends(mesh.link(cluster, grid, "cp")),
                sends(mesh.link(cluster, grid, "pp")),
                tuple(axis for axis in grid.names if mesh.crosses(cluster, grid, axis)),
            )  # fmt: skip
        return self.machines[key]

    def _price(self, group: Cluster) -> Price:
        if group not in self.prices:
            self.prices[group] = priced(group)
        return self.prices[group]

    def _spent(self, way: Way, checkpointing: str) -> Spent:
        at, batch, on, job = way.layout, way.batch, way.on, self.job
        key = at.tp, at.cp, batch, checkpointing, on.rank.inside, on.context, "cp" in on.crossing
        if key not in self.spent:
            recipe, tokens = self.recipes[checkpointing], job.seq // at.cp
            overlap = usual_overlap(at) if job.overlap is None else job.overlap
            work = (block_work(job.shape, batch, tokens, at, on, recipe, overlap, job.context),
                    *end_work(job.shape, batch, tokens, at, on, recipe))  # fmt: skip
            self.spent[key] = Spent(*(one.there + one.back for one in work), work, beside(work, job.shape.layers))
        return self.spent[key]


def in_line(layout: Layout, spent: Spent, cut: Cut) -> tuple[float, float]:
    """Seconds of a micro-batch on the busiest rank, and of the first one's way to it and the last one's from it."""
    block, first, last = spent.block, spent.first, spent.last
    ends = layout.chunks == 1
    busiest, own = max(
        (n * block + table * first + head * last, lap * block + table * first + head * last * ends)
        for n, lap, table, head in cut.ranks
    )
    return busiest, cut.lap * block + first + last * ends - own


def pipelined(layout: Layout, spent: Spent, cut: Cut) -> dict[str, float]:
    """The parts of a step up to hops and what replicas send: `timing.mesh` has them from every action."""
    p, m = layout.pp, layout.m
    mean = (cut.blocks * spent.block + spent.first + spent.last) / p
    busiest, fill = in_line(layout, spent, cut)
    of = {name: m / p * seconds for name, seconds in spent.whole.items()}
    return {"compute": m * mean - fsum(of.values()), **of, "imbalance": m * (busiest - mean), "bubble": fill}
