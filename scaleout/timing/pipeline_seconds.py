"""Stages of a real model by its matrix multiplications alone: blocks of each, and what their actions cost."""

from __future__ import annotations

from collections.abc import Sequence

from scaleout.spec import checks, mesh
from scaleout.spec.transformer import Shape, flops
from scaleout.timing.pipeline import Costs


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


def _flops(shape: Shape, batch: int, seq: int) -> tuple[int, int]:
    """Forward FLOPs of one block and of the head."""
    head = 2 * batch * seq * shape.hidden * shape.vocab
    return (flops(shape, batch, seq)["forward"] - head) // shape.layers, head
