"""The landscape of the view `planner`: every layout is a point, by step time and memory of the fullest GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from scaleout.draw import svg
from scaleout.draw.field import field, shapes
from scaleout.draw.labels import cut, fitting
from scaleout.draw.plot import Axis, Plane
from scaleout.draw.spots import Spots
from scaleout.timing.plan import Plan
from scaleout.views.base import kept
from scaleout.views.planner import chips, words
from scaleout.views.planner.chips import LOOKS
from scaleout.views.planner.published import published_run
from scaleout.views.planner.setting import ALONE, KINDS, Cuts, Setting, cuts_of
from scaleout.words.amounts import amount, took

FARTHEST = 5.0  # times the best that the axis of seconds goes to
HIGH = 16.0  # times the card that the axis of bytes goes to

HINT = "point at one: why it is slower; press: choose it"


@dataclass(frozen=True)
class Places:
    """In CSS pixels: the plane's left, top, width and height, and where the keys begin."""

    plane: tuple[float, float, float, float]
    keys: float
    height: float


PLACES = {
    svg.WIDE: Places((42, 70, 550, 238), 28, 490),
    svg.NARROW: Places((36, 99, 316, 135), 28, 400),
}


@dataclass(frozen=True)
class Scene:
    """A setting on a plane of a width. show: the only KIND whose points are lit and can be pressed, "" for all."""

    setting: Setting
    width: int
    show: str = ""

    @cached_property
    def places(self) -> Places:
        return PLACES[self.width]

    @cached_property
    def plane(self) -> Plane:
        card = self.setting.job.device.memory_bytes
        yours = [self.setting.yours] if isinstance(self.setting.yours, Plan) else []
        ends, reach = _reach(self.setting.standing)
        seconds, sizes = [*ends, *(plan.seconds for plan in yours)], [*reach, *(plan.bytes for plan in yours)]
        start = self.start if ends else min(seconds, default=1.0)
        left, last = min(ends, default=start), max(seconds, default=2.0)
        low, high = min(sizes, default=card), max(sizes, default=card)
        x = Axis(max(0.97 * left, 0.8 * start), min(max(1.03 * last, 1.6 * start), FARTHEST * start), log=True)
        y = Axis(min(0.8 * low, 0.6 * card), min(max(1.25 * high, 1.6 * card), HIGH * card), log=True)
        return Plane(*self.places.plane, x, y)

    @cached_property
    def start(self) -> float:
        """Step time of the fastest layout that fits, or if none fits of the fastest of all."""
        plans = self.setting.result.plans or self.setting.result.over
        return min((plan.seconds for plan in plans), default=1.0)

    def xy(self, plan: Plan) -> tuple[float, float]:
        return _xy(self.plane, plan)


def _xy(plane: Plane, plan: Plan) -> tuple[float, float]:
    return plane.at_x(plan.seconds), plane.at_y(plan.bytes)


# Parts that do not depend on the reader's own layout are made once per question and plane.


@kept
def _reach(setting: Setting) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The shortest and longest step time of all layouts, and their least and most memory; nothing if there are none."""
    plans = setting.plans
    seconds, sizes = [plan.seconds for plan in plans], [plan.bytes for plan in plans]
    return ((min(seconds), max(seconds)), (min(sizes), max(sizes))) if plans else ((), ())


@kept
def _places(setting: Setting, plane: Plane) -> tuple[tuple[float, float], ...]:
    """Where each layout is, in the order of `Setting.plans`."""
    return tuple(_xy(plane, plan) for plan in setting.plans)


def drawn(setting: Setting, width: int, show: str = "") -> str:
    """The whole landscape."""
    scene, standing = Scene(setting, width, show), setting.standing
    body = [_ground(scene), _cloud(standing, scene.plane, show), _front(standing, scene.plane)]
    spots = _spots(scene)
    body += [_published(scene, spots), _chosen(scene, spots), _alone(scene, spots)]
    keys = chips.drawn(setting, width, scene.places.keys, show)
    return "".join([*body, keys, _field(standing, scene.plane, width, show)])


# --- what lies behind -------------------------------------------------------------------------------------------


def _ground(scene: Scene) -> str:
    """Axes, the band, and the line of usable memory."""
    plane, setting, start = scene.plane, scene.setting, scene.start
    multiples = (1, 1.5, 2, 3, 5, 1.25, 4) if setting.plans else ()
    times = _clear_ticks(plane, [(start * k, took(start * k)) for k in multiples])
    gbs = [(k * 1e9, f"{k:,}") for k in _powers(plane.y.lo / 1e9, 0.85 * plane.y.hi / 1e9)]
    parts = []
    if setting.best:
        left, right = plane.at_x(start), min(plane.right, plane.at_x(setting.result.limit))
        parts.append(
            svg.rect(
                left,
                plane.top,
                right - left,
                plane.height,
                "key",
                opacity=0.13,
                title=f"within {setting.percent} of the fastest: equally fast",
                mark="band",
            )
        )
    line = plane.at_y(setting.usable)
    parts.append(svg.rect(plane.left, plane.top, plane.width, line - plane.top, "accent", opacity=0.06))
    parts.append(plane.grid("", "", times, gbs))
    room = amount(setting.usable, 10**9)
    parts.append(svg.line(plane.left, line, plane.right, line, "accent", 2, "4 2", mark="room line"))
    ways = (f"above {room}: does not fit", "above: no fit")
    parts.append(
        svg.text(
            plane.right - 3,
            line - 5,
            fitting(ways, plane.width),
            anchor="end",
            fill="accent",
            size=svg.SMALLEST,
            halo=True,
        )
    )
    low = plane.bottom + 29
    if setting.plans:
        best = "▴ the fastest" if setting.best else "▴ the fastest, which does not fit"
        parts.append(
            svg.text(
                max(plane.left, plane.at_x(start) - 4),
                low,
                fitting((best, "▴ fastest"), 190),
                fill="muted",
                size=svg.SMALLEST,
            )
        )
    reach = f", up to {FARTHEST:g} times the fastest" if scene.width == svg.WIDE and setting.plans else ""
    parts.append(svg.text(plane.right, low, f"step time{reach} ▸", anchor="end", fill="muted", size=svg.SMALLEST))
    parts.append(
        svg.text(plane.left + 4, plane.top + 12, "GB on the fullest GPU", fill="muted", size=svg.SMALLEST, halo=True)
    )
    return "".join(parts)


def _clear_ticks(plane: Plane, ticks: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Of these ticks those that are on the axis and in the way of none before them."""
    clear: list[tuple[float, str]] = []
    spans: list[tuple[float, float]] = []
    for value, label in ticks:
        half = svg.measure(label, svg.SMALL) / 2 + 4
        center = min(plane.at_x(value), plane.right + 8 - half)  # where `Plane.grid` writes it
        if value <= plane.x.hi and all(abs(center - middle) > half + wide for middle, wide in spans):
            spans.append((center, half))
            clear.append((value, label))
    return clear


def _powers(low: float, high: float) -> list[int]:
    """Whole GB that are labelled: doublings of five, thinned to at most six."""
    labels = [5 * 2**k for k in range(-2, 14) if low <= 5 * 2**k <= high and 5 * 2**k >= 5]
    return labels[:: max(1, -(-len(labels) // 6))]


@kept
def _cloud(setting: Setting, plane: Plane, show: str) -> str:
    """Every layout; what fits lies on top."""
    places: dict[str, list] = {kind: [] for kind in KINDS}
    for kind, place in zip(setting.kinds, _places(setting, plane), strict=True):
        places[kind].append(place)
    parts = []
    for kind in reversed(KINDS):
        shape, fill, filled, _ = LOOKS[kind]
        faint = 0.15 if show not in ("", kind) else 0.55 if kind == "over" and not show else 1.0
        parts.append(shapes(places[kind], shape, fill, filled, faint, True))
    return "".join(parts)


@kept
def _front(setting: Setting, plane: Plane) -> str:
    """The price of less memory: no layout that fits is both faster and smaller than one on this line."""
    steps, least = [], None
    for plan in setting.result.plans:
        if least is None or plan.bytes < least:
            x, y = _xy(plane, plan)
            steps.append(f"M{svg.num(x)} {svg.num(y)}" if least is None else f"H{svg.num(x)}V{svg.num(y)}")
            least = plan.bytes
    return (
        (
            f'<path d="{"".join(steps)}" fill="none" stroke="{svg.colour("ink")}" stroke-opacity="0.45" '
            'stroke-width="1" data-mark="front"/>'
        )
        if steps
        else ""
    )


# --- marks with names -------------------------------------------------------------------------------------------


def _spots(scene: Scene) -> Spots:
    """Where names may stand: inside the plane, clear of the words at its edges and of the marks that have names."""
    plane, setting = scene.plane, scene.setting
    line = plane.at_y(setting.usable)
    boxes = [
        (plane.left, plane.top, plane.left + 140, plane.top + 15),
        (plane.right - 160, line - 17, plane.right, line),
    ]
    for plan in (setting.shown, setting.yours):
        if isinstance(plan, Plan):
            x, y = scene.xy(plan)
            boxes.append((x - 8, y - 8, x + 8, y + 8))
    return Spots((plane.left, plane.top, plane.right, plane.bottom), _places(setting.standing, plane), boxes)


def _ring(x: float, y: float, fill: str, mark: str, dash: str = "") -> str:
    return svg.circle(x, y, 7, stroke=fill, thick=2.2, dash=dash, mark=mark)


def _chosen(scene: Scene, spots: Spots) -> str:
    """The best layout, or if nothing fits the smallest, and the reader's own."""
    setting, parts = scene.setting, []
    if setting.shown:
        x, y = scene.xy(setting.shown)
        name = "best" if setting.best else "least"
        text = took(setting.shown.seconds) if setting.best else f"{words.gb(setting.shown.bytes)} GB"
        parts += [_ring(x, y, "ink", "best"), spots.say(x, y, (f"{name}: {text}", name), "ink", "best")]
    if isinstance(setting.yours, Plan):
        x, y = scene.xy(setting.yours)
        parts.append(_ring(x, y, "key", "yours", "4 2.5"))
        if setting.best is None or cuts_of(setting.yours) != cuts_of(setting.best):
            alone = ", FSDP alone" if cuts_of(setting.yours)[:4] == ALONE[:4] else ""
            text = f"yours{alone}: {took(setting.yours.seconds)}"
            parts.append(spots.say(x, y, (text, "yours"), "key", "yours"))
    return "".join(parts)


def _alone(scene: Scene, spots: Spots) -> str:
    """The layout of FSDP alone."""
    if scene.setting.cuts[:4] == ALONE[:4]:
        return ""
    plans = [plan for plan in scene.setting.plans if cuts_of(plan)[:4] == ALONE[:4] and plan is not scene.setting.shown]
    plan = min(plans, key=lambda candidate: (not candidate.fits, candidate.seconds), default=None)
    return spots.say(*scene.xy(plan), ("FSDP alone",), "muted", "fsdp") if plan else ""


def _published(scene: Scene, spots: Spots) -> str:
    """A published run, and a line from it to what is predicted for it here."""
    run = published_run(scene.setting)
    if run is None:
        return ""
    y = scene.plane.at_y(run.bytes)
    published_x, predicted_x = scene.plane.at_x(run.seconds), scene.plane.at_x(run.predicted)
    words_ = spots.say(
        published_x,
        y,
        (f"{run.runner}: {took(run.seconds)}, predicted {took(run.predicted)}", run.runner),
        "ink",
        "published",
    )
    return (
        svg.line(published_x, y, predicted_x, y, "ink", 2, mark="published error")
        + f'<path d="M{svg.num(published_x)} {svg.num(y)}m-4.5 0l4.5-4.5l4.5 4.5l-4.5 4.5z" fill="{svg.colour("c7")}" '
        f'stroke="{svg.colour("ink")}" data-mark="published"/>' + words_
    )


# --- the control ---------------------------------------------------------------------------------------------------


@kept
def _layouts(setting: Setting, width: int, show: str) -> list[tuple[Plan, Cuts, str]]:
    """Every layout that is shown, the fastest first, with its text; the same for all layouts of the reader's."""
    plans = [plan for plan, kind in zip(setting.plans, setting.kinds, strict=True) if show in ("", kind)]
    return [
        (plan, cuts_of(plan), cut(_remark(setting, plan), width - 10))
        for plan in sorted(plans, key=lambda candidate: candidate.seconds)
    ]


def _remark(setting: Setting, plan: Plan) -> str:
    """The step time if it comes from the full model, else a multiple of the fastest; why it is slower; its degrees."""
    times = f"about {plan.seconds / setting.result.fastest:.2g} times the fastest" if plan.fits else ""
    first = took(plan.seconds) if plan.exact else times
    reason = ", ".join(filter(None, (first, setting.reason(plan))))
    return f"{reason}: {words.layout(plan, dp=False)}"


@kept
def _field(setting: Setting, plane: Plane, width: int, show: str) -> str:
    """The control over the plane: pressing picks the nearest layout shown."""
    points = [(*_xy(plane, plan), cuts, remark) for plan, cuts, remark in _layouts(setting, width, show)]
    label = f"{len(points)} layouts by step time. Arrow keys move from one to the next, Enter makes one yours."
    hint = (plane.left - 36, plane.top - 7, HINT)
    return field((plane.left, plane.top, plane.width, plane.height), Cuts._fields, points, hint, label)
