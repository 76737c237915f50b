"""Step time by closed formulas, for searches over thousands of layouts; `timing.job` has every event.

Parts that many layouts share, above all the time of a block, are computed once. The busiest rank of a pipeline works
without a pause; before its first and after its last action a micro-batch goes once through the first chunks of the
others. The communication of replicas without a pipeline is a queue of equal messages, which overlap with the backward
or with each block. The result is within TOLERANCE of `timing.job` (tests/timing/test_quick.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, fsum
from typing import NamedTuple

from scaleout.collectives.job import hop_bytes
from scaleout.memory.mesh_peaks import End, Peaks, ends_of, peaks
from scaleout.spec import frameworks, mesh
from scaleout.spec.adapters import gradient_bytes
from scaleout.spec.blocks import layer_elements, layers_parameters
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.slices import table_parameters
from scaleout.timing import compute, exchange, machine, pipeline_exchange
from scaleout.timing.compute import Work
from scaleout.timing.job import PARTS, action_seconds, overheads, straggling, tied_seconds, update_seconds
from scaleout.timing.machine import Machine

RECOMPUTE = ("none", "selective", "full")
TOLERANCE = 0.03  # of a step's seconds, on layouts that a search finds
USUAL = Replicas()


class Cut(NamedTuple):
    """Blocks of each stage; the ranks of the pipeline that may hold most; blocks of the first lap. ranks: of those that
    may be the busiest, (blocks, blocks of the first chunk, whether the embedding is there, whether the head is)."""

    blocks: tuple[int, ...]
    ends: tuple[End, ...]
    lap: int
    ranks: tuple[tuple[int, int, bool, bool], ...]


@dataclass(frozen=True, eq=False)
class Way:
    """A job with a layout and a micro-batch, whatever is recomputed. parameters: those on each of the cut's ends."""

    job: Job
    rank: Machine
    cut: Cut
    parameters: tuple[int, ...]
    groups: tuple


class Pricer:
    """Prices layouts of one job; what several of them share is worked out once."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.recipes: dict[tuple, Recipe] = {}
        self.peaks: dict[tuple, Peaks] = {}
        self.works: dict[tuple, tuple[Work, Work, Work]] = {}
        self.machines: dict[tuple, tuple[Machine, tuple]] = {}
        self.cuts: dict[tuple, Cut] = {}
        self.jitter = straggling(job)

    def way(self, layout: Layout, batch: int) -> Way:
        """ValueError for a layout that cannot be."""
        job = replace(self.job, layout=layout, batch=batch, recipe=self.recipe(layout, "none"), blocks=None)
        rank, groups = self._machine(job)
        cut, peaks = self._cut(job), self._peaks(layout)
        return Way(job, rank, cut, tuple(peaks.parameters(layout, end) for end in cut.ends), groups)

    def recipe(self, layout: Layout, checkpointing: str) -> Recipe:
        """The job's recipe as its program trains a layout."""
        key = *_replicated(layout), checkpointing
        if key not in self.recipes:
            recipe = frameworks.trained(self.job.program, layout, self.job.recipe)
            self.recipes[key] = replace(recipe, checkpointing=checkpointing)
        return self.recipes[key]

    def _peaks(self, layout: Layout) -> Peaks:
        key = _replicated(layout)
        if key not in self.peaks:
            recipe, alone = self.recipe(layout, "none"), frameworks.fp32_shards(self.job.program, self.job.recipe)
            self.peaks[key] = peaks(self.job.shape, self.job.seq, self.job.context, recipe, alone)
        return self.peaks[key]

    def peak(self, way: Way, checkpointing: str) -> int:
        """Bytes of the fullest rank."""
        layout = way.job.layout
        return self._peaks(layout).peak(way.job.batch, self.recipe(layout, checkpointing), layout, way.cut.ends)[0]

    def seconds(self, way: Way, checkpointing: str) -> float:
        return fsum(self.parts(way, checkpointing).values())

    def parts(self, way: Way, checkpointing: str) -> dict[str, float]:
        """The parts of a step (`timing.job.PARTS`)."""
        job, layout, work = way.job, way.job.layout, self._work(way, checkpointing)
        p, m, v = layout.pp, layout.m, layout.chunks
        block, first, last = (part.seconds for part in work)
        mean = (job.shape.layers * block + first + last) / p
        busiest, fill = in_line(way, work)
        shares = {name: m / p * seconds for name, seconds in overheads(work, job.shape.layers).items()}
        actions = m * action_seconds(job)
        hop = way.rank.hop(hop_bytes(job)) if p > 1 else 0.0
        parts = {
            "compute": m * mean - fsum(shares.values()),
            **shares,
            "imbalance": m * (busiest - mean) - actions,
            "bubble": fill,
            "hops": actions + 2 * (p * v - 1) * hop + tied_seconds(job, way.rank),
            "exposed data": self._data(way, work),
            "update": update_seconds(job, way.rank, _trained(way)),
            "exposed host": 0.0,
            "host": job.program.step_seconds,
        }
        parts["stragglers"] = self.jitter * fsum(parts.values())
        return {name: parts[name] for name in PARTS}

    def _data(self, way: Way, work: tuple[Work, Work, Work]) -> float:
        """What replicas send and no compute hides."""
        job = way.job
        if job.layout.replicas == 1:
            return 0.0
        if job.layout.pp > 1:
            n, block, first = way.cut.ends[0].blocks, work[0], work[1]
            forward = n * block.forward_seconds + first.forward_seconds
            backward = n * block.backward_seconds + first.backward_seconds
            return pipeline_exchange.seconds(job, way.rank, way.parameters[0], forward, backward)[0]
        if job.replicas != USUAL:
            return exchange.schedule(job, way.rank, work).exposed
        return sharded(job, way.rank, work) if job.sharded else bucketed(job, way.rank, work)

    def _machine(self, job: Job) -> tuple[Machine, tuple]:
        """A rank, and the groups and the wire on which a block's seconds depend."""
        layout = job.layout
        key = layout.dp, layout.cp, layout.tp, layout.pp
        if key not in self.machines:
            groups = (
                *(mesh.group_on(job.cluster, job.grid, axis) for axis in ("tp", "cp")),
                mesh.link(job.cluster, job.grid, "cp"),
            )
            self.machines[key] = machine.from_datasheet(job), groups
        return self.machines[key]

    def _cut(self, job: Job) -> Cut:
        key = p, _ = job.layout.pp, job.layout.chunks
        if key not in self.cuts:
            blocks = job.stages
            middle = max(range(1, p - 1), key=lambda stage_rank: sum(blocks[stage_rank::p]), default=0)
            ranks = [
                (sum(blocks[stage_rank::p]), blocks[stage_rank], stage_rank == 0, stage_rank == p - 1)
                for stage_rank in sorted({0, middle, p - 1})
            ]
            self.cuts[key] = Cut(blocks, ends_of(job.layout, blocks), sum(blocks[:p]), tuple(ranks))
        return self.cuts[key]

    def _work(self, way: Way, checkpointing: str) -> tuple[Work, Work, Work]:
        job, rank = way.job, way.rank
        key = job.layout.tp, job.layout.cp, job.batch, checkpointing, job.sharded, way.groups
        if key not in self.works:
            job = replace(job, recipe=self.recipe(job.layout, checkpointing))
            self.works[key] = compute.block(job, rank), *compute.ends(job, rank)
        return self.works[key]


def _replicated(layout: Layout) -> tuple[int, bool]:
    """What of a layout a framework's recipe may depend on (`frameworks.trained`)."""
    return layout.zero, layout.replicas > 1


def _trained(way: Way) -> int:
    """The most parameters with a gradient on a rank."""
    job = way.job
    if job.recipe.adapter == "none":
        return max(way.parameters)
    return max(job.trained_parameters(end.rank) for end in way.cut.ends)


def in_line(way: Way, work: tuple[Work, Work, Work]) -> tuple[float, float]:
    """Seconds of a micro-batch on the busiest rank, and of the first one's way to it and the last one's from it."""
    layout, cut, actions = way.job.layout, way.cut, action_seconds(way.job)
    block, first, last = (part.seconds for part in work)
    ends, action = layout.chunks == 1, actions / layout.chunks
    busiest, own_work = max(
        (n * block + table * first + head * last + actions, lap * block + table * first + head * last * ends + action)
        for n, lap, table, head in cut.ranks
    )
    return busiest, cut.lap * block + first + last * ends + layout.pp * action - own_work


# --- replicas without a pipeline ------------------------------------------------------------------------------------


def sharded(job: Job, rank: Machine, work: tuple[Work, Work, Work]) -> float:
    """`fully_shard` by blocks: in each, one takes as long as the other. What is exposed are the first gathers, the last
    scatter, and copies."""
    block, _, _ = work
    n, share = job.shape.layers, job.program.contention
    wide, fine = job.recipe.width("compute"), gradient_bytes(job.recipe)
    parameters, adapts = layers_parameters(job.shape, job.layout.tp) / n, job.recipe.adapter != "none"
    ends = job.rank_parameters() - n * parameters
    weights, gradients = parameters * wide, parameters * fine
    if adapts:
        added = job.trained_parameters() / n
        weights, gradients = job.weight_bytes(parameters, 1) + added * wide, added * fine
    gather, scatter = rank.shards("all_gather", weights), rank.shards("reduce_scatter", gradients)
    moved = rank.rates.moved
    forward = block.forward_seconds + 2 * moved(weights)
    backward = block.backward_seconds + 3 * moved(weights) + moved(gradients)
    sent = gather + scatter
    exposed = n * (max(forward + share * gather, gather) - block.forward_seconds)
    exposed += n * (max(backward + share * sent, sent) - block.backward_seconds)
    fine *= not adapts  # of the ends no adapter
    scatters = rank.shards("reduce_scatter", ends * fine) if fine else scatter
    exposed += rank.shards("all_gather", ends * wide) + gather + scatters
    return job.layout.m * (exposed + 3 * moved(ends * wide) + moved(ends * fine))


def bucketed(job: Job, rank: Machine, work: tuple[Work, Work, Work]) -> float:
    """ZeRO 0 to 2: buckets of gradients beside the last backward; the new weights beside the next forward."""
    layout, share, n = job.layout, job.program.contention, job.shape.layers
    fine, tables = gradient_bytes(job.recipe), table_parameters(job.shape, layout, 0)
    call = "reduce_scatter" if layout.zero else "all_reduce"
    adapts, body = job.recipe.adapter != "none", fine * layers_parameters(job.shape, layout.tp)
    if adapts:
        tables, body = dict.fromkeys(tables, 0), fine * job.trained_parameters()
    count = buckets(job, body)
    bucket = rank.data(call, body / count)
    head = fine * (tables["head"] + tables["norm"])
    sent = (count - adapts) * bucket + (rank.data(call, head) if head else 0.0)
    table = bucket if adapts else rank.data(call, fine * (tables["tokens"] + tables["positions"]))
    backward = n * work[0].backward_seconds
    computed = backward + share * min(sent, backward / (1 - share)) + work[1].backward_seconds
    exposed = max(sent, computed) + table - backward - work[1].backward_seconds
    exposed *= layout.m if layout.zero == 2 else 1
    if not layout.zero:
        return exposed
    forward = n * work[0].forward_seconds + work[1].forward_seconds + work[2].forward_seconds
    return exposed + exchange.weights(job, rank, forward)[0]


def buckets(job: Job, body: float) -> float:
    """Buckets of the blocks' gradients, `body` bytes: one is filled, matrix by matrix, until it has its size."""
    cap, _ = exchange.bucket_bytes(job)
    elements = layer_elements(job.shape, job.layout.tp)
    if job.recipe.adapter != "none":
        elements = exchange.trained_elements(job.shape, job.layout.tp, job.recipe, "")
    sizes = [gradient_bytes(job.recipe) * count for count in elements.values() if count]
    block = body / job.shape.layers
    if cap >= block:
        matrix = block / len(sizes)
        return max(1.0, body / (ceil(cap / matrix) * matrix))
    full, filled = 0, 0.0
    for size in reversed(sizes):
        filled += size
        if filled >= cap:
            full, filled = full + 1, 0.0
    return job.shape.layers * (full + filled / cap)
