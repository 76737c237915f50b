"""The lanes of a step as SVG: compute above, the wire beneath, and between them each bucket on its way from the one to
the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import fsum

from scaleout.draw import hatch, svg
from scaleout.timing.ddp import Pass, Timeline
from scaleout.timing.intervals import Interval
from scaleout.words.amounts import took

GROUPS = 10  # of neighbouring buckets, at most: what is thinner than a line is drawn with its neighbours
SHADES = {"compute": (1.0, 0.84), "c4": (1.0, 0.8), "flow": (0.34, 0.2)}  # of neighbours
SEEN = 0.005  # share of a step from which slower compute is worth a word
MARKS = 56  # rectangles on both lanes, about

Way = tuple[Interval, Interval]  # when backward makes gradients, and when the wire takes them


def groups(count: int, passes: int) -> list[range]:
    """`count` buckets in groups of neighbours: as even as whole numbers allow, fewer where more passes talk."""
    limit = max(1, min(GROUPS, count, MARKS // (3 * passes)))
    ends = [-(-g * count // limit) for g in range(limit + 1)]
    return [range(first, stop) for first, stop in pairwise(ends)]


@dataclass(frozen=True)
class Lanes:
    """A step in a picture: from (x, y) down, `width` CSS pixels for `until` seconds, two lanes `bar` high and `fall`
    apart."""

    timeline: Timeline
    x: float
    y: float
    width: float
    until: float
    bar: float
    fall: float

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
        return self.upper + self.bar + self.fall

    @property
    def bottom(self) -> float:
        """Where what is said of the messages ends."""
        return self.lower + self.bar + 22

    def draw(self) -> str:
        """Both lanes, and what falls from the one to the other.

        Forward is faint. Neighbouring layers whose gradients share a bucket are one mark; so are neighbouring buckets
        where there are many, the messages of a group pushed together to the end of its last.
        """
        sent = f"{'communication: ' * self.roomy}all-reduce of {_count(self.groups)}"
        body = [self._frame(sent if self.timeline.communication_seconds else "communication: none")]
        for n, micro_batch in enumerate(self.timeline.passes):
            if not micro_batch.messages:
                name = f"micro-batch {n + 1}: forward and backward, no communication"
                x = self.x + micro_batch.start * self.scale
                shade = (0.9, 0.65)[n % 2]
                body.append(self.block(x, self.upper, (0, micro_batch.compute_seconds), "compute", name, shade))
                continue
            ways = _ways(self, micro_batch)
            body += [
                *_compute(self, micro_batch, n),
                *_messages(self, micro_batch, n, ways),
                _exposed(self, micro_batch),
                *_numbers(self, micro_batch, n, ways),
            ]
        return "".join([*body, self._update(), self._waits()])

    def asked(self) -> str:
        """The lanes before the reader has guessed what is exposed: compute alone, and no communication."""
        busy = self.timeline.compute_seconds
        body = [self._frame("communication: until when?")]
        for micro_batch in self.timeline.passes:
            x, half = self.x + micro_batch.start * self.scale, micro_batch.forward[-1][1]
            body += [
                self.block(x, self.upper, (0, half), "compute", "forward", 0.4),
                self.block(x, self.upper, (half, micro_batch.compute_seconds), "compute", "backward"),
            ]
        last = self.timeline.passes[-1]
        start = self.x + (last.start + last.forward[-1][1]) * self.scale
        end = self.x + busy * self.scale
        body += [
            svg.line(low, y, high, y, "c4", 1.5, "3 4")
            for low, high in ((start, end), (end, self.x + self.width))
            for y in (self.lower, self.lower + self.bar)
        ]
        return "".join(body)

    @property
    def roomy(self) -> bool:
        return self.width > 400

    @cached_property
    def groups(self) -> list[range]:
        """The buckets that are drawn as one."""
        return groups(len(self.timeline.buckets), sum(1 for part in self.timeline.passes if part.messages))

    @cached_property
    def members(self) -> list[tuple[int, int]]:
        """By group, its first and its last layer in the order of forward. A layer without gradients goes with the next
        that has some in the order of backward."""
        buckets, stop = self.timeline.buckets, len(self.timeline.layers) - 1
        ranges = []
        for group in self.groups:
            first = 0 if group is self.groups[-1] else min(buckets[b][-1] for b in group)
            ranges.append((first, stop))
            stop = first - 1
        return ranges

    def _frame(self, sent: str) -> str:
        size = svg.FONT if self.roomy else svg.SMALL
        work = "compute: forward (faint), backward (solid)" if self.roomy else "forward (faint), backward"
        baseline = self.lower + self.bar + 17
        return svg.text(self.x, self.upper - 6, work, size=size) + svg.text(self.x, baseline, sent, size=size)

    def block(
        self, x: float, y: float, span: Interval, fill: str, title: str, opacity: float = 1.0, mark: str = ""
    ) -> str:
        """A rectangle in the lane at y, over `span` seconds from x on."""
        wide = (span[1] - span[0]) * self.scale
        if wide < 0.01:  # nothing is printed of it
            return ""
        return svg.rect(x + span[0] * self.scale, y, wide, self.bar, fill, title=title, opacity=opacity, mark=mark)

    def _update(self) -> str:
        """The update, and what follows it."""
        end, line = self.timeline.seconds, self.timeline
        update_end = end - line.other_seconds
        mark = self.block(self.x, self.upper, (update_end - line.update_seconds, update_end), "c2", "update")
        host = self.block(
            self.x, self.upper, (update_end, end), "muted", "the host, and waiting for the slowest GPU", 0.5
        )
        x, words = self.x + end * self.scale + 5, "update, host" if host else "update"
        if not mark or x + svg.measure(words, svg.SMALL) > self.x + self.width:
            return mark + host
        return mark + host + svg.text(x, self.upper + self.bar / 2 + 4, words, size=svg.SMALL, fill="muted", halo=True)

    def _waits(self) -> str:
        """Said above the lane, at its right end: the gap itself may be a hair."""
        waits, slowed = self.timeline.exposed_seconds, self.timeline.slowed_seconds
        words = f"exposed: {took(waits)}" if waits else "nothing is exposed"
        if slowed > SEEN * self.timeline.seconds:
            words += f", slowed: {took(slowed)}"
        return svg.text(
            self.x + self.width,
            self.upper - 6,
            words,
            anchor="end",
            bold=waits > 0,
            size=svg.SMALL,
            fill="accent" if waits else "muted",
            halo=True,
        )


def _count(several: list[range]) -> str:
    """How many buckets there are, and how many of them a block of the picture stands for, where that is not one."""
    count, blocks = several[-1].stop, len(several)
    if blocks == count:
        return f"{count:,} bucket{'s' if count > 1 else ''}, in the order of backward"
    sizes = " or ".join(f"{size:,}" for size in sorted(set(map(len, several))))
    return f"{count:,} buckets as {blocks} block{'s' if blocks > 1 else ''} of {sizes}"


def _compute(lanes: Lanes, micro_batch: Pass, n: int) -> list[str]:
    """Forward and backward of pass n, a mark for each run of layers of one group."""
    x = lanes.x + micro_batch.start * lanes.scale
    marks = []
    for name, spans, shade in (("forward", micro_batch.forward, 0.4), ("backward", micro_batch.backward, 1.0)):
        for g, (first, last) in list(enumerate(lanes.members))[:: -1 if name == "forward" else 1]:
            ends = sorted((spans[first], spans[last]))
            title = f"{name} of {_names(lanes.timeline, first, last)}"
            faded = shade * SHADES["compute"][g % 2]
            span = (ends[0][0], ends[1][1])
            marks.append(lanes.block(x, lanes.upper, span, "compute", title, faded, f"{name[0]}{n}.{g}"))
    return marks


def _names(timeline: Timeline, first: int, last: int) -> str:
    a, b = timeline.layers[first].name, timeline.layers[last].name
    return a if a == b else f"{a} to {b}"


def _messages(lanes: Lanes, micro_batch: Pass, n: int, ways: list[Way]) -> list[str]:
    """Each group of pass n on the wire, and its way down there; what the wire still carries when nothing computes is in
    the accent's colour on its way."""
    marks, x = [], lanes.x + micro_batch.start * lanes.scale
    for g, ((produced, sent), group) in enumerate(zip(ways, lanes.groups, strict=True)):
        first_bucket, last_bucket = group.start + 1, group.stop  # as they are counted in the picture
        names = f"bucket {first_bucket}" if len(group) == 1 else f"buckets {first_bucket} to {last_bucket}"
        title = f"all-reduce of {names}"
        marks.append(lanes.block(x, lanes.lower, sent, "c4", title, SHADES["c4"][g % 2], f"w{n}.{g}"))
        exposed = sent[1] > micro_batch.compute_seconds + 1e-9
        marks.append(_fall(lanes, x, produced, sent, "accent" if exposed else "c4", f"v{n}.{g}", g))
    return marks


def _ways(lanes: Lanes, micro_batch: Pass) -> list[Way]:
    """Of each group, when backward makes its gradients and when the wire takes them, its messages pushed together."""
    ways = []
    for group, (first, last) in zip(lanes.groups, lanes.members, strict=True):
        messages = micro_batch.messages[group.start : group.stop]
        end = messages[-1][1]
        made = (micro_batch.backward[last][0], micro_batch.backward[first][1])
        ways.append((made, (end - fsum([stop - start for start, stop in messages]), end)))
    return ways


def _numbers(lanes: Lanes, micro_batch: Pass, n: int, ways: list[Way]) -> list[str]:
    """The number of each group under its backward and above its message, or of the first and the last where not all
    have room; before the first what they count. Of several passes the first has them."""
    if len(ways) == 1 or any(earlier.messages for earlier in lanes.timeline.passes[:n]):
        return []
    name = "bucket" if len(ways) == lanes.groups[-1].stop else "block"
    x, parts = lanes.x + micro_batch.start * lanes.scale, []
    for way, y in ((0, lanes.upper + lanes.bar + 11), (1, lanes.lower - 4)):
        middles = [x + (spans[way][0] + spans[way][1]) / 2 * lanes.scale for spans in ways]
        every = list(enumerate(middles, 1))
        shown = next(several for several in (every, [every[0], every[-1]], every[:1]) if _apart(several))
        parts += [svg.text(middle, y, str(n), anchor="middle", size=svg.SMALLEST) for n, middle in shown]
        left = x + ways[0][way][0] * lanes.scale - 4
        if left - lanes.x > svg.measure(name, svg.SMALLEST) + 2:
            parts.append(svg.text(left, y, name, anchor="end", size=svg.SMALLEST, fill="muted"))
    return parts


def _apart(numbers: list[tuple[int, float]]) -> bool:
    """Whether numbers around these middles keep clear of one another."""
    halves = [svg.measure(str(n), svg.SMALLEST) / 2 for n, _ in numbers]
    gaps = (after - before for (_, before), (_, after) in pairwise(numbers))
    return all(gap > a + b + 1 for gap, (a, b) in zip(gaps, pairwise(halves), strict=True))


def _fall(lanes: Lanes, origin: float, produced: Interval, sent: Interval, fill: str, mark: str, g: int) -> str:
    """From where backward makes gradients to where the wire takes them."""
    top, low = lanes.upper + lanes.bar, lanes.lower
    (a, b), (d, c) = ((origin + end * lanes.scale for end in span) for span in (produced, sent))
    corners = " ".join(f"{svg.num(x)},{svg.num(y)}" for x, y in ((a, top), (b, top), (c, low), (d, low)))
    return (
        f'<polygon points="{corners}" fill="{svg.colour(fill)}" fill-opacity="{SHADES["flow"][g % 2]}" '
        f'data-mark="{mark}"/>'
    )


def _exposed(lanes: Lanes, micro_batch: Pass) -> str:
    """What the compute lane waits for, from the end of backward to the end of the last message: hatched in the compute
    lane, which has a gap there, and over the messages."""
    start, wide = (
        lanes.x + (micro_batch.start + micro_batch.compute_seconds) * lanes.scale,
        (micro_batch.seconds - micro_batch.compute_seconds) * lanes.scale,
    )
    if wide < 0.01:
        return ""
    last = micro_batch is lanes.timeline.passes[-1]
    gap = hatch.box(
        start, lanes.upper, wide, lanes.bar, title="exposed communication: compute waits", mark="waits" * last
    )
    return gap + hatch.excess(start, lanes.lower, wide, lanes.bar, mark="late" * last)
