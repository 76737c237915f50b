"""The life of a unit under FSDP on a few ranks, moment by moment: shards that fly to all ranks, are freed and come
again, and gradients that fly to the rank that owns them and are averaged there."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.draw import svg
from scaleout.draw.ownership import LENT, OFFLOADED, OWNED, Cells, Flight, Grid, Row

MOMENTS = ("rest", "gather", "forward", "between", "again", "backward", "reduce", "reduced", "update")
DRAWN = 4  # ranks at most
PARTS = {1: "all of it", 2: "half", 3: "third", 4: "quarter"}
SLOT, GAP, HIGH = 9, 7, 9  # of what a rank has sent: a slot, between messages, its height
TOP = 21  # CSS pixels from the ranks' names, which parts under way pass beneath, to the cells
BAND = 6  # CSS pixels of the activations under a rank's cells


@dataclass(frozen=True)
class Unit:
    """What decides a unit's life: ranks that are drawn; whether it stays unsharded between forward and backward;
    whether its shards are offloaded to CPU memory; the share of its activations that is saved for backward."""

    ranks: int
    stays_whole: bool
    offloaded: bool = False
    activations: float = 1.0

    @property
    def messages(self) -> int:
        return 0 if self.ranks == 1 else 2 if self.stays_whole else 3

    def sent(self, moment: int) -> list[float]:
        """Of each message, how much has been sent at a moment: 0, a half or all."""
        begins = (1, 6) if self.stays_whole else (1, 4, 6)
        return [0.5 * min(2, max(0, moment - begin + 1)) for begin in begins][: self.messages]

    def unsharded(self, moment: int) -> bool:
        """Whether all of its weights are on every rank."""
        return moment in (2, 5) or (self.stays_whole and 2 <= moment <= 5)


def caption(unit: Unit, moment: int) -> str:
    """What happens at a moment."""
    part = PARTS[unit.ranks]
    if unit.ranks == 1:
        return (
            "at rest: one GPU stores all of it",
            "at rest: nothing to all-gather",
            "forward",
            "its activations are saved",
            "nothing to all-gather",
            "backward",
            "nothing to reduce",
            "its gradients are ready",
            "optimizer step",
        )[moment]
    host = " from CPU memory" if unit.offloaded else ""
    place = "in CPU memory" if unit.offloaded else "on each GPU"
    return (
        f"at rest: a {part} {place}",
        f"unshard: all-gather of each {part}{host}",
        "unsharded: forward computes",
        "stays unsharded until backward" if unit.stays_whole else f"reshard: a {part} and activations stay",
        "still unsharded: no second all-gather" if unit.stays_whole else f"unshard again: all-gather of each {part}",
        "backward: each GPU's own gradients",
        "reduce-scatter: gradients are averaged",
        f"reshard: a {part} of the mean stays",
        f"optimizer step: each GPU updates its {part}",
    )[moment]


def height(unit: float) -> float:
    """CSS pixels of `draw`, from the names of the ranks down."""
    return TOP + 2 * unit + 4 + 4 + BAND


def draw(unit: Unit, moment: int, x: float, y: float, width: float, cell: float, name: str = "GPU") -> str:
    """The ranks side by side from (x, y): names, weights above gradients, activations under them. cell: the height of a
    row of cells."""
    rows = (Row("weights", 1, "c1", "c5"), Row("gradients", 1, "c6"))
    grid = Grid(rows, unit.ranks, x, y + TOP, width, cell, 14 if width > 400 else 8, 4)
    flying = _flights(unit, moment)
    leaving, moving = grid.flights(flying)
    names = "".join(
        svg.text(
            grid.left(rank) + grid.column / 2,
            y + 11,
            f"{name} {rank}".strip(),
            anchor="middle",
            bold=True,
            size=svg.SMALL,
        )
        for rank in range(unit.ranks)
    )
    return "".join(
        [
            names,
            grid.frames(),
            leaving,
            grid.cells(_states(unit, moment), grid.landed(flying)),
            moving,
            _activations(unit, moment, grid),
        ]
    )


def names(x: float, y: float, cell: float) -> str:
    """Of the rows, ending at x."""
    y += TOP
    middles = {"weights": y + cell / 2, "gradients": y + 4 + 1.5 * cell, "activations": y + 10 + 2 * cell}
    return "".join(
        svg.text(x, middle + 4, words, anchor="end", size=svg.SMALLEST, fill="muted")
        for words, middle in middles.items()
    )


def slots(unit: Unit, moment: int, right: float, y: float) -> tuple[str, float]:
    """Bytes a rank has sent: for each collective a slot for every shard, of which its own stays empty. Ends at `right`;
    also returns where it begins."""
    message_width = unit.ranks * SLOT + GAP
    left = right - unit.messages * message_width + GAP
    full: list[str] = []
    half: list[str] = []
    unsent: list[str] = []
    for k, part in enumerate(unit.sent(moment)):
        for slot in range(unit.ranks):
            box = f"M{svg.num(left + k * message_width + slot * SLOT)} {svg.num(y)}h{SLOT - 2}v{HIGH}h-{SLOT - 2}z"
            filled = slot < unit.ranks - 1 and part
            (unsent if not filled else full if part == 1 else half).append(box)
    c4 = svg.colour("c4")
    marks = [
        f'<path d="{"".join(full)}" fill="{c4}"/>' if full else "",
        f'<path d="{"".join(half)}" fill="{c4}" fill-opacity="0.45"/>' if half else "",
        f'<path d="{"".join(unsent)}" fill="none" stroke="{svg.colour("muted")}" stroke-dasharray="2 1.5"/>',
    ]
    return "".join(marks) if unit.messages else "", left


def _states(unit: Unit, moment: int) -> dict[str, Cells]:
    """States of the cells, by kind, rank and part. What is about to leave or under way is drawn by its flight."""
    ranks = range(unit.ranks)
    unsharded = unit.unsharded(moment) or unit.ranks == 1
    owned = OFFLOADED if unit.offloaded and not unsharded else OWNED
    weights = [[owned if part == rank else LENT * unsharded for part in ranks] for rank in ranks]
    local = {5: (LENT, LENT * (unit.ranks == 1)), 6: (LENT, 0), 7: (OWNED, 0), 8: (OWNED, 0)}.get(moment, (0, 0))
    gradients = [[local[0] if part == rank else local[1] for part in ranks] for rank in ranks]
    return {"weights": weights, "gradients": gradients}


def _flights(unit: Unit, moment: int) -> list[Flight]:
    """What is about to leave, under way, or has just come."""
    if unit.ranks == 1:
        return []
    flights = []
    for name, key, way, begins in (("a", "weights", "out", 1), ("b", "weights", "out", 4), ("c", "gradients", "in", 6)):
        if begins - 1 <= moment <= begins + 1 and not (name == "b" and unit.stays_whole):
            progress = (moment - begins + 1) / 2
            options = (way, progress, way == "out", way == "in")
            flights += [Flight(f"{name}{part}", key, part, *options) for part in range(unit.ranks)]
    return flights


def _activations(unit: Unit, moment: int, grid: Grid) -> str:
    """Each rank's own, never sharded: from its forward to its backward."""
    width = grid.column * unit.activations * (2 <= moment <= 5)
    y = grid.bottom + 4
    return "".join(
        svg.line(grid.left(rank), y + BAND, grid.left(rank) + grid.column - 1.5, y + BAND, "grid")
        + svg.rect(grid.left(rank), y, width, BAND, "c3", mark=f"kept{rank}")
        for rank in range(unit.ranks)
    )


SHOWN = {
    0: ("at rest", "a quarter each"), 2: ("forward", "unsharded"),
    3: ("between", "resharded"), 5: ("backward", "unsharded again"),
    6: ("reduce-scatter", "gradients averaged"), 7: ("at rest", "a quarter of the mean"),
}  # fmt: skip


def six(width: float) -> str:
    """The life of one unit on four ranks, in six moments, three beside each other; on a phone two."""
    columns, gap = (3, 26.0) if svg.broad(width) else (2, 18.0)
    wide, cell = (width - gap * (columns - 1)) / columns, 15.0
    tall, unit, marks = 36 + height(cell) + 16, Unit(DRAWN, False), []
    for k, (moment, (title, words)) in enumerate(SHOWN.items()):
        x, y = k % columns * (wide + gap), k // columns * tall
        marks += [
            svg.text(x, y + 13, f"{k + 1}. {title}", bold=True),
            svg.text(x, y + 29, words, size=svg.SMALL, fill="muted"),
            draw(unit, moment, x, y + 34, wide, cell, ""),
        ]
    label = (
        f"Four ranks and their cells for the quarters of one unit, at {len(SHOWN)} moments: at rest each has its own "
        "quarter; in forward all quarters; between, its own again, and activations; in backward all, and gradients "
        "of all of them; then gradients on their way to the rank that owns each quarter; at the end each has its "
        "quarter of the weights and of the averaged gradients."
    )
    return svg.figure(width, tall * -(-len(SHOWN) // columns) - 10, "".join(marks), label)
