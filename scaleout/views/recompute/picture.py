"""The picture of the view `recompute`: the tiles of a block, the curve of what dropping them costs, and what `beneath`
draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil

from scaleout.draw import guess, svg, tiles
from scaleout.draw.amounts import unit
from scaleout.draw.labels import fitting, short
from scaleout.draw.tiles import Tile
from scaleout.memory.recompute import INPUT
from scaleout.views.recompute import beneath
from scaleout.views.recompute.setting import STEP, Setting

MICRO = 1e12  # seconds a byte as microseconds a MB
BREAK, BELOW = 0.4, 0.74  # shares up to which the axis has BELOW of its height; the rest is for guesses
FINGER = 27  # CSS pixels of a tile that can be pressed
GUESS = (0, 100)  # per cent that the mark of a guess can say
STOPS = 40  # points of a curve that bends between tiles
SHORT = {"attention": "attn.", "dropped scores": "dropped"}  # names where there is little room
GONE = {"rebuild": ("made again", "again"), "offload": ("moved out", "out")}


@dataclass(frozen=True)
class Places:
    """In CSS pixels: of the words above, the left end, (top, height) of what is drawn, and the height of all."""

    words: float
    left: float
    tiles: tuple[float, float]
    curve: tuple[float, float]
    memory: tuple[float, float]
    seconds: tuple[float, float]
    all: float


PLACES = {
    svg.WIDE: Places(13, 44, (38, 158), (236, 120), (408, 16), (458, 12), 478),
    svg.NARROW: Places(12, 34, (34, 114), (188, 92), (325, 14), (369, 10), 387),
}


@dataclass(frozen=True)
class Axes:
    """Where bytes of a block, its prices and shares of a step lie."""

    setting: Setting
    width: int

    @property
    def at(self) -> Places:
        return PLACES[self.width]

    @property
    def right(self) -> float:
        return self.width - (8 if self.width == svg.WIDE else 5)

    @property
    def bytes(self) -> int:
        return self.setting.job.block + self.setting.job.input

    def x(self, size: float) -> float:
        return self.at.left + (self.right - self.at.left) * size / self.bytes

    @cached_property
    def dearest(self) -> float:
        """Microseconds a MB at the upper end of the tiles' axis."""
        return 1.08 * MICRO * max(item.price for item in self.setting.tiles)

    def high(self, price: float) -> float:
        return self.at.tiles[1] * price * MICRO / self.dearest

    @property
    def base(self) -> float:
        return sum(self.at.tiles)

    @property
    def low(self) -> float:
        return sum(self.at.curve)

    @cached_property
    def scale(self) -> list[tuple[float, float]]:
        """Pairs of share and height above the curve's base line, between which both rise evenly."""
        high = self.at.curve[1]
        top = max(self.setting.other(dropped=100, way=way).share for way in ("rebuild", self.setting.way))
        if top <= BREAK:
            return [(0.0, 0.0), (BREAK, BELOW * high), (1.0, high)]
        step = svg.ticks(top)[1]
        return [(0.0, 0.0), (step * ceil(top / step), high)]

    def y(self, share: float) -> float:
        """Of a share of the step, at most the curve's upper edge."""
        for (low, from_), (high, to) in pairwise(self.scale):
            if share <= high:
                return self.low - from_ - (to - from_) * (share - low) / (high - low)
        return self.low - self.at.curve[1]


def picture(setting: Setting, width: int) -> str:
    """All of it."""
    axes = Axes(setting, width)
    at, job = axes.at, setting.job
    body = [
        _above(axes), _prices(axes), _tiles(axes, True), _fits(axes), _shares(axes), _curves(axes), _mark(axes),
        beneath.memory(axes.at.left, at.memory, axes.right, width, setting),
        beneath.seconds(axes.at.left, at.seconds, axes.right, width, setting),
    ]  # fmt: skip
    label = (f"What one of {job.blocks} blocks keeps for its backward: each tile as wide as its bytes and as high as "
             "the time to make one of them again; beneath, how much longer the step is for the bytes that are "
             "dropped, what a GPU holds, and the seconds of a step.")  # fmt: skip
    return svg.figure(width, at.all, "".join(body), label)


def asked(setting: Setting, width: int) -> str:
    """The tiles, all kept, and an axis without the curve."""
    axes = Axes(setting, width)
    body = [
        _above(axes), _prices(axes), _tiles(axes, False), _shares(axes), _mark(axes),
        beneath.memory(axes.at.left, axes.at.memory, axes.right, width, setting),
    ]  # fmt: skip
    label = ("What one block keeps for its backward: each tile as wide as its bytes and as high as the time to make "
             "one of them again; beneath, an axis for how much longer the step is.")  # fmt: skip
    return svg.figure(width, axes.at.all, "".join(body), label)


# --- tiles ----------------------------------------------------------------------------------------------------------


def _above(axes: Axes) -> str:
    ways = ["what a block keeps, by what making a MB again takes, in microseconds: areas are time",
            "µs to make one MB again; a tile's area is its time"]  # fmt: skip
    if axes.setting.way == "offload":
        ways = ["what a block keeps, by what making a MB again would take, in microseconds",
                "µs that making a MB again would take"]  # fmt: skip
    return svg.text(4, axes.at.words, fitting(ways, axes.width - 8), fill="muted", size=svg.SMALL)


def _prices(axes: Axes) -> str:
    """Lines of so many microseconds a MB."""
    out = []
    for value in svg.ticks(axes.dearest, 5):
        y = axes.base - axes.at.tiles[1] * value / axes.dearest
        out.append(svg.line(axes.at.left, y, axes.right, y))
        out.append(svg.text(axes.at.left - 5, y + 4, short(value), anchor="end", fill="muted", size=svg.SMALL))
    return "".join(out)


def laid(axes: Axes) -> list[Tile]:
    """The tiles in the order in which they go, side by side."""
    setting, out, at = axes.setting, [], 0
    for item in setting.tiles:
        size, name = unit(item.bytes, 10**9)
        title = f"{item.name}: {svg.quantity(item.bytes / size)} {name}, {svg.quantity(item.price * MICRO, 2)} µs a MB"
        x = axes.x(at)
        at += item.bytes
        out.append(Tile(item.name, x, axes.x(at) - x, max(2.0, axes.high(item.price)),
                        setting.counts[item.name] / item.count, title))  # fmt: skip
    return out


def _tiles(axes: Axes, alive: bool) -> str:
    """All tiles, which are pressed to move the cut; the block's input stays, for nothing makes it again."""
    setting, base, top = axes.setting, axes.base, axes.at.tiles[0]
    out, names, at = [], [], 0
    for one, item in zip(laid(axes), setting.tiles, strict=True):
        body = tiles.tile(one, base, "c3", "compute" if alive else "", setting.way == "offload")
        if alive and one.width >= FINGER:
            body = svg.press(body, (one.x, top, one.width, axes.at.tiles[1]), "dropped", *_stop(setting, item, at),
                             f"press {one.name}")  # fmt: skip
        at += item.bytes
        out.append(body)
        names.append(tiles.name(one, base, top, SHORT.get(one.name, "") if axes.width == svg.NARROW else ""))
    start = axes.x(setting.job.block)
    stays = Tile(INPUT, start, axes.right - start, axes.at.tiles[1], 0, "the block's input stays")
    rect = svg.rect(start + 1, top, max(0.5, axes.right - start - 1), axes.at.tiles[1], "c3", opacity=0.22,
                    title=stays.title, mark=f"tile {INPUT}")  # fmt: skip
    return "".join([*out, rect, _cut(axes) if alive else "", *names, tiles.name(stays, base, top, f"{INPUT}: stays")])


def _stop(setting: Setting, item, before: int) -> tuple[int, str]:
    """The stop of the budget that pressing a tile sets, and words for it. before: bytes of the tiles that go first."""
    part = 100 / (STEP * setting.job.block)
    if setting.counts[item.name] == item.count:
        return STEP * int(before * part), f"{item.name}, dropped: press to keep it and all that goes later"
    return STEP * ceil((before + item.bytes) * part), f"{item.name}, kept: press to drop it and all that goes before"


def _cut(axes: Axes) -> str:
    """The line between what is dropped and what is kept, through both planes."""
    setting, (top, _) = axes.setting, axes.at.tiles
    x = axes.x(setting.freed / setting.job.blocks)
    out = [svg.line(x, top - 14, x, axes.base, "ink", 2, mark="cut"),
           svg.line(x, axes.at.curve[0], x, axes.low, "ink", 1, mark="cut below")]  # fmt: skip
    gone = fitting([f"◂ {words}" for words in GONE[setting.way]], x - 12)
    kept = fitting(["kept ▸"], axes.right - x - 8)
    if setting.freed and gone:
        out.append(svg.text(x - 6, top - 6, gone, anchor="end", bold=True, size=svg.SMALLEST, halo=True, mark="gone"))
    if kept:
        out.append(svg.text(x + 6, top - 6, kept, bold=True, size=svg.SMALLEST, halo=True, mark="kept"))
    return "".join(out)


def _fits(axes: Axes) -> str:
    """Where the step begins to fit."""
    setting = axes.setting
    if not setting.least:
        return ""
    x = axes.x(setting.other(dropped=setting.least).freed / setting.job.blocks)
    words = f"fits from {setting.least}% on"
    half = svg.measure(words, svg.SMALLEST) / 2
    middle = min(max(x, axes.at.left + half), axes.right - half)
    return (svg.line(x, axes.base, x, axes.base + 5, "accent", 2, mark="fits above")
            + svg.text(middle, axes.base + 15, words, anchor="middle", fill="accent", size=svg.SMALLEST, mark="fits")
            + svg.line(x, axes.at.curve[0], x, axes.low, "accent", 1.5, "4 3", mark="fits below"))  # fmt: skip


# --- the curve ------------------------------------------------------------------------------------------------------


def _shares(axes: Axes) -> str:
    """The axes of the curve; where it stays low, a break beneath the upper end."""
    at, scale, out = axes.at, axes.scale, []
    ways = ["the step is longer by, %: the area so far", "the step is longer by, %"]
    if axes.setting.way == "offload":
        ways = ["the step is longer by, %: what the wire cannot hide", "the step is longer by, %"]
    out.append(svg.text(4, at.curve[0] - 10, fitting(ways, axes.width - 8), fill="muted", size=svg.SMALL))
    broken = len(scale) > 2
    for share in [0, 0.1, 0.2, 0.3, 0.4, 1.0] if broken else svg.ticks(scale[-1][0]):
        y = axes.y(share)
        out.append(svg.line(at.left, y, axes.right, y))
        out.append(svg.text(at.left - 5, y + 4, f"{100 * share:.0f}", anchor="end", fill="muted", size=svg.SMALL))
    if broken:
        y = axes.low - (scale[1][1] + scale[2][1]) / 2
        for dy in (2, -3):
            out.append(svg.line(at.left - 12, y + dy + 3, at.left - 4, y + dy - 2, "muted", 1.2))
    size, name = unit(axes.bytes, 10**9)
    marks = svg.ticks(axes.bytes / size, 6 if axes.width == svg.WIDE else 4)
    last = f"{name} dropped of one block"
    for value in marks:
        x = axes.x(value * size)
        words = f"{value:,g}"
        if x + svg.measure(words, svg.SMALL) / 2 + 8 < axes.right - svg.measure(last, svg.SMALL):
            out.append(svg.text(x, axes.low + 15, words, anchor="middle", fill="muted", size=svg.SMALL))
        out.append(svg.line(x, axes.low, x, axes.low + 3))
    out.append(svg.text(axes.right, axes.low + 15, last, anchor="end", fill="muted", size=svg.SMALL))
    return "".join(out)


def _points(axes: Axes, setting: Setting, way: str) -> list[tuple[float, float]]:
    return [(axes.x(size), axes.y(share)) for size, share in setting.rise(way, STOPS)]


def _curves(axes: Axes) -> str:
    """What all of it would cost, dotted, and drawn as far as the cut; thin, what it is to be compared with."""
    setting, top = axes.setting, axes.at.curve[0]
    out, points = [], _points(axes, setting, setting.way)
    other = {"way": "rebuild"} if setting.way == "offload" else {"order": "cheapest"}
    if setting.other(**other) != setting:
        words = "made again" if setting.way == "offload" else "cheapest first"
        thin = _points(axes, setting.other(**other), "rebuild")
        out.append(tiles.line(thin, "c3", 1.5, mark="other"))
        x, y = thin[-3]
        out.append(svg.text(x, y + 16 if setting.way == "rebuild" else y - 5, words, anchor="end", fill="muted",
                            size=svg.SMALLEST, halo=True))  # fmt: skip
    out.append(tiles.line(points, "muted", 1.5, "2 4", mark="ahead"))
    x = axes.x(setting.freed / setting.job.blocks)
    out.append(tiles.so_far(points, axes.low, top, x, "compute"))
    y = axes.y(setting.share)
    at = f'cx="{svg.num(x)}" cy="{svg.num(y)}"'
    out.append(f'<circle {at} r="5" fill="{svg.colour("ink")}" data-mark="now"/>')
    right = x > axes.width * 0.6
    words = f"{setting.percent}%"
    out.append(svg.text(x - 9 if right else x + 9, max(top + 12, y - 8), words, anchor="end" if right else "start",
                        bold=True, size=15, halo=True, mark="longer"))  # fmt: skip
    end = points[-1]
    if abs(end[0] - x) > 130:
        words = f"all: {setting.other(dropped=100).percent}%"
        out.append(svg.text(axes.right, max(top + 11, end[1] - 8), words, anchor="end", fill="muted", size=svg.SMALL,
                            halo=True))  # fmt: skip
    return "".join(out)


def _mark(axes: Axes) -> str:
    """A guess of what all but the input costs, where the curve ends."""
    scale = axes.scale
    end = scale[-1][0]
    stops = [(100 * share, axes.low - high) for share, high in scale if share <= 1]
    if end > 1:
        stops.append((100.0, axes.y(1.0)))
    return guess.mark(stops, (axes.x(axes.setting.job.block) - axes.width * 0.22, axes.right))
