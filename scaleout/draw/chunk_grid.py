"""A collective step by step as SVG: a grid of ranks and chunks, what each cell holds, and what moved last."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from scaleout.collectives import messages
from scaleout.draw import svg

ROW, LEFT, WIDEST = 27, 58, 96  # user units: height of a rank's row, where cells begin, a cell's width at most
BLOCKS = 2  # of each half of the tree


@dataclass(frozen=True)
class Frames:
    """An all-reduce to be shown: `counts[s][rank][chunk]` contributions after s steps, `moves[s - 1]` of step s.

    A cell that holds a contribution twice would show as more than there are ranks. With switches that add, the last
    row is the switch.
    """

    algorithm: str
    ranks: int
    counts: tuple[tuple[tuple[int, ...], ...], ...]
    moves: tuple[tuple[messages.Message, ...], ...]

    @property
    def steps(self) -> int:
        return len(self.moves)

    @property
    def chunks(self) -> int:
        return len(self.counts[0][0])

    def busiest(self) -> int:
        """Chunks that the busiest rank sends in all steps."""
        everything = [one for step in self.moves for one in step]
        return int(max(messages.sent(everything, [1] * self.chunks, self.ranks)))

    def phase(self, step: int) -> str:
        """What a step, from 1 up, is part of: the first phase adds up, the second hands the sums out."""
        first, second = _PHASES.get(self.algorithm, ("reduce", "broadcast"))
        adds = {one.adds for one in self.moves[step - 1]}
        return f"{first} and {second}" if len(adds) > 1 else first if True in adds else second


_PHASES = dict.fromkeys(("ring", "halving-doubling"), ("reduce-scatter", "all-gather"))


@lru_cache(maxsize=64)
def frames(algorithm: str, ranks: int) -> Frames:
    """The frames of an all-reduce, simulated from its messages."""
    moves = messages.messages("all_reduce", algorithm, ranks, BLOCKS)
    chunks = messages.chunk_count("all_reduce", algorithm, ranks, BLOCKS)
    states = messages.run(moves, messages.start("all_reduce", ranks, chunks, algorithm == "in-network"))
    counts = tuple(tuple(tuple(cell.total() for cell in rank) for rank in state) for state in states)
    by_step = tuple(tuple(one for one in moves if one.step == s) for s in range(len(states) - 1))
    return Frames(algorithm, ranks, counts, by_step)


def draw(shown: Frames, step: int, top: float, width: float) -> tuple[str, float]:
    """The grid after `step` steps from `top` down, `width` wide. Returns the marks and the height where they end."""
    cell = min(WIDEST, (width - LEFT) / shown.chunks)
    body = [
        svg.text(LEFT + cell * (chunk + 0.5), top + 12, _head(shown, chunk, cell), anchor="middle", fill="muted")
        for chunk in range(shown.chunks)
    ]
    first = top + 19
    moves = shown.moves[step - 1] if step else ()
    arriving = {(one.target, one.chunk) for one in moves}
    for rank, cells in enumerate(shown.counts[step]):
        y = first + ROW * rank
        body.append(svg.text(4, y + 18, f"rank {rank}" if rank < shown.ranks else "switch"))
        for chunk, count in enumerate(cells):
            at = LEFT + cell * chunk
            body.append(_cell(at, y, cell, count, shown.ranks, f"{_who(shown, rank)}, chunk {chunk}"))
            if (rank, chunk) in arriving:
                body.append(_frame(at + 2, y + 2, cell - 4, ROW - 4))
    body += _arrows(moves, first, cell)
    return "".join(body), first + ROW * len(shown.counts[step])


def _head(shown: Frames, chunk: int, cell: float) -> str:
    if shown.chunks == 1:
        return "whole"
    return f"chunk {chunk}" if cell > 54 else str(chunk)


def _who(shown: Frames, rank: int) -> str:
    return f"rank {rank}" if rank < shown.ranks else "the switch"


def _cell(x: float, y: float, width: float, count: int, ranks: int, who: str) -> str:
    """A cell filled as far as its sum is complete, with the number of contributions in it."""
    inner, height = width - 4, ROW - 4
    title = f"{who}: {count} of {ranks} contributions"
    out = svg.rect(x + 2, y + 2, inner, height, "grid", title=title, opacity=0.45)
    if count:
        fill = "c3" if count == ranks else "c5"
        out += svg.rect(x + 2, y + 2, inner * count / ranks, height, fill, title=title, opacity=0.85)
    words = str(count) if count else "·"
    return out + svg.text(x + width * 0.3, y + 18, words, anchor="middle", bold=count == ranks, halo=True)


def _frame(x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect x="{svg.num(x)}" y="{svg.num(y)}" width="{svg.num(width)}" height="{svg.num(height)}" fill="none" '
        f'stroke="{svg.colour("accent")}" stroke-width="2"/>'
    )


def _arrows(moves: tuple[messages.Message, ...], first: float, cell: float) -> list[str]:
    """An arrow for each message, side by side where a column has several."""
    columns: dict[int, list[messages.Message]] = {}
    for one in moves:
        columns.setdefault(one.chunk, []).append(one)
    out = []
    for chunk, several in columns.items():
        for i, one in enumerate(several):
            x = LEFT + cell * (chunk + 0.48 + 0.46 * (i + 0.5) / len(several))
            out.append(_arrow(x, first + ROW * (one.source + 0.5), first + ROW * (one.target + 0.5)))
    return out


def _arrow(x: float, start: float, end: float) -> str:
    """A vertical arrow from a dot to a head."""
    way = 1 if end > start else -1
    neck = end - 6 * way
    head = " ".join(f"{svg.num(a)},{svg.num(b)}" for a, b in ((x - 4, neck), (x + 4, neck), (x, end)))
    ink = svg.colour("accent")
    return (
        f'<circle cx="{svg.num(x)}" cy="{svg.num(start)}" r="2.5" fill="{ink}"/>'
        f'{svg.line(x, start, x, neck, "accent", 1.75)}<polygon points="{head}" fill="{ink}"/>'
    )
