"""The picture of the view `capstone`, strong next to weak scaling: the batch and the step, how a GPU spends its time by
number of GPUs, and what a billion tokens take."""

from __future__ import annotations

from scaleout.draw import guess, labels, svg
from scaleout.draw.plot import Plane
from scaleout.views.capstone import areas, deal, lower
from scaleout.views.capstone.frame import Frame
from scaleout.views.capstone.speedup import Curves, Setting
from scaleout.words.amounts import count, took

GUESS_GPUS = 512  # GPUs whose speed-up is guessed

Run = tuple[int, float | None, str]  # a reader's: ranks, efficiency where it is known, words


def picture(setting: Setting, scaled: Curves, values: dict, lower_kind: str, width: int, run: Run | None) -> str:
    """Both panels, with the chosen number of GPUs marked. values: of the view; lower_kind: what the bars show."""
    world, frame = setting.world, Frame(width)
    strong, weak = frame.panels
    key, used = areas.keys(frame, _measured(values, run))
    planes = [frame.plane(panel, used) for panel in frame.panels]
    parts = [
        key,
        *_titles(frame, setting, values),
        deal.batch(strong, frame, setting, values),
        deal.step(weak, frame, scaled, values),
        areas.draw(planes[0], scaled.strong, world, "strong"),
        areas.draw(planes[1], scaled.weak, world, "weak"),
        _published(planes[1], values),
        _reader_points(planes, values, run),
        *(
            lower.draw(plane, frame, values["lower_chart"], kind, lower_kind, world)
            for plane, kind in zip(planes, ("strong", "weak"), strict=True)
        ),
        *(
            areas.chosen_line(
                plane, world, values[f"{kind}_efficiency"], f"{kind}: {values[f'{kind}_efficiency']:.1%}", kind
            )
            for plane, kind in zip(planes, ("strong", "weak"), strict=True)
        ),
        _mark(planes[0]),
    ]
    label = f"{world:,} GPUs compared with one. Strong scaling: efficiency {values['strong_efficiency']:.0%}, "
    label += f"communication {values['strong_waits']:.0%} and idle {values['strong_idle']:.0%} of the time. "
    label += f"Weak scaling: efficiency {values['weak_efficiency']:.0%}, communication {values['weak_waits']:.0%}. "
    label += f"Beneath, {lower.NAMES[lower_kind]}."
    return svg.figure(width, frame.height(used), "".join(parts), label)


def locked(setting: Setting, lower_kind: str, width: int) -> str:
    """The batch, and empty axes; how the GPUs spend their time is asked."""
    frame = Frame(width)
    strong, weak = frame.panels
    key, used = areas.keys(frame, [])
    planes = [frame.plane(panel, used) for panel in frame.panels]
    title_values = {"sequences_each": setting.passes(setting.world)[0], "strong_idle": 0.0}
    parts = [
        key,
        *_titles(frame, setting, title_values),
        deal.batch(strong, frame, setting, title_values),
        deal.empty_step(weak, frame),
    ]
    parts += [areas.empty(plane, setting.world) for plane in planes]
    parts += [
        svg.text(panel.x, plane.bottom + frame.price, lower.NAMES[lower_kind], size=frame.small, fill="muted")
        for panel, plane in zip(frame.panels, planes, strict=True)
    ]
    label = f"{setting.batch:,} sequences divided among {setting.world:,} GPUs, and empty axes: guess first."
    return svg.figure(width, frame.height(used), "".join([*parts, _mark(planes[0])]), label)


TITLES = {"strong": ("Same batch, more GPUs", "Same batch"),
          "weak": ("Same work per GPU, more GPUs", "Same work per GPU")}  # fmt: skip


def _titles(frame: Frame, setting: Setting, values: dict) -> list[str]:
    """Of both panels, and beneath each what a GPU has."""
    n, gpu_sequences, idle = setting.world, values["sequences_each"], values["strong_idle"]
    gpus = count(n, "GPU")
    share = f"{count(gpu_sequences, 'sequence')}{'' if n == 1 else ' each'}"
    shared = share
    if idle > 0.001:
        shared = f"{n - setting.batch:,} have none" if n > setting.batch else f"{share}, {idle:.0%} idle"
    parts = []
    for panel, kind, words in zip(frame.panels, TITLES, (shared, share), strict=True):
        seconds = values.get(f"{kind}_seconds")
        title = labels.fitting(TITLES[kind], panel.width - svg.measure(kind, frame.small) - 8, svg.FONT, True)
        text = f"{gpus}: {words}"
        ways = ([f"{text}, {took(seconds)}"] if seconds else []) + [text, gpus]
        parts += [
            svg.text(panel.x, frame.title, title or TITLES[kind][1], bold=True, size=svg.FONT if title else svg.SMALL),
            svg.text(panel.x + panel.width - 3, frame.title, kind, anchor="end", fill="muted", size=frame.small),
            svg.text(panel.x, frame.caption, labels.fitting(ways, panel.width, frame.small), size=frame.small),
        ]
    return parts


def _measured(values: dict, run: Run | None) -> list[tuple[str, str]]:
    """Keys of the measured points: published runs and the reader's."""
    entries = []
    if values["published"]:
        entries.append(("measured", f"{values['published_by']}, measured"))
    if values["own"]:
        entries.append(("key", f"your runs on {', '.join(str(m) for m, _ in values['own'])}"))
    if run:
        entries.append(("" if run[1] is None else "key", run[2] + "; beyond 4,096" * (run[0] > 4096)))
    return entries


def _published(plane: Plane, values: dict) -> str:
    """Squares on a dashed line, each with what it kept of the first."""
    if not values["published"]:
        return ""
    series_name, points = f"{values['published_by']}, measured", values["published"]
    places = [(plane.at_x(m), plane.at_y(share)) for m, share in points]
    line = " ".join(f"{svg.num(x)},{svg.num(y)}" for x, y in places)
    parts = [
        f'<polyline points="{line}" fill="none" stroke="{svg.colour("paper")}" stroke-width="1.5" '
        'stroke-dasharray="3 3"/>'
    ]
    parts += [
        areas.square(x, y, f"{series_name}: {share / points[0][1]:.1%} on {m}, of {points[0][0]}")
        for (x, y), (m, share) in zip(places, points, strict=True)
    ]
    return "".join(parts)


def _reader_points(planes: list[Plane], values: dict, run: Run | None) -> str:
    """Rates of one batch, where they are an efficiency: that of the fewest processes is known."""
    parts = [planes[0].own(m, share, f"your run on {m}: {share:.1%}") for m, share in values["own"]]
    if run and (share := run[1]) is not None:
        parts.append(planes[0].own(run[0], share, run[2]))
    return "".join(parts)


def _mark(plane: Plane) -> str:
    """A guess, in GPUs' worth, as the efficiency that it means at GUESS_GPUS."""
    end = plane.at_x(GUESS_GPUS)
    return guess.mark([(0, plane.at_y(0)), (GUESS_GPUS, plane.at_y(1))], (max(plane.left, end - 130), end + 8))
