"""Blocks are alike: the moments of a middle block, repeated, make those of a deeper model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from scaleout.memory.fsdp_tape import Moment

_BLOCK = re.compile(r"blocks\.(\d+)(.*)")


Growth = dict[str, int]  # bytes by kind that blocks beside those that were walked add


def stretch(moments: Sequence[Moment], middle: int, extra: int, every: int, fullest: bool = False) -> Iterator[Moment]:
    """The moments of a model that has `extra` more blocks beside number `middle`.

    What a block adds to each kind from its first moment to the next block's first, each more of them adds again, so
    that none between the first and the last is fuller than both. every: of the blocks that are alike, each such one is
    given, and the last; with 0 the first and the last. `gathered` is empty unless all are. fullest: only that moment of
    each of them.
    """
    if not extra:
        yield from moments
        return
    whole: dict[str, None] = {}
    for own, was, shift, grown, alike in _copies(moments, middle, extra, every):
        for moment in [max(own, key=lambda one: one.bytes)] if fullest and alike else own:
            if every == 1:
                _follow(whole, was, moment.gathered, shift)
                was = moment.gathered
            yield _grown(moment, shift, grown, tuple(whole))


def most(moments: Sequence[Moment], middle: int, extra: int, kind: str = "") -> Moment:
    """The moment of the stretched ones that holds the most, of all kinds or of one; the first of them."""
    if not extra:
        return max(moments, key=lambda one: one.held[kind] if kind else one.bytes)
    best, found = -1, None
    for own, _, shift, grown, _ in _copies(moments, middle, extra, 0):
        more = grown.get(kind, 0) if kind else sum(grown.values())
        for moment in own:
            size = more + (moment.held[kind] if kind else moment.bytes)
            if size > best:
                best, found = size, (moment, shift, grown)
    return _grown(*found, ())


def _copies(
    moments: Sequence[Moment], middle: int, extra: int, every: int
) -> Iterator[tuple[Sequence[Moment], Sequence[str], int, Growth, bool]]:
    """Stretches of moments in the order of time, each with the units that were whole before, what is added to the
    numbers of blocks and to its bytes, and whether it is of the blocks that are alike."""
    grown: Growth = {}
    for first, last, shifts in _parts(moments, middle, extra):
        step = _difference(moments[first], moments[last]) if len(shifts) > 1 else {}
        shown = sorted({0, *range(0, len(shifts), every or len(shifts)), len(shifts) - 1})
        for before, i in pairwise((0, *shown)):
            if i > before:
                grown = {kind: grown.get(kind, 0) + (i - before) * n for kind, n in step.items()}
            was = moments[first - 1].gathered if first else ()
            yield moments[first:last], was, shifts[i], grown, len(shifts) > 1


def _grown(moment: Moment, shift: int, grown: Growth, whole: tuple[str, ...]) -> Moment:
    held = {kind: n + grown.get(kind, 0) for kind, n in moment.held.items()} if grown else moment.held
    return Moment(moment.phase, _renamed(moment.unit, shift), moment.what, held, whole)


def _parts(moments: Sequence[Moment], middle: int, extra: int) -> list[tuple[int, int, range]]:
    """(first, last, what is added to numbers of blocks in each copy): before the middle block, the block in the
    forward, what follows, the block in the backward, the rest."""
    edges = []
    for phase in ("forward", "backward"):
        own = [i for i, moment in enumerate(moments) if moment.phase == phase and _number(moment.unit) == middle]
        edges += [own[0], own[-1] + 1]
    a, b, c, d = edges
    return [
        (0, a, range(1)),
        (a, b, range(extra + 1)),
        (b, c, range(extra, extra + 1)),
        (c, d, range(extra, -1, -1)),
        (d, len(moments), range(1)),
    ]


def _number(unit: str) -> int | None:
    found = _BLOCK.match(unit)
    return int(found[1]) if found else None


def _renamed(unit: str, shift: int) -> str:
    if not shift or not (found := _BLOCK.match(unit)):
        return unit
    return f"blocks.{int(found[1]) + shift}{found[2]}"


def _difference(first: Moment, then: Moment) -> dict[str, int]:
    return {kind: then.held[kind] - n for kind, n in first.held.items() if then.held[kind] != n}


def _follow(whole: dict[str, None], was: Sequence[str], now: Sequence[str], shift: int) -> None:
    """Bring the names of whole units up to date with a change from `was` to `now`."""
    for name in was:
        if name not in now:
            whole.pop(_renamed(name, shift), None)
    for name in now:
        if name not in was:
            whole[_renamed(name, shift)] = None
