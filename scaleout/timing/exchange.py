"""Communication of the replicas of the weights in a step, overlapped with compute: a timeline without a pipeline.

A bucket of gradients and a unit of weights are the same thing: a message that is ready at a moment, needed at another,
and waits for those before it. `ddp` and `fsdp` lay both out on lanes. `pipeline_exchange` has what shows in a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from math import fsum
from typing import NamedTuple

from scaleout.spec.adapters import adapted, adapter_parameters, gradient_bytes
from scaleout.spec.blocks import kinds, layer_elements, layers_parameters
from scaleout.spec.job import Job
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding, stand_in_units, units
from scaleout.spec.slices import table_parameters
from scaleout.spec.transformer import Shape, total_parameters
from scaleout.timing import calibrated
from scaleout.timing.compute import Work
from scaleout.timing.ddp import BUCKET_CAP, FIRST_BUCKET_CAP, Layer, Layers, Timeline, ddp_step
from scaleout.timing.fsdp import FsdpTimeline, first_pass, fsdp_step, pieces
from scaleout.timing.fsdp_plan import Piece
from scaleout.timing.fsdp_short import ShortTimeline, looks_ahead, placed, steady
from scaleout.timing.machine import Machine
from scaleout.timing.pipeline_exchange import bucket_parameters


class Exchange(NamedTuple):
    """seconds: of forward, backward and what shows of the communication; exposed: of those, what shows, with what
    hidden communication takes from compute; communication: all of it; gathered: what is exposed of the new weights,
    which are gathered after the update."""

    seconds: float
    exposed: float
    communication: float
    timeline: Timeline | ShortTimeline
    gathered: float = 0.0


def layers(job: Job, work: tuple[Work, Work, Work], blocks: int | None = None) -> Layers:
    """The model matrix by matrix, in the order of the forward, with the bytes of one rank's gradients. blocks: of
    them, all where None.

    A norm's gradient goes with the matrix after it, the last norm's and the head's with the head; a tied head has none
    of its own: the embedding's is complete when the first end's backward is. Under adapters theirs are all there are.
    """
    tables = table_parameters(job.shape, job.layout, 0)
    head = tables.get("head", 0) + tables.get("norm", 0)
    ends = sum(tables.values()) - head, head
    if job.recipe.adapter != "none":
        ends = 0, 0
    return _layers(job.shape, job.layout.tp, job.recipe, work, ends, blocks or job.shape.layers)


def trained_elements(shape: Shape, tp: int, recipe: Recipe, first: str) -> dict[str, float]:
    """Parameters with a gradient of the mean layer, by matrix: its own, with norms and biases at the first one, or
    those of its adapter."""
    if recipe.adapter == "none":
        counts = {name: whole(elements) for name, elements in layer_elements(shape, tp).items()}
        counts[first] += whole(layers_parameters(shape, tp) / shape.layers) - sum(counts.values())
        return counts
    counts = dict.fromkeys(layer_elements(shape, tp), 0.0)
    for kind in kinds(shape):
        for matrix in adapted(shape, recipe, kind.experts, tp):
            share = kind.layers / shape.layers
            counts[matrix.name] += share * recipe.adapter_rank * (matrix.depth + matrix.columns)
    return counts


def whole(number: float) -> float:
    """An int where it is one."""
    return int(number) if number == int(number) else number


@lru_cache(maxsize=64)  # the same whatever the number of ranks: a curve asks for it at each
def _layers(
    shape: Shape, tp: int, recipe: Recipe, work: tuple[Work, Work, Work], ends: tuple[int, int], blocks: int
) -> Layers:
    block, first, last = work
    width, context = gradient_bytes(recipe), block.context
    counts = trained_elements(shape, tp, recipe, block.matrices[0][0])
    rows = [
        (name, forward + context[0] * (name == "v"), backward + context[1] * (name == "v"), counts[name] * width)
        for name, forward, backward in block.matrices
    ]
    model = [Layer("tokens", first.forward_seconds, first.backward_seconds, ends[0] * width)]
    model += [Layer(f"block {i} {name}", f, b, size) for i in range(blocks) for name, f, b, size in rows]
    return Layers((*model, Layer("head", last.forward_seconds, last.backward_seconds, ends[1] * width)))


def schedule(job: Job, rank: Machine, work: tuple[Work, Work, Work]) -> Exchange:
    """Without a pipeline: the whole step up to the update, on lanes."""
    block, first, last = work
    pure = job.layout.m * fsum((job.shape.layers * block.seconds, first.seconds, last.seconds))
    if rank.exchange:
        return _measured(job, rank.exchange, work)
    if job.sharded:
        short, seconds, sent = _sharded(job, rank, work)
        exposed = max(0.0, seconds - pure) if sent else 0.0  # but for rounding
        return Exchange(seconds, exposed, sent, short)
    matrices = layers(job, work)
    line = _bucketed(job, rank, matrices)
    gather, sent = weights(job, rank, fsum([matrix.forward_seconds for matrix in matrices]))
    seconds = line.seconds + gather
    exposed = max(0.0, seconds - pure) if job.layout.replicas > 1 else 0.0  # but for rounding
    return Exchange(seconds, exposed, line.communication_seconds + sent, line, gather)


def _measured(job: Job, way: calibrated.Exchange, work: tuple[Work, Work, Work]) -> Exchange:
    """On a machine where the way was measured whole: nothing overlaps with compute."""
    layout, size = job.layout, 4 * job.rank_parameters()
    line = ddp_step(layers(job, work), lambda size: 0.0, overlap=False, accumulation=layout.m)
    each = layout.zero >= 2 if job.replicas.every_pass is None else job.replicas.every_pass
    sent = way.seconds(len(units(job.shape, job.sharding)), size, layout.m, layout.m if each else 1)
    return Exchange(line.seconds + sent, sent, sent, line)


def _bucketed(job: Job, rank: Machine, matrices: tuple[Layer, ...]) -> Timeline:
    """ZeRO 0 to 2: gradients bucket by bucket, overlapped with the backward."""
    layout, replicas = job.layout, job.replicas
    collective = "reduce_scatter" if layout.zero else "all_reduce"
    cap, first = bucket_bytes(job)
    alone = layout.replicas == 1
    return ddp_step(
        matrices,
        (lambda size: 0.0) if alone else (lambda size: rank.data(collective, size)),
        cap_bytes=cap,
        first_cap_bytes=first,
        overlap=job.overlap,
        accumulation=layout.m,
        sync_every_pass=layout.zero == 2 if replicas.every_pass is None else replicas.every_pass,
        compression=replicas.compression,
        contention=0.0 if alone else min(0.99, job.program.contention),
    )


def bucket_bytes(job: Job) -> tuple[int, int]:
    """(bytes of a bucket of gradients, of the first one): those asked for, or the program's own."""
    size = job.replicas.bucket_bytes
    if size is None and not job.program.weight_overlap:
        return BUCKET_CAP, FIRST_BUCKET_CAP
    if size is None:  # Megatron's
        size = bucket_parameters(job.layout.replicas) * job.recipe.gradient_bytes
    return size, size


def weights(job: Job, rank: Machine, forward: float) -> tuple[float, float]:
    """ZeRO 1 and 2: seconds in which the new weights are gathered after the update, beside `forward` seconds of the
    next forward where the program overlaps the two: (exposed, all of them)."""
    if not job.layout.zero or job.layout.replicas == 1:
        return 0.0, 0.0
    seconds = rank.data("all_gather", job.trained_parameters() * job.recipe.width("compute"))
    if not job.program.weight_overlap:
        return seconds, seconds
    return seconds - (1 - job.program.contention) * min(seconds, forward), seconds


def _sharded(job: Job, rank: Machine, work: tuple[Work, Work, Work]) -> tuple[ShortTimeline, float, float]:
    """Units of weights that are gathered where they are needed, and their gradients scattered (torch's
    `fully_shard`): (the last pass, seconds of all passes, of all communication)."""
    m, sync = job.layout.m, job.replicas.every_pass is not False
    last = shortened(job, rank, work)
    silent = last if sync or m == 1 else shortened(job, rank, work, sync=False)
    seconds = (m - 1) * silent.seconds + last.seconds
    return last, seconds, (m - 1) * silent.communication_seconds + last.communication_seconds


def shortened(job: Job, rank: Machine, work: tuple[Work, Work, Work], sync: bool = True) -> ShortTimeline:
    """One pass under `fully_shard`, of as few blocks as show what the others do. sync: gradients are scattered."""
    sharding = job.sharding
    by_blocks, window = looks_ahead(job.shape, sharding)
    blocks = 2 * window + 6  # with two fewer what contention shifts is seldom steady yet
    while by_blocks and 2 * blocks <= job.shape.layers:
        line = one_pass(job, rank, work, sharding, blocks, blocks // 2, sync)
        spans = placed(line)
        if shifts := steady(spans, blocks // 2, window):
            return ShortTimeline(line, spans, blocks // 2, job.shape.layers - blocks, *shifts)
        blocks *= 3
    line = one_pass(job, rank, work, sharding, job.shape.layers, 0, sync)
    return ShortTimeline(line, placed(line))


def one_pass(
    job: Job,
    rank: Machine,
    work: tuple[Work, Work, Work],
    sharding: Sharding,
    blocks: int,
    middle: int = 0,
    sync: bool = True,
) -> FsdpTimeline:
    """The schedule of so many blocks, with the messages of the whole model."""
    replicas, disk = job.replicas, job.replicas.offload_to == "nvme"
    share = job.rank_parameters() / total_parameters(job.shape) if job.layout.tp > 1 else 1.0
    cut, _ = stand_in_units(job.shape, sharding, blocks, middle)
    adapters = adapter_shares(job)
    copies = partial(copied, rank.rates.moved, replicas.reshard is not False, share, adapters)
    whole = pieces(layers(job, work, blocks), cut, sharding, job.recipe.checkpointing, copies)
    line = fsdp_step(
        with_adapters(whole, adapters),
        lambda size: rank.shards("all_gather", share * size),
        lambda size: rank.shards("reduce_scatter", share * size),
        reshard=replicas.reshard,
        prefetch=replicas.prefetch,
        backward_prefetch=replicas.backward_prefetch,
        overlap=job.overlap,
        accumulation=1 if sync else 2,
        sync_every_pass=sync,
        reduce_across=(lambda size: rank.copies("all_reduce", share * size)) if sharding.replicas > 1 else None,
        copy_seconds=(lambda size: rank.copied(share * size, disk)) if replicas.offload == "parameters" else None,
        regather_seconds=lambda size: rank.keepers("all_gather", share * size),
        contention=min(0.99, job.program.contention),
    )
    return line if sync else first_pass(line)


def copied(
    moved: Callable[[float], float],
    twice: bool,
    share: float,
    adapters: tuple[float, float] | None,
    name: str,
    gather_bytes: float,
    reduce_bytes: float,
) -> tuple[float, float]:
    """FSDP's own copies, in forward and in backward: a gathered unit is read and written once more, from the message
    into the parameters, and a gradient on its way into the reduce-scatter. moved: seconds by bytes of memory; twice:
    units but the root are gathered in the backward too; share: of the bytes that is on this rank; adapters: as
    `adapter_shares` has them."""
    gathering, reducing = of_unit(adapters, name)
    gathered, reduced = moved(share * gathering * gather_bytes), moved(share * reducing * reduce_bytes)
    return 2 * gathered, (3 if twice and name else 1) * gathered + reduced


def adapter_shares(job: Job) -> tuple[float, float] | None:
    """A block's bytes that are gathered and that are reduced, relative to a block that is trained whole: its weights as
    they are stored with those of its adapters, and the gradients of these alone. None where there are no adapters."""
    if job.recipe.adapter == "none":
        return None
    shape, tp, width = job.shape, job.layout.tp, job.recipe.width("compute")
    layer, added = layers_parameters(shape, tp) / shape.layers, adapter_parameters(shape, job.recipe, tp)
    return (job.weight_bytes(layer, 1) / width + added) / layer, added / layer


def of_unit(adapters: tuple[float, float] | None, name: str) -> tuple[float, float]:
    """The same of a unit: the root, which has no name, is gathered whole and has no gradient."""
    if adapters is None:
        return 1.0, 1.0
    return adapters if name else (1.0, 0.0)


def with_adapters(units: tuple[Piece, ...], adapters: tuple[float, float] | None) -> tuple[Piece, ...]:
    """Units whose weights are gathered with those of their adapters, and of which these alone have gradients."""
    if adapters is None:
        return units
    shares = {piece.name: of_unit(adapters, piece.name) for piece in units}
    return tuple(
        replace(
            piece,
            gather_bytes=shares[piece.name][0] * piece.gather_bytes,
            reduce_bytes=shares[piece.name][1] * piece.reduce_bytes,
            shard_bytes=shares[piece.name][1] * piece.shard_bytes,
            host_bytes=shares[piece.name][0] * piece.host_bytes,
        )
        for piece in units
    )
