"""The lanes of a step as SVG: compute above, communication beneath, one colour for a bucket in both."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

from scaleout.draw import hatch, svg
from scaleout.draw.labels import took
from scaleout.draw.plot import time_axis
from scaleout.timing.ddp import Pass, Timeline
from scaleout.timing.intervals import Interval

# Without the palette's grey, its yellow, which is the update's, and its vermilion, too near to the accent.
COLOURS = ("c1", "c3", "c4", "c5", "c7")
GROUPS = 2 * len(
    COLOURS
)  # of neighbouring buckets, at most: what is thinner than a line is drawn with its neighbours
MARKS = 56  # rectangles on both lanes, about


def groups(count: int, passes: int) -> list[int]:
    """The group of each of `count` buckets, 0 first: as even as whole numbers allow, fewer where more passes talk."""
    most = max(1, min(GROUPS, count, MARKS // (3 * passes)))
    return [b * most // count for b in range(count)]


@dataclass(frozen=True)
class Lanes:
    """A step in a picture: from (x, y) down, `width` CSS pixels for `until` seconds, two lanes `bar` high."""

    timeline: Timeline
    x: float
    y: float
    width: float
    until: float
    bar: float

    @property
    def scale(self) -> float:
        """CSS pixels of a second."""
        return self.width / self.until

    @property
    def upper(self) -> float:
        """Where the compute lane begins."""
        return self.y + 18

    @property
    def lower(self) -> float:
        """Where the lane of messages begins."""
        return self.upper + self.bar + 24

    @property
    def bottom(self) -> float:
        """Where the time axis is; its labels take 20 more."""
        return self.lower + self.bar + 8

    def draw(self) -> str:
        """Both lanes with their time axis.

        Forward is pale. Neighbouring layers whose gradients share a bucket are one mark; so are neighbouring buckets
        where there are many, the messages of a group pushed together to the end of its last.
        """
        group = groups(len(self.timeline.buckets), sum(1 for one in self.timeline.passes if one.messages))
        sent = f"{'communication: ' * self.roomy}all-reduce of {_count(group)}"
        body = [self._frame(sent if self.timeline.communication_seconds else "communication: none")]
        for n, one in enumerate(self.timeline.passes):
            if not one.messages:
                name = f"pass {n + 1}: forward and backward, no message"
                at = self.x + one.start * self.scale
                body.append(
                    self.block(at, self.upper, (0, one.compute_seconds), "compute", name, (0.9, 0.65)[n % 2])
                )
                continue
            body += [*_compute(self, one, group), *_messages(self, one, group), _exposed(self, one)]
        return "".join([*body, self._update(), self._waits()])

    def asked(self) -> str:
        """The lanes before anybody has said what sticks out: what computes, and no message."""
        busy = self.timeline.compute_seconds
        body = [self._frame("communication: until when?")]
        for one in self.timeline.passes:
            at, half = self.x + one.start * self.scale, one.forward[-1][1]
            body.append(self.block(at, self.upper, (0, half), "compute", "forward", 0.4))
            body.append(self.block(at, self.upper, (half, one.compute_seconds), "compute", "backward"))
        last = self.timeline.passes[-1]
        start = self.x + (last.start + last.forward[-1][1]) * self.scale
        end = self.x + busy * self.scale
        for low, high in ((start, end), (end, self.x + self.width)):
            for y in (self.lower, self.lower + self.bar):
                body.append(svg.line(low, y, high, y, "c4", 1.5, "3 4"))
        return "".join(body)

    @property
    def roomy(self) -> bool:
        return self.width > 400

    def _frame(self, sent: str) -> str:
        size = svg.FONT if self.roomy else svg.SMALL
        work = "compute: forward (pale), backward" if self.roomy else "forward (pale), backward"
        return (
            time_axis(self.x, self.bottom, self.width, self.until, self.upper)
            + svg.text(self.x, self.upper - 6, work, size=size, halo=True)
            + svg.text(self.x, self.lower - 6, sent, size=size, halo=True)
        )

    def block(self, x: float, y: float, span: Interval, fill: str, title: str, opacity: float = 1.0) -> str:
        """A rectangle in the lane at y, over `span` seconds from x on."""
        wide = (span[1] - span[0]) * self.scale
        if wide < 0.01:  # nothing is printed of it
            return ""
        return svg.rect(x + span[0] * self.scale, y, wide, self.bar, fill, title=title, opacity=opacity)

    def _update(self) -> str:
        end = self.timeline.seconds
        mark = self.block(self.x, self.upper, (end - self.timeline.update_seconds, end), "c2", "update")
        at = self.x + end * self.scale + 5
        if not mark or at + svg.measure("update", svg.SMALL) > self.x + self.width:
            return mark
        return mark + svg.text(
            at, self.upper + self.bar / 2 + 4, "update", size=svg.SMALL, fill="muted", halo=True
        )

    def _waits(self) -> str:
        """Said above the lane, at its right end: the gap itself may be a hair."""
        waits = self.timeline.exposed_seconds
        words = f"exposed: {took(waits)}" if waits else "nothing is exposed"
        return svg.text(self.x + self.width, self.upper - 6, words, anchor="end", bold=waits > 0, size=svg.SMALL,
                        fill="accent" if waits else "muted", halo=True)  # fmt: skip


def _count(group: list[int]) -> str:
    """How many buckets there are, and how many of them a block of the picture stands for, where that is not one."""
    count, blocks = len(group), group[-1] + 1
    if blocks == count:
        return f"{count:,} bucket{'s' if count > 1 else ''}, coloured as in backward"
    each = " or ".join(f"{size:,}" for size in sorted({group.count(one) for one in range(blocks)}))
    return f"{count:,} buckets as {blocks} block{'s' if blocks > 1 else ''} of {each}"


def colour(group: int) -> str:
    """The palette name of a group of buckets, the same in both lanes."""
    return COLOURS[group % len(COLOURS)]


def _compute(on: Lanes, one: Pass, group: list[int]) -> list[str]:
    """Forward and backward, a mark for each run of layers of one group. A layer without gradients goes with the
    next that has some in the order of backward."""
    timeline, at = on.timeline, on.x + one.start * on.scale
    first: dict[int, int] = {}  # by group: its first and its last layer in the order of forward
    last: dict[int, int] = {}
    for b, members in enumerate(timeline.buckets):
        first[group[b]] = min(members[-1], first.get(group[b], members[-1]))
    stop = len(timeline.layers) - 1
    for g in sorted(first):
        last[g], stop = stop, first[g] - 1
    first[max(first)] = 0
    out = []
    for g in sorted(first, reverse=True):
        span = (one.forward[first[g]][0], one.forward[last[g]][1])
        name = f"forward of {_names(timeline, first[g], last[g])}"
        out.append(on.block(at, on.upper, span, colour(g), name, 0.4))
    for g in sorted(first):
        span = (one.backward[last[g]][0], one.backward[first[g]][1])
        name = f"backward of {_names(timeline, first[g], last[g])}"
        out.append(on.block(at, on.upper, span, colour(g), name))
    return out


def _names(timeline: Timeline, first: int, last: int) -> str:
    a, b = timeline.layers[first].name, timeline.layers[last].name
    return a if a == b else f"{a} to {b}"


def _messages(on: Lanes, one: Pass, group: list[int]) -> list[str]:
    out, at = [], on.x + one.start * on.scale
    for g in range(group[-1] + 1):
        members = [b for b, of in enumerate(group) if of == g]
        busy = fsum(one.messages[b][1] - one.messages[b][0] for b in members)
        end = one.messages[members[-1]][1]
        which = f"bucket {members[0]}" if len(members) == 1 else f"buckets {members[0]} to {members[-1]}"
        out.append(on.block(at, on.lower, (end - busy, end), colour(g), f"all-reduce of {which}"))
    return out


def _exposed(on: Lanes, one: Pass) -> str:
    """What the compute lane waits for, from the end of backward to the end of the last message: the gap in the compute
    lane, and a bar under the messages, whose own colours stay as they are."""
    start, wide = (
        on.x + (one.start + one.compute_seconds) * on.scale,
        (one.seconds - one.compute_seconds) * on.scale,
    )
    if wide < 0.01:
        return ""
    last = one is on.timeline.passes[-1]
    gap = hatch.box(
        start, on.upper, wide, on.bar, title="exposed communication: compute waits", mark="waits" * last
    )
    under = on.lower + on.bar + 2.5
    return gap + svg.line(start, under, start + wide, under, "accent", 4)
