"""The pictures of a write-up: scaling against the ideal, every step's seconds, losses, memory by kind."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scaleout.draw import plot, svg
from scaleout.writeup import facts
from scaleout.writeup.blocks import Figure

WIDTH = 640.0
LEFT_MARGIN, RIGHT_MARGIN = 72.0, 16.0
ROW = 20.0
COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "ink", "accent", "muted")


def scaling(group: facts.Scaling, number: int) -> Figure:
    """Tokens per second by number of devices: medians with their quartiles, the ideal line, and the prediction."""
    first, counts = group.runs[0], [run.record.device_count for run in group.runs]
    rate_per_device = first.record.rate / first.record.device_count
    spans = [[run.record.tokens / s for s in run.quartiles] for run in group.runs]
    guess = [(run.record.device_count, run.record.tokens / s) for run in group.runs if (s := facts.predicted_step(run))]
    top = max([rate_per_device * counts[-1], *(y for _, y in guess), *(fast for fast, _ in spans)])
    plane = plot.Plane(
        LEFT_MARGIN,
        30,
        WIDTH - LEFT_MARGIN - RIGHT_MARGIN,
        210,
        plot.Axis(0, counts[-1] * 1.05),
        plot.Axis(0, top * 1.08),
    )
    unit = "processes" if first.record.device_kind == "cpu" else "GPUs"
    body = [
        plane.grid(unit, "tokens/s", [(n, str(n)) for n in counts]),
        plane.curve([(0, 0), (counts[-1], rate_per_device * counts[-1])], "muted", 1.5, "5 4", "ideal"),
    ]
    if guess:
        body.append(plane.curve(guess, "c2", 2, "2 3", "predicted") + plane.dots(guess, "c2", 3, "predicted"))
    measured = [(run.record.device_count, run.record.rate) for run in group.runs]
    body.append(plane.curve(measured, "c1", 2, title="measured"))
    for count, (fast, slow) in zip(counts, spans, strict=True):
        body.append(svg.line(plane.at_x(count), plane.at_y(fast), plane.at_x(count), plane.at_y(slow), "c1", 5))
    body.append(plane.dots(measured, "c1", 4, "measured, median"))
    items = [("c1", "measured"), ("muted", "ideal"), *([("c2", "predicted")] if guess else [])]
    marks, high = svg.legend(LEFT_MARGIN, 292, WIDTH - LEFT_MARGIN - RIGHT_MARGIN, items)
    last, share = counts[-1], group.efficiency[counts[-1]]
    place = "the CPU" if first.record.device_kind == "cpu" else "GPUs"
    words = f"{group.title}, on {place}: {last} {unit} at efficiency {share:.2f}."
    legend = " Dots: medians. Bars: first to third quartile."
    return Figure(svg.figure(WIDTH, 296 + high, "".join(body) + marks, words), f"{group.kind}-{number}", words + legend)


def steps(runs: Sequence[facts.Run]) -> Figure:
    """Every step's seconds, a row a run: grey in the warm-up, a bar from quartile to quartile, a line at the median."""
    times = [s for run in runs for s in run.record.step_seconds]
    axis = plot.Axis(min(times) * 0.9, max(times) * 1.1, log=max(times) > 8 * min(times))
    label_width = min(240.0, 16 + 7.5 * max(len(run.name) for run in runs))
    plane = plot.Plane(label_width, 8, WIDTH - label_width - RIGHT_MARGIN, ROW * len(runs), axis, plot.Axis(0, 1))
    body = []
    for value in _round(axis):
        x = plane.at_x(value)
        body.append(svg.line(x, plane.top, x, plane.bottom))
        body.append(svg.text(x, plane.bottom + 15, facts.seconds(value), anchor="middle", fill="muted", size=12))
    for i, run in enumerate(runs):
        body.append(_row(plane, run, plane.top + ROW * (i + 0.5)))
    items = [("c1", "timed step; bar: quartiles, line: median"), ("c8", "warm-up, left out")]
    marks, high = svg.legend(8, plane.bottom + 28, WIDTH - 16, items, 2)
    words = "Time of every step" + (", one row per run." if len(runs) > 1 else ".")
    return Figure(svg.figure(WIDTH, plane.bottom + 32 + high, "".join(body) + marks, words), "steps", words)


def _round(axis: plot.Axis) -> list[float]:
    """Values to label: the axis's own, or 1, 2 and 5 times powers of ten where a log axis spans few of those."""
    if not axis.log or len(axis.ticks()) > 2:
        return axis.ticks()
    powers = range(math.floor(math.log10(axis.lo)), math.ceil(math.log10(axis.hi)) + 1)
    return [m * 10.0**k for k in powers for m in (1, 2, 5) if axis.lo <= m * 10.0**k <= axis.hi]


def _row(plane: plot.Plane, run: facts.Run, y: float) -> str:
    low, high = map(plane.at_x, run.quartiles)
    marks = [
        svg.text(plane.left - 8, y + 4, run.name, anchor="end", size=12),
        svg.rect(low, y - 7, max(1.0, high - low), 14, "c1", opacity=0.25),
    ]
    for i, s in enumerate(run.record.step_seconds):
        warm = i < run.record.warmup_steps
        lift = 3.0 * (i % 3 - 1)  # so that equal steps do not hide each other
        marks.append(
            f'<circle cx="{svg.num(plane.at_x(s))}" cy="{svg.num(y + lift)}" r="2" '
            f'fill="{svg.colour("c8" if warm else "c1")}" fill-opacity="0.6"/>'
        )
    x = plane.at_x(run.record.median)
    return "".join([*marks, svg.line(x, y - 8, x, y + 8, "ink", 2)])


def losses(runs: Sequence[facts.Run]) -> Figure | None:
    """The loss by step, a curve a run, with its validations as dots; None where no run has two losses."""
    shown = [run for run in runs if len(run.record.losses) > 1]
    if not shown:
        return None
    dots = {run.name: _validations(run) for run in shown}
    values = [loss for run in shown for loss in run.record.losses] + [y for runs in dots.values() for _, y in runs]
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or 0.5
    longest = max(len(run.record.losses) for run in shown)
    plane = plot.Plane(
        LEFT_MARGIN,
        30,
        WIDTH - LEFT_MARGIN - RIGHT_MARGIN,
        180,
        plot.Axis(0, longest),
        plot.Axis(low - room, high + room),
    )
    body = [plane.grid("step", "loss, nats per token")]
    for i, run in enumerate(shown):
        dash = ("", "6 3", "2 3")[i // len(COLOURS) % 3]
        colour = COLOURS[i % len(COLOURS)]
        body.append(plane.curve(list(enumerate(run.record.losses, 1)), colour, 2, dash, run.name))
        body.append(plane.dots(dots[run.name], colour, 3.5, f"{run.name}: validation"))
    marks, tall = svg.legend(
        LEFT_MARGIN,
        262,
        WIDTH - LEFT_MARGIN - RIGHT_MARGIN,
        [(COLOURS[i % len(COLOURS)], run.name) for i, run in enumerate(shown)],
        3 if max(len(run.name) for run in shown) < 22 else 2,
    )
    words = "Loss by step, the mean over all ranks." + (" Dots: on held-out text." if any(dots.values()) else "")
    return Figure(svg.figure(WIDTH, 266 + tall, "".join(body) + marks, words), "loss", words)


def _validations(run: facts.Run) -> list[tuple[float, float]]:
    """(step, loss on text held out) of a run, where its Record has both series."""
    series = run.record.series
    nothing: Sequence[float] = ()
    steps = next((values for name, values in series.items() if name.startswith("validation step")), nothing)
    values = next((values for name, values in series.items() if name.startswith("validation nats")), nothing)
    return list(zip(steps, values, strict=True)) if len(steps) == len(values) else []


def memory(runs: Sequence[facts.Run]) -> Figure | None:
    """Bytes of one rank at its peak by kind, a bar a run; None where no Record has any."""
    shown = [run for run in runs if any(run.record.peak_memory.values())]
    if not shown:
        return None
    kinds = memory_kinds(shown)
    label_width = min(240.0, 16 + 7.5 * max(len(run.name) for run in shown))
    wide, top = WIDTH - label_width - RIGHT_MARGIN, max(sum(_peak_bytes(run).values()) for run in shown)
    unit, scale = ("GB", 1e9) if top >= 1e9 else ("MB", 1e6)
    body = [svg.axis_x(label_width, 12 + ROW * len(shown), wide, top / scale, unit, 8)]
    for i, run in enumerate(shown):
        sizes = [_peak_bytes(run).get(kind, 0) for kind in kinds]
        parts = [
            (COLOURS[k % len(COLOURS)], sizes[k], f"{kind}: {facts.data_bytes(sizes[k])}")
            for k, kind in enumerate(kinds)
        ]
        body.append(svg.text(label_width - 8, 8 + ROW * (i + 0.5) + 4, run.name, anchor="end", size=12))
        body.append(svg.stacked_bar(label_width, 10 + ROW * i, ROW - 4, wide / top, parts))
    marks, tall = svg.legend(
        8, 40 + ROW * len(shown), WIDTH - 16, [(COLOURS[k % len(COLOURS)], kind) for k, kind in enumerate(kinds)], 4
    )
    words = "Memory per rank at the peak, by kind."
    high = math.ceil(44 + ROW * len(shown) + tall)
    return Figure(svg.figure(WIDTH, high, "".join(body) + marks, words), "memory", words)


def memory_kinds(runs: Sequence[facts.Run]) -> list[str]:
    """Kinds that hold something in at least one run, in the Records' order; without the allocator's own band."""
    return list(dict.fromkeys(kind for run in runs for kind, size in _peak_bytes(run).items() if size))


def _peak_bytes(run: facts.Run) -> dict[str, int]:
    return {kind: size for kind, size in run.record.peak_memory.items() if not kind.startswith("allocator: ")}
