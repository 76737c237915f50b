"""Below the grid of the view `zero`: a GPU's memory with its limit, the communication volume that fills, and the step
time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from scaleout.draw import guess, hatch, plot, svg
from scaleout.draw.labels import fitting
from scaleout.draw.parts import Part, bar
from scaleout.views.zero.amounts import gigabytes
from scaleout.words.amounts import quantity, took

AXIS = 4.2  # units of N on the axis, so that a guess above the answer can be drawn
LEAST_GAP = 11.0  # CSS pixels from one stage's mark to the next that both can be read at
SECONDS = {"compute": "compute", "exposed data": "communication", "update": "update", "exposed host": "PCIe copies",
           "rest": "other"}  # fmt: skip
FILLS = {"compute": "compute", "update": "c2", "rest": "muted"}


@dataclass(frozen=True)
class Band:
    """A row of the picture: from x on, so wide; top and height of its bar; the words above begin at `words`."""

    words: float
    x: float
    y: float
    width: float
    height: float

    @property
    def room(self) -> float:
        return self.x + self.width - self.words


@dataclass(frozen=True)
class Cell:
    """A collective on the axis: words, the longest first, its volume in N, and the part that has been sent."""

    words: tuple[str, ...]
    pieces: float
    sent: float


# --- what a GPU holds ------------------------------------------------------------------------------------------------


def scale(band: Band, sizes: Sequence[float], outside: float, words: str) -> float:
    """CSS pixels per byte: all sizes fit, and so do the offloaded states with their words."""
    inside = band.width / (1.03 * max(sizes))
    return min(inside, (band.width - svg.measure(words, svg.SMALLEST) - 8) / outside) if outside else inside


def memory(
    band: Band,
    parts: Mapping[Part, float],
    scale: float,
    usable: int,
    stages: Sequence[float],
    chosen: int,
    activations: int,
) -> str:
    """Bytes as a bar; what is over usable memory is hatched. scale: CSS pixels a byte; stages: bytes of each;
    activations: their bytes."""
    held_bytes, limit = sum(parts.values()), band.x + usable * scale
    pieces = [
        svg.text(
            band.words, band.y - 6, fitting(_memory_words(held_bytes, usable, activations), band.room), size=svg.SMALL
        ),
        svg.rect(band.x, band.y, usable * scale, band.height, "grid", opacity=0.45, title="usable memory"),
    ]
    marks, end = bar((band.x, band.y, band.height, scale), parts, gigabytes, "held")
    return "".join(
        [*pieces, marks, hatch.beyond(limit, end, band.y, band.height), *_marks(band, scale, stages, chosen)]
    )


def _memory_words(held_bytes: float, usable: int, activations: int) -> list[str]:
    held_words, all_of, take = gigabytes(held_bytes), gigabytes(usable), gigabytes(activations)
    if not held_bytes:
        return [
            f"no states on the GPU now: all {all_of} are left for activations, which take {take}",
            f"no states on the GPU now: {all_of} are left",
        ]
    if held_bytes > usable:
        excess = gigabytes(held_bytes - usable)
        return [
            f"states per GPU: {held_words}, {excess} more than the usable {all_of}",
            f"{held_words}: {excess} over {all_of}",
        ]
    left = f"{quantity((usable - held_bytes) / 1e9, 2)} GB"
    return [
        f"states {held_words} of the usable {all_of}; {left} left for activations, which take {take}",
        f"states: {held_words} of {all_of}; {left} left, activations {take}",
        f"{held_words} of {all_of}, activations {take}",
        f"{held_words} of {all_of}",
    ]


def _marks(band: Band, scale: float, stages: Sequence[float], chosen: int) -> list[str]:
    """Below the bar, where the states of each stage end; stages that end at one place share a mark."""
    low = band.y + band.height
    groups: list[tuple[float, list[int]]] = []
    for stage, size in sorted(enumerate(stages), key=lambda item: (item[1], item[0])):
        mark_x = band.x + size * scale
        if groups and mark_x - groups[-1][0] < LEAST_GAP:
            groups[-1][1].append(stage)
        else:
            groups.append((mark_x, [stage]))
    parts = (
        [svg.text(band.x - 7, low + 13, "in stage", anchor="end", fill="muted", size=svg.SMALLEST)] if stages else []
    )
    free = band.x - 3
    for mark_x, group in groups:
        mine, words = chosen in group, "–".join(map(str, sorted({min(group), max(group)})))
        wide = svg.measure(words, svg.SMALLEST, bold=True)
        left = max(free, mark_x - wide / 2)
        free = left + wide + 4
        parts += [
            svg.line(mark_x, low, mark_x, low + 3, "ink" if mine else "muted", 2 if mine else 1),
            svg.text(
                left + wide / 2,
                low + 13,
                words,
                anchor="middle",
                bold=mine,
                fill="ink" if mine else "muted",
                size=svg.SMALLEST,
            ),
        ]
    return parts


def host(band: Band, parts: Mapping[Part, float], scale: float, words: str) -> str:
    """What is offloaded, on the scale of what is on the GPU."""
    boxes, part_x = [], band.x
    for part, size in parts.items():
        wide = size * scale
        boxes.append(hatch.area([(part_x, band.y, wide, band.height)], part.colour, part.name) if size else "")
        part_x += wide
    return (
        "".join(boxes) + svg.text(part_x + 6, band.y + band.height - 1, words, size=svg.SMALLEST)
        if part_x > band.x
        else ""
    )


# --- the wire --------------------------------------------------------------------------------------------------------


def wire(band: Band, cells: Sequence[Cell], piece: float, stage: int, run: float | None = None) -> str:
    """Cells as long as their volume, filled as far as it has been sent; an axis in units of N above, and the mark of a
    guess, which has the line below to itself. piece: bytes of N. run: the volume of a reader's own run."""
    end = max(AXIS, ceil(sum(cell.pieces for cell in cells)) + 0.2)
    scale, low = band.width / end, band.y + band.height
    parts = [
        svg.text(band.words, band.y - 20, fitting(_wire_words(cells, piece), band.room), size=svg.SMALL),
        svg.text(
            band.x - 7, band.y + band.height / 2 + 4, f"stage {stage}", anchor="end", fill="muted", size=svg.SMALLEST
        ),
        svg.line(band.x, band.y - 1, band.x + band.width, band.y - 1),
    ]
    step = next(step_size for step_size in (1, 2, 5, 10, 20) if end / step_size <= 8)
    for value in range(0, int(end) + 1, step):
        cell_x = band.x + value * scale
        parts += [
            svg.line(cell_x, band.y - 4, cell_x, band.y - 1),
            svg.text(cell_x, band.y - 6, str(value), anchor="middle", fill="muted", size=svg.SMALLEST),
        ]
    cell_x = band.x
    for i, cell in enumerate(cells):
        parts += _cell(cell, i, cell_x, cell.pieces * scale, band)
        cell_x += cell.pieces * scale
    stops = [(0.0, band.x), (AXIS, band.x + AXIS * scale)]
    if run:
        parts.append(plot.ringed(band.x + min(run, end) * scale, band.y + band.height / 2, f"your run: {run:.2f}N"))
    return "".join(parts) + guess.mark(stops, (band.y - 4, low + 4), "x")


def _wire_words(cells: Sequence[Cell], piece: float) -> list[str]:
    size, total = gigabytes(piece), sum(cell.pieces for cell in cells) * piece
    sent_bytes = sum(cell.sent for cell in cells) * piece
    sent = gigabytes(total) if sent_bytes > (1 - 1e-9) * total else f"{gigabytes(sent_bytes)} of {gigabytes(total)}"
    return [
        f"communication volume in units of N; each GPU sends {sent}, {size} per N",
        f"volume in units of N; each GPU sends {sent}",
        f"volume in N; each sends {sent}",
        f"each sends {sent}",
    ]


def _cell(cell: Cell, i: int, x: float, wide: float, band: Band) -> list[str]:
    long = max(0.0, wide - 1.5)
    full = long * cell.sent / cell.pieces
    parts = [
        svg.rect(x, band.y, long, band.height, "c4", opacity=0.2, title=cell.words[0]),
        svg.rect(x, band.y, full, band.height, "c4", opacity=0.38, title=cell.words[0], mark=f"cell {i}"),
    ]
    words = fitting(cell.words, long - 4, svg.SMALLEST)
    if words:
        parts.append(svg.text(x + long / 2, band.y + band.height / 2 + 4, words, anchor="middle", size=svg.SMALLEST))
    return parts


# --- the seconds -----------------------------------------------------------------------------------------------------


def seconds(band: Band, parts: dict[str, float], waits: Sequence[str]) -> str:
    """The step time by what it is spent on, side by side; the cost of communication and offload is hatched."""
    total = sum(parts.values())
    named = SECONDS | ({"update": "update on the CPU"} if "update" in waits else {})
    items = ", ".join(f"{words} {took(parts[name])}" for name, words in named.items() if parts[name] > 0)
    ways = [
        f"step time {took(total)}: {items}",
        f"step {took(total)}: {items}",
        f"{took(total)}: {items}",
        f"step time {took(total)}, {took(sum(parts[name] for name in waits))} of it lost (hatched)",
    ]
    spent = {
        Part((words,), "accent" if name in waits else FILLS[name], hatched=name in waits): parts[name]
        for name, words in named.items()
    }
    marks, _ = bar((band.x, band.y, band.height, band.width / total), spent, took, "part")
    return svg.text(band.words, band.y - 6, fitting(ways, band.room), size=svg.SMALL) + marks
