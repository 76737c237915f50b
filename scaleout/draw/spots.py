"""Labels for marks among many others: each stands where it hides least, with a line to its mark where that is far."""

from __future__ import annotations

from collections.abc import Iterable
from math import hypot

from scaleout.draw import svg

CELL = 8  # CSS pixels of the squares in which marks are counted
TALL = 15  # of a label
SIDEWAYS = (11, 34, 64, 100)  # from a mark to its label, sideways
VERTICAL = (4, -12, 20, -28, 36, -46, 54, -66, 74, 96)  # and up or down
REACH = 22  # a label farther than this has a line to its mark

Box = tuple[float, float, float, float]  # left, top, right, bottom


class Spots:
    """Labels inside `box` over `points`: each stands where few points lie, and clear of the boxes in `obstacles`."""

    def __init__(self, box: Box, points: Iterable[tuple[float, float]], obstacles: Iterable[Box] = ()) -> None:
        self.box, self.obstacles = box, list(obstacles)
        self.marks: dict[tuple[int, int], int] = {}
        for x, y in points:
            cell = int(x // CELL), int(y // CELL)
            self.marks[cell] = self.marks.get(cell, 0) + 1

    def say(self, x: float, y: float, ways: Iterable[str], fill: str, mark: str) -> str:
        """The first of these words that has a place beside (x, y), as SVG; "" where none has."""
        for words in ways:
            wide = svg.measure(words, svg.SMALL, bold=True)
            places = [self._place(x, y, wide, side, dy) for side in SIDEWAYS for dy in VERTICAL]
            places += [self._place(x, y, wide, -side, dy) for side in SIDEWAYS for dy in VERTICAL]
            free = [place for place in places if place]
            if free:
                _, left, base = min(free)
                self.obstacles.append((left - 3, base - 12, left + wide + 3, base + 4))
                return self._drawn(x, y, left, base, wide, words, fill, mark)
        return ""

    def _place(self, x: float, y: float, wide: float, side: float, dy: float) -> tuple[float, float, float] | None:
        """(What is hidden there and how far it is, left, baseline); None where there is no room."""
        left, base = (x + side if side > 0 else x + side - wide), y + dy
        box = (left - 3, base - 12, left + wide + 3, base + 4)
        inside = self.box[0] <= box[0] and self.box[1] <= box[1] and box[2] <= self.box[2] and box[3] <= self.box[3]
        if not inside or any(meet(box, obstacle) for obstacle in self.obstacles):
            return None
        hidden = sum(
            self.marks.get((i, j), 0)
            for i in range(int(box[0] // CELL), int(box[2] // CELL) + 1)
            for j in range(int(box[1] // CELL), int(box[3] // CELL) + 1)
        )
        return 3 * hidden + hypot(side, 1.5 * (dy - 4)) / 8, left, base

    def _drawn(self, x, y, left: float, base: float, wide: float, words: str, fill: str, mark: str) -> str:
        end = (min(max(x, left), left + wide), min(max(y, base - TALL + 4), base + 2))
        label = svg.text(left, base, words, fill=fill, bold=True, size=svg.SMALL, halo=True, mark=f"said {mark}")
        distance = hypot(end[0] - x, end[1] - y)
        if distance <= REACH:
            return label
        start = x + 8 * (end[0] - x) / distance, y + 8 * (end[1] - y) / distance
        return svg.line(*start, *end, fill, 1, mark=f"to {mark}") + label


def meet(a: Box, b: Box) -> bool:
    """Whether two boxes overlap."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
