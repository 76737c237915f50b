"""Below the landscape of the view `planner`: step time and memory by part, for the best layout and the reader's."""

from __future__ import annotations

from functools import lru_cache

from scaleout.draw import hatch, svg
from scaleout.draw.labels import fitting
from scaleout.draw.parts import BYTES, GROUPS, Part, sizes
from scaleout.memory.job import fullest
from scaleout.spec.job import Job
from scaleout.timing.plan import Plan
from scaleout.views.planner.setting import Setting
from scaleout.words.amounts import amount, took


@lru_cache(maxsize=64)
def bytes_by_kind(job: Job) -> dict[Part, float]:
    """Bytes of the fullest GPU at its peak, by kind."""
    return sizes(BYTES, fullest(job).peak)


def spent(plan: Plan) -> dict[Part, float]:
    """Step time by the parts that are drawn."""
    return sizes(GROUPS, plan.parts)


def rows(setting: Setting) -> list[tuple[str, Plan]]:
    """The layouts with bars."""
    first = [("best" if setting.best else "least", setting.shown)] if setting.shown else []
    return first + ([("yours", setting.yours)] if isinstance(setting.yours, Plan) else [])


def drawn(setting: Setting, width: int, top: float) -> str:
    """Two pairs of bars with their keys, below `top`: 128 CSS pixels high, on a phone 124."""
    wide = width == svg.WIDE
    left, right, high = (52.0 if wide else 50.0), width - 6.0, (13 if wide else 11)
    plans = rows(setting)
    if not plans:
        return ""
    pitch, half = high + 3, 68 if wide else 64
    parts = [_title(setting, left, right, top + 11, "seconds"), _title(setting, left, right, top + half + 11, "bytes")]
    slowest = max(plan.seconds for _, plan in plans)
    most_bytes = max(*(plan.bytes for _, plan in plans), setting.job.device.memory_bytes)
    for i, (name, plan) in enumerate(plans):
        for kind, y in (("seconds", top + 17 + i * pitch), ("bytes", top + half + 17 + i * pitch)):
            scale = (right - left) / (slowest if kind == "seconds" else 1.02 * most_bytes)
            fill = "key" if name == "yours" else "ink"
            parts.append(
                svg.text(left - 6, y + high - 2.5, name, anchor="end", fill=fill, size=svg.SMALLEST, bold=True)
            )
            parts.append(_bar(plan, kind, left, y, high, scale))
            if name == "yours":
                long = scale * (plan.seconds if kind == "seconds" else plan.bytes)
                parts.append(svg.frame(left, y, long, high, "key", 1.5, "4 2"))
    limit = left + setting.usable * (right - left) / (1.02 * most_bytes)
    low = top + half + 17 + len(plans) * pitch
    parts.append(svg.line(limit, top + half + 14, limit, low, "accent", 2, "4 2", mark="room"))
    for kinds, y in ((GROUPS, top), (BYTES, top + half)):
        parts.append(_keys(kinds, left if wide else 4, y + 17 + 2 * pitch + 3, wide))
    return "".join(parts)


def stretch(part: Part, x: float, y: float, width: float, height: float, title: str = "") -> str:
    """A part of a bar, hatched where it is."""
    if part.hatched:
        return hatch.box(x, y, width, height, part.colour, title=title)
    return svg.rect(x, y, width, height, part.colour, title=title, opacity=0.85)


def _keys(kinds: tuple[Part, ...], x: float, y: float, wide: bool) -> str:
    """In one row."""
    parts = []
    for part in kinds:
        text = part.name if wide else part.brief
        parts.append(stretch(part, x, y, 10, 10))
        parts.append(svg.text(x + 13, y + 9, text, size=svg.SMALLEST))
        x += 13 + svg.measure(text, svg.SMALLEST) + (16 if wide else 7)
    return "".join(parts)


def _title(setting: Setting, left: float, right: float, y: float, kind: str) -> str:
    if kind == "seconds":
        ways = ["where the step time goes", "step time"]
    else:
        room = amount(setting.usable, 10**9)
        ways = [f"memory of the fullest GPU; dashed: the {room} that are usable", f"fullest GPU, of {room}"]
    return svg.text(4, y, fitting(ways, right - 4), fill="muted", size=svg.SMALL)


def _bar(plan: Plan, kind: str, x: float, y: float, high: float, scale: float) -> str:
    pieces = []
    for part, size in (spent(plan) if kind == "seconds" else bytes_by_kind(plan.job)).items():
        long = scale * size
        words = took(size) if kind == "seconds" else amount(size, 10**9)
        if long > 0.1:
            pieces.append(stretch(part, x, y, long, high, f"{part.name}: {words}"))
        x += long
    return "".join(pieces)
