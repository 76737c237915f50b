"""Seconds of a ZeRO step: what its messages take on a cluster, what compute hides of them, and what offload adds.

Stages 0 to 2 are DDP's step with another collective (timing.ddp), and from stage 1 a gather of the new weights after
the update. Stage 3 is FSDP's (timing.fsdp). Not in it: stragglers, launches, what a program adds to its collectives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum

from scaleout.collectives import nccl
from scaleout.collectives.zero import BUCKET, Message, checked, messages, muon_messages, wire_bytes
from scaleout.memory import zero
from scaleout.memory.states import optimizer_width
from scaleout.spec import checks
from scaleout.spec.hardware import COMPUTE_SHARE, LINKS, Device
from scaleout.spec.layout import Layout, alone
from scaleout.spec.muon import step_flops
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding, tensors
from scaleout.spec.topology import HOST_LINK, Cluster, Wire
from scaleout.spec.transformer import Shape, check_run, flops, total_parameters
from scaleout.timing import ddp_seconds, fsdp_machine, fsdp_seconds
from scaleout.timing.ddp import BUCKET_CAP, FIRST_BUCKET_CAP, Timeline, ddp_step
from scaleout.timing.fsdp import FsdpTimeline, fsdp_step
from scaleout.timing.profile import collective_seconds

# Share of the host memory's rate that an AdamW on its cores reaches: fitted once, to 1e9 parameters in 0.22 s on two
# sockets of six channels of DDR4-2666 (ZeRO-Offload, arXiv 2101.06840, table 4, CPU-Adam).
HOST_REACHES = 0.5

# Bytes a second of NVMe for each GPU, through host memory: a quarter of 10 GB/s read and 5 GB/s written by four drives
# beside four A100 (microsoft/DeepSpeed, blogs/deepspeed-gds, figure 1).
NVME_READ, NVME_WRITE = 2.5e9, 1.25e9

_PRICED_AS = {"reduce": "reduce_scatter"}  # as many bytes leave a rank
_LINE_OF = _PRICED_AS | {"all_to_all": "all_gather"}  # of a calibrated machine, where all ranks are joined alike


@dataclass(frozen=True)
class Host:
    """What one GPU has of its host, in bytes a second: memory that an update reaches, NVMe read and written."""

    memory_bytes_per_s: float = fsdp_machine.HOST_BYTES_PER_S * HOST_REACHES
    nvme_read_bytes_per_s: float = NVME_READ
    nvme_write_bytes_per_s: float = NVME_WRITE

    def __post_init__(self) -> None:
        for name, value in self.__dict__.items():
            checks.above_0(name, value)


HOST = Host()


@dataclass(frozen=True)
class ZeroTime:
    """One step. `parts` are seconds and add up to `seconds`: "compute", "exposed communication", "update", "exposed
    host" (copies over PCIe and NVMe that neither backward nor update hides; stage 3's copies of weights are in the
    communication). wire: seconds of all messages, hidden or not. mfu, hfu: as `ddp_seconds.StepTime`."""

    seconds: float
    parts: dict[str, float]
    wire: float
    tokens_per_second: float
    mfu: float
    hfu: float


def message_seconds(message: Message, cluster: Cluster) -> float:
    """Seconds of a step's calls of one message, one after another, as NCCL runs them on a cluster.

    A reduction to owners is priced as a reduce-scatter, which sends as many bytes.
    """
    checks.instance("message", message, Message)
    checks.instance("cluster", cluster, Cluster)
    price = nccl.seconds(_PRICED_AS.get(message.collective, message.collective), cluster)
    return message.count * price(message.bytes / message.count)


def profile_seconds(found: Iterable[Message], profile: dict) -> float:
    """Seconds of messages one after another on the machine that `labs/calibrate.py` measured; one process has none.

    ValueError where the profile has no such collective.
    """
    return fsum(
        one.count * collective_seconds(profile, _LINE_OF.get(one.collective, one.collective), one.bytes / one.count)
        for one in checked(found)
    )


def update_bytes(recipe: Recipe) -> float:
    """Bytes that an update reads and writes for each parameter, in one kernel: gradient and weight (written only where
    there is a master copy), master copy and optimizer's states there and back. AdamW: 28."""
    checks.instance("recipe", recipe, Recipe)
    master, weight = recipe.width("master"), recipe.width("weight")
    return recipe.gradient_bytes + (weight if master else 2 * weight) + 2 * (master + optimizer_width(recipe))


def slot(device: Device) -> Wire:
    """The PCIe slot of a device, one way, at the share of its rate that copies reach."""
    checks.instance("device", device, Device)
    link = LINKS[HOST_LINK.get(device.link, device.link)]
    return Wire(link.alpha_seconds, link.one_way_bytes_per_s * link.reached)


def from_device(
    shape: Shape, batch: int, seq: int, device: Device, cluster: Cluster, recipe: Recipe, layout: Layout, *,
    way: str = "paper", offload: str = "none", to: str = "host", host: Host = HOST, hide_weights: bool = False,
    efficiency: float = COMPUTE_SHARE, **sending,
) -> ZeroTime:  # fmt: skip
    """A step of `batch` sequences of `seq` tokens a rank and pass by datasheets; collectives as NCCL runs them.

    sending: `collectives.zero.messages`' keep, passes, every_pass, weight_bytes and gradient_bytes. Gradients are
    reduced beside the backward, in DDP's buckets, by DeepSpeed (stages 1 and 2) in its larger ones and after it, as
    its overlap_comm is off by default. The new weights of stages 1 and 2 are gathered after the update, where nothing
    hides them; hide_weights: beside the next forward, as Megatron's overlap-param-gather. Stage 3 gathers a block at a
    time, one ahead; all of them again, unless the way keeps all. With offload, gradients go down beside the backward,
    and the host steps them while its states come from NVMe and go there and the new weights go up.
    efficiency: as in `ddp_seconds.from_device`. ValueError, in one line, for what there is not.
    """
    check_run(batch, seq)
    checks.flag("hide_weights", hide_weights)
    checks.share("efficiency", efficiency)
    zero.check(recipe, layout, sending.get("keep", False), offload, to)
    _check(shape, device, cluster)
    _fits(cluster, layout, host)
    found = messages(total_parameters(shape), recipe, layout, way, **sending)
    peak = device.matmul_flop_per_s(device.half if recipe.width("compute") == 2 else "fp32")
    wire = wire_bytes(recipe, sending.get("weight_bytes"), sending.get("gradient_bytes"))
    run = _Run(shape, batch, seq, device, cluster, recipe, layout, peak * efficiency, sending.get("passes", 1), *wire)
    line = run.gathered(found, offload, to, host) if layout.zero == 3 else run.bucketed(found, way)
    spread = run.spread(found)
    update, exposed = run.update(offload, to, host)
    parts = {
        "compute": line.compute_seconds,
        "exposed communication": line.exposed_seconds + max(0.0, spread - run.computes("forward") * hide_weights),
        "update": update, "exposed host": exposed,
    }  # fmt: skip
    seconds, model = fsum(parts.values()), run.work["forward"] + run.work["backward"]
    return ZeroTime(
        seconds, parts, line.communication_seconds + spread, batch * seq * run.passes * layout.dp / seconds,
        ddp_seconds.utilization(model * run.passes, seconds, peak),
        ddp_seconds.utilization((model + run.work["recompute"]) * run.passes, seconds, peak),
    )  # fmt: skip


def _check(shape: Shape, device: Device, cluster: Cluster) -> None:
    for name, value, kind in (("shape", shape, Shape), ("device", device, Device), ("cluster", cluster, Cluster)):
        checks.instance(name, value, kind)


def _fits(cluster: Cluster, layout: Layout, host: Host) -> None:
    checks.instance("host", host, Host)
    alone(layout, "dp", "tp", "pp")
    if cluster.ranks != layout.dp or layout.tp * layout.pp > 1:
        raise ValueError(f"the cluster has {cluster.ranks} GPUs and the layout dp {layout.dp} x tp {layout.tp} x pp "
                         f"{layout.pp}: make dp {cluster.ranks}, tp 1 and pp 1")  # fmt: skip


@dataclass(frozen=True)
class _Run:
    """What the parts of a step have in common. wide, fine: bytes of a weight and of a gradient on the wire."""

    shape: Shape
    batch: int
    seq: int
    device: Device
    cluster: Cluster
    recipe: Recipe
    layout: Layout
    flop_per_s: float
    passes: int
    wide: int
    fine: int

    @cached_property
    def work(self) -> dict[str, int]:
        """FLOPs of a pass."""
        return flops(self.shape, self.batch, self.seq, self.recipe.checkpointing)

    def computes(self, *phases: str) -> float:
        """Seconds of these phases of one pass."""
        return sum(self.work[name] for name in phases) / self.flop_per_s

    @property
    def own(self) -> float:
        """Parameters that this rank steps."""
        return total_parameters(self.shape) / (self.layout.dp if self.layout.zero else 1)

    def spread(self, found: tuple[Message, ...]) -> float:
        """Seconds in which the new weights go out: at once, or broadcast tensor by tensor."""
        count = {"broadcast": len(tensors(self.shape))}
        return fsum(message_seconds(replace(one, count=count.get(one.collective, 1)), self.cluster)
                    for one in found if one.phase == "update")  # fmt: skip

    def bucketed(self, found: tuple[Message, ...], way: str) -> Timeline:
        """Stages 0 to 2 up to the update. One rank has a backward too, and reduces nothing."""
        collective, times = (found[0].collective, found[0].times) if found else ("all_reduce", 1)
        ours = way.startswith("DeepSpeed")
        cap = BUCKET * self.fine if ours else BUCKET_CAP
        work = ddp_seconds.layers(
            self.shape, self.batch, self.seq, self.flop_per_s, self.fine, self.recipe.checkpointing
        )
        return ddp_step(
            work, nccl.seconds(_PRICED_AS.get(collective, collective), self.cluster), cap_bytes=cap,
            first_cap_bytes=cap if ours else FIRST_BUCKET_CAP, overlap=not ours, accumulation=self.passes,
            sync_every_pass=times > 1,
        )  # fmt: skip

    def gathered(self, found: tuple[Message, ...], offload: str, to: str, host: Host) -> FsdpTimeline:
        """Stage 3 up to the update: `timing.fsdp`, block by block."""
        kept = not any(one.phase == "backward" and one.carries == "weights" for one in found)
        sharding = Sharding(self.layout.dp, reshard=not kept, parameter=_named(self.wide), reduce=_named(self.fine))
        on = replace(fsdp_machine.machine(self.device, self.cluster, sharding), flop_per_s=self.flop_per_s)
        copies, share = slot(self.device), self.wide / 4  # of the fp32 shards that torch copies
        if to == "nvme":
            copies = replace(copies, bytes_per_s=min(copies.bytes_per_s, host.nvme_read_bytes_per_s))
        return fsdp_step(
            fsdp_seconds.work(on, self.shape, self.batch, self.seq, sharding, self.recipe.checkpointing),
            on.gather, on.scatter, reshard=not kept, accumulation=self.passes,
            sync_every_pass=not found or found[-1].times > 1,
            copy_seconds=(lambda size: copies.seconds(size * share)) if offload == "parameters" else None,
        )  # fmt: skip

    def update(self, offload: str, to: str, host: Host) -> tuple[float, float]:
        """Seconds of the update, and what offload adds around it: gradients that are still on their way down when the
        backward is done (those of every pass, which add up in the host), weights on their way up and NVMe's states
        when the update is."""
        each = update_bytes(self.recipe)
        if offload == "none":
            return self.own * each / self.device.memory_bytes_per_s, 0.0
        stepping, late, disk = self.own * each / host.memory_bytes_per_s, 0.0, 0.0
        if to == "nvme":  # read and written, gradients too; offloaded weights are written, and read when gathered
            read = self.recipe.gradient_bytes + self.recipe.width("master") + optimizer_width(self.recipe)
            written = read + (self.wide if offload == "parameters" else 0)
            disk = self.own * (read / host.nvme_read_bytes_per_s + written / host.nvme_write_bytes_per_s)
        if offload == "optimizer":  # copies of offloaded parameters, and their gradients', are in the timeline
            rate = slot(self.device).bytes_per_s
            down = self.own * self.fine / rate
            late = self.passes * max(0.0, down - self.computes("backward", "recompute"))
            disk = max(disk, self.own * self.wide / rate)
        return stepping, late + max(0.0, disk - stepping)


def _named(width: int) -> str:
    """The dtype of so many bytes that `Sharding` knows."""
    return checks.known("bytes of a number on the wire", str(width), {"2": "bf16", "4": "fp32"})


def muon_seconds(
    shape: Shape, device: Device, cluster: Cluster, recipe: Recipe, layout: Layout, how: str = "gather", *,
    efficiency: float = COMPUTE_SHARE,
) -> dict[str, float]:  # fmt: skip
    """Seconds that Muon's update adds, exposed: {"messages", "products"}. See `collectives.zero.muon_messages`.

    Products of Newton-Schulz run in bf16 at `efficiency` of the peak: of all matrices on every rank with "gather" and
    in stage 0, else of an n-th of them (where matrices deal out evenly). ValueError as there.
    """
    checks.share("efficiency", efficiency)
    _check(shape, device, cluster)
    found = muon_messages(shape, recipe, layout, how)
    share = 1 if how == "gather" or not layout.zero else layout.dp
    rate = device.matmul_flop_per_s(device.half) * efficiency
    return {"messages": fsum(message_seconds(one, cluster) for one in found),
            "products": step_flops(shape) / share / rate}  # fmt: skip
