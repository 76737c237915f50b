"""What one tensor-parallel rank runs on: rates, and the wires of its group and of its replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scaleout.collectives import nccl
from scaleout.spec import checks
from scaleout.spec.hardware import FUSED_SHARE, Device, product_share
from scaleout.spec.layout import Layout, alone
from scaleout.spec.topology import Cluster
from scaleout.timing.fsdp_machine import replica_group, shard_group
from scaleout.timing.profile import collective_seconds, rate

Price = Callable[[str, float], float]  # seconds of a collective by its name and bytes

# Priced by a calibrated line of another one, in which a rank sends as many bytes in as many messages.
LINE_OF = {"all_to_all": "all_gather"}


@dataclass(frozen=True)
class Machine:
    """What one tensor-parallel rank runs on: FLOP/s of matrix products and of fused attention, bytes a second of its
    memory, the peak that MFU is relative to; seconds of collectives among the tp ranks, and among the replicas."""

    flop_per_s: float
    fused_flop_per_s: float
    memory_bytes_per_s: float
    peak: float
    inside: Price
    across: Price


def machine(
    device: Device, cluster: Cluster, layout: Layout, *, dtype: str | None = None, share: float | None = None
) -> Machine:
    """A rank of `cluster` by datasheets; the tp ranks of a group lie side by side, and collectives are as NCCL runs
    them. share: of the peak in `dtype` that matrix products reach; None: `hardware.product_share`. ValueError where
    cluster and layout differ in ranks, and for tp ranks that neither divide a node nor fill whole ones."""
    alone(layout, "dp", "tp", "pp")
    if cluster.ranks != layout.dp * layout.tp:
        raise ValueError(f"the cluster has {cluster.ranks} GPUs, dp {layout.dp} x tp {layout.tp} ranks: "
                         "make them equal")  # fmt: skip
    return rates(
        device, priced(shard_group(cluster, layout.tp)), priced(replica_group(cluster, layout.tp)), dtype, share
    )


def rates(
    device: Device, inside: Price, across: Price, dtype: str | None = None, share: float | None = None,
    fused: float = FUSED_SHARE,
) -> Machine:  # fmt: skip
    """A rank's own rates by its datasheet, with the prices of its tp ranks and of its replicas."""
    share = product_share(device) if share is None else share
    checks.share("share", share)
    checks.share("fused", fused)
    peak = device.matmul_flop_per_s(dtype or device.half)
    return Machine(peak * share, peak * fused, device.memory_bytes_per_s, peak, inside, across)


def profile_machine(profile: dict, *, dtype: str = "fp32", efficiency: float = 1.0) -> Machine:
    """A rank of the machine that `labs/calibrate.py` measured with tp processes. efficiency: the share of the measured
    matrix products that the model reaches. ValueError where the profile has no such rate."""
    checks.above_0("efficiency", efficiency)
    peak, copies = rate(profile, dtype), profile["copy_bytes_per_second"]
    alone = profile["world"] == 1
    line = _nothing if alone else lambda name, size: collective_seconds(profile, LINE_OF.get(name, name), size)
    return Machine(peak * efficiency, peak * efficiency, copies, peak, line, _nothing)


def _nothing(name: str, size: float) -> float:
    return 0.0


def priced(group: Cluster) -> Price:
    """The seconds of NCCL's collectives in a group; each is found once."""
    known: dict[str, Callable[[float], float]] = {}

    def of(name: str, size: float) -> float:
        if name not in known:
            known[name] = nccl.seconds(name, group)
        return known[name](size)

    return of
