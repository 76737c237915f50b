"""Seconds of a training step: compute, exposed communication and update, from a profile or a datasheet; MFU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scaleout.collectives import nccl
from scaleout.spec import checks
from scaleout.spec.hardware import COMPUTE_SHARE, Device
from scaleout.spec.topology import Cluster
from scaleout.spec.transformer import Shape, flops, linears, norm_parameters, parameters, total_parameters
from scaleout.timing.ddp import Layer, Timeline, ddp_step
from scaleout.timing.profile import collective_seconds, rate

# What one AdamW update moves for each fp32 parameter when a single kernel does it (fused=True): reads weight, gradient
# and two moments, writes weight and two moments. Op by op (foreach) moves several times as much.
ADAMW_BYTES = 7 * 4

@dataclass(frozen=True)
class StepTime:
    """One step. `parts` are seconds and add up to `seconds`; tokens a second are of all ranks together.

    mfu: model FLOPs of the step by its seconds and the peak, as PaLM defines it (arXiv 2204.02311, appendix B):
    forward and backward, nothing for recomputation. hfu counts the recomputation too.
    """

    seconds: float
    parts: dict[str, float]
    timeline: Timeline
    tokens_per_second: float
    mfu: float
    hfu: float


def layers(
    shape: Shape, batch: int, seq: int, flop_per_s: float, dtype_bytes: int = 4, checkpointing: str = "none",
) -> list[Layer]:  # fmt: skip
    """The model as DDP meets it: token table, each matrix of each block, output head. Seconds are of one pass.

    Matrix products only, as `transformer.flops` counts them: the seconds add up to its FLOPs by flop_per_s.
    dtype_bytes: of one gradient. The attention core goes with v, the last projection before it; a norm's gradient
    with the first matrix after it, the last norm's with the head. A head tied to the token table has no gradient of
    its own: the table's is complete only when the token table's backward is done, so it arrives last of all.
    Recomputation comes before the backward of what is recomputed: a block's ("full") with its last matrix, the
    core's ("selective") with v. Raises ValueError for a rate that is not above 0 and sizes that cannot be.
    """
    checks.above_0("flop_per_s", flop_per_s)
    once = flops(shape, batch, seq, checkpointing)
    tokens, sizes = batch * seq, parameters(shape)
    core = 4 * tokens * seq * shape.heads * shape.d
    head = 2 * tokens * shape.hidden * shape.vocab
    again = once["recompute"] // shape.layers
    block = []
    for name, (rows, columns) in linears(shape).items():
        forward = 2 * tokens * rows * columns + (core if name == "v" else 0)
        extra = again if name == ("v" if checkpointing == "selective" else "down") else 0
        count = rows * columns + (columns if shape.bias else 0) + (norm_parameters(shape) if name in ("q", "up") else 0)
        block.append((name, forward / flop_per_s, (2 * forward + extra) / flop_per_s, count * dtype_bytes))
    out = [Layer("tokens", 0.0, 0.0, (sizes["tokens"] + sizes["positions"]) * dtype_bytes)]
    out += [Layer(f"block {i} {name}", *rest) for i in range(shape.layers) for name, *rest in block]
    last = (sizes["head"] + norm_parameters(shape)) * dtype_bytes
    return [*out, Layer("head", head / flop_per_s, 2 * head / flop_per_s, last)]


def from_device(
    shape: Shape, batch: int, seq: int, device: Device, cluster: Cluster, *, dtype: str = "bf16",
    gradient_bytes: int = 4, checkpointing: str = "none", efficiency: float = COMPUTE_SHARE,
    other_seconds: float = 0.0, **ddp,
) -> StepTime:  # fmt: skip
    """A DDP step by datasheets: `batch` sequences of `seq` tokens a rank and pass; all-reduces as NCCL runs them.

    efficiency: the share of the device's peak in `dtype` that forward and backward reach: an assumption, since what
    is no matrix product (norms, softmax, copies) takes time and no FLOPs here. The update reads and writes
    ADAMW_BYTES for each parameter at the memory's full rate. other_seconds: input, logging, what else is in a step.
    ddp: `timing.ddp.ddp_step`'s options (cap_bytes, overlap, accumulation, ...). Raises ValueError as it does.
    """
    checks.share("efficiency", efficiency)
    peak = device.matmul_flop_per_s(dtype)
    work = layers(shape, batch, seq, peak * efficiency, gradient_bytes, checkpointing)
    update = total_parameters(shape) * ADAMW_BYTES / device.memory_bytes_per_s
    timeline = ddp_step(work, nccl.seconds("all_reduce", cluster), update_seconds=update, **ddp)
    return step_time(timeline, shape, batch, seq, cluster.ranks, peak, checkpointing, other_seconds)


def from_profile(
    profile: dict, shape: Shape, batch: int, seq: int, *, dtype: str = "fp32", gradient_bytes: int = 4,
    checkpointing: str = "none", efficiency: float = 1.0, other_seconds: float = 0.0, **ddp,
) -> StepTime:  # fmt: skip
    """A DDP step on the machine that `labs/calibrate.py` measured, at the profile's world size.

    efficiency: the share of the *measured* matrix-product rate that this model reaches; a step of one process
    gives it. MFU is relative to the measured rate. The update reads and writes ADAMW_BYTES for each parameter at
    the measured copy bandwidth. The rest as in `from_device`. Raises ValueError where the profile has no such rate.
    """
    if not isinstance(efficiency, (int, float)) or not 0 < efficiency < math.inf:
        raise ValueError(f"efficiency must be a number above 0, not {efficiency!r}")
    peak = rate(profile, dtype)
    work = layers(shape, batch, seq, peak * efficiency, gradient_bytes, checkpointing)
    update = total_parameters(shape) * ADAMW_BYTES / profile["copy_bytes_per_second"]
    timeline = ddp_step(work, profile_reduce(profile), update_seconds=update, **ddp)
    return step_time(timeline, shape, batch, seq, profile["world"], peak, checkpointing, other_seconds)


def profile_reduce(profile: dict) -> Callable[[float], float]:
    """A function from bytes to seconds of the profile's all-reduce; 0 for one process."""
    if profile["world"] == 1:
        return lambda size: 0.0
    return lambda size: collective_seconds(profile, "all_reduce", size)


def step_time(
    timeline: Timeline, shape: Shape, batch: int, seq: int, ranks: int, peak: float, checkpointing: str = "none",
    other_seconds: float = 0.0,
) -> StepTime:  # fmt: skip
    """The figures of a step from its timeline. batch: sequences a rank and pass; peak: FLOP/s of one rank."""
    checks.above_0("peak", peak)
    if not 0 <= other_seconds < math.inf:
        raise ValueError(f"other_seconds must be a number from 0 up, not {other_seconds!r}")
    seconds = timeline.seconds + other_seconds
    work, passes = flops(shape, batch, seq, checkpointing), len(timeline.passes)
    model = (work["forward"] + work["backward"]) * passes
    parts = {
        "compute": timeline.compute_seconds, "exposed communication": timeline.exposed_seconds,
        "update": timeline.update_seconds, "other": other_seconds,
    }  # fmt: skip
    return StepTime(
        seconds, parts, timeline, batch * seq * passes * ranks / seconds, utilization(model, seconds, peak),
        utilization(model + work["recompute"] * passes, seconds, peak),
    )  # fmt: skip


def utilization(done: float, seconds: float, peak: float) -> float:
    """`done` FLOPs in `seconds` as a share of `peak` FLOP/s. MFU for a model's FLOPs, HFU with recomputation."""
    checks.above_0("seconds", seconds)
    checks.above_0("peak", peak)
    return done / seconds / peak
