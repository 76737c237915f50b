"""The picture of the view `recompute`: a block's saved tensors, the curve of what freeing them costs, and what
`beneath` draws."""

from __future__ import annotations

from scaleout.draw import svg, tiles
from scaleout.draw.labels import fitting
from scaleout.draw.tiles import Tile
from scaleout.memory.recompute import INPUT
from scaleout.views.recompute import beneath, curve
from scaleout.views.recompute.frame import MICRO, Axes
from scaleout.views.recompute.setting import Setting
from scaleout.words.amounts import quantity, short, unit

SHORT = {"attention": "attn.", "dropped scores": "dropout"}  # names where there is little room
DROPPED = {"rebuild": "◂ recomputed", "offload": "◂ offloaded"}
KEPT_LABEL = "saved ▸"


def picture(setting: Setting, width: int) -> str:
    """The whole picture."""
    axes = Axes(setting, width)
    places, case = axes.places, setting.case
    body = [
        _above(axes),
        _prices(axes),
        _tiles(axes, True),
        _fits(axes),
        curve.shares(axes),
        curve.drawn(axes),
        curve.mark(axes),
        beneath.memory(axes, setting),
        beneath.seconds(axes, setting),
    ]
    label = (
        f"The saved tensors of one of {case.blocks} blocks: each rectangle is as wide as its bytes and as high as the "
        "time to recompute one of them. Below, how much longer the step is for the bytes that are freed, the memory of "
        "the step on one GPU, and the parts of the step time."
    )
    return svg.figure(width, places.height, "".join(body), label)


def locked(setting: Setting, width: int) -> str:
    """All tensors saved, and an axis without the curve."""
    axes = Axes(setting, width)
    body = [
        _above(axes),
        _prices(axes),
        _tiles(axes, False),
        curve.shares(axes),
        curve.mark(axes),
        beneath.memory(axes, setting),
    ]
    label = (
        "The saved tensors of one block: each rectangle is as wide as its bytes and as high as the time to recompute "
        "one of them. Below, an axis for how much longer the step is."
    )
    return svg.figure(width, axes.places.height, "".join(body), label)


# --- tiles ----------------------------------------------------------------------------------------------------------


def _above(axes: Axes) -> str:
    ways = [
        "a block's saved tensors: width is bytes, height is µs to recompute a MB, area is time",
        "width: bytes; height: µs to recompute a MB",
    ]
    if axes.setting.way == "offload":
        ways = [
            "a block's saved tensors: width is bytes, height is µs that recomputing a MB would take",
            "width: bytes; height: µs to recompute a MB",
        ]
    return svg.text(4, axes.places.words, fitting(ways, axes.width - 8), fill="muted", size=svg.SMALL)


def _prices(axes: Axes) -> str:
    """Lines of so many microseconds per MB."""
    parts = []
    for value in svg.ticks(axes.dearest, 5):
        y = axes.base - axes.places.tiles[1] * value / axes.dearest
        parts += [
            svg.line(axes.places.left, y, axes.right, y),
            svg.text(axes.places.left - 5, y + 4, short(value), anchor="end", fill="muted", size=svg.SMALL),
        ]
    return "".join(parts)


def laid(axes: Axes) -> list[Tile]:
    """The saved tensors side by side, in the order in which they are freed."""
    setting, laid_tiles, offset = axes.setting, [], 0
    for item in setting.tiles:
        size, name = unit(item.bytes, 10**9)
        title = f"{item.name}: {quantity(item.bytes / size)} {name}, {quantity(item.price * MICRO, 2)} µs per MB"
        x = axes.x(offset)
        offset += item.bytes
        laid_tiles.append(
            Tile(
                item.name,
                x,
                axes.x(offset) - x,
                max(2.0, axes.high(item.price)),
                setting.counts[item.name] / item.count,
                title,
            )
        )
    return laid_tiles


def _tiles(axes: Axes, alive: bool) -> str:
    """All saved tensors. The block's input stays, because nothing can recompute it."""
    setting, base, top = axes.setting, axes.base, axes.places.tiles[0]
    offloaded, parts, names = setting.way == "offload", [], []
    for tile in laid(axes):
        parts.append(tiles.tile(tile, base, "c3", "compute" if alive else "", offloaded))
        names.append(tiles.name(tile, base, top, SHORT.get(tile.name, "") if axes.width == svg.NARROW else ""))
    start = axes.x(setting.case.block)
    stays = Tile(INPUT, start, axes.right - start, axes.places.tiles[1], 0, "the block's input stays saved")
    rect = svg.rect(
        start + 1,
        top,
        max(0.5, axes.right - start - 1),
        axes.places.tiles[1],
        "c3",
        opacity=0.22,
        title=stays.title,
        mark=f"tile {INPUT}",
    )
    return "".join([*parts, rect, _cut(axes) if alive else "", *names, tiles.name(stays, base, top, f"{INPUT}: stays")])


def _cut(axes: Axes) -> str:
    """The line between what is freed and what is saved, through both planes."""
    setting, (top, _) = axes.setting, axes.places.tiles
    x = axes.x(setting.freed / setting.case.blocks)
    parts = [
        svg.line(x, top - 14, x, axes.base, "ink", 2, mark="cut"),
        svg.line(x, axes.places.curve[0], x, axes.low, "ink", 1, mark="cut below"),
    ]
    if setting.freed and svg.measure(DROPPED[setting.way], svg.SMALLEST, bold=True) < x - 10:
        parts.append(
            svg.text(x - 6, top - 6, DROPPED[setting.way], anchor="end", bold=True, size=svg.SMALLEST, mark="dropped")
        )
    if svg.measure(KEPT_LABEL, svg.SMALLEST, bold=True) < axes.right - x - 8:
        parts.append(svg.text(x + 6, top - 6, KEPT_LABEL, bold=True, size=svg.SMALLEST, mark="kept"))
    return "".join(parts)


def _fits(axes: Axes) -> str:
    """Where the step begins to fit."""
    setting = axes.setting
    if not setting.least:
        return ""
    x = axes.x(setting.other(dropped=setting.least).freed / setting.case.blocks)
    words = f"fits from {setting.least}% on"
    half = svg.measure(words, svg.SMALLEST) / 2
    middle = min(max(x, axes.places.left + half), axes.right - half)
    return (
        svg.line(x, axes.base, x, axes.base + 5, "accent", 2, mark="fits above")
        + svg.text(middle, axes.base + 15, words, anchor="middle", fill="accent", size=svg.SMALLEST, mark="fits")
        + svg.line(x, axes.places.curve[0], x, axes.low, "accent", 1.5, "4 3", mark="fits below")
    )
