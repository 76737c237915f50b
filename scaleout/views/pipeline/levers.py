"""Which lever to move in the view `pipeline`: each is tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scaleout.spec import pipeline as spec
from scaleout.views.pipeline.setting import MOST_MICRO_BATCHES, YOURS, reach
from scaleout.views.pipeline.words import amount, number

WORTH = 0.02  # of the bubble's share, that a lever must take away to be named
SMALL = 0.03  # a bubble that is left alone
ALIKE = 1.01  # times as long, and still called the same

Lever = tuple[str, Any]  # words, and the setting that it leads to


def advice(setting) -> str:
    """The lever worth trying now, with what it gives; "" where none is."""
    if setting.schedule == YOURS:
        return _puzzle(setting)
    if setting.schedule == "gpipe":
        lean = setting.changed(schedule="1f1b")
        alike = lean.micro_batches == setting.micro_batches and lean.slots <= ALIKE * setting.slots
        if alike and lean.peaks[0] < setting.peaks[0]:
            return f"Try **1F1B**: rank 0 holds {amount(lean.peaks[0])} at a time, and the step is no longer."
    lever = best(setting)
    return f"Try **{lever[0]}**: {lever[1].bubble:.0%} waiting, {amount(lever[1].peaks[0])} held." if lever else ""


def best(setting) -> Lever | None:
    """The first lever that takes WORTH of the bubble away, the mildest first."""
    if setting.bubble < SMALL:
        return None
    return next((lever for lever in _levers(setting) if lever[1].bubble <= setting.bubble - WORTH), None)


def _levers(setting) -> Iterator[Lever]:
    if setting.hop and setting.gpipe.slots * ALIKE < setting.slots:
        yield "GPipe, which holds enough to hide the hops", setting.gpipe
    micro_batches = setting.micro_batches
    if micro_batches < 4 * setting.ranks and 2 * micro_batches <= MOST_MICRO_BATCHES:
        yield f"{2 * micro_batches} micro-batches", setting.changed(requested=2 * micro_batches)
    for schedule, chunks in (("interleaved", 2), ("zb1", 1), ("zbv", 2)):
        if (
            schedule != setting.schedule
            and setting.ranks <= reach(schedule)
            and spec.allowed(schedule, setting.ranks, micro_batches)
        ):
            tried = setting.changed(schedule=schedule, wanted=chunks)
            yield f"{tried.label}{f' with v = {chunks}' if chunks > 1 else ''}", tried
    if 2 * micro_batches <= MOST_MICRO_BATCHES:
        yield f"{2 * micro_batches} micro-batches", setting.changed(requested=2 * micro_batches)


def _puzzle(setting) -> str:
    """What ZB1 makes of the same work."""
    known = setting.changed(schedule="zb1", wanted=1)
    if setting.waits:
        return "Move it back, or another."
    if setting.slots > known.slots + 1e-9:
        result = f"ZB1 takes {number(known.slots)}, holding {amount(known.peaks[0])}"
        return f"Pull **input gradients** forward, last rank first, weight gradients behind them: {result}."
    return f"As short as ZB1, which holds {amount(known.peaks[0])}."
