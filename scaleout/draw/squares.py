"""The contents of ranks: a square for each rank, a column for each part of the message, a stripe for each rank whose
numbers have been added there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from scaleout.draw import ramp, svg

Parts = Sequence[Collection[int]]  # of one rank, by part: whose numbers are in it
MARGIN = 1.5  # between a square's frame and its stripes


def draw(cells: Iterable[tuple[float, float, Parts]], side: float, ranks: int) -> str:
    """Squares with their upper left corners at (x, y). All stripes of one colour are one path: they are many."""
    frames: list[str] = []
    stripes: dict[int, list[str]] = {rank: [] for rank in range(ranks)}
    for x, y, parts in cells:
        frames.append(svg.frame(x, y, side, side, "muted" if any(parts) else "grid", rounded=2))
        column, row = (side - 2 * MARGIN) / len(parts), (side - 2 * MARGIN) / ranks
        wide, high = svg.num(column - 0.5), svg.num(row - 0.5)
        for part, contributors in enumerate(parts):
            for contributor in contributors:
                left, top = svg.num(x + MARGIN + column * part), svg.num(y + MARGIN + row * contributor)
                stripes[contributor].append(f"M{left} {top}h{wide}v{high}h-{wide}z")
    paths = (
        f'<path d="{"".join(d)}" fill="{ramp.colour(contributor, ranks)}"/>' for contributor, d in stripes.items() if d
    )
    return "".join(frames) + "".join(paths)


def outline(x: float, y: float, side: float, part: int, parts: int) -> str:
    """A frame around one column of a square: the part that travels next."""
    column = (side - 2 * MARGIN) / parts
    return svg.frame(x + MARGIN + column * part - 1, y - 1.5, column + 1.5, side + 3, "c4", 2, rounded=2)
