"""When each unit of FSDP is whole, a row for each from the first to the last; and beneath, on the same axis of time,
what the GPU computes, where it waits, and what is on the wires meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum  # exact: sum adds otherwise from Python 3.12 on, and the page has a newer one

from scaleout.draw import hatch, labels, svg
from scaleout.timing.fsdp import LANES
from scaleout.timing.fsdp_lives import Life
from scaleout.timing.fsdp_short import ShortTimeline
from scaleout.timing.intervals import Interval

ROWS = 34  # units that are drawn at most
GROUPS = 24  # neighbouring marks of a lane are one where there are more than this
SEEN = 1.0  # CSS pixels of a gather that its row shows
LANE, BAR = 13, 8  # CSS pixels from lane to lane, and of its bar
REST = "the host, and the slowest GPU"  # of a step, after its update
NAMES = {"gather": "gathers", "reduce": "reduces", "across": "all-reduces", "copy in": "copies in",
         "copy out": "copies out"}  # fmt: skip


@dataclass(frozen=True)
class Strip:
    """An axis of time from x on, `scale` CSS pixels a second."""

    x: float
    y: float
    width: float
    height: float
    seconds: float

    def at(self, seconds: float) -> float:
        return self.x + self.width * seconds / self.seconds

    def path(self, rows: Iterable[tuple[float, Interval]], high: float, fill: str, title: str) -> str:
        """Intervals around their heights, as one stroke; none narrower than can be seen."""
        scale, out = self.width / self.seconds, []
        for y, (start, end) in rows:
            out.append(f"M{self.x + start * scale:.1f} {y:.1f}h{max(0.5, (end - start) * scale):.1f}")
        return _stroke(out, fill, high, title)


def whole(on: Strip, rows: Sequence[Life], computes: bool = True) -> str:
    """The rows of the units: a hairline for the shard that is always there, and what comes and goes on it."""
    pitch = on.height / len(rows)
    high = max(1.6, min(9.0, 0.92 * pitch))
    at = [on.y + pitch * (k + 0.5) for k in range(len(rows))]
    lines = "".join(f"M{svg.num(on.x)} {y:.1f}h{svg.num(on.width)}" for y in at)
    out = [f'<path d="{lines}" stroke="{svg.colour("c1")}" stroke-opacity="0.35" fill="none"/>']
    pairs = list(zip(at, rows, strict=True))
    out.append(on.path([(y, span) for y, one in pairs if one.gather for span in one.gathered], high, "c5", "whole"))
    scale = on.width / on.seconds
    sent = [
        (y, span)
        for y, one in pairs
        for span in (one.gather, one.regather)
        if span and (span[1] - span[0]) * scale > SEEN
    ]  # the lane beneath has all of them
    out.append(on.path(sent, high, "c4", "gathered"))
    if computes:
        busy = [(y, span) for y, one in pairs if one.name or len(rows) == 1 for span in (one.forward, one.backward)]
        out.append(on.path(busy, high / 2, "compute", "computes"))
    out.append(on.path([(y, one.reduce) for y, one in pairs if one.reduce], high, "c6", "reduced"))
    return "".join(out)


def frame(on: Strip, rows: Sequence[Life], life: Life) -> str:
    """A ring around each stretch in which one of the units is whole."""
    pitch = on.height / len(rows)
    y = on.y + pitch * rows.index(life) - 2.5
    out = []
    for k, (start, end) in enumerate(life.gathered):
        x = on.at(start) - 3
        out.append(
            f'<rect x="{svg.num(x)}" y="{svg.num(y)}" width="{svg.num(on.at(end) - x + 3)}" '
            f'height="{svg.num(pitch + 5)}" rx="4" fill="none" stroke="{svg.colour("ink")}" stroke-width="1.5" '
            f'data-mark="ring{k}"/>'
        )
    return "".join(out)


# --- lanes ------------------------------------------------------------------------------------------------------------


def height(timeline: ShortTimeline, every: bool) -> float:
    """CSS pixels of the lanes."""
    return LANE * (1 + len(_wires(timeline)) * every)


def _wires(timeline: ShortTimeline) -> list[str]:
    return [lane for lane in LANES[1:] if timeline.count(lane)]


def lanes(timeline: ShortTimeline, on: Strip, every: bool, named: bool = True) -> str:
    """What is computed, with its gaps, and where there is room (`every`) each kind of message or copy that there is,
    from on.y down. Neighbours are one mark where they are many, as long as all of them, so that nothing is lost."""
    forward, backward, by_lane = _sorted(timeline)
    y, out, now, waits = on.y + 2, [], 0.0, []
    for title, rows, strong in (("forward", forward, 0.45), ("backward", backward, 1.0)):
        marks = grouped(rows)
        for start, end in marks:
            waits.append((now, start))
            now = end
        out.append(_marks(on, y, marks, "compute", title, strong))
    done = timeline.passes[-1][1]
    waits.append((now, done))
    out.append(_marks(on, y, [(done, timeline.seconds)], "c2", "update", 1.0))
    out.append(_marks(on, y, [(timeline.seconds, on.seconds)], "muted", REST, 0.45))
    scale = on.width / on.seconds
    boxes = [(on.at(start), y, (end - start) * scale, BAR) for start, end in waits if (end - start) * scale >= 0.02]
    out.append(hatch.area(boxes, title="exposed communication: compute waits"))
    out.append(_name(on, y, "computes") if named else "")
    for lane in _wires(timeline) if every else ():
        y += LANE
        out.append(_name(on, y, NAMES[lane]))
        out += [
            _marks(on, y, grouped(some), "c4", name, 0.55 if "again" in name else 1.0)
            for name, some in by_lane[lane].items()
        ]
    return "".join(out)


def _name(on: Strip, y: float, words: str) -> str:
    return svg.text(on.x - 5, y + BAR, words, anchor="end", size=svg.SMALLEST, fill="muted")


def waits(timeline: ShortTimeline, seconds: float, room: float) -> tuple[str, bool]:
    """What nothing hides of a step of so many seconds, in words that fit; and whether there is any."""
    exposed = timeline.exposed_seconds
    share = f"{100 * exposed / seconds:.1f}%"
    ways = (
        f"exposed, hatched: {labels.took(exposed)}, {share} of the step",
        f"exposed: {labels.took(exposed)}, {share}",
        f"exposed: {share}",
    )
    return labels.fitting(ways if exposed else ("nothing is exposed",), room, bold=exposed > 0), exposed > 0


def _sorted(timeline: ShortTimeline) -> tuple[list[Interval], list[Interval], dict[str, dict[str, list[Interval]]]]:
    """Intervals of forward, of backward, and by lane of communication, by kind of message."""
    forward, backward = [], []
    by_lane: dict[str, dict[str, list[Interval]]] = {}
    for lane, what, start, end in timeline.intervals(max(1, timeline.extra // GROUPS)):
        if lane == "compute":
            (forward if what == "forward" else backward).append((start, end))
        else:
            kind = "gather again" if what == "gather again" else lane
            by_lane.setdefault(lane, {}).setdefault(kind, []).append((start, end))
    return forward, backward, by_lane


def grouped(rows: Sequence[Interval], most: int = GROUPS) -> list[Interval]:
    """At most about `most` intervals: neighbours together, pushed to the end of their last. Their sum stays."""
    each = max(1, -(-len(rows) // most))
    out = []
    for i in range(0, len(rows), each):
        some = rows[i : i + each]
        end = some[-1][1]
        out.append((end - fsum(b - a for a, b in some), end))
    return out


def _marks(on: Strip, y: float, rows: Sequence[Interval], fill: str, title: str, strong: float) -> str:
    """One path for all intervals that can be seen."""
    scale, path, middle = on.width / on.seconds, [], svg.num(y + BAR / 2)
    for start, end in rows:
        wide = (end - start) * scale
        if wide >= 0.02:
            path.append(f"M{on.x + start * scale:.1f} {middle}h{wide:.2f}")
    return _stroke(path, fill, BAR, title, strong)


def _stroke(path: list[str], fill: str, high: float, title: str, strong: float = 1.0) -> str:
    if not path:
        return ""
    faded = "" if strong == 1.0 else f' stroke-opacity="{svg.num(strong)}"'
    return (
        f'<path d="{"".join(path)}" fill="none" stroke="{svg.colour(fill)}" stroke-width="{svg.num(high)}"{faded}>'
        f"<title>{title}</title></path>"
    )
