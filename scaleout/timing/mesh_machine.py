"""What a rank of a mesh runs on: its rates, and the wires of its groups in the order that the axes have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scaleout.spec import mesh
from scaleout.spec.hardware import FUSED_SHARE, Device
from scaleout.spec.layout import Layout
from scaleout.spec.topology import Cluster, Wire
from scaleout.timing.tensor_machine import Machine, Price, priced, rates

Sends = Callable[[float], float]  # seconds of a message to a neighbour, by its bytes


@dataclass(frozen=True)
class MeshMachine:
    """One rank. rank: its rates, and seconds of collectives among its tp ranks (`inside`) and among the replicas of its
    weights (`across`). context: of collectives among its cp ranks; turn: of a message to the next of them; hop: of one
    to the next stage. crossing: the axes whose groups lie on several nodes."""

    rank: Machine
    context: Price
    turn: Sends
    hop: Sends
    crossing: tuple[str, ...]


def machine(
    device: Device, cluster: Cluster, layout: Layout, order: tuple[str, ...] = mesh.ORDER, *, dtype: str | None = None,
    share: float | None = None, fused: float = FUSED_SHARE,
) -> MeshMachine:  # fmt: skip
    """A rank of `cluster` by datasheets; collectives as NCCL runs them. share, fused: of the peak in `dtype`, what
    matrix products and fused attention reach; None: `hardware.product_share`. ValueError where cluster and layout
    differ in ranks."""
    if cluster.ranks != layout.ranks:
        raise ValueError(f"the cluster has {cluster.ranks} GPUs, the layout {layout.ranks} ranks: make them equal")
    grid = mesh.grid(layout, order)
    prices = {axes: priced(mesh.on(cluster, grid, *axes)) for axes in (("tp",), ("cp",), ("dp", "cp"))}
    one = rates(device, prices["tp",], prices["dp", "cp"], dtype, share, fused)
    return MeshMachine(
        one, prices["cp",], sends(mesh.link(cluster, grid, "cp")), sends(mesh.link(cluster, grid, "pp")),
        tuple(axis for axis in grid.names if mesh.crosses(cluster, grid, axis)),
    )  # fmt: skip


def sends(wire: Wire) -> Sends:
    """Seconds of a message over a wire, at what long messages reach of it."""
    reached = wire.bytes_per_s * wire.reached
    return lambda size: wire.alpha_seconds + size / reached
