"""The picture of the view `architecture`. One row per rank: how long it was in the all-reduce of each step, the sum,
and the chosen step on a lane. Beneath them, a day of such steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from scaleout.draw import guess, hatch, labels, svg
from scaleout.timing.stragglers import (
    COLLECT,
    COLLECTIVES,
    COMPUTE,
    EVALUATE,
    INPUT,
    OTHER,
    PART_OF,
    SAVE,
    UPDATE,
    Row,
    stored,
)  # fmt: skip
from scaleout.views.architecture.setting import NONE, Setting
from scaleout.views.architecture.words import SHORT
from scaleout.words.amounts import took

FILLS = {COMPUTE: "compute", INPUT: "c7", UPDATE: "c2", SAVE: "c6", COLLECT: "c5", EVALUATE: "c1", OTHER: "c8"}
NETWORK = "c4"
DAY = {"work": "compute", "stragglers": "c8", "saves": "c6", "lost": "accent", "restarts": "c1"}
DAY_NAMES = {"work": "useful work", "lost": "lost work"}
FAINTEST, FULL = 0.07, 0.9  # opacity of no time; the quantile of all squares from which a square is solid


@dataclass(frozen=True)
class Frame(svg.Sized):
    """Where things lie, in CSS pixels. pitch: from one rank to the next."""

    setting: Setting
    width: int
    locked: bool = False

    pitch = svg.either(29.0, 27.0)

    @property
    def high(self) -> float:
        return self.pitch - 7

    @property
    def top(self) -> float:
        return 22.0

    def y(self, rank: int) -> float:
        return self.top + rank * self.pitch

    left = svg.either(50.0, 16.0)
    cell = svg.either(8.0, 4.5)

    @property
    def sums(self) -> float:
        """Where the sums begin."""
        return self.left + len(stored().steps) * self.cell + 6

    @property
    def lane(self) -> float:
        """Where the lanes begin."""
        return self.sums + (54 if self.wide else 26)

    @property
    def right(self) -> float:
        return self.width - 6.0

    @cached_property
    def scale(self) -> float:
        """CSS pixels per second of a lane: the longest recorded step fills it."""
        return (self.right - self.lane) / max(map(_long, stored().steps))

    @property
    def below(self) -> float:
        return self.y(stored().ranks) + 2


def _long(rows: tuple[Row, ...]) -> float:
    return max(row.end for row in rows) - min(row.start for row in rows)


def picture(setting: Setting, width: int) -> str:
    frame = Frame(setting, width)
    body = [_heads(frame), _squares(frame), _sums(frame), _lanes(frame), _mark(frame)]
    keys, y = _keys(frame)
    day, bottom = _day(frame, y)
    return svg.figure(width, bottom, "".join([*body, keys, day]), _label(setting))


def locked(setting: Setting, width: int) -> str:
    """The squares and their sums."""
    frame = Frame(setting, width, locked=True)
    body = [_heads(frame), _squares(frame), _sums(frame), _mark(frame)]
    return svg.figure(width, frame.below + 22, "".join(body), "The time of each rank in the all-reduce of each step.")


def _heads(frame: Frame) -> str:
    setting, y = frame.setting, 13
    ways = ["time in the all-reduce, by step", "all-reduce, by step"]
    parts = [svg.text(frame.left, y, labels.fitting(ways, frame.sums - frame.left, svg.SMALLEST), size=svg.SMALLEST,
                      fill="muted")]  # fmt: skip
    last = len(stored().steps) - 1
    parts += [
        svg.text(frame.left, frame.below + 12, "0", size=svg.SMALLEST, fill="muted"),
        svg.text(frame.sums - 6, frame.below + 12, str(last), anchor="end", size=svg.SMALLEST, fill="muted"),
    ]
    if frame.locked:
        parts.append(svg.text(frame.sums, y, f"sum of {last + 1} steps", size=svg.SMALLEST, fill="muted"))
        return "".join(parts)
    parts.append(svg.text(frame.sums, y, "sum", size=svg.SMALLEST, fill="muted"))
    whole = f"step {setting.step}: {1e3 * setting.length:.0f} ms"
    parts.append(svg.text(frame.lane, y, whole, size=svg.SMALL, bold=True, mark="step"))
    return "".join(parts)


def _squares(frame: Frame) -> str:
    trace = frame.setting.trace
    every = sorted(row.waited for rows in stored().steps for row in rows)
    solid = every[int(FULL * (len(every) - 1))]
    parts = []
    for rank in range(trace.ranks):
        words = f"rank {rank}" if frame.wide else str(rank)
        slow = not frame.locked and rank == frame.setting.verdict.rank
        y = frame.y(rank)
        row = [svg.text(4, y + frame.high / 2 + 4, words, bold=slow, fill="accent" if slow else "ink", size=svg.SMALL)]
        for i, one in enumerate(trace.rows(rank)):
            opacity = min(1.0, FAINTEST + (1 - FAINTEST) * one.waited / solid)
            x = frame.left + i * frame.cell
            row.append(svg.rect(x, y, frame.cell - 0.8, frame.high, NETWORK, opacity=round(opacity, 2)))
        parts.append("".join(row) if frame.locked else _press(frame, rank, "".join(row)))
        if slow:
            parts.append(_outline(frame.left - 2, y - 2, frame.sums - frame.left - 3, frame.high + 4, "accent", 1.6))
    if not frame.locked:
        x = frame.left + frame.setting.step * frame.cell - 0.9
        parts.append(_outline(x, frame.top - 3, frame.cell + 1, frame.pitch * trace.ranks - 1, "ink", 1.2, "chosen"))
    return "".join(parts)


def _press(frame: Frame, rank: int, body: str) -> str:
    """A row as a button that replaces its rank by the median, or gives it back."""
    replaced = frame.setting.rank == str(rank)
    label = f"rank {rank}: {'as it was recorded' if replaced else 'replace by the median'}"
    box = (0.0, frame.y(rank) - 3, frame.lane - 6, max(27.0, frame.pitch))
    return svg.press(body, box, "rank", NONE if replaced else str(rank), label, f"press {rank}")


def _outline(x: float, y: float, wide: float, high: float, stroke: str, thick: float = 1.0, mark: str = "") -> str:
    named = f' data-mark="{mark}"' if mark else ""
    return (
        f'<rect x="{svg.num(x)}" y="{svg.num(y)}" width="{svg.num(wide)}" height="{svg.num(high)}" fill="none" '
        f'stroke="{svg.colour(stroke)}" stroke-width="{svg.num(thick)}" rx="2"{named}/>'
    )


def _sums(frame: Frame) -> str:
    trace = frame.setting.trace
    end = frame.right - 40 if frame.locked else frame.lane - 8
    longest = max(stored().waited(rank) for rank in range(trace.ranks))
    parts = []
    for rank in range(trace.ranks):
        seconds, y = trace.waited(rank), frame.y(rank)
        long = (end - frame.sums) * min(1.0, seconds / longest)
        parts.append(svg.rect(frame.sums, y + 3, long, frame.high - 6, NETWORK, mark=f"sum {rank}",
                              title=f"rank {rank}: {took(seconds)} in the all-reduce"))  # fmt: skip
        if frame.locked:
            parts.append(svg.text(frame.sums + long + 5, y + frame.high / 2 + 4, took(seconds), size=svg.SMALL))
    return "".join(parts)


def _lanes(frame: Frame) -> str:
    """The chosen step of each rank: its work by part, then the all-reduce, hatched until the last rank arrives."""
    setting = frame.setting
    zero = min(row.start for row in setting.rows)
    parts = []
    for row in setting.rows:
        y = frame.y(row.rank)
        last = [max(start for start, _ in same) for same in zip(*(r.collectives for r in setting.rows), strict=True)]
        k, clock = 0, row.start
        for name, start, end in row.spans:
            if start - clock > 1e-4:
                parts.append(_span(frame, row, OTHER, clock - zero, start - zero, y))
            if name in COLLECTIVES:
                x = frame.lane + (start - zero) * frame.scale
                wait = (last[k] - start) * frame.scale
                if wait > 0.5:
                    parts.append(hatch.box(x, y, wait, frame.high, NETWORK, title=f"rank {row.rank} waits"))
                moved = max(0.0, end - last[k]) * frame.scale
                parts.append(svg.rect(x + wait, y, moved, frame.high, NETWORK, title="transfer"))
                k += 1
            else:
                parts.append(_span(frame, row, PART_OF[name], start - zero, end - zero, y))
            clock = end
    x = frame.lane + setting.length * frame.scale
    before = frame.lane + _long(stored().steps[setting.step]) * frame.scale
    low = frame.below - 2
    if abs(before - x) > 1:
        parts.append(svg.line(before, frame.top - 4, before, low, "muted", 1.2, "3 3", mark="before"))
    parts.append(svg.line(x, frame.top - 4, x, low, "ink", 1.2, mark="end"))
    for tick in svg.ticks(1e3 * (frame.right - frame.lane) / frame.scale, 4):
        at = frame.lane + tick / 1e3 * frame.scale
        parts.append(svg.text(min(at, frame.right - 2), frame.below + 12, f"{tick:g}" + (" ms" if tick == 0 else ""),
                              anchor="start" if tick == 0 else "middle" if at < frame.right - 12 else "end",
                              size=svg.SMALLEST, fill="muted"))  # fmt: skip
    return "".join(parts)


def _span(frame: Frame, row: Row, part: str, start: float, end: float, y: float) -> str:
    title = f"rank {row.rank}: {SHORT.get(part, part)}, {took(end - start)}"
    x = frame.lane + start * frame.scale
    return svg.rect(x, y, (end - start) * frame.scale, frame.high, FILLS[part], title=title)


def _keys(frame: Frame) -> tuple[str, float]:
    seen = {PART_OF[name] for rows in stored().steps for row in rows for name, _, _ in row.spans if name in PART_OF}
    items = [(FILLS[part], SHORT.get(part, part)) for part in FILLS if part in seen]
    items += [(f"{NETWORK}%", "waits in the all-reduce"), (NETWORK, "transfer")]
    keys, high = labels.keys(0, frame.below + 24, frame.width, items)
    return keys, frame.below + 24 + high


def _day(frame: Frame, top: float) -> tuple[str, float]:
    """A day of such steps as one bar."""
    setting, x, y = frame.setting, 0.0, top + 22
    ways = [
        f"a day of {setting.nodes:,} nodes with such steps: a failure every {took(setting.mtbf)}",
        f"a day of {setting.nodes:,} nodes: a failure every {took(setting.mtbf)}",
    ]
    parts = [svg.text(0, y - 6, labels.fitting(ways, frame.width, svg.SMALL), size=svg.SMALL)]
    for name, share in setting.day.items():
        wide = share * frame.width
        title = f"{DAY_NAMES.get(name, name)}: {share:.1%} of the day"
        parts.append(svg.rect(x, y, wide, 18, DAY[name], title=title, opacity=0.85, mark=f"day {name}"))
        words = f"{share:.0%}"
        if wide > svg.measure(words, svg.SMALLEST) + 6:
            parts.append(svg.text(x + wide / 2, y + 13, words, anchor="middle", size=svg.SMALLEST, halo=True))
        x += wide
    keys, high = labels.keys(0, y + 22, frame.width, [(fill, DAY_NAMES.get(name, name)) for name, fill in DAY.items()])
    return "".join([*parts, keys]), y + 24 + high


def _mark(frame: Frame) -> str:
    """The guess: the row of the rank."""
    stops = [(float(rank), frame.y(rank) + frame.high / 2) for rank in range(stored().ranks)]
    return guess.mark(stops, (frame.left - 6, frame.right))


def _label(setting: Setting) -> str:
    waited = ", ".join(f"rank {rank} {setting.trace.waited(rank):.2f} s" for rank in range(setting.trace.ranks))
    return (
        f"Time in the all-reduce over all steps: {waited}. A step takes {1e3 * setting.mean:.0f} ms on average; "
        f"{setting.day['work']:.0%} of a day of {setting.nodes} nodes is useful work."
    )
