"""A row of GPUs as tanks: what each holds at its fullest, which eighths of the model are its own, the wire that joins
them, and beneath three gauges of what the choice costs."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.draw import svg
from scaleout.draw.hatch import hatched


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
    """What is drawn. limit: bytes of one GPU; usable: those that tensors may fill; top: of the scale; first: what each
    held before anything was decided. split: whether each GPU keeps a part of the model of its own; moved: share of the
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
    across: int
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
    at = PLACES[width]
    end = at.left + at.pitch * (row.gpus - 1) + at.across
    body = [_tank(row, at, gpu) for gpu in range(row.gpus)]
    body += [_rim(row, at, end), _names(row, at), _first(row, at), _wire(row, at, end)]
    body += [_gauge(one, at, i) for i, one in enumerate(row.gauges)]
    return svg.figure(at.width, at.height, "".join(body), label)


def _y(row: Row, at: Places, size: float) -> float:
    return at.bottom - (at.bottom - at.top) * size / row.top


def _tank(row: Row, at: Places, gpu: int) -> str:
    """One GPU: its layers, what is over the rim, its walls, and the eighths of the model that it keeps."""
    left, base, out = at.left + at.pitch * gpu, 0.0, []
    for layer in row.layers:
        high, low = _y(row, at, base + layer.size), _y(row, at, base)
        tall = max(0.0, low - high - SEAM)
        out.append(svg.rect(left, high, at.across, tall, layer.fill, mark=f"{gpu} {layer.key}"))
        base += layer.size
    rim = _y(row, at, row.limit)
    over = max(0.0, rim - _y(row, at, base))
    # a veil beneath the hatch: it must be seen on every colour
    out.append(svg.rect(left, rim - over, at.across, over, "paper", opacity=0.45, mark=f"{gpu} veil"))
    out.append(hatched(left, rim - over, at.across, over, "accent", f"{gpu} over"))
    wall = f"M{svg.num(left - 1)} {svg.num(rim)}V{at.bottom + 1}H{svg.num(left + at.across + 1)}V{svg.num(rim)}"
    out.append(f'<path d="{wall}" fill="none" stroke="{svg.colour("compute")}" stroke-width="2"/>')
    return "".join(out) + _eighths(row, at, gpu, left)


def _eighths(row: Row, at: Places, gpu: int, left: float) -> str:
    """A ground as wide as the tank, and on it the parts that are kept."""
    pitch = at.across / row.gpus
    kept = [part for part in range(row.gpus) if not row.split or part == gpu]
    cell = f"h{svg.num(pitch - 0.7)}v{CELL}h{svg.num(0.7 - pitch)}z"
    d = "".join(f"M{svg.num(left + pitch * part)} {at.strip}{cell}" for part in kept)
    return svg.rect(left, at.strip, at.across, CELL, "grid") + f'<path d="{d}" fill="{svg.colour("c1")}"/>'


def _rim(row: Row, at: Places, end: float) -> str:
    y = _y(row, at, row.limit)
    words = (f"{row.limit / 1e9:.1f} GB", "each has") if at.width == svg.WIDE else (f"{row.limit / 1e9:.1f}", "GB each")
    lines = [
        svg.text(0, y + shift, part, bold=not i, size=at.font, fill="muted" if i else "ink")
        for i, (part, shift) in enumerate(zip(words, (4, 18), strict=True))
    ]
    room = _y(row, at, row.usable)
    below = f"{row.usable / 1e9:.1f}{' GB' * (at.width == svg.WIDE)}", "usable"
    lines += [
        svg.text(0, y + shift, part, bold=not i, size=at.font, fill="muted" if i else "ink")
        for i, (part, shift) in enumerate(zip(below, (38, 52), strict=True))
    ]
    return (
        svg.line(at.left - 6, y, end + 6, y, "ink", 2)
        + svg.line(at.left - 6, room, end + 6, room, "ink", 1.2, "2 3", mark="usable")
        + "".join(lines)
    )


def _names(row: Row, at: Places) -> str:
    """Each kind beside its layer in the last tank, the names apart from each other."""
    out, base, below, pitch = [], 0.0, at.bottom + 14.0, at.font + 3
    for layer in row.layers:
        middle = _y(row, at, base + layer.size / 2)
        base += layer.size
        if layer.size < 0.004 * row.top:
            continue
        y = min(middle + 4, below - pitch)
        below = y
        words = f"{layer.name} {svg.quantity(layer.size / 1e9)}"
        unit = " GB" if at.width == svg.WIDE else ""
        out.append(svg.text(at.labels, y, words + unit, size=at.font, mark=f"name {layer.key}"))
    return "".join(out)


def _first(row: Row, at: Places) -> str:
    """A dashed line at what each GPU held before a choice was made, where it now holds less."""
    if sum(layer.size for layer in row.layers) > 0.99 * row.first:
        return ""
    y = _y(row, at, row.first)
    lines = [
        svg.line(at.left + at.pitch * gpu, y, at.left + at.pitch * gpu + at.across, y, "muted", 1.5, "3 3")
        for gpu in range(row.gpus)
    ]
    return "".join(lines) + svg.text(
        at.labels, y + 4, f"{svg.quantity(row.first / 1e9)} GB at first", fill="muted", size=at.font
    )


def _wire(row: Row, at: Places, end: float) -> str:
    """One bar to which every GPU is joined, as thick as what it carries."""
    thick, colour = WIRE * row.moved, svg.colour("c4")
    out = []
    for gpu in range(row.gpus):
        middle = at.left + at.pitch * gpu + at.across / 2
        out.append(svg.line(middle, at.strip + CELL + 3, middle, at.wire, "c4", 2))
        name = f"GPU {gpu}" if not gpu else str(gpu)
        out.append(svg.text(middle, at.wire + 22, name, anchor="middle", fill="muted", size=at.font))
    out.append(
        f'<rect x="{at.left}" y="{svg.num(at.wire - thick / 2)}" width="{end - at.left}" height="{svg.num(thick)}" '
        f'rx="3" fill="{colour}" data-mark="wire"/>'
    )
    own = (
        ("an eighth of the model" if row.split else "all of the model")
        if at.width == svg.WIDE
        else ("an eighth" if row.split else "all of it")
    )
    out.append(svg.text(at.labels, at.strip + CELL, f"keeps {own}", fill="muted", size=at.font))
    out.append(svg.text(at.labels, at.wire + 4, "what moves", fill="muted", size=at.font))
    return "".join(out)


def _gauge(gauge: Gauge, at: Places, place: int) -> str:
    left, y, across = at.gauge * place, at.gauges, at.width - 2 * at.gauge - 2
    colour = svg.colour("accent" if gauge.alarm else gauge.fill)
    out = [
        svg.text(left, y, gauge.number, bold=True, size=16, fill="accent" if gauge.alarm else "ink"),
        svg.rect(left, y + 7, across, 6, "grid", opacity=0.5),
        f'<rect x="{left}" y="{y + 7}" width="{svg.num(across * gauge.share)}" height="6" fill="{colour}" '
        f'data-mark="gauge {gauge.key}"/>',
    ]
    lines = [" ".join(gauge.words)] if at.width == svg.WIDE else gauge.words
    out += [svg.text(left, y + 27 + 14 * i, words, fill="muted", size=at.font) for i, words in enumerate(lines)]
    return "".join(out)
