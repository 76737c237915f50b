"""Seconds of an FSDP step and its MFU, from datasheets."""

from __future__ import annotations

from functools import lru_cache

from scaleout.spec.hardware import COMPUTE_SHARE, Device
from scaleout.spec.sharding import Sharding, alike, units
from scaleout.spec.topology import Cluster
from scaleout.spec.transformer import Shape, check_run
from scaleout.timing import ddp_seconds
from scaleout.timing.ddp import Layer
from scaleout.timing.ddp_seconds import ADAMW_BYTES, StepTime
from scaleout.timing.fsdp import FsdpTimeline, Piece, fsdp_step, pieces
from scaleout.timing.fsdp_machine import HOST_BYTES_PER_S, Machine, machine


def work(
    on: Machine, shape: Shape, batch: int, seq: int, sharding: Sharding, checkpointing: str = "none"
) -> tuple[Piece, ...]:
    """The units of a step with what they compute, and with FSDP's own copies: a gathered unit is read and written once
    more (from the message into the parameters), a gradient on its way into the reduce-scatter. One rank has no such.

    Raises ValueError for sizes that cannot be."""
    check_run(batch, seq)
    return with_copies(on, batch, sharding, _unit_pieces(shape, seq, checkpointing, sharding))


def with_copies(on: Machine, batch: int, sharding: Sharding, bare: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Pieces of one sequence at 1 FLOP/s as `batch` sequences make them on a machine, with FSDP's own copies."""
    factor = batch / on.flop_per_s
    twice = sharding.reshard is not False  # but for the root, "", which is kept
    out = []
    for one in bare:
        gathered = one.gather_bytes / on.memory_bytes_per_s
        back = (3 if twice and one.name else 1) * gathered + one.reduce_bytes / on.memory_bytes_per_s
        out.append(Piece(
            one.name, one.forward_seconds * factor + 2 * gathered, one.backward_seconds * factor + back,
            one.gather_bytes, one.reduce_bytes, one.shard_bytes, one.host_bytes, one.recompute_seconds * factor,
        ))  # fmt: skip
    return tuple(out)


@lru_cache(maxsize=512)
def _unit_pieces(shape: Shape, seq: int, checkpointing: str, sharding: Sharding) -> tuple[Piece, ...]:
    """The pieces of one sequence at 1 FLOP/s. Kept, as units are: a scaling curve asks for them again and again."""
    return pieces(layers_of(shape, seq, checkpointing), units(shape, sharding), sharding, checkpointing)


@lru_cache(maxsize=64)
def layers_of(shape: Shape, seq: int, checkpointing: str) -> tuple[Layer, ...]:
    """The layers of one sequence at 1 FLOP/s."""
    return tuple(ddp_seconds.layers(shape, 1, seq, 1.0, checkpointing=checkpointing))


def update_seconds(on: Machine, shape: Shape, sharding: Sharding) -> float:
    """AdamW on the shard of one rank, fp32: reads and writes ADAMW_BYTES for each of its elements."""
    held = sum(times * unit.shard(sharding.ranks) for unit, times in alike(shape, sharding))
    return held * ADAMW_BYTES / on.update_bytes_per_s


def schedule(
    on: Machine, shape: Shape, batch: int, seq: int, sharding: Sharding, checkpointing: str = "none", **options
) -> FsdpTimeline:
    """The events of `on_machine`'s step alone."""
    return fsdp_step(
        work(on, shape, batch, seq, sharding, checkpointing), on.gather, on.scatter, reshard=sharding.reshard,
        prefetch=sharding.prefetch, reduce_across=on.across, copy_seconds=on.copy, regather_seconds=on.regather,
        update_seconds=update_seconds(on, shape, sharding), **options,
    )  # fmt: skip


def on_machine(
    on: Machine, shape: Shape, batch: int, seq: int, sharding: Sharding, *, checkpointing: str = "none",
    other_seconds: float = 0.0, **options,
) -> StepTime:  # fmt: skip
    """One step: batch sequences of seq tokens a rank and pass.

    options: `timing.fsdp.fsdp_step`'s accumulation, sync_every_pass, overlap, contention, backward_prefetch and
    reshard_root. Raises ValueError as it does.
    """
    found = schedule(on, shape, batch, seq, sharding, checkpointing, **options)
    return ddp_seconds.step_time(found, shape, batch, seq, sharding.world, on.peak, checkpointing, other_seconds)


def from_device(
    shape: Shape, batch: int, seq: int, device: Device, cluster: Cluster, sharding: Sharding, *,
    dtype: str | None = None, efficiency: float = COMPUTE_SHARE, host_bytes_per_s: float = HOST_BYTES_PER_S, **options,
) -> StepTime:  # fmt: skip
    """An FSDP step by datasheets: see `machine`; options as in `on_machine`."""
    on = machine(
        device, cluster, sharding, dtype=dtype, efficiency=efficiency, host_bytes_per_s=host_bytes_per_s,
    )  # fmt: skip
    return on_machine(on, shape, batch, seq, sharding, **options)
