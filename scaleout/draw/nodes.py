"""Hierarchical all-reduce as squares: what the ranks of some nodes hold before, between and after its three phases."""

from __future__ import annotations

from itertools import pairwise

from scaleout.collectives import messages
from scaleout.draw import squares, svg

NODES, GPUS = 2, 4
RANKS = NODES * GPUS
PHASES = ("before", "reduce-scatter inside", "all-reduce across", "all-gather inside")


MOVES = messages.messages("all_reduce", "hierarchical", RANKS, gpus_per_node=GPUS)
CHUNKS = messages.chunk_count("all_reduce", "hierarchical", RANKS)
ENDS = (0, GPUS - 1, GPUS - 1 + 2 * (NODES - 1), 2 * (GPUS - 1) + 2 * (NODES - 1))  # steps made after each moment


def states() -> list[list[list[set[int]]]]:
    """The contents of each rank before, and after each phase: whose numbers are in each part.

    Sums that a rank has passed on, and that are out of date, are left out.
    """
    history = messages.run(MOVES, messages.start("all_reduce", RANKS, CHUNKS))
    counts = (1, GPUS, RANKS, RANKS)
    return [
        [[set(part) if len(part) >= least else set() for part in parts] for parts in history[step]]
        for step, least in zip(ENDS, counts, strict=True)
    ]


def sent() -> list[float]:
    """Parts of the message that one rank sends in each phase."""
    steps = [move.step for move in MOVES if move.source == 0]
    return [sum(a <= step < b for step in steps) / CHUNKS for a, b in pairwise(ENDS)]


def draw(width: float) -> str:
    """Four moments, each with both nodes; between them, what each rank sends, and over which link."""
    columns = 4 if svg.broad(width) else 2
    gap, gutter = 4, 26 if columns == 4 else 22
    side = ((width - 2 - (columns - 1) * gutter) / columns - (GPUS - 1) * gap) / GPUS
    room, block = GPUS * side + (GPUS - 1) * gap, 2 * side + 52
    marks, contents = [], []
    for i, state in enumerate(states()):
        x, y = 1 + i % columns * (room + gutter), i // columns * (block + 10)
        marks.append(svg.text(x, y + 13, PHASES[i], bold=True))
        link = "network" if i == 2 else "NVLink"
        words = f"each sends {sent()[i - 1]:g} n, {link}" if i else "each has its own"
        marks.append(svg.text(x, y + 30, words, fill="muted", size=svg.SMALL))
        for rank, parts in enumerate(state):
            node, gpu = divmod(rank, GPUS)
            contents.append((x + gpu * (side + gap), y + 40 + node * (side + 10), parts))
    marks.append(squares.draw(contents, side, RANKS))
    height = 4 // columns * (block + 10) - 10
    return svg.figure(
        width, height, "".join(marks), "Hierarchical all-reduce on two nodes of four GPUs, phase by phase"
    )
