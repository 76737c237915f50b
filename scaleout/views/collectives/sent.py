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
# Of the wide picture, in CSS pixels from its left: the bar, its width, what is written beside it, the curve, the end.
BAR, BAR_WIDTH, BESIDE, CURVE, END = 82, 38, 130, 152, 256
ROOF, BASE = 58.0, 302.0  # top and bottom of both
BELOW = 15  # from the bottom to the words under it; from one line to the next
TALL = 19  # of the bar on a phone


@dataclass(frozen=True)
class Sent:
    """Messages that the busiest rank sends in each drawn step, `total` in all; `steps_over` steps are over.

    `curve` is the total by number of ranks. `message` in bytes.
    """

    shown: Frames
    steps_over: int
    ranks: int
    message: float
    total: float
    curve: tuple[tuple[int, float], ...]

    @cached_property
    def steps(self) -> list[float]:
        drawn = self.shown.sent
        return [messages * self.total / fsum(drawn) for messages in drawn]

    @property
    def so_far(self) -> float:
        """Bytes."""
        return fsum(self.steps[: self.steps_over]) * self.message

    @property
    def in_all(self) -> str:
        """The total sent, in words; to a fourth digit where three would round it to the limit."""
        short = size(self.total * self.message)
        return size(self.total * self.message, 4) if self.total < 2 and short == size(2 * self.message) else short

    @property
    def top(self) -> float:
        """Messages at the end of the axis."""
        return max(2, ceil(self.total - 1e-9))

    def stops(self, position) -> list[tuple[float, float]]:
        """Of the guess's mark, in GB along the axis."""
        return [(0.0, position(0)), (self.top * self.message / 1e9, position(self.top))]


def wide(sending: Sent, x: float, locked: bool = False) -> str:
    """262 wide and 346 high, from x on."""
    bar, middle = x + BAR, x + BAR + BAR_WIDTH / 2

    def y_at(messages: float) -> float:
        return BASE - (BASE - ROOF) * messages / sending.top

    levels = [_level(sending, x, y_at, 1, f"{size(sending.message)}: the message" if sending.top <= 8 else "")]
    if sending.top <= 3:
        levels.append(_level(sending, x, y_at, 2, size(2 * sending.message) + _limit(sending, locked)))
    body = [svg.text(x + 4, 14, HEAD, bold=True), svg.line(bar, BASE, x + END, BASE, "muted")]
    if locked:
        body += [
            _outline(bar, ROOF, BAR_WIDTH, BASE - ROOF),
            svg.text(middle, BASE + BELOW, "each rank", anchor="middle", fill="muted", size=svg.SMALLEST),
        ]
    else:
        spans = _spans(sending)
        body += [
            _block(k, bar, y_at(end), BAR_WIDTH, y_at(start) - y_at(end) - 1.6, sending) for k, start, end in spans
        ]
        empty = bar + 0.7, BAR_WIDTH - 1.4
        body += _empty(sending, lambda low, high: (empty[0], y_at(high) + 0.8, empty[1], y_at(low) - y_at(high) - 2.4))
        body += _brackets(sending, spans, x, y_at) + _curve(sending, x, y_at)
    return "".join([*body, *levels, guess.mark(sending.stops(y_at), (bar - 8, x + END))])


def narrow(sending: Sent, y: float, locked: bool = False) -> str:
    """As wide as a phone and 54 high, from y down."""
    end, bar = svg.NARROW - 20.0, y + TALL

    def x_at(messages: float) -> float:
        return 1 + end * messages / sending.top

    body = [svg.text(0, y + 12, HEAD, bold=True, size=svg.SMALL)]
    if locked:
        body.append(_outline(1, bar, end, TALL))
    else:
        words = f"{size(sending.so_far)} of {sending.in_all}"
        body.append(svg.text(svg.NARROW, y + 12, words, anchor="end", bold=True, size=svg.SMALL))
        body += [
            _block(k, x_at(start), bar, x_at(end) - x_at(start) - 1.2, TALL, sending)
            for k, start, end in _spans(sending)
        ]
        body += _empty(sending, lambda low, high: (x_at(low) + 0.6, bar + 0.6, x_at(high) - x_at(low) - 2, TALL - 1.2))
    if sending.top <= 12:
        body += [
            svg.line(x_at(1), bar - 3, x_at(1), bar + TALL + 3, "ink"),
            svg.text(x_at(1) + 3, bar + TALL + 12, size(sending.message), fill="muted", size=svg.SMALLEST),
        ]
    ends = size(sending.top * sending.message)
    longer = ends + (_limit(sending, locked) if sending.top == 2 else "")
    if svg.measure(size(sending.message) + longer, svg.SMALLEST) < end - x_at(1) - 10:
        ends = longer
    body += [
        svg.text(end + 2, bar + TALL + 12, ends, anchor="end", fill="muted", size=svg.SMALLEST),
        guess.mark(sending.stops(x_at), (bar - 6, bar + TALL + 7), "x"),
    ]
    return "".join(body)


def _limit(sending: Sent, locked: bool) -> str:
    if locked:
        return ""
    return ": never reached" if sending.total < 2 and sending.shown.algorithm == "ring" else ": the message twice"


def _outline(x: float, y: float, width: float, height: float) -> str:
    return svg.frame(x, y, width, height, dash="2.5 2.5", rounded=2)


def _spans(sending: Sent) -> list[tuple[int, float, float]]:
    """(step, from, to) of the sends, in messages one upon the other."""
    spans, low = [], 0.0
    for k, amount in enumerate(sending.steps):
        if amount:
            spans.append((k, low, low + amount))
        low += amount
    return spans


def _block(step: int, x: float, y: float, width: float, height: float, sending: Sent) -> str:
    """What a step sends: full when it is over, pale while it is under way, not seen before."""
    seen = 1.0 if step < sending.steps_over else 0.4 if step == sending.steps_over and step else 0.0
    block = svg.rect(x, y, max(width, 0.5), max(height, 0.5), "c4", opacity=seen, mark=f"block-{step}")
    return block if step <= sending.steps_over else ""


def _empty(sending: Sent, place) -> list[str]:
    """The two parts of 2W that a rank never sends in a ring."""
    if sending.shown.algorithm != "ring" or sending.ranks != sending.shown.ranks:
        return []
    p = sending.ranks
    return [_outline(*place((2 * p - 2 + k) / p, (2 * p - 1 + k) / p)) for k in (0, 1)]


def _level(sending: Sent, x: float, y_at, messages: float, words: str) -> str:
    y, dash = y_at(messages), "5 4" if messages > 1 else ""
    return svg.line(x + BESIDE - 8, y, x + END, y, "muted" if dash else "grid", 1, dash) + svg.text(
        x + END + 2, y - 5, words, anchor="end", fill="muted", size=svg.SMALLEST, bold=bool(dash), halo=True
    )


def _brackets(sending: Sent, spans: list[tuple[int, float, float]], x: float, y_at) -> list[str]:
    """What the phases of an algorithm send, at the left of the bar."""
    parts = []
    for words, low, high in _phases(sending, spans):
        top, bottom = y_at(high) + 1, y_at(low) - 2
        room = int((bottom - top) // 14)
        if room < 1:
            continue
        parts.append(
            f'<path d="M{x + BAR - 5:g} {bottom:.1f}h-5V{top:.1f}h5" fill="none" stroke="{svg.colour("muted")}"/>'
        )
        y = (top + bottom) / 2 + 4 - 7 * (min(room, len(words)) - 1)
        parts += [
            svg.text(
                x + BAR - BELOW,
                y + 14 * i,
                text,
                anchor="end",
                fill="muted" if i else "ink",
                size=svg.SMALLEST,
                bold=not i,
            )
            for i, text in enumerate(words[:room])
        ]
    return parts


def _phases(sending: Sent, spans: list[tuple[int, float, float]]) -> list[tuple[list[str], float, float]]:
    adds = [sending.shown.parcels[k][0].adds for k, *_ in spans]
    if sending.shown.algorithm == "tree":
        return []
    first = [span for span, add in zip(spans, adds, strict=True) if add]
    second = [span for span, add in zip(spans, adds, strict=True) if not add]
    pieces = f"{sending.ranks - 1:,} of {sending.ranks:,}"
    words = {
        "ring": (["lap 1", "add", pieces, "chunks"], ["lap 2", "copy", pieces, "chunks"]),
        "halving-doubling": (["halving", "add"], ["doubling", "copy back"]),
        "naive": (
            [],
            ["rank 0", f"to {sending.ranks - 1:,} others" if sending.ranks < 100 else f"to {sending.ranks - 1:,}"],
        ),
        "in-network": (["its message", "once"], ["its sums"]),
    }[sending.shown.algorithm]
    return [(lines, part[0][1], part[-1][2]) for lines, part in zip(words, (first, second), strict=True) if part]


def _free(y: float, middles: list[float]) -> float:
    """Where the two lines of a dot at y go: below it, or where lines with these middles are in the way, above."""
    below, above = y + 26, y - 24
    return above if any(below - 21 < middle < below + 22 for middle in middles) and above > 36 else below


def _curve(sending: Sent, x: float, y_at) -> list[str]:
    """The total by number of ranks, with a dot at the present one, and how far the bar is."""
    plane = Plane(x + CURVE, ROOF, END - CURVE - 6, BASE - ROOF, Axis(1, 10), Axis(0, sending.top))
    under, beside = BASE + BELOW, x + BESIDE
    dot_x, dot_y = plane.at_x(log2(sending.ranks)), y_at(sending.total)
    parts = [
        plane.curve([(log2(p), total) for p, total in sending.curve], "c4", 2.2),
        svg.line(beside - 8, dot_y, dot_x, dot_y, "c4", 1.3, "3 3", mark="level"),
        svg.group(
            dot_x,
            dot_y,
            f'<circle r="6" fill="{svg.colour("c4")}" stroke="{svg.colour("paper")}" stroke-width="1.5"/>',
            "dot",
        ),
    ]
    at_right = dot_x > x + CURVE + 48
    text_x, anchor = (x + END + 2, "end") if at_right else (dot_x + 12, "start")
    low = _free(dot_y, [y_at(k) - 9 for k in (1, 2) if k == 1 or sending.top <= 3])
    parts += [
        svg.text(text_x, low, sending.in_all, anchor=anchor, bold=True, halo=True),
        svg.text(
            text_x, low + 14, f"with {sending.ranks:,}", anchor=anchor, fill="muted", size=svg.SMALLEST, halo=True
        ),
    ]
    parts += [
        svg.text(
            plane.at_x(log2(p)) + 6 * (p == 1024),
            under,
            f"{p:,}",
            anchor=anchor,
            fill="muted",
            size=svg.SMALLEST,
        )
        for p, anchor in ((2, "middle"), (8, "middle"), (64, "middle"), (1024, "end"))
    ]
    parts += [
        svg.text(at_x, at_y, words, anchor="middle", fill="muted", size=svg.SMALLEST)
        for at_x, at_y, words in (
            (x + BAR + BAR_WIDTH / 2, under, "now"),
            (plane.left + plane.width / 2, under + BELOW, "by number of ranks"),
        )
    ]
    parts += [
        svg.text(beside, BASE - 20, size(sending.so_far), bold=True, halo=True),
        svg.text(beside, BASE - 6, "so far", fill="muted", size=svg.SMALLEST, halo=True),
    ]
    return parts
