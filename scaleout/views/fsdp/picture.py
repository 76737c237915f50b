"""The picture of the view `fsdp`: memory over time by kind, and beneath it, on the same axis, what runs when."""

from __future__ import annotations

from scaleout.draw import fsdp_lanes, guess, labels, svg
from scaleout.draw.plot import Axis, Plane, time_axis
from scaleout.memory import allocator
from scaleout.memory.fsdp import FsdpAccount
from scaleout.timing.fsdp_short import ShortTimeline
from scaleout.views.fsdp import record

GIB = 2**30
BLOCKS = 24  # about, whose memory is drawn of those that are alike; by one moment each where there are many
# By width: the picture, the plane at most, a lane with its words, and rows of keys at least
TALL = {svg.WIDE: (474, 200, 34, 2), svg.NARROW: (394, 150, 28, 4)}
LEFT, MARGIN = 40, 4
ABOVE = 1.26  # of the axis over the GPU's memory, so that a guess beyond it can be drawn
# Shorter than the names of the stack
NAMES = {"gathered units": "gathered", "logits, temporaries": "logits, scratch"}


def picture(
    account: FsdpAccount, timeline: ShortTimeline, values: dict, width: int, own: dict | None, here: bool,
) -> str:  # fmt: skip
    """One step of one GPU. values: of the view; own: a reader's run, and whether it is of what is set here."""
    peak, card = values["peak_gib"], values["device_gib"]
    items = [("", f"at the peak, {svg.quantity(peak)} GiB:")]
    items += [(fill, f"{words} {_amount(values[f'{name}_gib'])}") for name, fill, words in _kinds()]
    items += [("key", words) for words in record.words(own, here)] if own else []
    top = max(1.06 * peak, ABOVE * card if card < 2 * peak else 0.0)
    frame = _Frame(timeline, items, top, width)
    rows = fsdp_lanes.placed(account.some(account.extra // BLOCKS + 1, account.extra > BLOCKS / 2), timeline)
    area = fsdp_lanes.area(rows, frame.plane, frame.unit)
    label = (
        f"Memory of one GPU through a step of {labels.took(timeline.seconds)}, by kind, at most "
        f"{svg.quantity(peak)} GiB; beneath, what it computes, gathers and reduces meanwhile."
    )
    if own and here:
        area += frame.plane.own(timeline.few.seconds, own["peak_bytes"] / frame.unit, "your run's peak")
    return frame.figure(area, card, values["room_gib"], peak, label)


def asked(timeline: ShortTimeline, memory_bytes: int, width: int) -> str:
    """What runs when, and how much a GPU has; not what it holds."""
    items = [(fill, words) for _, fill, words in _kinds()]
    card, room = memory_bytes / GIB, allocator.room(memory_bytes) / GIB
    frame = _Frame(timeline, [("", "held at the peak?"), *items], ABOVE * card, width)
    label = "What one GPU computes, gathers and reduces in a step; what it holds meanwhile is asked."
    return frame.figure("", card, room, 0.0, label)


def _kinds() -> list[tuple[str, str, str]]:
    """(kind, colour of its key, words), from the top of the stack down."""
    stack = fsdp_lanes.STACK.items()
    return [(name, fill + "%" * (opacity < 1), NAMES.get(name, name)) for name, (fill, opacity, _) in stack][
        ::-1
    ]


class _Frame:
    """Keys, a plane of GiB over the seconds of a step, and the lanes beneath."""

    def __init__(self, timeline: ShortTimeline, items: list[tuple[str, str]], top: float, width: int) -> None:
        tall, most, pitch, rows = TALL[width]
        self.timeline, self.width, self.pitch = timeline, width, pitch
        self.name, self.unit = ("GiB", GIB) if top < 4096 else ("TiB", 1024 * GIB)
        self.keys, used = labels.keys(MARGIN, 4, width - 2 * MARGIN, items, rows)
        lanes = fsdp_lanes.height(timeline, pitch)
        self.plane = Plane(
            LEFT, used + 26, width - LEFT - 8, min(most, tall - used - 26 - 10 - lanes - 26),
            Axis(0, timeline.seconds), Axis(0, top * GIB / self.unit),
        )  # fmt: skip
        self.below = self.plane.bottom + 8 + lanes

    def at(self, gib: float) -> float:
        return self.plane.at_y(gib * GIB / self.unit)

    def figure(self, area: str, card: float, room: float, peak: float, label: str) -> str:
        """The whole picture. card, room, peak: GiB of the GPU, of what a step may take of it, and of this step."""
        plane, inside = self.plane, self.at(card) > self.plane.top + 1
        words = f"what one GPU holds, {self.name}" + (
            "" if inside else f"; this GPU: {svg.quantity(card)} GiB"
        )
        parts = [
            self.keys, time_axis(LEFT, self.below + 6, plane.width, self.timeline.seconds, plane.top),
            svg.text(MARGIN, plane.top - 8, words, fill="muted", size=svg.SMALL), area, self._y_axis(),
            fsdp_lanes.lanes(self.timeline, LEFT, plane.bottom + 8, plane.width, self.pitch),
            self._limit(card, room, peak) if inside else "", self._mark(),
        ]  # fmt: skip
        return svg.figure(self.width, self.below + 6 + 22, "".join(parts), label)

    def _limit(self, card: float, room: float, peak: float) -> str:
        plane, at, reserve = self.plane, self.at(card), self.at(room)
        words = f"this GPU: {svg.quantity(card)} GiB; it fits below the thin line, {svg.quantity(room)}"
        under = reserve + 15  # where the hill stands above the lines, if there is room
        words_at = under if peak > card and under < plane.bottom - 4 else at - 5
        return "".join([
            svg.line(LEFT, at, plane.right, at, "accent", 2, "5 4"),
            svg.line(LEFT, reserve, plane.right, reserve, "accent", 1, "2 3"),
            svg.text(plane.right - 4, words_at, words, anchor="end", fill="accent", size=svg.SMALL, halo=True),
        ])  # fmt: skip

    def _y_axis(self) -> str:
        plane, out = self.plane, []
        for value in svg.ticks(plane.y.hi, max(2, round(plane.height / 36))):
            at = plane.at_y(value)
            out.append(svg.line(LEFT - 4, at, LEFT, at, "muted"))
            out.append(
                svg.text(LEFT - 7, at + 4, labels.short(value), anchor="end", fill="muted", size=svg.SMALL)
            )
        return "".join(out)

    def _mark(self) -> str:
        plane = self.plane
        return guess.mark(
            [(0.0, plane.bottom), (plane.y.hi * self.unit / GIB, plane.top)], (LEFT, plane.right)
        )


def _amount(gib: float) -> str:
    """For the keys: no more digits than can be seen."""
    return svg.quantity(gib) if gib >= 10 or not gib else f"{gib:.2f}"
