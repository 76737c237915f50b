"""Seconds of a step whose linear layers compute in FP8: only their matrix multiplications get faster, and the rest of
the step stays.

The share of a bf16 step that they take is what `timing.job` says of the blocks' matrices; attention's core, the head,
norms, casts to 16 bits, the optimizer and communication are the rest (Amdahl).
"""

from __future__ import annotations

from dataclasses import replace
from math import fsum

from scaleout.spec.devices import Device
from scaleout.spec.program import PROGRAMS
from scaleout.timing.job import Step
from scaleout.timing.rates import KERNEL_SECONDS, device_rates

# How many times as fast a linear layer's matrix multiplications are in FP8 as in bf16, casts and scales counted, on
# hardware whose peak is twice as high. Fitted once, to eight steps of Nemotron-4 15B on H100
# (tests/published/fp8.json).
FASTER = 1.72


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


# --- one matrix multiplication --------------------------------------------------------------------------------------

# Bytes that a fused cast to FP8 moves for each number of an operand in 16 bits: one kernel reads it for the largest
# number, the next reads it again and writes 8 bits.
CAST_BYTES, CAST_KERNELS = 2 + 2 + 1, 2
WAYS = ("bf16", "fp8", "fp8 with casts")


def matmul_seconds(device: Device, rows: int, columns: int, depth: int) -> dict[str, float]:
    """Seconds of one (rows x depth) by (depth x columns) multiplication with a result in 16 bits, by way: in bf16, in
    FP8 on operands that are cast already, and in FP8 with both casts, a scale per tensor taken anew. Raises ValueError
    for a device without FP8."""
    program = replace(PROGRAMS["compiled"], kernel_seconds=KERNEL_SECONDS)
    wide, narrow = (device_rates(device, program, dtype) for dtype in ("bf16", "fp8"))
    operands = rows * depth + depth * columns
    fp8 = max(narrow.matmul(rows, columns, depth, 1), narrow.moved(operands + 2 * rows * columns, 1))
    casts = narrow.moved(CAST_BYTES * operands, 2 * CAST_KERNELS)
    return dict(zip(WAYS, (wide.matmul(rows, columns, depth), fp8, fp8 + casts), strict=True))


def linear_seconds(device: Device, tokens: int, inputs: int, outputs: int) -> dict[str, float]:
    """The same for a linear layer, its forward and the two multiplications of its backward."""
    shapes = (tokens, outputs, inputs), (tokens, inputs, outputs), (inputs, outputs, tokens)
    each = [matmul_seconds(device, *shape) for shape in shapes]
    return {way: fsum(seconds[way] for seconds in each) for way in WAYS}
