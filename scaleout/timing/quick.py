"""A job's seconds by closed forms, for searches that price thousands of layouts; `timing.job` has every event.

What many layouts share, a block's seconds above all, is worked out once. A pipeline's busiest rank works without a
pause; before its first and after its last action a micro-batch goes once through the others' first chunks. What
replicas send without a pipeline is a queue of equal messages beside the backward, or beside each block. That is within
TOLERANCE of `timing.job` (tests/timing/test_quick.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, fsum
from typing import NamedTuple

from scaleout.collectives.job import hop_bytes
from scaleout.memory.mesh_peaks import End, ends_of, peaks
from scaleout.spec import mesh
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.replicas import Replicas
from scaleout.spec.slices import block_parameters, slice_linears, table_parameters
from scaleout.timing import compute, exchange, machine, pipeline_exchange
from scaleout.timing.compute import Work
from scaleout.timing.job import PARTS, action_seconds, beside, straggling, tied_seconds, update_seconds
from scaleout.timing.machine import Machine

RECOMPUTE = ("none", "selective", "full")
TOLERANCE = 0.03  # of a step's seconds, on layouts that a search finds
USUAL = Replicas()


class Cut(NamedTuple):
    """Blocks of each stage; the ranks of the pipeline that may hold most; blocks of the first lap. ranks: of those that
    may be the busiest, (blocks, blocks of the first chunk, whether the embedding is there, whether the head is)."""

    each: tuple[int, ...]
    ends: tuple[End, ...]
    lap: int
    ranks: tuple[tuple[int, int, bool, bool], ...]


@dataclass(frozen=True, eq=False)
class Way:
    """A job with a layout and a micro-batch, whatever is recomputed. held: parameters on each of the cut's ends."""

    job: Job
    on: Machine
    cut: Cut
    held: tuple[int, ...]
    groups: tuple


class Pricer:
    """Prices layouts of one job; what several of them share is worked out once."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.recipes = {how: replace(job.recipe, checkpointing=how) for how in RECOMPUTE}
        self.peaks = peaks(job.shape, job.seq, job.context, self.recipes["none"])
        self.works: dict[tuple, tuple[Work, Work, Work]] = {}
        self.machines: dict[tuple, tuple[Machine, tuple]] = {}
        self.cuts: dict[tuple, Cut] = {}
        self.jitter = straggling(job)

    def way(self, layout: Layout, batch: int) -> Way:
        """ValueError for a layout that cannot be."""
        job = replace(self.job, layout=layout, batch=batch, recipe=self.recipes["none"], blocks=None)
        on, groups = self._machine(job)
        cut = self._cut(job)
        return Way(job, on, cut, tuple(self.peaks.parameters(layout, end) for end in cut.ends), groups)

    def peak(self, way: Way, checkpointing: str) -> int:
        """Bytes of the fullest rank."""
        return self.peaks.peak(way.job.batch, self.recipes[checkpointing], way.job.layout, way.cut.ends)[0]

    def seconds(self, way: Way, checkpointing: str) -> float:
        return fsum(self.parts(way, checkpointing).values())

    def parts(self, way: Way, checkpointing: str) -> dict[str, float]:
        """The parts of a step (`timing.job.PARTS`)."""
        job, layout, work = way.job, way.job.layout, self._work(way, checkpointing)
        p, m, v = layout.pp, layout.m, layout.chunks
        block, first, last = (one.seconds for one in work)
        mean = (job.shape.layers * block + first + last) / p
        busiest, fill = in_line(way, work)
        rest = {name: m / p * seconds for name, seconds in beside(work, job.shape.layers).items()}
        actions = m * action_seconds(job)
        hop = way.on.hop(hop_bytes(job)) if p > 1 else 0.0
        parts = {
            "compute": m * mean - fsum(rest.values()),
            **rest,
            "imbalance": m * (busiest - mean) - actions,
            "bubble": fill,
            "hops": actions + 2 * (p * v - 1) * hop + tied_seconds(job, way.on),
            "exposed data": self._data(way, work),
            "update": update_seconds(job, way.on, max(way.held)),
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
            return pipeline_exchange.seconds(job, way.on, way.held[0], forward, backward)[0]
        if job.replicas != USUAL:
            return exchange.schedule(job, way.on, work).exposed
        return sharded(job, way.on, work) if job.sharded else bucketed(job, way.on, work)

    def _machine(self, job: Job) -> tuple[Machine, tuple]:
        """A rank, and the groups and the wire on which a block's seconds depend."""
        at = job.layout
        key = at.dp, at.cp, at.tp, at.pp
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
            each = job.stages
            inside = max(range(1, p - 1), key=lambda rank: sum(each[rank::p]), default=0)
            ranks = [(sum(each[rank::p]), each[rank], rank == 0, rank == p - 1) for rank in sorted({0, inside, p - 1})]
            self.cuts[key] = Cut(each, ends_of(job.layout, each), sum(each[:p]), tuple(ranks))
        return self.cuts[key]

    def _work(self, way: Way, checkpointing: str) -> tuple[Work, Work, Work]:
        job, on = way.job, way.on
        key = job.layout.tp, job.layout.cp, job.batch, checkpointing, job.sharded, way.groups
        if key not in self.works:
            job = replace(job, recipe=self.recipes[checkpointing])
            self.works[key] = compute.block(job, on), *compute.ends(job, on)
        return self.works[key]


def in_line(way: Way, work: tuple[Work, Work, Work]) -> tuple[float, float]:
    """Seconds of a micro-batch on the busiest rank, and of the first one's way to it and the last one's from it."""
    layout, cut, actions = way.job.layout, way.cut, action_seconds(way.job)
    block, first, last = (one.seconds for one in work)
    ends, each = layout.chunks == 1, actions / layout.chunks
    busiest, own = max(
        (n * block + table * first + head * last + actions, lap * block + table * first + head * last * ends + each)
        for n, lap, table, head in cut.ranks
    )
    return busiest, cut.lap * block + first + last * ends + layout.pp * each - own


# --- replicas without a pipeline ------------------------------------------------------------------------------------


def sharded(job: Job, on: Machine, work: tuple[Work, Work, Work]) -> float:
    """`fully_shard` by blocks: in each, one takes as long as the other. What is exposed are the first gathers, the last
    scatter, and copies."""
    block, _, _ = work
    n, share = job.shape.layers, job.program.contention
    wide, fine = job.recipe.width("compute"), job.recipe.gradient_bytes
    own = block_parameters(job.shape, job.layout.tp)
    rest = job.rank_parameters() - n * own
    gather, scatter = on.shards("all_gather", own * wide), on.shards("reduce_scatter", own * fine)
    moved = on.rates.moved
    forward = block.forward_seconds + 2 * moved(own * wide)
    backward = block.backward_seconds + 3 * moved(own * wide) + moved(own * fine)
    sent = gather + scatter
    late = n * (max(forward + share * gather, gather) - block.forward_seconds)
    late += n * (max(backward + share * sent, sent) - block.backward_seconds)
    late += on.shards("all_gather", rest * wide) + gather + on.shards("reduce_scatter", rest * fine)
    return job.layout.m * (late + 3 * moved(rest * wide) + moved(rest * fine))


def bucketed(job: Job, on: Machine, work: tuple[Work, Work, Work]) -> float:
    """ZeRO 0 to 2: buckets of gradients beside the last backward; the new weights beside the next forward."""
    layout, share, n = job.layout, job.program.contention, job.shape.layers
    fine, tables = job.recipe.gradient_bytes, table_parameters(job.shape, layout, 0)
    call = "reduce_scatter" if layout.zero else "all_reduce"
    body = fine * n * block_parameters(job.shape, layout.tp)
    count = buckets(job, body)
    each = on.data(call, body / count)
    head = fine * (tables["head"] + tables["norm"])
    sent = count * each + (on.data(call, head) if head else 0.0)
    table = on.data(call, fine * (tables["tokens"] + tables["positions"]))
    backward = n * work[0].backward_seconds
    done = backward + share * min(sent, backward / (1 - share)) + work[1].backward_seconds
    late = max(sent, done) + table - backward - work[1].backward_seconds
    late *= layout.m if layout.zero == 2 else 1
    if not layout.zero:
        return late
    forward = n * work[0].forward_seconds + work[1].forward_seconds + work[2].forward_seconds
    return late + exchange.weights(job, on, forward)[0]


def buckets(job: Job, body: float) -> float:
    """Buckets of the blocks' gradients, `body` bytes: one is filled, matrix by matrix, until it has its size."""
    cap, _ = exchange.bucket_bytes(job)
    sizes = [
        rows * columns * job.recipe.gradient_bytes for rows, columns in slice_linears(job.shape, job.layout.tp).values()
    ]
    whole = body / job.shape.layers
    if cap >= whole:
        matrix = whole / len(sizes)
        return max(1.0, body / (ceil(cap / matrix) * matrix))
    full, held = 0, 0.0
    for size in reversed(sizes):
        held += size
        if held >= cap:
            full, held = full + 1, 0.0
    return job.shape.layers * (full + held / cap)
