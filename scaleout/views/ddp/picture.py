"""The picture of the view `ddp`: what a GPU computes and what falls onto the wire, how much waits there, the tokens
that would hide it, and what the GPUs get done between them."""

from __future__ import annotations

from itertools import chain

from scaleout.draw import guess, labels, svg
from scaleout.draw.lanes import Lanes
from scaleout.draw.plot import time_axis
from scaleout.timing.ddp import Timeline
from scaleout.views.ddp import gauge

LEFT = 4
PILE = 50  # CSS pixels, of all bytes of a step
BEFORE, AFTER = 48, 24  # stretches of the pile's edge up to where backward ends, and from there on


def picture(setting, timeline: Timeline, values: dict, width: int, own: dict | None) -> str:
    """The step of one of the setting's GPUs up to `values["moment_seconds"]`. values: of the view; own: a reader's
    run."""
    on = _lanes(timeline, max(timeline.seconds, 2 * values["alone_seconds"]), width)
    label = (
        f"One step, {labels.took(timeline.seconds)} long: the compute lane, the wire, buckets that fall from one to "
        f"the other, and the pile that waits, at most {values['pile_most_gb']:.2f} GB. {setting.ranks} GPUs do the "
        f"work of {svg.quantity(values['speed_up'])}."
    )
    done, top = gauge.draw(setting, values, (LEFT, _axis(on) + 42, width - 2 * LEFT), own)
    body = [_ground(on), on.draw(), _pile(on, values), _later(on, values), done, _mark(on)]
    return svg.figure(width, top, "".join(body), label)


def asked(setting, timeline: Timeline, alone: float, width: int) -> str:
    """What computes, and an axis of twice the seconds of a GPU `alone`: neither a message nor what shows of it."""
    on = _lanes(timeline, 2 * alone, width)
    label = "What a GPU computes in one step; the messages, and what they keep the GPUs from, are asked."
    done, top = gauge.asked((LEFT, _axis(on) + 42, width - 2 * LEFT))
    return svg.figure(width, top, "".join([_ground(on), on.asked(), done, _mark(on)]), label)


def _lanes(timeline: Timeline, until: float, width: int) -> Lanes:
    bar, fall = (32, 60) if width == svg.WIDE else (26, 54)
    return Lanes(timeline, LEFT, 4, width - 2 * LEFT, until, bar, fall)


def _axis(on: Lanes) -> float:
    """Where the time axis is; its labels take 20 more."""
    return on.bottom + PILE + 18


def _ground(on: Lanes) -> str:
    return time_axis(on.x, _axis(on), on.width, on.until, on.upper)


def _pile(on: Lanes, values: dict) -> str:
    """Bytes that wait for the wire, over time; what is left when nothing computes is hatched in the lanes above it."""
    timeline, base = on.timeline, _axis(on)
    last = timeline.passes[-1]
    busy, end = last.start + last.compute_seconds, last.start + last.seconds
    times = [busy * k / BEFORE for k in range(BEFORE + 1)]
    times += [busy + (end - busy) * k / AFTER for k in range(1, AFTER + 1)]
    most = values["message_gb"] * 1e9 or 1.0
    high = PILE / most
    edge = [(on.x + at * on.scale, base - high * size) for at, size in zip(times, timeline.waiting(times), strict=True)]
    words = f"waiting for the wire: {svg.quantity(values['pile_gb'])} GB"
    if values["moment_seconds"] >= timeline.seconds:
        of = svg.quantity(values["message_gb"])
        words = f"waiting for the wire: {svg.quantity(values['pile_most_gb'])} GB at most, of {of} GB"
    if not values["communication_seconds"]:
        words = "nothing waits for the wire"
    return (
        _area(edge[: BEFORE + 1], base, "c4", 0.75, "pile")
        + _area(edge[BEFORE:], base, "accent", 0.5, "rest")
        + svg.text(on.x, base - PILE - 3, words, size=svg.SMALL, halo=True)
    )


def _area(edge: list[tuple[float, float]], base: float, fill: str, opacity: float, mark: str) -> str:
    corners = chain([(edge[0][0], base)], edge, [(edge[-1][0], base)])
    points = " ".join(f"{svg.num(x)},{svg.num(y)}" for x, y in corners)
    return f'<polygon points="{points}" fill="{svg.colour(fill)}" fill-opacity="{opacity}" data-mark="{mark}"/>'


def _later(on: Lanes, values: dict) -> str:
    """A line at the moment that is shown, and what comes after it faded."""
    now, end = values["moment_seconds"], on.timeline.seconds
    if now >= end:
        return ""
    at, right, low = on.x + now * on.scale, on.x + end * on.scale, _axis(on)
    lanes = (on.upper - 1, on.lower + on.bar + 6)
    veils = "".join(
        svg.rect(at, top, right - at + 1, bottom - top, "paper", opacity=0.78, mark=name)
        for name, (top, bottom) in (("later", lanes), ("later pile", (low - PILE, low)))
    )
    return veils + svg.line(at, on.upper - 3, at, low, "ink", 1.5, mark="now")


def _mark(on: Lanes) -> str:
    """A guess stands where the step would end if that share of it were exposed."""
    busy = on.timeline.seconds - on.timeline.exposed_seconds
    last = 100 * (1 - busy / on.until)
    shares = [*(share for share in range(0, 100, 2) if share < last - 1e-9), last]
    stops = [(one, on.x + busy / (1 - one / 100) * on.scale) for one in shares]
    return guess.mark(stops, (on.upper - 4, _axis(on)), "x", on.lower - on.fall / 2)
