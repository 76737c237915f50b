"""A row of GPUs as tanks: the peak memory of each, the eighths of the model that it stores, the wire that joins them,
and below three gauges for the cost of the choice."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.draw import svg
from scaleout.draw.hatch import VEIL, hatched
from scaleout.words.amounts import quantity


@dataclass(frozen=True)
class Layer:
    """Bytes of one kind on one GPU, from the bottom up."""

    key: str
    name: str
    fill: str
    size: float


@dataclass(frozen=True)
class Gauge:
    """A number with a bar: `share` of the bar is full; `words` in one line, or in the narrow picture in two."""

    key: str
    number: str
    share: float
    fill: str
    words: tuple[str, str]
    alarm: bool = False


@dataclass(frozen=True)
class Row:
    """The data of the picture. limit: bytes of one GPU; usable: those that tensors can fill; top: of the scale; first:
    bytes that each used before a choice. split: whether each GPU stores its own part of the model; moved: share of the
    wire's width."""

    layers: tuple[Layer, ...]
    gpus: int
    limit: float
    usable: float
    top: float
    first: float
    split: bool
    moved: float
    gauges: tuple[Gauge, ...]


@dataclass(frozen=True)
class Places:
    """In CSS pixels: the first tank's left end, from tank to tank, a tank's width, top and bottom of the scale, where
    the labels begin, from gauge to gauge, and size of text."""

    width: int
    left: int
    pitch: int
    tank_width: int
    top: int
    bottom: int
    labels: int
    gauge: int
    font: int

    @property
    def strip(self) -> int:
        """Top of the eighths that a GPU keeps."""
        return self.bottom + 8

    @property
    def wire(self) -> int:
        return self.bottom + 37

    @property
    def gauges(self) -> int:
        """Baseline of the gauges' numbers."""
        return self.bottom + 90

    @property
    def height(self) -> int:
        return self.gauges + (46 if self.width == svg.NARROW else 32)


PLACES = {
    svg.WIDE: Places(svg.WIDE, 58, 45, 35, 8, 250, 419, 207, svg.SMALL),
    svg.NARROW: Places(svg.NARROW, 50, 26, 20, 8, 190, 260, 123, svg.SMALLEST),
}
CELL = 7  # height of the strip of eighths
WIRE = 12  # of the wire when it carries the most
SEAM = 0.8  # of ground between two layers: green and grey are one to some eyes


def draw(row: Row, width: int, label: str) -> str:
    """The whole picture."""
    places = PLACES[width]
    end = places.left + places.pitch * (row.gpus - 1) + places.tank_width
    body = [_tank(row, places, gpu) for gpu in range(row.gpus)]
    body += [_rim(row, places, end), _names(row, places), _first(row, places), _wire(row, places, end)]
    body += [_gauge(gauge, places, i) for i, gauge in enumerate(row.gauges)]
    return svg.figure(places.width, places.height, "".join(body), label)


def _y(row: Row, places: Places, size: float) -> float:
    return places.bottom - (places.bottom - places.top) * size / row.top


def _tank(row: Row, places: Places, gpu: int) -> str:
    """One GPU: its layers, what is over the rim, its walls, and the eighths of the model that it keeps."""
    left, base, marks = places.left + places.pitch * gpu, 0.0, []
    for layer in row.layers:
        high, low = _y(row, places, base + layer.size), _y(row, places, base)
        tall = max(0.0, low - high - SEAM)
        marks.append(svg.rect(left, high, places.tank_width, tall, layer.fill, mark=f"{gpu} {layer.key}"))
        base += layer.size
    rim = _y(row, places, row.limit)
    excess = max(0.0, rim - _y(row, places, base))
    # a veil beneath the hatch: it must be seen on every colour
    marks += [
        svg.rect(left, rim - excess, places.tank_width, excess, "paper", opacity=VEIL, mark=f"{gpu} veil"),
        hatched(left, rim - excess, places.tank_width, excess, "accent", f"{gpu} over"),
    ]
    y, right = svg.num(rim), svg.num(left + places.tank_width + 1)
    wall = f"M{svg.num(left - 1)} {y}V{places.bottom + 1}H{right}V{y}"
    marks.append(f'<path d="{wall}" fill="none" stroke="{svg.colour("compute")}" stroke-width="2"/>')
    return "".join(marks) + _eighths(row, places, gpu, left)


def _eighths(row: Row, places: Places, gpu: int, left: float) -> str:
    """A ground as wide as the tank, and on it the parts that are kept."""
    pitch = places.tank_width / row.gpus
    parts = [part for part in range(row.gpus) if not row.split or part == gpu]
    cell = f"h{svg.num(pitch - 0.7)}v{CELL}h{svg.num(0.7 - pitch)}z"
    d = "".join(f"M{svg.num(left + pitch * part)} {places.strip}{cell}" for part in parts)
    return svg.rect(left, places.strip, places.tank_width, CELL, "grid") + f'<path d="{d}" fill="{svg.colour("c1")}"/>'


def _rim(row: Row, places: Places, end: float) -> str:
    y = _y(row, places, row.limit)
    words = (
        (f"{row.limit / 1e9:.1f} GB", "each has") if places.width == svg.WIDE else (f"{row.limit / 1e9:.1f}", "GB each")
    )
    lines = [
        svg.text(0, y + shift, part, bold=not i, size=places.font, fill="muted" if i else "ink")
        for i, (part, shift) in enumerate(zip(words, (4, 18), strict=True))
    ]
    room = _y(row, places, row.usable)
    below = f"{row.usable / 1e9:.1f}{' GB' * (places.width == svg.WIDE)}", "usable"
    lines += [
        svg.text(0, y + shift, part, bold=not i, size=places.font, fill="muted" if i else "ink")
        for i, (part, shift) in enumerate(zip(below, (38, 52), strict=True))
    ]
    return (
        svg.line(places.left - 6, y, end + 6, y, "ink", 2)
        + svg.line(places.left - 6, room, end + 6, room, "ink", 1.2, "2 3", mark="usable")
        + "".join(lines)
    )


def _names(row: Row, places: Places) -> str:
    """Each kind beside its layer in the last tank, the names apart from each other."""
    marks, base, below, pitch = [], 0.0, places.bottom + 14.0, places.font + 3
    for layer in row.layers:
        middle = _y(row, places, base + layer.size / 2)
        base += layer.size
        if layer.size < 0.004 * row.top:
            continue
        y = min(middle + 4, below - pitch)
        below = y
        words = f"{layer.name} {quantity(layer.size / 1e9)}"
        unit = " GB" if places.width == svg.WIDE else ""
        marks.append(svg.text(places.labels, y, words + unit, size=places.font, mark=f"name {layer.key}"))
    return "".join(marks)


def _first(row: Row, places: Places) -> str:
    """A dashed line at the memory that each GPU used before a choice was made, where it now uses less."""
    if sum(layer.size for layer in row.layers) > 0.99 * row.first:
        return ""
    y = _y(row, places, row.first)
    lines = [
        svg.line(
            places.left + places.pitch * gpu,
            y,
            places.left + places.pitch * gpu + places.tank_width,
            y,
            "muted",
            1.5,
            "3 3",
        )
        for gpu in range(row.gpus)
    ]
    return "".join(lines) + svg.text(
        places.labels, y + 4, f"{quantity(row.first / 1e9)} GB at first", fill="muted", size=places.font
    )


def _wire(row: Row, places: Places, end: float) -> str:
    """One bar to which every GPU is joined, as thick as what it carries."""
    thick, colour = WIRE * row.moved, svg.colour("c4")
    top = places.wire - thick / 2
    marks = []
    for gpu in range(row.gpus):
        middle = places.left + places.pitch * gpu + places.tank_width / 2
        marks.append(svg.line(middle, places.strip + CELL + 3, middle, places.wire, "c4", 2))
        name = f"GPU {gpu}" if not gpu else str(gpu)
        marks.append(svg.text(middle, places.wire + 22, name, anchor="middle", fill="muted", size=places.font))
    marks.append(
        f'<rect x="{places.left}" y="{svg.num(top)}" width="{end - places.left}" '
        f'height="{svg.num(thick)}" rx="3" fill="{colour}" data-mark="wire"/>'
    )
    share = (
        ("an eighth of the model" if row.split else "all of the model")
        if places.width == svg.WIDE
        else ("an eighth" if row.split else "all of it")
    )
    marks += [
        svg.text(places.labels, places.strip + CELL, f"stores {share}", fill="muted", size=places.font),
        svg.text(places.labels, places.wire + 4, "what moves", fill="muted", size=places.font),
    ]
    return "".join(marks)


def _gauge(gauge: Gauge, places: Places, place: int) -> str:
    left, y, bar_width = places.gauge * place, places.gauges, places.width - 2 * places.gauge - 2
    colour = svg.colour("accent" if gauge.alarm else gauge.fill)
    marks = [
        svg.text(left, y, gauge.number, bold=True, size=16, fill="accent" if gauge.alarm else "ink"),
        svg.rect(left, y + 7, bar_width, 6, "grid", opacity=0.5),
        f'<rect x="{left}" y="{y + 7}" width="{svg.num(bar_width * gauge.share)}" height="6" fill="{colour}" '
        f'data-mark="gauge {gauge.key}"/>',
    ]
    lines = [" ".join(gauge.words)] if places.width == svg.WIDE else gauge.words
    marks += [svg.text(left, y + 27 + 14 * i, words, fill="muted", size=places.font) for i, words in enumerate(lines)]
    return "".join(marks)
