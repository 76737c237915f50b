"""The picture of the view `bottlenecks`: a bar of seconds for each resource, their sum, and memory with its limit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from scaleout.draw import guess, hatch, svg
from scaleout.draw.labels import fitting
from scaleout.draw.parts import BYTES, sizes
from scaleout.views.bottlenecks.setting import ARITHMETIC, FIXED, INPUT, MEMORY, NETWORK, RESOURCES, WAITING, Setting
from scaleout.words.amounts import amount, took

GIGA = 10**9
FILLS = {ARITHMETIC: "compute", MEMORY: "c5", NETWORK: "c4", WAITING: "c8", INPUT: "c7", FIXED: "c2"}
# Which chapter is about a resource.
RUNGS = {ARITHMETIC: "08, 09", MEMORY: "13", NETWORK: "02, 10", WAITING: "04, 12", INPUT: "12", FIXED: "12"}
MOST_SHOWN = 1.5  # times the usable memory that the memory bar can show; what is beyond leaves the picture
GAINS = (1.0, 1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0)  # stops of the guess's mark


@dataclass(frozen=True)
class Frame(svg.Sized):
    """Where things lie, in CSS pixels. pitch: from one bar to the next."""

    setting: Setting
    width: int

    left = svg.either(138.0, 8.0)

    @property
    def right(self) -> float:
        return self.width - (62.0 if self.wide else 8.0)

    pitch = svg.either(32.0, 34.0)
    high = svg.either(20.0, 13.0)
    top = svg.either(24.0, 34.0)

    def y(self, row: int) -> float:
        return self.top + row * self.pitch

    @property
    def sum_y(self) -> float:
        return self.y(len(RESOURCES)) + 12

    @property
    def memory_y(self) -> float:
        return self.sum_y + (58 if self.wide else 60)

    @property
    def height(self) -> float:
        return self.memory_y + self.high + 36

    @cached_property
    def scale(self) -> float:
        """CSS pixels for a second: the run as it was before any lever, or as it is now, fills the width."""
        return (self.right - self.left) / max(self.setting.seconds, self.setting.before.seconds)


def picture(setting: Setting, width: int) -> str:
    return Frame(setting, width).figure(_label(setting), _bars, _sum, _faster, _memory, _mark)


def locked(setting: Setting, width: int) -> str:
    """The run as it is, without what a faster network makes of it."""
    return Frame(setting, width).figure(_label(setting), _bars, _sum, _memory, _mark)


def _row_name(frame: Frame, y: float, name: str, aside: str = "") -> str:
    if frame.wide:
        return svg.text(frame.left - 8, y + frame.high - 5, name, anchor="end") + (
            svg.text(frame.width - 4, y + frame.high - 5, aside, anchor="end", size=svg.SMALLEST, fill="muted")
            if aside
            else ""
        )
    words = f"{name} · {aside}" if aside else name
    return svg.text(frame.left, y - 5, words, size=svg.SMALL)


def _bars(frame: Frame) -> str:
    """A bar for each resource; behind it the outline of the run before any lever; the tallest is marked."""
    setting, parts = frame.setting, []
    if frame.wide:
        parts += [
            svg.text(frame.left, 12, "time of a step, by the resource that takes it", size=svg.SMALL, fill="muted"),
            svg.text(frame.width - 4, 12, "chapter", anchor="end", size=svg.SMALLEST, fill="muted"),
        ]
    else:
        parts.append(svg.text(frame.left, 12, "time of a step, by resource · chapter", size=svg.SMALL, fill="muted"))
    for row, name in enumerate(RESOURCES):
        y, seconds = frame.y(row), setting.seconds_by[name]
        long, before = seconds * frame.scale, setting.before.seconds_by[name] * frame.scale
        parts += [
            _row_name(frame, y, name, RUNGS[name]),
            svg.rect(
                frame.left, y, long, frame.high, FILLS[name], title=f"{name}: {took(seconds)}", mark=f"bar {name}"
            ),
        ]
        if abs(before - long) > 1:
            parts.append(svg.frame(frame.left, y, before, frame.high, dash="3 3"))
        tall = name == setting.tallest
        words = took(seconds) if seconds >= 0.0005 else "0"
        x, inside = frame.left + max(long, before if abs(before - long) > 1 else 0) + 6, False
        if x + svg.measure(words, svg.SMALL, tall) > frame.width - (48 if frame.wide else 2):
            x, inside = frame.left + long - 6, True
        parts.append(svg.text(x, y + frame.high - (5 if frame.wide else 2), words, anchor="end" if inside else "start",
                              bold=tall, size=svg.SMALL, halo=True, mark=f"seconds {name}"))  # fmt: skip
    return "".join(parts)


def _sum(frame: Frame) -> str:
    """The bars side by side: the step."""
    setting, y, x = frame.setting, frame.sum_y, frame.left
    parts = [_row_name(frame, y, "one step" if frame.wide else f"one step: {took(setting.seconds)}")]
    for name in RESOURCES:
        long = setting.seconds_by[name] * frame.scale
        parts.append(svg.rect(x, y, long, frame.high, FILLS[name], title=name, mark=f"part {name}"))
        x += long
    before = setting.before.seconds * frame.scale
    if abs(before - (x - frame.left)) > 1:
        parts.append(svg.frame(frame.left, y, before, frame.high, dash="3 3"))
    if frame.wide:
        parts.append(svg.text(x + 6, y + frame.high - 5, took(setting.seconds), bold=True, halo=True, mark="seconds"))
    return "".join(parts)


def _faster(frame: Frame) -> str:
    """Where the step would end with a faster network, if there is one to be had."""
    setting = frame.setting
    if not setting.can_be_faster:
        return ""
    gain, y = setting.gain_of(link="faster"), frame.sum_y
    x = frame.left + setting.seconds / gain * frame.scale
    ways = [f"with InfiniBand per GPU: {gain:.1f} times as fast", f"InfiniBand: {gain:.1f} times as fast"]
    words = fitting(ways, frame.width - x - 4, svg.SMALLEST)
    name = svg.text(x, y + frame.high + 17, words, size=svg.SMALLEST, fill="muted", halo=True)
    return svg.line(x, y - 3, x, y + frame.high + 5, "ink", 1.5, "3 2", mark="faster") + name


def _memory(frame: Frame) -> str:
    """Bytes of the fullest GPU by kind; capacity is a line that they pass or not."""
    setting, y, left, right = frame.setting, frame.memory_y, frame.left, frame.right
    scale, x = (right - left) / (MOST_SHOWN * setting.usable), left
    limit = left + setting.usable * scale
    parts = [_row_name(frame, y, "memory per GPU")]
    for kind, size in sizes(BYTES, setting.account.peak).items():
        end = min(right, x + size * scale)
        parts.append(svg.rect(x, y, max(0.0, end - x), frame.high, kind.colour, opacity=0.75,
                              title=f"{kind.name}: {amount(size, GIGA)}", mark=f"bytes {kind.name}"))  # fmt: skip
        if name := fitting(kind.names, end - x - 6, svg.SMALLEST):
            parts.append(
                svg.text((x + end) / 2, y + frame.high / 2 + 4, name, anchor="middle", size=svg.SMALLEST, halo=True)
            )
        x = max(x, end)
    if x > limit:
        parts.append(hatch.excess(limit, y, x - limit, frame.high))
    parts.append(svg.line(limit, y - 5, limit, y + frame.high + 5, "accent", 2, "4 2", mark="limit"))
    needed, usable = amount(setting.account.peak_bytes, GIGA), amount(setting.usable, GIGA)
    ways = [
        f"{needed} needed, {usable} usable: {'it fits' if setting.fits else 'it does not fit'}",
        f"{needed} of {usable}",
    ]
    parts.append(
        svg.text(
            left, y + frame.high + 18, fitting(ways, frame.width - left - 4), size=svg.SMALL, bold=not setting.fits
        )
    )
    return "".join(parts)


def _mark(frame: Frame) -> str:
    """The guess: where the step ends when the run is so many times as fast."""
    step_width = frame.setting.before.seconds * frame.scale
    stops = [(gain, frame.left + step_width / gain) for gain in GAINS]
    y = frame.sum_y
    return guess.mark(stops, (y - 8, y + frame.high + 8), way="x", hold=y + frame.high + 12)


def _label(setting: Setting) -> str:
    bars = ", ".join(f"{name} {took(setting.seconds_by[name])}" for name in RESOURCES)
    return (
        f"Bars of the step time by resource: {bars}. A step takes {took(setting.seconds)}. Memory per GPU: "
        f"{amount(setting.account.peak_bytes, GIGA)} of {amount(setting.usable, GIGA)} usable."
    )
