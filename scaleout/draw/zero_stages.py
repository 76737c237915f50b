"""ZeRO's stages next to each other: the states of one model on each of four GPUs, area by bytes; the two halves of an
all-reduce; and when each stage communicates."""

from __future__ import annotations

from dataclasses import replace

from scaleout.draw import ownership, patterns, room, squares, svg
from scaleout.draw.room import Block, Lane
from scaleout.memory import allocator, zero
from scaleout.spec.devices import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS, total_parameters

RANKS, USABLE = 4, allocator.usable(DEVICES["h100-sxm"].memory_bytes)
RECIPE = Recipe(precision="bf16-master")
NAMES = ("0: replicated", "1: shard optimizer", "2: + gradients", "3: + weights")
FILLS = {"weights": "c1", "gradients": "c6"}  # all else is optimizer state
HALVES = ("reduce_scatter", "all_gather", "all_reduce")


def opening(width: float) -> str:
    """A panel for each stage: weights, gradients and optimizer states of Llama 2 7B on four GPUs."""
    broad, gap = svg.broad(width), 22.0
    columns, unit, below = (len(NAMES), 9.0, 42.0) if broad else (2, 7.0, 20.0)
    panel_width = room.share(width, columns, gap)
    panels = [_panel(stage, name, panel_width, unit, below) for stage, name in enumerate(NAMES)]
    legend = room.key([("c1", "weights"), ("c6", "gradients"), ("c2", "optimizer")])
    label = "Four GPUs at ZeRO's stages 0 to 3: " + "; ".join(
        f"{state_bytes(stage) / 1e9:.1f} GB each" for stage in range(4)
    )
    return room.column(legend, room.tiles(panels, width, columns, gap)).figure(width, label, foot=-room.BASELINE)


def state_bytes(stage: int) -> int:
    """Bytes of states on one of the four GPUs."""
    tiers = zero.at_rest(total_parameters(PRESETS["llama-2-7b"]), RECIPE, Layout(dp=RANKS, zero=stage))
    return sum(tiers["device"].values())


def _panel(stage: int, name: str, width: float, unit: float, below: float) -> Block:
    """below: space under it."""
    rows = tuple(ownership.Row(kind, size, FILLS.get(kind, "c2")) for kind, size in zero.widths(RECIPE).items())
    ranks = range(RANKS)
    owned = {
        kind: [[int(stage < zero.splits(kind) or shard == rank) for shard in ranks] for rank in ranks]
        for kind in zero.widths(RECIPE)
    }
    grid = ownership.Grid(rows, RANKS, 0.0, 0.0, width, unit, column_gap=5, row_gap=2)

    def states(x: float, y: float) -> str:
        moved = replace(grid, x=x, y=y)
        return moved.frames() + moved.cells(owned)

    size, fits = state_bytes(stage), state_bytes(stage) <= USABLE
    text = f"{size / 1e9:.1f} GB per GPU" if fits else f"{size / 1e9:.1f} GB: too much"
    total = room.words(text, room.BASELINE + below, bold=True, size=svg.SMALL, fill="ink" if fits else "accent")
    return room.column(room.title(name), Block(width, grid.bottom + 4, states), total)


# --- an all-reduce ------------------------------------------------------------------------------------------------


def halves(width: float) -> str:
    """A reduce-scatter, an all-gather, and the all-reduce that they are together, each before and after."""
    broad = svg.broad(width)
    side, gap, drop = (40.0, 6.0, 56.0) if broad else (24.0, 3.0, 38.0)
    ranks = patterns.RANKS * (side + gap) - gap
    pitch, top = (width - 2 - ranks) / 2, room.TITLE + 2
    low, marks, contents = top + drop + side, [], []
    for i, collective in enumerate(HALVES):
        x = 1 + i * pitch
        name = patterns.NAMES[collective]
        marks.append(svg.text(x, room.BASELINE, name, bold=True, size=svg.FONT if broad else svg.SMALL))
        for time, state in enumerate(patterns.states(collective)):
            contents += [(x + rank * (side + gap), top + drop * time, parts) for rank, parts in enumerate(state)]
        for rank in range(patterns.RANKS):
            middle = x + rank * (side + gap) + side / 2
            words = f"rank {rank}" if broad else str(rank)
            marks.append(svg.text(middle, low + room.BASELINE, words, anchor="middle", fill="muted", size=svg.SMALLEST))
        if broad and i:
            sign_x, sign_y = x - (pitch - ranks) / 2, (top + low) / 2 + 5
            marks.append(svg.text(sign_x, sign_y, " +="[i], anchor="middle", fill="muted", size=16))
    label = "A reduce-scatter and an all-gather, which together are an all-reduce, on four ranks, before and after"
    return svg.figure(
        width, low + room.BASELINE + 6, "".join(marks) + squares.draw(contents, side, patterns.RANKS), label
    )


# --- when ---------------------------------------------------------------------------------------------------------

FORWARD, BACKWARD = (0.0, 3.0), (3.0, 9.0)
LAYERS = 4
WIRE = {  # (from, to, what is communicated, its short name) in slots; only their order is meant
    0: ((9.0, 11.3, "reduce-scatter", "RS g"), (11.3, 13.3, "all-gather g", "AG g")),
    1: ((9.0, 11.3, "reduce-scatter", "RS g"), (12.3, 14.3, "all-gather w", "AG w")),
    2: (*((4.5 + 1.5 * i, 5.1 + 1.5 * i, "g", "g") for i in range(LAYERS)), (10.6, 12.6, "all-gather w", "AG w")),
    3: (*((0.75 * i, 0.75 * i + 0.6, "w", "w") for i in range(LAYERS)),
        *((3.0 + 1.5 * i, 3.6 + 1.5 * i, "w", "w") for i in range(LAYERS)),
        *((4.5 + 1.5 * i - 0.75, 4.5 + 1.5 * i - 0.15, "g", "g") for i in range(1, LAYERS)), (9.0, 9.6, "g", "g")),
}  # fmt: skip
UPDATE = {0: 13.3, 1: 11.3, 2: 9.6, 3: 9.6}
SLOTS, ROW = 14.4, 20.0  # slots of the axis; CSS pixels of a row
LONG_NAMES = 34.0  # CSS pixels per slot from which on collectives have their long names


def middle(width: float) -> str:
    """A lane for each stage: its computation and its communication, in order, not to scale."""
    lanes = [_lanes(stage, name, width) for stage, name in enumerate(NAMES)]
    label = (
        "A step at each stage: the update comes after both halves of the all-reduce in stage 0, and between them in "
        "stage 1; stages 2 and 3 reduce gradients during the backward, and stage 3 gathers weights in forward and "
        "backward"
    )
    return room.column(*lanes).figure(width, label, foot=-2)


def _lanes(stage: int, name: str, width: float) -> Block:
    """What a stage computes, and below it what it communicates; its name is at the left, on a phone above."""
    left = 132.0 if svg.broad(width) else 0.0
    scale = (width - left - 2) / SLOTS

    def boxes(x: float, y: float) -> str:
        computes, communicates = (Lane(x + left, y + 4 + k * ROW, scale, ROW) for k in (0, 1))
        update = computes.box(UPDATE[stage], UPDATE[stage] + 1, "compute", ("update", "up"))
        marks = [
            computes.box(*FORWARD, "compute", ("forward",), 0.35),
            computes.box(*BACKWARD, "compute", ("backward",)),
        ]
        sent = [
            communicates.box(start, end, "c4", (words if scale > LONG_NAMES else short,), 0.55)
            for start, end, words, short in WIRE[stage]
        ]
        return "".join([*marks, update, *sent])

    lanes = Block(width, 2 * ROW + room.BASELINE, boxes)
    if not left:
        return room.column(room.words(name, 16, bold=True, size=svg.SMALL), lanes)
    return Block(width, lanes.height, lambda x, y: room.title(name).at(x, y + 9) + lanes.at(x, y))
