"""One step of FSDP: memory over time, what is gathered and computed when, and whether it fits and is fast."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from scaleout.draw import fsdp_lanes, svg
from scaleout.draw.plot import Axis, Plane
from scaleout.memory import allocator
from scaleout.memory.fsdp import FsdpAccount, fsdp_account
from scaleout.spec import topology
from scaleout.spec.hardware import COMPUTE_SHARE, DEVICES
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding, units
from scaleout.spec.transformer import PRESETS
from scaleout.timing import fsdp_seconds
from scaleout.timing.fsdp import volume
from scaleout.timing.step import StepTime
from scaleout.views import guess, select, slider, toggle
from scaleout.views.choices import LINKS, NAMES, NODE
from scaleout.views.fsdp_levers import EXPOSED, advice

TITLE = "One step of FSDP"

MODELS = tuple(key for key in PRESETS if key != "zero-1t")
LEAST = 10**8  # parameters of a unit when wrapping by size: the default of torch's size_based_auto_wrap_policy
GIB = 2**30
WRAPS = {
    "model": "the whole model", "block": "each block", "layer": "each layer (matrix)",
    "size": "any module of 100 million parameters",
}  # fmt: skip
RESHARD = {"yes": "yes: gather again in backward", "no": "no: keep it whole", "node": f"keep shards of {NODE} GPUs"}
OVER = {"all": "all GPUs", "node": f"each {NODE} GPUs, copies across (hybrid)"}
# (gathered and computed in, reduced in); what is stored is fp32
PRECISION = {"fp32": ("fp32", "fp32"), "bf16": ("bf16", "fp32"), "bf16-reduce": ("bf16", "bf16")}
_POWERS = [(str(2**k), f"{2**k:,}") for k in range(17)]

CONTROLS = (
    guess("What does **one** GPU hold at its **fullest moment**?", "peak_gib", "GiB", lo=0, hi=100, step=1),
    select("model", "Model", "llama-3-8b", [(key, NAMES[key]) for key in MODELS]),
    select("device", "GPU", "h100-sxm", [(key, device.name) for key, device in DEVICES.items()]),
    select("ranks", "GPUs (ranks)", "16", _POWERS[:11]),
    select("link", "Joined by", "node-ib", [(key, words) for key, (*_, words) in LINKS.items()]),
    select("wrap", "A unit is", "block", list(WRAPS.items())),
    select("reshard", "Free a unit after its forward", "yes", list(RESHARD.items())),
    slider("prefetch", "Units gathered ahead", 1, 0, 4),
    select("over", "Shards over", "all", list(OVER.items())),
    slider("batch", "Sequences per GPU", 2, 1, 64, log=True),
    select("seq", "Tokens per sequence", "4096", _POWERS[7:15]),
    select("checkpointing", "Checkpointing", "none",
           [("none", "none"), ("selective", "selective: the attention core"), ("full", "full: each block")]),
    select("precision", "Gather, compute and reduce in", "bf16",
           [("fp32", "fp32"), ("bf16", "bf16, reduce in fp32"), ("bf16-reduce", "bf16")]),
    toggle("offload", "Offload shards to the host's memory", False),
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What a reader chose; what follows from it is made once."""

    model: str
    device: str
    ranks: int
    link: str
    wrap: str
    reshard: str
    prefetch: int
    over: str
    batch: int
    seq: int
    checkpointing: str
    precision: str
    offload: bool

    @property
    def tokens(self) -> int:
        """Tokens a sequence: no more than a table of positions has rows."""
        return PRESETS[self.model].tokens(self.seq)

    @property
    def sharding(self) -> Sharding:
        parameter, reduce = PRECISION[self.precision]
        group = min(self.ranks, NODE) if self.over == "node" else self.ranks
        reshard = {"yes": True, "no": False, "node": NODE if group > NODE else True}[self.reshard]
        return Sharding(group, self.ranks // group, self.wrap, LEAST, reshard, self.prefetch, self.offload, parameter,
                        reduce)  # fmt: skip

    @property
    def account(self) -> FsdpAccount:
        """What a rank holds. The link and the device do not matter."""
        return _account(replace(self, link="ib", device="h100-sxm"))

    @property
    def time(self) -> StepTime:
        return _time(self)

    @property
    def memory_bytes(self) -> int:
        return DEVICES[self.device].memory_bytes

    @property
    def fits(self) -> bool:
        """With what the driver and the allocator may take beside it (memory/allocator.py)."""
        return allocator.fits(self.account.peak_bytes, self.memory_bytes)

    @property
    def waiting(self) -> float:
        """Share of the step in which the GPU waits: exposed communication, and the host's update with offload."""
        line = self.time.timeline
        return (line.exposed_seconds + (line.update_seconds if self.offload else 0.0)) / line.seconds


@lru_cache(maxsize=128)
def _account(setting: Setting) -> FsdpAccount:
    recipe = Recipe(precision="fp32", checkpointing=setting.checkpointing)
    return fsdp_account(PRESETS[setting.model], setting.batch, setting.tokens, recipe, setting.sharding)


@lru_cache(maxsize=128)
def _time(setting: Setting) -> StepTime:
    device = DEVICES[setting.device]
    most, across, adapters, rdma, _ = LINKS[setting.link]
    gpus = min(most, setting.ranks)
    joined = topology.cluster(setting.ranks // gpus, gpus, device.link, across, adapters, rdma)
    dtype = "fp32" if setting.precision == "fp32" else device.half
    return fsdp_seconds.from_device(
        PRESETS[setting.model], setting.batch, setting.tokens, device, joined, setting.sharding, dtype=dtype,
        efficiency=COMPUTE_SHARE, checkpointing=setting.checkpointing,
    )  # fmt: skip


def draw(params: dict, width: int) -> dict:
    """Memory over time above, the lanes of the step beneath on the same axis, and the verdict in the sentence."""
    setting = Setting(**{**params, "ranks": int(params["ranks"]), "seq": int(params["seq"])})
    values = _values(setting)
    return {"svg": _picture(setting, values), "sentence": _sentence(setting, values), "values": values}


def _values(setting: Setting) -> dict:
    account, time = setting.account, setting.time
    line, moment = time.timeline, account.peak_moment
    sent = volume(PRESETS[setting.model], setting.sharding)
    healthy = setting.waiting <= EXPOSED
    held = allocator.verdict(account.peak_bytes, setting.memory_bytes)
    return {
        "peak_gib": account.peak_bytes / GIB, "peak_gb": account.peak_bytes / 1e9, "peak_phase": moment.phase,
        "peak_unit": moment.unit, "device_gib": setting.memory_bytes / GIB,
        "of_device": account.peak_bytes / setting.memory_bytes,
        "room_gib": allocator.room(setting.memory_bytes) / GIB,
        "spare_percent": 100 * (1 - account.peak_bytes / allocator.room(setting.memory_bytes)),
        **{f"{name}_gib": sum(moment.held.get(kind, 0) for kind in kinds) / GIB
           for name, (_, kinds) in fsdp_lanes.STACK.items()},
        "host_gib": sum(account.host.values()) / GIB, "fits": setting.fits, "healthy": healthy,
        "verdict": ("healthy" if healthy else "merely fits") if setting.fits else held,
        "step_seconds": time.seconds, "compute_seconds": line.compute_seconds,
        "communication_seconds": line.communication_seconds, "exposed_seconds": line.exposed_seconds,
        "update_seconds": line.update_seconds, "exposed_percent": 100 * line.exposed_seconds / line.seconds,
        "waiting_percent": 100 * setting.waiting, "overlap_fraction": line.overlap_fraction,
        "tokens_per_second": time.tokens_per_second, "mfu": time.mfu,
        "units": len(units(PRESETS[setting.model], setting.sharding)), "gathers": line.gathers,
        "scatters": line.scatters, "sent_gb": sent["total"] / 1e9, "ddp_sent_gb": sent["ddp"] / 1e9,
    }  # fmt: skip


# --- the sentence ---------------------------------------------------------------------------------------------


def _sentence(setting: Setting, values: dict) -> str:
    gpus = f"{setting.ranks:,} {DEVICES[setting.device].name}"
    where = {"forward": "in forward", "loss": "at the loss", "backward": "in backward", "update": "in the update"}
    how = f"{setting.tokens:,} tokens a sequence, compute at {COMPUTE_SHARE:.0%} of peak"
    peak = f"{svg.quantity(values['peak_gib'])} of {svg.quantity(values['device_gib'])} GiB"
    first = f"{NAMES[setting.model]} on {gpus} ({how}): {peak} at the peak, {where[values['peak_phase']]}. "
    if setting.offload:
        first += f"The host holds {svg.quantity(values['host_gib'])} GiB for each GPU. "
    if not values["fits"]:
        return f"{first}{_too_much(values)} {advice(setting)}"
    spare = f"with {values['spare_percent']:.0f}% to spare under the reserve"
    limit = f"{'no more' if values['healthy'] else 'more'} than {EXPOSED:.0%}"
    if setting.offload:
        limit += f"; {values['update_seconds'] / values['step_seconds']:.1%} for the host's update"
    waits = f"a GPU waits for {values['waiting_percent']:.1f}% of its {svg.seconds(values['step_seconds'])} ({limit})"
    found = f"{waits}, MFU {values['mfu']:.0%}."
    if values["verdict"] == "merely fits":
        return f"{first}It merely fits, {spare}: {found} {advice(setting)}"
    alone = " One GPU has nothing to gather." if setting.ranks == 1 else ""
    return f"{first}It fits, {spare}, and trains with healthy throughput: {found}{alone}"


def _too_much(values: dict) -> str:
    """Why it does not fit, or may not."""
    if values["verdict"] == "does not fit":
        return "It does not fit."
    left, most = (values["device_gib"] - values[name] for name in ("peak_gib", "room_gib"))
    return f"It may fit: {left:.1f} GiB are left, and the driver and the allocator can take {most:.1f}."


# --- the picture ----------------------------------------------------------------------------------------------

WIDTH, LEFT, RIGHT, HEIGHT = 480, 40, 6, 180


def _picture(setting: Setting, values: dict) -> str:
    line, device = setting.time.timeline, values["device_gib"]
    items = [(fill, f"{name} {_amount(values[f'{name}_gib'])}") for name, (fill, _) in fsdp_lanes.STACK.items()]
    keys, height = svg.legend(4, 4, WIDTH - 8, items[::-1], 2)
    peak = values["peak_gib"]
    top = max(peak * 1.06, device * 1.06 if device < 2 * peak else 0.0)
    plane = Plane(LEFT, height + 32, WIDTH - LEFT - RIGHT, HEIGHT, Axis(0, line.seconds), Axis(0, top))
    body, below = fsdp_lanes.lanes(line, LEFT, plane.bottom + 10, plane.width)
    unit, factor = ("s", 1.0) if line.seconds >= 1 else ("ms", 1e3)
    limit = f"this GPU: {svg.quantity(device)} GiB"
    words = f"GiB held; at the peak {svg.quantity(peak)}, by kind above" + ("" if device < top else f"; {limit}")
    parts = [
        keys, svg.axis_x(LEFT, below + 8, plane.width, line.seconds * factor, unit, plane.top),
        svg.text(4, plane.top - 8, words, fill="muted"),
        fsdp_lanes.area(fsdp_lanes.placed(setting.account, line), plane, GIB), _y_axis(plane), body,
    ]  # fmt: skip
    if device < top:
        at = plane.at_y(device)
        reserve = plane.at_y(values["room_gib"])
        parts.append(svg.line(LEFT, at, plane.right, at, "accent", 2, "5 4"))
        parts.append(svg.line(LEFT, reserve, plane.right, reserve, "accent", 1, "2 3"))
        limit += f"; it fits below the thin line, {svg.quantity(values['room_gib'])}"
        beside = at - 5 if at > plane.top + 16 else at + 15
        words_at = reserve + 15 if peak > device else beside  # beneath the lines where the peak stands above them
        parts.append(svg.text(plane.right - 4, words_at, limit, anchor="end", fill="accent", halo=True))
    share = f"{values['exposed_percent']:.1f}% of the step"
    exposed = f"exposed communication: {svg.seconds(values['exposed_seconds'])}, {share}"
    more, extra = svg.legend(4, below + 36, WIDTH - 8, [("accent", exposed)], 1)
    label = (
        f"Memory of one GPU through a step of {svg.seconds(values['step_seconds'])}, by kind, at most "
        f"{svg.quantity(peak)} GiB; beneath, what it computes, gathers and reduces meanwhile."
    )
    return svg.figure(WIDTH, below + 36 + extra, "".join([*parts, more]), label)


def _amount(gib: float) -> str:
    """For the legend: no more digits than can be seen."""
    return f"{gib:.2f}" if gib < 10 else svg.quantity(gib)


def _y_axis(plane: Plane) -> str:
    return "".join(
        svg.line(LEFT - 4, plane.at_y(value), LEFT, plane.at_y(value), "muted")
        + svg.text(LEFT - 7, plane.at_y(value) + 4, f"{value:,g}", anchor="end", fill="muted", size=12)
        for value in plane.y.ticks()
    )
