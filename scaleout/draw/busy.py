"""When each rank's network adapter is busy: all to one and back, and in a ring, on one axis of seconds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from scaleout.collectives import messages
from scaleout.draw import plot, svg
from scaleout.words.amounts import quantity

Span = tuple[int, str, float, float]  # rank, "sends" or "receives", from, to (seconds)
OPPOSITE = {"sends": "receives", "receives": "sends"}
PALE = 0.35  # of the colour, where a card receives
WAYS = {"naive": "All to one, and back", "ring": "Around a ring"}


def spans(algorithm: str, size: int, ranks: int, bytes_per_s: float) -> list[Span]:
    """When each rank sends and receives in an all-reduce of `size` bytes, starts not counted; a step as long as its
    largest message takes, and what goes on without a break is one span."""
    parts = messages.sizes("all_reduce", algorithm, size, ranks)
    intervals: dict[tuple[int, str], list[list[float]]] = {}
    time = 0.0
    moves = messages.messages("all_reduce", algorithm, ranks)
    for _, group in itertools.groupby(moves, key=lambda message: message.step):
        step = list(group)
        end = time + max(parts[message.chunk] for message in step) / bytes_per_s
        for message in step:
            for rank, does in ((message.source, "sends"), (message.target, "receives")):
                known = intervals.setdefault((rank, does), [])
                if known and known[-1][1] == time:
                    known[-1][1] = end
                else:
                    known.append([time, end])
        time = end
    return sorted((rank, does, a, b) for (rank, does), times in intervals.items() for a, b in times)


@dataclass(frozen=True)
class _Sheet:
    """Where things are: lanes from `left` on, `row` apart; `scale` is pixels of a second."""

    width: float
    left: float
    row: float
    scale: float

    @property
    def wide(self) -> bool:
        return svg.broad(self.width)


def draw(width: float, size: int, ranks: int, bytes_per_s: float) -> str:
    """Both ways, one above the other, with their seconds; solid: the adapter sends, faint: it receives."""
    ways = {way: spans(way, size, ranks, bytes_per_s) for way in WAYS}
    longest = max(end for intervals in ways.values() for *_, end in intervals)
    left, row = (190, 14.5) if svg.broad(width) else (16, 11)
    sheet = _Sheet(width, left, row, (width - left - 14) / longest)
    marks, y = [], 2.0
    for way, intervals in ways.items():
        y += 0 if sheet.wide else 50
        marks += [
            _head(way, intervals, sheet, y),
            _lanes(intervals, ranks, sheet, y),
            _remark(way, intervals, ranks, sheet, y),
        ]
        y += ranks * row + (28 if sheet.wide else 14)
    axis = y - (18 if sheet.wide else 6)
    ruled = plot.time_axis(left, axis, longest * sheet.scale, longest, axis - 5)
    edge = svg.line(left, axis, width - 14, axis, "muted")
    label = f"When {ranks} network adapters are busy: all to one and back, and around a ring"
    return svg.figure(width, axis + 20, "".join(marks) + ruled + edge, label)


def _head(way: str, intervals: list[Span], sheet: _Sheet, y: float) -> str:
    """The name of a way and its seconds, in large figures: beside its lanes, or above them."""
    duration, fill = f"{quantity(max(end for *_, end in intervals), 2)} s", "c4-words" if way == "ring" else "ink"
    if sheet.wide:
        name = svg.text(0, y + 13, WAYS[way], bold=True, size=14)
        return name + svg.text(0, y + 56, duration, bold=True, size=44, fill=fill)
    name = svg.text(0, y - 12, WAYS[way], bold=True, size=14)
    return name + svg.text(sheet.width - 14, y - 10, duration, anchor="end", bold=True, size=34, fill=fill)


def _lanes(intervals: list[Span], ranks: int, sheet: _Sheet, y: float) -> str:
    """A lane for each rank. An adapter that does both at once shows one above the other."""
    marks = []
    for rank in range(ranks):
        middle = y + rank * sheet.row + sheet.row / 2
        marks += [
            svg.text(sheet.left - 6, middle + 4, str(rank), anchor="end", fill="muted", size=svg.SMALLEST),
            svg.line(sheet.left, middle, sheet.width - 14, middle),
        ]
    thick = sheet.row - 3
    for rank, does, start, end in intervals:
        duplex = any(span[:2] == (rank, OPPOSITE[does]) and span[2] < end and start < span[3] for span in intervals)
        top = y + rank * sheet.row + 1.5 + (thick / 2 if duplex and does == "receives" else 0)
        x, long = sheet.left + start * sheet.scale, (end - start) * sheet.scale
        faded = 1.0 if does == "sends" else PALE
        marks.append(svg.rect(x, top, long - 0.8, thick / 2 if duplex else thick, "c4", opacity=faded))
    return "".join(marks)


def _remark(way: str, intervals: list[Span], ranks: int, sheet: _Sheet, y: float) -> str:
    """What the lanes show, in a few words where they leave room."""
    end = max(end for *_, end in intervals)
    if way == "ring":
        words = ("every adapter sends and receives", "all the time, and is done sooner")
        x, row = sheet.left + end * sheet.scale + 10, 2.4
    else:
        idle = 1 - sum(b - a for rank, _, a, b in intervals if rank == 1) / end
        words = (f"the other {ranks - 1} wait", f"{idle:.0%} of the time")
        x, row = sheet.left + 8, ranks - (2.3 if sheet.wide else 1.8)  # below the stairs
    if not sheet.wide and way == "ring":
        words = ("every adapter sends", "and receives all the time")
    return "".join(
        svg.text(x, y + (row + i * 15 / sheet.row) * sheet.row + 4, line, fill="muted", size=svg.SMALL, halo=True)
        for i, line in enumerate(words)
    )
