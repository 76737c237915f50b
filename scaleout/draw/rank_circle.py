"""A collective on a circle of ranks: a card for each, a column for each part, a stripe for each rank in its sum.

Parcels, outlined, are drawn on their way from card to card; a parcel keeps its name from step to step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, fsum, pi, sin
from zlib import crc32

from scaleout.draw import ramp, svg
from scaleout.draw.parcels import Frames, Parcel

UNDER_WAY = 0.46  # of the way to the next rank that a parcel has gone
LIFT = 0.62  # of a card: as far as that at most, where the way leads through the middle and its words
PALE = 0.26  # a part of a sum that has gone on without this rank
DISC = 8.5  # radius of a rank's number


@dataclass(frozen=True)
class Circle:
    """Where the ranks are: an ellipse round (x, y), and the size of a card."""

    x: float
    y: float
    rx: float
    ry: float
    card: float

    def place(self, rank: int, ranks: int) -> tuple[float, float]:
        """The middle of a rank's card, rank 0 on top and the others clockwise; of the switch, the middle."""
        if rank == ranks:
            return self.x, self.y
        angle = 2 * pi * rank / ranks - pi / 2
        return round(self.x + self.rx * cos(angle), 1), round(self.y + self.ry * sin(angle), 1)

    def pitch(self, count: int) -> float:
        """Of columns or stripes: what `count` of them have each."""
        return (self.card - 6) / count


def draw(shown: Frames, step: int, circle: Circle, centre: list[tuple[str, bool]], node: int) -> str:
    """The ranks after `step` steps with the parcels of the next; `centre` are lines of words, (words, bold).

    node: ranks of a node; where there are several nodes, lines part them.
    """
    places = [circle.place(rank, shown.ranks) for rank in range(len(shown.held[0]))]
    parcels = shown.parcels[step] if step < shown.steps else ()
    return "".join(
        [
            _track(shown, circle),
            _borders(shown.ranks, node, circle),
            "" if shown.algorithm == "ring" else _arrows(parcels, places, circle.card),
            _cards(shown.ranks, places, circle),
            _stripes(shown, step, places, circle),
            _parcels(parcels, shown, step, places, circle),
            _numbers(shown.ranks, places, circle),
            _centre(circle, centre, shown.algorithm == "in-network"),
        ]
    )


def _track(shown: Frames, circle: Circle) -> str:
    ring = shown.algorithm == "ring"
    marks = (
        f'<ellipse cx="{svg.num(circle.x)}" cy="{svg.num(circle.y)}" rx="{svg.num(circle.rx)}" '
        f'ry="{svg.num(circle.ry)}" fill="none" stroke="{svg.colour("grid")}" stroke-width="{8 if ring else 1}"/>'
    )
    heads = []
    for gap in range(shown.ranks if ring else 0):
        angle = 2 * pi * (gap + 0.5) / shown.ranks - pi / 2
        x, y = circle.x + circle.rx * cos(angle), circle.y + circle.ry * sin(angle)
        heads.append(_head(x, y, -circle.rx * sin(angle), circle.ry * cos(angle), 4))
    return marks + f'<path d="{"".join(heads)}" fill="{svg.colour("muted")}"/>' * ring


def _borders(ranks: int, node: int, circle: Circle) -> str:
    """A line from inside to outside between two nodes."""
    lines = []
    for first in range(0, ranks, node) if 1 < node < ranks else ():
        angle = 2 * pi * (first - 0.5) / ranks - pi / 2
        inner, outer = 1 - 0.62 * circle.card / circle.rx, 1 + 0.62 * circle.card / circle.rx
        ends = [
            (circle.x + circle.rx * cos(angle) * radius, circle.y + circle.ry * sin(angle) * radius)
            for radius in (inner, outer)
        ]
        lines.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in ends))
    return f'<path d="{"".join(lines)}" stroke="{svg.colour("muted")}" stroke-dasharray="3 3"/>' if lines else ""


def _head(x: float, y: float, dx: float, dy: float, size: float) -> str:
    """Path of an arrowhead around (x, y) that points along (dx, dy)."""
    length = (dx * dx + dy * dy) ** 0.5
    u, v = dx / length * size, dy / length * size
    points = ((x + u, y + v), (x - u - v * 0.9, y - v + u * 0.9), (x - u + v * 0.9, y - v - u * 0.9))
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points) + "z"


def _arrows(parcels: tuple[Parcel, ...], places: list[tuple[float, float]], card: float) -> str:
    """A line between the cards of each parcel, with a head where it arrives."""
    lines, heads = [], []
    for parcel in parcels:
        (a, b), (c, d) = places[parcel.source], places[parcel.target]
        dx, dy = c - a, d - b
        inset = (card / 2 + 5) / max(abs(dx), abs(dy))
        lines.append(f"M{a:g} {b:g}L{c - dx * inset:.1f} {d - dy * inset:.1f}")
        heads.append(_head(c - dx * inset, d - dy * inset, dx, dy, 4.5))
    if not parcels:
        return ""
    ink = svg.colour("c4")
    return (
        f'<path d="{"".join(lines)}" stroke="{ink}" stroke-width="1.5" stroke-opacity="0.6"/>'
        f'<path d="{"".join(heads)}" fill="{ink}"/>'
    )


def _cards(ranks: int, places: list[tuple[float, float]], circle: Circle) -> str:
    size, half = svg.num(circle.card), circle.card / 2
    marks = [
        f'<rect x="{svg.num(x - half)}" y="{svg.num(y - half)}" width="{size}" height="{size}" rx="4" '
        f'data-mark="card-{rank}"/>'
        for rank, (x, y) in enumerate(places)
    ]
    return f'<g fill="{svg.colour("paper")}" stroke="{svg.colour("muted")}">{"".join(marks)}</g>'


def _numbers(ranks: int, places: list[tuple[float, float]], circle: Circle) -> str:
    """A disc with each rank's number, in its colour, on the inner side of its card."""
    marks = []
    for rank, (x, y) in enumerate(places[:ranks]):
        dx, dy = circle.x - x, circle.y - y
        inset = (circle.card / 2 + DISC + 3) / max(abs(dx), abs(dy))
        disc = f'<circle r="{DISC}" fill="{svg.colour("paper")}" stroke="{ramp.colour(rank, ranks)}" stroke-width="3"/>'
        marks.append(svg.group(x + dx * inset, y + dy * inset, f'{disc}<text y="4">{rank}</text>', f"rank-{rank}"))
    return f'<g text-anchor="middle" font-size="11" font-weight="600" fill="{svg.colour("ink")}">{"".join(marks)}</g>'


def _stripes(shown: Frames, step: int, places: list[tuple[float, float]], circle: Circle) -> str:
    """All stripes on all cards, in one path for each rank's colour: strong, and pale where the sum went on."""
    wide, high = circle.pitch(shown.chunks), circle.pitch(shown.ranks)
    left = {
        (parcel.source, chunk)
        for parcel in (shown.parcels[step] if 0 < step < shown.steps else ())
        if parcel.adds
        for chunk in parcel.chunks
    }
    paths: dict[tuple[int, bool], list[str]] = {}
    for rank, cells in enumerate(shown.held[step]):
        x, y = places[rank][0] - circle.card / 2 + 3, places[rank][1] - circle.card / 2 + 3
        passed = shown.passed[step][rank]
        pale = [passed >> c & 1 == 1 or (rank, c) in left for c in range(shown.chunks)]
        for q in range(shown.ranks):
            row_y = y + (q + 0.5) * high
            for faded, first, last in _runs(cells, pale, q):
                run = f"M{x + first * wide:.4g} {row_y:.4g}h{(last - first) * wide:.4g}"
                paths.setdefault((q, faded), []).append(run)
    marks = [
        f'<path d="{"".join(runs)}" stroke="{ramp.colour(q, shown.ranks)}" opacity="{PALE if faded else 1}"/>'
        for (q, faded), runs in sorted(paths.items())
    ]
    return _grid_of(marks, wide, high)


def _grid_of(paths: list[str], wide: float, high: float) -> str:
    """Stripes of a grid's pitch: dashes leave a line free between columns, the width one between rows."""
    gap, row_gap = min(1.2, wide * 0.16), min(1.0, high * 0.16)
    return (
        f'<g fill="none" stroke-width="{svg.num(high - row_gap)}" '
        f'stroke-dasharray="{svg.num(wide - gap)} {svg.num(gap)}">{"".join(paths)}</g>'
    )


def _runs(cells: tuple[int, ...], pale: list[bool], q: int) -> list[tuple[bool, int, int]]:
    """(pale, first, beyond the last) of neighbouring columns with rank q's numbers in them."""
    runs: list[tuple[bool, int, int]] = []
    for c, cell in enumerate(cells):
        if cell >> q & 1:
            if runs and runs[-1][2] == c and runs[-1][0] == pale[c]:
                runs[-1] = (pale[c], runs[-1][1], c + 1)
            else:
                runs.append((pale[c], c, c + 1))
    return runs


def _parcels(parcels: tuple[Parcel, ...], shown: Frames, step: int, places, circle: Circle) -> str:
    """Columns that have left a card: on the card they leave before the first step, under way in all others."""
    wide, high = circle.pitch(shown.chunks), circle.pitch(shown.ranks)
    known: dict[str, str] = {}  # stripes drawn before, by what they are
    marks = []
    for parcel in parcels:
        (a, b), (c, d) = places[parcel.source], places[parcel.target]
        progress = _progress(parcel, shown, step, ((c - a) ** 2 + (d - b) ** 2) ** 0.5, circle)
        x = a + (c - a) * progress + parcel.chunks[0] * wide - circle.card / 2 + 3
        y = b + (d - b) * progress - circle.card / 2 + 3
        count = parcel.chunks[-1] - parcel.chunks[0] + 1
        box = f'<rect x="-2" y="-2" width="{count * wide + 4:.3g}" height="{circle.card - 2:.3g}" rx="2.5"/>'
        stripes = _sum(tuple(shown.held[step][parcel.source][k] for k in parcel.chunks), shown.ranks, wide, high)
        name = f"sum-{crc32(stripes.encode()):x}"
        if stripes in known:
            stripes = f'<use href="#{name}"/>'
        else:
            known[stripes] = name
            stripes = stripes.replace("<g ", f'<g id="{name}" ', 1)
        marks.append(svg.group(x, y, box + stripes, f"parcel-{parcel.name}"))
    return f'<g fill="{svg.colour("paper")}" stroke="{svg.colour("c4")}" stroke-width="2">{"".join(marks)}</g>'


def _sum(cells: tuple[int, ...], ranks: int, wide: float, high: float) -> str:
    """The stripes of a parcel. The same ones are drawn once: their name says what they are, so that two pictures on a
    page may share it."""
    body = []
    for q in range(ranks):
        runs = _runs(cells, [False] * len(cells), q)
        path = "".join(f"M{i * wide:.3g} {(q + 0.5) * high:.3g}h{(j - i) * wide:.3g}" for _, i, j in runs)
        body.append(f'<path d="{path}" stroke="{ramp.colour(q, ranks)}"/>' if path else "")
    return _grid_of(body, wide, high)


def _progress(parcel: Parcel, shown: Frames, step: int, way: float, circle: Circle) -> float:
    """The part of its way that a parcel has travelled: near the outer end where the way leads through the middle."""
    if step == 0:
        return 0.0
    if shown.algorithm == "ring":
        return UNDER_WAY
    lift = min(UNDER_WAY, LIFT * circle.card / way)
    return 1 - lift if parcel.source == shown.ranks else lift


def _centre(circle: Circle, lines: list[tuple[str, bool]], switch: bool) -> str:
    """Words in the middle; where the switch is, what it does above it and the step below."""
    if switch:
        (title, _), (count, _) = lines[1:3]
        above = svg.text(circle.x, circle.y - circle.card / 2 - 4, title, anchor="middle", bold=True, halo=True)
        return above + svg.text(
            circle.x, circle.y + circle.card / 2 + 14, count, anchor="middle", size=svg.SMALL, halo=True
        )
    tall = [20 if bold else 16 for _, bold in lines]
    marks, y = [], circle.y - fsum(tall) / 2 - 2
    for (words, bold), height in zip(lines, tall, strict=True):
        y += height
        size, fill = (16, "ink") if bold else (svg.SMALL, "muted")
        marks.append(svg.text(circle.x, y, words, anchor="middle", fill=fill, bold=bold, size=size, halo=True))
    return "".join(marks)
