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

LOUD = "cleared"  # ink on its colours, with what lies behind the words cleared
# By kind of action: its fill, and its words'. Pale, dark and between, so that they read without hue.
LOOK = {"F": ("grid", "ink"), "B": ("compute", "paper"), "I": ("compute", "paper"), "W": ("c8", LOUD)}
# Fill and edge of the micro-batch that is followed
LIT = {"F": ("c3", "paper"), "B": ("c6", "paper"), "I": ("c6", "paper"), "W": ("c8", "c6")}
BLOCKS, BARS = 230, 900  # actions in a picture, at most, that are marks with names, or bars without
THIN, THINNEST = 2.5, 1.2  # CSS pixels that the shortest of them needs
COLUMN = 8  # CSS pixels, at least, of a column that kinds share


class Lane:
    """What one rank does, in order. columns: its actions' kinds, stages, micro-batches, starts and ends, lists of one
    length, times in slots."""

    def __init__(self, rank: int, *columns: Sequence) -> None:
        self.rank, self._columns = rank, columns

    @cached_property
    def columns(self) -> tuple[Sequence, ...]:
        return self._columns

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
        return [(kind, stage, start, end) for kind, stage, number, start, end in self.actions if number == micro]

    @cached_property
    def strands(self) -> dict[str, Strand]:
        """By kind, when its actions start and what they take."""
        kinds, _, _, starts, ends = self.columns
        result = {}
        for kind in {*kinds}:
            mine = [*map(kind.__eq__, kinds)]
            durations = map(sub, compress(ends, mine), compress(starts, mine))
            result[kind] = Strand([*compress(starts, mine)], [0.0, *accumulate(durations)])
        return result

    @cached_property
    def chunks(self) -> dict[int, int]:
        """By stage, which of the rank's chunks that is."""
        return {stage: chunk for chunk, stage in enumerate(sorted({*self.columns[1]}))}


class Sketched(Lane):
    """A lane of a sketch: it answers for many actions without making columns of them."""

    def __init__(self, rank: int, step: Sketch) -> None:
        self.rank, self.step = rank, step
        self.cache: dict[int, list[tuple[str, int, float, float]]] = {}  # by micro-batch

    @cached_property
    def columns(self) -> tuple[Sequence, ...]:
        return self.step.lane(self.rank)

    @cached_property
    def count(self) -> int:
        return sum(map(len, self.step.starts[self.rank].values()))

    def of(self, micro: int) -> list[tuple[str, int, float, float]]:
        if micro not in self.cache:
            self.cache[micro] = self.step.of(self.rank, micro)
        return self.cache[micro]

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


def waiting(rows: Rows, slots: float) -> str:
    """The ground of all rows: whatever no action covers is waiting."""
    wide, tall = slots * rows.scale, rows.bottom - rows.y
    ground = svg.rect(rows.x, rows.y, wide, tall, "accent", opacity=hatch.PALE, mark="ground")
    gaps = "".join(
        svg.rect(rows.x - 1, rows.top(row) + rows.bar, rows.width + 2, rows.pitch - rows.bar, "paper")
        for row in range(len(rows.ranks) - 1)
    )
    return ground + hatch.hatched(rows.x, rows.y, wide, tall, "accent", "waiting") + gaps


def detail(rows: Rows, lanes: Sequence[Lane]) -> str:
    """How finely these rows are drawn: "blocks", "bars" or "shares"."""
    count = sum(lane.count for lane in lanes)
    if count > BARS:
        return "shares"
    shortest = rows.scale * min(lane.shortest for lane in lanes)
    if count <= BLOCKS and shortest >= THIN:
        return "blocks"
    return "bars" if shortest >= THINNEST else "shares"


# --- blocks -----------------------------------------------------------------------------------------------------


def blocks(rows: Rows, lanes: Sequence[Lane], lit: int, separate: bool) -> tuple[dict[int, str], str]:
    """(a named mark for each action, by micro-batch if `separate`, else all under 0; the numbers of
    micro-batches where they fit, which lie over them and let a hand through: a button is called by all words in it)."""
    marks: dict[int, dict[tuple[str, str], list[str]]] = {}
    words: dict[str, list[str]] = {}
    for row, lane in enumerate(lanes):
        chunks, y, middle, tall = (
            lane.chunks,
            svg.num(rows.top(row)),
            rows.top(row) + rows.bar / 2 + 4,
            svg.num(rows.bar),
        )
        for kind, stage, micro, start, end in lane.actions:
            fill, edge, ink = look(kind, micro == lit)
            left, wide, group = rows.at(start), (end - start) * rows.scale, micro if separate else 0
            name = block(kind, micro, lane.rank, chunks[stage])
            marks.setdefault(group, {}).setdefault((fill, edge), []).append(
                f'<rect x="{left:.1f}" y="{y}" width="{wide:.1f}" height="{tall}" data-mark="{name}"/>'
            )
            if numbered(micro, wide):
                words.setdefault(ink, []).append(
                    f'<text x="{left + wide / 2:.1f}" y="{middle:.1f}" data-mark="t{name}">{micro}</text>'
                )
    return {group: _marks(marks[group]) for group in sorted(marks)}, _numbers(words)


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
        f'<g fill="{svg.colour(fill)}" stroke="{svg.colour(edge)}">{"".join(rects)}</g>'
        for (fill, edge), rects in marks.items()
    )


def _numbers(words: dict[str, list[str]]) -> str:
    clear = f'stroke="{svg.colour("paper")}" stroke-width="3" stroke-linejoin="round" paint-order="stroke"'
    inner = "".join(
        f'<g fill="{svg.colour("ink")}" {clear}>{"".join(texts)}</g>'
        if fill == LOUD
        else f'<g fill="{svg.colour(fill)}">{"".join(texts)}</g>'
        for fill, texts in words.items()
    )
    return f'<g font-size="{svg.SMALLEST}" text-anchor="middle" pointer-events="none">{inner}</g>' if inner else ""


def strips(rows: Rows, lanes: Sequence[Lane]) -> str:
    """Under an action of a rank's later chunks a strip, the longer the later; the last chunk's is whole."""
    path = []
    for row, lane in enumerate(lanes):
        chunks, y = lane.chunks, svg.num(rows.top(row) + rows.bar - 3)
        for _, stage, _, start, end in lane.actions:
            if chunks[stage]:
                wide = ((end - start) * rows.scale - 1) * chunks[stage] / (len(chunks) - 1)
                path.append(f"M{rows.at(start) + 0.5:.1f} {y}h{wide:.1f}v3h-{wide:.1f}z")
    return _filled(path, "ink", ' opacity="0.6" data-mark="strips" pointer-events="none"')


def _filled(path: list[str], fill: str, attributes: str = "") -> str:
    return f'<path d="{"".join(path)}" fill="{svg.colour(fill)}"{attributes}/>' if path else ""


# --- coarser ----------------------------------------------------------------------------------------------------


def bars(rows: Rows, lanes: Sequence[Lane]) -> str:
    """A bar for each action, all of a kind as one path."""
    paths: dict[str, list[str]] = {}
    for row, lane in enumerate(lanes):
        y, tall = svg.num(rows.top(row)), svg.num(rows.bar)
        for kind, _, _, start, end in lane.actions:
            wide = (end - start) * rows.scale
            wide -= 0.5 if wide > 2 else 0.0
            paths.setdefault(LOOK[kind][0], []).append(f"M{rows.at(start):.1f} {y}h{wide:.1f}v{tall}h-{wide:.1f}z")
    return "".join(_filled(path, fill) for fill, path in paths.items())


def shares(rows: Rows, lanes: Sequence[Lane], slots: float, column: float) -> str:
    """Columns of so many slots that kinds share by time, from the top down as in LOOK: the height that is left is
    waiting."""
    edges = [*(column * k for k in range(ceil(slots / column))), slots]
    high, xs = (
        [rows.bar / (b - a) for a, b in pairwise(edges)],
        step_edges(map(rows.at, edges)),
    )  # high: pixels of a slot
    paths: dict[str, list[str]] = {}
    for row, lane in enumerate(lanes):
        deep, strands = [0.0] * len(high), lane.strands
        for kind in LOOK:
            if kind in strands:
                upto = strands[kind].upto(edges)
                deep = [*map(add, deep, map(mul, map(sub, upto[1:], upto), high))]
                paths.setdefault(LOOK[kind][0], []).append(steps(xs, rows.top(row), deep))
    # what is deepest first: a kind lies over all that follow it
    return "".join(_filled(paths[fill], fill) for fill in reversed(paths))


def column(rows: Rows, piece: float) -> float:
    """Slots of a column: whole pieces of a forward and its backward, so that work in turns fills each alike."""
    return piece * ceil(COLUMN / rows.scale / piece)


def step_edges(edges: Iterable[float]) -> list[str]:
    """Where steps begin and end, as `steps` writes it: the same for many of them."""
    *begin, end = edges
    return [*(f"{edge:.0f}" for edge in begin), f"{end:.1f}"]


def steps(xs: Sequence[str], base: float, amounts: Iterable[float]) -> str:
    """A path between the edges of `step_edges` from the height `base`, so many CSS pixels down (or up, below 0), in
    halves of one."""
    halves = [0, *(round(2 * amount) for amount in amounts)]
    path = [
        f"H{x}V{_height(base + current / 2)}"
        for x, previous, current in zip(xs, halves, halves[1:], strict=False)
        if current != previous
    ]
    return f"M{xs[0]} {_height(base)}{''.join(path)}H{xs[-1]}V{_height(base)}z"


@lru_cache(maxsize=2048)
def _height(pixels: float) -> str:
    return f"{pixels:g}"


def followed(rows: Rows, lanes: Sequence[Lane], lit: int) -> str:
    """The actions of one micro-batch, on top of the coarse drawing."""
    marks = []
    for row, lane in enumerate(lanes):
        chunks = lane.chunks
        for kind, stage, start, end in lane.of(lit):
            name = block(kind, lit, lane.rank, chunks[stage])
            marks.append(
                svg.rect(
                    rows.at(start),
                    rows.top(row),
                    max(2.0, (end - start) * rows.scale),
                    rows.bar,
                    LIT[kind][0],
                    mark=name,
                )
            )
    return "".join(marks)
