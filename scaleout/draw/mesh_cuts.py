"""A mesh in three still pictures: what each of eight GPUs has of a model and of its batch, how far each axis reaches,
and when a GPU communicates along which axis."""

from __future__ import annotations

from functools import partial
from math import log2

from scaleout.draw import room, svg
from scaleout.draw.room import Block, Lane
from scaleout.spec.layout import Layout
from scaleout.spec.mesh import grid
from scaleout.timing import pipeline

# --- who has what ---------------------------------------------------------------------------------------------------

CUTS = {
    "data 8": (Layout(dp=8), "model whole, batch 1/8", "must fit on one GPU"),
    "tensor 8": (Layout(tp=8), "model 1/8, batch whole", "communicates in all blocks"),
    "pipeline 8": (Layout(pp=8), "model 1/8, batch whole", "idle at both ends"),
    "2 x 2 x 2": (Layout(dp=2, tp=2, pp=2), "model 1/4, batch 1/2", "some of each"),
}
MODEL, HIGH, BATCH = 20.0, 28.0, 7.0  # CSS pixels of a GPU's two boxes


def opening(width: float) -> str:
    """One panel per cut: the model as a box (width: its matrices, height: its layers), the batch as a bar."""
    columns, gap = (len(CUTS) if svg.broad(width) else 2), 14.0
    panel_width = room.share(width, columns, gap)
    panels = [
        room.column(
            room.title(name.replace("x", "×")),
            Block(panel_width, 2 * (HIGH + 5), partial(_gpus, layout, width=panel_width)),
            *(room.words(line, size=svg.SMALLEST, fill="muted") for line in lines),
            room.space(18),
        )
        for name, (layout, *lines) in CUTS.items()
    ]
    legend = room.key([("c1", "model (width: its matrices, height: its layers)"), ("c3", "batch")])
    label = "What each of eight GPUs has: " + "; ".join(f"{name}: {words}" for name, (_, words, _) in CUTS.items())
    return room.column(legend, room.tiles(panels, width, columns, gap)).figure(width, label, foot=-8)


def panel(name: str) -> str:
    """The GPUs of one cut (CUTS) without text, for places that have a text below."""
    layout, *words = CUTS[name]
    return svg.figure(160, 2 * HIGH + 8, _gpus(layout, 0, 1, 160), f"{name}: {words[0]}")


def _gpus(layout: Layout, x: float, y: float, width: float) -> str:
    pitch, places = min(40.0, width / 4), grid(layout)
    marks = []
    for rank in range(layout.ranks):
        coordinates, left, top = places.coordinates(rank), x + rank % 4 * pitch, y + rank // 4 * (HIGH + 6)
        wide, deep, long = MODEL / layout.tp, HIGH / layout.pp, HIGH / layout.dp
        marks += [
            svg.rect(left, top, MODEL, HIGH, "grid", opacity=0.6),
            svg.rect(left + coordinates["tp"] * wide, top + coordinates["pp"] * deep, wide, deep, "c1"),
            svg.rect(left + MODEL + 3, top, BATCH, HIGH, "grid", opacity=0.6),
            svg.rect(left + MODEL + 3, top + coordinates["dp"] * long, BATCH, long, "c3"),
        ]
    return "".join(marks)


# --- how far each axis reaches --------------------------------------------------------------------------------------

WANTED = 16_384
ENDS = (("tensor", 8, "the GPUs of a node"), ("pipeline", 126, "the model's layers"),
        ("data", 2048, "the sequences of a step"))  # fmt: skip
CHOSEN = (("tensor", 8), ("pipeline", 16), ("data", 128))
SHADES = {"tensor": 0.6, "pipeline": 0.4, "data": 0.25}  # of one colour: others mean what a GPU holds
TICKS = (1, 8, 64, 512, 4096, WANTED)


def ceilings(width: float) -> str:
    """On one ruler of doublings: how many GPUs each axis can use alone, and three degrees end to end, whose product is
    the cluster."""
    right = width - 6
    scale = right / log2(WANTED)
    product = " × ".join(f"{degree}" for _, degree in CHOSEN) + f" = {WANTED:,}"
    rows = room.column(
        *(_bars(f"{axis}: {end:,}, {reason}", [(axis, log2(end) * scale, "")], 14, 7) for axis, end, reason in ENDS),
        _bars(product, [(axis, log2(degree) * scale, f"{axis} {degree}") for axis, degree in CHOSEN], 20, 9),
    )
    top, foot = 8, rows.height + 4
    marks = [rows.at(0, 4), svg.line(right, top, right, foot, "accent", 2), svg.line(0, foot, right, foot, "muted")]
    for n in TICKS if svg.broad(width) else (*TICKS[:4], WANTED):
        tick, last = log2(n) * scale, n == WANTED
        marks += [
            svg.line(tick, foot, tick, foot + 4, "muted"),
            svg.text(
                tick + 3 * last,
                foot + 16,
                f"{n:,}" + " GPUs" * last,
                size=svg.SMALLEST,
                fill="muted",
                anchor="end" if last else "middle" if tick else "start",
            ),
        ]
    label = (
        "On a logarithmic scale up to 16,384 GPUs tensor parallelism alone reaches 8, a pipeline 126 and data "
        "parallelism 2,048; tensor 8, pipeline 16 and data 128 end to end reach 16,384"
    )
    return svg.figure(width, foot + 22, "".join(marks), label)


def _bars(words: str, bars: list[tuple[str, float, str]], high: float, below: float) -> Block:
    """Words, and under them bars end to end: axis, length, what is in it."""

    def at(x: float, y: float) -> str:
        marks = []
        for axis, long, name in bars:
            marks.append(svg.rect(x, y, long - bool(name), high, "key", opacity=SHADES[axis]))
            if name:
                marks.append(svg.text(x + long / 2, y + room.BASELINE, name, anchor="middle", size=svg.SMALLEST))
            x += long
        return "".join(marks)

    text = room.words(words, room.BASELINE + 5, size=svg.SMALL, bold=True)
    return room.column(text, Block(sum(long for _, long, _ in bars), high + below, at))


# --- what is sent when ----------------------------------------------------------------------------------------------

PIECES, BLOCKS = 4, 4  # micro-batches of a step, and blocks of a stage
LANES = ("computes", "tensor", "pipeline", "data")
HOP, LONGER = 0.45, 3.4  # of the axis, where a forward takes 1: a hop, and what comes after the last backward


def step(width: float) -> str:
    """A step of a GPU of the first of two stages: its forwards and backwards, and when it communicates along each axis.
    In order, not to scale."""
    timeline = pipeline.step("1f1b", 2, PIECES, 1, pipeline.even(2))
    left, row, end = 70.0, 24.0, timeline.seconds
    scale = (width - left - 2) / (end + LONGER)
    names = room.column(*(room.words(name, row, size=svg.SMALL, bold=not i) for i, name in enumerate(LANES)))
    computes, tensor, hops, data = (Lane(left, 6 + row * i, scale, row, inset=2) for i in range(len(LANES)))
    marks = [names.at(0, 8)]
    for run in timeline.runs[0]:
        forward = run.action.kind == "F"
        marks.append(computes.box(run.start, run.end, "compute", (str(run.action.micro),), 0.35 if forward else 1.0))
        piece = (run.end - run.start) / BLOCKS
        marks += [
            tensor.box(run.start + (i + 0.55) * piece, run.start + (i + 0.9) * piece, "c4") for i in range(BLOCKS)
        ]
        send_start = run.end if forward else run.start - HOP
        marks.append(hops.box(send_start, send_start + HOP, "c4"))
    marks += [
        data.box(end - 1.2, end + 0.6, "c4", ("reduce",)),
        computes.box(end + 0.7, end + 1.5, "compute", (), 0.7),
        data.box(end + 1.6, end + LONGER, "c4", ("weights",)),
    ]
    label = (
        "A step on one GPU: tensor communication in every block of every micro-batch, pipeline communication after "
        "each forward and before each backward, data communication once, at the end"
    )
    return svg.figure(width, 10 + row * len(LANES), "".join(marks), label)
