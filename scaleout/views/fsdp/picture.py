"""The picture of the view `fsdp`: the life of one unit on a few ranks; and under one cursor and on one axis of time,
when each unit is unsharded, what runs, and the memory of a GPU, whose layers are named where they lie."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.draw import fsdp_hill, fsdp_life, fsdp_names, fsdp_units, guess, labels, svg
from scaleout.draw.fsdp_names import Label
from scaleout.draw.fsdp_units import Strip
from scaleout.draw.plot import Axis, Plane, time_axis
from scaleout.views.base import kept
from scaleout.views.fsdp import moments, record
from scaleout.words.amounts import quantity, short, took

GIB = 2**30
MARGIN = 4
ABOVE = 1.26  # of the axis over the GPU's memory, so that a guess beyond it can be drawn
RANKS = 40  # CSS pixels down to the names of the ranks
LEAST = 0.002  # share of the peak below which a layer is not named
FEW_UNITS, CORNER = (
    8,
    0.8,
)  # units that leave the corners of their strip free, and as much of forward's and of backward's time
GAP = 9  # from the axis of time to the bar beside it, and from there to its words
# Shorter than the names of the stack; and where there is less room
NAMES = {
    "unsharded weights": "unsharded",
    "unsharded gradients": "unsharded grads",
    "logits, temporaries": "logits, scratch",
}
SHORTER = {svg.WIDE: {}, svg.NARROW: {"unsharded gradients": "full grads", "logits, temporaries": "logits etc."}}


@dataclass(frozen=True)
class Places:
    """In CSS pixels: the whole picture's height, a row of cells, the strip of units; from where the axis of time goes,
    and what is left on its right for words; the bar of the fullest moment; from picture to picture; size of words."""

    tall: int
    cell: int
    strip: int
    left: int
    column: int
    bar: int
    gap: int
    font: int


PLACES = {
    svg.WIDE: Places(490, 17, 84, 66, 146, 14, 30, svg.SMALL),
    svg.NARROW: Places(400, 13, 54, 62, 120, 9, 24, svg.SMALLEST),
}


def across(width: int) -> float:
    """CSS pixels of a whole step."""
    return width - PLACES[width].left - PLACES[width].column


def picture(setting, moment: int, values: dict, width: int, run: dict | None, same_setting: bool) -> str:
    """One step of one GPU at a moment of the unit's life. setting, values: of the view; run: a reader's;
    same_setting: whether it is of what is set here."""
    peak, card = values["peak_gib"], values["device_gib"]
    top = max(1.06 * peak, ABOVE * card if card < 2 * peak else 0.0)
    run_peak = run["peak_bytes"] / GIB if run and same_setting else 0.0  # GiB, on the axis if it is this setting's
    ringed, notes = 0 < run_peak < 2 * top, []
    if ringed:
        top = max(top, 1.06 * run_peak)
    if run:
        said, ran = record.words(run, same_setting)
        notes = [("key@" if ringed else "", said), ("", "off this scale; " * (run_peak > top) + ran)]
    frame = _Frame(setting, moment, width, top, notes)
    label = (
        f"The life of {values['followed']} on {values['drawn']} GPUs, drawn at {values['moment_said']}; when each of "
        f"{values['units']:,} units is unsharded; and the memory of one GPU through a step of "
        f"{took(values['step_seconds'])}, by kind, at most {quantity(peak)} GiB."
    )
    hill = _hill(setting, frame.plane, frame.unit, width)
    if ringed:
        hill += frame.plane.own(_fullest_seconds(setting), run_peak * GIB / frame.unit, "your run's peak")
    return frame.figure(hill, card, label, values["moment_gib"])


def locked(setting, moment: int, width: int) -> str:
    """What runs when, and how much a GPU has; not what it holds."""
    card = setting.card.memory_bytes / GIB
    frame = _Frame(setting, moment, width, ABOVE * card, [])
    label = "The life of a unit, and when each unit is unsharded; the memory of one GPU is the question."
    return frame.figure(_question(setting, frame.plane, frame.unit, width), card, label, None)


# --- what a GPU holds -------------------------------------------------------------------------------------------------


@kept  # the same at each moment that is played
def _hill(setting, plane: Plane, unit: float, width: int) -> str:
    """The hill with the names of its layers, and its fullest moment beside it."""
    places, peak = PLACES[width], setting.account.peak
    steps = fsdp_hill.columns(setting.rows, plane)
    sizes = {name: sum(peak.get(kind, 0) for kind in kinds) for name, (*_, kinds) in fsdp_hill.STACK.items()}
    words = _names(width) | {"logits, temporaries": _scratch(peak, width)}
    inside = fsdp_names.within(steps, plane, unit, words, places.font)
    others = {name: words[name] for name in words if not sizes[name] and name not in inside}
    left = plane.right + GAP
    bar, middles = fsdp_names.bar({name: size / unit for name, size in sizes.items()}, left, places.bar, plane)
    peak_bytes = sum(sizes.values())
    top = plane.at_y(peak_bytes / unit)
    rows_left = int(plane.height / (places.font + 1)) - 2  # beside those of the peak and of the GPU
    seen = [name for name in middles if sizes[name] > LEAST * peak_bytes]
    largest = sorted(seen, key=lambda name: -sizes[name])[:rows_left]
    rows = [Label(top, f"peak {_amount(peak_bytes / unit)} {_unit(unit)}", line="ink", bold=True)]
    rows += [
        Label(middles[name], _words(words[name], sizes[name] / unit, places), line=fill)
        for name, (fill, *_) in reversed(fsdp_hill.STACK.items())
        if name in largest
    ]
    return "".join(
        [
            fsdp_hill.area(steps, plane, unit),
            svg.line(plane.at_x(_fullest_seconds(setting)), top, left, top, "ink", 1, "2 3"),
            bar,
            fsdp_names.poles(steps, plane, unit, others, places.font),
            *inside.values(),
            _labels_beside_bar(setting, plane, unit, places, rows),
        ]
    )


def _question(setting, plane: Plane, unit: float, width: int) -> str:
    """In place of the fullest moment: what it may consist of."""
    places, left = PLACES[width], plane.right + GAP
    rows = [Label(plane.top, "at the peak?", bold=True)]
    rows += [Label(plane.bottom - k, words, "muted") for k, words in enumerate(_names(width).values())][::-1]
    empty = svg.frame(left, plane.top, places.bar, plane.height, dash="3 3")
    return empty + _labels_beside_bar(setting, plane, unit, places, rows)


def _labels_beside_bar(setting, plane: Plane, unit: float, places: Places, rows: list[Label]) -> str:
    """Words on the right of the bar, those of the GPU's memory among them."""
    limits = {"this GPU": setting.card.memory_bytes, "usable": setting.usable}
    for words, limit_bytes in limits.items():
        y = plane.at_y(limit_bytes / unit)
        if plane.top + 1 < y:
            rows.append(Label(y, f"{words} {_amount(limit_bytes / unit)}", "accent", "accent"))
    right = plane.right + GAP + places.bar
    return fsdp_names.beside(sorted(rows, key=lambda row: row.y), right + 1, right + GAP, plane, places.font)


def _fullest_seconds(setting) -> float:
    return max(setting.rows, key=lambda row: row[2].bytes)[0]


def _names(width: int) -> dict[str, str]:
    """What each layer is called, from the bottom up."""
    return {name: name for name in fsdp_hill.STACK} | NAMES | SHORTER[width]


def _words(name: str, size: float, places: Places) -> str:
    """A layer's name and its amount, if there is room for that."""
    room = places.column - 2 * GAP - places.bar
    return labels.fitting((f"{name} {_amount(size)}", name), room, places.font)


def _scratch(peak: dict, width: int) -> str:
    """Of logits and temporaries, what there is at the peak."""
    if not peak.get("logits"):
        return "scratch"
    return _names(width)["logits, temporaries"] if peak.get("temporaries") else "logits"


def _amount(size: float) -> str:
    """No more digits than can be seen."""
    if 0 < size < 0.005:
        return "<0.01"
    return quantity(size) if size >= 10 or not size else f"{size:.2f}"


def _unit(unit_bytes: float) -> str:
    return "GiB" if unit_bytes == GIB else "TiB"


class _Frame:
    """The ranks; rows of units and lanes; and a plane of GiB over the step time. notes: on a reader's run, as
    `labels.keys` takes them."""

    def __init__(self, setting, moment: int, width: int, top: float, notes: list[tuple[str, str]]) -> None:
        places = self.places = PLACES[width]
        self.setting, self.moment, self.width, self.wide = setting, moment, width, width == svg.WIDE
        self.timeline, seconds = setting.line, setting.time.seconds
        self.unit = GIB if top < 4096 else 1024 * GIB
        step = across(width)
        self.units_at = RANKS + fsdp_life.height(places.cell) + places.gap - 4
        self.strip = Strip(places.left, self.units_at + 8, step, places.strip, seconds)
        self.lanes = Strip(places.left, self.strip.y + places.strip + 2, step, 0, seconds)
        self.lanes_end = self.lanes.y + fsdp_units.height(self.timeline, self.wide)
        self.held_at = self.lanes_end + places.gap - 8
        self.notes, room = labels.keys(MARGIN, self.held_at + 6, width - 2 * MARGIN, notes) if notes else ("", 0)
        above = self.held_at + 9 + room
        self.plane = Plane(
            places.left, above, step, places.tall - above - 24, Axis(0, seconds), Axis(0, top * GIB / self.unit)
        )

    def figure(self, held: str, card: float, label: str, gib_now: float | None) -> str:
        """The whole picture. held: the marks on the plane; card, gib_now: GiB of the GPU, and in use at the moment
        that is shown."""
        plane = self.plane
        parts = [
            self._life(),
            self._units(),
            self._held_words(card, gib_now),
            self.notes,
            time_axis(plane.left, plane.bottom + 4, plane.width, self.strip.seconds, plane.top),
            self._y_axis(),
            held,
            self._limits(card),
            self._cursor(),
            guess.mark([(0.0, plane.bottom), (plane.y.hi * self.unit / GIB, plane.top)], (plane.left, plane.right)),
        ]
        return svg.figure(self.width, self.places.tall, "".join(parts), label)

    def _life(self) -> str:
        """The unit on a few ranks, with what happens and what each has sent."""
        setting, unit, left = self.setting, self.setting.unit, self.places.left
        drawn, right = unit.ranks, self.width - MARGIN
        slots, slots_left = fsdp_life.slots(unit, self.moment, right, 4)
        sent = svg.text(slots_left - 6, 13, "sent by a GPU", anchor="end", size=svg.SMALLEST, fill="muted") * self.wide
        gpus_text = (
            f"{drawn} of {setting.sharding.ranks:,} GPUs"
            if drawn < setting.sharding.ranks
            else f"{drawn} GPU{'s' * (drawn > 1)}"
        )
        title = labels.fitting(
            (
                f"The life of {setting.followed}, drawn with {gpus_text}",
                f"The life of {setting.followed}, on {gpus_text}",
                f"{setting.followed}, on {gpus_text}",
                f"A unit on {gpus_text}",
            ),
            (slots_left if unit.messages else right) - 12 - (110 if self.wide and unit.messages else 0),
            svg.FONT,
            True,
        )
        words = f"{self.moment} of {moments.LAST}. {fsdp_life.caption(unit, self.moment)}"
        return "".join(
            [
                svg.text(MARGIN, 13, title, bold=True),
                slots,
                sent if unit.messages else "",
                svg.text(MARGIN, 31, words, size=svg.SMALL, mark="doing"),
                fsdp_life.names(left - 4, RANKS, self.places.cell),
                fsdp_life.draw(unit, self.moment, left, RANKS, right - left, self.places.cell),
            ]
        )

    def _units(self) -> str:
        """A row for each unit, and the lanes."""
        rows, count = self.setting.lives
        line, strip, alone = self.timeline, self.strip, self.setting.sharding.ranks == 1
        does = "computes" if alone else "is unsharded"
        title = f"When the one unit {does}" if count == 1 else f"When each of {count:,} units {does}"
        if len(rows) < count and self.wide:
            title += f" ({len(rows)} drawn)"
        ring = fsdp_units.frame(strip, rows, self.setting.life) if count > 1 and not alone else ""
        return "".join(
            [
                svg.text(MARGIN, self.units_at, title, bold=True),
                fsdp_units.whole(strip, rows),
                ring,
                self._ends(moments.named(rows[-1].name), count),
                fsdp_units.lanes(line, self.lanes, self.wide),
                self._waits(),
            ]
        )

    def _waits(self) -> str:
        """On the right of what is computed: what is exposed."""
        exposed_words = fsdp_units.waits(self.timeline, self.strip.seconds)
        x, last, pitch = self.plane.right + GAP, self.lanes.y + 10, self.places.font + 2
        look = ("accent", True) if len(exposed_words) > 1 else ("muted", False)
        return "".join(
            svg.text(x, last - pitch * k, words, size=self.places.font, fill=look[0], bold=look[1])
            for k, words in enumerate(reversed(exposed_words))
        )

    def _ends(self, last: str, count: int) -> str:
        """Names of the first row, of the last, and of the unit that is followed; of forward and of backward."""
        strip, right, row = self.strip, self.places.left - 5, self.setting.lives[0].index(self.setting.life)
        ends = [(strip.y + strip.height / 2 + 4, "model", "muted")]
        if count > 1:
            ends = [(strip.y + 8, "root", "muted"), (strip.y + strip.height, last, "muted")]
            y = strip.y + (row + 0.5) * strip.height / len(self.setting.lives[0]) + 4
            if ends[0][0] + 12 < y < ends[1][0] - 12:
                ends.append((y, self.setting.followed, "ink"))
        marks = [
            svg.text(right, y, labels.cut(words, right - 3, svg.SMALLEST), anchor="end", size=svg.SMALLEST, fill=fill)
            for y, words, fill in ends
        ]
        turn, backward_end = self.setting.lives[0][-1].forward[1], self.timeline.passes[-1][1]
        for words, start, end, anchor in (("forward", 0.0, turn, "start"), ("backward", turn, backward_end, "end")):
            x = strip.at(start) + 3 if anchor == "start" else strip.at(end) - 3
            if count >= FEW_UNITS and svg.measure(words, svg.SMALLEST) < CORNER * (strip.at(end) - strip.at(start)):
                y = strip.y + strip.height - 3
                marks.append(svg.text(x, y, words, anchor=anchor, fill="muted", size=svg.SMALLEST, halo=True))
        return "".join(marks)

    def _cursor(self) -> str:
        x, plane = self.strip.at(self.setting.seconds_at(self.moment)), self.plane
        return svg.line(x, self.strip.y - 3, x, self.lanes_end, "ink", 1.5, mark="now") + svg.line(
            x, plane.top, x, plane.bottom, "ink", 1.5, mark="now held"
        )

    def _held_words(self, card: float, gib_now: float | None) -> str:
        """The title of the chart of memory; now, and a GPU whose memory lies above the axis."""
        title = f"Memory of one GPU, {_unit(self.unit)}"
        now_words = "" if gib_now is None else f"now {_amount(gib_now * GIB / self.unit)}"
        beyond = "" if self._inside(card) else f"this GPU has {quantity(card)}"
        x = MARGIN + svg.measure(title, svg.FONT, True) + 6
        words = "; ".join(part for part in (now_words, beyond) if part)
        return svg.text(MARGIN, self.held_at, title, bold=True) + svg.text(x, self.held_at, words, size=svg.SMALL)

    def _inside(self, gib: float) -> bool:
        return self._y_at(gib) > self.plane.top + 1

    def _y_at(self, gib: float) -> float:
        return self.plane.at_y(gib * GIB / self.unit)

    def _limits(self, card: float) -> str:
        """What the GPU reports, and what of it is usable, through the bar too."""
        right = self.plane.right + GAP + self.places.bar
        looks = ((card, 2, "5 4"), (self.setting.usable / GIB, 1, "2 3"))
        return "".join(
            svg.line(self.plane.left, self._y_at(gib), right, self._y_at(gib), "accent", width, dash)
            for gib, width, dash in looks
            if self._inside(gib)
        )

    def _y_axis(self) -> str:
        plane, parts = self.plane, []
        for value in svg.ticks(plane.y.hi, max(2, round(plane.height / 36))):
            y = plane.at_y(value)
            parts.append(svg.line(plane.left - 4, y, plane.left, y, "muted"))
            words = short(value)
            parts.append(svg.text(plane.left - 7, y + 4, words, anchor="end", fill="muted", size=svg.SMALL))
        return "".join(parts)
