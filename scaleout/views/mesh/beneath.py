"""Beneath the ranks of the view `mesh`: the order of the axes as chips, who sends what along each, and three bars: the
seconds of all messages, of a step, and the bytes of the fullest rank."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from scaleout.draw import guess, hatch, svg
from scaleout.draw.amounts import amount
from scaleout.draw.labels import fitting, took
from scaleout.views.mesh import acts
from scaleout.views.mesh.frame import Frame
from scaleout.views.mesh.nodes import colour, groups, stage

GIGA = 10**9
CHIP = 27  # height of a chip
# Of the table: axis, with whom, messages, bytes, link, seconds
COLUMNS = {svg.WIDE: (4, 36, 272, 352, 366, 596), svg.NARROW: (4, 28, 142, 198, 206, 354)}
ANCHORS = ("start", "start", "end", "end", "start", "end")
# A kind of bytes: name, colour, what the account calls it
KINDS = (
    ("weights", "c1", ("weights",)), ("gradients", "c6", ("gradients",)), ("optimizer", "c2", ("master", "optimizer")),
    ("activations", "c3", ("activations",)), ("logits and others", "c8", ("logits", "temporaries")),
)  # fmt: skip
# A part of a step: words, what it is made of, colour, and whether it is stripes
PARTS = (
    ("compute", ("compute",), "compute", False), ("recomputation", ("recompute",), "compute", True),
    ("kernel launches", ("launches",), "compute", True), ("exposed TP", ("exposed tensor",), "accent", True),
    ("exposed CP", ("exposed context",), "accent", True), ("exposed DP", ("exposed data",), "accent", True),
    ("exposed PP", ("hops",), "accent", True), ("bubble", ("bubble",), "grid", True),
    ("uneven stages", ("imbalance",), "muted", True), ("update", ("update",), "c2", False),
    ("host", ("host",), "muted", True), ("stragglers", ("stragglers",), "accent", True),
)  # fmt: skip


# --- the order of the axes --------------------------------------------------------------------------------------------


def chips(frame: Frame, alive: bool = True) -> str:
    """The axes, the one whose neighbours lie farthest apart first, to be dragged."""
    setting, y = frame.setting, frame.at.chips
    far, near = ("farthest apart", "neighbours") if frame.wide else ("far", "near")
    x, out = frame.at.left + svg.measure(far, svg.SMALLEST) + 12.0, []
    out.append(svg.text(frame.at.left, y + 18, far, size=svg.SMALLEST, fill="muted"))
    for item in setting.order.split("."):
        words = chip_words(setting, item)
        wide = max(58.0, svg.measure(words, svg.FONT, bold=True) + 22)
        edge = "accent" if any(axis in setting.crossing for axis in _axes(item)) else "c4"
        body = (f'<rect x="1" y="1" width="{svg.num(wide - 2)}" height="{CHIP - 2}" rx="{CHIP / 2 - 1}" '
                f'fill="{svg.colour("paper")}" stroke="{svg.colour(edge)}" stroke-width="2"/>'
                f'{svg.text(wide / 2, 18, words, anchor="middle", bold=True)}')  # fmt: skip
        if alive:
            label = f"{words}, place in the order of ranks, the farthest apart first"
            out.append(svg.movable(x, y, body, (wide, CHIP), "order", 0, item, label, f"chip {item}"))
        else:
            out.append(svg.group(x, y, body, f"chip {item}"))
        x += wide + 10
    out.append(svg.text(x, y + 18, near, size=svg.SMALLEST, fill="muted"))
    x += svg.measure(near, svg.SMALLEST) + 24
    ways = [cable_words(setting), cable_words(setting).partition(", ")[0], ""]
    words = fitting(ways, frame.width - x - 2, svg.SMALLEST)
    return "".join([*out, svg.text(frame.width - 2, y + 18, words, anchor="end", size=svg.SMALLEST, fill="accent")])


def chip_words(setting, item: str) -> str:
    """An axis with its size."""
    layout = setting.layout
    words = f"{item.upper()} {getattr(layout, item):,}"
    return f"{words} × CP {layout.cp}" if item == "dp" and layout.cp > 1 else words


def cable_words(setting) -> str:
    """What leaves the nodes."""
    some = [axis.upper() for axis in setting.shown if axis in setting.crossing]
    if not some:
        return "one node: no cable"
    return f"over the cable: {' '.join(some)}, {gigabytes_a_second(setting.cluster.share.bytes_per_s)} a GPU"


def gigabytes_a_second(rate: float) -> str:
    return f"{svg.quantity(rate / GIGA).removesuffix('.0')} GB/s"


def _axes(item: str) -> tuple[str, ...]:
    return ("dp", "cp") if item == "dp" else (item,)


# --- who sends what ---------------------------------------------------------------------------------------------------


def table(frame: Frame) -> str:
    """A row for each axis: with whom, how often, how much, over which link, how long."""
    setting, look, (top, pitch) = frame.setting, frame.look, frame.at.table
    where = stage(setting, look.rank)
    sent, spent, out = setting.traffic(where), setting.took(where), []
    if frame.wide:
        head = ("", f"rank {look.rank:,} sends, in a step", "calls", "bytes", "over", "takes")
        out.append(_cells(frame, head, top, ["muted"] * len(head)))
        top += pitch
    for k, axis in enumerate(setting.shown):
        fill = "accent" if axis in setting.crossing else "ink"
        row = (axis.upper(), *_row(frame, axis, sent[axis], spent[axis]))
        out.append(_cells(frame, row, top + k * pitch, [fill, "ink", "ink", "ink", fill, "ink"]))
    return "".join(out)


def _cells(frame: Frame, row: Sequence[str], y: float, fills: Sequence[str]) -> str:
    return "".join(
        svg.text(x, y, words, anchor=anchor, size=svg.SMALLEST, fill=fill, bold=x < 10)
        for x, words, anchor, fill in zip(COLUMNS[frame.width], row, ANCHORS, fills, strict=True) if words
    )


def _row(frame: Frame, axis: str, one, seconds: float) -> tuple[str, ...]:
    """Who, messages, bytes, link, seconds."""
    if not one.bytes:
        who = "with nobody" if one.ranks == 1 else partners(frame, axis, one.ranks, "0")
        return (who, "" if one.ranks == 1 else "0", "", "", "")
    many, link = f"{one.messages:,}", frame.setting.wire(axis)
    return (partners(frame, axis, one.ranks, many), many, amount(one.bytes, GIGA), link if frame.wide else _link(link),
            took(seconds))  # fmt: skip


def _link(name: str) -> str:
    """In as few letters as can be read."""
    return name.replace("InfiniBand", "IB").replace("Ethernet", "Eth").removesuffix(" Gbit/s")


def partners(frame: Frame, axis: str, ranks: int, beside: str) -> str:
    """With whom, and when, as far as there is room beside the number of messages."""
    some = [rank for rank in groups(frame.setting, frame.look.rank)[axis] if rank != frame.look.rank]
    many = f"with {ranks - 1:,} others" if ranks > 1 else "with replicas"
    who = f"with rank {some[0]:,}" if len(some) == 1 else many
    late = "in every block" if frame.setting.layout.zero == 3 else "at the end"
    when = {"tp": "in every block", "cp": "in every attention", "pp": "stage to stage", "dp": late}[axis]
    _, left, right, *_ = COLUMNS[frame.width]
    room = right - left - 4 - svg.measure(beside, svg.SMALLEST)
    return fitting([f"{who}, {when}", who, who.removeprefix("with ")], room, svg.SMALLEST)


# --- bars -------------------------------------------------------------------------------------------------------------


def wire(frame: Frame) -> str:
    """All that a rank sends in a step, hidden or not, by axis; as far as it has been sent."""
    setting, look = frame.setting, frame.look
    x, y, width, high = frame.band(frame.at.wire)
    where = stage(setting, look.rank)
    spent, end = setting.took(where), max(1.06 * setting.longest(where), 1e-6)
    out = [svg.text(x, y - 5, fitting(_wire_words(frame, spent), width), size=svg.SMALL)]
    low, so_far = y + high, acts.done(setting.layout, look.moment)
    out.append(svg.line(x, low + 1, x + width, low + 1))
    unit, one, name = _unit(end)
    for value in svg.ticks(end / one, 5):
        at = x + value * unit * width
        words = f"{value:,g}" + (f" {name}" if value == 0 else "")
        out.append(svg.line(at, low + 1, at, low + 4))
        beyond = at + svg.measure(words, svg.SMALLEST) / 2 > frame.width
        anchor = "start" if not value else "end" if beyond else "middle"
        at = min(at, x + width)
        out.append(svg.text(at, low + 14, words, anchor=anchor, fill="muted", size=svg.SMALLEST))
    for axis in setting.shown:
        wide = spent[axis] / end * width
        out.append(svg.rect(x, y, max(0.0, wide - 1), high, colour(setting, axis), opacity=0.25, mark=f"all {axis}",
                            title=f"{axis.upper()} {took(spent[axis])}"))  # fmt: skip
        full = max(0.0, wide - 1) * so_far[axis]
        out.append(svg.rect(x, y, full, high, colour(setting, axis), mark=f"sent {axis}"))
        x += wide
    x = frame.at.left
    stops = [(0.0, x), (1000 * end, x + width)]
    return "".join(out) + guess.mark(stops, (y - 3, low + 3), "x")


def _unit(end: float) -> tuple[float, float, str]:
    """(part of the axis that a tick's unit is, its seconds, its name)."""
    one, name = (1.0, "s") if end >= 10 else (1e-3, "ms")
    return one / end, one, name


def _wire_words(frame: Frame, spent: dict[str, float]) -> list[str]:
    some = [axis for axis in frame.setting.shown if spent[axis]] or ["tp"]
    by_axis = " + ".join(f"{axis.upper()} {took(spent[axis])}" for axis in some)
    whole = took(fsum(spent.values()))
    return [f"communication in a step, hidden or not: {whole} = {by_axis}", f"communication: {whole} = {by_axis}",
            f"communication in a step: {whole}", whole]  # fmt: skip


def seconds(frame: Frame) -> str:
    """A step's seconds side by side, striped what is no computing."""
    setting, (x, y, width, high) = frame.setting, frame.band(frame.at.seconds)
    time = setting.time
    sizes = {words: fsum(time.parts[name] for name in names) for words, names, _, _ in PARTS}
    large = sorted((words for words, size in sizes.items() if size > 0.004 * time.seconds), key=lambda one: -sizes[one])
    start = f"step time {took(time.seconds)}, {setting.program_name}"
    said = [f"{words} {took(sizes[words])}" for words in large]
    ways = [f"{start}: {', '.join(said[:n])}" for n in range(len(said), 0, -1)]
    out = [svg.text(x, y - 4, fitting([*ways, start], width), size=svg.SMALL)]
    for words, _, fill, striped in PARTS:
        if not sizes[words]:
            continue
        wide = width * sizes[words] / time.seconds
        out.append(svg.rect(x, y, wide, high, fill, opacity=hatch.PALE if striped else 0.8,
                            title=f"{words} {took(sizes[words])}", mark=f"part {words}"))  # fmt: skip
        if striped:
            out.append(hatch.hatched(x, y, wide, high, "muted" if fill == "grid" else fill, f"stripes {words}"))
        x += wide
    return "".join(out)


def memory(frame: Frame) -> str:
    """Bytes of the fullest rank where it is fullest, by kind; what is over usable memory is hatched."""
    setting, (x, y, width, high) = frame.setting, frame.band(frame.at.memory)
    held, usable = setting.account.peak, setting.usable
    unit = width / (1.03 * max(sum(held.values()), usable))
    limit = x + usable * unit
    out = [svg.text(x, y - 4, fitting(_memory_words(setting), width), size=svg.SMALL)]
    out.append(svg.rect(x, y, usable * unit, high, "grid", opacity=0.45, title="usable memory"))
    for name, fill, kinds in KINDS:
        size = sum(held[kind] for kind in kinds)
        out.append(svg.rect(x, y, size * unit, high, fill, title=f"{name}: {amount(size, GIGA)}", mark=f"held {name}"))
        x += size * unit
    over = max(0.0, x - limit)
    out.append(svg.rect(limit, y, over, high, "paper", opacity=0.45, mark="veil"))
    out.append(hatch.hatched(limit, y, over, high, "accent", "over"))
    out.append(svg.line(limit, y - 3, limit, y + high + 3, "accent", 2, "4 2", mark="limit"))
    return "".join(out)


def _memory_words(setting) -> list[str]:
    held, usable = setting.account.peak_bytes, setting.usable
    kinds = sorted(((sum(setting.account.peak[kind] for kind in some), name) for name, _, some in KINDS), reverse=True)
    where = f"a rank of stage {setting.fullest_stage}" if setting.layout.pp > 1 else "a rank"
    over = f", {amount(held - usable, GIGA)} too much" if held > usable else ""
    start = f"memory of {where}: {amount(held, GIGA)} of the usable {amount(usable, GIGA)}{over}"
    ways = [f"{start} ({', '.join(f'{name} {amount(size, GIGA)}' for size, name in kinds[:n])})" for n in (4, 3, 2, 1)]
    return [*ways, start]
