"""What one rank of FSDP runs on: rates, and the wires of its shard group and of its replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from scaleout.collectives import nccl
from scaleout.spec import checks
from scaleout.spec.hardware import COMPUTE_SHARE, Device
from scaleout.spec.sharding import Sharding
from scaleout.spec.topology import Cluster, Wire, host
from scaleout.timing.machine import HOST_BYTES_PER_S

Seconds = Callable[[float], float]  # of a message, by its bytes


@dataclass(frozen=True)
class Machine:
    """What one rank of an FSDP step runs on. Rates in FLOP/s and bytes a second; messages as seconds by bytes.

    flop_per_s: what forward and backward reach; peak: what MFU is relative to. memory_bytes_per_s: copies on the
    device. gather, scatter: all-gather and reduce-scatter of a whole unit in its group. regather: the all-gather of
    the backward where `reshard` is a number of ranks. across: all-reduce of a shard over the replicas, or None.
    copy: between device and host, with offload. update_bytes_per_s: of the memory that holds the optimizer's state.
    """

    flop_per_s: float
    peak: float
    memory_bytes_per_s: float
    update_bytes_per_s: float
    gather: Seconds
    scatter: Seconds
    regather: Seconds | None = None
    across: Seconds | None = None
    copy: Seconds | None = None


# --- which wires a group of ranks uses --------------------------------------------------------------------------


def shard_group(cluster: Cluster, ranks: int) -> Cluster:
    """The ranks 0 to ranks - 1, which shard a model between them, as a cluster of their own.

    Ranks of one node come first, so that a group lies in one node or fills whole ones. ValueError where `ranks` is no
    divisor of a node's GPUs and no multiple of them.
    """
    g = cluster.gpus_per_node
    if ranks <= g and g % ranks == 0:
        return replace(cluster, nodes=1, gpus_per_node=ranks)
    if ranks % g == 0 and cluster.nodes % (ranks // g) == 0:
        return replace(cluster, nodes=ranks // g)
    raise ValueError(f"{ranks} ranks neither divide a node of {g} GPUs nor fill whole nodes of {cluster.nodes}: "
                     f"use a divisor of {g}, or {g} times a divisor of {cluster.nodes}")  # fmt: skip


def replica_group(cluster: Cluster, ranks: int) -> Cluster:
    """The ranks that hold the same shard: every `ranks`-th. Those groups send at once and share what leaves a node."""
    g = cluster.gpus_per_node
    shard_group(cluster, ranks)
    if ranks >= g:
        share = cluster.share
        return Cluster(cluster.ranks // ranks, 1, cluster.inside, share, 1)
    share = replace(cluster.across, bytes_per_s=cluster.pool.bytes_per_s / ranks)
    return Cluster(cluster.nodes, g // ranks, cluster.inside, share, 1)


def machine(
    device: Device, cluster: Cluster, sharding: Sharding, *, dtype: str | None = None,
    efficiency: float = COMPUTE_SHARE, host_bytes_per_s: float = HOST_BYTES_PER_S,
) -> Machine:  # fmt: skip
    """A rank of `cluster` by datasheets. dtype: of the matrix products, `sharding.parameter` unless given.

    efficiency: the share of the device's peak that forward and backward reach, an assumption. Collectives are as NCCL
    runs them (`scaleout.collectives.nccl`). With offload, copies go over the device's PCIe slot at the share of its
    rate that is reached, and the host updates at host_bytes_per_s. ValueError where cluster and sharding differ in
    ranks.
    """
    if cluster.ranks != sharding.world:
        raise ValueError(f"the cluster has {cluster.ranks} GPUs, the sharding {sharding.world} ranks: make them equal")
    checks.share("efficiency", efficiency)
    peak, kept = device.matmul_flop_per_s(dtype or sharding.parameter), sharding.kept_ranks
    group, slot = shard_group(cluster, sharding.ranks), host(device)
    copies = Wire(slot.alpha_seconds, slot.one_way_bytes_per_s * slot.reached)
    return Machine(
        peak * efficiency, peak, device.memory_bytes_per_s,
        host_bytes_per_s if sharding.offload else device.memory_bytes_per_s,
        nccl.seconds("all_gather", group), nccl.seconds("reduce_scatter", group),
        nccl.seconds("all_gather", shard_group(cluster, kept)) if 1 < kept < sharding.ranks else None,
        nccl.seconds("all_reduce", replica_group(cluster, sharding.ranks)) if sharding.replicas > 1 else None,
        copies.seconds if sharding.offload else None,
    )  # fmt: skip
