"""One rank of a job: its compute rates, and the time of communication along each axis of the layout.

From datasheets collectives cost what NCCL makes of the links; from the profiles that `labs/calibrate.py` measured, what
this machine took, kernel by kernel (`calibrated`). Both make the same `Machine`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from scaleout.collectives import nccl
from scaleout.spec import mesh
from scaleout.spec.devices import Device
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.topology import Cluster, Wire, host
from scaleout.timing.calibrated import Exchange, exchanges, profile_rates
from scaleout.timing.profile import collective_seconds, line_seconds
from scaleout.timing.rates import Rates, device_rates

Price = Callable[[str, float], float]  # seconds of a collective by its name and bytes
Sends = Callable[[float], float]  # seconds of a message to a neighbour by its bytes

# Bytes per second of the host's memory for one of 8 GPUs: two sockets of 8 channels of DDR5-4800 (Intel Xeon Platinum
# 8480C, which a DGX H100 has), 4,800 million transfers of 8 bytes per second and channel.
HOST_BYTES_PER_S = 2 * 8 * 4800e6 * 8 / 8

# Bytes per second that a GPU reads from NVMe and writes to it, through host memory: a quarter of 10 and 5 GB/s of four
# drives beside four A100 (microsoft/DeepSpeed, blogs/deepspeed-gds, figure 1).
NVME_BYTES_PER_S = 2.5e9, 1.25e9

# Priced by the line of another one, in which a rank sends as many bytes.
LINE_OF = {"all_to_all": "all_gather", "reduce": "reduce_scatter"}


@dataclass(frozen=True)
class Machine:
    """One rank. tensor, context, data: seconds of collectives among its tp ranks, its cp ranks, and the replicas of its
    weights; shards, copies: among the ranks that share one copy of the states, and among the copies; keepers: among
    those that keep shards between forward and backward. turn: of a message to the next cp rank; hop: to the next stage.
    host: of a copy over the device's slot. crossing: the axes whose groups lie on several nodes. nvme_bytes_per_s: read
    and written. exchange: of the job's way to keep replicas what was measured whole, None where it is priced part by
    part."""

    rates: Rates
    tensor: Price
    context: Price
    data: Price
    shards: Price
    copies: Price
    keepers: Price
    turn: Sends
    hop: Sends
    host: Sends
    crossing: tuple[str, ...]
    host_bytes_per_s: float = HOST_BYTES_PER_S
    nvme_bytes_per_s: tuple[float, float] = NVME_BYTES_PER_S
    exchange: Exchange | None = None

    def copied(self, size: float, disk: bool = False) -> float:
        """Seconds of a copy from the host's memory, or from the disk behind it."""
        return max(self.host(size), size / self.nvme_bytes_per_s[0] * disk)


def from_datasheet(job: Job) -> Machine:
    """A rank of the job's cluster by datasheets."""
    rates = device_rates(job.device, job.program, job.dtype)
    return with_rates(rates, job.device, job.cluster, job.grid, job.shards, _keepers(job))


@lru_cache(maxsize=256)  # the same for any batch and model: a curve asks for it at each
def with_rates(rates: Rates, device: Device, cluster: Cluster, grid: mesh.Grid, shards: int, keepers: int) -> Machine:
    """A rank that computes at these rates. shards: ranks that share a copy of the states; keepers: those that keep
    shards between forward and backward."""
    group = mesh.group_on(cluster, grid, "dp", "cp")
    slot = host(device)
    copy = Wire(slot.alpha_seconds, slot.one_way_bytes_per_s * slot.reached)
    return Machine(
        rates,
        priced(mesh.group_on(cluster, grid, "tp")),
        priced(mesh.group_on(cluster, grid, "cp")),
        priced(group),
        priced(mesh.shard_group(group, shards)),
        priced(replica_group(group, shards)),
        priced(mesh.shard_group(group, keepers)),
        sends(mesh.link(cluster, grid, "cp")),
        sends(mesh.link(cluster, grid, "pp")),
        copy.seconds,
        tuple(axis for axis in grid.names if mesh.crosses(cluster, grid, axis)),
    )


def _keepers(job: Job) -> int:
    """Ranks that keep shards between forward and backward."""
    reshard = job.replicas.reshard
    return job.shards if isinstance(reshard, bool) else reshard


def replica_group(group: Cluster, ranks: int) -> Cluster:
    """The ranks that hold the same shard, every `ranks`-th of a group; all such groups send at once."""
    if ranks == group.ranks:
        return Cluster(1, 1, group.inside, group.across, 1)
    return mesh.group_cluster(group, (ranks, group.ranks // ranks))


@lru_cache(maxsize=4096)
def _seconds(collective: str, group: Cluster) -> Callable[[float], float]:
    return nccl.seconds(collective, group)


def priced(group: Cluster) -> Price:
    """Seconds of NCCL's collectives in a group; a reduction to one rank sends what a reduce-scatter does."""
    known: dict[tuple[str, float], float] = {}  # buckets and units are alike

    def seconds(name: str, size: float) -> float:
        if (name, size) not in known:
            known[name, size] = _seconds("reduce_scatter" if name == "reduce" else name, group)(size)
        return known[name, size]

    return seconds


def sends(wire: Wire) -> Sends:
    """Seconds of a message over a wire, at what long messages reach of it."""
    reached = wire.bytes_per_s * wire.reached
    return lambda size: wire.alpha_seconds + size / reached


def groups(layout: Layout, shards: int | None = None) -> list[int]:
    """Among which numbers of ranks `from_profiles` needs a profile: of each group, of two stages, and of all."""
    sizes = (layout.tp, layout.replicas, shards or 1, layout.replicas // (shards or 1), min(layout.pp, 2))
    return sorted({n for n in sizes if n > 1} | {layout.ranks})


def from_profiles(job: Job, known: Mapping[int, dict], share: float | None = None) -> Machine:
    """A rank of the machine that `labs/calibrate.py` measured: {processes: profile}, for each of `groups`; groups of
    other sizes take the profile of all ranks. share: of the measured matrix multiplications that the model reaches,
    with all that it does beside them; None: kernel by kernel."""
    base, layout = known[job.layout.ranks], job.layout
    ranks, keepers = job.shards, _keepers(job)
    pair = known.get(2, base)["collectives"]
    line, copies = pair.get("broadcast", pair.get("all_gather")), base["copy_bytes_per_second"]
    send: Sends = lambda size: line_seconds(line, size) if line else 0.0  # noqa: E731
    tensor, context, data, shards, replicas, keeps = (
        _line(known, base, n) for n in (layout.tp, layout.cp, layout.replicas, ranks, layout.replicas // ranks, keepers)
    )
    rates = profile_rates(base, job.dtype, share, job.recipe.foreach)
    whole = layout.replicas == layout.ranks and not job.replicas.shards and share is None
    exchange = exchanges(base).get(way(job)) if whole else None
    return Machine(
        rates,
        tensor,
        context,
        data,
        shards,
        replicas,
        keeps,
        send,
        send,
        lambda size: size / copies,
        (),
        copies,
        exchange=exchange,
    )


def way(job: Job) -> str:
    """How a job keeps its replicas, by the names of `measure.units`."""
    if job.sharded:
        return "stage 3" if job.program.flat else "fully_shard"
    return f"stage {job.layout.zero}" if job.layout.zero else "ddp" if job.layout.replicas > 1 else "plain"


def device_of(profile: dict) -> Device:
    """The machine of a profile in a datasheet's words: a job's device, whose peak is what was measured."""
    rates = profile["matmul_flops_per_second"]
    return Device(
        profile.get("device", "this machine"),
        0,
        0,
        profile["copy_bytes_per_second"],
        rates["fp32"],
        None,
        rates.get("fp16", rates["fp32"]),
        rates.get("bf16"),
        None,
        "",
        "labs/calibrate.py",
        priced_as="ampere",
    )


def _line(known: Mapping[int, dict], base: dict, ranks: int) -> Price:
    if ranks == 1:
        return lambda name, size: 0.0
    return by_profile(known.get(ranks, base))


def by_profile(profile: dict) -> Price:
    """Seconds of collectives among the ranks that a profile was measured with."""
    return lambda name, size: collective_seconds(profile, LINE_OF.get(name, name), size)
