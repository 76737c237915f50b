"""What one rank has sent, as a bar that fills step by step, and beside it the same by number of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, fsum, log2

from scaleout.draw import guess, svg
from scaleout.draw.parcels import Frames
from scaleout.draw.plot import Axis, Plane
from scaleout.views.collectives.words import size

HEAD = "What one rank has sent"


@dataclass(frozen=True)
class Sent:
    """Messages that the busiest rank sends in each drawn step, `total` in all; `done` steps are over.

    `curve` is the total by number of ranks. `message` in bytes.
    """

    shown: Frames
    done: int
    ranks: int
    message: float
    total: float
    curve: tuple[tuple[int, float], ...]

    @cached_property
    def steps(self) -> list[float]:
        drawn = self.shown.sent
        return [one * self.total / fsum(drawn) for one in drawn]

    @property
    def so_far(self) -> float:
        """Bytes."""
        return fsum(self.steps[: self.done]) * self.message

    @property
    def in_all(self) -> str:
        """What is sent in the end, in words; to a fourth digit where three would round it to the limit."""
        short = size(self.total * self.message)
        return size(self.total * self.message, 4) if self.total < 2 and short == size(2 * self.message) else short

    @property
    def top(self) -> float:
        """Messages at the end of the axis."""
        return max(2, ceil(self.total - 1e-9))

    def stops(self, at) -> list[tuple[float, float]]:
        """Of the guess's mark, in GB along the axis."""
        return [(0.0, at(0)), (self.top * self.message / 1e9, at(self.top))]


def wide(one: Sent, x: float, locked: bool = False) -> str:
    """262 wide and 346 high, from x on."""
    base, roof, bar = 302.0, 58.0, x + 82

    def at(messages: float) -> float:
        return base - (base - roof) * messages / one.top

    levels = [_level(one, x, at, 1, f"{size(one.message)}: the message" if one.top <= 8 else "")]
    if one.top <= 3:
        levels.append(_level(one, x, at, 2, size(2 * one.message) + _limit(one, locked)))
    body = [svg.text(x + 4, 14, HEAD, bold=True), svg.line(x + 82, base, x + 256, base, "muted")]
    if locked:
        body.append(_outline(bar, roof, 38, base - roof))
        body.append(svg.text(x + 101, base + 15, "each rank", anchor="middle", fill="muted", size=svg.SMALLEST))
    else:
        spans = _spans(one)
        body += [_block(k, bar, at(end), 38, at(start) - at(end) - 1.6, one) for k, start, end in spans]
        body += _empty(one, lambda low, high: (bar + 0.7, at(high) + 0.8, 36.6, at(low) - at(high) - 2.4))
        body += _brackets(one, spans, x, at) + _curve(one, x, at, base, roof)
    return "".join([*body, *levels, guess.mark(one.stops(at), (x + 74, x + 256))])


def narrow(one: Sent, y: float, locked: bool = False) -> str:
    """358 wide and 54 high, from y down."""
    end, bar = 338.0, y + 19

    def at(messages: float) -> float:
        return 1 + end * messages / one.top

    body = [svg.text(0, y + 12, HEAD, bold=True, size=svg.SMALL)]
    if locked:
        body.append(_outline(1, bar, end, 19))
    else:
        words = f"{size(one.so_far)} of {one.in_all}"
        body.append(svg.text(358, y + 12, words, anchor="end", bold=True, size=svg.SMALL))
        body += [_block(k, at(start), bar, at(end) - at(start) - 1.2, 19, one) for k, start, end in _spans(one)]
        body += _empty(one, lambda low, high: (at(low) + 0.6, bar + 0.6, at(high) - at(low) - 2, 17.8))
    if one.top <= 12:
        body.append(svg.line(at(1), bar - 3, at(1), bar + 22, "ink"))
        body.append(svg.text(at(1) + 3, bar + 31, size(one.message), fill="muted", size=svg.SMALLEST))
    ends = size(one.top * one.message)
    longer = ends + (_limit(one, locked) if one.top == 2 else "")
    if svg.measure(size(one.message) + longer, 11) < end - at(1) - 10:
        ends = longer
    body.append(svg.text(end + 2, bar + 31, ends, anchor="end", fill="muted", size=svg.SMALLEST))
    body.append(guess.mark(one.stops(at), (bar - 6, bar + 26), "x"))
    return "".join(body)


def _limit(one: Sent, locked: bool) -> str:
    if locked:
        return ""
    return ": never reached" if one.total < 2 and one.shown.algorithm == "ring" else ": the message twice"


def _outline(x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect x="{svg.num(x)}" y="{svg.num(y)}" width="{svg.num(width)}" height="{svg.num(height)}" rx="2" '
        f'fill="none" stroke="{svg.colour("muted")}" stroke-dasharray="2.5 2.5"/>'
    )


def _spans(one: Sent) -> list[tuple[int, float, float]]:
    """(step, from, to) of what is sent, in messages one upon the other."""
    out, low = [], 0.0
    for k, amount in enumerate(one.steps):
        if amount:
            out.append((k, low, low + amount))
        low += amount
    return out


def _block(step: int, x: float, y: float, width: float, height: float, one: Sent) -> str:
    """What a step sends: full when it is over, pale while it is under way, not seen before."""
    seen = 1.0 if step < one.done else 0.4 if step == one.done and step else 0.0
    block = svg.rect(x, y, max(width, 0.5), max(height, 0.5), "c4", opacity=seen, mark=f"block-{step}")
    return block if step <= one.done else ""


def _empty(one: Sent, place) -> list[str]:
    """The two parts of 2W that a rank never sends in a ring."""
    if one.shown.algorithm != "ring" or one.ranks != one.shown.ranks:
        return []
    p = one.ranks
    return [_outline(*place((2 * p - 2 + k) / p, (2 * p - 1 + k) / p)) for k in (0, 1)]


def _level(one: Sent, x: float, at, messages: float, words: str) -> str:
    y, dash = at(messages), "5 4" if messages > 1 else ""
    return svg.line(x + 122, y, x + 256, y, "muted" if dash else "grid", 1, dash) + svg.text(
        x + 258, y - 5, words, anchor="end", fill="muted", size=svg.SMALLEST, bold=bool(dash), halo=True
    )


def _brackets(one: Sent, spans: list[tuple[int, float, float]], x: float, at) -> list[str]:
    """What the phases of an algorithm send, at the left of the bar."""
    out = []
    for words, low, high in _phases(one, spans):
        top, bottom = at(high) + 1, at(low) - 2
        room = int((bottom - top) // 14)
        if room < 1:
            continue
        out.append(f'<path d="M{x + 77:g} {bottom:.1f}h-5V{top:.1f}h5" fill="none" stroke="{svg.colour("muted")}"/>')
        y = (top + bottom) / 2 + 4 - 7 * (min(room, len(words)) - 1)
        for i, said in enumerate(words[:room]):
            out.append(
                svg.text(
                    x + 67, y + 14 * i, said, anchor="end", fill="muted" if i else "ink", size=svg.SMALLEST, bold=not i
                )
            )
    return out


def _phases(one: Sent, spans: list[tuple[int, float, float]]) -> list[tuple[list[str], float, float]]:
    adds = [one.shown.parcels[k][0].adds for k, *_ in spans]
    if one.shown.algorithm == "tree":
        return []
    first = [span for span, add in zip(spans, adds, strict=True) if add]
    second = [span for span, add in zip(spans, adds, strict=True) if not add]
    pieces = f"{one.ranks - 1:,} of {one.ranks:,}"
    words = {
        "ring": (["lap 1", "add", pieces, "parts"], ["lap 2", "hand round", pieces, "parts"]),
        "halving-doubling": (["halving", "add"], ["doubling", "give back"]),
        "naive": (
            [],
            ["rank 0", f"to {one.ranks - 1:,} others" if one.ranks < 100 else f"to {one.ranks - 1:,}"],
        ),
        "in-network": (["its message", "once"], ["its sums"]),
    }[one.shown.algorithm]
    return [(said, part[0][1], part[-1][2]) for said, part in zip(words, (first, second), strict=True) if part]


def _free(y: float, taken: list[float]) -> float:
    """Where the two lines of a dot at y go: below it, or where lines with these middles are in the way, above."""
    below, above = y + 26, y - 24
    return above if any(below - 21 < one < below + 22 for one in taken) and above > 36 else below


def _curve(one: Sent, x: float, at, base: float, roof: float) -> list[str]:
    """The total by number of ranks, with a dot at the present one, and how far the bar is."""
    plane = Plane(x + 152, roof, 98, base - roof, Axis(1, 10), Axis(0, one.top))
    dot_x, dot_y = plane.at_x(log2(one.ranks)), at(one.total)
    out = [plane.curve([(log2(p), total) for p, total in one.curve], "c4", 2.2)]
    out.append(svg.line(x + 122, dot_y, dot_x, dot_y, "c4", 1.3, "3 3", mark="level"))
    out.append(
        svg.group(
            dot_x,
            dot_y,
            f'<circle r="6" fill="{svg.colour("c4")}" stroke="{svg.colour("paper")}" stroke-width="1.5"/>',
            "dot",
        )
    )
    late = dot_x > x + 200
    near, anchor = (x + 258, "end") if late else (dot_x + 12, "start")
    low = _free(dot_y, [at(k) - 9 for k in (1, 2) if k == 1 or one.top <= 3])
    out.append(svg.text(near, low, one.in_all, anchor=anchor, bold=True, halo=True))
    out.append(
        svg.text(near, low + 14, f"with {one.ranks:,}", anchor=anchor, fill="muted", size=svg.SMALLEST, halo=True)
    )
    for p, anchor in ((2, "middle"), (8, "middle"), (64, "middle"), (1024, "end")):
        out.append(
            svg.text(
                plane.at_x(log2(p)) + 6 * (p == 1024),
                base + 15,
                f"{p:,}",
                anchor=anchor,
                fill="muted",
                size=svg.SMALLEST,
            )
        )
    out.append(svg.text(x + 101, base + 15, "now", anchor="middle", fill="muted", size=svg.SMALLEST))
    out.append(svg.text(x + 201, base + 30, "by number of ranks", anchor="middle", fill="muted", size=svg.SMALLEST))
    out.append(svg.text(x + 130, base - 20, size(one.so_far), bold=True, halo=True))
    out.append(svg.text(x + 130, base - 6, "so far", fill="muted", size=svg.SMALLEST, halo=True))
    return out
