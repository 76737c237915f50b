"""A batch dealt out to more and more GPUs, strong and weak: a row is a GPU, its length what it takes. The wire is
beneath."""

from __future__ import annotations

from math import ceil

from scaleout.draw import hatch, svg

BATCH, EACH = 8, 2  # sequences shared by all, and of each GPU
WORLDS = (1, 2, 4, 8, 16)
ROW = 7.0  # CSS pixels from one GPU to the next
BYTES, START = 0.9, 0.12  # of the wire in sequences: all bytes, and a hop's start. For the eye, of no machine.


def wire(gpus: int) -> tuple[float, float]:
    """Bytes and starts of a ring, as long as so many sequences."""
    return BYTES * (gpus - 1) / gpus, START * (gpus - 1)


def strong_beside_weak(width: float) -> str:
    """Two bands of five columns."""
    out, y = [], 0.0
    for words, each_of in (
        (f"Strong: {BATCH} sequences, shared", lambda gpus: BATCH / gpus),
        (f"Weak: {EACH} sequences for each GPU", lambda gpus: float(EACH)),
    ):
        drawn, y = _band(width, y, words, each_of)
        out.append(drawn)
    label = (
        f"{BATCH} sequences shared by 1 to {WORLDS[-1]} GPUs: rows shorten until each has one, then half of "
        f"the GPUs are empty. {EACH} sequences for each: rows keep their length, and the wire beneath grows past "
        "them by its starts."
    )
    return svg.figure(width, y, "".join(out), label)


def _band(width: float, y: float, words: str, each_of) -> tuple[str, float]:
    """A title, a column for each number of GPUs, and where it ends."""
    pitch = width / len(WORLDS)
    one = min(13.0, (pitch - 8) / BATCH)  # CSS pixels of a sequence
    out, base = [svg.text(0, y + 13, words, bold=True)], y + 22
    for n, gpus in enumerate(WORLDS):
        x, each = n * pitch, ceil(each_of(gpus))
        for k in range(gpus):
            top = base + k * ROW
            if each_of(gpus) >= 1 or k < BATCH:
                out += [svg.rect(x + j * one, top, one - 1, ROW - 2, "compute") for j in range(each)]
            else:
                out.append(hatch.box(x, top, one - 1, ROW - 2, "muted"))
        sent, starts = (part * one for part in wire(gpus))
        low = base + gpus * ROW + 4
        out += [svg.rect(x, low, sent, 5, "c4"), svg.rect(x + sent, low, starts, 5, "c7")]
        out.append(svg.text(x, low + 19, f"{gpus} GPU{'s' if gpus > 1 else ''}", size=svg.SMALLEST, fill="muted"))
    return "".join(out), base + WORLDS[-1] * ROW + 34
