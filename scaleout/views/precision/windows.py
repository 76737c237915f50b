"""Blocks of numbers that share a scale: each under a window of its own, in rows on the view `precision`'s ruler."""

from __future__ import annotations

import math

from scaleout.draw import labels, svg
from scaleout.draw.labels import fitting
from scaleout.numerics.shared import spread, windows
from scaleout.views.precision.frame import Axes
from scaleout.views.precision.parts import named as standard

ROWS = {svg.WIDE: 15, svg.NARROW: 13}
KEYS_HEIGHT = 22  # CSS pixels of the keys beneath
DOTS = 20  # numbers of a block that are drawn, at most
GOLDEN = 0.618  # so that the rows do not show the same ones


def rows(axes: Axes) -> str:
    """One row for each equal part of all blocks, ascending: the range of the format, laid by the block's largest
    number, paler where numbers keep fewer bits; the block's numbers as strokes."""
    s, ruler, f = axes.setting, axes.ruler, axes.setting.f
    top, foot, count = axes.places.strip[0], axes.places.panel[1] - KEYS_HEIGHT, ROWS[axes.width]
    pitch = (foot - top) / count
    parts = [svg.text(ruler.left, top - 8, fitting(_words(s, count), axes.width - 8), fill="muted", size=svg.SMALL)]
    strokes: dict[str, list[str]] = {"c6": [], "accent": [], "ink": []}
    for row, (largest, scale) in enumerate(windows(s.h, s.blocks, s.rule, count)):
        y, octave = top + row * pitch + 1, math.log2(scale)
        ends = [
            ruler.x(octave + end) for end in (f.lowest_octave - f.mantissa - 1, f.lowest_octave, math.log2(f.largest))
        ]
        parts += [
            svg.rect(ends[0], y, ends[1] - ends[0], pitch - 2, "compute", opacity=0.14, mark=f"few {row}"),
            svg.rect(ends[1], y, ends[2] - ends[1], pitch - 2, "compute", opacity=0.34, mark=f"window {row}"),
        ]
        high = f"{svg.num(y + 1)}v{svg.num(pitch - 4)}"
        edge = octave + math.log2(f.largest + math.ldexp(0.5, f.highest_octave - f.mantissa)) + 1e-9
        for size in numbers(s, largest, row):
            if ruler.holds(size):
                inside = octave + s.zero_below <= size <= edge
                strokes["c6" if inside else "accent"].append(f"M{ruler.at(size):.1f} {high}")
        strokes["accent" if largest > edge else "ink"].append(
            f"M{svg.num(ruler.at(largest))} {svg.num(y - 1)}v{svg.num(pitch)}"
        )
    parts += [
        f'<path d="{"".join(paths)}" stroke="{svg.colour(fill)}" stroke-width="1.8" fill="none"/>'
        for fill, paths in strokes.items()
        if paths
    ]
    return "".join(parts)


def named(axes: Axes) -> str:
    """What such blocks are called, and the bits that a number takes."""
    s = axes.setting
    words = f"{standard(s.format, s.shared, s.block)}: {s.blocks.bits(s.h.total):.3g} bits per number"
    return svg.text(axes.ruler.left, axes.places.ends, words, bold=True, size=svg.SMALL, mark="standard")


def keys(axes: Axes) -> str:
    """What the strokes are."""
    window = "range, fainter where bits are lost" if axes.wide else "range"
    sharer = "tensor" if axes.setting.shared == "tensor" else "block"
    items = [
        ("ink", f"the {sharer}'s largest" if axes.wide else "largest"),
        ("c6", "kept"),
        ("accent", "lost"),
        ("compute%", window),
    ]
    return labels.keys(axes.ruler.left, axes.places.panel[1] - 14, axes.width - 8, items)[0]


def numbers(s, largest: float, row: int) -> list[float]:
    """log2 of numbers of a block beside its largest: quantiles of those that are no larger."""
    sizes = spread(s.h)
    below = sizes.share_below(largest)
    count = min(DOTS, (s.blocks.size or 1 + DOTS) - 1)
    return [sizes.quantile(below * (i + (0.5 + GOLDEN * row) % 1) / count) for i in range(count)]


def _words(s, count: int) -> list[str]:
    f = s.format
    if s.shared == "tensor":
        return [
            f"one scale for the tensor: the range of {f} ends at its largest number",
            "one range for the whole tensor",
        ]
    return [
        f"{count} blocks of {s.block}, smallest first: the largest number of each places {f}'s range",
        f"{count} blocks of {s.block}, each with its own range",
        f"{count} blocks of {s.block}",
    ]
