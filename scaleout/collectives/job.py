"""Communication of a job in a step: the collectives on each axis of its layout, their number, sizes and links."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, fsum

from scaleout.collectives import tensor, vocabulary
from scaleout.collectives.alpha_beta import bus_factor
from scaleout.collectives.placements import Move
from scaleout.spec import checks, mesh
from scaleout.spec.adapters import gradient_bytes
from scaleout.spec.blocks import dense
from scaleout.spec.job import Job
from scaleout.spec.layout import keeps_keys
from scaleout.spec.pipeline import stages_of


@dataclass(frozen=True)
class Sent:
    """`count` collectives of `size` bytes each, as nccl-tests counts them, among `ranks`; "send" is a message to a
    neighbour. carries: what it is."""

    collective: str
    carries: str
    ranks: int
    count: int
    size: float

    @property
    def bytes(self) -> float:
        """Bytes that a rank sends in the step; it receives as many."""
        share = 1.0 if self.collective == "send" else bus_factor(self.collective, self.ranks)
        return self.count * self.size * share


@dataclass(frozen=True)
class Traffic:
    """Along one axis, of one rank in one step. crossing: whether groups lie on several nodes; bytes_per_s: of the
    slowest wire between two neighbours, by the datasheet."""

    axis: str
    ranks: int
    sent: tuple[Sent, ...]
    crossing: bool
    bytes_per_s: float

    @cached_property
    def bytes(self) -> float:
        return fsum(message.bytes for message in self.sent)

    @property
    def messages(self) -> int:
        return sum(message.count for message in self.sent)


def traffic(job: Job, rank: int | None = None) -> dict[str, Traffic]:
    """By axis, in the order of the grid; of a rank of the pipeline (None: the one in the middle).

    Replicas are one group of dp x cp ranks: what they exchange stands under dp, or under cp where there is no dp; each
    of their collectives is one here, which a program cuts into buckets or units. ValueError for a rank that is not
    there.
    """
    checks.instance("job", job, Job)
    layout = job.layout
    rank = layout.pp // 2 if rank is None else rank
    blocks = sum(job.rank_stages(rank))
    messages = {"tp": _tensor(job, rank, blocks), "cp": _context(job, blocks), "dp": (), "pp": _hops(job, rank)}
    replica_axis = "dp" if layout.dp > 1 else "cp"
    messages[replica_axis] += replica_collectives(job, job.rank_parameters(rank), rank)
    return {
        axis: Traffic(
            axis,
            job.grid.size(axis),
            tuple(messages[axis]),
            mesh.crosses(job.cluster, job.grid, axis),
            mesh.link(job.cluster, job.grid, axis).bytes_per_s,
        )
        for axis in job.grid.names
    }


def cut(job: Job) -> dict:
    """Options of `tensor.block` and `vocabulary.ends` for a job."""
    return {
        "sequence_parallel": job.layout.sequence_parallel,
        "width": job.recipe.width("compute"),
        "stream": job.stream_bytes,
        "gather_again": job.layout.gather_again,
    }


def block_of(job: Job) -> tensor.Block:
    """A block of one micro-batch on one rank; of a model with experts or latent attention, of the dense model with the
    same activations (`blocks.dense`), whose matrices are others. Attention and MLP side by side have one sum, and where
    they share a norm, one input."""
    found = tensor.block(dense(job.shape), job.batch, job.seq // job.layout.cp, job.layout.tp, **cut(job))
    features = job.shape.features
    if not features.parallel:
        return found
    left_out = {("attention", "out of")} | ({("mlp", "into")} if features.norms == "shared" else set())
    return replace(found, joins=tuple(join for join in found.joins if (join.half, join.at) not in left_out))


def ends_of(job: Job) -> vocabulary.Ends:
    """The two ends of the model in one micro-batch on one rank."""
    return vocabulary.ends(job.shape, job.batch, job.seq // job.layout.cp, job.layout.tp, **cut(job))


def _tensor(job: Job, rank: int, blocks: int) -> tuple[Sent, ...]:
    if job.layout.tp == 1:
        return ()
    block, model_ends, m = block_of(job), ends_of(job), job.layout.m
    parts = ["embedding"] * (rank == 0) + ["head", "loss"] * (rank == job.layout.last_rank)
    forwards = 1 + (job.recipe.checkpointing == "full")
    ends = [move for phase in (model_ends.forward, model_ends.backward) for part in parts for move in phase[part]]
    once = [
        Move("all_reduce", size, ranks, ("gradients of copies",))
        for ranks, size in vocabulary.sums(block, model_ends, blocks).items()
    ]
    return (
        *_counted(block.moves("forward"), "activations", forwards * m * blocks),
        *_counted(block.moves("backward"), "gradients of activations", m * blocks),
        *_counted(ends, "ends of the model", m),
        *_counted(once, "gradients of copies", 1),
    )


def _counted(moves: Iterable[Move], carries: str, times: int) -> list[Sent]:
    return [Sent(move.collective, carries, move.ranks, times, move.size) for move in moves if move.ranks > 1]


def _context(job: Job, blocks: int) -> tuple[Sent, ...]:
    """Keys and values forward, once more where they are recomputed, and in the backward with their gradients. Those
    that are kept from the forward are gathered again with the whole block only."""
    cp, m = job.layout.cp, job.layout.m
    if cp == 1:
        return ()
    keys_values = 2 * next(activation.bytes for activation in block_of(job).tensors if activation.name == "k")
    kept = keeps_keys(job.layout, job.context)
    passes = 3 - kept + (job.recipe.checkpointing not in ("none", "selective" if kept else ""))
    if job.context == "ring":
        return (Sent("send", "keys and values", cp, m * blocks * passes * (cp - 1), keys_values),)
    return (
        Sent("all_gather", "keys and values", cp, m * blocks * (passes - 1), cp * keys_values),
        Sent("reduce_scatter", "their gradients", cp, m * blocks, cp * keys_values),
    )


def hop_bytes(job: Job) -> float:
    """A message from stage to stage: the residual stream, of which sequence parallelism has a part on each rank."""
    size = job.tokens * job.shape.hidden * job.stream_bytes
    return size / job.layout.tp if job.layout.sequence_parallel else size


def tied_bytes(job: Job) -> float:
    """Gradients of a tied embedding, which the pipeline's first and last rank both have and add up once a step; 0 where
    one rank has both ends (Megatron-LM, core/distributed/finalize_model_grads.py)."""
    if job.layout.pp == 1 or not job.shape.tied_head or job.layout.last_rank == 0:
        return 0.0
    return ceil(job.shape.vocab / job.layout.tp) * job.shape.hidden * job.recipe.gradient_bytes


def _hops(job: Job, rank: int) -> tuple[Sent, ...]:
    layout = job.layout
    if layout.pp == 1:
        return ()
    stages = stages_of(layout.schedule, rank, layout.pp, layout.chunks)
    count = layout.m * sum((stage > 0) + (stage < layout.stages - 1) for stage in stages)
    messages: tuple[Sent, ...] = (Sent("send", "activations and their gradients", 2, count, hop_bytes(job)),)
    if rank in (0, layout.last_rank) and tied_bytes(job):
        messages += (Sent("all_reduce", "gradients of the tied embedding", 2, 1, tied_bytes(job)),)
    return messages


def replica_collectives(job: Job, parameters: int, rank: int = 0) -> tuple[Sent, ...]:
    """What DDP and ZeRO exchange: collectives of gradients, then of weights, each of all of a rank's parameters; under
    adapters of their gradients and, but where all weights are sharded, of their weights. rank: of the pipeline."""
    layout, replicas = job.layout, job.replicas
    if layout.replicas == 1:
        return ()
    adapts = job.recipe.adapter != "none"
    trained = job.trained_parameters(rank) if adapts else parameters
    gradients = trained * gradient_bytes(job.recipe)
    weights: float = trained * job.recipe.width("compute")
    if adapts and job.sharded:
        weights += job.weight_bytes(parameters, sum(job.rank_stages(rank)))
    ranks, m = job.shards, layout.m
    reductions = m if (layout.zero >= 2 if replicas.every_pass is None else replicas.every_pass) else 1
    if not layout.zero:
        return (Sent("all_reduce", "gradients", layout.replicas, reductions, gradients / replicas.compression),)
    gathers = m * (2 if replicas.reshard is True else 1) if job.sharded else 1
    messages: tuple[Sent, ...] = (
        Sent("reduce_scatter", "gradients", ranks, reductions, gradients),
        Sent("all_gather", "weights", ranks, gathers, weights),
    )
    if job.sharded and isinstance(replicas.reshard, int) and not isinstance(replicas.reshard, bool):
        messages += (Sent("all_gather", "weights again", replicas.reshard, m, weights),)
    if ranks < layout.replicas:
        messages += (Sent("all_reduce", "gradients", layout.replicas // ranks, reductions, gradients / ranks),)
    return messages
