"""Blocks are alike: the moments of a middle block, repeated, make those of a deeper model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from scaleout.memory.fsdp_tape import Moment

_BLOCK = re.compile(r"blocks\.(\d+)(.*)")


Growth = dict[str, int]  # bytes by kind that blocks beside those that were walked add


def stretch(moments: Sequence[Moment], middle: int, extra: int, stride: int, fullest: bool = False) -> Iterator[Moment]:
    """The moments of a model that has `extra` more blocks beside number `middle`.

    What a block adds to each kind from its first moment to the next block's first, each further block adds again, so
    that none between the first and the last is fuller than both. stride: of the blocks that are alike, each such one is
    given, and the last; with 0 the first and the last. `gathered` is empty unless all are. fullest: only that moment of
    each of them.
    """
    if not extra:
        yield from moments
        return
    gathered: dict[str, None] = {}
    for part, previous, shift, grown, alike in _copies(moments, middle, extra, stride):
        for moment in [max(part, key=lambda m: m.bytes)] if fullest and alike else part:
            if stride == 1:
                _follow(gathered, previous, moment.gathered, shift)
                previous = moment.gathered
            yield _copied(moment, shift, grown, tuple(gathered))


def fullest_moment(moments: Sequence[Moment], middle: int, extra: int, kind: str = "") -> Moment:
    """The first of the stretched moments with the most bytes, of all kinds or of one."""
    if not extra:
        return max(moments, key=lambda m: m.held[kind] if kind else m.bytes)
    highest = -1
    for part, _, shift, grown, _ in _copies(moments, middle, extra, 0):
        extra_bytes = grown.get(kind, 0) if kind else sum(grown.values())
        for moment in part:
            size = extra_bytes + (moment.held[kind] if kind else moment.bytes)
            if size > highest:
                highest, best = size, (moment, shift, grown)
    return _copied(*best, ())


def _copies(
    moments: Sequence[Moment], middle: int, extra: int, stride: int
) -> Iterator[tuple[Sequence[Moment], Sequence[str], int, Growth, bool]]:
    """Stretches of moments in the order of time, each with the units that were whole before, what is added to the
    numbers of blocks and to its bytes, and whether it is of the blocks that are alike."""
    grown: Growth = {}
    for first, last, shifts in _parts(moments, middle, extra):
        step = _difference(moments[first], moments[last]) if len(shifts) > 1 else {}
        shown = sorted({0, *range(0, len(shifts), stride or len(shifts)), len(shifts) - 1})
        for previous, i in pairwise((0, *shown)):
            if i > previous:
                grown = {kind: grown.get(kind, 0) + (i - previous) * n for kind, n in step.items()}
            gathered = moments[first - 1].gathered if first else ()
            yield moments[first:last], gathered, shifts[i], grown, len(shifts) > 1


def _copied(moment: Moment, shift: int, grown: Growth, gathered: tuple[str, ...]) -> Moment:
    sizes = moment.held | {kind: n + moment.held[kind] for kind, n in grown.items()} if grown else moment.held
    return Moment(moment.phase, _renamed(moment.unit, shift), moment.activity, sizes, gathered)


def _parts(moments: Sequence[Moment], middle: int, extra: int) -> list[tuple[int, int, range]]:
    """(first, last, what is added to numbers of blocks in each copy): before the middle block, the block in the
    forward, what follows, the block in the backward, the rest."""
    edges = []
    for phase in ("forward", "backward"):
        indices = [i for i, moment in enumerate(moments) if moment.phase == phase and _number(moment.unit) == middle]
        edges += [indices[0], indices[-1] + 1]
    a, b, c, d = edges
    return [
        (0, a, range(1)),
        (a, b, range(extra + 1)),
        (b, c, range(extra, extra + 1)),
        (c, d, range(extra, -1, -1)),
        (d, len(moments), range(1)),
    ]


def _number(unit: str) -> int | None:
    match = _BLOCK.match(unit)
    return int(match[1]) if match else None


def _renamed(unit: str, shift: int) -> str:
    if not shift or not (match := _BLOCK.match(unit)):
        return unit
    return f"blocks.{int(match[1]) + shift}{match[2]}"


def _difference(first: Moment, last: Moment) -> dict[str, int]:
    return {kind: last.held[kind] - n for kind, n in first.held.items() if last.held[kind] != n}


def _follow(gathered: dict[str, None], previous: Sequence[str], current: Sequence[str], shift: int) -> None:
    """Bring the names of whole units up to date with a change from `previous` to `current`."""
    for name in previous:
        if name not in current:
            gathered.pop(_renamed(name, shift), None)
    for name in current:
        if name not in previous:
            gathered[_renamed(name, shift)] = None
