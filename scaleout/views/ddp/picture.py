"""The picture of the view `ddp`: the lanes of one step, and weak-scaling efficiency beneath."""

from __future__ import annotations

from scaleout.draw import guess, labels, svg
from scaleout.draw.lanes import Lanes
from scaleout.draw.plot import Axis, Plane
from scaleout.timing.ddp import Timeline
from scaleout.views.ddp import record

MOST = 512  # GPUs
LEFT = 4


def picture(timeline: Timeline, values: dict, ranks: int, width: int, own: dict | None) -> str:
    """The step of one of `ranks` GPUs, and the efficiency of as many as there could be. values: of the view; own: a
    reader's run."""
    on = _lanes(timeline, max(timeline.seconds, _room(timeline)), width)
    plane = _plane(on, width)
    label = (
        f"Two lanes of one step, compute and communication, {labels.took(timeline.seconds)} long; beneath, "
        f"weak-scaling efficiency from 1 to {MOST} GPUs, {values['efficiency']:.0%} at {ranks}."
    )
    body = [on.draw(), _grid(plane, width), _curves(plane, values, ranks, width), _own(plane, own), _mark(on)]
    return svg.figure(width, plane.bottom + 40, "".join(body), label)


def asked(timeline: Timeline, width: int) -> str:
    """What computes, and the axes: neither a message nor a curve."""
    on = _lanes(timeline, _room(timeline), width)
    plane = _plane(on, width)
    label = f"What a GPU computes in one step, and the axes of efficiency from 1 to {MOST} GPUs; messages are asked."
    return svg.figure(width, plane.bottom + 40, "".join([on.asked(), _grid(plane, width), _mark(on)]), label)


def _room(timeline: Timeline) -> float:
    """Seconds of the axis: up to where half of the step would be exposed, so that compute keeps its length."""
    return 2 * (timeline.compute_seconds + timeline.update_seconds)


def _lanes(timeline: Timeline, until: float, width: int) -> Lanes:
    return Lanes(timeline, LEFT, 4, width - 2 * LEFT, until, 36 if width == svg.WIDE else 28)


def _plane(on: Lanes, width: int) -> Plane:
    top, height = (66, 170) if width == svg.WIDE else (82, 126)
    return Plane(34, on.bottom + top, width - 46, height, Axis(1, MOST, log=True), Axis(0, 104))


def _grid(plane: Plane, width: int) -> str:
    powers = range(0, 10, 1 if width == svg.WIDE else 2)
    return plane.grid(
        "GPUs, each with the same work", "weak-scaling efficiency, %", [(2**k, str(2**k)) for k in powers],
        [(20 * k, str(20 * k)) for k in range(6)],
    ) + plane.curve([(1, 100), (MOST, 100)], "muted", 1.5, "6 4", "ideal: 100%")  # fmt: skip


def _curves(plane: Plane, values: dict, ranks: int, width: int) -> str:
    found, curve = values["efficiency"], values["curve"]
    names = [("compute~", f"as set: {found:.0%} on {ranks}"), ("accent-", "all sent after backward")]
    at = (200, plane.top - 19) if width == svg.WIDE else (LEFT, plane.top - 40)
    keys, _ = labels.keys(*at, width - LEFT - at[0], names)
    return "".join([
        keys, plane.rule(ranks, "muted"),
        plane.curve([(n, 100 * e) for n, _, e in curve], "accent", 2, "4 3", names[1][1]),
        plane.curve([(n, 100 * e) for n, e, _ in curve], "compute", 3, "", "as set"),
        plane.dots([(ranks, 100 * found)], "compute", 5, f"{ranks} GPU{'s' if ranks > 1 else ''}: {found:.1%}"),
    ])  # fmt: skip


def _own(plane: Plane, run: dict | None) -> str:
    if run is None:
        return ""
    ranks, share, words = record.point(run)
    words = labels.cut(words + f"; beyond {MOST}" * (ranks > MOST), plane.width - 10, bold=True)
    under = svg.text(plane.left + 6, plane.bottom - 8, words, fill="key", bold=True, size=svg.SMALL, halo=True)
    return plane.own(ranks, 100 * share, words) + under


def _mark(on: Lanes) -> str:
    """A guess stands where the step would end if that share of it were exposed."""
    busy = _room(on.timeline) / 2
    last = 100 * (1 - busy / on.until)
    shares = [*(share for share in range(0, 100, 2) if share < last - 1e-9), last]
    stops = [(one, on.x + busy / (1 - one / 100) * on.scale) for one in shares]
    return guess.mark(stops, (on.upper - 4, on.bottom), "x")
