"""Which lever to move in the view `pipeline`: each is tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator

from scaleout.spec import pipeline as spec
from scaleout.views.pipeline.setting import MOST, YOURS, reach
from scaleout.views.pipeline.words import amount, number

WORTH = 0.02  # of the bubble's share, that a lever must take away to be named
SMALL = 0.03  # a bubble that is left alone
SAME = 1.01  # times as long, and still called the same

Lever = tuple[str, object]  # words, and the setting that it leads to


def advice(setting) -> str:
    """The lever worth trying now, with what it gives; "" where none is."""
    if setting.schedule == YOURS:
        return _puzzle(setting)
    if setting.schedule == "gpipe":
        lean = setting.other(schedule="1f1b")
        same = lean.micro_batches == setting.micro_batches and lean.slots <= SAME * setting.slots
        if same and lean.peaks[0] < setting.peaks[0]:
            return f"Try **1F1B**: rank 0 holds {amount(lean.peaks[0])} at a time, and the step is no longer."
    found = best(setting)
    return f"Try **{found[0]}**: {found[1].bubble:.0%} waiting, {amount(found[1].peaks[0])} held." if found else ""


def best(setting) -> Lever | None:
    """The first lever that takes WORTH of the bubble away, the mildest first."""
    if setting.bubble < SMALL:
        return None
    return next((one for one in _levers(setting) if one[1].bubble <= setting.bubble - WORTH), None)


def _levers(setting) -> Iterator[Lever]:
    if setting.hop and setting.gpipe.slots * SAME < setting.slots:
        yield "GPipe, which holds enough to hide the hops", setting.gpipe
    many = setting.micro_batches
    if many < 4 * setting.ranks and 2 * many <= MOST:
        yield f"{2 * many} micro-batches", setting.other(asked=2 * many)
    for schedule, chunks in (("interleaved", 2), ("zb1", 1), ("zbv", 2)):
        if (
            schedule != setting.schedule
            and setting.ranks <= reach(schedule)
            and spec.allowed(schedule, setting.ranks, many)
        ):
            tried = setting.other(schedule=schedule, wanted=chunks)
            yield f"{tried.label}{f' with v = {chunks}' if chunks > 1 else ''}", tried
    if 2 * many <= MOST:
        yield f"{2 * many} micro-batches", setting.other(asked=2 * many)


def _puzzle(setting) -> str:
    """What ZB1 makes of the same work."""
    known = setting.other(schedule="zb1", wanted=1)
    if setting.waits:
        return "Move it back, or another."
    if setting.slots > known.slots + 1e-9:
        there = f"ZB1 takes {number(known.slots)}, holding {amount(known.peaks[0])}"
        return f"Pull **input gradients** forward, last rank first, weight gradients behind them: {there}."
    return f"As short as ZB1, which holds {amount(known.peaks[0])}."
