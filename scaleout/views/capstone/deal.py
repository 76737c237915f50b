"""The top of the view `capstone`: the batch with a cell for each GPU, and the step of a GPU whose work stays the same,
with its computation above its communication."""

from __future__ import annotations

from math import ceil, log2

from scaleout.draw import hatch, labels, svg
from scaleout.views.capstone.frame import Frame, Panel
from scaleout.views.capstone.speedup import Curves, Setting
from scaleout.words.amounts import clock, quantity


def batch(panel: Panel, frame: Frame, setting: Setting, values: dict) -> str:
    """A cell for each GPU; those without a sequence are empty, at the right."""
    top, tall = frame.deal
    full = panel.width * (1 - values["strong_idle"])
    parts = [svg.rect(panel.x, top, full, tall, "compute", title="GPUs with sequences", mark="batch")]
    if panel.width - full > 0.3:
        parts.append(hatch.box(panel.x + full, top, panel.width - full, tall, "muted", "no sequence", "empty"))
    doublings = log2(setting.world)
    rows = 2 ** max(0, int((doublings - 1) // 2))
    columns = ceil(setting.world / rows)
    edges = [
        f"M{svg.num(panel.x + panel.width * k / columns)} {svg.num(top)}v{svg.num(tall)}" for k in range(1, columns)
    ]
    edges += [f"M{svg.num(panel.x)} {svg.num(top + tall * k / rows)}h{svg.num(panel.width)}" for k in range(1, rows)]
    thick = 1.0 if setting.world < 512 else 0.6
    parts += [
        f'<path d="{"".join(edges)}" fill="none" stroke="{svg.colour("paper")}" stroke-width="{thick}"/>',
        svg.frame(panel.x + 0.5, top, panel.width - 1, tall),
    ]
    return "".join(parts)


def step(panel: Panel, frame: Frame, scaled: Curves, values: dict) -> str:
    """Computation and what communication adds; beneath, transfer and latency, on one scale for all numbers of GPUs."""
    longest = max(max(point.wire, point.seconds) for point in scaled.weak.values())
    unit, second = clock(values["weak_seconds"])
    scale = panel.width / longest
    works, waits = values["weak_compute_seconds"], values["weak_waits"] * values["weak_seconds"]
    sent, starts = values["weak_byte_seconds"], values["weak_start_seconds"]
    first, second_row, bar = _rows(frame)

    def seconds_label(seconds: float) -> str:
        return amount(seconds / second)

    end = panel.x + works * scale
    ways: tuple[str, ...] = (f"compute {seconds_label(works)} {unit}",)
    if waits >= 0.005 * values["weak_seconds"]:
        ways = (
            f"compute {seconds_label(works)} + communication {seconds_label(waits)} {unit}",
            f"compute {seconds_label(works)} + comm. {seconds_label(waits)} {unit}",
        )
    parts = [
        svg.text(panel.x, first - 4, labels.fitting(ways, panel.width, frame.small) or ways[-1], size=frame.small),
        svg.rect(panel.x, first, works * scale, bar, "compute", title="compute", mark="computes"),
    ]
    if waits * scale > 0.3:
        parts.insert(1, hatch.box(end, first, waits * scale, bar, "accent", "communication", "waits"))
    words = f"link: transfer {seconds_label(sent)} + latency {seconds_label(starts)} {unit}"
    ways = (
        words,
        f"transfer {seconds_label(sent)} + latency {seconds_label(starts)} {unit}",
        f"link {seconds_label(sent + starts)} {unit}",
    )
    words = labels.fitting(ways, panel.width, frame.small) if sent + starts else "no communication"
    parts += [
        svg.line(end, first - 1, end, second_row + bar + 3, "ink", 1.5, mark="until"),
        svg.text(panel.x, second_row - 4, words, size=frame.small, halo=True),
        svg.rect(panel.x, second_row, sent * scale, bar, "c4", title="transfer of bytes", mark="bytes"),
        svg.rect(panel.x + sent * scale, second_row, starts * scale, bar, "c7", title="latency", mark="starts"),
    ]
    return "".join(parts)


def amount(value: float) -> str:
    """Three digits, no more than two of them after the point."""
    return quantity(value) if value >= 1 else "0" if value == 0 else f"{value:.2f}" if value >= 0.005 else "under 0.01"


def empty_step(panel: Panel, frame: Frame) -> str:
    """The rows of computation and communication, empty."""
    first, second, bar = _rows(frame)
    parts = []
    for y, words in ((first, "compute"), (second, "link: how long?")):
        parts += [
            svg.text(panel.x, y - 4, words, size=frame.small),
            svg.line(panel.x, y + bar, panel.x + panel.width, y + bar, "muted", 1, "3 4"),
        ]
    return "".join(parts)


def _rows(frame: Frame) -> tuple[float, float, float]:
    """Where both bars begin, and their height."""
    top, tall = frame.deal
    bar = 20.0 if frame.wide else 14.0
    return top + 14, top + tall - bar - 2, bar
