"""Seconds of a pipelined step of a real model: stages of blocks, the embedding and the head on the ends, hops over a
wire of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from scaleout.spec import checks, mesh
from scaleout.spec.hardware import COMPUTE_SHARE, Device
from scaleout.spec.layout import Layout
from scaleout.spec.topology import Cluster
from scaleout.spec.transformer import Shape, check_run, flops
from scaleout.timing.ddp_seconds import utilization
from scaleout.timing.pipeline import Costs, Summary, summary


@dataclass(frozen=True)
class PipelineStep:
    """One step. seconds, bubble and work are those of `step`, without the update; mfu is of all ranks' peak."""

    step: Summary
    costs: Costs
    tokens_per_second: float
    mfu: float


def blocks(layers: int, stages: int) -> tuple[int, ...]:
    """Blocks of each stage where all have as many. ValueError for layers that do not divide."""
    checks.whole("layers", layers)
    checks.whole("stages", stages)
    if layers % stages:
        near = checks.nearest(stages, checks.divisors(layers))
        raise ValueError(f"{stages} stages do not divide {layers} layers: use {near} stages, or say the blocks of each")
    return (layers // stages,) * stages


def mended(shape: Shape, stages: int, seq: int) -> tuple[int, ...]:
    """Blocks of each stage so that the slowest is as fast as can be, the head priced in blocks: each block goes to the
    stage that has least to do, the last stage begins with the head. ValueError for fewer layers than stages."""
    checks.instance("shape", shape, Shape)
    checks.whole("stages", stages)
    mesh.filled(shape.layers, stages)
    block, head = _flops(shape, 1, seq)
    out, load = [1] * stages, [block] * stages
    load[-1] += head
    for _ in range(shape.layers - stages):
        least = load.index(min(load))
        out[least] += 1
        load[least] += block
    return tuple(out)


def costs(
    shape: Shape, batch: int, seq: int, flop_per_s: float, each: Sequence[int], hop: float = 0.0,
    blocking: bool = False, checkpointing: str = "none",
) -> Costs:  # fmt: skip
    """Seconds by stage of one micro-batch of `batch` sequences, matrix products only (`transformer.flops`).

    each: the blocks of each stage. A block's input and weight gradient take as long as its forward, but for attention
    between Q, K and V: that has no weights, and all of its backward is in the input gradient. Recomputation comes
    before the input gradient. The head is on the last stage; the embedding looks up and multiplies nothing. ValueError
    where the blocks are not the model's.
    """
    checks.instance("shape", shape, Shape)
    checks.instance("each", each, Sequence)
    checks.above_0("flop_per_s", flop_per_s)
    for n in each:
        checks.whole("the blocks of a stage", n, 0)
    if sum(each) != shape.layers:
        raise ValueError(f"the stages have {sum(each)} blocks, the model {shape.layers}: make them as many")
    once = flops(shape, batch, seq, checkpointing)
    block, head = _flops(shape, batch, seq)
    core = 4 * batch * seq * seq * shape.heads * shape.d
    again = once["recompute"] / shape.layers
    last = len(each) - 1
    ends = [head if stage == last else 0 for stage in range(len(each))]
    return Costs(
        tuple((n * block + end) / flop_per_s for n, end in zip(each, ends, strict=True)),
        tuple((n * (block + core + again) + end) / flop_per_s for n, end in zip(each, ends, strict=True)),
        tuple((n * (block - core) + end) / flop_per_s for n, end in zip(each, ends, strict=True)),
        hop, blocking,
    )  # fmt: skip


def hop_bytes(shape: Shape, batch: int, seq: int, dtype_bytes: int = 2) -> int:
    """Bytes of one message: the residual stream of a micro-batch, batch x seq x hidden (arXiv 2104.04473, 3.2)."""
    checks.instance("shape", shape, Shape)
    check_run(batch, seq)
    checks.whole("dtype_bytes", dtype_bytes)
    return batch * seq * shape.hidden * dtype_bytes


def from_device(
    shape: Shape, batch: int, seq: int, layout: Layout, device: Device, cluster: Cluster, *, dtype: str = "bf16",
    each: Sequence[int] | None = None, blocking: bool = False, checkpointing: str = "none",
    efficiency: float = COMPUTE_SHARE,
) -> PipelineStep:  # fmt: skip
    """A step of layout.m micro-batches of `batch` sequences by datasheets, forward and backward.

    efficiency: the share of the device's peak that stages reach, an assumption as in `ddp_seconds.from_device`. Ranks
    of the pipeline are ranks 0 to pp - 1 of the cluster, the hop is that of the slowest wire between two neighbours.
    each: the blocks of each stage, as many on each where None. ValueError for a layout with other degrees than pp, a
    cluster of other ranks, and as `costs` does.
    """
    checks.share("efficiency", efficiency)
    if layout.ranks != layout.pp or cluster.ranks != layout.pp:
        raise ValueError(
            f"this prices the pipeline alone: use a layout and a cluster of {layout.pp} ranks, not {layout.ranks} "
            f"and {cluster.ranks}"
        )
    peak, size = device.matmul_flop_per_s(dtype), hop_bytes(shape, batch, seq)
    # From the last rank back to the first it is no further: they are on two nodes where some neighbours are.
    hop = max((cluster.wire(*pair).seconds(size) for pair in pairwise(range(layout.pp))), default=0.0)
    each = blocks(shape.layers, layout.stages) if each is None else each
    spent = costs(shape, batch, seq, peak * efficiency, each, hop, blocking, checkpointing)
    found = summary(layout.schedule, layout.pp, layout.m, layout.chunks, spent)
    work = flops(shape, batch, seq)
    model = (work["forward"] + work["backward"]) * layout.m
    return PipelineStep(
        found, spent, batch * seq * layout.m / found.seconds,
        utilization(model, found.seconds, peak * layout.pp),
    )  # fmt: skip


def _flops(shape: Shape, batch: int, seq: int) -> tuple[int, int]:
    """Forward FLOPs of one block and of the head."""
    head = 2 * batch * seq * shape.hidden * shape.vocab
    return (flops(shape, batch, seq)["forward"] - head) // shape.layers, head
