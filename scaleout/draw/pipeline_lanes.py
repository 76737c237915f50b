"""A pipeline's schedule as SVG: a row for each rank, what it computes when, and red where it waits.

As many marks as can be seen: a named block for each action while there is room for it, thinner ones as a path for each
kind, and where a pixel holds several, columns that kinds share by time. Times are in slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, compress, pairwise
from math import ceil
from operator import add, mul, sub

from scaleout.draw import hatch, svg
from scaleout.timing.pipeline_sketch import Sketch, Strand

# By kind of action: its fill, and its words'. Pale, dark and between, so that they read without hue.
LOOK = {"F": ("grid", "ink"), "B": ("compute", "paper"), "I": ("compute", "paper"), "W": ("c8", "paper")}
# Fill and edge of the micro-batch that is followed
LIT = {"F": ("c3", "paper"), "B": ("c6", "paper"), "I": ("c6", "paper"), "W": ("c8", "c6")}
LOUD = "cleared"  # ink on its colours, with what lies behind the words cleared
BLOCKS, BARS = 230, 900  # actions in a picture, at most, that are marks with names, or bars without
THIN, THINNEST = 2.5, 1.2  # CSS pixels that the shortest of them needs
COLUMN = 8  # CSS pixels, at least, of a column that kinds share


class Lane:
    """What one rank does, in order. columns: its actions' kinds, stages, micro-batches, starts and ends, lists of one
    length, times in slots."""

    def __init__(self, rank: int, *columns: Sequence) -> None:
        self.rank, self.columns = rank, columns

    @cached_property
    def count(self) -> int:
        return len(self.columns[0])

    @property
    def actions(self) -> Iterator[tuple[str, int, int, float, float]]:
        """(kind, stage, micro-batch, start, end) of each."""
        return zip(*self.columns, strict=True)

    @property
    def shortest(self) -> float:
        """Slots of the shortest action."""
        return min(map(sub, self.columns[4], self.columns[3]))

    def of(self, micro: int) -> list[tuple[str, int, float, float]]:
        """(kind, stage, start, end) of one micro-batch's."""
        return [(kind, stage, start, end) for kind, stage, one, start, end in self.actions if one == micro]

    @cached_property
    def strands(self) -> dict[str, Strand]:
        """By kind, when its actions start and what they take."""
        kinds, _, _, starts, ends = self.columns
        out = {}
        for kind in {*kinds}:
            mine = [*map(kind.__eq__, kinds)]
            took = map(sub, compress(ends, mine), compress(starts, mine))
            out[kind] = Strand([*compress(starts, mine)], [0.0, *accumulate(took)])
        return out

    @cached_property
    def chunks(self) -> dict[int, int]:
        """By stage, which of the rank's chunks that is."""
        return {stage: chunk for chunk, stage in enumerate(sorted({*self.columns[1]}))}


class Sketched(Lane):
    """The same of a sketch: what is asked of many actions is answered without making columns of them."""

    def __init__(self, rank: int, step: Sketch) -> None:
        self.rank, self.step, self.found = rank, step, {}

    @cached_property
    def columns(self) -> tuple[Sequence, ...]:
        return self.step.lane(self.rank)

    @cached_property
    def count(self) -> int:
        return sum(map(len, self.step.starts[self.rank].values()))

    def of(self, micro: int) -> list[tuple[str, int, float, float]]:
        if micro not in self.found:
            self.found[micro] = self.step.of(self.rank, micro)
        return self.found[micro]

    @cached_property
    def strands(self) -> dict[str, Strand]:
        return self.step.strands(self.rank)

    @cached_property
    def chunks(self) -> dict[int, int]:
        return {stage: chunk for chunk, stage in enumerate(self.step.stages[self.rank])}


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
    count = sum(lane.count for lane in lanes)
    if count > BARS:
        return "shares"
    shortest = on.scale * min(lane.shortest for lane in lanes)
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
        f'<g fill="{svg.colour("ink")}" {clear}>{"".join(some)}</g>'
        if fill == LOUD
        else f'<g fill="{svg.colour(fill)}">{"".join(some)}</g>'
        for fill, some in words.items()
    )
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
        for kind, _, _, start, end in lane.actions:
            wide = (end - start) * on.scale
            wide -= 0.5 if wide > 2 else 0.0
            paths.setdefault(LOOK[kind][0], []).append(f"M{on.at(start):.1f} {y}h{wide:.1f}v{tall}h-{wide:.1f}z")
    return "".join(_one(path, fill) for fill, path in paths.items())


def shares(on: Rows, lanes: Sequence[Lane], slots: float, column: float) -> str:
    """Columns of so many slots that kinds share by time, from the top down as in LOOK: the height that is left is
    waiting."""
    edges = [*(column * k for k in range(ceil(slots / column))), slots]
    high, along = [on.bar / (b - a) for a, b in pairwise(edges)], across(map(on.at, edges))  # high: pixels of a slot
    paths: dict[str, list[str]] = {}
    for row, lane in enumerate(lanes):
        deep, strands = [0.0] * len(high), lane.strands
        for kind in LOOK:
            if kind in strands:
                upto = strands[kind].upto(edges)
                deep = [*map(add, deep, map(mul, map(sub, upto[1:], upto), high))]
                paths.setdefault(LOOK[kind][0], []).append(steps(along, on.top(row), deep))
    # what is deepest first: a kind lies over all that follow it
    return "".join(_one(paths[fill], fill) for fill in reversed(paths))


def column(on: Rows, piece: float) -> float:
    """Slots of a column: whole pieces of a forward and its backward, so that work in turns fills each alike."""
    return piece * ceil(COLUMN / on.scale / piece)


def across(edges: Iterable[float]) -> list[str]:
    """Where steps begin and end, as `steps` writes it: the same for many of them."""
    *begin, end = edges
    return [*(f"{at:.0f}" for at in begin), f"{end:.1f}"]


def steps(along: Sequence[str], base: float, amounts: Iterable[float]) -> str:
    """A path between the edges of `across` from the height `base`, so many CSS pixels down (or up, below 0), in halves
    of one."""
    halves = [0, *(round(2 * amount) for amount in amounts)]
    path = [
        f"H{at}V{_height(base + now / 2)}"
        for at, before, now in zip(along, halves, halves[1:], strict=False)
        if now != before
    ]
    return f"M{along[0]} {_height(base)}{''.join(path)}H{along[-1]}V{_height(base)}z"


@lru_cache(maxsize=2048)
def _height(pixels: float) -> str:
    return f"{pixels:g}"


def followed(on: Rows, lanes: Sequence[Lane], lit: int) -> str:
    """The actions of one micro-batch, on top of what is drawn coarsely."""
    out = []
    for row, lane in enumerate(lanes):
        chunks = lane.chunks
        for kind, stage, start, end in lane.of(lit):
            name = block(kind, lit, lane.rank, chunks[stage])
            out.append(
                svg.rect(on.at(start), on.top(row), max(2.0, (end - start) * on.scale), on.bar, LIT[kind][0], mark=name)
            )
    return "".join(out)
