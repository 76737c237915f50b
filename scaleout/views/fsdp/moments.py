"""Moments of a step that the view `fsdp` shows: those of the life of one unit, and where they lie in time."""

from __future__ import annotations

from collections.abc import Sequence

from scaleout.draw.fsdp_hill import Placed
from scaleout.draw.fsdp_life import MOMENTS
from scaleout.timing.fsdp_lives import Life
from scaleout.timing.fsdp_short import ShortTimeline

LAST = len(MOMENTS) - 1
SHOWN = 0  # at rest, as the view opens


def seconds(life: Life, line: ShortTimeline) -> list[float]:
    """Of each moment: the middle of what happens then."""
    turn, passes_end = _middle(life.forward[1], life.backward[0]), line.passes[-1][1]
    reduced = life.reduce[1] if life.reduce else life.backward[1]
    middles = [
        0.0,
        _middle(*(life.gather or (life.forward[0],) * 2)),
        _middle(*life.forward),
        turn,
        _middle(*(life.regather or (life.backward[0],) * 2)),
        _middle(*life.backward),
        _middle(*(life.reduce or (life.backward[1],) * 2)),
        _middle(reduced, passes_end),
        _middle(passes_end, line.seconds),
    ]
    for k in range(1, len(middles)):  # a gather may begin before its turn
        middles[k] = max(middles[k], middles[k - 1])
    return middles


def _middle(start: float, end: float) -> float:
    return (start + end) / 2


def held_bytes(rows: Sequence[Placed], time: float) -> int:
    """Bytes that a GPU holds at a moment, the fullest of the stretches that it lies in."""
    bytes_now, last = 0, (-1.0, rows[0][2].bytes)
    for start, end, moment in rows:
        if start <= time <= end:
            bytes_now = max(bytes_now, moment.bytes)
        elif end < time:
            last = max(last, (end, moment.bytes))
    return bytes_now or last[1]


def named(unit: str) -> str:
    """A unit's name for people: block 15, or a part of one."""
    return unit.removeprefix("blocks.").join(("block ", "")) if unit.startswith("blocks.") else unit or "the root"
