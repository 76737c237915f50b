"""Memory of one GPU through a step of FSDP, as stacked areas by kind over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from scaleout.draw import svg
from scaleout.draw.plot import Plane
from scaleout.memory.fsdp_tape import Moment
from scaleout.timing.fsdp_plan import runs_of_blocks
from scaleout.timing.fsdp_short import ShortTimeline
from scaleout.timing.intervals import Interval

# By layer, from the bottom up: (palette name, opacity, kinds of the account). First the sharded states, which are there
# all the time, then unsharded units, then what belongs to a rank's own tokens.
STACK = {
    "optimizer": ("c2", 1.0, ("optimizer", "master")),
    "weights": ("c1", 1.0, ("weights",)),
    "gradients": ("c6", 1.0, ("gradients",)),
    "unsharded weights": ("c5", 1.0, ("gathered",)),
    "unsharded gradients": ("c6", 0.55, ("whole gradients",)),
    "buffers": ("c4", 1.0, ("buffers",)),
    "activations": ("c3", 1.0, ("activations",)),
    "logits, temporaries": ("c8", 1.0, ("logits", "temporaries")),
}
_KINDS = [kinds for *_, kinds in STACK.values()]
STEP = 4  # CSS pixels of a step that memory is drawn in: each the fullest moment within it

Placed = tuple[float, float, Moment]


# --- memory over time -------------------------------------------------------------------------------------------


def placed(moments: Sequence[Moment], timeline: ShortTimeline) -> list[Placed]:
    """Each moment of an account with its start and end in the step's first pass, in seconds.

    The account counts bytes in the order in which the program asks for them; here they lie where the compute stream
    is at that point of the program. A gather or a reduction takes the gap beside its unit's compute, if there is one.
    """
    blocks = {unit.split(".")[1] for unit in {moment.unit for moment in moments} if unit.startswith("blocks.")}
    visits = _visits(*timeline.visits({int(block) for block in blocks}))
    backward_end, last = timeline.passes[0][1], visits["forward"][-1][2]
    result: list[Placed] = []
    for phase, since, until in (("forward", 0.0, last), ("backward", last, backward_end)):
        rows = [moment for moment in moments if moment.phase == phase]
        result += _phase(rows, visits[phase], since, until)
    for moment in moments:
        if moment.phase == "loss":
            result.append((last, last, moment))
        elif moment.phase == "update":
            result.append((backward_end, timeline.seconds, moment))
    return result


def _visits(rows: Sequence[str], spans: dict[tuple[str, int], Interval]) -> dict[str, list[tuple[str, float, float]]]:
    """By phase, (unit, start, end) of each stay of the compute stream in a unit of the first pass, in order; one of no
    seconds lies where the one before it ended. A block that is recomputed is visited from its last unit, which backward
    has reached, through all of them, to the last again."""
    blocks, clock = runs_of_blocks(rows).values(), 0.0
    rebuilt = {members[-1]: members for members in blocks if any(("recompute", i) in spans for i in members)}
    result: dict[str, list[tuple[str, float, float]]] = {"forward": [], "backward": []}
    for phase, order in (("forward", range(len(rows))), ("backward", reversed(range(len(rows))))):
        for i in order:
            start = None
            if phase == "backward" and i in rebuilt:
                members = [spans.get(("recompute", j), (clock, clock)) for j in rebuilt[i]]
                start = members[-1][0]
                result[phase].append((rows[i], members[0][0], members[0][0]))
                result[phase] += [(rows[j], *span) for j, span in zip(rebuilt[i], members[:-1], strict=False)]
            begun, clock = spans.get((phase, i), (clock, clock))
            result[phase].append((rows[i], begun if start is None else start, clock))
    return result


def _phase(rows: Sequence[Moment], visits: list[tuple[str, float, float]], since: float, until: float) -> list[Placed]:
    """Moments of one phase, from `since` to `until`, on its pieces, both in the order of time."""
    names = [name for name, *_ in visits]
    known = {name: i for i, name in enumerate(names)}  # where each is last
    by_visit: dict[int, list[Moment]] = {}
    visit = 0
    for moment in rows:
        name = moment.unit
        while name and name not in known:
            name = name.rpartition(".")[0]
        if name or not moment.unit:  # what only the root holds, within a block, stays where the program is
            visit = names.index(name, visit) if known.get(name, -1) >= visit else visit
        by_visit.setdefault(visit, []).append(moment)
    result: list[Placed] = []
    for i, moments in by_visit.items():
        _, start, end = visits[i]
        previous_end = visits[i - 1][2] if i else since
        next_start = visits[i + 1][1] if i + 1 < len(visits) else until
        result += _around(moments, previous_end, start, end, next_start)
    return result


def _around(moments: list[Moment], gap_start: float, start: float, end: float, gap_end: float) -> Iterator[Placed]:
    """Moments of one piece: equal shares of its compute, and what comes first and last in the gaps beside it."""
    work = [k for k, moment in enumerate(moments) if moment.activity == "compute"]
    first, last = (work[0], work[-1]) if work else (len(moments), len(moments))
    share, past = (end - start) / max(1, len(work)), 0
    for k, moment in enumerate(moments):
        if k < first:
            yield gap_start, start, moment
        elif k > last:
            yield end, gap_end, moment
        else:
            wide = moment.activity == "compute"
            yield start + past * share, start + (past + wide) * share, moment
            past += wide


def columns(rows: Iterable[Placed], plane: Plane) -> list[list[int]]:
    """The hill in steps of equal width, of each the fullest moment in it: bytes up to the upper edge of each layer."""
    bins = max(1, int(plane.width / STEP))
    wide = plane.x.hi / bins
    fullest: list[tuple[int, Moment | None]] = [(-1, None)] * bins
    rows = list(rows)
    for start, end, moment in rows:
        total, first = moment.bytes, int(start / wide)
        for b in range(min(bins - 1, first), min(bins - 1, int(end / wide)) + 1):
            if total > fullest[b][0] and (b * wide < end or start == end or first == b):
                fullest[b] = (total, moment)
    steps, tops = [], _tops(rows[0][2].held)
    for _, highest in fullest:  # a step that no moment begins or ends in is as the one before it
        tops = _tops(highest.held) if highest is not None else tops
        steps.append(tops)
    return steps


def area(steps: Sequence[Sequence[int]], plane: Plane, unit_bytes: float) -> str:
    """The layers of the hill, as areas. steps: of `columns`; amounts on the axis are in `unit_bytes`."""
    # What lies higher is drawn first, down to the axis, and covered by what lies beneath it
    layers = zip(STACK.items(), zip(*steps, strict=True), strict=True)
    areas = [_steps(name, fill, opacity, tops, plane, unit_bytes) for (name, (fill, opacity, _)), tops in layers]
    return "".join(reversed(areas))


def _tops(sizes: dict[str, int]) -> list[int]:
    """Bytes up to the upper edge of each layer of the stack."""
    tops, top = [], 0
    for kinds in _KINDS:
        for kind in kinds:
            top += sizes[kind]
        tops.append(top)
    return tops


def _steps(name: str, fill: str, opacity: float, tops: Sequence[int], plane: Plane, unit_bytes: float) -> str:
    pitch, drawn, level = plane.width / len(tops), "", None
    per_byte = (plane.bottom - plane.at_y(plane.y.hi)) / plane.y.hi / unit_bytes
    path = [f"M{svg.num(plane.left)} {svg.num(plane.bottom)}"]
    for i, top in enumerate(tops):
        if top == level:
            continue
        level, height = top, f"{plane.bottom - top * per_byte:.1f}"
        if height != drawn:
            if i:
                path.append(f"H{plane.left + i * pitch:.1f}")
            path.append(f"V{height}")
            drawn = height
    path.append(f"H{svg.num(plane.right)}V{svg.num(plane.bottom)}Z")
    d = f'd="{"".join(path)}"'
    backing = "" if opacity == 1.0 else f'<path {d} fill="{svg.colour("paper")}"/>'
    pale = "" if opacity == 1.0 else f' fill-opacity="{svg.num(opacity)}"'
    edge = f'stroke="{svg.colour("ink")}" stroke-width="0.5"'  # green and grey are one to some eyes
    return f'{backing}<path {d} fill="{svg.colour(fill)}"{pale} {edge}><title>{name}</title></path>'
