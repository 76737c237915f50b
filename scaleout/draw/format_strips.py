"""Number formats as strips, under each other on one ruler of powers of two, and the gradients of a real run above."""

from __future__ import annotations

import math

from scaleout.draw import ruler, svg
from scaleout.numerics.formats import FORMATS, Format
from scaleout.numerics.octaves import Histogram, together
from scaleout.numerics.recorded import GRADIENTS

SHOWN = ("fp32", "bf16", "fp16", "e5m2", "e4m3")
LO, HI = -62, 28  # fp32 and bf16 go on beyond both
BIT = 1.9  # CSS pixels of a significant bit
HIGH = 54  # of the histogram


def gradients() -> Histogram:
    """Of all layers' outputs, at the last step of the recorded run."""
    return together(GRADIENTS["last step"]["activations"].values())


def ends(f: Format) -> tuple[str, str]:
    """In words: below which size zero begins, and the largest number."""
    largest = f"{f.largest:,.0f}" if f.largest < 1e6 else ruler.two(f.highest_octave + 1)
    return ruler.two(f.lowest_octave - f.mantissa - 1), largest


def strips(width: float) -> str:
    """Each format as wide as its range and as high as its bits, with its two ends; gradients above."""
    left = 58.0
    axis = ruler.Ruler(LO, HI, left, width - 4)
    y, words = 16.0 + HIGH, "gradients of the book's small model, by size"
    marks, histogram = [svg.text(0, 12, words, size=svg.SMALL, fill="muted")], gradients()
    highest = max(histogram.counts)
    rows = [(octave, n / highest * (HIGH - 14), f"{ruler.power(octave)}: {n:,}") for octave, n in histogram.items()]
    marks += [
        ruler.bars(axis, rows, 0, y, [("c6", 0.9)] * len(rows)),
        svg.line(left, y + 0.5, axis.right, y + 0.5, "muted"),
    ]
    for name in SHOWN:
        f = FORMATS[name]
        y += max(32.0, f.digits * BIT + 18)
        bits = svg.text(0, y + 3, f"{f.digits} bits", size=svg.SMALLEST, fill="muted")
        marks += [
            ruler.outline(ruler.strip(axis, f, y, BIT), "compute", 0.35, "ink", 1),
            svg.text(0, y - 10, name, bold=True, size=13),
            bits,
            _named(axis, f, y),
        ]
    y += 8
    marks.append(axis.axis(y, 8 if svg.broad(width) else 16))
    readings = (
        f"{name}, {FORMATS[name].digits} significant bits, zero below {low}, largest {high}"
        for name, (low, high) in ((name, ends(FORMATS[name])) for name in SHOWN)
    )
    label = "Five formats on one ruler: " + "; ".join(readings)
    return svg.figure(width, y + 24, "".join(marks), label)


def _named(axis: ruler.Ruler, f: Format, y: float) -> str:
    """What its ends are, above the strip or beside it."""
    low, high = ends(f)
    first, last = (axis.x(octave) for octave in (f.lowest_octave - f.mantissa, math.log2(f.largest)))
    above, beyond = y - f.digits * BIT - 4, f.highest_octave > HI
    first_words, last_words = (f"← to {low}", f"to {high} →") if beyond else (f"0 below {low}", high)
    anchor, x, line = ("end", last, above) if beyond else ("start", last + 5, y - 1)
    marks = [
        svg.text(first, above, first_words, size=svg.SMALLEST, fill="muted", halo=True),
        svg.text(x, line, last_words, anchor=anchor, size=svg.SMALLEST, fill="muted", halo=True),
    ]
    return "".join(map(ruler.raised, marks))
