"""Labels on the links of the view `mesh`: the name of the axis and the rate of the link, once per axis, where there is
room."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, product

from scaleout.draw import svg
from scaleout.draw.spots import meet
from scaleout.views.base import kept
from scaleout.views.mesh import nodes
from scaleout.views.mesh.frame import Frame
from scaleout.views.mesh.setting import AXES
from scaleout.words.amounts import quantity

Box = tuple[float, float, float, float]  # left, top, right, bottom
Line = tuple[float, float, float, float]  # from x, y to x, y

ABOVE = 18.0  # CSS pixels of what stands above the ranks
ROW = 12  # CSS pixels from line to line of words
CLEAR, CLEAR_OF_OTHERS = 5, 16  # CSS pixels that stay free beside a wire, and if it can be beside another axis'
PARTS = sorted((k / 20 for k in range(3, 18)), key=lambda part: abs(part - 0.5))  # of a wire: tried from its middle


def rate(setting, axis: str) -> str:
    """GB/s of one GPU on the link that an axis takes."""
    cluster = setting.cluster
    wire = cluster.share if axis in setting.crossing else cluster.inside
    return quantity(wire.bytes_per_s / 1e9).removesuffix(".0")


def draw(frame: Frame) -> str:
    """The labels, "TP 450 GB/s". In rows tiles stand too close for any: there the table alone has the rates."""
    return _labels(frame.setting, frame.look.other(moment=0), frame.width) if frame.cubic else ""


@kept  # the same at every moment
def _labels(setting, look, width: int) -> str:
    frame = Frame(setting, look, width)
    wires = {axis: [frame.tiles.line(a, b) for a, b in nodes.pairs(frame, axis)] for axis in AXES}
    occupied = [(0.0, 0.0, float(width), ABOVE)]
    occupied += [(x, y, x + frame.tiles.width, y + frame.tiles.height) for x, y in frame.tiles.places.values()]
    occupied += [_around(x, y, (f"node {node}",), anchor, True) for node, _, (x, y, anchor) in frame.panels()]
    labels = []
    for axis in AXES:
        other_wires = [line for name in AXES if name != axis for line in wires[name]]
        place = _place(frame, (axis.upper(), f"{rate(setting, axis)} GB/s"), wires[axis], other_wires, occupied)
        if place is None:
            continue
        x, y, rows = place
        occupied.append(_around(x, y, rows, "start", False))
        fill = "accent" if axis in setting.crossing else "ink"
        labels += [svg.text(x, y + ROW * k, row, fill=fill, size=svg.SMALLEST) for k, row in enumerate(rows)]
    return "".join(labels)


def _around(x: float, y: float, rows: tuple[str, ...], anchor: str, bold: bool) -> Box:
    """The box of rows of words, the first with its baseline at y."""
    wide = max(svg.measure(row, svg.SMALLEST, bold) for row in rows)
    left = x - wide if anchor == "end" else x
    return left, y - 10, left + wide, y + 3 + ROW * (len(rows) - 1)


def _place(
    frame: Frame, texts: tuple[str, str], wires: list[Line], other_wires: list[Line], occupied: list[Box]
) -> tuple[float, float, tuple[str, ...]] | None:
    """Where a label stands free of tiles, names and wires, in one row or two, and if it can be far from other axes'
    wires; None where there is no such place."""
    for rows, distance in product(((" ".join(texts),), texts), (CLEAR_OF_OTHERS, CLEAR)):
        wide = max(svg.measure(row, svg.SMALLEST) for row in rows)
        for x, y in chain.from_iterable(_candidates(line, wide, ROW * len(rows)) for line in wires):
            box = _around(x, y, rows, "start", False)
            inside = box[0] >= 1 and box[2] <= frame.width - 1 and box[3] < frame.places.chips
            if not inside or any(meet(box, place) for place in occupied):
                continue
            clear = [(line, CLEAR) for line in wires] + [(line, distance) for line in other_wires]
            if not any(_crosses(line, box, gap) for line, gap in clear):
                return x, y, rows
    return None


def _candidates(line: Line, wide: float, high: float) -> Iterator[tuple[float, float]]:
    """Left ends and first baselines of words so large above, right, left and below points of a wire."""
    x1, y1, x2, y2 = line
    for part in PARTS:
        x, y = x1 + (x2 - x1) * part, y1 + (y2 - y1) * part
        yield x - wide / 2, y - CLEAR - 4 - (high - ROW)
        yield x + CLEAR + 1, y + 4 - (high - ROW) / 2
        yield x - CLEAR - 1 - wide, y + 4 - (high - ROW) / 2
        yield x - wide / 2, y + CLEAR + 11
        yield x + CLEAR, y - CLEAR - (high - ROW)
        yield x - CLEAR - wide, y + CLEAR + 10


def _crosses(line: Line, box: Box, distance: float) -> bool:
    """Whether a wire runs through a box, or nearer beside it than so far."""
    x1, y1, x2, y2 = line
    low, high = 0.0, 1.0
    for start, change, least, largest in ((x1, x2 - x1, box[0], box[2]), (y1, y2 - y1, box[1], box[3])):
        least, largest = least - distance + 1, largest + distance - 1
        if not change:
            if not least < start < largest:
                return False
            continue
        ends = sorted(((least - start) / change, (largest - start) / change))
        low, high = max(low, ends[0]), min(high, ends[1])
    return low < high
