"""A pipeline's schedule as SVG: a row for each rank, what it computes when, and red where it waits.

As many marks as can be seen: a named block for each action while there is room for it, thinner ones as a path for each
kind, and where a pixel holds several, columns that kinds share by time. Times are in slots.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil

from scaleout.draw import hatch, svg
from scaleout.timing.pipeline import Run

# By kind of action: its fill, and its words'. Pale, dark and between, so that they read without hue.
LOOK = {"F": ("grid", "ink"), "B": ("compute", "paper"), "I": ("compute", "paper"), "W": ("c8", "ink")}
LIT = {"F": "c3", "B": "c6", "I": "c6", "W": "c6"}  # of the micro-batch that is followed
BLOCKS, BARS = 270, 1000  # actions in a picture, at most, that are marks with names, or bars without
THIN, THINNEST = 2.5, 1.2  # CSS pixels that the shortest of them needs
COLUMN = 4  # CSS pixels of a column that kinds share


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
        return self.x + slots * self.scale

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


def detail(on: Rows, runs: Sequence[Sequence[Run]]) -> str:
    """How finely these rows are drawn: "blocks", "bars" or "shares"."""
    count, shortest = sum(map(len, runs)), min(one.end - one.start for row in runs for one in row[:3]) * on.scale
    if count <= BLOCKS and shortest >= THIN:
        return "blocks"
    return "bars" if count <= BARS and shortest >= THINNEST else "shares"


def chunks(runs: Iterable[Run]) -> dict[int, int]:
    """By stage of a rank, which of its chunks that is."""
    return {stage: chunk for chunk, stage in enumerate(sorted({one.stage for one in runs}))}


# --- blocks -----------------------------------------------------------------------------------------------------


def blocks(on: Rows, runs: Sequence[Sequence[Run]], lit: int, apart: bool) -> dict[int, str]:
    """A named mark for each action, with the number of its micro-batch where it fits: by micro-batch if they are to
    stand `apart`, else all under 0."""
    marks: dict[int, dict[str, list[str]]] = {}
    words: dict[int, dict[str, list[str]]] = {}
    for row, some in enumerate(runs):
        which, y = chunks(some), svg.num(on.top(row))
        for one in some:
            fill, ink = look(one.kind, one.micro == lit)
            left, wide, whose = on.at(one.start), (one.end - one.start) * on.scale, one.micro if apart else 0
            name = block(one, on.ranks[row], which)
            marks.setdefault(whose, {}).setdefault(fill, []).append(
                f'<rect x="{left:.1f}" y="{y}" width="{wide:.1f}" height="{svg.num(on.bar)}" data-mark="{name}"/>'
            )
            if numbered(one.micro, wide):
                words.setdefault(whose, {}).setdefault(ink, []).append(
                    f'<text x="{left + wide / 2:.1f}" y="{on.top(row) + on.bar / 2 + 4:.1f}" '
                    f'data-mark="t{name}">{one.micro}</text>'
                )
    return {whose: _groups(marks[whose], words.get(whose, {})) for whose in sorted(marks)}


def look(kind: str, lit: bool) -> tuple[str, str]:
    """The fill of an action, and of its words."""
    return (LIT[kind], "paper") if lit else LOOK[kind]


def block(one: Run, rank: int, which: dict[int, int]) -> str:
    """The name of a mark: a whole backward and its input gradient are one thing to the eye."""
    return f"{'B' if one.kind == 'I' else one.kind}{one.micro}r{rank}c{which[one.stage]}"


def numbered(micro: int, wide: float) -> bool:
    """Whether the number of a micro-batch fits so many CSS pixels."""
    return wide >= 3 + 6.4 * len(str(micro))


def _groups(marks: dict[str, list[str]], words: dict[str, list[str]]) -> str:
    edge, small = f'stroke="{svg.colour("paper")}"', f'font-size="{svg.SMALLEST}" text-anchor="middle"'
    out = [f'<g fill="{svg.colour(fill)}" {edge}>{"".join(some)}</g>' for fill, some in marks.items()]
    return "".join(out + [f'<g fill="{svg.colour(fill)}" {small}>{"".join(some)}</g>' for fill, some in words.items()])


def strips(on: Rows, runs: Sequence[Sequence[Run]]) -> str:
    """Under an action of a rank's later chunks a strip, the longer the later; the last chunk's is whole."""
    path = []
    for row, some in enumerate(runs):
        which, y = chunks(some), svg.num(on.top(row) + on.bar - 3)
        for one in some:
            if which[one.stage]:
                wide = ((one.end - one.start) * on.scale - 1) * which[one.stage] / (len(which) - 1)
                path.append(f"M{on.at(one.start) + 0.5:.1f} {y}h{wide:.1f}v3h-{wide:.1f}z")
    return _one(path, "ink", ' opacity="0.6" data-mark="strips" pointer-events="none"')


def _one(path: list[str], fill: str, more: str = "") -> str:
    return f'<path d="{"".join(path)}" fill="{svg.colour(fill)}"{more}/>' if path else ""


# --- coarser ----------------------------------------------------------------------------------------------------


def bars(on: Rows, runs: Sequence[Sequence[Run]]) -> str:
    """A bar for each action, all of a kind as one path."""
    paths: dict[str, list[str]] = {}
    for row, some in enumerate(runs):
        for one in some:
            wide = (one.end - one.start) * on.scale
            wide -= 0.5 if wide > 2 else 0.0
            paths.setdefault(LOOK[one.kind][0], []).append(
                f"M{on.at(one.start):.1f} {svg.num(on.top(row))}h{wide:.1f}v{svg.num(on.bar)}h-{wide:.1f}z"
            )
    return "".join(_one(path, fill) for fill, path in paths.items())


def shares(on: Rows, runs: Sequence[Sequence[Run]], slots: float, column: float) -> str:
    """Columns of so many slots that kinds share by time, from the top down as in LOOK: the height that is left is
    waiting."""
    edges = [*(column * k for k in range(ceil(slots / column))), slots]
    paths: dict[str, list[str]] = {}
    for row, some in enumerate(runs):
        floor = [on.top(row)] * (len(edges) - 1)
        for kind, (fill, _) in LOOK.items():
            spans = [(one.start, one.end) for one in some if one.kind == kind]
            if spans:
                roof, busy = floor, _busy(spans, edges)
                floor = [y + on.bar * part / (b - a)
                         for y, part, (a, b) in zip(floor, busy, pairwise(edges), strict=True)]  # fmt: skip
                paths.setdefault(fill, []).extend(_columns([*map(on.at, edges)], roof, floor))
    return "".join(_one(path, fill) for fill, path in paths.items())


def column(on: Rows, piece: float) -> float:
    """Slots of a column: whole pieces of a forward and its backward, so that work in turns fills each alike."""
    return piece * ceil(COLUMN / on.scale / piece)


def _busy(spans: list[tuple[float, float]], edges: list[float]) -> list[float]:
    """Slots of these spans, in order of time, between each two edges."""
    starts = [start for start, _ in spans]
    done = [0.0, *accumulate(end - start for start, end in spans)]
    upto = []
    for edge in edges:
        n = bisect_right(starts, edge)
        upto.append(done[n] - max(0.0, spans[n - 1][1] - edge) if n else 0.0)
    return [b - a for a, b in pairwise(upto)]


def _columns(at: list[float], roof: list[float], floor: list[float]) -> Iterable[str]:
    """Rectangles between these edges; neighbours of one height are one."""
    begun, heights = 0, [*((f"{a:.1f}", f"{b - a:.1f}") for a, b in zip(roof, floor, strict=True)), None]
    for k, (now, then) in enumerate(pairwise(heights), 1):
        if then != now:
            if now[1] != "0.0":
                wide = f"{at[k] - at[begun]:.1f}"
                yield f"M{at[begun]:.1f} {now[0]}h{wide}v{now[1]}h-{wide}z"
            begun = k


def followed(on: Rows, runs: Sequence[Sequence[Run]], lit: int) -> str:
    """The actions of one micro-batch, on top of what is drawn coarsely."""
    out = []
    for row, some in enumerate(runs):
        which = chunks(some)
        for one in some:
            if one.micro == lit:
                wide, name = max(2.0, (one.end - one.start) * on.scale), block(one, on.ranks[row], which)
                out.append(svg.rect(on.at(one.start), on.top(row), wide, on.bar, LIT[one.kind], mark=name))
    return "".join(out)
