"""A GPU as a tank with a rim, drawn: its layers at one moment of a step, beside it the bytes of one parameter as a
ruler at the tank's own scale, and a film strip of every moment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from scaleout.draw import svg
from scaleout.draw.hatch import hatched
from scaleout.draw.labels import fitting
from scaleout.draw.tank import Frame, Layer, Tank
from scaleout.words.amounts import amount, quantity

THIN = 16  # a layer lower than this has its name on a flag
NOTE = 14  # height of a line of words on the reader's run
SHOWN = 0.005  # share of the memory used below which a layer is not named


@dataclass(frozen=True)
class Places:
    """Where things are, in CSS pixels: right end of the axis, (left, width) of ruler and tank, (left, pitch, width) of
    the strip's bars, top and bottom of the scale, rows that the names of moments are dealt out to, size of text."""

    width: int
    axis: int
    ruler: tuple[int, int]
    tank: tuple[int, int]
    strip: tuple[int, int, int]
    top: int
    bottom: int
    rows: int
    font: int


PLACES = {
    svg.WIDE: Places(svg.WIDE, 33, (38, 15), (65, 166), (262, 48, 38), 42, 398, 1, svg.SMALL),
    svg.NARROW: Places(svg.NARROW, 22, (25, 11), (44, 102), (160, 28, 23), 40, 280, 2, svg.SMALLEST),
}


class Drawing:
    """One tank at one width. Every part is a method that gives SVG."""

    def __init__(self, tank: Tank, width: int) -> None:
        self.tank, self.at = tank, PLACES[width]
        self.left, self.across = self.at.tank
        self.right = self.left + self.across
        self.end = self.at.strip[0] + self.at.strip[1] * (len(tank.frames) - 1) + self.at.strip[2]
        self.rim, self.room = (self.y(limit) for limit in tank.limits)

    def y(self, size: float) -> float:
        """Where so many bytes are on the scale."""
        return self.at.bottom - (self.at.bottom - self.at.top) * size / self.tank.scale.top

    def parts(self) -> str:
        """Everything, from back to front."""
        if self.tank.empty:
            return "".join([self.axis(), self.wall(), self.names(), self.words()])
        bars, labels = self.layers()
        return "".join(
            [
                self.axis(),
                self.strip(),
                bars,
                self.excess(),
                labels,
                self.ruler(),
                self.wall(),
                self.names(),
                self.words(),
                self.reader_run(),
            ]
        )

    @property
    def height(self) -> float:
        return self.at.bottom + 34 + 13 * self.at.rows + (4 + NOTE * len(self.notes) if self.notes else 0)

    @cached_property
    def notes(self) -> list[str]:
        """The words on the reader's own run, in lines that fit."""
        lines: list[str] = []
        for part in self.tank.own.words if self.tank.own else ():
            longer = f"{lines[-1]}, {part}" if lines else part
            if lines and svg.measure(longer, self.at.font, bold=len(lines) == 1) < self.at.width - 4:
                lines[-1] = longer
            else:
                lines.append(part)
        return lines

    # --- the tank -------------------------------------------------------------------------------------------------

    def axis(self) -> str:
        """The scale, in units."""
        scale, places = self.tank.scale, self.at
        marks = []
        for value in svg.ticks(scale.top / scale.size, 8):
            y = self.y(value * scale.size) + 4
            marks.append(svg.text(places.axis, y, f"{value:g}", anchor="end", fill="muted", size=svg.SMALLEST))
        marks.append(svg.text(places.axis, places.top - 11, scale.unit, anchor="end", fill="muted", size=svg.SMALLEST))
        return "".join(marks)

    def layers(self) -> tuple[str, str]:
        """The layers of the present moment, and their names: inside, or on flags where they are too thin."""
        sizes, bars, words, thin, base = self.tank.frames[self.tank.now].held, [], [], [], 0
        for layer in self.tank.layers:
            size = sizes[layer.key]
            low, high = self.y(base), self.y(base + size)
            title = f"{layer.words[0]}: {amount(size, self.tank.giga)}"
            bars.append(
                svg.rect(
                    self.left,
                    high,
                    self.across,
                    low - high,
                    layer.fill,
                    title=title,
                    opacity=layer.opacity,
                    mark=f"tank {layer.key}",
                )
            )
            inside = self._inside(layer, size) if low - high >= THIN else ""
            if inside:
                middle = (low + high) / 2 + 4.5
                words.append(
                    svg.text(
                        self.left + self.across / 2,
                        middle,
                        inside,
                        anchor="middle",
                        bold=True,
                        halo=True,
                        size=self._size,
                        mark=f"name {layer.key}",
                    )
                )
            elif size > SHOWN * self.tank.frames[self.tank.now].total:
                thin.append((layer, (low + high) / 2))
            base += size
        return "".join(bars), "".join([self._flags(thin[::-1], self.y(base)), *words])

    @property
    def _size(self) -> int:
        return self.at.font + 1 if self.at.width == svg.WIDE else self.at.font

    def _inside(self, layer: Layer, size: int) -> str:
        """The longest words for a layer that fit the tank, with its amount in the unit of the axis; "" where none."""
        number = quantity(size / self.tank.scale.size)
        return fitting([f"{words} {number}" for words in layer.words], self.across - 4, self._size, True)

    def _flags(self, thin: list[tuple[Layer, float]], top: float) -> str:
        """Names of thin layers, the topmost first, one above the other over the stack, each on a pole."""
        rows = max(1, int((min(top, self.at.bottom - 4) - self.at.top + 14) / 14))
        sizes = self.tank.frames[self.tank.now].held
        shown, hidden = (thin, []) if len(thin) <= rows else (thin[: rows - 1], thin[rows - 1 :])
        flags = [(layer.key, layer.words, sizes[layer.key], y, layer.fill) for layer, y in shown]
        if hidden:
            size = sum(sizes[layer.key] for layer, _ in hidden)
            flags.append(("rest", (f"{len(hidden)} more",), size, hidden[0][1], "muted"))
        marks, room = [], self.at.strip[0] - 5
        for i, (key, words, size, y, fill) in enumerate(flags):
            pole, high = self.left + 4 + 4 * (len(flags) - 1 - i), min(top, self.at.bottom - 4) - 6 - 14 * i
            ways = [f"{text} {amount(size, self.tank.giga)}" for text in words]
            fits = fitting(ways, room - pole - 4, self.at.font) or ways[-1]
            marks += [
                svg.line(pole, y, pole, high - 9, "ink", 1, mark=f"pole {key}"),
                svg.rect(pole - 2, y - 2, 4, 4, fill, mark=f"foot {key}"),
                svg.text(pole + 5, high, fits, size=self.at.font, halo=True, mark=f"name {key}"),
            ]
        return "".join(marks)

    def excess(self) -> str:
        """Hatched: what is over the rim."""
        high = self.y(self.tank.frames[self.tank.now].total)
        tall = max(0.0, self.rim - high)
        return hatched(self.left - 8, self.rim - tall, self.across + 16, tall, "accent", "over")

    def wall(self) -> str:
        """The tank, its rim, and the line of both through the strip."""
        left, right, low, lip = self.left - 1.5, self.right + 1.5, self.at.bottom + 1.5, 6
        corners = [
            (left - lip, self.rim),
            (left, self.rim),
            (left, low),
            (right, low),
            (right, self.rim),
            (right + lip, self.rim),
        ]
        points = " ".join(f"{svg.num(x)},{svg.num(y)}" for x, y in corners)
        ink = svg.colour("ink")
        return (
            f'<polyline points="{points}" fill="none" stroke="{ink}" stroke-width="3" stroke-linejoin="round" '
            'data-mark="wall"/>'
            + svg.line(self.left, self.room, self.end + 2, self.room, "ink", 1, "2 3", mark="room")
            + svg.line(right + lip, self.rim, self.end + 2, self.rim, "ink", 1.6, mark="rim")
        )

    # --- the ruler ------------------------------------------------------------------------------------------------

    def ruler(self) -> str:
        """Bytes of one parameter, a block each, pale where they are not there at this moment."""
        ruler, (left, ruler_width) = self.tank.ruler, self.at.ruler
        middle, base, marks, numbers = left + ruler_width / 2, 0.0, [], []
        byte = self.y(0) - self.y(ruler.each)
        dash = f"{svg.num(byte - 1.5)} 1.5" if byte >= 4 else ""
        least = min(size for size in ruler.whole.values() if size)
        for layer in self.tank.layers:
            total = ruler.whole.get(layer.key, 0)
            if total * byte < 0.3:
                continue
            low = self.y(base * ruler.each) - (0.75 if dash else 0)
            for name, size, strength in (("step", total, 0.16), ("lit", min(total, ruler.now[layer.key]), 1.0)):
                bar = svg.line(
                    middle,
                    low,
                    middle,
                    low - size * byte + (1.5 if dash else 0),
                    layer.fill,
                    ruler_width,
                    dash,
                    mark=f"{name} {layer.key}",
                )
                marks.append(bar.replace("/>", f' stroke-opacity="{svg.num(strength * layer.opacity)}"/>'))
            base += total
            number_y = self.y((base - 0.5) * ruler.each) + 4
            # a number in the topmost block of each layer, but under the reader's ring
            if byte >= 14 and least >= 0.9 and not self._ringed(number_y):
                numbers.append(
                    svg.text(
                        middle,
                        number_y,
                        f"{base:.2g}",
                        anchor="middle",
                        size=svg.SMALLEST,
                        halo=True,
                        mark=f"bytes {layer.key}",
                    )
                )
        if not numbers and not self.tank.own:
            top = self.y(base * ruler.each) - 4
            numbers = [svg.text(left, top, f"{base:.2g}", size=svg.SMALLEST, halo=True, mark="bytes")]
        marks += numbers
        marks += [
            svg.text(0, self.at.bottom + 16 + 13 * i, line, fill="muted", size=svg.SMALLEST)
            for i, line in enumerate(("bytes of one", "parameter") if self.at.width == svg.WIDE else ("bytes", "each"))
        ]
        return "".join(marks)

    def _ringed(self, number_y: float) -> bool:
        """Whether the ring of a reader's run lies over a number with this baseline."""
        own = self.tank.own
        return bool(own and own.drawn and abs(self.y(own.each * self.tank.ruler.each) - number_y + 4) < 13)

    def reader_run(self) -> str:
        """A ring on the ruler at the memory that the reader's run used, and the words on it."""
        if self.tank.own is None:
            return ""
        left, ruler_width = self.at.ruler
        y, marks = self.y(self.tank.own.each * self.tank.ruler.each), []
        if self.tank.own.drawn:
            marks += [
                svg.line(left - 4, y, self.left - 3, y, "key", 2, "5 4", mark="own line"),
                svg.circle(left + ruler_width / 2, y, 6, stroke="key", thick=2.5, mark="own"),
            ]
        first = self.height - NOTE * len(self.notes) + 8
        marks += [
            svg.text(0, first + NOTE * i, note, fill="key", bold=i == 0, size=self.at.font)
            for i, note in enumerate(self.notes)
        ]
        return "".join(marks)

    # --- the strip ------------------------------------------------------------------------------------------------

    def strip(self) -> str:
        """Every moment as a stacked bar: the present one strong, those to come faint."""
        left, pitch, width = self.at.strip
        marks = []
        for i, frame in enumerate(self.tank.frames):
            base, strength = 0, 1.0 if i == self.tank.now else 0.6 if i < self.tank.now else 0.3
            for layer in self.tank.layers:
                size = frame.held[layer.key]
                high = self.y(base + size)
                marks.append(
                    svg.rect(
                        left + pitch * i,
                        high,
                        width,
                        self.y(base) - high,
                        layer.fill,
                        opacity=strength * layer.opacity,
                        mark=f"{frame.short} {layer.key}",
                    )
                )
                base += size
        x = left + pitch * self.tank.now - 3
        tall = self.at.bottom - self.at.top + 11
        marks.append(svg.frame(x, self.at.top - 8, width + 6, tall, "ink", 1.6, rounded=3, mark="now"))
        return "".join(marks)

    def names(self) -> str:
        """Below the strip: each moment, its total, and which is the peak."""
        left, pitch, width = self.at.strip
        marks = [svg.line(left - 4, self.at.bottom + 0.5, self.end + 2, self.at.bottom + 0.5, "muted")]
        low = self.at.bottom + 3 + 13 * self.at.rows
        for i, frame in enumerate(self.tank.frames):
            x, current = left + pitch * i + width / 2, i == self.tank.now and not self.tank.empty
            name = self.at.bottom + 15 + 13 * (i % self.at.rows)
            inside = min(x, self.at.width - svg.measure(frame.short, self.at.font, current) * 0.56)
            marks.append(
                svg.text(
                    inside,
                    name,
                    frame.short,
                    anchor="middle",
                    fill="ink" if current else "muted",
                    bold=current,
                    size=self.at.font,
                )
            )
            if self.tank.empty:
                continue
            exceeds = frame.total > self.tank.limits[0]
            marks.append(
                svg.text(
                    x,
                    low + 14,
                    self._total(frame),
                    anchor="middle",
                    fill="accent" if exceeds else "ink",
                    bold=i == self.tank.peak,
                    size=self.at.font,
                )
            )
            if i == self.tank.peak:
                marks.append(svg.text(x, low + 28, "peak", anchor="middle", bold=True, size=svg.SMALLEST))
        return "".join(marks)

    def _total(self, frame: Frame) -> str:
        value = frame.total / self.tank.scale.size
        return "≈0" if value < 0.01 else f"{value:.2f}" if value < 1 else quantity(value)

    # --- words ----------------------------------------------------------------------------------------------------

    def words(self) -> str:
        """The title, what the limits are, and the device."""
        places, tank = self.at, self.tank
        marks = [svg.text(0, 13, tank.title, bold=True)]
        if places.width == svg.WIDE:
            strip = f"the moments of a step, {tank.scale.unit}"
            marks.append(svg.text(places.strip[0], 13, strip, fill="muted", size=places.font))
        limit = fitting(tank.limit, self.end - places.strip[0], places.font, True) or tank.limit[-1]
        marks.append(
            svg.text(places.strip[0], self.rim - 5, limit, bold=True, size=places.font, halo=True, mark="limit")
        )
        middle = self.left + self.across / 2
        marks.append(svg.text(middle, places.bottom + 16, tank.device, anchor="middle", fill="muted", size=places.font))
        if tank.empty:
            marks.append(svg.text(middle, self.y(0) - 16, "?", anchor="middle", fill="muted", bold=True, size=16))
        return "".join(marks)
