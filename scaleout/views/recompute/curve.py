"""The curve of the view `recompute`: how much longer a step is, by the bytes that a block frees, and its axes."""

from __future__ import annotations

from collections.abc import Sequence

from scaleout.draw import guess, svg, tiles
from scaleout.draw.labels import fitting
from scaleout.views.recompute.frame import Axes
from scaleout.views.recompute.setting import Setting
from scaleout.words.amounts import unit

LARGE = 15  # CSS pixels of the words at the cut
STOPS = 40  # points of a curve that bends between tiles


def shares(axes: Axes) -> str:
    """The axes of the curve; where it stays low, a break beneath the upper end."""
    places, scale, parts = axes.places, axes.scale, []
    ways = ["added step time, %: the sum of the areas so far", "added step time, %"]
    if axes.setting.way == "offload":
        ways = ["added step time, %: copies that nothing overlaps with", "added step time, %"]
    parts.append(svg.text(4, places.curve[0] - 10, fitting(ways, axes.width - 8), fill="muted", size=svg.SMALL))
    broken = len(scale) > 2
    for share in [0, 0.1, 0.2, 0.3, 0.4, 1.0] if broken else svg.ticks(scale[-1][0]):
        y = axes.y(share)
        parts += [
            svg.line(places.left, y, axes.right, y),
            svg.text(places.left - 5, y + 4, f"{100 * share:.0f}", anchor="end", fill="muted", size=svg.SMALL),
        ]
    if broken:
        y = axes.low - (scale[1][1] + scale[2][1]) / 2
        parts += [svg.line(places.left - 12, y + dy + 3, places.left - 4, y + dy - 2, "muted", 1.2) for dy in (2, -3)]
    size, name = unit(axes.bytes, 10**9)
    marks = svg.ticks(axes.bytes / size, 6 if axes.width == svg.WIDE else 4)
    last = f"{name} freed per block"
    for value in marks:
        x = axes.x(value * size)
        words = f"{value:,g}"
        if x + svg.measure(words, svg.SMALL) / 2 + 8 < axes.right - svg.measure(last, svg.SMALL):
            parts.append(svg.text(x, axes.low + 15, words, anchor="middle", fill="muted", size=svg.SMALL))
        parts.append(svg.line(x, axes.low, x, axes.low + 3))
    parts.append(svg.text(axes.right, axes.low + 15, last, anchor="end", fill="muted", size=svg.SMALL))
    return "".join(parts)


def _points(axes: Axes, setting: Setting, way: str) -> list[tuple[float, float]]:
    return [(axes.x(size), axes.y(share)) for size, share in setting.rise(way, STOPS)]


def drawn(axes: Axes) -> str:
    """The cost of freeing everything, dotted, and solid as far as the cut; thin, the curve to compare it with."""
    setting, top = axes.setting, axes.places.curve[0]
    points = _points(axes, setting, setting.way)
    x, y = axes.x(setting.freed / setting.case.blocks), axes.y(setting.share)
    words, right, high = f"{setting.percent}%", x > axes.width * 0.6, max(top + 12, y - 8)
    long = svg.measure(words, LARGE, bold=True)
    start = x - 9 - long if right else x + 9
    words_taken, end = [(start, start + long, high)], ""
    if abs(points[-1][0] - x) > 130:
        all_words = f"all: {setting.other(dropped=100).percent}%"
        below = points[-1][1]  # beneath the end where there is room: above it a guess of a third would strike the words
        below = below + 34 if len(axes.scale) > 2 and below + 38 < axes.low else max(top + 11, below - 8)
        end = svg.text(axes.right, below, all_words, anchor="end", fill="muted", size=svg.SMALL, halo=True)
        words_taken.append((axes.right - svg.measure(all_words, svg.SMALL), axes.right, below))
    parts = [
        _compared(axes, words_taken),
        tiles.line(points, "muted", 1.5, "2 4", mark="ahead"),
        tiles.so_far(points, axes.low, top, x, "compute"),
        svg.circle(x, y, 5, "ink", mark="now"),
        svg.text(
            x - 9 if right else x + 9,
            high,
            words,
            anchor="end" if right else "start",
            bold=True,
            size=LARGE,
            halo=True,
            mark="longer",
        ),
        end,
    ]
    return "".join(parts)


def _compared(axes: Axes, word_spans: Sequence[tuple[float, float, float]]) -> str:
    """Another curve to compare with, named where the name fits: recomputing for offloading; the cheapest first for
    another order; whole blocks for the cheapest first. word_spans: where there are words already, each from left to
    right, and its baseline."""
    setting = axes.setting
    moved, dear = setting.way == "offload", setting.order != "cheapest"
    words = "recomputed" if moved else "cheapest first" if dear else "whole blocks recomputed"
    compared = setting.other(way="rebuild") if moved else setting.other(order="cheapest")
    points = _points(axes, compared, "rebuild" if moved or dear else "blocks")
    long = svg.measure(words, svg.SMALLEST)
    name = ""
    for x, y in (points[len(points) * part // 12] for part in (9, 7, 11, 8)):
        low = min(axes.low - 4, y + 16 if dear and not moved else y - 5)
        clear = all(x < left - 4 or x - long > right + 4 or abs(low - high) > LARGE for left, right, high in word_spans)
        if not name and clear and x - long > axes.places.left:
            name = svg.text(x, low, words, anchor="end", fill="muted", size=svg.SMALLEST, halo=True)
    return tiles.line(points, "c3", 1.5, mark="other") + name


def mark(axes: Axes) -> str:
    """A guess of the cost of freeing all but the input, where the curve ends."""
    scale = axes.scale
    end = scale[-1][0]
    stops = [(100 * share, axes.low - high) for share, high in scale if share <= 1]
    if end > 1:
        stops.append((100.0, axes.y(1.0)))
    return guess.mark(stops, (axes.x(axes.setting.case.block) - axes.width * 0.22, axes.right))
