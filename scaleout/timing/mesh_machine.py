"""What a rank of a mesh runs on: its rates, and the wires of its groups in the order that the axes have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from scaleout.spec import mesh
from scaleout.spec.hardware import FUSED_SHARE, Device
from scaleout.spec.layout import Layout
from scaleout.spec.topology import Cluster, Wire
from scaleout.timing.profile import line_seconds
from scaleout.timing.tensor_machine import Machine, Price, priced, profile_machine, rates

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


def groups(layout: Layout) -> list[int]:
    """Among which numbers of ranks `profiled` needs a profile: of each group, of two stages, and of all."""
    return sorted({n for n in (layout.tp, layout.dp, min(layout.pp, 2)) if n > 1} | {layout.ranks})


def profiled(known: Mapping[int, dict], layout: Layout, dtype: str = "fp32", flop_per_s: float | None = None
             ) -> MeshMachine:  # fmt: skip
    """A rank of the machine that `labs/calibrate.py` measured, {processes: profile} for each of `groups`; all profiles
    alike where there are none. flop_per_s: of its products, where they were seen at work; None: as measured."""
    base, price = known[layout.ranks], {n: profile_machine(profile, dtype=dtype) for n, profile in known.items()}
    rank, pair = price[layout.ranks], known.get(2, base)["collectives"]
    reached = rank.flop_per_s if flop_per_s is None else flop_per_s
    tp, dp = (price[n].inside if n > 1 else _free for n in (layout.tp, layout.dp))
    line = pair.get("broadcast", pair.get("all_gather"))
    hop: Sends = lambda size: line_seconds(line, size) if line else 0.0  # noqa: E731
    one = replace(rank, flop_per_s=reached, fused_flop_per_s=reached, inside=tp, across=dp)
    return MeshMachine(one, _free, hop, hop, ())


def _free(name: str, size: float) -> float:
    return 0.0


def sends(wire: Wire) -> Sends:
    """Seconds of a message over a wire, at what long messages reach of it."""
    reached = wire.bytes_per_s * wire.reached
    return lambda size: wire.alpha_seconds + size / reached
