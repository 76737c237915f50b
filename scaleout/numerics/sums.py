"""Sums whose running total is stored in a low-precision format.

A total that has grown to 2^digits times what is added no longer moves: half of its step is as large as the addend, and
ties stay where they are (swamping). Remedies: keep what was cut off and add it next time (Kahan 1965), add neighbours
first (pairwise), or move the total of every so many addends into fp32 (DeepSeek-V3, arXiv 2412.19437, section 3.3.2:
every 128).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scaleout.numerics.formats import FORMATS, Format
from scaleout.numerics.rounding import rounded
from scaleout.spec import checks

METHODS = ("plain", "kahan", "pairwise", "promoted")
INTERVAL = 128  # addends between promotions to fp32, as in DeepSeek-V3


def running(values: Sequence[float], f: Format, method: str = "plain", interval: int = INTERVAL) -> list[float]:
    """The total after each addend, kept in the format; the addends are rounded to it first.

    method: "plain", "kahan", or "promoted", which adds its total into one in fp32 after every `interval` addends. The
    pairwise sum has no order: see `total`.
    """
    checks.one_of("method", method, tuple(name for name in METHODS if name != "pairwise"))
    checks.whole("interval", interval)
    total = cut = promoted = 0.0
    totals, fp32 = [], FORMATS["fp32"]
    for i, value in enumerate(values, 1):
        x = rounded(value, f)
        if method == "kahan":
            x = rounded(x - cut, f)
            grown = rounded(total + x, f)
            cut = rounded(rounded(grown - total, f) - x, f)
            total = grown
        else:
            total = rounded(total + x, f)
        if method == "promoted" and i % interval == 0:
            promoted, total = rounded(promoted + total, fp32), 0.0
        totals.append(rounded(promoted + total, fp32) if method == "promoted" else total)
    return totals


def total(values: Sequence[float], f: Format, method: str = "plain", interval: int = INTERVAL) -> float:
    """The sum of the values by one of METHODS; 0.0 of none."""
    checks.one_of("method", method, METHODS)
    if method != "pairwise":
        return running(values, f, method, interval)[-1] if values else 0.0
    row = [rounded(x, f) for x in values] or [0.0]
    while len(row) > 1:
        row = [rounded(sum(row[i : i + 2]), f) for i in range(0, len(row), 2)]
    return row[0]


def swamped_from(addend: float, f: Format) -> float:
    """The total from which on an addend above 0 no longer moves it: the power of two of at least 2^digits times the
    addend. Infinity where the format ends before."""
    checks.above_0("addend", addend)
    significand, octave = math.frexp(addend)
    threshold = math.ldexp(1.0, octave - (significand == 0.5) + f.digits)
    return threshold if threshold <= f.largest else math.inf
