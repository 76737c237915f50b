"""Beneath the grid of the view `zero`: what a GPU holds beside its card's limit, the wire that fills, and the seconds
of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from scaleout.draw import guess, hatch, plot, svg
from scaleout.draw.labels import fitting, took
from scaleout.views.zero.amounts import gigabytes

AXIS = 4.2  # pieces that the wire has room for, so that a guess beyond the answer can be drawn
NEAR = 11.0  # CSS pixels from one stage's mark to the next that both can be read at
SECONDS = {"compute": "compute", "exposed data": "communication", "update": "update", "exposed host": "host copies",
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
class Part:
    """Bytes of a kind on a GPU: key, colour, strength."""

    key: str
    fill: str
    size: float
    strong: float = 1.0


@dataclass(frozen=True)
class Cell:
    """A message on the wire: words, the longest first, pieces that it has, and pieces that have been sent."""

    words: tuple[str, ...]
    pieces: float
    done: float


# --- what a GPU holds ------------------------------------------------------------------------------------------------


def scale(band: Band, sizes: Sequence[float], outside: float, words: str) -> float:
    """CSS pixels a byte: all sizes fit, and what is outside the GPU with its words."""
    inside = band.width / (1.03 * max(sizes))
    return min(inside, (band.width - svg.measure(words, svg.SMALLEST) - 8) / outside) if outside else inside


def memory(
    band: Band, parts: Sequence[Part], scale: float, usable: int, stages: Sequence[float], chosen: int, beside: int
) -> str:  # fmt: skip
    """Bytes as a bar; what is over usable memory is hatched. scale: CSS pixels a byte; stages: bytes of each; beside:
    those of activations."""
    held, limit = sum(part.size for part in parts), band.x + usable * scale
    out = [svg.text(band.words, band.y - 6, fitting(_memory_words(held, usable, beside), band.room), size=svg.SMALL)]
    out.append(svg.rect(band.x, band.y, usable * scale, band.height, "grid", opacity=0.45, title="usable memory"))
    at = band.x
    for part in parts:
        out.append(svg.rect(at, band.y, part.size * scale, band.height, part.fill, opacity=part.strong,
                            title=f"{part.key}: {gigabytes(part.size)}", mark=f"held {part.key}"))  # fmt: skip
        at += part.size * scale
    over = max(0.0, at - limit)
    out.append(svg.rect(limit, band.y, over, band.height, "paper", opacity=0.45, mark="veil"))
    out.append(hatch.hatched(limit, band.y, over, band.height, "accent", "over"))
    out.append(svg.line(limit, band.y - 4, limit, band.y + band.height + 4, "accent", 2, "4 2", mark="limit"))
    return "".join([*out, *_marks(band, scale, stages, chosen)])


def _memory_words(held: float, usable: int, beside: int) -> list[str]:
    own, all_of, take = gigabytes(held), gigabytes(usable), gigabytes(beside)
    if not held:
        return [f"each holds nothing now: all of the usable {all_of} are left for activations, which take {take}",
                f"each holds nothing now: {all_of} are left"]  # fmt: skip
    if held > usable:
        over = gigabytes(held - usable)
        return [f"each holds {own}, {over} more than the usable {all_of}", f"{own}: {over} over {all_of}"]
    left = f"{svg.quantity((usable - held) / 1e9, 2)} GB"
    return [f"each holds {own} of the usable {all_of}; {left} are left for activations, which take {take}",
            f"each holds {own} of {all_of}; {left} left, activations take {take}",
            f"{own} of {all_of}, activations {take}", f"{own} of {all_of}"]  # fmt: skip


def _marks(band: Band, scale: float, stages: Sequence[float], chosen: int) -> list[str]:
    """Beneath the bar, where each stage's ends; stages that end at one place share a mark."""
    low, groups = band.y + band.height, []
    for stage, size in sorted(enumerate(stages), key=lambda one: (one[1], one[0])):
        at = band.x + size * scale
        if groups and at - groups[-1][0] < NEAR:
            groups[-1][1].append(stage)
        else:
            groups.append((at, [stage]))
    out = [svg.text(band.x - 7, low + 13, "in stage", anchor="end", fill="muted", size=svg.SMALLEST)] if stages else []
    free = band.x - 3
    for at, found in groups:
        mine, words = chosen in found, "–".join(map(str, sorted({min(found), max(found)})))
        wide = svg.measure(words, svg.SMALLEST, bold=True)
        left = max(free, at - wide / 2)
        free = left + wide + 4
        out.append(svg.line(at, low, at, low + 3, "ink" if mine else "muted", 2 if mine else 1))
        out.append(svg.text(left + wide / 2, low + 13, words, anchor="middle", bold=mine,
                            fill="ink" if mine else "muted", size=svg.SMALLEST))  # fmt: skip
    return out


def host(band: Band, parts: Sequence[Part], scale: float, words: str) -> str:
    """What lies outside the GPU, on the scale of what lies on it."""
    boxes, at = [], band.x
    for part in parts:
        wide = part.size * scale
        boxes.append(hatch.area([(at, band.y, wide, band.height)], part.fill, part.key) if part.size else "")
        at += wide
    return "".join(boxes) + svg.text(at + 6, band.y + band.height - 1, words, size=svg.SMALLEST) if at > band.x else ""


# --- the wire --------------------------------------------------------------------------------------------------------


def wire(band: Band, cells: Sequence[Cell], piece: float, stage: int, run: float | None = None) -> str:
    """Cells as long as their pieces, filled as far as they have been sent; an axis of pieces above, and the mark of a
    guess, which has the line beneath to itself. piece: its bytes. run: pieces of a reader's own."""
    end = max(AXIS, ceil(sum(cell.pieces for cell in cells)) + 0.2)
    scale, low = band.width / end, band.y + band.height
    out = [svg.text(band.words, band.y - 20, fitting(_wire_words(cells, piece), band.room), size=svg.SMALL)]
    out.append(svg.text(band.x - 7, band.y + band.height / 2 + 4, f"stage {stage}", anchor="end", fill="muted",
                        size=svg.SMALLEST))  # fmt: skip
    out.append(svg.line(band.x, band.y - 1, band.x + band.width, band.y - 1))
    step = next(one for one in (1, 2, 5, 10, 20) if end / one <= 8)
    for value in range(0, int(end) + 1, step):
        at = band.x + value * scale
        out.append(svg.line(at, band.y - 4, at, band.y - 1))
        out.append(svg.text(at, band.y - 6, str(value), anchor="middle", fill="muted", size=svg.SMALLEST))
    at = band.x
    for i, cell in enumerate(cells):
        out += _cell(cell, i, at, cell.pieces * scale, band)
        at += cell.pieces * scale
    stops = [(0.0, band.x), (AXIS, band.x + AXIS * scale)]
    if run:
        out.append(plot.ringed(band.x + min(run, end) * scale, band.y + band.height / 2, f"your run: {run:.2f} times"))
    return "".join(out) + guess.mark(stops, (band.y - 4, low + 4), "x")


def _wire_words(cells: Sequence[Cell], piece: float) -> list[str]:
    size, total, done = gigabytes(piece), *(sum(getattr(one, of) for one in cells) * piece for of in ("pieces", "done"))
    sent = gigabytes(total) if done > (1 - 1e-9) * total else f"{gigabytes(done)} of {gigabytes(total)}"
    return [f"sent by each GPU: {sent}; 1 is every weight once, {size}", f"each sends {sent}; 1 is every weight once",
            f"each sends {sent}"]  # fmt: skip


def _cell(cell: Cell, i: int, x: float, wide: float, band: Band) -> list[str]:
    long = max(0.0, wide - 1.5)
    full = long * cell.done / cell.pieces
    out = [svg.rect(x, band.y, long, band.height, "c4", opacity=0.2, title=cell.words[0])]
    out.append(svg.rect(x, band.y, full, band.height, "c4", opacity=0.38, title=cell.words[0], mark=f"cell {i}"))
    words = fitting(cell.words, long - 4, svg.SMALLEST)
    if words:
        out.append(svg.text(x + long / 2, band.y + band.height / 2 + 4, words, anchor="middle", size=svg.SMALLEST))
    return out


# --- the seconds -----------------------------------------------------------------------------------------------------


def seconds(band: Band, parts: dict[str, float], waits: Sequence[str]) -> str:
    """A step's seconds by what they are spent on, side by side; hatched what communication and the host cost."""
    whole = sum(parts.values())
    named = SECONDS | ({"update": "update on the host"} if "update" in waits else {})
    said = ", ".join(f"{words} {took(parts[name])}" for name, words in named.items() if parts[name] > 0)
    ways = [f"a step takes {took(whole)}: {said}", f"{took(whole)}: {said}",
            f"{took(whole)} a step, {took(sum(parts[name] for name in waits))} of it lost (hatched)"]  # fmt: skip
    out, at = [svg.text(band.words, band.y - 6, fitting(ways, band.room), size=svg.SMALL)], band.x
    for name, words in named.items():
        wide = band.width * parts[name] / whole
        title = f"{words} {took(parts[name])}"
        if name in waits:
            out.append(svg.rect(at, band.y, wide, band.height, "accent", opacity=hatch.PALE, title=title,
                                mark=f"ground {name}"))  # fmt: skip
            out.append(hatch.hatched(at, band.y, wide, band.height, "accent", f"waits {name}"))
        else:
            out.append(svg.rect(at, band.y, wide, band.height, FILLS[name], title=title, mark=f"works {name}"))
        at += wide
    return "".join(out)
