"""Below the ranks of the view `mesh`: the order of the axes as chips, what a rank sends along each, and three bars: the
time of all communication, the step time, and the memory of the fullest rank."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from scaleout.draw import guess, hatch, svg
from scaleout.draw.labels import fitting
from scaleout.draw.parts import BYTES, SECONDS, bar, sizes
from scaleout.views.mesh import acts
from scaleout.views.mesh.frame import Frame
from scaleout.views.mesh.nodes import colour, groups, stage
from scaleout.views.mesh.rates import rate
from scaleout.words.amounts import amount, took

GIGA = 10**9
CHIP = 27  # height of a chip
# Of the table: axis, with whom, messages, bytes, link, seconds
COLUMNS = {svg.WIDE: (4, 36, 272, 352, 366, 596), svg.NARROW: (4, 28, 142, 198, 206, 354)}
ANCHORS = ("start", "start", "end", "end", "start", "end")


# --- the order of the axes --------------------------------------------------------------------------------------------


def chips(frame: Frame, alive: bool = True) -> str:
    """The axes, outermost first, to be dragged."""
    setting, y = frame.setting, frame.places.chips
    far_label, near_label = ("outermost", "innermost") if frame.wide else ("outer", "inner")
    x, parts = frame.places.left + svg.measure(far_label, svg.SMALLEST) + 12.0, []
    parts.append(svg.text(frame.places.left, y + 18, far_label, size=svg.SMALLEST, fill="muted"))
    for item in setting.order.split("."):
        words = chip_words(setting, item)
        wide = max(58.0, svg.measure(words, svg.FONT, bold=True) + 22)
        axes = ("dp", "cp") if item == "dp" else (item,)
        edge = "accent" if any(axis in setting.crossing for axis in axes) else "c4"
        body = svg.frame(1, 1, wide - 2, CHIP - 2, edge, 2, fill="paper", rounded=CHIP / 2 - 1)
        body += svg.text(wide / 2, 18, words, anchor="middle", bold=True)
        if alive:
            label = f"{words}, place in the order of ranks, outermost first"
            parts.append(svg.movable(x, y, body, (wide, CHIP), "order", 0, item, label, f"chip {item}"))
        else:
            parts.append(svg.group(x, y, body, f"chip {item}"))
        x += wide + 10
    parts.append(svg.text(x, y + 18, near_label, size=svg.SMALLEST, fill="muted"))
    x += svg.measure(near_label, svg.SMALLEST) + 24
    ways = [cable_words(setting), cable_words(setting).partition(", ")[0], ""]
    words = fitting(ways, frame.width - x - 2, svg.SMALLEST)
    return "".join([*parts, svg.text(frame.width - 2, y + 18, words, anchor="end", size=svg.SMALLEST, fill="accent")])


def chip_words(setting, item: str) -> str:
    """An axis with its size."""
    layout = setting.layout
    words = f"{item.upper()} {getattr(layout, item):,}"
    return f"{words} × CP {layout.cp}" if item == "dp" and layout.cp > 1 else words


def cable_words(setting) -> str:
    """What leaves the nodes."""
    axes = [axis.upper() for axis in setting.shown if axis in setting.crossing]
    if not axes:
        return "one node, no network"
    return f"between nodes: {' '.join(axes)}, {rate(setting, setting.crossing[0])} GB/s per GPU"


# --- who sends what ---------------------------------------------------------------------------------------------------


def table(frame: Frame) -> str:
    """A row for each axis: with whom, how often, how much, over which link, how long."""
    setting, look, (top, pitch) = frame.setting, frame.look, frame.places.table
    place = stage(setting, look.rank)
    sent, spent, parts = setting.traffic(place), setting.wire_seconds(place), []
    if not frame.wide and len(setting.shown) > 3:  # a row more
        top, pitch = top - 3, pitch - 1
    sends = f"rank {look.rank:,} sends"
    who = f"{sends}, per step" if frame.wide else fitting([sends, "sends"], _room(frame, "calls"), svg.SMALLEST)
    head = ("", who, "calls", "bytes", "over" if frame.wide else "GB/s over", "takes")
    parts.append(_cells(frame, head, top, ["muted"] * len(head)))
    top += pitch
    for k, axis in enumerate(setting.shown):
        fill = "accent" if axis in setting.crossing else "ink"
        row = (axis.upper(), *_row(frame, axis, sent[axis], spent[axis]))
        parts.append(_cells(frame, row, top + k * pitch, [fill, "ink", "ink", "ink", fill, "ink"]))
    return "".join(parts)


def _cells(frame: Frame, row: Sequence[str], y: float, fills: Sequence[str]) -> str:
    return "".join(
        svg.text(x, y, words, anchor=anchor, size=svg.SMALLEST, fill=fill, bold=x < 10)
        for x, words, anchor, fill in zip(COLUMNS[frame.width], row, ANCHORS, fills, strict=True)
        if words
    )


def _row(frame: Frame, axis: str, flow, seconds: float) -> tuple[str, ...]:
    """Who, messages, bytes, link, seconds."""
    if not flow.bytes:
        peers = "no other rank" if flow.ranks == 1 else partners(frame, axis, flow.ranks, "0")
        return (peers, "" if flow.ranks == 1 else "0", "", "", "")
    count, link, speed = f"{flow.messages:,}", frame.setting.wire(axis), rate(frame.setting, axis)
    return (
        partners(frame, axis, flow.ranks, count),
        count,
        amount(flow.bytes, GIGA),
        f"{link}, {speed} GB/s" if frame.wide else f"{speed} {_link(link)}",
        took(seconds),
    )


def _link(name: str) -> str:
    """In as few letters as can be read."""
    return name.replace("InfiniBand", "IB").replace("Ethernet", "Eth").removesuffix(" Gbit/s")


def partners(frame: Frame, axis: str, ranks: int, count: str) -> str:
    """With whom, and when, as far as there is room beside the number of messages."""
    peers = [rank for rank in groups(frame.setting, frame.look.rank)[axis] if rank != frame.look.rank]
    several = f"with {ranks - 1:,} others" if ranks > 1 else "with replicas"
    peer_words = f"with rank {peers[0]:,}" if len(peers) == 1 else several
    dp_time = "in every block" if frame.setting.layout.zero == 3 else "at the end"
    times = {"tp": "in every block", "cp": "in every attention", "pp": "stage to stage", "dp": dp_time}[axis]
    ways = [f"{peer_words}, {times}", peer_words, peer_words.removeprefix("with ")]
    return fitting(ways, _room(frame, count), svg.SMALLEST)


def _room(frame: Frame, count: str) -> float:
    """CSS pixels beside the number of messages."""
    _, left, right, *_ = COLUMNS[frame.width]
    return right - left - 4 - svg.measure(count, svg.SMALLEST)


# --- bars -------------------------------------------------------------------------------------------------------------


def wire(frame: Frame) -> str:
    """The time of a rank's communication per step, overlapped or not, by axis; solid as far as it is sent."""
    setting, look = frame.setting, frame.look
    x, y, width, high = frame.band(frame.places.wire)
    place = stage(setting, look.rank)
    spent, end = setting.wire_seconds(place), max(1.06 * setting.longest(place), 1e-6)
    parts = [svg.text(x, y - 5, fitting(_wire_words(frame, spent), width), size=svg.SMALL)]
    low, so_far = y + high, acts.sent_shares(setting.layout, look.moment)
    parts.append(svg.line(x, low + 1, x + width, low + 1))
    unit, unit_seconds, name = _unit(end)
    for value in svg.ticks(end / unit_seconds, 5):
        tick_x = x + value * unit * width
        words = f"{value:,g}" + (f" {name}" if value == 0 else "")
        parts.append(svg.line(tick_x, low + 1, tick_x, low + 4))
        beyond = tick_x + svg.measure(words, svg.SMALLEST) / 2 > frame.width
        anchor = "start" if not value else "end" if beyond else "middle"
        tick_x = min(tick_x, x + width)
        parts.append(svg.text(tick_x, low + 14, words, anchor=anchor, fill="muted", size=svg.SMALLEST))
    for axis in setting.shown:
        wide = spent[axis] / end * width
        parts.append(
            svg.rect(
                x,
                y,
                max(0.0, wide - 1),
                high,
                colour(setting, axis),
                opacity=0.25,
                mark=f"all {axis}",
                title=f"{axis.upper()} {took(spent[axis])}",
            )
        )
        full = max(0.0, wide - 1) * so_far[axis]
        parts.append(svg.rect(x, y, full, high, colour(setting, axis), mark=f"sent {axis}"))
        x += wide
    x = frame.places.left
    stops = [(0.0, x), (1000 * end, x + width)]
    return "".join(parts) + guess.mark(stops, (y - 3, low + 3), "x")


def _unit(end: float) -> tuple[float, float, str]:
    """(part of the axis that a tick's unit is, its seconds, its name)."""
    unit_seconds, name = (1.0, "s") if end >= 10 else (1e-3, "ms")
    return unit_seconds / end, unit_seconds, name


def _wire_words(frame: Frame, spent: dict[str, float]) -> list[str]:
    axes = [axis for axis in frame.setting.shown if spent[axis]] or ["tp"]
    by_axis = " + ".join(f"{axis.upper()} {took(spent[axis])}" for axis in axes)
    total = took(fsum(spent.values()))
    return [
        f"communication per step, overlapped or not: {total} = {by_axis}",
        f"communication: {total} = {by_axis}",
        f"communication per step: {total}",
        total,
    ]


def seconds(frame: Frame) -> str:
    """The parts of a step's time side by side, hatched where nothing is computed."""
    setting, (x, y, width, high) = frame.setting, frame.band(frame.places.seconds)
    time = setting.time
    spent = {part: size for part, size in sizes(SECONDS, time.parts).items() if size}
    start = f"step time {took(time.seconds)}, {setting.program_name}"
    large = sorted(spent, key=spent.__getitem__, reverse=True)
    items = [f"{part.name} {took(spent[part])}" for part in large if spent[part] > 0.004 * time.seconds]
    ways = [f"{start}: {', '.join(items[:n])}" for n in range(len(items), 0, -1)]
    marks, _ = bar((x, y, high, width / time.seconds), spent, took, "part", 0.8)
    return svg.text(x, y - 4, fitting([*ways, start], width), size=svg.SMALL) + marks


def memory(frame: Frame) -> str:
    """Bytes of the fullest rank where it is fullest, by kind; what is over usable memory is hatched."""
    setting, (x, y, width, high) = frame.setting, frame.band(frame.places.memory)
    peak, usable = setting.account.peak, setting.usable
    unit = width / (1.03 * max(sum(peak.values()), usable))
    limit = x + usable * unit
    parts = [
        svg.text(x, y - 4, fitting(_memory_words(setting), width), size=svg.SMALL),
        svg.rect(x, y, usable * unit, high, "grid", opacity=0.45, title="usable memory"),
    ]
    marks, end = bar((x, y, high, unit), sizes(BYTES, peak), amount, "held")
    return "".join([*parts, marks, hatch.beyond(limit, end, y, high, 3)])


def _memory_words(setting) -> list[str]:
    peak_bytes, usable = setting.account.peak_bytes, setting.usable
    kinds = sorted(((size, kind.name) for kind, size in sizes(BYTES, setting.account.peak).items()), reverse=True)
    holder = f"a rank of stage {setting.fullest_stage}" if setting.layout.pp > 1 else "a rank"
    excess = f", {amount(peak_bytes - usable, GIGA)} too much" if peak_bytes > usable else ""
    start = f"memory of {holder}: {amount(peak_bytes, GIGA)} of {amount(usable, GIGA)} usable{excess}"
    ways = [f"{start} ({', '.join(f'{name} {amount(size, GIGA)}' for size, name in kinds[:n])})" for n in (4, 3, 2, 1)]
    return [*ways, start]
