"""Jobs that are impossible: each refusal is one line, and the job that it suggests is accepted.

A job has been checked when it is made (`spec.job`); what is priced of it, `memory`, `collectives` and `timing` take as
it is. `Recipe`, `Layout`, `Cluster` and `Replicas` refuse what they cannot be by themselves.
"""

from __future__ import annotations

from typing import Any

from scaleout.spec import checks, mesh
from scaleout.spec.layout import CONTEXTS, Layout, context_share, sequence_unit
from scaleout.spec.slices import check_sequence, check_tensor
from scaleout.spec.topology import Cluster
from scaleout.spec.transformer import check_positions, check_run, check_timed

Job = Any  # of `spec.job`, which imports this module


def check(job: Job) -> None:
    """ValueError, in one line with the nearest job that works, for what cannot be."""
    check_timed(job.shape)
    _kinds(job)
    check_run(job.batch, job.seq)
    checks.one_of("context", job.context, CONTEXTS)
    checks.flag("tf32", job.tf32)
    if job.dtype == "tf32" and job.device.tf32_flop_per_s is None:
        raise ValueError(f"{job.device.name} has no tf32 unit: use tf32 False")
    mesh.grid(job.layout, job.order)
    _layout(job)
    if job.layout.cp > 1 and job.recipe.attention == "naive":
        raise ValueError("across cp ranks no rank has all scores: use attention sdpa, not naive")
    sequence(job, job.layout)
    _blocks(job)
    _replicas(job, job.layout)


def _kinds(job: Job) -> None:
    """ValueError for what is priced of usual models only."""
    features = job.shape.features
    if features.latent and job.layout.cp > 1:
        raise ValueError("context parallelism is priced with key-value heads only: use cp 1")


def _layout(job: Job) -> None:
    """Degrees that divide the model and fill the cluster."""
    layout = job.layout
    try:
        check_tensor(job.shape, layout.tp)
        mesh.refuse(job.shape, layout, job.cluster.ranks)
        mesh.filled(job.shape.layers, layout.stages)
    except ValueError as error:
        reason = _reason(error)
        near = nearest(job, layout)
        only_tp = reason.startswith(f"tp {layout.tp} ") and _words(layout, near, "cp", "pp") == ""
        raise ValueError(
            f"{reason}: the nearest that works is {near.tp if only_tp else _named(layout, near)}"
        ) from None


def sequence(job: Job, layout: Layout) -> None:
    """A length that the model has positions for, and that a layout's context and sequence parallelism can cut."""
    unit = sequence_unit(layout)
    try:
        check_positions(job.shape, job.seq)
        _, tokens = context_share(layout, job.seq)
        if layout.tp > 1 and layout.sequence_parallel:
            check_sequence(tokens, layout.tp)
    except ValueError as error:
        most = job.shape.max_seq // unit * unit if job.shape.positions == "learned" else job.seq + unit
        if not most:
            named = _named(layout, nearest(job, layout))
            raise ValueError(f"{_reason(error)}: the nearest that works is {named}") from None
        tokens, limit = max(unit, round(job.seq / unit) * unit), "at most " * (unit == 1)
        raise ValueError(f"{_reason(error)}: use {limit}{min(most, tokens):,}") from None


def _blocks(job: Job) -> None:
    if job.blocks is None:
        return
    try:
        mesh.blocks_of(job.shape, job.layout, job.blocks)
    except ValueError as error:
        raise ValueError(f"{error}: use blocks None, for as many on each") from None


def _replicas(job: Job, layout: Layout) -> None:
    replicas = job.replicas
    flat = ["shards None"] * (replicas.shards is not None)
    flat += ["reshard True"] * (not isinstance(replicas.reshard, bool)) + ["offload none"] * (
        replicas.offload != "none"
    )
    if layout.pp > 1 and flat:
        raise ValueError(
            "shards, reshard to some ranks and offload are priced without a pipeline: use "
            f"{' and '.join(flat)}, or pp 1"
        )
    if replicas.shards is not None and layout.replicas % replicas.shards:
        near = checks.nearest(replicas.shards, mesh.shard_sizes(_group(job, layout)))
        raise ValueError(f"shards must divide {layout.replicas} replicas, not {replicas.shards}: use {near}")
    if replicas.reshard is False and layout.zero == 3:
        raise ValueError("ZeRO stage 3 frees what it gathered: use zero 2 with reshard False, or reshard True")
    _offload(job, layout)
    if replicas.compression > 1 and (layout.pp > 1 or layout.zero):
        raise ValueError(
            "compressed messages are priced for whole gradients in buckets: use compression 1, or zero 0 and pp 1"
        )
    if replicas.gathers(layout):
        _sharding(job, layout)
        if not isinstance(replicas.reshard, bool):
            _placed("reshard", replicas.reshard, _group(job, layout))
    if replicas.shards is not None:
        _placed("shards", replicas.shards, _group(job, layout))


def _sharding(job: Job, layout: Layout) -> None:
    try:
        job.replicas.sharding(layout, job.recipe)
    except ValueError as error:
        raise ValueError(f"{error}: use reshard True") from None


def _group(job: Job, layout: Layout) -> Cluster:
    """The replicas of one rank's weights, as a cluster of their own."""
    return mesh.group_on(job.cluster, mesh.grid(layout, job.order), "dp", "cp")


def _offload(job: Job, layout: Layout) -> None:
    """Offload to the host and to NVMe, where a rank owns a shard of what is offloaded."""
    replicas = job.replicas
    if replicas.offload == "none" or replicas.gathers(layout):
        return
    sharded = 2 if replicas.reshard is False else 3  # the stage at which the weights' owner steps them
    if replicas.offload == "parameters":
        raise ValueError(
            f"offload of parameters needs zero {sharded}, not {layout.zero}: use zero {sharded}, or offload optimizer"
        )
    if replicas.offload_to == "nvme":
        raise ValueError(
            f"offload to NVMe needs zero {sharded}, not {layout.zero}: use zero {sharded}, or offload_to host"
        )
    if not layout.zero:
        raise ValueError("offload needs an owner for each shard: use zero 1, 2 or 3")


def _placed(name: str, ranks: int, group: Cluster) -> None:
    """Groups of so many neighbours that lie in a node or fill whole ones."""
    try:
        mesh.shard_group(group, ranks)
    except ValueError as error:
        near = checks.nearest(ranks, mesh.shard_sizes(group))
        raise ValueError(f"{_reason(error)}: use {name} {near}") from None


# --- the nearest layout that works ------------------------------------------------------------------------------------


def nearest(job: Job, layout: Layout) -> Layout:
    """The layout nearest to one that the job can have on its cluster (`mesh.nearest`)."""
    return mesh.nearest(job.shape, layout, job.cluster.ranks, lambda near: _accepted(job, near))


def _accepted(job: Job, layout: Layout) -> bool:
    """Whether the job can have a layout that fills its cluster and divides its model."""
    if job.seq % sequence_unit(layout) or (layout.cp > 1 and job.recipe.attention == "naive"):
        return False
    if job.blocks is not None and len(job.blocks) != layout.stages:
        return False
    try:
        _replicas(job, layout)
    except ValueError:
        return False
    return True


def _named(layout: Layout, near: Layout) -> str:
    """A layout by its degrees, and what else of it is another than the one that was asked for."""
    degrees = ", ".join(f"{axis} {getattr(near, axis)}" for axis in ("dp", "cp", "tp", "pp"))
    return degrees + _words(layout, near)


def _words(layout: Layout, near: Layout, *names: str) -> str:
    changed = [name for name in (*names, "chunks", "schedule") if getattr(near, name) != getattr(layout, name)]
    changed += ["micro_batches"] * (near.m != layout.m)
    return "".join(f", {name} {getattr(near, name) or near.m}" for name in changed)


def _reason(error: ValueError) -> str:
    """A refusal without what it names."""
    return str(error).partition(": ")[0]
