"""One step of FSDP: memory over time, when each unit is unsharded and computes, and whether it fits and is fast."""

from __future__ import annotations

from scaleout.draw import fsdp_hill, fsdp_life
from scaleout.memory import allocator
from scaleout.spec.sharding import alike
from scaleout.spec.transformer import PRESETS
from scaleout.timing.fsdp import volume
from scaleout.views import guess, more, play, select, slider, toggle
from scaleout.views.base import kept
from scaleout.views.choices import LINKS, NAMES, NODE, cards, programs
from scaleout.views.fsdp import moments, picture, record, words
from scaleout.views.fsdp.levers import EXPOSED
from scaleout.views.fsdp.setting import Setting

TITLE = "One step of FSDP"

MODELS = tuple(key for key in PRESETS if key != "zero-1t")
GIB = 2**30
WRAPS = {"layer": "matrix", "block": "block", "size": "size", "model": "model"}
RESHARD = {"yes": "yes", "node": f"to {NODE} ranks", "no": "no"}
SHARD_GROUPS = {"all": "all GPUs", "node": f"each {NODE} GPUs, replicated (hybrid, HSDP)"}
_POWERS = [(str(2**k), f"{2**k:,}") for k in range(17)]

CONTROLS = (
    guess("16 H100s train Llama 3 8B (fp32 states, bf16 compute), wrapped by block, with 2 sequences of 4,096 tokens "
          "per GPU. How much memory does **one GPU** use at its peak?", "peak_gib", "GiB", lo=0, hi=100, step=1),
    play("moment", "Life of a unit", moments.SHOWN, 0, moments.LAST),
    select("wrap", "Wrap by", "block", list(WRAPS.items())),
    select("reshard", "Reshard after forward", "yes", list(RESHARD.items())),
    select("checkpointing", "Checkpointing", "none",
           [("none", "none"), ("selective", "selective"), ("full", "full")]),
    slider("batch", "Sequences per GPU", 2, 1, 64, log=True),
    *more(
        select("model", "Model", "llama-3-8b", [(key, NAMES[key]) for key in MODELS]),
        select("device", "GPU", "h100-sxm", cards()),
        select("ranks", "GPUs (ranks)", "16", _POWERS[:11]),
        select("link", "Connected by", "node-ib", [(key, words) for key, (*_, words) in LINKS.items()]),
        slider("prefetch", "Units prefetched", 1, 0, 4),
        select("over", "Shard over", "all", list(SHARD_GROUPS.items())),
        select("seq", "Tokens per sequence", "4096", _POWERS[7:15]),
        select("precision", "Mixed precision", "bf16",
               [("fp32", "fp32"), ("bf16", "bf16, reduce in fp32"), ("bf16-reduce", "bf16, reduce in bf16")]),
        toggle("offload", "CPU offload of shards and optimizer", False),
        select("program", "Run by", "compiled", programs("compiled", "eager")),
    ),
)  # fmt: skip


def draw(params: dict, width: int, run: dict | None = None) -> dict:
    """The life of a unit; under one cursor, when each unit is unsharded and the memory of a GPU; and the verdict."""
    setting, moment = Setting.of(params), params["moment"]
    result = _result(setting)
    values = {**result["values"], **_at_moment(setting, moment)}
    same_setting = run is not None and record.belongs(run, setting.model, setting.ranks)
    return {**result, "svg": picture.picture(setting, moment, values, width, run, same_setting), "values": values}


measured = record.measured


def advice(params: dict) -> str:
    """The change worth trying now, with its effect."""
    setting = Setting.of(params)
    return words.advice(setting, _result(setting)["values"])


def locked(params: dict, width: int) -> str:
    """A unit's life and what runs when, over an empty chart of memory."""
    return picture.locked(Setting.of(params), params["moment"], width)


def slips(params: dict) -> list[tuple[float, str]]:
    """Peaks that likely mistakes give, of the opening setting."""
    setting = Setting.of(params)
    return words.slips(setting, _result(setting)["values"])


def _at_moment(setting: Setting, moment: int) -> dict:
    """Values at a moment of the unit's life."""
    seconds, unit = setting.seconds_at(moment), setting.unit
    return {
        "moment": fsdp_life.MOMENTS[moment],
        "moment_said": fsdp_life.caption(unit, moment),
        "moment_seconds": seconds,
        "moment_gib": moments.held_bytes(setting.rows, seconds) / GIB,
        "sent_units": sum(unit.sent(moment)) * (1 - 1 / setting.sharding.ranks),
        "followed": setting.followed,
        "drawn": unit.ranks,
    }


@kept  # for both widths, and each moment
def _result(setting: Setting) -> dict:
    """What is the same at every width."""
    values = _values(setting)
    return {
        "sentence": words.sentence(setting, values),
        "values": values,
        "law": words.law(setting, values),
        "levers": _levers(setting, values),
    }


def _levers(setting: Setting, values: dict) -> dict:
    """Controls that change nothing now, and why."""
    levers = {}
    if setting.ranks <= NODE:
        levers["over"] = {"off": f"{NODE} GPUs or fewer form one group."}
    if values["units"] == 1:
        levers["reshard"] = {"off": "The only unit is the root, which is never resharded after forward."}
        levers["prefetch"] = {"off": "There is only one unit, so there is none to prefetch."}
    elif not setting.gathers:
        levers["prefetch"] = {"off": "One GPU has nothing to all-gather."}
    if setting.ranks == 1:
        levers["link"] = {"off": "One GPU has no link to another."}
    return levers


def _values(setting: Setting) -> dict:
    account, time = setting.account, setting.time
    line, moment = setting.line, account.peak_moment
    sent = volume(setting.shape, setting.sharding)
    healthy = setting.waiting <= EXPOSED
    verdict = allocator.verdict(account.peak_bytes, setting.card.memory_bytes) if setting.host_fits else "does not fit"
    return {
        "peak_gib": account.peak_bytes / GIB,
        "peak_gb": account.peak_bytes / 1e9,
        "peak_phase": moment.phase,
        "peak_unit": moment.unit,
        "device_gib": setting.card.memory_bytes / GIB,
        "usable_gib": setting.usable / GIB,
        "spare_percent": 100 * (1 - account.peak_bytes / setting.usable),
        **{
            f"{name}_gib": sum(moment.held.get(kind, 0) for kind in kinds) / GIB
            for name, (*_, kinds) in fsdp_hill.STACK.items()
        },
        "gathered_most_gib": account.most_bytes("gathered") / GIB,
        "host_gib": sum(account.host.values()) / GIB,
        "host_fits": setting.host_fits,
        "fits": setting.fits,
        "healthy": healthy,
        "verdict": ("healthy" if healthy else "merely fits") if setting.fits else verdict,
        "step_seconds": time.seconds,
        "compute_seconds": line.compute_seconds,
        "communication_seconds": time.communication,
        "exposed_seconds": line.exposed_seconds,
        "beside_seconds": max(0.0, time.parts["exposed data"] - line.exposed_seconds),
        "update_seconds": line.update_seconds,
        "host_seconds": time.parts["host"] + time.parts["stragglers"],
        "exposed_percent": 100 * line.exposed_seconds / time.seconds,
        "waiting_percent": 100 * setting.waiting,
        "overlap_fraction": line.overlap_fraction,
        "tokens_per_second": time.tokens_per_second,
        "mfu": time.mfu,
        "units": sum(times for _, times in alike(setting.shape, setting.sharding)),
        "gathers": line.gathers,
        "scatters": line.scatters,
        "sent_gb": sent["total"] / 1e9,
        "ddp_sent_gb": sent["ddp"] / 1e9,
    }
