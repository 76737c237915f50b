"""Tensor parallelism of a block: which degrees divide a shape, a rank's part of each matrix, its parameters."""

from __future__ import annotations

from math import ceil

from scaleout.spec import checks
from scaleout.spec.blocks import ROW_PARALLEL, layers_parameters
from scaleout.spec.layout import Layout
from scaleout.spec.transformer import Shape, linears, norm_parameters


def divides(shape: Shape, tp: int) -> bool:
    """Whether heads and the MLP's width fall into tp equal parts, and key-value heads into parts or whole copies."""
    return not (shape.heads % tp or any(ff % tp for ff in _widths(shape)) or (shape.kv % tp and tp % shape.kv))


def _widths(shape: Shape) -> tuple[int, ...]:
    """Widths of the MLPs of a model's layers, of an expert and of the shared ones."""
    experts = shape.features.experts
    if experts is None:
        return (shape.h_ff,)
    dense = (shape.h_ff,) * any(layer < shape.layers for layer in experts.dense)
    return (*dense, experts.ff, experts.shared_ff)


def check_tensor(shape: Shape, tp: int) -> None:
    """ValueError, in one line with the nearest degree that works, unless tp ranks can share a block of this shape."""
    checks.instance("shape", shape, Shape)
    checks.whole("tp", tp)
    if divides(shape, tp):
        return
    nearest = checks.nearest(tp, (t for t in range(1, shape.heads + 1) if divides(shape, t)))
    if shape.heads % tp:
        reason = f"does not divide {shape.heads} heads"
    elif uneven := [ff for ff in _widths(shape) if ff % tp]:
        reason = f"does not divide the MLP's width {uneven[0]}"
    else:
        reason = f"and {shape.kv} key-value heads do not divide one another"
    raise ValueError(f"tp {tp} {reason}: the nearest that works is {nearest}")


def check_vocabulary(shape: Shape, tp: int) -> None:
    """ValueError, in one line with what would work, unless the vocabulary falls into tp equal parts."""
    if shape.vocab % tp:
        nearest = checks.nearest(tp, checks.divisors(shape.vocab))
        raise ValueError(
            f"tp {tp} does not divide a vocabulary of {shape.vocab:,}: use {nearest}, or pad it to "
            f"{shape.vocab + -shape.vocab % tp:,}"
        )


def check_hidden(shape: Shape, tp: int) -> None:
    """ValueError, in one line, unless the hidden size falls into tp equal parts, as unusual cuts need it."""
    if shape.hidden % tp:
        nearest = checks.nearest(tp, checks.divisors(shape.hidden))
        raise ValueError(f"tp {tp} does not divide hidden size {shape.hidden}, which this cut needs: use {nearest}")


def check_sequence(seq: int, tp: int) -> None:
    """ValueError, in one line with the nearest length that works, unless sequence parallelism can cut seq tokens."""
    checks.whole("seq", seq)
    if seq % tp:
        nearest = max(tp, round(seq / tp) * tp)
        raise ValueError(f"tp {tp} does not divide {seq:,} tokens, which sequence parallelism cuts: use {nearest:,}")


def check_options(sequence_parallel: bool, width: int, stream: int | None, gather_again: bool) -> None:
    """ValueError, in one line, for flags that are none and for elements of no whole number of bytes."""
    checks.flag("sequence_parallel", sequence_parallel)
    checks.whole("width", width, unit=" of bytes")
    checks.whole("stream", width if stream is None else stream, unit=" of bytes")
    checks.flag("gather_again", gather_again)


def loss_chunk(tokens: int, vocab: int, hidden: int) -> int:
    """Tokens whose logits, of a vocabulary of so many, a loss in chunks has at one time, by the rule of
    torch.nn.LinearCrossEntropyOptions on a GPU: half of what makes them as large as the hidden states, rounded up to a
    power of two before it is halved."""
    share = ceil(tokens / ceil(vocab / hidden))
    return max(1, min((1 << (share - 1).bit_length()) // 2, tokens))


def slice_linears(shape: Shape, tp: int) -> dict[str, tuple[int, int]]:
    """A tensor-parallel rank's part of one block's matrices: (input width, output width) by name.

    Megatron's split (Shoeybi et al. 2019, arXiv 1909.08053): q, k, v, up and gate along the output, out and down
    along the input. With more ranks than key-value heads, a head is copied rather than cut.
    """
    sizes = {}
    for name, (a, b) in linears(shape).items():
        if name in ROW_PARALLEL:
            sizes[name] = (a // tp, b)
        elif name in ("k", "v"):
            sizes[name] = (a, max(1, shape.kv // tp) * shape.d)
        else:
            sizes[name] = (a, b // tp)
    return sizes


def block_parameters(shape: Shape, tp: int = 1) -> int:
    """Parameters of one block on one tensor-parallel rank; norms and the biases of out and down are whole. Where layers
    differ, of their mean, rounded."""
    return round(layers_parameters(shape, tp) / shape.layers)


def table_parameters(shape: Shape, layout: Layout, stage: int) -> dict[str, int]:
    """Parameters outside the blocks on a rank of this pipeline stage. Tables are split over the vocabulary."""
    first, last = stage == 0, stage == layout.last_rank
    table = ceil(shape.vocab / layout.tp) * shape.hidden
    return {
        "tokens": table if first else 0,
        "positions": shape.position_rows * shape.hidden if first else 0,
        "norm": norm_parameters(shape) if last else 0,
        "head": table if last and not (first and shape.tied_head) else 0,
    }


def stage_parameters(shape: Shape, layout: Layout, rank: int, blocks: int) -> int:
    """Parameters of a rank of the pipeline that has so many blocks, before ZeRO."""
    whole = layers_parameters(shape, layout.tp)
    return round(blocks * whole / shape.layers) + sum(table_parameters(shape, layout, rank).values())
