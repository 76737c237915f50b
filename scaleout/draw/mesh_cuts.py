"""A mesh in three still pictures: what each of eight GPUs has of a model and of its batch, how far each axis reaches,
and when a GPU communicates along which axis."""

from __future__ import annotations

from math import log2

from scaleout.draw import svg
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
    columns = 4 if width > 500 else 2
    gap, high = 14.0, 136.0
    panel_width = (width - gap * (columns - 1)) / columns
    marks = [_legend((("c1", "model (width: its matrices, height: its layers)"), ("c3", "batch")))]
    for i, (name, (layout, *words)) in enumerate(CUTS.items()):
        x, y = i % columns * (panel_width + gap), 30 + i // columns * high
        marks += [
            svg.text(x, y + 14, name.replace("x", "×"), bold=True, size=13),
            _gpus(layout, x, y + 24, panel_width),
            *(svg.text(x, y + 104 + 14 * row, line, size=svg.SMALLEST, fill="muted") for row, line in enumerate(words)),
        ]
    label = "What each of eight GPUs has: " + "; ".join(f"{name}: {words}" for name, (_, words, _) in CUTS.items())
    return svg.figure(width, 30 + high * (4 // columns) - 8, "".join(marks), label)


def panel(name: str) -> str:
    """The GPUs of one cut (CUTS) without text, for places that have a text below."""
    layout, *words = CUTS[name]
    return svg.figure(160, 2 * HIGH + 8, _gpus(layout, 0, 1, 160), f"{name}: {words[0]}")


def _legend(items: tuple[tuple[str, str], ...]) -> str:
    x, marks = 0.0, []
    for fill, words in items:
        marks += [svg.rect(x, 4, 12, 12, fill), svg.text(x + 16, 14, words, size=svg.SMALLEST, fill="muted")]
        x += 30 + svg.measure(words, svg.SMALLEST)
    return "".join(marks)


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
    right, row = width - 6, 40.0
    scale, marks = right / log2(WANTED), []
    for i, (axis, end, reason) in enumerate(ENDS):
        y = 8 + i * row
        words = f"{axis}: {end:,}, {reason}"
        marks += [
            svg.text(0, y + 10, words, size=svg.SMALL, bold=True),
            svg.rect(0, y + 15, log2(end) * scale, 14, "key", opacity=SHADES[axis]),
        ]
    y, x = 8 + len(ENDS) * row, 0.0
    marks.append(
        svg.text(0, y + 10, " × ".join(f"{n}" for _, n in CHOSEN) + f" = {WANTED:,}", size=svg.SMALL, bold=True)
    )
    for axis, degree in CHOSEN:
        long = log2(degree) * scale
        marks += [
            svg.rect(x, y + 15, long - 1, 20, "key", opacity=SHADES[axis]),
            svg.text(x + long / 2, y + 29, f"{axis} {degree}", anchor="middle", size=svg.SMALLEST),
        ]
        x += long
    foot = y + 44
    marks += [svg.line(right, 8, right, foot, "accent", 2), svg.line(0, foot, right, foot, "muted")]
    for n in TICKS if width > 500 else (*TICKS[:4], WANTED):
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


# --- what is sent when ----------------------------------------------------------------------------------------------

PIECES, BLOCKS = 4, 4  # micro-batches of a step, and blocks of a stage
LANES = ("computes", "tensor", "pipeline", "data")


def step(width: float) -> str:
    """A step of a GPU of the first of two stages: its forwards and backwards, and when it communicates along each axis.
    In order, not to scale."""
    timeline = pipeline.step("1f1b", 2, PIECES, 1, pipeline.even(2))
    left, row = 70.0, 24.0
    end = timeline.seconds
    scale = (width - left - 2) / (end + 3.4)
    marks = [svg.text(0, 6 + row * i + 16, name, size=svg.SMALL, bold=not i) for i, name in enumerate(LANES)]

    def box(lane, start, stop, fill, words="", strong=1.0):
        x, y, wide = left + start * scale, 6 + lane * row, max((stop - start) * scale - 1, 1.6)
        caption = (
            svg.text(
                x + wide / 2,
                y + 15,
                words,
                anchor="middle",
                size=svg.SMALLEST,
                fill="paper" if fill == "compute" and strong == 1 else "ink",
            )
            if words
            else ""
        )
        return svg.rect(x, y + 2, wide, row - 5, fill, opacity=strong) + caption

    for run in timeline.runs[0]:
        kind, number = run.action.kind, str(run.action.micro)
        marks.append(box(0, run.start, run.end, "compute", number, 0.35 if kind == "F" else 1.0))
        piece = (run.end - run.start) / BLOCKS
        marks += [box(1, run.start + (i + 0.55) * piece, run.start + (i + 0.9) * piece, "c4") for i in range(BLOCKS)]
        send_start = run.end if kind == "F" else run.start - 0.45
        marks.append(box(2, send_start, send_start + 0.45, "c4"))
    wide = width > 500
    marks += [
        box(3, end - 1.2, end + 0.6, "c4", "reduce" if wide else ""),
        box(0, end + 0.7, end + 1.5, "compute", "", 0.7),
        box(3, end + 1.6, end + 3.4, "c4", "weights" if wide else ""),
    ]
    label = (
        "A step on one GPU: tensor communication in every block of every micro-batch, pipeline communication after "
        "each forward and before each backward, data communication once, at the end"
    )
    return svg.figure(width, 10 + row * len(LANES), "".join(marks), label)
