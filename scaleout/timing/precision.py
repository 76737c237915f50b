"""Seconds of a step whose linear layers compute in FP8: only their products get faster, and the rest of the step stays.

The share of a bf16 step that they take is their part of its FLOPs at the rate that products reach
(`hardware.product_share`); attention's core, the head, norms, casts to 16 bits, the optimizer and what is sent are the
rest (Amdahl).
"""

from __future__ import annotations

from scaleout.spec import checks
from scaleout.spec.hardware import Device, product_share
from scaleout.spec.transformer import Shape, flops, linears

# How many times as fast a linear layer's products are in FP8 as in bf16, casts and scales counted, on hardware whose
# peak is twice as high. Fitted once, to the five steps of Llama 3.1 8B from which the H100's product share was made
# (tests/published/fp8.json).
FASTER = 1.53


def linear_share(shape: Shape, sequences: float, seq: int, seconds: float, device: Device) -> float:
    """Share of a bf16 step that products of the blocks' linear layers take, at most 1. sequences: of a step, a GPU;
    seconds: of the step."""
    checks.above_0("sequences", sequences)
    checks.above_0("seconds", seconds)
    flops(shape, 1, seq)  # refuses what is no run
    work = 3 * 2 * sequences * seq * shape.layers * sum(a * b for a, b in linears(shape).values())
    return min(1.0, work / (seconds * product_share(device) * device.bf16_flop_per_s))


def fp8_seconds(shape: Shape, sequences: float, seq: int, seconds: float, device: Device) -> float:
    """Seconds of the step in FP8 that takes `seconds` in bf16. Raises ValueError for a device without FP8."""
    if not device.fp8_flop_per_s:
        raise ValueError(f"{device.name} has no FP8: use an H100 or a newer one")
    share = linear_share(shape, sequences, seq, seconds, device)
    return seconds * (1 - share + share / FASTER)
