"""Names of what a GPU holds, where it lies in the hill of `fsdp_hill`: within a layer that is thick enough, on a pole
in one that is not there at the fullest moment, and by leaders beside that moment, which is set apart as a bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import sub

from scaleout.draw import labels, svg
from scaleout.draw.fsdp_hill import STACK
from scaleout.draw.plot import Plane

SEEN = 1.5  # CSS pixels of a layer that gets a name
MARGIN = 4  # CSS pixels around words within a layer
FULL = 0.7  # of the most of a layer: where it is thick
ABOVE = 7  # from the hill up to words on a pole

Steps = Sequence[Sequence[int]]  # of `fsdp_hill.columns`


@dataclass(frozen=True)
class Label:
    """Words beside the hill. y: where what they name lies; line: the colour of the leader from there, "" for none."""

    y: float
    words: str
    fill: str = "ink"
    line: str = ""
    bold: bool = False


def beside(rows: Sequence[Label], left: float, right: float, plane: Plane, size: float) -> str:
    """Labels one beneath the other from `right` on, their leaders from `left` on. rows: from the top down."""
    pitch = size + 1
    heights = labels.spread([row.y + 4 for row in rows], pitch, plane.top + 4, plane.bottom + 4)
    marks = []
    for row, y in zip(rows, heights, strict=True):
        if row.line:
            marks.append(svg.line(left, row.y, right - 3, y - 4, row.line, 1.5))
        marks.append(svg.text(right, y, row.words, fill=row.fill, bold=row.bold, size=size))
    return "".join(marks)


def bar(sizes: Mapping[str, float], x: float, width: float, plane: Plane) -> tuple[str, dict[str, float]]:
    """The layers at one moment, on the axis of the plane and in its amounts: marks, and each layer's middle."""
    marks, middles, top = [], {}, 0.0
    for name, (fill, opacity, _) in STACK.items():
        low, top = top, top + sizes[name]
        y, height = plane.at_y(top), plane.at_y(low) - plane.at_y(top)
        if sizes[name]:
            marks.append(svg.rect(x, y, width, height, fill, opacity=opacity, title=name))
            middles[name] = y + height / 2
    y = plane.at_y(top)
    marks.append(svg.frame(x, y, width, plane.bottom - y, "ink", 0.8))
    return "".join(marks), middles


def within(steps: Steps, plane: Plane, unit_bytes: float, words: Mapping[str, str], size: float) -> dict[str, str]:
    """Words by layer that lie in it, drawn: of those that it is thick enough for."""
    pitch, per_byte, edges, found = plane.width / len(steps), _scale(plane, unit_bytes), _edges(steps), {}
    for name, said in words.items():
        below, top = edges[name]
        count = int((svg.measure(said, size) + 2 * MARGIN) / pitch) + 1
        if count > len(steps) or max(map(sub, top, below)) * per_byte < size + MARGIN:
            continue
        runs = [(min(top[i : i + count]), max(below[i : i + count]), i) for i in range(len(steps) - count + 1)]
        high, low, first = max(runs, key=lambda run: run[0] - run[1])
        if (high - low) * per_byte >= size + MARGIN:
            x, y = plane.left + (first + count / 2) * pitch, plane.bottom - (high + low) / 2 * per_byte
            found[name] = svg.text(x, y + 4, said, anchor="middle", size=size, halo=True)
    return found


def poles(steps: Steps, plane: Plane, unit_bytes: float, words: Mapping[str, str], size: float) -> str:
    """Words above the hill, each on a pole in its layer: where the hill is lowest, of where that is thick."""
    pitch, per_byte, feet = plane.width / len(steps), _scale(plane, unit_bytes), []
    tops = [plane.bottom - step[-1] * per_byte for step in steps]
    for name, (below, top) in _edges(steps).items():
        thick = [*map(sub, top, below)]
        if name in words and max(thick) * per_byte >= SEEN:
            at = min((i for i, one in enumerate(thick) if one > FULL * max(thick)), key=lambda i: (-tops[i], -i))
            feet.append((plane.left + (at + 0.5) * pitch, plane.bottom - (top[at] + below[at]) / 2 * per_byte, name))
    middle = plane.left + plane.width / 2
    marks: list[str] = []
    placed: list[tuple[float, float, float]] = []
    # Words reach from their pole to the middle: a pole farther out passes words that are lower, and cuts none
    for x, foot, name in sorted(feet, key=lambda foot: abs(foot[0] - middle)):
        wide = svg.measure(words[name], size)
        left = x - wide if x > middle else x
        reached = tops[max(0, int((left - plane.left) / pitch)) : int((left + wide - plane.left) / pitch) + 1]
        y = min(reached) - ABOVE
        for start, end, lower in placed:
            if start < left + wide and left < end:
                y = min(y, lower - size - 1)
        if y - size >= plane.top:
            placed.append((left, left + wide, y))
            marks += [
                svg.line(x, foot, x, y + 3, "ink", 1),
                svg.circle(x, foot, 2, "ink"),
            ]
            anchor = "end" if x > middle else "start"
            marks.append(svg.text(x, y, words[name], anchor=anchor, size=size, halo=True))
    return "".join(marks)


def _edges(steps: Steps) -> dict[str, tuple[Sequence[int], Sequence[int]]]:
    """The lower and the upper edge of each layer, step by step."""
    tops = [*zip(*steps, strict=True)]
    return dict(zip(STACK, zip([(0,) * len(steps), *tops[:-1]], tops, strict=True), strict=True))


def _scale(plane: Plane, unit_bytes: float) -> float:
    return plane.height / plane.y.hi / unit_bytes
