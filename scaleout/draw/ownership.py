"""Which rank holds which shard of what: a column for each rank, in it a row for each kind of bytes, as high as it has
bytes for a parameter, so that areas are bytes; in each row a cell for each shard. Shards fly between the columns.

Shards at rest are a few paths, however many the ranks: only those that move have names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from scaleout.draw import hatch, svg

ABSENT, OWNED, LENT, OFFLOADED = range(4)  # states of a cell: OFFLOADED is owned, in another memory than the GPU's
PALE = 0.45  # opacity of a gathered shard that has no colour of its own
SLIVER = 3.0  # CSS pixels of a shard that is seen when it has left the grid
LIFT = 6.0  # CSS pixels that a shard rises on its way: no higher than the columns' names

Cells = Sequence[Sequence[int]]  # states by rank and shard


@dataclass(frozen=True)
class Row:
    """A kind: bytes of a parameter, its colour, and that of gathered copies; "" for the same colour, paler."""

    key: str
    size: float
    fill: str
    lent: str = ""


@dataclass(frozen=True)
class Flight:
    """A shard of a kind that is communicated: "out" from its owner to all ranks, "in" from all to its owner, "both" at
    once, "down" from its owner to another memory, "up" from there. progress: the part of its way that it has gone, from
    0 to 1. lent: whether it stays for a moment only; pale: whether it is a term of a sum. name: the same in all
    pictures of one flight."""

    name: str
    key: str
    shard: int
    way: str
    progress: float
    lent: bool = False
    pale: bool = False


@dataclass(frozen=True)
class Grid:
    """The rows of `ranks` columns from (x, y), `width` wide together; in CSS pixels, `unit` high for a byte."""

    rows: tuple[Row, ...]
    ranks: int
    x: float
    y: float
    width: float
    unit: float
    column_gap: float
    row_gap: float

    @cached_property
    def column(self) -> float:
        return (self.width - self.column_gap * (self.ranks - 1)) / self.ranks

    @cached_property
    def tops(self) -> dict[str, float]:
        """Where each row begins."""
        tops, y = {}, self.y
        for row in self.rows:
            tops[row.key] = y
            y += row.size * self.unit + self.row_gap
        return tops

    @property
    def bottom(self) -> float:
        last = self.rows[-1]
        return self.tops[last.key] + last.size * self.unit

    def left(self, rank: int) -> float:
        return self.x + rank * (self.column + self.column_gap)

    def cell(self, row: Row, rank: int, shard: int) -> hatch.Box:
        """Where a shard of a kind lies on a rank."""
        pitch = self.column / self.ranks
        return self.left(rank) + shard * pitch, self.tops[row.key], pitch - min(1.5, pitch / 6), row.size * self.unit

    # --- at rest -----------------------------------------------------------------------------------------------------

    def frames(self) -> str:
        """The outlines of all cells."""
        return _outlines(self)

    def cells(self, states: Mapping[str, Cells], excluded: Iterable[tuple[str, int, int]] = ()) -> str:
        """What each rank holds. excluded: kinds, ranks and shards that are not drawn here."""
        marks, skipped = [], {*excluded}
        for row in self.rows:
            boxes: dict[int, list[hatch.Box]] = {OWNED: [], LENT: [], OFFLOADED: []}
            for rank, shards in enumerate(states[row.key]):
                for shard, state in enumerate(shards):
                    if state and (row.key, rank, shard) not in skipped:
                        boxes[state].append(self.cell(row, rank, shard))
            for state in (OWNED, LENT):
                fill, strong = (row.lent or row.fill, 1 if row.lent else PALE) if state == LENT else (row.fill, 1)
                marks.append(_cells(boxes[state], fill, strong))
            marks.append(hatch.area(boxes[OFFLOADED], row.fill, f"{row.key}: not on the GPU"))
        return "".join(marks)

    # --- what moves --------------------------------------------------------------------------------------------------

    def flights(self, flights: Iterable[Flight]) -> tuple[str, str]:
        """What is about to leave, to be drawn beneath the cells, and what is under way or has just come."""
        by_key = {row.key: row for row in self.rows}
        leaving: list[str] = []
        moving: list[str] = []
        for flight in flights:
            (moving if flight.progress else leaving).extend(self._flight(flight, by_key[flight.key]))
        return "".join(leaving), "".join(moving)

    def landed(self, flights: Iterable[Flight]) -> set[tuple[str, int, int]]:
        """Kinds, ranks and shards of what has just come for a moment, so that it is not there before it comes."""
        return {
            (flight.key, rank, flight.shard)
            for flight in flights
            if flight.progress == 1 and flight.lent and flight.way == "out"
            for rank in range(self.ranks)
            if rank != flight.shard
        }

    def _flight(self, flight: Flight, row: Row) -> list[str]:
        home = self.cell(row, flight.shard, flight.shard)
        if flight.way in ("down", "up"):
            part = flight.progress if flight.way == "down" else 1 - flight.progress
            x, y, wide, high = home  # there is room for a sliver of it
            box = (x, y + part * (self.bottom - y + 1), wide, high + part * (SLIVER - high))
            return [self._shard(flight, row, box, "host")]
        marks = []
        for rank in range(self.ranks):
            if rank == flight.shard:
                continue
            target = self.cell(row, rank, flight.shard)
            for way in ("in", "out") if flight.way == "both" else (flight.way,):
                part = flight.progress if way == "out" else 1 - flight.progress
                rise = 4 * part * (1 - part) * LIFT
                x = home[0] + (target[0] - home[0]) * part
                box = (x, home[1] - rise, *home[2:])
                marks.append(self._shard(flight, row, box, f"{way}{rank}"))
        return marks

    def _shard(self, flight: Flight, row: Row, box: hatch.Box, destination: str) -> str:
        fill = row.lent or row.fill if flight.lent else row.fill
        x, y, wide, high = map(svg.num, box)
        faded = f' fill-opacity="{PALE}"' if flight.pale and flight.progress < 1 else ""
        return (
            f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" fill="{svg.colour(fill)}"{faded} '
            f'stroke="{svg.colour("ink")}" data-mark="{flight.name}-{destination}"/>'
        )


@lru_cache(maxsize=8)  # the same at each moment of a step
def _outlines(grid: Grid) -> str:
    ranks = range(grid.ranks)
    boxes = [grid.cell(row, rank, shard) for row in grid.rows for rank in ranks for shard in ranks]
    return f'<path d="{_path(boxes)}" fill="none" stroke="{svg.colour("grid")}"/>'


def _cells(boxes: list[hatch.Box], fill: str, strong: float) -> str:
    if not boxes:
        return ""
    faded = "" if strong == 1 else f' fill-opacity="{svg.num(strong)}"'
    return f'<path d="{_path(boxes)}" fill="{svg.colour(fill)}"{faded}/>'


def _path(boxes: list[hatch.Box]) -> str:
    return "".join(
        f"M{svg.num(x)} {svg.num(y)}h{svg.num(width)}v{svg.num(height)}h-{svg.num(width)}z"
        for x, y, width, height in boxes
    )
