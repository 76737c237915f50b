"""Where the time of an all-reduce goes, by size of the message: latency against bytes, and who is fastest."""

from __future__ import annotations

from itertools import islice, pairwise
from math import exp, log

from scaleout.draw import svg
from scaleout.draw.labels import fitting
from scaleout.draw.plot import Axis
from scaleout.views.collectives.links import DECADES, LARGEST, SMALLEST, Band, Setting, Way, band, halves
from scaleout.views.collectives.record import Measured
from scaleout.views.collectives.words import SHORT, size
from scaleout.words.amounts import took

AXIS = Axis(SMALLEST, LARGEST, True)
SEEN = 0.45  # opacity of the band: words are written on it, in light and dark


class Strip:
    """The band's rectangle, of one width: words above it are seconds, below it bytes."""

    def __init__(self, left: float, top: float, width: float, height: float) -> None:
        self.left, self.top, self.width, self.height = left, top, width, height
        self.bottom, self.right = top + height, left + width

    def x(self, amount: float) -> float:
        return self.left + self.width * min(1.0, max(0.0, AXIS.part(amount)))

    def y(self, share: float) -> float:
        return self.bottom - self.height * share


def locked(y: float, wide: bool) -> str:
    """The empty band."""
    strip = _strip(y, wide, False)
    empty = svg.rect(strip.left, strip.top, strip.width, strip.height, "grid", opacity=0.3)
    return _head(y, wide) + empty + "".join(_label(strip, amount) for amount in _decades(wide))


def draw(
    links: Setting, algorithm: str, amount: float, points: Measured | None, y: float, wide: bool, protocols: bool
) -> str:
    """The band from y down: about 130 high when wide, 100 when narrow; with points of a reader's run a little more.

    protocols: with NCCL's, each with a latency of its own; otherwise one smooth curve (`links.Band.latency`).
    """
    split, strip, way = band(links, algorithm), _strip(y, wide, points is not None), links.way(algorithm, amount)
    body = [_head(y, wide), _area(split.shares(protocols), strip)]
    for decade in _decades(wide):
        x = strip.x(decade)
        body.append(svg.line(x, strip.top, x, strip.bottom, "paper", 0.8))
        words = took(links.way(algorithm, decade).cost.seconds)
        if not _meets(strip, x, words, amount, took(way.cost.seconds)):
            body.append(svg.text(x, strip.top - 6, words, anchor=_anchor(x, strip), size=svg.SMALLEST))
        if not _meets(strip, x, size(decade), amount, size(amount)):
            body.append(_label(strip, decade))
    body.append(points.draw(strip, wide, y) if points else "")
    dots: list[tuple[float, float | None]] = []
    if points:
        dots += [(strip.x(size), strip.y(min(1.0, share))) for size, _, share in points.points]
    body += _part_names(links, algorithm, split, strip, dots, protocols)
    if wide:
        body += _halves(split.shares(protocols), strip, [*dots, (strip.x(amount), None)])
        body += _protocols(split.points, strip, dots) if protocols else []
        body += _fastest(split.points, strip)
    body.append(_present_size(strip, amount, way.cost.seconds))
    return "".join(body)


def _strip(y: float, wide: bool, has_points: bool) -> Strip:
    extra = 15 if has_points else 0
    return Strip(6, y + 37 + extra, 588, 54) if wide else Strip(4, y + 33 + extra, 350, 36)


def _decades(wide: bool) -> tuple[float, ...]:
    return DECADES if wide else (DECADES[0], DECADES[3], DECADES[5], DECADES[7])


def _head(y: float, wide: bool) -> str:
    words = "Where the time goes, by size of the message" if wide else "Where the time goes, by message size"
    return svg.text(0, y + 13, words, bold=True, size=svg.FONT if wide else svg.SMALL)


def _anchor(x: float, strip: Strip) -> str:
    return "start" if x < strip.left + 20 else "end" if x > strip.right - 20 else "middle"


def _label(strip: Strip, amount: float) -> str:
    x = strip.x(amount)
    return svg.text(x, strip.bottom + 14, size(amount), anchor=_anchor(x, strip), fill="muted", size=svg.SMALLEST)


def _meets(strip: Strip, x: float, words: str, amount: float, bold: str) -> bool:
    """Whether words at an axis' mark would touch the bold ones at the present size."""
    wide = svg.measure(words, 11)
    left = x - wide * {"start": 0.0, "middle": 0.5, "end": 1.0}[_anchor(x, strip)]
    half = svg.measure(bold, svg.SMALL, True) / 2
    middle = strip.x(amount) + _shift(strip, amount, half)
    return left < middle + half + 5 and middle - half - 5 < left + wide


def _shift(strip: Strip, amount: float, half: float) -> float:
    """How far words of this half width move from their marker to stay inside."""
    x = strip.x(amount)
    return min(max(x, strip.left - 2 + half), strip.right + 2 - half) - x


def _present_size(strip: Strip, amount: float, seconds: float) -> str:
    """The present size: its marker glides."""
    x = strip.x(amount)
    words = took(seconds), size(amount)
    first, second = (_shift(strip, amount, svg.measure(line, svg.SMALL, True) / 2) for line in words)
    return svg.group(
        x,
        strip.top,
        svg.line(0, -3, 0, strip.height + 3, "ink", 2.4)
        + svg.text(first, -6, words[0], anchor="middle", bold=True, size=svg.SMALL)
        + svg.text(second, strip.height + 14, words[1], anchor="middle", bold=True, size=svg.SMALL),
        "now",
    )


def _area(shares: list[tuple[float, float]], strip: Strip) -> str:
    """Bytes above, latency beneath: shares of the time, between two points as both grow."""
    path = [(strip.x(shares[0][0]), shares[0][1])]
    for (low, a), (high, b) in pairwise(shares):
        left, right = strip.x(low), strip.x(high)
        odds = [log(max(1 / share - 1, 1e-9)) for share in (a, b)]
        parts = 4 if right - left > 12 else 1
        path += [
            (left + (right - left) * k / parts, 1 / (1 + exp(odds[0] + (odds[1] - odds[0]) * k / parts)))
            for k in range(1, parts + 1)
        ]
    line = "L".join(f"{x:.1f} {strip.y(part):.1f}" for x, part in path)
    start, end, base = (svg.num(edge) for edge in (strip.left, strip.right, strip.bottom))
    return (
        svg.rect(strip.left, strip.top, strip.width, strip.height, "c4", opacity=SEEN)
        + f'<path d="M{start} {base}L{line}L{end} {base}z" fill="{svg.colour("paper")}"/>'
        + f'<path d="M{start} {base}L{line}L{end} {base}z" fill="{svg.colour("c7")}" fill-opacity="{SEEN}"/>'
        + f'<path d="M{line}" fill="none" stroke="{svg.colour("ink")}" stroke-width="1.2"/>'
    )


def _part_names(
    links: Setting,
    algorithm: str,
    split: Band,
    strip: Strip,
    dots: list[tuple[float, float | None]],
    protocols: bool,
) -> list[str]:
    """Names of the two parts where they have room beside what was measured, and dots where half of the time is each."""
    parts, font, share = [], svg.SMALL, {}
    for amount in DECADES:
        way = links.way(algorithm, amount)
        share[amount] = split.latency(way, protocols) / way.cost.seconds
    hops = links.way(algorithm, SMALLEST).cost.steps
    least = "lowest latency" if len(split.protocols) > 1 and not protocols else "latency"
    words = f"{least}: {hops:,} hop{'s' if hops > 1 else ''}"
    at_half = halves(split.shares(protocols))
    room = strip.x(at_half[0] if at_half else LARGEST) - strip.left - 14
    wide = svg.measure(words, font, True)
    if min(share[1e3], share[1e4]) > 0.8 and wide < room:
        rows = (strip.bottom - 8, strip.bottom - 4, strip.bottom - strip.height / 2 + 4)
        rows_free = (row for row in rows if _free(strip.left + 8, row, wide, dots))
        parts += [svg.text(strip.left + 8, row, words, bold=True, size=font) for row in islice(rows_free, 1)]
    if share[1e9] < 0.4:
        parts.append(svg.text(strip.right - 6, strip.top + 16, "bytes", anchor="end", bold=True, size=font))
    # full, where what was measured is a ring
    half_dot = f'<circle r="4" fill="{svg.colour("ink")}" stroke="{svg.colour("paper")}" stroke-width="1.2"/>'
    parts += [
        svg.group(strip.x(half), strip.y(0.5), half_dot, f"half-{index}")
        for index, half in enumerate(reversed(at_half))
    ]
    return parts


def _halves(shares: list[tuple[float, float]], strip: Strip, obstacles: list[tuple[float, float | None]]) -> list[str]:
    """The last size at which half of the time is latency, in words: above the curve or beneath it, where neither a
    measured point nor the line of the present size (its y is None) is in the way."""
    at_half = halves(shares)
    if not at_half:
        return []
    x, y, last = strip.x(at_half[-1]), strip.y(0.5), size(at_half[-1])
    several = len(at_half) > 1
    for words in (
        f"half and half{', last at' if several else ':'} {last}",
        f"half{', last' if several else ''}: {last}",
    ):
        wide = svg.measure(words, svg.SMALLEST)
        for left, baseline in ((x + 9, y - 5), (x - 9 - wide, y + 15)):
            # beneath, at the left, latency has its name, and where there are several halves the curve turns up
            inside = baseline < y or (left > strip.left + 150 and not several)
            if inside and left + wide < strip.right - 36 and _free(left, baseline, wide, obstacles):
                return [svg.text(left, baseline, words, size=svg.SMALLEST)]
    return []


def _free(left: float, baseline: float, wide: float, obstacles: list[tuple[float, float | None]]) -> bool:
    """Whether words of this width hit none of them."""
    return not any(
        left - 3 < x < left + wide + 6 and (y is None or baseline - 15 < y < baseline + 7) for x, y in obstacles
    )


def _protocols(
    points: tuple[tuple[float, Way, str], ...], strip: Strip, dots: list[tuple[float, float | None]]
) -> list[str]:
    """Where NCCL changes how it sends, a step in the latency: its name at the top, or beneath where dots are there."""
    first = points[0][1].protocol
    changes = [(strip.left + 4, f"NCCL: {first}")] if first else []
    changes += [
        (strip.x((low * high) ** 0.5), b.protocol)
        for (low, a, _), (high, b, _) in pairwise(points)
        if a.protocol != b.protocol
    ]
    parts = [svg.line(x, strip.top, x, strip.bottom, "ink", 0.7, "1 3") for x, _ in changes[1:]]
    ends = [x for x, _ in changes[1:]] + [strip.right - 50]
    for (x, words), end in zip(changes, ends, strict=False):
        wide = svg.measure(words, 11)
        rows = (row for row in (strip.top + 12, strip.bottom - 5) if _free(x + 4, row, wide, dots))
        row = next(rows, None)
        if wide < end - x - 6 and row is not None:
            parts.append(svg.text(x + 4, row, words, size=svg.SMALLEST))
    return parts


def _fastest(points: tuple[tuple[float, Way, str], ...], strip: Strip) -> list[str]:
    """The fastest algorithm by size: a line under the band for each, named where it fits; none where two are alike."""
    spans: list[list] = []
    for amount, _, name in points:
        if spans and spans[-1][0] == name:
            spans[-1][2] = strip.x(amount)
        else:
            spans.append([name, spans[-1][2] if spans else strip.left, strip.x(amount)])
    y, parts = strip.bottom + 30, []
    for name, left, right in spans:
        options = (f"{SHORT[name]} fastest", SHORT[name]) if name else ("a tie",)
        words = fitting(options, right - left - 8, svg.SMALLEST)
        parts += [
            svg.line(left + 1, y - 10, right - 1, y - 10, "compute", 2) if name else "",
            svg.text((left + right) / 2, y + 2, words, anchor="middle", fill="muted", size=svg.SMALLEST)
            if words
            else "",
        ]
    return parts
