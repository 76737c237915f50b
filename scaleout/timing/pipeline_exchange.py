"""Communication of a pipeline's first rank with its replicas, by closed formulas, and the exposed part of it.

Gradients of a chunk are complete with its last micro-batch's backward; new weights are needed with the first one's
forward. In between lie the other chunks' micro-batches, so that an interleaved pipeline hides more of it. The first
rank of a pipeline begins first and is done last, so that it is its messages which show. A bucket goes when its last
gradient is there and the one before it is through: what the last one takes is always exposed.
"""

from __future__ import annotations

from math import ceil, fsum
from typing import NamedTuple

from scaleout.collectives.job import replica_collectives
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.timing.machine import Machine

# Parameters of a bucket: at least so many, and so many for each replica, since each call's latency grows with them
# (Megatron-LM, megatron/core/distributed/distributed_data_parallel_config.py: max(40000000, 1000000 * dp_size)).
BUCKET, BUCKET_OF_REPLICA = 40_000_000, 1_000_000


class Calls(NamedTuple):
    """Collectives of a rank: `passes` times in a step `pieces` for each of its chunks, of `seconds` each."""

    passes: int
    pieces: int
    seconds: float

    def total_seconds(self, chunks: int) -> float:
        """Seconds of all of them."""
        return self.passes * self.pieces * chunks * self.seconds


def bucket_parameters(replicas: int) -> int:
    """Parameters of a bucket of Megatron-LM's."""
    return max(BUCKET, BUCKET_OF_REPLICA * replicas)


def collectives(job: Job, rank: Machine, parameters: int) -> list[Calls]:
    """Those of `collectives.job`, of gradients and of weights, of a rank with so many parameters: in buckets, or block
    by block where units of weights are gathered."""
    chunks, bucket = job.layout.chunks, bucket_parameters(job.layout.replicas)
    pieces = max(job.stages) if job.sharded else max(1, ceil(parameters / chunks / bucket))
    return [
        Calls(message.count, pieces, rank.data(message.collective, message.size / chunks / pieces))
        for message in replica_collectives(job, parameters)
    ]


def seconds(job: Job, rank: Machine, parameters: int, forward: float, backward: float) -> tuple[float, float]:
    """(exposed, with what hidden communication takes from compute; all of it) in a step of the pipeline's first rank,
    which has so many parameters. forward, backward: its seconds of one micro-batch."""
    layout = job.layout
    if layout.replicas == 1:
        return 0.0, 0.0
    sent = collectives(job, rank, parameters)
    if not job.overlap:
        forward = backward = 0.0
    if layout.zero == 3:
        scatters, gathers = sent
        exposed = exposed_by_blocks(layout, scatters, gathers, forward, backward)
    else:  # weights, where there are any, go before a forward
        pairs = zip(sent, (backward, forward), strict=False)
        exposed = fsum(calls.passes * tail(layout, calls, compute) for calls, compute in pairs)
    total = fsum(calls.total_seconds(layout.chunks) for calls in sent)
    return exposed + job.program.contention * max(0.0, total - exposed), max(total, exposed)


def tail(layout: Layout, calls: Calls, compute: float) -> float:
    """Seconds until the last of a pass's messages is through, after the compute beside which they go is done. A step
    of one pass has the chunks' last micro-batches, in rounds; one that reduces at each micro-batch, that one's compute.

    compute: seconds of a micro-batch on the rank, of all its chunks. New weights before a forward are the same, read
    backwards. A queue is through when the last that had to wait for no other is, with all behind it; when a message is
    ready grows evenly along a chunk and from chunk to chunk, so that it is one of four.
    """
    v, p, pieces = layout.chunks, min(layout.pp, layout.m) if calls.passes == 1 else 1, calls.pieces
    chunk = compute / v
    delays = [
        (remaining * pieces + pieces - piece) * calls.seconds
        - remaining * p * chunk
        - chunk * (pieces - 1 - piece) / pieces
        for remaining in {0, v - 1}
        for piece in {0, pieces - 1}  # remaining: chunks whose backward is still to come
    ]
    return max(0.0, *delays)


def exposed_by_blocks(layout: Layout, scatters: Calls, gathers: Calls, forward: float, backward: float) -> float:
    """Stage 3's exposed seconds: each micro-batch gathers per block while another computes, forward and backward, and
    scatters it after its backward."""
    pieces = scatters.pieces * layout.chunks
    gather, scatter = gathers.seconds, scatters.seconds
    forward_exposed = gather + (pieces - 1) * max(0.0, gather - forward / pieces)
    backward_exposed = gather + scatter + (pieces - 1) * max(0.0, gather + scatter - backward / pieces)
    return layout.m * (forward_exposed + backward_exposed) - (layout.m - 1) * 2 * gather
