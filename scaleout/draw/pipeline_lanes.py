"""A pipeline's schedule as SVG: a row for each rank, what it computes when, and red where it waits.

As many marks as can be seen: a named block for each action while there is room for it, thinner ones as a path for each
kind, and where a pixel holds several, columns that kinds share by time. Times are in slots.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, pairwise, repeat
from math import ceil
from operator import add, mul, sub
from typing import NamedTuple

from scaleout.draw import hatch, svg

# By kind of action: its fill, and its words'. Pale, dark and between, so that they read without hue.
LOOK = {"F": ("grid", "ink"), "B": ("compute", "paper"), "I": ("compute", "paper"), "W": ("c8", "paper")}
# Fill and edge of the micro-batch that is followed
LIT = {"F": ("c3", "paper"), "B": ("c6", "paper"), "I": ("c6", "paper"), "W": ("c8", "c6")}
LOUD = "cleared"  # ink on its colours, with what lies behind the words cleared
BLOCKS, BARS = 230, 900  # actions in a picture, at most, that are marks with names, or bars without
THIN, THINNEST = 2.5, 1.2  # CSS pixels that the shortest of them needs
COLUMN = 8  # CSS pixels, at least, of a column that kinds share


class Lane(NamedTuple):
    """What one rank does, in order: lists of one length, times in slots."""

    rank: int
    kinds: Sequence[str]
    stages: Sequence[int]
    micros: Sequence[int]
    starts: Sequence[float]
    ends: Sequence[float]

    @property
    def actions(self) -> Iterator[tuple[str, int, int, float, float]]:
        """(kind, stage, micro-batch, start, end) of each."""
        return zip(*self[1:], strict=True)

    def of(self, micro: int) -> list[tuple[str, int, float, float]]:
        """(kind, stage, start, end) of one micro-batch's."""
        found, at = [], -1
        for _ in range(self.micros.count(micro)):
            at = self.micros.index(micro, at + 1)
            found.append((self.kinds[at], self.stages[at], self.starts[at], self.ends[at]))
        return found

    @property
    def chunks(self) -> dict[int, int]:
        """By stage, which of the rank's chunks that is."""
        return {stage: chunk for chunk, stage in enumerate(sorted(set(self.stages)))}


@dataclass(frozen=True)
class Rows:
    """Where rows lie: from (x, y) down, `width` CSS pixels for `until` slots, a row `bar` high each `pitch`."""

    x: float
    y: float
    width: float
    until: float
    pitch: float
    bar: float
    ranks: tuple[int, ...]  # that are drawn, from the top down

    @property
    def scale(self) -> float:
        """CSS pixels of a slot."""
        return self.width / self.until

    @property
    def bottom(self) -> float:
        return self.y + self.pitch * len(self.ranks) - (self.pitch - self.bar)

    def at(self, slots: float) -> float:
        return self.x + slots * self.width / self.until

    def top(self, row: int) -> float:
        return self.y + row * self.pitch


def waiting(on: Rows, slots: float) -> str:
    """The ground of all rows: whatever no action covers is waiting."""
    wide, tall = slots * on.scale, on.bottom - on.y
    ground = svg.rect(on.x, on.y, wide, tall, "accent", opacity=hatch.PALE, mark="ground")
    between = "".join(
        svg.rect(on.x - 1, on.top(row) + on.bar, on.width + 2, on.pitch - on.bar, "paper")
        for row in range(len(on.ranks) - 1)
    )
    return ground + hatch.hatched(on.x, on.y, wide, tall, "accent", "waiting") + between


def detail(on: Rows, lanes: Sequence[Lane]) -> str:
    """How finely these rows are drawn: "blocks", "bars" or "shares"."""
    count = sum(len(lane.kinds) for lane in lanes)
    if count > BARS:
        return "shares"
    shortest = on.scale * min(b - a for lane in lanes for a, b in zip(lane.starts, lane.ends, strict=True))
    if count <= BLOCKS and shortest >= THIN:
        return "blocks"
    return "bars" if shortest >= THINNEST else "shares"


# --- blocks -----------------------------------------------------------------------------------------------------


def blocks(on: Rows, lanes: Sequence[Lane], lit: int, apart: bool) -> tuple[dict[int, str], str]:
    """(a named mark for each action, by micro-batch if they are to stand `apart`, else all under 0; the numbers of
    micro-batches where they fit, which lie over them and let a hand through: a button is called by all words in it)."""
    marks: dict[int, dict[tuple[str, str], list[str]]] = {}
    words: dict[str, list[str]] = {}
    for row, lane in enumerate(lanes):
        chunks, y, middle, tall = lane.chunks, svg.num(on.top(row)), on.top(row) + on.bar / 2 + 4, svg.num(on.bar)
        for kind, stage, micro, start, end in lane.actions:
            fill, edge, ink = look(kind, micro == lit)
            left, wide, whose = on.at(start), (end - start) * on.scale, micro if apart else 0
            name = block(kind, micro, lane.rank, chunks[stage])
            marks.setdefault(whose, {}).setdefault((fill, edge), []).append(
                f'<rect x="{left:.1f}" y="{y}" width="{wide:.1f}" height="{tall}" data-mark="{name}"/>'
            )
            if numbered(micro, wide):
                words.setdefault(ink, []).append(
                    f'<text x="{left + wide / 2:.1f}" y="{middle:.1f}" data-mark="t{name}">{micro}</text>'
                )
    return {whose: _marks(marks[whose]) for whose in sorted(marks)}, _numbers(words)


def look(kind: str, lit: bool) -> tuple[str, str, str]:
    """The fill of an action, its edge, and the fill of its words."""
    fill, words = LOOK[kind]
    return (*LIT[kind], LOUD) if lit else (fill, "paper", words)


def block(kind: str, micro: int, rank: int, chunk: int) -> str:
    """The name of a mark: a whole backward and its input gradient are one thing to the eye."""
    return f"{'B' if kind == 'I' else kind}{micro}r{rank}c{chunk}"


def numbered(micro: int, wide: float) -> bool:
    """Whether the number of a micro-batch fits so many CSS pixels."""
    return wide >= 3 + 6.4 * len(str(micro))


def _marks(marks: dict[tuple[str, str], list[str]]) -> str:
    return "".join(
        f'<g fill="{svg.colour(fill)}" stroke="{svg.colour(edge)}">{"".join(some)}</g>'
        for (fill, edge), some in marks.items()
    )


def _numbers(words: dict[str, list[str]]) -> str:
    clear = f'stroke="{svg.colour("paper")}" stroke-width="3" stroke-linejoin="round" paint-order="stroke"'
    inner = "".join(
        f'<g fill="{svg.colour("ink")}" {clear}>{"".join(some)}</g>' if fill == LOUD
        else f'<g fill="{svg.colour(fill)}">{"".join(some)}</g>' for fill, some in words.items()
    )  # fmt: skip
    return f'<g font-size="{svg.SMALLEST}" text-anchor="middle" pointer-events="none">{inner}</g>' if inner else ""


def strips(on: Rows, lanes: Sequence[Lane]) -> str:
    """Under an action of a rank's later chunks a strip, the longer the later; the last chunk's is whole."""
    path = []
    for row, lane in enumerate(lanes):
        chunks, y = lane.chunks, svg.num(on.top(row) + on.bar - 3)
        for _, stage, _, start, end in lane.actions:
            if chunks[stage]:
                wide = ((end - start) * on.scale - 1) * chunks[stage] / (len(chunks) - 1)
                path.append(f"M{on.at(start) + 0.5:.1f} {y}h{wide:.1f}v3h-{wide:.1f}z")
    return _one(path, "ink", ' opacity="0.6" data-mark="strips" pointer-events="none"')


def _one(path: list[str], fill: str, more: str = "") -> str:
    return f'<path d="{"".join(path)}" fill="{svg.colour(fill)}"{more}/>' if path else ""


# --- coarser ----------------------------------------------------------------------------------------------------


def bars(on: Rows, lanes: Sequence[Lane]) -> str:
    """A bar for each action, all of a kind as one path."""
    paths: dict[str, list[str]] = {}
    for row, lane in enumerate(lanes):
        y, tall = svg.num(on.top(row)), svg.num(on.bar)
        for kind, start, end in zip(lane.kinds, lane.starts, lane.ends, strict=True):
            wide = (end - start) * on.scale
            wide -= 0.5 if wide > 2 else 0.0
            paths.setdefault(LOOK[kind][0], []).append(f"M{on.at(start):.1f} {y}h{wide:.1f}v{tall}h-{wide:.1f}z")
    return "".join(_one(path, fill) for fill, path in paths.items())


def shares(on: Rows, lanes: Sequence[Lane], slots: float, column: float) -> str:
    """Columns of so many slots that kinds share by time, from the top down as in LOOK: the height that is left is
    waiting."""
    edges = [*(column * k for k in range(ceil(slots / column))), slots]
    high, places = [on.bar / (b - a) for a, b in pairwise(edges)], [*map(on.at, edges)]  # high: CSS pixels of a slot
    paths: dict[str, list[str]] = {}
    for row, lane in enumerate(lanes):
        deep = [0.0] * len(high)
        for kind in sorted(set(lane.kinds), key=[*LOOK].index):
            mine = [*map(kind.__eq__, lane.kinds)]
            busy = _busy([*compress(lane.starts, mine)], [*compress(lane.ends, mine)], edges)
            deep = [*map(add, deep, map(mul, busy, high))]
            paths.setdefault(LOOK[kind][0], []).append(steps(places, on.top(row), deep))
    # what is deepest first: a kind lies over all that follow it
    return "".join(_one(paths[fill], fill) for fill in reversed(paths))


def column(on: Rows, piece: float) -> float:
    """Slots of a column: whole pieces of a forward and its backward, so that work in turns fills each alike."""
    return piece * ceil(COLUMN / on.scale / piece)


def _busy(starts: list[float], ends: list[float], edges: list[float]) -> list[float]:
    """Slots of these spans, in order of time, between each two edges."""
    done = [0.0, *accumulate(map(sub, ends, starts))]
    late = [0.0, *ends]  # by spans begun, the end of the last
    upto = []
    for n, edge in zip(map(bisect_right, repeat(starts), edges), edges, strict=True):
        beyond = late[n] - edge
        upto.append(done[n] - beyond if beyond > 0 else done[n])
    return [*map(sub, upto[1:], upto)]


def steps(edges: Sequence[float], base: float, amounts: Iterable[float]) -> str:
    """A path between the edges from the height `base`, so many CSS pixels down (or up, below 0), in halves of one."""
    before, path = 0, []
    for at, amount in zip(edges, amounts, strict=False):
        now = round(2 * amount)
        if now != before:
            path.append(f"H{at:.0f}V{base + now / 2:g}")
            before = now
    return f"M{edges[0]:.0f} {base:g}{''.join(path)}H{edges[-1]:.1f}V{base:g}z"


def followed(on: Rows, lanes: Sequence[Lane], lit: int) -> str:
    """The actions of one micro-batch, on top of what is drawn coarsely."""
    out = []
    for row, lane in enumerate(lanes):
        chunks = lane.chunks
        for kind, stage, start, end in lane.of(lit):
            name = block(kind, lit, lane.rank, chunks[stage])
            out.append(svg.rect(on.at(start), on.top(row), max(2.0, (end - start) * on.scale), on.bar, LIT[kind][0],
                                mark=name))  # fmt: skip
    return "".join(out)
