"""The picture of the view `capstone`: efficiency by number of GPUs, and beneath it what a billion tokens take."""

from __future__ import annotations

from math import floor, log10

from scaleout.draw import guess, labels, svg
from scaleout.draw.plot import Axis, Plane
from scaleout.timing.price import EXAMPLE
from scaleout.views.capstone.levers import MOST
from scaleout.views.capstone.speedup import Curves

X = Axis(1, MOST, log=True)
X_TICKS = [(8**k, f"{8**k:,}") for k in range(5)]
PERCENT = [(20 * k, str(20 * k)) for k in range(6)]
ASKED = 512  # GPUs whose speed-up is guessed
RIGHT, MARGIN = 14, 4
NO_DDP = "DDP: does not fit one GPU"

# What the lower chart can show: the label of its axis
LOWER = {
    "hours": "time for a billion tokens",
    "price": f"price of a billion tokens, {EXAMPLE.currency}",
    "energy": "kWh for a billion tokens",
    "mfu": "MFU, %",
}
TIMES = ((0.01, "10 ms"), (0.1, "100 ms"), (1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"),
         (36e3, "10 h"), (36e4, "100 h"), (36e5, "1,000 h"), (36e6, "10k h"), (36e7, "100k h"),
         (36e8, "1M h"))  # fmt: skip


def picture(
    world: int, found: Curves, values: dict, lower: str, width: int, run: tuple[int, float, str] | None,
) -> str:  # fmt: skip
    """Both charts, with `world` GPUs marked. values: of the view; run: a reader's own, its ranks, efficiency, words."""
    strong, weak = (found.strong[world].efficiency, found.weak[world].efficiency)
    under = _Lower(values["lower_chart"], lower)
    keys, used = labels.keys(MARGIN, 4, width - 2 * MARGIN, _keys(world, found, values, run), 2)
    upper, plane = _planes(used, under, width)
    parts = [
        keys, _frame(upper), *_curves(upper, found), upper.rule(world, "muted"),
        upper.dots([(world, 100 * weak)], "compute", 5, f"weak, {world:,} GPUs: {weak:.1%}"),
        upper.dots([(world, 100 * strong)], "ink", 5, f"strong, {world:,} GPUs: {strong:.1%}"),
        _published(upper, values) if values["published"] else "",
        *(upper.own(m, 100 * share, f"your run on {m}: {share:.1%}") for m, share in values["own"]),
        upper.own(run[0], 100 * run[1], run[2]) if run else "",
        under.draw(plane, world), _mark(upper),
    ]  # fmt: skip
    label = f"Efficiency from 1 to {MOST:,} GPUs: strong {strong:.0%}, weak {weak:.0%} at {world:,}; "
    label += f"beneath, {LOWER[lower]}."
    return svg.figure(width, plane.bottom + 40, "".join(parts), label)


def asked(world: int, lower: str, width: int) -> str:
    """The axes, and no curve but one GPU's 100%."""
    under = _Lower({}, lower)
    ideal = [("muted-", f"as fast as {world:,} times one GPU")]
    keys, used = labels.keys(MARGIN, 4, width - 2 * MARGIN, ideal, 2)
    upper, plane = _planes(used, under, width)
    parts = [keys, _frame(upper), upper.rule(world, "muted"), under.draw(plane, world), _mark(upper)]
    label = f"The axes of efficiency from 1 to {MOST:,} GPUs, and of {LOWER[lower]}; what {world:,} GPUs do is asked."
    return svg.figure(width, plane.bottom + 40, "".join(parts), label)


def _planes(used: float, under: _Lower, width: int) -> tuple[Plane, Plane]:
    """The upper and the lower one, from `used` down, with the same left edge."""
    high, low = (176, 110) if width == svg.WIDE else (120, 72)
    left = max(labels.room(["100"]), under.room) + MARGIN
    upper = Plane(left, used + 26, width - left - RIGHT, high, X, Axis(0, 110))
    return upper, Plane(left, upper.bottom + 46, upper.width, low, X, under.axis)


def _keys(world: int, found: Curves, values: dict, run: tuple[int, float, str] | None) -> list[tuple[str, str]]:
    out = [
        ("ink~", f"strong, at most: {found.strong[world].efficiency:.0%}"),
        ("compute-", f"weak, at most: {found.weak[world].efficiency:.0%}"),
        ("compute:", f"DDP, weak: {found.ddp[world].efficiency:.0%}") if found.ddp else ("", NO_DDP),
    ]  # fmt: skip
    if values["published"]:
        out.append(("c6:", f"{values['published_by']}, measured"))
    if values["own"]:
        out.append(("key", f"your runs on {', '.join(str(m) for m, _ in values['own'])}"))
    if run:
        out.append(("key", run[2] + f"; beyond {MOST:,}" * (run[0] > MOST)))
    return out


def _frame(upper: Plane) -> str:
    words = "efficiency, %: tokens/s of a GPU, one GPU alone = 100"
    return upper.grid("", words, X_TICKS, PERCENT) + upper.curve(
        [(1, 100), (MOST, 100)], "muted", 1.5, "6 4", "100%"
    )


def _curves(upper: Plane, found: Curves) -> list[str]:
    lines = (
        ("ddp", "compute", "3 3", "DDP, weak"),
        ("weak", "compute", "9 3", "weak"),
        ("strong", "ink", "", "strong"),
    )
    out = []
    for kind, colour, dash, words in lines:
        curve = [(m, 100 * one.efficiency) for m, one in getattr(found, kind).items()]
        out.append(upper.curve(curve, colour, 2.5, dash, words))
    return out


def _published(upper: Plane, values: dict) -> str:
    """Small dots on a dotted line, each with what it kept of the first."""
    who, points = f"{values['published_by']}, measured", values["published"]
    out = [upper.curve([(m, 100 * at) for m, at in points], "c6", 1.5, "2 3", who)]
    for m, at in points:
        kept = f"{at / points[0][1]:.1%} on {m}, of {points[0][0]}"
        out.append(upper.dots([(m, 100 * at)], "c6", 3.5, f"{who}: {kept}"))
    return "".join(out)


def _mark(upper: Plane) -> str:
    """A guess, in GPUs' worth, as the efficiency that it means at ASKED."""
    end = upper.at_x(ASKED)
    return guess.mark([(0, upper.at_y(0)), (ASKED, upper.at_y(100))], (end - 130, end + 8))


class _Lower:
    """The lower chart. Logarithmic, but for MFU; without curves, its frame."""

    def __init__(self, curves: dict[str, list], kind: str) -> None:
        self.curves, self.kind = curves, kind
        every = [value for curve in curves.values() for _, value in curve if value > 0]
        self.empty = bool(curves) and not every
        if kind == "mfu":
            self.axis = Axis(0, svg.ticks(1.25 * max(every, default=50))[-1])
            self.ticks = [(value, labels.short(value)) for value in svg.ticks(self.axis.hi, 3)]
        else:
            low, high = floor(log10(min(every, default=1))), floor(log10(max(every, default=99))) + 1
            self.axis = Axis(10.0**low, 10.0**high, log=True)
            self.ticks = (
                _times(self.axis) if kind == "hours" else [(v, labels.short(v)) for v in self.axis.ticks()]
            )
        if not every:
            self.ticks = []

    @property
    def room(self) -> float:
        return labels.room(words for _, words in self.ticks)

    def draw(self, plane: Plane, world: int) -> str:
        if self.empty:
            return plane.grid("GPUs", f"{LOWER[self.kind]}: 0, as set for one GPU", X_TICKS, [])
        parts = [plane.grid("GPUs", LOWER[self.kind], X_TICKS, self.ticks), plane.rule(world, "muted")]
        for name, colour, dash in (("weak", "compute", "9 3"), ("strong", "ink", "")):
            if name in self.curves:
                curve = self.curves[name]
                at = dict(curve)[world]
                parts.append(plane.curve(curve, colour, 2.5, dash, name))
                parts.append(
                    plane.dots([(world, at)], colour, 4.5, f"{name}, {world:,} GPUs: {svg.quantity(at)}")
                )
        return "".join(parts)


def _times(axis: Axis) -> list[tuple[float, str]]:
    """Times that people say, in hours, at most five of them."""
    inside = [(seconds / 3600, words) for seconds, words in TIMES if axis.lo <= seconds / 3600 <= axis.hi]
    return inside[:: -(-len(inside) // 5)] if inside else []
