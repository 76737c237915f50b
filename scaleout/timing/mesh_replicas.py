"""What replicas of the weights send in a step, bucket by bucket, and what of it no compute hides.

Gradients of a chunk are complete with its last micro-batch's backward; new weights are needed with the first one's
forward. In between lie the other chunks' micro-batches, so that an interleaved pipeline hides more of it. The first
rank of a pipeline begins first and is done last, so that it is its messages which show. A bucket goes when its last
gradient is there and the one before it is through: what the last one takes is always exposed.
"""

from __future__ import annotations

from math import ceil

from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.timing.machine import Price

# Parameters of a bucket: at least so many, and so many for each replica, since each call's latency grows with them
# (Megatron-LM, megatron/core/distributed/distributed_data_parallel_config.py: max(40000000, 1000000 * dp_size)).
BUCKET, BUCKET_OF_REPLICA = 40_000_000, 1_000_000


def exposed(
    n: int, layout: Layout, recipe: Recipe, price: Price, forward: float, backward: float, blocks: int,
    hide: bool = True,
) -> float:  # fmt: skip
    """Exposed seconds of a step, of a rank with n parameters whose forward and backward of one micro-batch take so
    long. blocks: of a chunk; stage 3 gathers a block while another computes. hide: beside compute.

    Stage 0 reduces gradients to all, stage 1 scatters them and gathers the new weights, stage 2 scatters them with
    every micro-batch, stage 3 gathers weights before each forward and each backward too.
    """
    if layout.replicas == 1:
        return 0.0
    forward, backward = (forward, backward) if hide else (0.0, 0.0)
    fine, wide = n * recipe.gradient_bytes, n * recipe.width("compute")
    if layout.zero == 3:
        return _sharded(wide, fine, layout, price, forward, backward, blocks)
    pieces = max(1, ceil(n / layout.chunks / bucket(layout.replicas)))
    call = "reduce_scatter" if layout.zero else "all_reduce"
    late = late_seconds(fine, call, layout, price, backward, pieces)
    if layout.zero == 2:
        late *= layout.m
    return late + (late_seconds(wide, "all_gather", layout, price, forward, pieces) if layout.zero else 0.0)


def bucket(replicas: int) -> int:
    """Parameters of a bucket."""
    return max(BUCKET, BUCKET_OF_REPLICA * replicas)


def late_seconds(size: float, call: str, layout: Layout, price: Price, compute: float, pieces: int) -> float:
    """When the last of a rank's messages is through, after the compute beside which they go is done.

    compute: seconds of a micro-batch on the rank, of all its chunks. pieces: messages of a chunk. New weights before a
    forward are the same, read backwards. A queue is through when the last that had to wait for no other is, with all
    behind it; when a message is ready grows evenly along a chunk and from chunk to chunk, so that it is one of four.
    """
    v, p = layout.chunks, min(layout.pp, layout.m)
    each, chunk = price(call, size / v / pieces), compute / v
    through = [
        (left * pieces + pieces - piece) * each - left * p * chunk - chunk * (pieces - 1 - piece) / pieces
        for left in {0, v - 1} for piece in {0, pieces - 1}  # left: chunks whose backward is still to come
    ]  # fmt: skip
    return max(0.0, *through)


def _sharded(
    wide: float, fine: float, layout: Layout, price: Price, forward: float, backward: float, blocks: int
) -> float:
    """Stage 3: for each micro-batch gathers before forward and backward, and scatters after it, block by block."""
    pieces = max(1, blocks * layout.chunks)
    gather, scatter = price("all_gather", wide / pieces), price("reduce_scatter", fine / pieces)
    ahead = gather + (pieces - 1) * max(0.0, gather - forward / pieces)
    behind = gather + scatter + (pieces - 1) * max(0.0, gather + scatter - backward / pieces)
    return layout.m * (ahead + behind) - (layout.m - 1) * 2 * gather
