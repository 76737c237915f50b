"""The picture of the view `ddp`: what a GPU computes, what falls onto the link, the bytes that wait for it, the tokens
that would hide the communication, and the work that the GPUs do together."""

from __future__ import annotations

from itertools import chain

from scaleout.draw import guess, svg
from scaleout.draw.lanes import Lanes
from scaleout.draw.plot import time_axis
from scaleout.timing.ddp import Timeline
from scaleout.views.ddp import gauge
from scaleout.words.amounts import quantity, took

LEFT = 4
PILE = 50  # CSS pixels, of all bytes of a step
STRETCHES_BEFORE, STRETCHES_AFTER = 48, 24  # stretches of the pile's edge up to where backward ends, and from there on


def picture(setting, timeline: Timeline, values: dict, width: int, run: dict | None) -> str:
    """The step of one of the setting's GPUs up to `values["moment_seconds"]`. values: of the view; run: a reader's
    run."""
    lanes = _lanes(timeline, max(timeline.seconds, 2 * values["alone_seconds"]), width)
    label = (
        f"One step of {took(timeline.seconds)}: the compute lane, the communication lane, buckets that fall from one "
        f"to the other, and the bytes that wait for the link, at most {values['pile_most_gb']:.2f} GB. "
        f"{setting.ranks} GPUs do the work of {quantity(values['speed_up'])}."
    )
    gauges, top = gauge.draw(setting, values, (LEFT, _axis(lanes) + 42, width - 2 * LEFT), run)
    body = [_ground(lanes), lanes.draw(), _pile(lanes, values), _later(lanes, values), gauges, _mark(lanes)]
    return svg.figure(width, top, "".join(body), label)


def locked(setting, timeline: Timeline, alone: float, width: int) -> str:
    """What computes, on an axis twice as long as the step of a GPU `alone`, without any communication."""
    lanes = _lanes(timeline, 2 * alone, width)
    label = "What a GPU computes in one step. The communication, and the work that the GPUs do, are to be guessed."
    gauges, top = gauge.empty((LEFT, _axis(lanes) + 42, width - 2 * LEFT))
    return svg.figure(width, top, "".join([_ground(lanes), lanes.asked(), gauges, _mark(lanes)]), label)


def _lanes(timeline: Timeline, until: float, width: int) -> Lanes:
    bar, fall = (32, 60) if width == svg.WIDE else (26, 54)
    return Lanes(timeline, LEFT, 4, width - 2 * LEFT, until, bar, fall)


def _axis(lanes: Lanes) -> float:
    """Where the time axis is; its labels take 20 more."""
    return lanes.bottom + PILE + 18


def _ground(lanes: Lanes) -> str:
    return time_axis(lanes.x, _axis(lanes), lanes.width, lanes.until, lanes.upper)


def _pile(lanes: Lanes, values: dict) -> str:
    """Bytes that wait for the link, over time; what is left when nothing computes is hatched in the lanes above it."""
    timeline, base = lanes.timeline, _axis(lanes)
    last = timeline.passes[-1]
    busy, end = last.start + last.compute_seconds, last.start + last.seconds
    times = [busy * k / STRETCHES_BEFORE for k in range(STRETCHES_BEFORE + 1)]
    times += [busy + (end - busy) * k / STRETCHES_AFTER for k in range(1, STRETCHES_AFTER + 1)]
    message_bytes = values["message_gb"] * 1e9 or 1.0
    high = PILE / message_bytes
    edge = [
        (lanes.x + time * lanes.scale, base - high * size)
        for time, size in zip(times, timeline.waiting(times), strict=True)
    ]
    words = f"waiting for the link: {quantity(values['pile_gb'])} GB"
    if values["moment_seconds"] >= timeline.seconds:
        message_gb = quantity(values["message_gb"])
        words = f"waiting for the link: {quantity(values['pile_most_gb'])} GB at most, of {message_gb} GB"
    if not values["communication_seconds"]:
        words = "nothing waits for the link"
    return (
        _area(edge[: STRETCHES_BEFORE + 1], base, "c4", 0.75, "pile")
        + _area(edge[STRETCHES_BEFORE:], base, "accent", 0.5, "rest")
        + svg.text(lanes.x, base - PILE - 3, words, size=svg.SMALL, halo=True)
    )


def _area(edge: list[tuple[float, float]], base: float, fill: str, opacity: float, mark: str) -> str:
    corners = chain([(edge[0][0], base)], edge, [(edge[-1][0], base)])
    points = " ".join(f"{svg.num(x)},{svg.num(y)}" for x, y in corners)
    return f'<polygon points="{points}" fill="{svg.colour(fill)}" fill-opacity="{opacity}" data-mark="{mark}"/>'


def _later(step_lanes: Lanes, values: dict) -> str:
    """A line at the moment that is shown, and what comes after it faded."""
    moment, end = values["moment_seconds"], step_lanes.timeline.seconds
    if moment >= end:
        return ""
    x, right, low = step_lanes.x + moment * step_lanes.scale, step_lanes.x + end * step_lanes.scale, _axis(step_lanes)
    lanes = (step_lanes.upper - 1, step_lanes.lower + step_lanes.bar + 6)
    veils = "".join(
        svg.rect(x, top, right - x + 1, bottom - top, "paper", opacity=0.78, mark=name)
        for name, (top, bottom) in (("later", lanes), ("later pile", (low - PILE, low)))
    )
    return veils + svg.line(x, step_lanes.upper - 3, x, low, "ink", 1.5, mark="now")


def _mark(lanes: Lanes) -> str:
    """A guess stands where the step would end if that share of it were exposed."""
    busy = lanes.timeline.seconds - lanes.timeline.exposed_seconds
    last = 100 * (1 - busy / lanes.until)
    shares = [*(share for share in range(0, 100, 2) if share < last - 1e-9), last]
    stops = [(percent, lanes.x + busy / (1 - percent / 100) * lanes.scale) for percent in shares]
    return guess.mark(stops, (lanes.upper - 4, _axis(lanes)), "x", lanes.lower - lanes.fall / 2)
