"""Which lever to move in the view `pipeline`: each is tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator

from scaleout.spec import pipeline as spec
from scaleout.views import lever
from scaleout.views.lever import Change, Lever
from scaleout.views.pipeline.setting import MOST_MICRO_BATCHES, YOURS, reach
from scaleout.views.pipeline.words import amount, goal, slots

WORTH = 0.02  # of the bubble's share, that a lever must take away to be named
SMALL = 0.03  # a bubble that is left alone
ALIKE = 1.01  # times as long, and still called the same


def advice(setting) -> str:
    """The lever worth trying now, with what it gives; "" where none is."""
    if setting.schedule == YOURS:
        return _puzzle(setting)
    if setting.schedule == "gpipe":
        lean = setting.other(schedule="1f1b")
        alike = lean.micro_batches == setting.micro_batches and lean.slots <= ALIKE * setting.slots
        if alike and lean.peaks[0] < setting.peaks[0]:
            return f"Try **1F1B**: rank 0 has at most {amount(lean.peaks[0])} in flight, and the step takes no longer."
    return lever.sentence(best(setting), "")


def best(setting) -> Lever | None:
    """The first lever that takes WORTH of the bubble away, the mildest first."""
    if setting.bubble < SMALL:
        return None
    return lever.first(
        lever.tried(setting, _levers(setting)),
        lambda trial: trial.bubble <= setting.bubble - WORTH,
        lambda trial: f"{trial.bubble:.0%} idle, {amount(trial.peaks[0])} in flight",
    )


def _levers(setting) -> Iterator[Change]:
    if setting.hop and setting.gpipe.slots * ALIKE < setting.slots:
        yield "GPipe, which hides hops better", {"schedule": "gpipe", "wanted": 1}
    micro_batches = setting.micro_batches
    twice = f"{2 * micro_batches} micro-batches", {"requested": 2 * micro_batches}
    if micro_batches < 4 * setting.ranks and 2 * micro_batches <= MOST_MICRO_BATCHES:
        yield twice
    for schedule, chunks in (("interleaved", 2), ("zb1", 1), ("zbv", 2)):
        if (
            schedule != setting.schedule
            and setting.ranks <= reach(schedule)
            and spec.allowed(schedule, setting.ranks, micro_batches)
        ):
            label = spec.SCHEDULES[schedule].label
            yield f"{label}{f' with v = {chunks}' if chunks > 1 else ''}", {"schedule": schedule, "wanted": chunks}
    if 2 * micro_batches <= MOST_MICRO_BATCHES:
        yield twice


def _puzzle(setting) -> str:
    """The goal of the reader's own order, and how far it is; none of the moves that lead there."""
    if setting.waits:
        return "Move a framed block to a later place in its row."
    if setting.reached:
        if setting.slots <= setting.least + 1e-9:
            return "**Goal reached**: no order is shorter, because one rank is never idle once it has begun."
        return f"**As good as {setting.goal.label}**, the best order in the menu. Can it be shorter?"
    extra_slots, extra_micro_batches = setting.slots - setting.goal.slots, setting.peaks[0] - setting.goal.peaks[0]
    misses = [f"{slots(extra_slots)} too long"] if extra_slots > 1e-9 else []
    misses += [f"{amount(extra_micro_batches)} too many in flight on rank 0"] if extra_micro_batches > 0 else []
    return f"Goal: **{goal(setting)}**; now {' and '.join(misses)}."
