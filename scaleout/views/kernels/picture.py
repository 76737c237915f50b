"""The picture of the view `kernels`: the cycles of each unit for one tile, and the cycles of the tile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from scaleout.draw import guess, svg
from scaleout.draw.labels import fitting
from scaleout.timing.kernels import UNITS
from scaleout.views.kernels.setting import Setting

FILLS = dict(zip(UNITS, ("compute", "c6", "c1", "c5"), strict=True))
ASIDE = dict(zip(UNITS, ("matmuls", "softmax", "operands", "Q, K, V, O"), strict=True))
GUESSES = (20, 40, 60, 80, 100, 120, 140)  # stops of the guess's mark, in per cent of the time with 16 bits
MOST = 1.42  # of the longest bar: the width of the picture, so that these stops are in it

BEYOND = 1.25  # the same, of a measured tile


@dataclass(frozen=True)
class Frame(svg.Sized):
    """Where things lie, in CSS pixels. pitch: from one bar to the next."""

    setting: Setting
    width: int

    left = svg.either(132.0, 8.0)

    @property
    def right(self) -> float:
        return self.width - 8.0

    pitch = svg.either(36.0, 38.0)
    high = svg.either(22.0, 15.0)
    top = svg.either(28.0, 36.0)

    def y(self, row: int) -> float:
        return self.top + row * self.pitch

    @property
    def tile_y(self) -> float:
        return self.y(len(UNITS)) + 16

    @property
    def height(self) -> float:
        return self.tile_y + self.high + 62

    @cached_property
    def scale(self) -> float:
        """CSS pixels per cycle: the same in 16 bits and in FP8."""
        wide = self.setting.wide
        most = wide.longest if self.setting.kernel == "overlap" else max(wide.longest, wide.in_turn)
        setting = self.setting
        measured = setting.tile * setting.share / setting.published if setting.published else 0.0
        return (self.right - self.left) / max(MOST * most, BEYOND * measured)


def picture(setting: Setting, width: int) -> str:
    return Frame(setting, width).figure(_label(setting), _bars, _tile, _published, _mark)


def locked(setting: Setting, width: int) -> str:
    """The cycles in 16 bits; what FP8 makes of the tile is not in it."""
    return Frame(setting, width).figure(_label(setting), _bars, _before, _mark)


def _row_name(frame: Frame, y: float, name: str, aside: str = "") -> str:
    if not frame.wide:
        return svg.text(frame.left, y - 5, f"{name} · {aside}" if aside else name, size=svg.SMALL)
    parts = svg.text(frame.left - 8, y + (9 if aside else frame.high - 6), name, anchor="end")
    if aside:
        parts += svg.text(frame.left - 8, y + 22, aside, anchor="end", size=svg.SMALLEST, fill="muted")
    return parts


def _bars(frame: Frame) -> str:
    """A bar of cycles for each unit; in FP8 with its length in 16 bits as an outline."""
    setting = frame.setting
    head = "cycles of each unit for one tile: 128 queries × 128 keys" if frame.wide else "cycles per tile, 128 × 128"
    parts = [svg.text(frame.left, 13, head, size=svg.SMALL, fill="muted")]
    for row, unit in enumerate(UNITS):
        y, cycles, before = frame.y(row), setting.clocks.by_unit[unit], setting.wide.by_unit[unit]
        long, outline = cycles * frame.scale, before * frame.scale
        parts.append(_row_name(frame, y, unit, ASIDE[unit]))
        parts.append(svg.rect(frame.left, y, long, frame.high, FILLS[unit], title=f"{unit}: {cycles:,.0f} cycles",
                              mark=f"bar {unit}"))  # fmt: skip
        if outline - long > 1:
            parts.append(svg.frame(frame.left, y, outline, frame.high, dash="3 3"))
        x = frame.left + max(long, outline) + 6
        parts.append(svg.text(x, y + frame.high - (6 if frame.wide else 3), f"{cycles:,.0f}", size=svg.SMALL,
                              bold=cycles == setting.clocks.longest, halo=True, mark=f"cycles {unit}"))  # fmt: skip
    return "".join(parts)


def _tile(frame: Frame) -> str:
    """The tile as the kernel takes it: as long as the longest bar, or the two that take turns."""
    setting, y, x = frame.setting, frame.tile_y, frame.left
    parts = [_row_name(frame, y, "one tile", "" if frame.wide else "as the kernel runs it")]
    if setting.bound == "in turn":
        spans = [(unit, setting.clocks.by_unit[unit]) for unit in UNITS[:2]]
    else:
        spans = [(setting.bound, setting.tile)]
    for unit, cycles in spans:
        parts.append(svg.rect(x, y, cycles * frame.scale, frame.high, FILLS[unit], title=unit, mark=f"tile {unit}"))
        x += cycles * frame.scale
    words = f"{setting.tile:,.0f}"
    if (mark := _measured_x(frame)) and mark < x + svg.measure(words, bold=True) + 14:
        x = max(x, mark)
    parts.append(svg.text(x + 6, y + frame.high - (6 if frame.wide else 3), words, bold=True, halo=True, mark="tile"))
    ways = [
        f"tensor cores busy {setting.share:.0%} of the time: {setting.flop_per_s / 1e12:,.0f} TFLOP/s at most",
        f"tensor cores busy {setting.share:.0%}: {setting.flop_per_s / 1e12:,.0f} TFLOP/s at most",
        f"at most {setting.flop_per_s / 1e12:,.0f} TFLOP/s",
    ]
    if setting.fp8_percent is not None and setting.width == 1:
        ways = [f"{setting.fp8_percent:.0f}% of the time in 16 bits; {way}" for way in ways] + ways
    room = frame.width - frame.left - 4
    parts.append(svg.text(frame.left, y + frame.high + 17, fitting(ways, room, svg.SMALL), size=svg.SMALL))
    return "".join(parts)


def _before(frame: Frame) -> str:
    """The tile in 16 bits, as an outline: what the guess is a part of."""
    y, long = frame.tile_y, frame.setting.wide.longest * frame.scale
    words = svg.text(frame.left, y + frame.high + 35, "outline: the time in 16 bits", size=svg.SMALL, fill="muted")
    return _row_name(frame, y, "one tile in FP8") + svg.frame(frame.left, y, long, frame.high, dash="3 3") + words


def _measured_x(frame: Frame) -> float | None:
    """Where the tile of a measured kernel ends, if somebody published it."""
    setting = frame.setting
    if not setting.published:
        return None
    return frame.left + setting.tile * setting.share / setting.published * frame.scale


def _published(frame: Frame) -> str:
    """A mark where a measured kernel lies."""
    x, y = _measured_x(frame), frame.tile_y
    if x is None:
        return ""
    words = f"dotted: measured, {frame.setting.published:.0%} of the peak"
    return svg.line(x, y - 4, x, y + frame.high + 4, "ink", 2, "2 2", mark="measured") + svg.text(
        frame.left, y + frame.high + 35, words, size=svg.SMALL, fill="muted", mark="published"
    )


def _mark(frame: Frame) -> str:
    """The guess: where the tile ends with FP8."""
    tile = frame.setting.wide.longest
    stops = [(float(per_cent), frame.left + per_cent / 100 * tile * frame.scale) for per_cent in GUESSES]
    y = frame.tile_y
    return guess.mark(stops, (y - 8, y + frame.high + 8), way="x", hold=y + frame.high + 12)


def _label(setting: Setting) -> str:
    bars = ", ".join(f"{unit} {cycles:,.0f}" for unit, cycles in setting.clocks.by_unit.items())
    return f"Bars of the cycles that each unit of a multiprocessor needs for one tile of attention: {bars}."
