"""Where the parts of the view `mesh` lie, for one width: ranks on their nodes, and the bands beneath them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from scaleout.draw import svg
from scaleout.draw.mesh_nodes import Cells, Place, Tiles
from scaleout.views.mesh import acts

CUBE, MOST_DRAWN = 8, 64  # GPUs of a cube, and as many as are all drawn
ROW_TILES = 8  # tiles of a row
NODE_GAP, TALLEST = 6, 90  # CSS pixels between nodes of a row, and from row to row at most
OPENED = 4  # rows of those that are opened where not all are


@dataclass(frozen=True)
class Places:
    """In CSS pixels. cube: corner of rank 0, from a rank to its neighbour, the shift of the second pair and of the
    second four, and a tile's size; row: left, top, between tiles, least pitch down; map: what is free beneath
    it; then tops of the chips, the table with its pitch, tops and heights of the bars, the height of all."""

    cube: tuple[float, float, float, Place, float, Place]
    row: tuple[float, float, float, float]
    map: float
    chips: float
    table: tuple[float, float]
    wire: tuple[float, float]
    seconds: tuple[float, float]
    memory: tuple[float, float]
    left: float
    height: float


PLACES = {
    svg.WIDE: Places((22, 30, 288, (134, 56), 123, (108, 49)), (62, 28, 4, 30.5), 10, 275, (316, 15),
                     (397, 14), (446, 12), (477, 9), 4, 489),
    svg.NARROW: Places((6, 27, 176, (88, 47), 100, (78, 45)), (4, 26, 3, 25), 8, 226, (265, 12),
                       (323, 10), (364, 8), (387, 7), 4, 400),
}  # fmt: skip


class Frame:
    """Of a setting and what is lit, for one width."""

    def __init__(self, setting, look, width: int) -> None:
        self.setting, self.look, self.width, self.wide = setting, look, width, width == svg.WIDE
        self.places = PLACES[width]
        self.cubic = setting.gpus == CUBE
        self.mapped = setting.gpus > MOST_DRAWN

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """Those whose ranks are drawn: all, or the lit rank's with those of its neighbours along each axis."""
        setting = self.setting
        if not self.mapped:
            return tuple(range(setting.nodes))
        visible, room = {self.look.rank // setting.node: None}, OPENED * (ROW_TILES // setting.node)
        for way in (1, -1, 2, -2, 3, -3):
            for axis in setting.shown:
                size, step = setting.grid.size(axis), setting.grid.stride(axis)
                place = self.look.rank // step % size + way
                if 0 <= place < size:
                    visible[(self.look.rank + way * step) // setting.node] = None
        return tuple(sorted([*visible][:room]))

    @property
    def looks(self) -> bool:
        """Whether there is room for what can be lit beside what a step's moment says."""
        return self.wide or self.look.moment == acts.MOMENTS

    @cached_property
    def tiles(self) -> Tiles:
        if self.cubic:
            x, y, pair_step, (sx, sy), layer_step, (wide, high) = self.places.cube
            places = {
                r: (x + r % 2 * pair_step + r // 2 % 2 * sx, y + r // 2 % 2 * sy + r // 4 * layer_step)
                for r in range(CUBE)
            }
            low, side = (25.0, 8) if self.wide else (20.0, 6)  # beneath what is pressed of them
            half = (wide - 3 * side) / 2
            boxes = tuple((side + k * (half + side), low, half, high - low - 5) for k in (0, 1))
            return Tiles(places, wide, high, boxes)
        x, y, gap, _ = self.places.row
        row_nodes, node_gpus = ROW_TILES // self.setting.node, self.setting.node
        pitch = (self.width - x - 4 - (row_nodes - 1) * NODE_GAP) / ROW_TILES
        places = {}
        for k, node in enumerate(self.nodes):
            row, column = divmod(k, row_nodes)
            for i in range(node_gpus):
                places[node * node_gpus + i] = (
                    x + (column * node_gpus + i) * pitch + column * NODE_GAP,
                    y + row * self.row_step,
                )
        wide, high = pitch - gap, self.row_step - gap
        low, half = 14.0 if self.wide else 25.0, wide / 2 - 6
        boxes = ((4.0, low, half, high - low - 3), (wide / 2 + 2, low, half, high - low - 3)) if high > low + 8 else ()
        return Tiles(places, wide, high, boxes)

    @property
    def row_step(self) -> float:
        """From row to row: as much as there is room for, but for a map."""
        _, y, _, least = self.places.row
        return least if self.mapped else max(least, min(TALLEST, (self.places.chips - 6 - y) / self.rows))

    @property
    def rows(self) -> int:
        """Of tiles, where they stand in rows."""
        return -(-len(self.nodes) * self.setting.node // ROW_TILES)

    @cached_property
    def cells(self) -> Cells:
        """The map of all nodes, where not all are drawn."""
        x, y, _, _ = self.places.row
        left, top = x, y + self.rows * self.row_step + 20
        return Cells(self.setting.nodes, left, top, self.width - left - 8, self.places.chips - self.places.map - top)

    def panels(self) -> list[tuple[int, list[Place], tuple[float, float, str]]]:
        """Of each node that is drawn: its number, the corners of its surface, where its name stands and how."""
        return [self._cube_panel(node) if self.cubic else self._row_panel(k, node) for k, node in enumerate(self.nodes)]

    def _cube_panel(self, node: int) -> tuple[int, list[Place], tuple[float, float, str]]:
        tiles, node_gpus = self.tiles, self.setting.node
        ranks = [*range(node * node_gpus, (node + 1) * node_gpus)]
        (x, y), (wide, high) = tiles.places[ranks[0]], (tiles.width, tiles.height)
        right, low = tiles.places[ranks[-1]][0] + wide, tiles.places[ranks[-1]][1] + high
        if node_gpus == 4:
            turn, (sx, _) = tiles.places[ranks[1]][0] + wide, self.places.cube[3]
            corners = [(x, y), (turn, y), (right, low - high), (right, low), (x + sx, low), (x, y + high)]
            return node, corners, (right, y + 11, "end") if self.wide else (turn + 5, y + 11, "start")
        corners = [(x, y), (right, y), (right, low), (x, low)]
        if node_gpus == 2 and ranks[0] % 4:
            return node, corners, (x - 8, low - 4, "end")
        return node, corners, (right + (8 if node_gpus == 2 else -4), y + 11, "start" if node_gpus == 2 else "end")

    def _row_panel(self, k: int, node: int) -> tuple[int, list[Place], tuple[float, float, str]]:
        tiles, node_gpus = self.tiles, self.setting.node
        (x, y), (right, _) = tiles.places[node * node_gpus], tiles.places[node * node_gpus + node_gpus - 1]
        right += tiles.width
        low = y + tiles.height
        return node, [(x, y), (right, y), (right, low), (x, low)], (2, y + tiles.height / 2 + 4, "start")

    def band(self, bar: tuple[float, float]) -> tuple[float, float, float, float]:
        """x, y, width and height of a bar."""
        return self.places.left, bar[0], self.width - 2 * self.places.left, bar[1]
