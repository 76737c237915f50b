"""The picture of the view `fsdp`: the life of one unit on a few ranks; when each unit is whole, and what runs; and on
the same axis of time, under one cursor, what a GPU holds."""

from __future__ import annotations

from scaleout.draw import fsdp_hill, fsdp_life, fsdp_units, guess, labels, svg
from scaleout.draw.fsdp_units import Strip
from scaleout.draw.plot import Axis, Plane, time_axis
from scaleout.memory import allocator
from scaleout.views.base import kept
from scaleout.views.fsdp import moments, record
from scaleout.words.amounts import quantity, short, took

GIB = 2**30
# By width: all, a row of cells, the strip, and rows of keys at least
TALL = {svg.WIDE: (478, 17, 84, 2), svg.NARROW: (398, 13, 54, 3)}
LEFT, MARGIN = 66, 4
ABOVE = 1.26  # of the axis over the GPU's memory, so that a guess beyond it can be drawn
# Shorter than the names of the stack
NAMES = {"gathered units": "gathered", "logits, temporaries": "logits, scratch"}


def picture(setting, moment: int, values: dict, width: int, run: dict | None, same_setting: bool) -> str:
    """One step of one GPU at a moment of the unit's life. setting, values: of the view; run: a reader's;
    same_setting: whether it is of what is set here."""
    peak, card = values["peak_gib"], values["device_gib"]
    items = [("", f"at the peak, {quantity(peak)} GiB:")]
    items += [
        (fill, f"{words} {_amount(values[f'{name}_gib'])}")
        for name, fill, words in _kinds()
        if values[f"{name}_gib"] or name == "gathered units"
    ]
    items += [("key", words) for words in record.words(run, same_setting)] if run else []
    top = max(1.06 * peak, ABOVE * card if card < 2 * peak else 0.0)
    frame = _Frame(setting, moment, items, top, width)
    area = _area(setting, frame.plane, frame.unit)
    label = (
        f"The life of {values['followed']} on {values['drawn']} GPUs, drawn at {values['moment_said']}; when each of "
        f"{values['units']:,} units is whole; and the memory of one GPU through a step of "
        f"{took(values['step_seconds'])}, by kind, at most {quantity(peak)} GiB."
    )
    if run and same_setting:
        peak_seconds = max(setting.rows, key=lambda row: row[2].bytes)[0]
        area += frame.plane.own(peak_seconds, run["peak_bytes"] / frame.unit, "your run's peak")
    return frame.figure(area, card, values["usable_gib"], peak, label, values["moment_gib"])


def locked(setting, moment: int, width: int) -> str:
    """What runs when, and how much a GPU has; not what it holds."""
    items = [(fill, words) for _, fill, words in _kinds()]
    card, room = setting.memory_bytes / GIB, allocator.usable(setting.memory_bytes) / GIB
    frame = _Frame(setting, moment, [("", "held at the peak?"), *items], ABOVE * card, width)
    label = "The life of a unit, and when each is whole; what one GPU holds meanwhile is asked."
    return frame.figure("", card, room, 0.0, label, None)


@kept  # the same at each moment that is played
def _area(setting, plane: Plane, unit: float) -> str:
    return fsdp_hill.area(setting.rows, plane, unit)


def _kinds() -> list[tuple[str, str, str]]:
    """(kind, colour of its key, words), from the top of the stack down."""
    stack = fsdp_hill.STACK.items()
    return [(name, fill + "%" * (opacity < 1), NAMES.get(name, name)) for name, (fill, opacity, _) in stack][::-1]


class _Frame:
    """The ranks; rows of units and lanes; keys; and a plane of GiB over the seconds of a step."""

    def __init__(self, setting, moment: int, items: list[tuple[str, str]], top: float, width: int) -> None:
        tall, self.cell, high, rows = TALL[width]
        self.setting, self.moment, self.width, self.wide = setting, moment, width, width == svg.WIDE
        self.timeline, seconds = setting.line, setting.time.seconds
        self.name, self.unit = ("GiB", GIB) if top < 4096 else ("TiB", 1024 * GIB)
        inner_width, self.title = width - LEFT - 8, 35 + fsdp_life.height(self.cell) + 18
        self.strip = Strip(LEFT, self.title + 6, inner_width, high, seconds)
        self.lanes = Strip(LEFT, self.strip.y + high + 2, inner_width, 0, seconds)
        used = self.lanes.y + fsdp_units.height(self.timeline, self.wide)
        keys, room = labels.keys(MARGIN, used + 5, width - 2 * MARGIN, items, rows)
        self.keys, self.words_at = keys, used + 5 + room + 9
        above = self.words_at + 7
        self.plane = Plane(
            LEFT, above, inner_width, tall - above - 24, Axis(0, seconds), Axis(0, top * GIB / self.unit)
        )

    def y_at(self, gib: float) -> float:
        return self.plane.at_y(gib * GIB / self.unit)

    def figure(self, area: str, card: float, room: float, peak: float, label: str, gib_now: float | None) -> str:
        """The whole picture. card, room, peak, gib_now: GiB of the GPU, of what a step may take of it, of this step's
        fullest moment, and of the one that is shown."""
        plane, inside = self.plane, self.y_at(card) > self.plane.top + 1
        words = f"what one GPU holds, {self.name}" + ("" if inside else f"; this GPU: {quantity(card)} GiB")
        now_words = f"; now {_amount(gib_now)} GiB" if gib_now is not None and (inside or self.wide) else ""
        parts = [
            self._life(),
            self._units(),
            self.keys,
            svg.text(MARGIN, self.words_at, words + now_words, fill="muted", size=svg.SMALL),
            time_axis(LEFT, plane.bottom + 4, plane.width, self.strip.seconds, plane.top),
            area,
            self._y_axis(),
            self._limit(card, room, peak) if inside else "",
            self._cursor(),
            self._mark(),
        ]
        return svg.figure(self.width, TALL[self.width][0], "".join(parts), label)

    def _life(self) -> str:
        """The unit on a few ranks, with what happens and what each has sent."""
        setting, unit = self.setting, self.setting.unit
        drawn, right = unit.ranks, self.width - 4
        slots, left = fsdp_life.slots(unit, self.moment, right, 4)
        sent = svg.text(left - 6, 13, "a GPU has sent", anchor="end", size=svg.SMALLEST, fill="muted") * self.wide
        gpus_text = f"{drawn} of {setting.sharding.ranks:,} GPUs" if drawn < setting.sharding.ranks else f"{drawn} GPUs"
        title = labels.fitting(
            (
                f"The life of {setting.followed}, drawn with {gpus_text}",
                f"The life of {setting.followed}, on {gpus_text}",
                f"{setting.followed}, on {gpus_text}",
                f"A unit on {gpus_text}",
            ),
            (left if unit.messages else right) - 12 - (110 if self.wide and unit.messages else 0),
            svg.FONT,
            True,
        )
        words = f"{self.moment} of {moments.LAST}. {fsdp_life.caption(unit, self.moment)}"
        return "".join(
            [
                svg.text(MARGIN, 13, title, bold=True),
                slots,
                sent if unit.messages else "",
                svg.text(MARGIN, 30, words, size=svg.SMALL, mark="doing"),
                fsdp_life.names(LEFT - 6, 35, self.cell),
                fsdp_life.draw(unit, self.moment, LEFT, 35, self.width - LEFT - 4, self.cell),
            ]
        )

    def _units(self) -> str:
        """A row for each unit, and the lanes."""
        rows, count = self.setting.lives
        line, strip, alone = self.timeline, self.strip, self.setting.sharding.ranks == 1
        does = "computes" if alone else "is whole"
        title = f"When the one unit {does}" if count == 1 else f"When each of {count:,} units {does}"
        if len(rows) < count and self.wide:
            title += f" ({len(rows)} drawn)"
        waits_text, waits = fsdp_units.waits(
            line, strip.seconds, self.width - MARGIN - svg.measure(title, svg.SMALL, True) - 16
        )
        ring = fsdp_units.frame(strip, rows, self.setting.life) if count > 1 and not alone else ""
        return "".join(
            [
                svg.text(MARGIN, self.title, title, bold=True, size=svg.SMALL),
                svg.text(
                    self.width - 4,
                    self.title,
                    waits_text,
                    anchor="end",
                    size=svg.SMALL,
                    bold=waits,
                    fill="accent" if waits else "muted",
                ),
                self._ends(moments.named(rows[-1].name), count),
                fsdp_units.whole(strip, rows),
                ring,
                fsdp_units.lanes(line, self.lanes, self.wide),
            ]
        )

    def _ends(self, last: str, count: int) -> str:
        """Names of the first row and of the last."""
        strip = self.strip
        ends = [(strip.y + 8, "root"), (strip.y + strip.height, last)]
        return "".join(
            svg.text(
                LEFT - 5, y, labels.cut(words, LEFT - 8, svg.SMALLEST), anchor="end", size=svg.SMALLEST, fill="muted"
            )
            for y, words in (ends if count > 1 else [(strip.y + strip.height / 2 + 4, "model")])
        )

    def _cursor(self) -> str:
        x = self.strip.at(self.setting.seconds_at(self.moment))
        low = self.lanes.y + fsdp_units.height(self.timeline, self.wide)
        return svg.line(x, self.strip.y - 3, x, low, "ink", 1.5, mark="now") + svg.line(
            x, self.plane.top, x, self.plane.bottom, "ink", 1.5, mark="now held"
        )

    def _limit(self, card: float, room: float, peak: float) -> str:
        plane, card_y, reserve = self.plane, self.y_at(card), self.y_at(room)
        words = f"this GPU: {quantity(card)} GiB; it fits below the thin line, {quantity(room)}"
        words_below = reserve + 15  # where the hill stands above the lines, if there is room
        words_at = words_below if peak > card and words_below < plane.bottom - 4 else card_y - 5
        return "".join(
            [
                svg.line(LEFT, card_y, plane.right, card_y, "accent", 2, "5 4"),
                svg.line(LEFT, reserve, plane.right, reserve, "accent", 1, "2 3"),
                svg.text(plane.right - 4, words_at, words, anchor="end", fill="accent", size=svg.SMALL, halo=True),
            ]
        )

    def _y_axis(self) -> str:
        plane, parts = self.plane, []
        for value in svg.ticks(plane.y.hi, max(2, round(plane.height / 36))):
            y = plane.at_y(value)
            parts.append(svg.line(LEFT - 4, y, LEFT, y, "muted"))
            parts.append(svg.text(LEFT - 7, y + 4, short(value), anchor="end", fill="muted", size=svg.SMALL))
        return "".join(parts)

    def _mark(self) -> str:
        plane = self.plane
        return guess.mark([(0.0, plane.bottom), (plane.y.hi * self.unit / GIB, plane.top)], (LEFT, plane.right))


def _amount(gib: float) -> str:
    """For the keys: no more digits than can be seen."""
    if 0 < gib < 0.005:
        return "<0.01"
    return quantity(gib) if gib >= 10 or not gib else f"{gib:.2f}"
