"""A step of FSDP as SVG: memory over time by kind, and beneath it, on the same time axis, what runs when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum  # exact: sum adds otherwise from Python 3.12 on, and the page has a newer one

from scaleout.draw import hatch, svg
from scaleout.draw.labels import took
from scaleout.draw.plot import Plane
from scaleout.memory.fsdp import Moment
from scaleout.timing.fsdp import LANES
from scaleout.timing.fsdp_plan import runs_of_blocks
from scaleout.timing.fsdp_short import ShortTimeline
from scaleout.timing.intervals import Interval

# By what is drawn, from the bottom up: (palette name, opacity, kinds of the account). First what is split and always
# there, then what is whole for a moment, then what belongs to a rank's own tokens.
STACK = {
    "optimizer": ("c2", 1.0, ("optimizer", "master")),
    "weights": ("c1", 1.0, ("weights",)),
    "gradients": ("c6", 1.0, ("gradients",)),
    "gathered units": ("c5", 1.0, ("gathered",)),
    "whole gradients": ("c6", 0.55, ("whole gradients",)),
    "buffers": ("c4", 1.0, ("buffers",)),
    "activations": ("c3", 1.0, ("activations",)),
    "logits, temporaries": ("c8", 1.0, ("logits", "temporaries")),
}
_KINDS = [kinds for *_, kinds in STACK.values()]
STEP = 4  # CSS pixels of a step that memory is drawn in: each the fullest moment within it
GROUPS = 40  # neighbouring units are one mark where there are more than this

Placed = tuple[float, float, Moment]


# --- memory over time -------------------------------------------------------------------------------------------


def placed(moments: Sequence[Moment], timeline: ShortTimeline) -> list[Placed]:
    """Each moment of an account with its start and end, in seconds of the step's first pass.

    The account counts bytes in the order in which the program asks for them; here they lie where the compute stream
    is at that point of the program. A gather or a reduction takes the gap beside its unit's compute, if there is one.
    """
    blocks = {unit.split(".")[1] for unit in {moment.unit for moment in moments} if unit.startswith("blocks.")}
    visits = _visits(*timeline.visits({int(block) for block in blocks}))
    done, last = timeline.passes[0][1], visits["forward"][-1][2]
    out: list[Placed] = []
    for phase, since, until in (("forward", 0.0, last), ("backward", last, done)):
        rows = [moment for moment in moments if moment.phase == phase]
        out += _phase(rows, visits[phase], since, until)
    for moment in moments:
        if moment.phase == "loss":
            out.append((last, last, moment))
        elif moment.phase == "update":
            out.append((done, timeline.seconds, moment))
    return out


def _visits(
    rows: Sequence[str], found: dict[tuple[str, int], Interval]
) -> dict[str, list[tuple[str, float, float]]]:
    """By phase, (unit, start, end) of each stay of the compute stream in a unit of the first pass, in order; one of no
    seconds lies where the one before it ended. A block that is recomputed is visited from its last unit, which backward
    has reached, through all of them, to the last again."""
    blocks, now = runs_of_blocks(rows).values(), 0.0
    again = {some[-1]: some for some in blocks if any(("recompute", i) in found for i in some)}
    out: dict[str, list[tuple[str, float, float]]] = {"forward": [], "backward": []}
    for phase, order in (("forward", range(len(rows))), ("backward", reversed(range(len(rows))))):
        for i in order:
            start = None
            if phase == "backward" and i in again:
                some = [found.get(("recompute", j), (now, now)) for j in again[i]]
                start = some[-1][0]
                out[phase].append((rows[i], some[0][0], some[0][0]))
                out[phase] += [(rows[j], *span) for j, span in zip(again[i], some[:-1], strict=False)]
            begun, now = found.get((phase, i), (now, now))
            out[phase].append((rows[i], begun if start is None else start, now))
    return out


def _phase(
    rows: Sequence[Moment], visits: list[tuple[str, float, float]], since: float, until: float
) -> list[Placed]:
    """Moments of one phase, from `since` to `until`, on its pieces, both in the order of time."""
    names = {name for name, *_ in visits}
    held: dict[int, list[Moment]] = {}
    at = 0
    for moment in rows:
        name = moment.unit
        while name and name not in names:
            name = name.rpartition(".")[0]
        if name or not moment.unit:  # what only the root holds, within a block, stays where the program is
            at = next((i for i in range(at, len(visits)) if visits[i][0] == name), at)
        held.setdefault(at, []).append(moment)
    out: list[Placed] = []
    for i, moments in held.items():
        _, start, end = visits[i]
        before = visits[i - 1][2] if i else since
        after = visits[i + 1][1] if i + 1 < len(visits) else until
        out += _around(moments, before, start, end, after)
    return out


def _around(moments: list[Moment], before: float, start: float, end: float, after: float) -> Iterator[Placed]:
    """Moments of one piece: equal shares of its compute, and what comes first and last in the gaps beside it."""
    work = [k for k, moment in enumerate(moments) if moment.what == "compute"]
    first, last = (work[0], work[-1]) if work else (len(moments), len(moments))
    share, past = (end - start) / max(1, len(work)), 0
    for k, moment in enumerate(moments):
        if k < first:
            yield before, start, moment
        elif k > last:
            yield end, after, moment
        else:
            wide = moment.what == "compute"
            yield start + past * share, start + (past + wide) * share, moment
            past += wide


def area(rows: Iterable[Placed], plane: Plane, unit_bytes: float) -> str:
    """The bytes of the moments, stacked by kind, as steps: in each the fullest moment. Amounts are in `unit_bytes`."""
    bins = max(1, int(plane.width / STEP))
    wide = plane.x.hi / bins
    fullest: list[tuple[int, Moment | None]] = [(-1, None)] * bins
    for start, end, moment in rows:
        total = moment.bytes
        for b in range(min(bins - 1, int(start / wide)), min(bins - 1, int(end / wide)) + 1):
            if total > fullest[b][0] and (b * wide < end or start == end or int(start / wide) == b):
                fullest[b] = (total, moment)
    columns, tops = [], [0] * len(STACK)
    for _, moment in fullest:  # a step that no moment begins or ends in is as the one before it
        tops = _tops(moment.held) if moment is not None else tops
        columns.append(tops)
    # What lies higher is drawn first, down to the axis, and covered by what lies beneath it
    layers = zip(STACK.items(), zip(*columns, strict=True), strict=True)
    steps = [_steps(name, *look, tops, plane, unit_bytes) for (name, (*look, _)), tops in layers]
    return "".join(reversed(steps))


def _tops(held: dict[str, int]) -> list[int]:
    """Bytes up to the upper edge of each layer of the stack."""
    tops, top = [], 0
    for kinds in _KINDS:
        for kind in kinds:
            top += held[kind]
        tops.append(top)
    return tops


def _steps(name: str, fill: str, opacity: float, tops: Sequence[int], plane: Plane, unit_bytes: float) -> str:
    pitch, before, held = plane.width / len(tops), "", None
    per_byte = (plane.bottom - plane.at_y(plane.y.hi)) / plane.y.hi / unit_bytes
    path = [f"M{svg.num(plane.left)} {svg.num(plane.bottom)}"]
    for i, top in enumerate(tops):
        if top == held:
            continue
        held, height = top, f"{plane.bottom - top * per_byte:.1f}"
        if height != before:
            if i:
                path.append(f"H{plane.left + i * pitch:.1f}")
            path.append(f"V{height}")
            before = height
    path.append(f"H{svg.num(plane.right)}V{svg.num(plane.bottom)}Z")
    d = f'd="{"".join(path)}"'
    under = "" if opacity == 1.0 else f'<path {d} fill="{svg.colour("paper")}"/>'
    pale = "" if opacity == 1.0 else f' fill-opacity="{svg.num(opacity)}"'
    edge = f'stroke="{svg.colour("ink")}" stroke-width="0.5"'  # green and grey are one to some eyes
    return f'{under}<path {d} fill="{svg.colour(fill)}"{pale} {edge}><title>{name}</title></path>'


# --- lanes ------------------------------------------------------------------------------------------------------


def height(timeline: ShortTimeline, pitch: float) -> float:
    """CSS pixels of the lanes, each with its words `pitch` high."""
    return pitch * len({"compute", "gather", "reduce", *(span[0] for span in timeline.few.runs[0])})


def lanes(timeline: ShortTimeline, x: float, y: float, width: float, pitch: float) -> str:
    """The lanes of a step of one pass from (x, y) down: compute with its gaps, then each kind of communication there
    is; each is its words and under them a bar, together `pitch` high. Where there are many units neighbours are one
    mark, as wide as all of them together, so that nothing computed, sent or waited for is lost."""
    on = _Lanes(x, width / timeline.seconds, y + 16, pitch - 19)
    forward, backward, by_lane = _sorted(timeline)
    roomy, body = width > 400, []
    now, waits = 0.0, []
    for title, rows, opacity in (("forward", forward, 0.45), ("backward", backward, 1.0)):
        marks = grouped(rows)
        for start, end in marks:
            waits.append((now, start))
            now = end
        body.append(on.marks(marks, "compute", title, opacity))
    waits.append((now, timeline.passes[-1][1]))
    body.append(on.marks([(timeline.passes[-1][1], timeline.seconds)], "c2", "update", 1.0))
    body.append(on.gaps(waits))
    body.append(
        svg.text(x, on.y - 5, f"{'compute: ' * roomy}forward (pale), backward", size=svg.SMALL, halo=True)
    )
    body.append(_exposed(timeline, x + width, on.y - 5, roomy))
    for lane in [lane for lane in LANES if lane in by_lane]:
        on = replace(on, y=on.y + pitch)
        words = _words(lane, timeline.count(lane), "gather again" in by_lane[lane])
        body.append(svg.text(x, on.y - 5, words, size=svg.SMALL, halo=True))
        body += [on.marks(grouped(some), "c4", name, 0.55 if "again" in name else 1.0)
                 for name, some in by_lane[lane].items()]  # fmt: skip
    return "".join(body)


def _exposed(timeline: ShortTimeline, x: float, y: float, roomy: bool) -> str:
    """Said at the right end of the compute lane: a gap may be a hair."""
    waits = timeline.exposed_seconds
    share = f", {waits / timeline.seconds:.1%} of the step" if roomy else ""
    words = f"exposed: {took(waits)}{share}" if waits else "nothing is exposed"
    return svg.text(x, y, words, anchor="end", bold=waits > 0, size=svg.SMALL, fill="accent" if waits else "muted",
                    halo=True)  # fmt: skip


def _sorted(timeline: ShortTimeline) -> tuple[list[Interval], list[Interval], dict[str, dict[str, list[Interval]]]]:
    """Intervals of forward, of backward, and by lane of communication, by kind of message."""
    forward, backward = [], []
    by_lane: dict[str, dict[str, list[Interval]]] = {"gather": {}, "reduce": {}}
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


@dataclass(frozen=True)
class _Lanes:
    """Where bars are drawn: from x on, `scale` CSS pixels a second, at y, `bar` high."""

    x: float
    scale: float
    y: float
    bar: float

    def marks(self, rows: Iterable[Interval], fill: str, title: str, opacity: float) -> str:
        """One path for all intervals that can be seen, with hairlines of paper between neighbours that touch."""
        path, rows, y, bar = [], list(rows), svg.num(self.y), svg.num(self.bar)
        for start, end in rows:
            wide = (end - start) * self.scale
            if wide >= 0.02:
                shown = svg.num(wide - (0.6 if wide > 3 and len(rows) > 1 else 0.0))
                path.append(f"M{svg.num(self.x + start * self.scale)} {y}h{shown}v{bar}h-{shown}z")
        if not path:
            return ""
        faded = "" if opacity == 1.0 else f' fill-opacity="{svg.num(opacity)}"'
        return f'<path d="{"".join(path)}" fill="{svg.colour(fill)}"{faded}><title>{title}</title></path>'

    def gaps(self, rows: Iterable[Interval]) -> str:
        """Where the compute lane waits."""
        boxes = [
            (self.x + start * self.scale, self.y, (end - start) * self.scale, self.bar) for start, end in rows
        ]
        return hatch.area(
            [box for box in boxes if box[2] >= 0.02], title="exposed communication: compute waits"
        )


def _words(lane: str, count: int, again: bool) -> str:
    many = f"{count:,}" if count else "none"
    return {
        "gather": f"all-gathers of units: {many}{', in backward again (pale)' * again}",
        "reduce": f"reduce-scatters of gradients: {many}",
        "across": f"all-reduces of shards between the groups: {count:,}",
        "copy in": "copies of shards from the host",
        "copy out": "copies of gradients to the host",
    }[lane]
