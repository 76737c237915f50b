"""Where a number format ends: gradients of a real run by size, above the range of a format, and what brings them into
it."""

from __future__ import annotations

from scaleout.draw.ruler import power
from scaleout.views import guess, lever, more, play, select, slider
from scaleout.views.base import kept
from scaleout.views.precision import levers, picture, words
from scaleout.views.precision.setting import EVERY_PART, MOST_OCTAVES, PARTS, STEPS, Setting

TITLE = "Where a number format ends"

CONTROLS = (
    guess(f"These gradients are stored in **fp16**, whose smallest normal number is **{power(-14)}**. What share of "
          "them becomes **zero**? That share lies to the left of your line.", "zero_percent", "%", lo=0, hi=100,
          step=1),
    play("step", "Watch the scaler search, step by step", 0, 0, STEPS),
    select("format", "Format of the gradients", "fp16",
           [(name, name) for name in ("fp16", "bf16", "e5m2", "e4m3", "e2m1")]),
    slider("scale", "Loss scale, log₂", 0, 0, MOST_OCTAVES),
    select("part", "Part of the model", "block 4, queries and keys",
           [(EVERY_PART, "all parts together"), *((part, part) for part in PARTS), ("head", "head")]),
    select("moment", "Step of the run", "last step", [("first step", "first"), ("last step", "last")]),
    *more(
        select("kind", "Which gradients", "activations",
               [("activations", "of activations"), ("weights", "of weights")]),
        select("shared", "Shared scale", "none",
               [("none", "none"), ("tensor", "one per tensor, fp32"), ("floor", "per block, power of two, down"),
                ("up", "per block, power of two, up"), ("nv", "per block, e4m3 (NVFP4)")]),
        slider("block", "Numbers per block", 32, 8, 1024, 8, log=True),
        select("interval", "Good steps until the scale doubles", 8,
               [(1, "1"), (8, "8, this run"), (2000, "2,000, torch")]),
        slider("smaller", "Make gradients smaller, log₂", 0, 0, 8),
    ),
)  # fmt: skip


def draw(params: dict, width: int) -> dict:
    """The histogram on its ruler, the format beneath it, and what becomes of the gradients."""
    setting = Setting.of(params)
    return {
        "svg": picture.picture(setting, width),
        "sentence": words.sentence(setting),
        "law": words.law(setting),
        "values": _values(setting),
        "levers": _levers(setting),
    }


def advice(params: dict) -> str:
    """The lever worth trying now, with what it gives."""
    return lever.sentence(levers.advice(Setting.of(params)), words.BEST)


locked = Setting.asked(picture.locked)
slips = Setting.asked(words.slips)


def _levers(s: Setting) -> dict:
    """Controls that change nothing now, and why."""
    levers: dict[str, dict[str, object]] = {}
    if s.format != "fp16":
        levers["step"] = {"off": "only fp16 uses a GradScaler"}
    if s.searches:
        levers["scale"] = {"off": "the scaler sets it: set its step to 0", "takes": s.octaves}
    elif s.shares:
        levers["scale"] = {"off": "shared scales cancel it"}
    if s.f.bits > 8:
        levers["shared"] = {"off": "16-bit formats do not need one"}
    if not s.shares or s.shared == "tensor":
        levers["block"] = {"off": "there are no blocks"}
    if not s.searches:
        levers["interval"] = {"off": "only for the search: press Play"}
    return levers


@kept
def _values(s: Setting) -> dict:
    """What is the same at both widths."""
    fate_shown = s.shared_fate if s.shares else s.fate
    values: dict[str, object] = {
        "zero_percent": round(100 * fate_shown.zero, 1),
        "few_percent": _percent(fate_shown.few),
        "whole_percent": _percent(fate_shown.whole),
        "beyond_percent": _percent(s.shared_fate.clipped if s.shares else s.fate.beyond),
        "bits": s.f.digits,
        "scale_log2": s.octaves,
        "zero_below_log2": s.zero_below,
        "top": s.f.largest,
        "largest_log2": round(s.largest, 6),
        "largest_of_all_log2": round(s.peak[0] + s.octaves, 6),
        "overflows": s.overflows,
        "middle_octave": s.middle,
    }
    if s.shares:
        b = s.blocks
        return values | {
            "error_percent": _percent(s.shared_fate.error),
            "numbers_a_scale": b.size or s.h.total,
            "bits_a_number": b.bits(s.h.total),
        }
    values |= {
        "middle_bits": s.kept_bits,
        "zero_percent_by_part": {part: _percent(share) for part, share in s.zeros.items()},
    }
    if s.searches:
        values |= {
            "step": s.step,
            "skipped": s.current.skipped,
            "scales": [share.scale for share in s.course],
            "skipped_so_far": sum(share.skipped for share in s.course[: s.step]),
        }
    return values


def _percent(share: float) -> float:
    """Per cent to a ten-thousandth, so that no library of logarithms decides the last digit."""
    return round(100 * share, 4)
