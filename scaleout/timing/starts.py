"""Seconds that the communication of replicas takes however few its bytes: each collective hands a first byte on, from
rank to rank of its ring or tree, before a rank has anything to work with."""

from __future__ import annotations

from collections import Counter
from math import fsum

from scaleout.collectives import nccl
from scaleout.spec import mesh
from scaleout.spec.job import Job
from scaleout.spec.sharding import alike
from scaleout.spec.topology import Cluster
from scaleout.timing.ddp import Timeline
from scaleout.timing.job import step
from scaleout.timing.machine import replica_group


def starts(job: Job) -> float:
    """Latency of all collectives of a step whose ranks are replicas: units in all passes, buckets in the last.

    ValueError, in one line, for a job with other axes."""
    if job.layout.replicas != job.layout.ranks:
        raise ValueError(f"starts are those of replicas alone: use tp 1 and pp 1, not {job.layout.tp}, {job.layout.pp}")
    if job.layout.ranks == 1:
        return 0.0
    group = mesh.group_on(job.cluster, job.grid, "dp", "cp")
    timeline = None if job.sharded else step(job).timeline
    if isinstance(timeline, Timeline):
        sizes = Counter(timeline.message_bytes)
        return fsum(times * latency("all_reduce", size, group) for size, times in sizes.items())
    return job.layout.m * _units(job, group)


def _units(job: Job, group: Cluster) -> float:
    """Seconds of latency of a pass: each unit is gathered twice, but the root once, and reduced once."""
    sharding, wide, seconds = job.sharding, job.recipe.width("compute"), 0.0
    shards, copies = mesh.shard_group(group, sharding.ranks), replica_group(group, sharding.ranks)
    for unit, times in alike(job.shape, sharding):
        size = unit.shard(sharding.ranks) * sharding.ranks
        if sharding.ranks > 1:
            gathers = 1 + bool(unit.name and sharding.reshard is not False)
            seconds += times * gathers * latency("all_gather", wide * size, shards)
            seconds += times * latency("reduce_scatter", job.recipe.gradient_bytes * size, shards)
        if sharding.replicas > 1:
            seconds += times * latency("all_reduce", job.recipe.gradient_bytes * size / sharding.ranks, copies)
    return seconds


def latency(collective: str, size: float, group: Cluster) -> float:
    """Seconds of one collective before its bytes count."""
    return nccl.price(collective, size, group).cost.latency_seconds
