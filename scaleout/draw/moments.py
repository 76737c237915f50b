"""Steps side by side, each a row of bars: the memory in use on one GPU at every moment, by kind, and the fullest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaleout.draw import hatch, kinds, svg
from scaleout.memory.accounts import Account, account
from scaleout.memory.allocator import usable
from scaleout.spec.devices import DEVICES, GB
from scaleout.spec.transformer import PRESETS

HEAD, FOOT = 26, 40  # CSS pixels: a step's name above its bars, the moments' names and the fullest below them
GAP = 28  # from one step to the next
WORDS = 30  # that the words at the limit take
NAMED = 36  # that a bar needs to have its moment's name


@dataclass(frozen=True)
class Step:
    """A step: its name, and bytes by kind at each moment that is drawn, in the order of the step."""

    name: str
    moments: dict[str, dict[str, int]]

    def total(self, moment: str) -> float:
        return sum(self.moments[moment].values())

    @property
    def peak(self) -> str:
        return max(self.moments, key=self.total)


def step(name: str, ledger: Account, without: Sequence[str] = (), at: Sequence[str] = tuple(kinds.MOMENTS)) -> Step:
    """The step of an account. without: kinds that are not there before the update, as in a first step; at: the moments
    that are drawn."""
    shown = {moment: kinds.apart(ledger, moment) for moment in at}
    for moment in shown.keys() - {"optimizer"}:
        shown[moment] |= dict.fromkeys(without, 0)
    return Step(name, shown)


SEQUENCES = (1, 8)  # of 1,024 tokens, in `opening`


def opening(width: float) -> str:
    """GPT-2 large on a GPU of 24 GB: with one sequence the update is the fullest moment, with eight the loss."""
    shape = PRESETS["gpt2-large"]
    steps = [step(f"{n} sequence{'s' * (n > 1)}", account(shape, n, 1024)) for n in SEQUENCES]
    return draw(width, steps, ("usable", usable(DEVICES["rtx-4090"].memory_bytes)))


def small(width: float) -> str:
    """The same on a card: three moments, and low bars."""
    shape = PRESETS["gpt2-large"]
    steps = [
        step(f"{n} sequence{'s' * (n > 1)}", account(shape, n, 1024), at=("rest", "loss", "optimizer"))
        for n in SEQUENCES
    ]
    return draw(width, steps, ("usable", usable(DEVICES["rtx-4090"].memory_bytes)), 100)


def draw(width: float, steps: Sequence[Step], limit: tuple[str, float] | None = None, high: float = 0) -> str:
    """Steps on one scale, beside one another where that leaves room for the names of moments; limit: words, and bytes
    at which a line is drawn; high: of the bars, in CSS pixels. ValueError for no steps."""
    if not steps:
        raise ValueError("there is no step to draw")
    room = (width - GAP * (len(steps) - 1)) / len(steps)
    columns = len(steps) if room >= NAMED * max(len(row.moments) for row in steps) else 1
    room = room if columns > 1 else width
    high = high or (190 if columns > 1 else 150)
    above = limit[1] / (1 - WORDS / high) if limit else 0  # room for what the line is, above it
    top = max(above, 1.08 * max(row.total(row.peak) for row in steps))
    panels, row_y = [], 0.0
    for i, row in enumerate(steps):
        x, row_y = i % columns * (room + GAP), i // columns * (HEAD + high + FOOT + 8)
        panels.append(_bars(row, x, row_y + HEAD, room, high, top, limit))
    y = row_y + HEAD + high + FOOT + 6
    marks, tall = kinds.keys(
        (kind for row in steps for sizes in row.moments.values() for kind, size in sizes.items() if size > 0.004 * top),
        0,
        y,
        width,
    )
    summary = "; ".join(
        f"{row.name}: fullest at the {kinds.MOMENTS[row.peak]}, {row.total(row.peak) / GB:.1f} GB" for row in steps
    )
    ends = f" The line is at {limit[1] / GB:.1f} GB." if limit else ""
    return svg.figure(width, y + tall, "".join([*panels, marks]), f"Memory at each moment of a step. {summary}.{ends}")


def _bars(
    step: Step,
    x: float,
    y: float,
    width: float,
    high: float,
    top: float,
    limit: tuple[str, float] | None,
) -> str:
    """One step: a bar a moment, its total above, the fullest framed."""
    pitch = width / len(step.moments)
    thick, scale, low = pitch * 0.76, high / top, y + high
    marks, totals = (
        [svg.text(x, y - 12, step.name, bold=True), svg.line(x, low + 0.5, x + width, low + 0.5, "muted")],
        [],
    )
    for i, (moment, sizes) in enumerate(step.moments.items()):
        left, base = x + pitch * i + (pitch - thick) / 2, low
        for kind in kinds.ORDER:
            size = sizes.get(kind, 0) * scale
            base -= size
            if size > 0.2:
                marks.append(svg.rect(left, base, thick, size, kinds.COLOURS[kind], opacity=kinds.PALE.get(kind, 1.0)))
        if limit and step.total(moment) > limit[1]:
            marks.append(hatch.excess(left, base, thick, (step.total(moment) - limit[1]) * scale))
        fullest, middle = moment == step.peak, left + thick / 2
        totals.append(
            svg.text(
                middle, base - 4, _size(step.total(moment)), anchor="middle", bold=fullest, halo=True, size=svg.SMALLEST
            )
        )
        marks.append(
            svg.text(
                middle,
                low + 15,
                kinds.MOMENTS[moment],
                anchor="middle",
                bold=fullest,
                size=svg.SMALLEST,
                fill="ink" if fullest else "muted",
            )
        )
        if fullest:
            marks += [
                svg.text(middle, low + 29, "fullest", anchor="middle", bold=True, size=svg.SMALLEST),
                svg.frame(left - 2, base - 1, thick + 4, low - base + 2, "ink", 1.5),
            ]
    if limit:
        marks.append(_limit(limit, x, width, low - limit[1] * scale))
    return "".join([*marks, *totals])  # the line may run through a total, and lies beneath it


def _limit(limit: tuple[str, float], x: float, width: float, y: float) -> str:
    """A line, and at its left end, over the memory used between two steps, its label."""
    words = (
        svg.text(x, y - 4 - 13 * i, line, size=svg.SMALLEST, bold=True, halo=True)
        for i, line in enumerate((f"{_size(limit[1])} GB", limit[0]))
    )
    return svg.line(x, y, x + width, y, "ink", 1.5, "5 3") + "".join(words)


def _size(size: float) -> str:
    return f"{size / GB:.0f}" if size >= 99.5 * GB else f"{size / GB:.1f}"
