"""Bytes dealt out over GPUs, one after the other until each is full: how many a model takes, before anything moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from scaleout.draw import kinds, labels, svg
from scaleout.memory.allocator import usable
from scaleout.spec.devices import DEVICES, GB

NODE = 8  # GPUs of a machine, one column


@dataclass(frozen=True)
class Piece:
    """Bytes of a kind, from one GPU's edge to another: `start` and `end` in GPUs."""

    kind: str
    start: float
    end: float


def pieces(parts: Sequence[tuple[str, float]], each: float) -> list[Piece]:
    """(kind, bytes) dealt out over GPUs of `each` bytes, cut where a GPU is full."""
    out, at = [], 0.0
    for kind, size in parts:
        end = at + size / each
        while end - at > 1e-9:
            until = min(end, float(int(at + 1e-9) + 1))
            out.append(Piece(kind, at, until))
            at = until
    return out


def opening(width: float) -> str:
    """Llama 3.1 405B with AdamW: the states of 16 bytes a parameter over H100s, each filled to its usable memory."""
    n = 405e9
    parts = [("weights", 2 * n), ("gradients", 2 * n), ("master", 4 * n), ("optimizer", 8 * n)]
    return draw(width, parts, usable(DEVICES["h100-sxm"].memory_bytes))


def draw(width: float, parts: Sequence[tuple[str, float]], each: float) -> str:
    """Every GPU a cell, every machine a column, filled in the order of `parts`; beneath, what each kind takes."""
    whole = sum(size for _, size in parts) / each
    nodes = ceil(whole / NODE)
    pitch, gap, tall = width / nodes, 10 if width > 500 else 6, 19 if width > 500 else 14
    across, out = pitch - gap, []
    cell = f'width="{svg.num(across)}" height="{tall - 3}" fill="none" stroke="{svg.colour("muted")}"'
    for gpu in range(nodes * NODE):
        x, y = gpu // NODE * pitch + 0.5, gpu % NODE * tall + 0.5
        out.append(f'<rect x="{svg.num(x)}" y="{svg.num(y)}" {cell} stroke-opacity="0.6"/>')
    for one in pieces(parts, each):
        gpu = int(one.start + 1e-9)
        x, y = gpu // NODE * pitch + (one.start - gpu) * across, gpu % NODE * tall
        out.append(svg.rect(x + 0.5, y + 0.5, (one.end - one.start) * across, tall - 3, kinds.COLOURS[one.kind],
                            opacity=kinds.PALE.get(one.kind, 1.0)))  # fmt: skip
    said = [f"{kinds.NAMES.get(kind, kind)} {size / GB:,.0f} GB, {size / each:.1f} GPUs" for kind, size in parts]
    pairs = [(kinds.COLOURS[kind] + "%" * (kind in kinds.PALE), words)
             for (kind, _), words in zip(parts, said, strict=True)]  # fmt: skip
    marks, height = labels.keys(0, NODE * tall + 8, width, pairs)
    label = f"{nodes} machines of {NODE} GPUs, {ceil(whole)} of them filled: {'; '.join(said)}."
    return svg.figure(width, NODE * tall + 8 + height, "".join([*out, marks]), label)
