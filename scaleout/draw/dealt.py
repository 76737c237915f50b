"""Bytes spread over GPUs, one after the other until each is full: how many GPUs a model's states take."""

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


def pieces(parts: Sequence[tuple[str, float]], gpu_bytes: float) -> list[Piece]:
    """(kind, bytes) dealt out over GPUs of `gpu_bytes`, cut where a GPU is full."""
    result, start = [], 0.0
    for kind, size in parts:
        end = start + size / gpu_bytes
        while end - start > 1e-9:
            until = min(end, float(int(start + 1e-9) + 1))
            result.append(Piece(kind, start, until))
            start = until
    return result


def opening(width: float) -> str:
    """Llama 3.1 405B with AdamW: the states of 16 bytes per parameter over H100s, each filled to its usable memory."""
    n = 405e9
    parts = [("weights", 2 * n), ("gradients", 2 * n), ("master", 4 * n), ("optimizer", 8 * n)]
    return draw(width, parts, usable(DEVICES["h100-sxm"].memory_bytes))


def draw(width: float, parts: Sequence[tuple[str, float]], gpu_bytes: float) -> str:
    """Every GPU a cell, every machine a column, filled in the order of `parts`; beneath, what each kind takes."""
    filled = sum(size for _, size in parts) / gpu_bytes
    nodes = ceil(filled / NODE)
    pitch, gap, tall = width / nodes, 10 if svg.broad(width) else 6, 19 if svg.broad(width) else 14
    cell_width, cells = pitch - gap, []
    cell = f'width="{svg.num(cell_width)}" height="{tall - 3}" fill="none" stroke="{svg.colour("muted")}"'
    for gpu in range(nodes * NODE):
        x, y = gpu // NODE * pitch + 0.5, gpu % NODE * tall + 0.5
        cells.append(f'<rect x="{svg.num(x)}" y="{svg.num(y)}" {cell} stroke-opacity="0.6"/>')
    for piece in pieces(parts, gpu_bytes):
        gpu = int(piece.start + 1e-9)
        x, y = gpu // NODE * pitch + (piece.start - gpu) * cell_width, gpu % NODE * tall
        cells.append(
            svg.rect(
                x + 0.5,
                y + 0.5,
                (piece.end - piece.start) * cell_width,
                tall - 3,
                kinds.COLOURS[piece.kind],
                opacity=kinds.PALE.get(piece.kind, 1.0),
            )
        )
    amounts = [
        f"{kinds.NAMES.get(kind, kind)} {size / GB:,.0f} GB, {size / gpu_bytes:.1f} GPUs" for kind, size in parts
    ]
    pairs = [
        (kinds.COLOURS[kind] + "%" * (kind in kinds.PALE), words)
        for (kind, _), words in zip(parts, amounts, strict=True)
    ]
    marks, height = labels.keys(0, NODE * tall + 8, width, pairs)
    label = f"{nodes} servers of {NODE} GPUs, {ceil(filled)} of them filled: {'; '.join(amounts)}."
    return svg.figure(width, NODE * tall + 8 + height, "".join([*cells, marks]), label)
