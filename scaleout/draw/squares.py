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
        stroke = svg.colour("muted" if any(parts) else "grid")
        frames.append(
            f'<rect x="{svg.num(x)}" y="{svg.num(y)}" width="{svg.num(side)}" height="{svg.num(side)}" rx="2" '
            f'fill="none" stroke="{stroke}"/>'
        )
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
    return (
        f'<rect x="{svg.num(x + MARGIN + column * part - 1)}" y="{svg.num(y - 1.5)}" width="{svg.num(column + 1.5)}" '
        f'height="{svg.num(side + 3)}" rx="2" fill="none" stroke="{svg.colour("c4")}" stroke-width="2"/>'
    )
