"""Seconds of a step whose linear layers compute in FP8: only their matrix multiplications get faster, and the rest of
the step stays.

The share of a bf16 step that they take is what `timing.job` says of the blocks' matrices; attention's core, the head,
norms, casts to 16 bits, the optimizer and communication are the rest (Amdahl).
"""

from __future__ import annotations

from scaleout.timing.job import Step

# How many times as fast a linear layer's matrix multiplications are in FP8 as in bf16, casts and scales counted, on
# hardware whose peak is twice as high. Fitted once, to five steps of Llama 3.1 8B on H100 (tests/published/fp8.json).
FASTER = 1.64


def linear_share(step: Step) -> float:
    """Share of a step in 16 bits that the matrix multiplications of the blocks' linear layers take, on the mean rank of
    a pipeline. Recomputed ones count too."""
    job, block = step.job, step.work[0]
    passes = job.layout.m * job.shape.layers / job.layout.pp
    return passes * (block.forward.matmul + block.backward.matmul) / step.seconds


def fp8_seconds(step: Step) -> float:
    """Seconds in FP8 of a step in 16 bits. Raises ValueError for a device without FP8."""
    if not step.job.device.fp8_flop_per_s:
        raise ValueError(f"{step.job.device.name} has no FP8: use an H100 or a newer one")
    share = linear_share(step)
    return step.seconds * (1 - share + share / FASTER)
