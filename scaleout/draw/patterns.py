"""Six collectives, each before and after, as squares, or three of them; and the two rounds of a ring all-reduce."""

from __future__ import annotations

from scaleout.collectives import messages
from scaleout.draw import squares, svg

RANKS = 4
ALL_RANKS = frozenset(range(RANKS))
NAMES = {
    "broadcast": "Broadcast", "reduce": "Reduce", "all_to_all": "All-to-all", "reduce_scatter": "Reduce-scatter",
    "all_gather": "All-gather", "all_reduce": "All-reduce",
}  # fmt: skip
USES = {
    "broadcast": "first weights", "reduce": "a loss to print", "all_to_all": "experts",
    "reduce_scatter": "FSDP: gradients", "all_gather": "FSDP: weights", "all_reduce": "DDP: gradients",
}  # fmt: skip

Contents = list[list[frozenset[int]]]  # by rank, by part: whose numbers are in it

SQUARE, GAP, DROP = 22, 3.5, 34  # on a card: side, between two ranks, from before to after
WIDTH, HEIGHT = RANKS * SQUARE + (RANKS - 1) * GAP + 2, DROP + SQUARE + 2


def states(collective: str) -> tuple[Contents, Contents]:
    """The contents of ranks before and after a collective."""
    cells = [(rank, part) for rank in range(RANKS) for part in range(RANKS)]

    def contents(contributors) -> Contents:
        sums = {cell: frozenset(contributors(*cell)) for cell in cells}
        return [[sums[rank, part] for part in range(RANKS)] for rank in range(RANKS)]

    original, none = (lambda rank, part: {rank}), ()
    initial = {
        "broadcast": lambda rank, part: {0} if rank == 0 else none,
        "all_gather": lambda rank, part: ALL_RANKS if part == rank else none,  # where a reduce-scatter ended
    }.get(collective, original)
    final = {
        "broadcast": lambda rank, part: {0},
        "reduce": lambda rank, part: ALL_RANKS if rank == 0 else none,
        "all_to_all": lambda rank, part: {part},
        "reduce_scatter": lambda rank, part: ALL_RANKS if part == rank else none,
        "all_gather": lambda rank, part: ALL_RANKS,
        "all_reduce": lambda rank, part: ALL_RANKS,
    }[collective]
    return contents(initial), contents(final)


def draw(collective: str) -> str:
    """One collective, as small as on a card: above before, beneath after, an arrow between."""
    label = f"{NAMES[collective]} among {RANKS} ranks, before and after"
    return svg.figure(WIDTH, HEIGHT, _pattern(collective, 1, 1, SQUARE, GAP, DROP), label)


def six(width: float) -> str:
    """All six with their names: reduce-scatter, all-gather and their sum, all-reduce, in one row if it fits."""
    wide = svg.broad(width)
    side, gap, drop = (40, 6.5, 55) if wide else (36, 5, 50)
    room, row = RANKS * side + (RANKS - 1) * gap, drop + side + 78
    columns = 3 if wide else 2
    pitch = (width - 2 - room) / (columns - 1)
    order = list(NAMES) if wide else sorted(NAMES, key="all_to_all".__eq__)
    marks = []
    for i, key in enumerate(order):
        x, y = 1 + i % columns * pitch, 1 + i // columns * row
        marks += [
            _named(key, x, y, side, gap, drop),
            svg.text(x, y + drop + side + 52, USES[key], fill="muted"),
        ]
        sign = {"all_gather": "+", "all_reduce": "="}.get(key)
        if sign and wide:
            sign_x = x - (pitch - room) / 2
            marks.append(svg.text(sign_x, y + (drop + side) / 2 + 6, sign, anchor="middle", fill="muted", size=16))
    height = row * (len(NAMES) // columns) - 20
    return svg.figure(width, height, "".join(marks), "Six collectives on four ranks, each before and after")


def three(width: float) -> str:
    """Reduce-scatter, all-gather, and the all-reduce that they make together; one above the other on a phone."""
    wide = svg.broad(width)
    side, gap, drop = (40, 6.5, 55) if wide else (36, 5, 50)
    room, row = RANKS * side + (RANKS - 1) * gap, drop + side + 58
    pitch = (width - 2 - room) / 2
    marks = []
    for i, key in enumerate(("reduce_scatter", "all_gather", "all_reduce")):
        x, y = (1 + i * pitch, 1) if wide else ((width - room) / 2, 1 + i * row)
        marks.append(_named(key, x, y, side, gap, drop))
        if wide and i:
            sign_x = x - (pitch - room) / 2
            marks.append(svg.text(sign_x, y + (drop + side) / 2 + 6, " +="[i], anchor="middle", fill="muted", size=16))
    label = "Reduce-scatter, all-gather and all-reduce on four ranks, each before and after"
    return svg.figure(width, (row if wide else 3 * row) - 18, "".join(marks), label)


def _named(key: str, x: float, y: float, side: float, gap: float, drop: float) -> str:
    """A collective with its ranks and its name beneath."""
    marks = [_pattern(key, x, y, side, gap, drop)]
    for rank in range(RANKS):
        words = f"part {rank}" if key == "all_to_all" else f"rank {rank}"
        middle = x + rank * (side + gap) + side / 2
        marks.append(svg.text(middle, y + drop + side + 13, words, anchor="middle", fill="muted", size=svg.SMALLEST))
    marks.append(svg.text(x, y + drop + side + 34, NAMES[key], bold=True, size=14))
    return "".join(marks)


def _pattern(collective: str, x: float, y: float, side: float, gap: float, drop: float) -> str:
    """Before, an arrow, and after, with the first square's corner at (x, y)."""
    contents = [
        (x + rank * (side + gap), y + drop * i, parts)
        for i, state in enumerate(states(collective))
        for rank, parts in enumerate(state)
    ]
    middle, long = x + (RANKS * side + (RANKS - 1) * gap) / 2, drop - side - 6
    arrow = (
        f'<path d="M{svg.num(middle)} {svg.num(y + side + 3)}v{svg.num(long)}m-2.5 -2.5l2.5 2.5l2.5 -2.5" fill="none" '
        f'stroke="{svg.colour("c4")}" stroke-width="1.4"/>'
    )
    return squares.draw(contents, side, RANKS) + arrow


def ring(width: float) -> str:
    """What four ranks hold at the start of a ring all-reduce and after each step; framed, the part that leaves next."""
    moves = messages.messages("all_reduce", "ring", RANKS)
    history = messages.run(moves, messages.start("all_reduce", RANKS, RANKS))
    left = 44
    pitch = (width - left - 1) / len(history)
    side = min(62, pitch - 7)
    row, top = side + 9, 44
    marks, contents = [], []
    for step, state in enumerate(history):
        x = left + step * pitch
        words = "start" if step == 0 else f"step {step}" if pitch > 60 else str(step)
        marks.append(svg.text(x + side / 2, top - 8, words, anchor="middle", fill="muted", size=svg.SMALL))
        contents += [(x, top + rank * row, [set(part) for part in parts]) for rank, parts in enumerate(state)]
    marks.append(squares.draw(contents, side, RANKS))
    for move in moves:
        x, y = left + move.step * pitch, top + move.source * row
        marks.append(squares.outline(x, y, side, move.chunk, RANKS))
    marks += [
        svg.text(0, top + rank * row + side / 2 + 4, f"rank {rank}", fill="muted", size=svg.SMALL)
        for rank in range(RANKS)
    ]
    for lap, words in enumerate(("lap 1: add", "lap 2: copy")):
        first = left + (1 + lap * (RANKS - 1)) * pitch
        end = first + (RANKS - 2) * pitch + side
        marks += [
            svg.text((first + end) / 2, 13, words, anchor="middle", bold=True),
            svg.line(first, 19, end, 19, "muted"),
        ]
    label = "A ring of four ranks: what each has at the start and after each of six steps"
    return svg.figure(width, top + RANKS * row - 6, "".join(marks), label)
