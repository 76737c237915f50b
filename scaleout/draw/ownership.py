"""Which rank holds which shard of what: a column for each rank, in it a row for each kind of bytes, as high as it has
bytes for a parameter, so that areas are bytes; in each row a cell for each shard. Shards fly between the columns.

What is held is a few paths, however many the ranks: only what moves has names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from scaleout.draw import hatch, svg

ABSENT, OWNED, LENT, AWAY = range(4)  # states of a cell: AWAY is owned, in another memory than the GPU's
PALE = 0.45  # of what is there for a moment in its own colour
SLIVER = 3.0  # CSS pixels of a shard that is seen when it has left the grid
LIFT = 6.0  # CSS pixels that a shard rises on its way: no higher than the columns' names

Cells = Sequence[Sequence[int]]  # states by rank and shard


@dataclass(frozen=True)
class Row:
    """A kind: bytes of a parameter, its colour, and that of what is there for a moment; "" for the same, paler."""

    key: str
    size: float
    fill: str
    lent: str = ""


@dataclass(frozen=True)
class Flight:
    """A shard of a kind under way: "out" from its owner to all ranks, "in" from all to its owner, "both" at once,
    "down" from its owner to another memory, "up" from there. done: of the way, from 0 to 1. lent: whether it stays for
    a moment only; pale: whether it is one of what will be a sum. name: the same while it flies."""

    name: str
    key: str
    shard: int
    way: str
    done: float
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
    apart: float  # columns
    between: float  # rows

    @cached_property
    def column(self) -> float:
        return (self.width - self.apart * (self.ranks - 1)) / self.ranks

    @cached_property
    def tops(self) -> dict[str, float]:
        """Where each row begins."""
        out, y = {}, self.y
        for row in self.rows:
            out[row.key] = y
            y += row.size * self.unit + self.between
        return out

    @property
    def bottom(self) -> float:
        last = self.rows[-1]
        return self.tops[last.key] + last.size * self.unit

    def left(self, rank: int) -> float:
        return self.x + rank * (self.column + self.apart)

    def cell(self, row: Row, rank: int, shard: int) -> hatch.Box:
        """Where a shard of a kind lies on a rank."""
        pitch = self.column / self.ranks
        return self.left(rank) + shard * pitch, self.tops[row.key], pitch - min(1.5, pitch / 6), row.size * self.unit

    # --- what is held ------------------------------------------------------------------------------------------------

    def frames(self) -> str:
        """The outlines of all cells."""
        return _outlines(self)

    def cells(self, held: Mapping[str, Cells], without: Iterable[tuple[str, int, int]] = ()) -> str:
        """What each rank holds. without: kinds, ranks and shards that are drawn otherwise."""
        out, other = [], {*without}
        for row in self.rows:
            boxes: dict[int, list[hatch.Box]] = {OWNED: [], LENT: [], AWAY: []}
            for rank, shards in enumerate(held[row.key]):
                for shard, state in enumerate(shards):
                    if state and (row.key, rank, shard) not in other:
                        boxes[state].append(self.cell(row, rank, shard))
            for state in (OWNED, LENT):
                fill, strong = (row.lent or row.fill, 1 if row.lent else PALE) if state == LENT else (row.fill, 1)
                out.append(_cells(boxes[state], fill, strong))
            out.append(hatch.area(boxes[AWAY], row.fill, f"{row.key}: not on the GPU"))
        return "".join(out)

    # --- what moves --------------------------------------------------------------------------------------------------

    def flights(self, flights: Iterable[Flight]) -> tuple[str, str]:
        """What is about to leave, to be drawn beneath the cells, and what is under way or has just come."""
        by_key, under, over = {row.key: row for row in self.rows}, [], []
        for one in flights:
            (over if one.done else under).extend(self._flight(one, by_key[one.key]))
        return "".join(under), "".join(over)

    def landed(self, flights: Iterable[Flight]) -> set[tuple[str, int, int]]:
        """Kinds, ranks and shards of what has just come for a moment, so that it is not there before it comes."""
        return {
            (one.key, rank, one.shard)
            for one in flights
            if one.done == 1 and one.lent and one.way == "out"
            for rank in range(self.ranks)
            if rank != one.shard
        }

    def _flight(self, one: Flight, row: Row) -> list[str]:
        home = self.cell(row, one.shard, one.shard)
        if one.way in ("down", "up"):
            part = one.done if one.way == "down" else 1 - one.done
            x, y, wide, high = home  # there is room for a sliver of it
            box = (x, y + part * (self.bottom - y + 1), wide, high + part * (SLIVER - high))
            return [self._shard(one, row, box, "host")]
        out = []
        for rank in range(self.ranks):
            if rank == one.shard:
                continue
            there = self.cell(row, rank, one.shard)
            for way in ("in", "out") if one.way == "both" else (one.way,):
                part = one.done if way == "out" else 1 - one.done
                rise = 4 * part * (1 - part) * LIFT
                x = home[0] + (there[0] - home[0]) * part
                box = (x, home[1] - rise, *home[2:])
                out.append(self._shard(one, row, box, f"{way}{rank}"))
        return out

    def _shard(self, one: Flight, row: Row, box: hatch.Box, to: str) -> str:
        fill = row.lent or row.fill if one.lent else row.fill
        x, y, wide, high = map(svg.num, box)
        faded = f' fill-opacity="{PALE}"' if one.pale and one.done < 1 else ""
        return (
            f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" fill="{svg.colour(fill)}"{faded} '
            f'stroke="{svg.colour("ink")}" data-mark="{one.name}-{to}"/>'
        )


@lru_cache(maxsize=8)  # the same at each moment of a step
def _outlines(grid: Grid) -> str:
    every = range(grid.ranks)
    boxes = [grid.cell(row, rank, shard) for row in grid.rows for rank in every for shard in every]
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
