"""Ranks on their nodes: a tile for each with its part of the model and of the batch, the wires between them, and many
nodes as a map of cells.

What there is many of is a few paths. A rank's tile is `Tiles.boxes` and what stands in it; positions are corners.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from scaleout.draw import svg

Place = tuple[float, float]
FADED = 0.28  # of a tile that is not meant
ROUND = 5  # corners of a tile
LEAST = 1.5  # CSS pixels of a part that can be seen


@dataclass(frozen=True)
class Part:
    """A rank's share of a whole that is cut into rows and columns: the rows it has, and its column. share: of that
    what it keeps between two uses, and which piece."""

    rows: int
    columns: int
    mine: tuple[int, ...]
    column: int
    share: tuple[int, int] = (1, 0)


@dataclass(frozen=True)
class Tiles:
    """Where ranks stand: corners by rank, the size of a tile, and in it the boxes (x, y, width, height) of the model
    and of the batch; none where there is no room."""

    places: Mapping[int, Place]
    width: float
    height: float
    boxes: tuple[tuple[float, float, float, float], ...]

    def middle(self, rank: int) -> Place:
        x, y = self.places[rank]
        return x + self.width / 2, y + self.height / 2

    def frames(self, ranks: Iterable[int], edge: str = "muted") -> str:
        """The tiles themselves."""
        d = "".join(
            f"M{svg.num(x + ROUND)} {svg.num(y)}h{svg.num(self.width - 2 * ROUND)}q{ROUND} 0 {ROUND} {ROUND}"
            f"v{svg.num(self.height - 2 * ROUND)}q0 {ROUND} -{ROUND} {ROUND}h{svg.num(2 * ROUND - self.width)}"
            f"q-{ROUND} 0 -{ROUND} -{ROUND}v{svg.num(2 * ROUND - self.height)}q0 -{ROUND} {ROUND} -{ROUND}z"
            for x, y in (self.places[rank] for rank in ranks)
        )
        return f'<path d="{d}" fill="{svg.colour("paper")}" stroke="{svg.colour(edge)}"/>' if d else ""

    def parts(self, ranks: Iterable[int], whole_index: int, parts: Mapping[int, Part], fill: str) -> str:
        """Each rank's part of the model (whole_index 0) or of the batch (1), in its colour, on the pale whole."""
        left, top, wide, high = self.boxes[whole_index]
        ground, pale, full = [], [], []
        for rank in ranks:
            (x, y), part = self.places[rank], parts[rank]
            ground.append(f"M{svg.num(x + left)} {svg.num(y + top)}h{svg.num(wide)}v{svg.num(high)}h{svg.num(-wide)}z")
            cell, row = wide / part.columns, high / part.rows
            count, piece = part.share
            for mine in part.mine:
                box = [x + left + part.column * cell, y + top + mine * row, max(LEAST, cell), max(LEAST, row)]
                if count > 1:
                    pale.append(_box(box))
                    box[0] += box[2] * piece / count
                    box[2] = max(LEAST, box[2] / count)
                full.append(_box(box))
        return "".join(
            f'<path d="{"".join(d)}" fill="{svg.colour(colour)}" fill-opacity="{opacity}"/>'
            for d, colour, opacity in ((ground, "grid", "0.55"), (pale, fill, "0.35"), (full, fill, "1"))
            if d
        )

    def line(self, a: int, b: int, aside: float = 0.0) -> tuple[float, float, float, float]:
        """From the middle of one tile to that of another, moved aside."""
        (x1, y1), (x2, y2) = self.middle(a), self.middle(b)
        return x1 + aside, y1 + aside, x2 + aside, y2 + aside

    def wires(
        self,
        pairs: Iterable[tuple[int, int]],
        stroke: str,
        width: float,
        aside: float = 0.0,
        opacity: float = 1.0,
    ) -> str:
        """Lines between ranks, which tiles are drawn over."""
        d = "".join("M{} {}L{} {}".format(*map(svg.num, self.line(a, b, aside))) for a, b in pairs)
        faded = "" if opacity == 1 else f' opacity="{svg.num(opacity)}"'
        return (
            f'<path d="{d}" fill="none" stroke="{svg.colour(stroke)}" stroke-width="{svg.num(width)}"{faded}/>'
            if d
            else ""
        )

    def dots(self, ranks: Iterable[int], fill: str, low: float, size: float, mark: str) -> str:
        """One so large on each rank's tile, so far beneath its middle."""
        d = "".join(f"M{svg.num(x)} {svg.num(y + low)}h0" for x, y in map(self.middle, ranks))
        return (
            f'<path d="{d}" fill="none" stroke="{svg.colour(fill)}" stroke-width="{svg.num(size)}" '
            f'stroke-linecap="round" data-mark="{mark}"/>'
        )


def _box(box: Sequence[float]) -> str:
    x, y, wide, high = map(svg.num, box)
    return f"M{x} {y}h{wide}v{high}h-{wide}z"


def ring(x: float, y: float, width: float, height: float, mark: str) -> str:
    """The outline of what is pressed."""
    return svg.frame(x, y, width, height, "key", 3, rounded=ROUND, mark=mark)


def panel(points: Sequence[Place], round: float) -> str:
    """A node: the surface that its tiles stand on, `round` CSS pixels beyond them."""
    d = "L".join(f"{svg.num(x)} {svg.num(y)}" for x, y in points)
    return (
        f'<path d="M{d}z" fill="{svg.colour("grid")}" stroke="{svg.colour("grid")}" stroke-linejoin="round" '
        f'stroke-width="{svg.num(2 * round)}" opacity="0.35"/>'
    )


# --- many nodes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cells:
    """Nodes as cells from (x, y), row by row."""

    count: int
    x: float
    y: float
    width: float
    height: float

    @cached_property
    def columns(self) -> int:
        """A power of two, so that what repeats lies in columns: cells are about as broad as they are high."""
        columns = 1
        while columns < self.count and columns**2 * self.height < self.count * self.width:
            columns *= 2
        return columns

    @cached_property
    def rows(self) -> int:
        return -(-self.count // self.columns)

    @cached_property
    def pitch(self) -> Place:
        """From cell to cell; rows are no higher than they need be."""
        width = self.width / self.columns
        return width, min(self.height / self.rows, max(1.6 * width, 6.0))

    @property
    def bottom(self) -> float:
        return self.y + self.rows * self.pitch[1]

    def at(self, x: float, y: float) -> int:
        """The node whose cell lies there."""
        dx, dy = self.pitch
        row = min(self.rows - 1, max(0, int((y - self.y) / dy)))
        return min(self.count - 1, row * self.columns + min(self.columns - 1, max(0, int((x - self.x) / dx))))

    def place(self, node: int) -> Place:
        row, column = divmod(node, self.columns)
        dx, dy = self.pitch
        return self.x + column * dx, self.y + row * dy

    def draw(self) -> str:
        """All of them, as lines between them."""
        dx, dy = self.pitch
        wide, high = dx * self.columns, dy * self.rows
        ground = svg.rect(self.x, self.y, wide, high, "grid", opacity=0.3)
        x, y = svg.num(self.x), svg.num(self.y)
        d = "".join(f"M{svg.num(self.x + k * dx)} {y}v{svg.num(high)}" for k in range(self.columns + 1))
        d += "".join(f"M{x} {svg.num(self.y + k * dy)}h{svg.num(wide)}" for k in range(self.rows + 1))
        return f'{ground}<path d="{d}" stroke="{svg.colour("paper")}" fill="none"/>'

    def lit(self, nodes: Iterable[int], fill: str, opacity: float = 1.0) -> str:
        """Some of them in a colour: runs in a row as one, and rows that are alike as one."""
        dx, dy = self.pitch
        by_row: dict[int, list[int]] = {}
        for node in sorted(set(nodes)):
            by_row.setdefault(node // self.columns, []).append(node % self.columns)
        alike: dict[tuple[int, ...], list[int]] = {}
        for row, columns in by_row.items():
            alike.setdefault(tuple(columns), []).append(row)
        boxes = []
        for pattern, rows in alike.items():
            for top, count in _runs(rows):
                boxes += [
                    (
                        self.x + left * dx,
                        self.y + top * dy,
                        max(2.0, length * dx - 0.5),
                        max(2.0, count * dy - 0.5),
                    )
                    for left, length in _runs(pattern)
                ]
        d = "".join(map(_box, boxes))
        faded = "" if opacity == 1 else f' fill-opacity="{svg.num(opacity)}"'
        return f'<path d="{d}" fill="{svg.colour(fill)}"{faded}/>' if d else ""


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """(first, how many) of each run of numbers that follow one another, from rising ones."""
    runs = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        runs.append((run[0], len(run)))
    return runs
