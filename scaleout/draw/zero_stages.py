"""ZeRO's stages next to each other: the states of one model on each of four GPUs, area by bytes; the two halves of an
all-reduce; and when each stage communicates."""

from __future__ import annotations

from scaleout.draw import ownership, patterns, squares, svg
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
    columns = 4 if width > 500 else 2
    gap, unit = 22.0, 9.0 if columns == 4 else 7.0
    panel_width = (width - gap * (columns - 1)) / columns
    high = 16 * unit + (92 if columns == 4 else 70)
    marks = [_legend()]
    for stage, name in enumerate(NAMES):
        x, y = stage % columns * (panel_width + gap), 30 + stage // columns * high
        marks.append(_panel(stage, name, x, y, panel_width, unit))
    label = "Four GPUs at ZeRO's stages 0 to 3: " + "; ".join(
        f"{state_bytes(stage) / 1e9:.1f} GB each" for stage in range(4)
    )
    return svg.figure(width, 30 + high * (4 // columns) - 14, "".join(marks), label)


def state_bytes(stage: int) -> int:
    """Bytes of states on one of the four GPUs."""
    tiers = zero.at_rest(total_parameters(PRESETS["llama-2-7b"]), RECIPE, Layout(dp=RANKS, zero=stage))
    return sum(tiers["device"].values())


def _legend() -> str:
    x, marks = 0.0, []
    for words, fill in (("weights", "c1"), ("gradients", "c6"), ("optimizer", "c2")):
        marks += [svg.rect(x, 4, 12, 12, fill), svg.text(x + 16, 14, words, size=svg.SMALLEST, fill="muted")]
        x += 30 + svg.measure(words, svg.SMALLEST)
    return "".join(marks)


def _panel(stage: int, name: str, x: float, y: float, width: float, unit: float) -> str:
    rows = tuple(ownership.Row(kind, size, FILLS.get(kind, "c2")) for kind, size in zero.widths(RECIPE).items())
    grid = ownership.Grid(rows, RANKS, x, y + 24, width, unit, column_gap=5, row_gap=2)
    owned = {kind: _owned(stage >= zero.splits(kind)) for kind in zero.widths(RECIPE)}
    size, fits = state_bytes(stage), state_bytes(stage) <= USABLE
    words = f"{size / 1e9:.1f} GB per GPU" if fits else f"{size / 1e9:.1f} GB: too much"
    below = grid.bottom + 18
    return (
        svg.text(x, y + 14, name, bold=True, size=13)
        + grid.frames()
        + grid.cells(owned)
        + svg.text(x, below, words, bold=True, size=12, fill="ink" if fits else "accent")
    )


def _owned(split: bool) -> list[list[int]]:
    return [[int(not split or shard == rank) for shard in range(RANKS)] for rank in range(RANKS)]


# --- an all-reduce ------------------------------------------------------------------------------------------------


def halves(width: float) -> str:
    """A reduce-scatter, an all-gather, and the all-reduce that they are together, each before and after."""
    wide = width > 500
    side, gap, drop = (40.0, 6.0, 56.0) if wide else (24.0, 3.0, 38.0)
    row = patterns.RANKS * (side + gap) - gap
    pitch, top = (width - 2 - row) / 2, 26
    marks, contents = [], []
    for i, collective in enumerate(HALVES):
        x = 1 + i * pitch
        marks.append(svg.text(x, 14, patterns.NAMES[collective], bold=True, size=13 if wide else 12))
        for time, state in enumerate(patterns.states(collective)):
            contents += [(x + rank * (side + gap), top + drop * time, parts) for rank, parts in enumerate(state)]
        for rank in range(patterns.RANKS):
            middle = x + rank * (side + gap) + side / 2
            words = f"rank {rank}" if wide else str(rank)
            marks.append(
                svg.text(middle, top + drop + side + 14, words, anchor="middle", fill="muted", size=svg.SMALLEST)
            )
        if wide and i:
            sign_x = x - (pitch - row) / 2
            marks.append(
                svg.text(sign_x, top + (drop + side) / 2 + 5, " +="[i], anchor="middle", fill="muted", size=16)
            )
    label = "A reduce-scatter and an all-gather, which together are an all-reduce, on four ranks, before and after"
    return svg.figure(
        width, top + drop + side + 20, "".join(marks) + squares.draw(contents, side, patterns.RANKS), label
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
SLOTS = 14.4


def middle(width: float) -> str:
    """A lane for each stage: its computation and its communication, in order, not to scale."""
    left, row = (132.0, 20.0) if width > 500 else (0.0, 20.0)
    scale, marks, y = (width - left - 2) / SLOTS, [], 4.0
    for stage, name in enumerate(NAMES):
        if left:
            marks.append(svg.text(0, y + 19, name, bold=True, size=13))
        else:
            marks.append(svg.text(0, y + 10, name, bold=True, size=12))
            y += 16
        marks.append(_lane(stage, left, y, scale, row))
        y += 2 * row + 14
    label = (
        "A step at each stage: the update comes after both halves of the all-reduce in stage 0, and between them in "
        "stage 1; stages 2 and 3 reduce gradients during the backward, and stage 3 gathers weights in forward and "
        "backward"
    )
    return svg.figure(width, y - 6, "".join(marks), label)


def _lane(stage: int, left: float, y: float, scale: float, row: float) -> str:
    update = (UPDATE[stage], UPDATE[stage] + 1, "update", 1.0)
    blocks = [(*FORWARD, "forward", 0.35), (*BACKWARD, "backward", 1.0), update]
    marks = [_block(left, y, scale, row, block, "compute") for block in blocks]
    return "".join(
        marks
        + [
            _block(left, y + row, scale, row, (a, b, words if scale > 34 else short, 0.55), "c4")
            for a, b, words, short in WIRE[stage]
        ]
    )


def _block(left: float, y: float, scale: float, row: float, block: tuple[float, float, str, float], fill: str) -> str:
    start, end, words, strong = block
    x, long = left + start * scale, (end - start) * scale
    box = svg.rect(x, y + 1, long - 1, row - 2, fill, opacity=strong)
    for label in (words, words[:2] if words == "update" else ""):
        if label and svg.measure(label, svg.SMALLEST) < long - 3:
            ink = "paper" if fill == "compute" and strong == 1 else "ink"
            return box + svg.text(x + long / 2, y + row / 2 + 4, label, anchor="middle", size=svg.SMALLEST, fill=ink)
    return box
