"""A reader's own sweep by `labs/collectives.py`, in the picture of the view `collectives`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import log

from scaleout.draw import svg
from scaleout.draw.labels import took
from scaleout.spec import checks
from scaleout.timing import profile
from scaleout.views.collectives.links import DECADES, LARGEST, SMALLEST

POINT = re.compile(r"(\w+) all_reduce, (\d{1,12}) B: seconds, its line")
BY_HAND = (
    "ring",
    "tree",
    "naive",
)  # what the lab writes itself; the backend's own is called by the backend's name
LONGEST = 1e7  # seconds of an all-reduce
WRONG = "this is no Record of labs/collectives.py: give a file of labs/results/collectives/"


def measured(record: dict) -> dict:
    """{"ranks", "device", "backend", "sweeps": {"backend" or who: [[bytes, seconds], ...]}} of a Record.

    ValueError, in one line, for a Record of another lab, or one that does not hold two sizes of an all-reduce.
    """
    ranks, device, backend, found = (
        record.get(key) for key in ("device_count", "device", "backend", "measurement")
    )
    if record.get("stem") != "collectives" or not isinstance(found, dict):
        raise ValueError(WRONG)
    if not (
        checks.is_whole(ranks)
        and 2 <= ranks <= 10**6
        and isinstance(device, str)
        and isinstance(backend, str)
    ):
        raise ValueError(f"{WRONG}, with its backend and device, of 2 ranks or more")
    sweeps: dict[str, list[list[float]]] = {}
    for key, seconds in found.items():
        point = POINT.fullmatch(str(key))
        who = "backend" if point and point[1] == backend else point and point[1]
        if who not in ("backend", *BY_HAND):
            continue
        if not (checks.is_number(seconds) and 0 < seconds <= LONGEST):
            raise ValueError(f"{WRONG}: {key!r} must be a time above 0")
        sweeps.setdefault(who, []).append([float(point[2]), float(seconds)])
    sweeps = {who: sorted(points) for who, points in sweeps.items() if len({size for size, _ in points}) > 1}
    if not sweeps:
        raise ValueError(f"{WRONG}, with two sizes of an all-reduce or more")
    return {"ranks": ranks, "device": device[:60], "backend": backend[:20], "sweeps": sweeps}


@dataclass(frozen=True)
class Own:
    """The sweep that belongs to what is drawn: the same algorithm by hand, else the backend's own."""

    ranks: int
    words: str
    points: tuple[tuple[float, float], ...]  # (bytes, seconds)
    fits: bool  # whether it ran on as many ranks as are drawn

    @property
    def alpha(self) -> float:
        """Seconds that any message takes, by a line through the points."""
        return profile.fit(list(self.points))["alpha_seconds"]

    def draw(self, strip, wide: bool, y: float) -> str:
        """Ringed dots at the share of latency in what was measured, with seconds above some; or what does not fit."""
        place = (598, y + 13, "end") if wide else (0, y + 28, "start")
        said = svg.text(
            *place[:2],
            _cut(self.words, 310 if wide else 356),
            anchor=place[2],
            fill="key",
            bold=True,
            size=svg.SMALLEST,
        )
        if not self.fits:
            return said
        alpha = self.alpha
        seen = [(amount, seconds) for amount, seconds in self.points if SMALLEST <= amount <= LARGEST]
        dots = "".join(_dot(strip.x(amount), strip.y(min(1.0, alpha / seconds))) for amount, seconds in seen)
        return said + dots + ("".join(_times(seen, strip)) if wide else "")


def _times(points: list[tuple[float, float]], strip) -> list[str]:
    """Seconds of the points next to whole decades, in a row above the model's."""
    out = []
    for decade in DECADES:
        amount, seconds = min(points, key=lambda point: abs(log(point[0] / decade)), default=(0.0, 0.0))
        if amount and abs(log(amount / decade)) < log(1.5):
            x = strip.x(amount)
            anchor = "start" if x < strip.left + 20 else "end" if x > strip.right - 20 else "middle"
            out.append(
                svg.text(x, strip.top - 21, took(seconds), anchor=anchor, fill="key", bold=True, size=svg.SMALLEST)
            )
    return out


def _cut(words: str, width: float) -> str:
    """As much of the words as fits."""
    while svg.measure(words, 11, True) > width:
        words = words[:-2].rstrip(" …") + "…"
    return words


def _dot(x: float, y: float) -> str:
    return (
        f'<circle cx="{svg.num(x)}" cy="{svg.num(y)}" r="3.5" fill="{svg.colour("paper")}" '
        f'stroke="{svg.colour("key")}" stroke-width="2"/>'
    )


def of(own: dict | None, algorithm: str, ranks: int) -> Own | None:
    """What of `measured` belongs to the algorithm that is drawn."""
    if own is None:
        return None
    name = next(one for one in (algorithm, "backend", *own["sweeps"]) if one in own["sweeps"])
    what = f"{own['backend']}’s own" if name == "backend" else f"{name} by hand"
    fits = own["ranks"] == ranks
    words = f"your run: {what}, {own['ranks']} × {own['device']}"
    if not fits:
        words = f"your run had {own['ranks']} ranks: set Ranks to {own['ranks']} to see it here"
    return Own(own["ranks"], words, tuple((a, s) for a, s in own["sweeps"][name]), fits)
