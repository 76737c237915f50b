"""Store it or recompute it: a block's saved tensors, the time each byte takes, and what freed memory costs the step."""

from __future__ import annotations

from scaleout.spec.program import PROGRAMS
from scaleout.views import guess, more, play, select, toggle
from scaleout.views.base import kept
from scaleout.views.choices import LARGE, NAMES, cards
from scaleout.views.recompute import levers, picture, words
from scaleout.views.recompute.frame import MICRO
from scaleout.views.recompute.setting import STEP, Setting

TITLE = "Store it or recompute it"

MODELS = ("llama-2-7b", "llama-2-13b", "llama-3-8b", "llama-3-70b", "gpt-3-175b")
CONTROLS = (
    guess("Save nothing of a block but its **input**, and recompute the rest before its backward pass. How much longer "
          "is the step?", "all_percent", "%", lo=0, hi=100, step=1),
    play("dropped", "Activations freed", 0, 0, 100, STEP, "%"),
    select("order", "Freed first", "cheapest",
           [("cheapest", "cheapest"), ("as it runs", "in forward order"), ("dearest", "most expensive")]),
    select("attention", "Attention kernel", "sdpa", [("sdpa", "fused"), ("naive", "naive: saves scores")]),
    select("way", "Freed by", "rebuild", [("rebuild", "recomputing"), ("offload", "offloading to CPU")]),
    select("batch", "Sequences per GPU", 4, [(n, str(n)) for n in (1, 2, 4, 8, 16)]),
    *more(
        select("model", "Model", "llama-2-7b", [(key, NAMES[key]) for key in MODELS]),
        select("seq", "Tokens per sequence", "4096", [(str(2**k), f"{2**k:,}") for k in range(10, 16)]),
        select("device", "GPU", "h100-sxm", cards(LARGE)),
        select("tp", "Tensor-parallel ranks", 1, [(n, str(n)) for n in (1, 2, 4, 8)]),
        select("dp", "FSDP shards the states over", 8, [(1, "1: no sharding"), (8, "8"), (64, "64")]),
        select("program", "Program", "megatron",
               [(key, PROGRAMS[key].label) for key in ("megatron", "compiled", "eager")]),
        toggle("dropout", "Dropout, 10%", False, help="Its masks are saved too, one byte per number."),
    ),
)  # fmt: skip


def draw(params: dict, width: int) -> dict:
    """The saved tensors and which are freed, the curve as far as the cut, and the memory and time of a step."""
    setting = Setting.of(params)
    return {
        "svg": picture.picture(setting, width),
        "sentence": words.sentence(setting),
        "law": words.law(setting),
        "values": _values(setting),
    }


advice = Setting.asked(levers.sentence)


def locked(params: dict, width: int) -> str:
    """All tensors saved, and no curve."""
    return picture.locked(Setting.of(params).other(dropped=0), width)


def slips(params: dict) -> list[tuple[float, str]]:
    """Percentages that likely mistakes give."""
    return words.slips()


@kept
def _values(setting: Setting) -> dict:
    """What is the same at both widths."""
    case = setting.case
    all_dropped = setting.other(dropped=100)
    return {
        "all_percent": round(100 * all_dropped.share, 1),
        "longer_percent": 100 * setting.share,
        "by_blocks_percent": 100 * setting.by_blocks,
        "freed_gb": setting.freed / 1e9,
        "kept_gb": setting.kept_bytes / 1e9,
        "block_mb": (case.block + case.input) / 1e6,
        "seconds": setting.seconds,
        "plain_seconds": case.plain.seconds,
        "parts": setting.parts,
        "held_gb": setting.peak / 1e9,
        "by_kind_gb": {kind: size / 1e9 for kind, size in setting.peak_kinds.items()},
        "usable_gb": case.usable / 1e9,
        "fits": setting.fits,
        "fits_from_percent": setting.least,
        "in_order": [item.name for item in setting.tiles],
        "tiles": {
            item.name: [item.bytes / 1e6, item.price * MICRO, setting.counts[item.name] / item.count]
            for item in setting.tiles
        },
    }
