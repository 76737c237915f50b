"""Steps beside one another, each a row of bars: what one GPU holds at every moment, by kind, and the fullest."""

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


def step(name: str, found: Account, without: Sequence[str] = (), at: Sequence[str] = tuple(kinds.MOMENTS)) -> Step:
    """The step of an account. without: kinds that are not there before the update, as in a first step; at: the moments
    that are drawn."""
    shown = {moment: kinds.apart(found, moment) for moment in at}
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
    steps = [step(f"{n} sequence{'s' * (n > 1)}", account(shape, n, 1024), at=("rest", "loss", "optimizer"))
             for n in SEQUENCES]  # fmt: skip
    return draw(width, steps, ("usable", usable(DEVICES["rtx-4090"].memory_bytes)), 100)


def draw(
    width: float, steps: Sequence[Step], limit: tuple[str, float] | None = None, high: float = 0
) -> str:
    """Steps on one scale, beside one another where that leaves room for the names of moments; limit: words, and bytes
    at which a line is drawn; high: of the bars, in CSS pixels. ValueError for no steps."""
    if not steps:
        raise ValueError("there is no step to draw")
    room = (width - GAP * (len(steps) - 1)) / len(steps)
    columns = len(steps) if room >= NAMED * max(len(one.moments) for one in steps) else 1
    room = room if columns > 1 else width
    high = high or (190 if columns > 1 else 150)
    above = limit[1] / (1 - WORDS / high) if limit else 0  # room for what the line is, above it
    top = max(above, 1.08 * max(one.total(one.peak) for one in steps))
    out, down = [], 0.0
    for i, one in enumerate(steps):
        x, down = i % columns * (room + GAP), i // columns * (HEAD + high + FOOT + 8)
        out.append(_bars(one, x, down + HEAD, room, high, top, limit))
    y = down + HEAD + high + FOOT + 6
    marks, tall = kinds.keys((kind for one in steps for held in one.moments.values() for kind, size in held.items()
                              if size > 0.004 * top), 0, y, width)  # fmt: skip
    said = "; ".join(f"{one.name}: fullest at the {kinds.MOMENTS[one.peak]}, {one.total(one.peak) / GB:.1f} GB"
                     for one in steps)  # fmt: skip
    ends = f" The line is at {limit[1] / GB:.1f} GB." if limit else ""
    return svg.figure(width, y + tall, "".join([*out, marks]), f"Memory at each moment of a step. {said}.{ends}")


def _bars(
    one: Step, x: float, y: float, width: float, high: float, top: float,
    limit: tuple[str, float] | None,
) -> str:  # fmt: skip
    """One step: a bar a moment, its total above, the fullest framed."""
    pitch = width / len(one.moments)
    thick, scale, low = pitch * 0.76, high / top, y + high
    out, totals = [svg.text(x, y - 12, one.name, bold=True), svg.line(x, low + 0.5, x + width, low + 0.5, "muted")], []
    for i, (moment, held) in enumerate(one.moments.items()):
        left, base = x + pitch * i + (pitch - thick) / 2, low
        for kind in kinds.ORDER:
            size = held.get(kind, 0) * scale
            base -= size
            if size > 0.2:
                out.append(svg.rect(left, base, thick, size, kinds.COLOURS[kind], opacity=kinds.PALE.get(kind, 1.0)))
        if limit and one.total(moment) > limit[1]:
            out.append(hatch.over(left, base, thick, (one.total(moment) - limit[1]) * scale))
        fullest, middle = moment == one.peak, left + thick / 2
        totals.append(svg.text(middle, base - 4, _size(one.total(moment)), anchor="middle", bold=fullest, halo=True,
                               size=svg.SMALLEST))  # fmt: skip
        out.append(svg.text(middle, low + 15, kinds.MOMENTS[moment], anchor="middle", bold=fullest,
                            size=svg.SMALLEST, fill="ink" if fullest else "muted"))  # fmt: skip
        if fullest:
            out.append(svg.text(middle, low + 29, "fullest", anchor="middle", bold=True, size=svg.SMALLEST))
            out.append(f'<rect x="{svg.num(left - 2)}" y="{svg.num(base - 1)}" width="{svg.num(thick + 4)}" '
                       f'height="{svg.num(low - base + 2)}" fill="none" stroke="{svg.colour("ink")}" '
                       'stroke-width="1.5"/>')  # fmt: skip
    if limit:
        out.append(_limit(limit, x, width, low - limit[1] * scale))
    return "".join([*out, *totals])  # the line may run through a total, and lies beneath it


def _limit(limit: tuple[str, float], x: float, width: float, y: float) -> str:
    """A line, and at its left end, over what is held between two steps, what it is."""
    words = (svg.text(x, y - 4 - 13 * i, one, size=svg.SMALLEST, bold=True, halo=True)
             for i, one in enumerate((f"{_size(limit[1])} GB", limit[0])))  # fmt: skip
    return svg.line(x, y, x + width, y, "ink", 1.5, "5 3") + "".join(words)


def _size(size: float) -> str:
    return f"{size / GB:.0f}" if size >= 99.5 * GB else f"{size / GB:.1f}"
