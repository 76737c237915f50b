"""A batch on more and more GPUs, in strong and weak scaling: a row is a GPU, a square a sequence. Communication is
beneath."""

from __future__ import annotations

from math import ceil

from scaleout.draw import hatch, svg

BATCH, PER_GPU = 8, 2  # sequences shared by all, and of each GPU
WORLDS = (1, 2, 4, 8, 16)
ROW = 7.0  # CSS pixels from one GPU to the next
BYTES, START = 0.9, 0.12  # of the wire in sequences: all bytes, and a hop's start. For the eye, of no machine.


def wire(gpus: int) -> tuple[float, float]:
    """Transfer and latency of a ring, as long as so many sequences."""
    return BYTES * (gpus - 1) / gpus, START * (gpus - 1)


def strong_beside_weak(width: float) -> str:
    """Two bands of five columns."""
    marks, y = [], 0.0
    for words, each_of in (
        (f"Strong: {BATCH} sequences in all", lambda gpus: BATCH / gpus),
        (f"Weak: {PER_GPU} sequences per GPU", lambda gpus: float(PER_GPU)),
    ):
        drawn, y = _band(width, y, words, each_of)
        marks.append(drawn)
    label = (
        f"{BATCH} sequences divided among 1 to {WORLDS[-1]} GPUs: rows get shorter until each has one sequence, then "
        f"half of the GPUs have none. {PER_GPU} sequences per GPU: rows keep their length, and the latency of "
        "communication grows past them."
    )
    return svg.figure(width, y, "".join(marks), label)


def _band(width: float, y: float, words: str, each_of) -> tuple[str, float]:
    """A title, a column for each number of GPUs, and where it ends."""
    pitch = width / len(WORLDS)
    sequence_width = min(13.0, (pitch - 8) / BATCH)  # CSS pixels of a sequence
    marks, base = [svg.text(0, y + 13, words, bold=True)], y + 22
    for n, gpus in enumerate(WORLDS):
        x, count = n * pitch, ceil(each_of(gpus))
        for k in range(gpus):
            top = base + k * ROW
            if each_of(gpus) >= 1 or k < BATCH:
                marks += [
                    svg.rect(x + j * sequence_width, top, sequence_width - 1, ROW - 2, "compute") for j in range(count)
                ]
            else:
                marks.append(hatch.box(x, top, sequence_width - 1, ROW - 2, "muted"))
        sent, starts = (part * sequence_width for part in wire(gpus))
        low = base + gpus * ROW + 4
        marks += [
            svg.rect(x, low, sent, 5, "c4"),
            svg.rect(x + sent, low, starts, 5, "c7"),
            svg.text(x, low + 19, f"{gpus} GPU{'s' if gpus > 1 else ''}", size=svg.SMALLEST, fill="muted"),
        ]
    return "".join(marks), base + WORLDS[-1] * ROW + 34
