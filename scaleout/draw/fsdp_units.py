"""When each unit of FSDP is unsharded, a row for each from the first to the last; and beneath, on the same axis of
time, what the GPU computes, where it waits, and which collectives and copies run meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum  # exact: sum adds otherwise from Python 3.12 on, and the page has a newer one

from scaleout.draw import hatch, svg
from scaleout.timing.fsdp import LANES
from scaleout.timing.fsdp_lives import Life
from scaleout.timing.fsdp_short import ShortTimeline
from scaleout.timing.intervals import Interval
from scaleout.words.amounts import took

ROWS = 34  # units drawn at most
GROUPS = 24  # neighbouring marks of a lane are one where there are more than this
SEEN = 1.0  # CSS pixels of a gather that its row shows
LANE, BAR = 13, 8  # CSS pixels from lane to lane, and of its bar
HOST = "the CPU, and waiting for the slowest GPU"  # of a step, after its update
NAMES = {"gather": "all-gather", "reduce": "reduce", "across": "all-reduce", "copy in": "copy in",
         "copy out": "copy out"}  # fmt: skip


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
        scale, segments = self.width / self.seconds, []
        segments += [
            f"M{self.x + start * scale:.1f} {y:.1f}h{max(0.5, (end - start) * scale):.1f}" for y, (start, end) in rows
        ]
        return _stroke(segments, fill, high, title)


def whole(strip: Strip, rows: Sequence[Life], computes: bool = True) -> str:
    """The rows of the units: a hairline for the shard that is always there, and what comes and goes on it."""
    pitch = strip.height / len(rows)
    high = max(1.6, min(9.0, 0.92 * pitch))
    centres = [strip.y + pitch * (k + 0.5) for k in range(len(rows))]
    lines = "".join(f"M{svg.num(strip.x)} {y:.1f}h{svg.num(strip.width)}" for y in centres)
    marks = [f'<path d="{lines}" stroke="{svg.colour("c1")}" stroke-opacity="0.35" fill="none"/>']
    pairs = list(zip(centres, rows, strict=True))
    marks.append(
        strip.path([(y, span) for y, life in pairs if life.gather for span in life.gathered], high, "c5", "unsharded")
    )
    scale = strip.width / strip.seconds
    sent = [
        (y, span)
        for y, life in pairs
        for span in (life.gather, life.regather)
        if span and (span[1] - span[0]) * scale > SEEN
    ]  # the lane beneath has all of them
    marks.append(strip.path(sent, high, "c4", "all-gather"))
    if computes:
        busy = [(y, span) for y, life in pairs if life.name or len(rows) == 1 for span in (life.forward, life.backward)]
        marks.append(strip.path(busy, high / 2, "compute", "computes"))
    marks.append(strip.path([(y, life.reduce) for y, life in pairs if life.reduce], high, "c6", "reduce-scatter"))
    return "".join(marks)


def frame(strip: Strip, rows: Sequence[Life], life: Life) -> str:
    """A ring around each stretch in which one of the units is unsharded."""
    pitch = strip.height / len(rows)
    y = strip.y + pitch * rows.index(life) - 2.5
    marks = []
    for k, (start, end) in enumerate(life.gathered):
        x = strip.at(start) - 3
        marks.append(svg.frame(x, y, strip.at(end) - x + 3, pitch + 5, "ink", 1.5, rounded=4, mark=f"ring{k}"))
    return "".join(marks)


# --- lanes ------------------------------------------------------------------------------------------------------------


def height(timeline: ShortTimeline, wires: bool) -> float:
    """CSS pixels of the lanes."""
    return LANE * (1 + len(_wires(timeline)) * wires)


def _wires(timeline: ShortTimeline) -> list[str]:
    return [lane for lane in LANES[1:] if timeline.count(lane)]


def lanes(timeline: ShortTimeline, strip: Strip, wires: bool, named: bool = True) -> str:
    """What is computed, with its gaps, and where there is room (`wires`) each kind of message or copy that there is,
    from on.y down. Neighbours are one mark where they are many, as long as all of them, so that nothing is lost."""
    forward, backward, by_lane = _sorted(timeline)
    y, shapes, clock, waits = strip.y + 2, [], 0.0, []
    for title, rows, strong in (("forward", forward, 0.45), ("backward", backward, 1.0)):
        marks = grouped(rows)
        for start, end in marks:
            waits.append((clock, start))
            clock = end
        shapes.append(_marks(strip, y, marks, "compute", title, strong))
    update_start = timeline.passes[-1][1]
    waits.append((clock, update_start))
    shapes += [
        _marks(strip, y, [(update_start, timeline.seconds)], "c2", "update", 1.0),
        _marks(strip, y, [(timeline.seconds, strip.seconds)], "muted", HOST, 0.45),
    ]
    scale = strip.width / strip.seconds
    boxes = [(strip.at(start), y, (end - start) * scale, BAR) for start, end in waits if (end - start) * scale >= 0.02]
    shapes += [
        hatch.area(boxes, title="exposed communication: compute waits"),
        _name(strip, y, "computes") if named else "",
    ]
    for lane in _wires(timeline) if wires else ():
        y += LANE
        shapes.append(_name(strip, y, NAMES[lane]))
        shapes += [
            _marks(strip, y, grouped(spans), "c4", name, 0.55 if "again" in name else 1.0)
            for name, spans in by_lane[lane].items()
        ]
    return "".join(shapes)


def _name(strip: Strip, y: float, words: str) -> str:
    return svg.text(strip.x - 5, y + BAR, words, anchor="end", size=svg.SMALLEST, fill="muted")


def waits(timeline: ShortTimeline, seconds: float) -> tuple[str, ...]:
    """What nothing hides of a step of so many seconds, in short lines."""
    exposed = timeline.exposed_seconds
    if not exposed:
        return ("nothing is exposed",)
    return "exposed, hatched", f"{took(exposed)}, {100 * exposed / seconds:.1f}%"


def _sorted(timeline: ShortTimeline) -> tuple[list[Interval], list[Interval], dict[str, dict[str, list[Interval]]]]:
    """Intervals of forward, of backward, and by lane of communication, by kind of message."""
    forward: list[Interval] = []
    backward: list[Interval] = []
    by_lane: dict[str, dict[str, list[Interval]]] = {}
    for lane, action, start, end in timeline.intervals(max(1, timeline.extra // GROUPS)):
        if lane == "compute":
            (forward if action == "forward" else backward).append((start, end))
        else:
            kind = "gather again" if action == "gather again" else lane
            by_lane.setdefault(lane, {}).setdefault(kind, []).append((start, end))
    return forward, backward, by_lane


def grouped(rows: Sequence[Interval], limit: int = GROUPS) -> list[Interval]:
    """At most about `limit` intervals: neighbours together, pushed to the end of their last. Their sum stays."""
    size = max(1, -(-len(rows) // limit))
    groups = []
    for i in range(0, len(rows), size):
        members = rows[i : i + size]
        end = members[-1][1]
        groups.append((end - fsum(b - a for a, b in members), end))
    return groups


def _marks(strip: Strip, y: float, rows: Sequence[Interval], fill: str, title: str, strong: float) -> str:
    """One path for all intervals that can be seen."""
    scale, path, middle = strip.width / strip.seconds, [], svg.num(y + BAR / 2)
    for start, end in rows:
        wide = (end - start) * scale
        if wide >= 0.02:
            path.append(f"M{strip.x + start * scale:.1f} {middle}h{wide:.2f}")
    return _stroke(path, fill, BAR, title, strong)


def _stroke(path: list[str], fill: str, high: float, title: str, strong: float = 1.0) -> str:
    if not path:
        return ""
    faded = "" if strong == 1.0 else f' stroke-opacity="{svg.num(strong)}"'
    return (
        f'<path d="{"".join(path)}" fill="none" stroke="{svg.colour(fill)}" stroke-width="{svg.num(high)}"{faded}>'
        f"<title>{title}</title></path>"
    )
