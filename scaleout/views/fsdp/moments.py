"""Moments of a step that the view `fsdp` shows: those of the life of one unit, and where they lie in time."""

from __future__ import annotations

from collections.abc import Sequence

from scaleout.draw.fsdp_hill import Placed
from scaleout.draw.fsdp_life import MOMENTS
from scaleout.timing.fsdp_lives import Life
from scaleout.timing.fsdp_short import ShortTimeline

LAST = len(MOMENTS) - 1
SHOWN = 1  # the first gather, as the view opens


def seconds(life: Life, line: ShortTimeline) -> list[float]:
    """Of each moment: the middle of what happens then."""
    turn, done = _middle(life.forward[1], life.backward[0]), line.passes[-1][1]
    after = life.reduce[1] if life.reduce else life.backward[1]
    found = [
        0.0,
        _middle(*(life.gather or (life.forward[0],) * 2)),
        _middle(*life.forward),
        turn,
        _middle(*(life.regather or (life.backward[0],) * 2)),
        _middle(*life.backward),
        _middle(*(life.reduce or (life.backward[1],) * 2)),
        _middle(after, done),
        _middle(done, line.seconds),
    ]
    for k in range(1, len(found)):  # a gather may begin before its turn
        found[k] = max(found[k], found[k - 1])
    return found


def _middle(start: float, end: float) -> float:
    return (start + end) / 2


def held(rows: Sequence[Placed], at: float) -> int:
    """Bytes that a GPU holds at a moment, the fullest of the stretches that it lies in."""
    now, before = 0, (-1.0, rows[0][2].bytes)
    for start, end, moment in rows:
        if start <= at <= end:
            now = max(now, moment.bytes)
        elif end < at:
            before = max(before, (end, moment.bytes))
    return now or before[1]


def named(unit: str) -> str:
    """A unit's name for people: block 15, or a part of one."""
    return unit.removeprefix("blocks.").join(("block ", "")) if unit.startswith("blocks.") else unit or "the root"
