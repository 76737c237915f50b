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
    across: float
    down: float
    card: float

    def place(self, rank: int, ranks: int) -> tuple[float, float]:
        """The middle of a rank's card, rank 0 on top and the others clockwise; of the switch, the middle."""
        if rank == ranks:
            return self.x, self.y
        angle = 2 * pi * rank / ranks - pi / 2
        return round(self.x + self.across * cos(angle), 1), round(self.y + self.down * sin(angle), 1)

    def pitch(self, count: int) -> float:
        """Of columns or stripes: what `count` of them have each."""
        return (self.card - 6) / count


def draw(shown: Frames, step: int, on: Circle, centre: list[tuple[str, bool]], node: int) -> str:
    """The ranks after `step` steps with the parcels of the next; `centre` are lines of words, (words, bold).

    node: ranks of a node; where there are several nodes, lines part them.
    """
    places = [on.place(rank, shown.ranks) for rank in range(len(shown.held[0]))]
    parcels = shown.parcels[step] if step < shown.steps else ()
    return "".join(
        [
            _track(shown, on),
            _borders(shown.ranks, node, on),
            "" if shown.algorithm == "ring" else _arrows(parcels, places, on.card),
            _cards(shown.ranks, places, on),
            _stripes(shown, step, places, on),
            _parcels(parcels, shown, step, places, on),
            _numbers(shown.ranks, places, on),
            _centre(on, centre, shown.algorithm == "in-network"),
        ]
    )


def _track(shown: Frames, on: Circle) -> str:
    ring = shown.algorithm == "ring"
    out = (
        f'<ellipse cx="{svg.num(on.x)}" cy="{svg.num(on.y)}" rx="{svg.num(on.across)}" ry="{svg.num(on.down)}" '
        f'fill="none" stroke="{svg.colour("grid")}" stroke-width="{8 if ring else 1}"/>'
    )
    heads = []
    for gap in range(shown.ranks if ring else 0):
        angle = 2 * pi * (gap + 0.5) / shown.ranks - pi / 2
        x, y = on.x + on.across * cos(angle), on.y + on.down * sin(angle)
        heads.append(_head(x, y, -on.across * sin(angle), on.down * cos(angle), 4))
    return out + f'<path d="{"".join(heads)}" fill="{svg.colour("muted")}"/>' * ring


def _borders(ranks: int, node: int, on: Circle) -> str:
    """A line from inside to outside between two nodes."""
    lines = []
    for first in range(0, ranks, node) if 1 < node < ranks else ():
        angle = 2 * pi * (first - 0.5) / ranks - pi / 2
        near, far = 1 - 0.62 * on.card / on.across, 1 + 0.62 * on.card / on.across
        ends = [(on.x + on.across * cos(angle) * at, on.y + on.down * sin(angle) * at) for at in (near, far)]
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
    for one in parcels:
        (a, b), (c, d) = places[one.source], places[one.target]
        dx, dy = c - a, d - b
        near = (card / 2 + 5) / max(abs(dx), abs(dy))
        lines.append(f"M{a:g} {b:g}L{c - dx * near:.1f} {d - dy * near:.1f}")
        heads.append(_head(c - dx * near, d - dy * near, dx, dy, 4.5))
    if not parcels:
        return ""
    ink = svg.colour("c4")
    return (
        f'<path d="{"".join(lines)}" stroke="{ink}" stroke-width="1.5" stroke-opacity="0.6"/>'
        f'<path d="{"".join(heads)}" fill="{ink}"/>'
    )


def _cards(ranks: int, places: list[tuple[float, float]], on: Circle) -> str:
    size = svg.num(on.card)
    out = [
        f'<rect x="{svg.num(x - on.card / 2)}" y="{svg.num(y - on.card / 2)}" width="{size}" height="{size}" rx="4" '
        f'data-mark="card-{rank}"/>'
        for rank, (x, y) in enumerate(places)
    ]
    return f'<g fill="{svg.colour("paper")}" stroke="{svg.colour("muted")}">{"".join(out)}</g>'


def _numbers(ranks: int, places: list[tuple[float, float]], on: Circle) -> str:
    """A disc with each rank's number, in its colour, on the inner side of its card."""
    out = []
    for rank, (x, y) in enumerate(places[:ranks]):
        dx, dy = on.x - x, on.y - y
        near = (on.card / 2 + DISC + 3) / max(abs(dx), abs(dy))
        disc = f'<circle r="{DISC}" fill="{svg.colour("paper")}" stroke="{ramp.colour(rank, ranks)}" stroke-width="3"/>'
        out.append(svg.group(x + dx * near, y + dy * near, f'{disc}<text y="4">{rank}</text>', f"rank-{rank}"))
    return f'<g text-anchor="middle" font-size="11" font-weight="600" fill="{svg.colour("ink")}">{"".join(out)}</g>'


def _stripes(shown: Frames, step: int, places: list[tuple[float, float]], on: Circle) -> str:
    """All stripes on all cards, in one path for each rank's colour: strong, and pale where the sum went on."""
    wide, high = on.pitch(shown.chunks), on.pitch(shown.ranks)
    left = {
        (one.source, chunk)
        for one in (shown.parcels[step] if 0 < step < shown.steps else ())
        if one.adds
        for chunk in one.chunks
    }
    paths: dict[tuple[int, bool], list[str]] = {}
    for rank, cells in enumerate(shown.held[step]):
        x, y = places[rank][0] - on.card / 2 + 3, places[rank][1] - on.card / 2 + 3
        gone = shown.passed[step][rank]
        pale = [gone >> c & 1 == 1 or (rank, c) in left for c in range(shown.chunks)]
        for q in range(shown.ranks):
            at = y + (q + 0.5) * high
            for faded, first, last in _runs(cells, pale, q):
                run = f"M{x + first * wide:.4g} {at:.4g}h{(last - first) * wide:.4g}"
                paths.setdefault((q, faded), []).append(run)
    out = [
        f'<path d="{"".join(runs)}" stroke="{ramp.colour(q, shown.ranks)}" opacity="{PALE if faded else 1}"/>'
        for (q, faded), runs in sorted(paths.items())
    ]
    return _grid_of(out, wide, high)


def _grid_of(paths: list[str], wide: float, high: float) -> str:
    """Stripes of a grid's pitch: dashes leave a line free between columns, the width one between rows."""
    gap, between = min(1.2, wide * 0.16), min(1.0, high * 0.16)
    return (
        f'<g fill="none" stroke-width="{svg.num(high - between)}" '
        f'stroke-dasharray="{svg.num(wide - gap)} {svg.num(gap)}">{"".join(paths)}</g>'
    )


def _runs(cells: tuple[int, ...], pale: list[bool], q: int) -> list[tuple[bool, int, int]]:
    """(pale, first, beyond the last) of neighbouring columns with rank q's numbers in them."""
    out: list[tuple[bool, int, int]] = []
    for c, cell in enumerate(cells):
        if cell >> q & 1:
            if out and out[-1][2] == c and out[-1][0] == pale[c]:
                out[-1] = (pale[c], out[-1][1], c + 1)
            else:
                out.append((pale[c], c, c + 1))
    return out


def _parcels(parcels: tuple[Parcel, ...], shown: Frames, step: int, places, on: Circle) -> str:
    """Columns that have left a card: on the card they leave before the first step, under way in all others."""
    wide, high = on.pitch(shown.chunks), on.pitch(shown.ranks)
    known: dict[str, str] = {}  # stripes drawn before, by what they are
    out = []
    for one in parcels:
        (a, b), (c, d) = places[one.source], places[one.target]
        gone = _gone(one, shown, step, ((c - a) ** 2 + (d - b) ** 2) ** 0.5, on)
        x = a + (c - a) * gone + one.chunks[0] * wide - on.card / 2 + 3
        y = b + (d - b) * gone - on.card / 2 + 3
        count = one.chunks[-1] - one.chunks[0] + 1
        box = f'<rect x="-2" y="-2" width="{count * wide + 4:.3g}" height="{on.card - 2:.3g}" rx="2.5"/>'
        stripes = _sum(tuple(shown.held[step][one.source][k] for k in one.chunks), shown.ranks, wide, high)
        name = f"sum-{crc32(stripes.encode()):x}"
        if stripes in known:
            stripes = f'<use href="#{name}"/>'
        else:
            known[stripes] = name
            stripes = stripes.replace("<g ", f'<g id="{name}" ', 1)
        out.append(svg.group(x, y, box + stripes, f"parcel-{one.name}"))
    return f'<g fill="{svg.colour("paper")}" stroke="{svg.colour("c4")}" stroke-width="2">{"".join(out)}</g>'


def _sum(cells: tuple[int, ...], ranks: int, wide: float, high: float) -> str:
    """The stripes of a parcel. The same ones are drawn once: their name says what they are, so that two pictures on a
    page may share it."""
    body = []
    for q in range(ranks):
        runs = _runs(cells, [False] * len(cells), q)
        path = "".join(f"M{i * wide:.3g} {(q + 0.5) * high:.3g}h{(j - i) * wide:.3g}" for _, i, j in runs)
        body.append(f'<path d="{path}" stroke="{ramp.colour(q, ranks)}"/>' if path else "")
    return _grid_of(body, wide, high)


def _gone(one: Parcel, shown: Frames, step: int, way: float, on: Circle) -> float:
    """The part of its way that a parcel has gone: near the outer end where the way leads through the middle."""
    if step == 0:
        return 0.0
    if shown.algorithm == "ring":
        return UNDER_WAY
    lift = min(UNDER_WAY, LIFT * on.card / way)
    return 1 - lift if one.source == shown.ranks else lift


def _centre(on: Circle, lines: list[tuple[str, bool]], switch: bool) -> str:
    """Words in the middle; where the switch is, what it does above it and the step below."""
    if switch:
        (what, _), (count, _) = lines[1:3]
        above = svg.text(on.x, on.y - on.card / 2 - 4, what, anchor="middle", bold=True, halo=True)
        return above + svg.text(on.x, on.y + on.card / 2 + 14, count, anchor="middle", size=svg.SMALL, halo=True)
    tall = [20 if bold else 16 for _, bold in lines]
    out, y = [], on.y - fsum(tall) / 2 - 2
    for (words, bold), height in zip(lines, tall, strict=True):
        y += height
        size, fill = (16, "ink") if bold else (svg.SMALL, "muted")
        out.append(svg.text(on.x, y, words, anchor="middle", fill=fill, bold=bold, size=size, halo=True))
    return "".join(out)
