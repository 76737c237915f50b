"""Six collectives, each before and after: a square for each rank, a column for each part, a stripe for each rank whose
numbers are in it."""

from __future__ import annotations

from scaleout.draw import ramp, svg

RANKS = 4
EVERY = frozenset(range(RANKS))
NAMES = {
    "broadcast": "Broadcast", "reduce": "Reduce", "all_to_all": "All-to-all", "reduce_scatter": "Reduce-scatter",
    "all_gather": "All-gather", "all_reduce": "All-reduce",
}  # fmt: skip
USES = {
    "broadcast": "first weights", "reduce": "a loss to print", "all_to_all": "experts",
    "reduce_scatter": "FSDP: gradients", "all_gather": "FSDP: weights", "all_reduce": "DDP: gradients",
}  # fmt: skip

Held = list[list[frozenset[int]]]  # by rank, by part: whose numbers are in it

SQUARE, GAP, DOWN = 22, 3.5, 34  # side, between two ranks, from before to after
WIDTH, HEIGHT = RANKS * SQUARE + (RANKS - 1) * GAP + 2, DOWN + SQUARE + 2


def states(collective: str) -> tuple[Held, Held]:
    """What ranks hold before and after."""
    cells = [(rank, part) for rank in range(RANKS) for part in range(RANKS)]

    def held(of) -> Held:
        found = {cell: frozenset(of(*cell)) for cell in cells}
        return [[found[rank, part] for part in range(RANKS)] for rank in range(RANKS)]

    own, none = (lambda rank, part: {rank}), ()
    before = {
        "broadcast": lambda rank, part: {0} if rank == 0 else none,
        "all_gather": lambda rank, part: EVERY if part == rank else none,  # where a reduce-scatter ended
    }.get(collective, own)
    after = {
        "broadcast": lambda rank, part: {0},
        "reduce": lambda rank, part: EVERY if rank == 0 else none,
        "all_to_all": lambda rank, part: {part},
        "reduce_scatter": lambda rank, part: EVERY if part == rank else none,
        "all_gather": lambda rank, part: EVERY,
        "all_reduce": lambda rank, part: EVERY,
    }[collective]
    return held(before), held(after)


def draw(collective: str) -> str:
    """One collective: above before, beneath after, an arrow between."""
    rows = [_row(held, 1 + DOWN * i) for i, held in enumerate(states(collective))]
    middle, top = WIDTH / 2, SQUARE + 3.5
    arrow = (
        f'<path d="M{svg.num(middle)} {top}v6m-2.5 -2.5l2.5 2.5l2.5 -2.5" fill="none" stroke="{svg.colour("c4")}" '
        'stroke-width="1.2"/>'
    )
    label = f"{NAMES[collective]} among {RANKS} ranks, before and after"
    return svg.figure(WIDTH, HEIGHT, "".join(rows) + arrow, label)


def _row(held: Held, top: float) -> str:
    out, pitch = [], (SQUARE - 3) / RANKS
    for rank, parts in enumerate(held):
        left = 1 + rank * (SQUARE + GAP)
        stroke = svg.colour("muted" if any(parts) else "grid")
        out.append(
            f'<rect x="{svg.num(left)}" y="{top}" width="{SQUARE}" height="{SQUARE}" rx="2" fill="none" '
            f'stroke="{stroke}"/>'
        )
        for part, whose in enumerate(parts):
            for one in sorted(whose):
                x, y = left + 1.5 + pitch * part, top + 1.5 + pitch * one
                out.append(
                    f'<rect x="{svg.num(x)}" y="{svg.num(y)}" width="{svg.num(pitch - 0.5)}" '
                    f'height="{svg.num(pitch - 0.5)}" fill="{ramp.colour(one, RANKS)}"/>'
                )
    return "".join(out)
