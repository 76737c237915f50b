"""A sweep of message sizes as text and as a picture: nccl-tests' columns, the fitted line, and predictions.

nccl-tests' columns: size is the whole message in bytes (for all_gather, the bytes that a rank has afterwards; for
reduce_scatter, those it has before), count the number of elements that one call is given, algbw = size / time,
busbw = algbw times the factor of the collective (https://github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md), error the
number of wrong elements.
"""

import statistics
from dataclasses import dataclass

from scaleout.collectives.alpha_beta import ALGORITHMS, algorithm_bandwidth, bus_bandwidth, cost, ring_wire
from scaleout.lab.picture import picture
from scaleout.lab.text import fixed, ratio, table
from scaleout.spec.topology import Wire
from scaleout.timing import profile

PARTS = ("all_gather", "reduce_scatter")  # their count is one rank's share
LARGE = 16_000_000  # bytes: from here on the ring by hand is held against the backend's
NO_SLOPE = 1e15  # bytes/s of a line without a slope


@dataclass(frozen=True)
class Row:
    """One collective at one size: `seconds` of each sample, `wrong` elements."""

    by: str  # "gloo", "ring", "tree", "naive", "accelerate"
    collective: str
    size: int  # bytes
    ranks: int
    seconds: list
    wrong: int

    @property
    def name(self):
        """ "ring all_reduce"."""
        return f"{self.by} {self.collective}"

    @property
    def median(self):
        """Seconds."""
        return statistics.median(self.seconds)

    @property
    def count(self):
        """fp32 elements that one call is given."""
        return self.size // 4 // (self.ranks if self.collective in PARTS else 1)

    @property
    def algbw(self):
        """Bytes per second."""
        return algorithm_bandwidth(self.size, self.median)

    @property
    def busbw(self):
        """Bytes per second."""
        return bus_bandwidth(self.collective, self.size, self.ranks, self.median)


def columns(rows):
    """The sweep in nccl-tests' columns, as text."""
    return table(
        ("collective", "size (B)", "count", "type", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "error"),
        [
            (
                r.name,
                r.size,
                r.count,
                "float",
                fixed(r.median, 1e-6),
                f"{r.algbw / 1e9:.2f}",
                f"{r.busbw / 1e9:.2f}",
                r.wrong,
            )
            for r in rows
        ],
    )


def by_name(rows):
    """{name: [Row, ...]}, each by size."""
    names = dict.fromkeys(r.name for r in rows)
    return {name: sorted((r for r in rows if r.name == name), key=lambda r: r.size) for name in names}


def lines(rows):
    """{name: timing.profile.fit of its medians over all sizes}."""
    return {name: profile.fit([(r.size, r.median) for r in sizes]) for name, sizes in by_name(rows).items()}


def line_text(fits):
    """Each line's alpha and rate, and its relative error at every size. Beneath it the same for two lines, one for the
    short messages and one for the long, if there are enough sizes."""
    sizes = [p["bytes"] for p in next(iter(fits.values()))["points"]]
    rows = []
    for name, fit in fits.items():
        two = profile.pieces([(p["bytes"], p["seconds"]) for p in fit["points"]])
        rows += [_line_row(name, [fit])] + ([_line_row("  in two lines", two)] if two else [])
    return table(("line", "alpha (us)", "1/beta (GB/s)", *(f"{short(size)}" for size in sizes)), rows)


def _line_row(name, fits):
    rates = (f"{wire(fit).bytes_per_s / 1e9:.2f}" if fit["seconds_per_byte"] else "-" for fit in fits)
    return (
        name,
        ", ".join(fixed(fit["alpha_seconds"], 1e-6) for fit in fits),
        ", ".join(rates),
        *(f"{p['relative_error']:+.0%}" for fit in fits for p in fit["points"]),
    )


def held_out(rows):
    """[(Row, predicted seconds)]: a line through every other size, smallest and largest included, predicts the rest."""
    pairs = []
    for group in by_name(rows).values():
        known = [r for i, r in enumerate(group) if i % 2 == 0 or i == len(group) - 1]
        if len(known) < 2:
            continue
        fit = profile.fit([(r.size, r.median) for r in known])
        pairs += [(r, profile.line_seconds(fit, r.size)) for r in group if r not in known]
    return pairs


def held_out_text(pairs):
    """Prediction and measurement at the sizes that were left out of the fit."""
    return table(
        ("left out of the fit", "size (B)", "predicted (us)", "measured (us)", "ratio"),
        [(r.name, r.size, fixed(p, 1e-6), fixed(r.median, 1e-6), ratio(p, r.median)) for r, p in pairs],
    )


def wire(fit):
    """The Wire of a line: its alpha, and one over its beta."""
    beta = fit["seconds_per_byte"]
    return Wire(fit["alpha_seconds"], 1 / beta if beta else NO_SLOPE)


def own(text):
    """A Wire from "alpha in microseconds,rate in GB/s", as the view's own link takes them. ValueError."""
    try:
        alpha, rate = (float(word) for word in text.split(","))
    except ValueError:
        alpha = rate = -1.0
    if not (0 <= alpha < 1e9 and 0 < rate <= NO_SLOPE / 1e9):
        raise ValueError(f'--own is {text!r}: give alpha in microseconds and rate in GB/s, as in --own "25,12.5"')
    return Wire(alpha * 1e-6, rate * 1e9)


def as_ring(fit, ranks):
    """The Wire on which a ring takes as long as a line of all-reduces: it draws the measured curve into the view."""
    return ring_wire(fit["alpha_seconds"], fit["seconds_per_byte"] or 1 / NO_SLOPE, ranks)


def flat(link):
    """Whether the line behind a link had no slope: its messages were too short to show a rate."""
    return link.bytes_per_s >= NO_SLOPE / 4  # what a ring makes of it is no further off


def view_text(label, link):
    """What to type into the view for a link, with its name; or that it has no rate."""
    return f"no rate for {label}: use larger messages" if flat(link) else f'"{own_text(link)}" {label}'


def own_text(link):
    """The other way round: what to type into the view, or after --own."""
    return f"{link.alpha_seconds * 1e6:.1f},{link.bytes_per_s / 1e9:.3f}"


def from_wire(row, link):
    """Seconds that the alpha-beta model gives for an all-reduce by hand; the backend's is taken for a ring.

    The model's tree is NCCL's pair of trees, in which no rank moves the tensor more than twice; the tree by hand is a
    single one, whose inner ranks move it three times.
    """
    algorithm = row.by if row.by in ALGORITHMS["all_reduce"] else "ring"
    return cost("all_reduce", algorithm, row.size, row.ranks, link).seconds


def wire_text(rows, links):
    """Every all-reduce, and the time that the wires in `links` ({label: Wire}) predict for its algorithm."""
    header = ["predicted from a link", "size (B)", "measured (us)"]
    for label in links:
        header += [f"{label} (us)", "ratio"]
    return table(
        header,
        [
            (
                r.name,
                r.size,
                fixed(r.median, 1e-6),
                *(
                    cell
                    for link in links.values()
                    for cell in (fixed(from_wire(r, link), 1e-6), ratio(from_wire(r, link), r.median))
                ),
            )
            for r in rows
        ],
    )


def against(rows, numerator, denominator):
    """[(size, algbw of `numerator` over algbw of `denominator`)] at the sizes from LARGE on; sample by sample, then the
    median."""
    first, second = ([r for r in rows if r.name == name and r.size >= LARGE] for name in (numerator, denominator))
    return [
        (a.size, statistics.median(y / x for x, y in zip(a.seconds, b.seconds, strict=True)))
        for a, b in zip(first, second, strict=True)
    ]


def short(size):
    """Bytes as text in KiB and MiB, about."""
    for unit, word in ((2**20, "M"), (2**10, "K")):
        if size >= unit:
            return f"{size / unit:.3g}{word}"
    return str(size)


def plot(rows, fits, path, title):
    """Time and bus bandwidth of the all-reduces against size, to `path`; dots measured, lines fitted."""
    with picture(path, 1, 2, figsize=(9.0, 3.6)) as (_, (seconds_axes, bandwidth_axes)):
        for i, (name, group) in enumerate(by_name(rows).items()):
            sizes, line = [r.size for r in group], fits[name]["points"]
            fitted = [p["fitted"] for p in line]
            seconds_axes.plot(sizes, [r.median for r in group], "o", color=f"C{i}", markersize=4, label=name)
            seconds_axes.plot(sizes, fitted, color=f"C{i}", linewidth=1)
            bandwidth_axes.plot(sizes, [r.busbw / 1e9 for r in group], "o", color=f"C{i}", markersize=4)
            bandwidth_axes.plot(
                sizes,
                [bus_bandwidth(r.collective, r.size, r.ranks, t) / 1e9 for r, t in zip(group, fitted, strict=True)],
                color=f"C{i}",
                linewidth=1,
            )
        for axes, label in ((seconds_axes, "seconds"), (bandwidth_axes, "bus bandwidth, GB/s (10^9 bytes)")):
            axes.set(xscale="log", yscale="log", xlabel="message, bytes", ylabel=label)
        seconds_axes.set_title(f"{title}: dots measured, lines fitted")
        seconds_axes.legend()
