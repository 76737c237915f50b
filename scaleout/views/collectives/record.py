"""Measured sweeps in the picture of the view `collectives`: the reader's own, or a published one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from math import log

from scaleout.collectives import alpha_beta
from scaleout.draw import svg
from scaleout.draw.labels import cut
from scaleout.spec import checks
from scaleout.spec.sweeps import SWEEPS
from scaleout.views.collectives.links import DECADES, LARGEST, OWN_LINK, SMALLEST, Setting, band
from scaleout.words.amounts import took

POINT = re.compile(r"(\w+) all_reduce, (\d{1,12}) B: seconds, its line")
BY_HAND = (
    "ring",
    "tree",
    "naive",
)  # what the lab writes itself; the backend's own is called by the backend's name
IN_NODES = "node-ib"  # the link of the published sweeps
LONGEST = 1e7  # seconds of an all-reduce
WRONG = "this is no Record of labs/collectives.py: choose a file like those in labs/results/collectives/"


def measured(record: dict) -> dict:
    """{"ranks", "device", "backend", "sweeps": {"backend" or writer: [[bytes, seconds], ...]}} of a Record.

    ValueError, in one line, for a Record of another lab, or one that does not hold two sizes of an all-reduce.
    """
    ranks, device, backend, seconds_by_point = (
        record.get(key) for key in ("device_count", "device", "backend", "measurement")
    )
    if record.get("stem") != "collectives" or not isinstance(seconds_by_point, dict):
        raise ValueError(WRONG)
    if not (checks.is_whole(ranks) and 2 <= ranks <= 10**6 and isinstance(device, str) and isinstance(backend, str)):
        raise ValueError(f"{WRONG}, with its backend and device, of 2 ranks or more")
    sweeps: dict[str, list[list[float]]] = {}
    for key, seconds in seconds_by_point.items():
        point = POINT.fullmatch(str(key))
        if not point:
            continue
        writer = "backend" if point[1] == backend else point[1]
        if writer not in ("backend", *BY_HAND):
            continue
        if not (checks.is_number(seconds) and 0 < seconds <= LONGEST):
            raise ValueError(f"{WRONG}: {key!r} must be a time above 0")
        sweeps.setdefault(writer, []).append([float(point[2]), float(seconds)])
    sweeps = {writer: sorted(points) for writer, points in sweeps.items() if len({size for size, _ in points}) > 1}
    if not sweeps:
        raise ValueError(f"{WRONG}, with two sizes of an all-reduce or more")
    return {"ranks": ranks, "device": device[:60], "backend": backend[:20], "sweeps": sweeps}


@dataclass(frozen=True)
class Measured:
    """A sweep next to the model's curve: the reader's own, or a published one.

    points: (bytes, seconds, the share that is latency); none if it ran on another number of ranks than are drawn."""

    words: str
    points: tuple[tuple[float, float, float], ...]
    colour: str = "key"

    def draw(self, strip, wide: bool, y: float) -> str:
        """Ringed dots at the share of latency in what was measured, with seconds above some; or what does not fit."""
        x, text_y, anchor = (598, y + 13, "end") if wide else (0, y + 28, "start")
        words = cut(self.words, 310 if wide else 356, svg.SMALLEST, bold=True)
        text = svg.text(x, text_y, words, anchor=anchor, fill=self.colour, bold=True, size=svg.SMALLEST)
        seen = [point for point in self.points if SMALLEST <= point[0] <= LARGEST]
        dots = [
            svg.circle(strip.x(amount), strip.y(min(1.0, share)), 3.5, "paper", self.colour, 2)
            for amount, _, share in seen
        ]
        return text + "".join(dots) + ("".join(self._times(seen, strip)) if wide else "")

    def _times(self, points: list[tuple[float, float, float]], strip) -> list[str]:
        """Seconds at whole decades, between the points next to them, in a row above the model's."""
        parts = []
        for decade in DECADES:
            for (low, low_seconds, _), (high, high_seconds, _) in pairwise(points):
                if low <= decade < high:
                    seconds = low_seconds * (high_seconds / low_seconds) ** (log(decade / low) / log(high / low))
                    x = strip.x(decade)
                    anchor = "start" if x < strip.left + 20 else "end" if x > strip.right - 20 else "middle"
                    parts.append(
                        svg.text(
                            x,
                            strip.top - 21,
                            took(seconds),
                            anchor=anchor,
                            fill=self.colour,
                            bold=True,
                            size=svg.SMALLEST,
                        )
                    )
        return parts


def matching(record: dict | None, links: Setting, algorithm: str) -> Measured | None:
    """The part of `measured` that belongs to the picture.

    For a ring it is the backend's own sweep, whose line the lab reads as a ring and gives for one's own link; for the
    others it is the version written by hand under their name. Latency is the run's own: the time of its fastest
    message.
    """
    if record is None:
        return None
    if record["ranks"] != links.ranks:
        return Measured(f"your run had {record['ranks']} ranks: set Ranks to {record['ranks']} to see it here", ())
    if record["backend"] != "nccl" and links.link != OWN_LINK:
        return Measured(f"your run used {record['backend']}: choose “my own” to see it here", ())
    first = ("backend", "ring") if algorithm == "ring" else (algorithm, "backend")
    name = next(sweep_name for sweep_name in (*first, *record["sweeps"]) if sweep_name in record["sweeps"])
    backend_source = f"{record['backend']} as a ring" if algorithm == "ring" else f"{record['backend']}’s own"
    source = backend_source if name == "backend" else f"{name} by hand"
    words = f"your run: {source}, {record['ranks']} × {record['device']}"
    sweep = record["sweeps"][name]
    start = min(seconds for _, seconds in sweep)  # what a message takes that has next to no bytes
    return Measured(words, tuple((size, seconds, start / seconds) for size, seconds in sweep))


def published(links: Setting, algorithm: str, protocols: bool) -> Measured | None:
    """What others measured of a ring on such nodes, where NCCL would take one. protocols: as `band.draw` has it."""
    published_sweep = SWEEPS.get(links.ranks) if (links.link, algorithm) == (IN_NODES, "ring") else None
    if not published_sweep:
        return None
    points = []
    for kib, rate in published_sweep.rows:
        size = kib * 1024.0
        if published_sweep.algorithm == algorithm or links.fastest(size) == algorithm:
            points.append((size, size * alpha_beta.bus_factor("all_reduce", links.ranks) / (rate * 1e9)))
    # with the latency that the band has there: what took as long as the model says lies on its curve
    model = band(links, algorithm)
    shares = tuple(
        (size, seconds, model.latency(links.way(algorithm, size), protocols) / seconds) for size, seconds in points
    )
    return Measured(f"measured: {published_sweep.words} ({published_sweep.source})", shares, "ink")
