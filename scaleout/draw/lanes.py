"""The lanes of a step as SVG: compute above, communication beneath, one colour for a bucket in both."""

from __future__ import annotations

from math import fsum

from scaleout.draw import svg
from scaleout.timing.ddp import Pass, Timeline
from scaleout.timing.intervals import Interval

# Without the palette's grey, which is what has no bucket, and its vermilion, too near to the accent.
COLOURS = ("c1", "c2", "c3", "c4", "c5", "c7")
GROUPS = 2 * len(COLOURS)  # of neighbouring buckets, at most: what is thinner than a line is drawn with its neighbours
MARKS = 56  # rectangles on both lanes, about
BAR = 30


def groups(count: int, passes: int) -> list[int]:
    """The group of each of `count` buckets, 0 first: as even as whole numbers allow, fewer where more passes talk."""
    most = max(1, min(GROUPS, count, MARKS // (3 * passes)))
    return [b * most // count for b in range(count)]


def draw(timeline: Timeline, x: float, y: float, width: float) -> tuple[str, float]:
    """Both lanes with a time axis, from (x, y) down. Returns the marks and the height where they end.

    Forward is pale. Neighbouring layers whose gradients share a bucket are one mark; so are neighbouring buckets
    where there are many, the messages of a group pushed together to the end of its last.
    """
    scale = width / timeline.seconds
    upper, lower = y + 18, y + 18 + BAR + 26
    bottom = lower + BAR + 8
    unit, factor = ("s", 1) if timeline.seconds >= 1 else ("ms", 1e3)
    group = groups(len(timeline.buckets), sum(1 for one in timeline.passes if one.messages))
    words = f"communication: all-reduce of {_count(group)}"
    body = [
        svg.axis_x(x, bottom, width, timeline.seconds * factor, unit, upper),
        svg.text(x, upper - 6, "compute: forward (pale), backward, update", halo=True),
        svg.text(x, lower - 6, words if timeline.communication_seconds else "communication: none", halo=True),
    ]
    for n, one in enumerate(timeline.passes):
        at = x + one.start * scale
        if not one.messages:
            name = f"pass {n + 1}: forward and backward, no message"
            body.append(_mark(at, upper, (0, one.compute_seconds), scale, "c8", name, (0.5, 0.35)[n % 2]))
            continue
        body += _compute(timeline, one, group, at, upper, scale)
        body += _messages(one, group, at, lower, scale)
        body.append(_exposed(one, at, upper, lower, scale))
    update = (timeline.seconds - timeline.update_seconds, timeline.seconds)
    body.append(_mark(x, upper, update, scale, "c8", "update"))
    return "".join(body), bottom + 20


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


def _mark(x: float, y: float, span: Interval, scale: float, fill: str, title: str, opacity: float = 1.0) -> str:
    wide = (span[1] - span[0]) * scale
    # below a hundredth of a unit nothing is printed of it
    return svg.rect(x + span[0] * scale, y, wide, BAR, fill, title=title, opacity=opacity) if wide >= 0.01 else ""


def _compute(timeline: Timeline, one: Pass, group: list[int], x: float, y: float, scale: float) -> list[str]:
    """Forward and backward, a mark for each run of layers of one group. A layer without gradients goes with the
    next that has some in the order of backward."""
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
        out.append(_mark(x, y, span, scale, colour(g), f"forward of {_names(timeline, first[g], last[g])}", 0.4))
    for g in sorted(first):
        span = (one.backward[last[g]][0], one.backward[first[g]][1])
        out.append(_mark(x, y, span, scale, colour(g), f"backward of {_names(timeline, first[g], last[g])}"))
    return out


def _names(timeline: Timeline, first: int, last: int) -> str:
    a, b = timeline.layers[first].name, timeline.layers[last].name
    return a if a == b else f"{a} to {b}"


def _messages(one: Pass, group: list[int], x: float, y: float, scale: float) -> list[str]:
    out = []
    for g in range(group[-1] + 1):
        members = [b for b, of in enumerate(group) if of == g]
        busy = fsum(one.messages[b][1] - one.messages[b][0] for b in members)
        end = one.messages[members[-1]][1]
        which = f"bucket {members[0]}" if len(members) == 1 else f"buckets {members[0]} to {members[-1]}"
        out.append(_mark(x, y, (end - busy, end), scale, colour(g), f"all-reduce of {which}"))
    return out


def _exposed(one: Pass, x: float, upper: float, lower: float, scale: float) -> str:
    """What the compute lane waits for, from the end of backward to the end of the last message: the gap in the compute
    lane, and a bar under the messages, whose own colours stay as they are."""
    start, wide = x + one.compute_seconds * scale, (one.seconds - one.compute_seconds) * scale
    if wide < 0.01:
        return ""
    gap = svg.rect(start, upper, wide, BAR, "accent", title="exposed communication: compute waits", opacity=0.2)
    return gap + svg.line(start, lower + BAR + 2.5, start + wide, lower + BAR + 2.5, "accent", 4)
