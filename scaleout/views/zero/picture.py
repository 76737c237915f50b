"""The picture of the view `zero`: which GPU owns which shard, at a moment of a step, above what `beneath` draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from scaleout.draw import svg
from scaleout.draw.labels import cut, fitting
from scaleout.draw.ownership import LENT, OWNED, PALE, Flight, Grid, Row
from scaleout.draw.parts import BYTES, Part, sizes
from scaleout.memory.zero import splits
from scaleout.memory.zero_frames import Frame
from scaleout.views.zero import beneath, muon, record
from scaleout.views.zero.amounts import gigabytes
from scaleout.views.zero.beneath import Band, Cell
from scaleout.views.zero.setting import MOMENTS, Setting

FILLS = {"weights": ("c1", "c5"), "gradients": ("c6", "")}  # and while they are lent; all else is the optimizer's
GROUPS = ((1, "optimizer"), (2, "gradients"), (3, "weights"))  # by the stage that splits them
PRESS = 27.0  # CSS pixels that a finger needs
HOSTS = {"host": "in CPU memory", "nvme": "on NVMe"}


@dataclass(frozen=True)
class Places:
    """In CSS pixels: of the words above, of the columns' names, the grid, what is left of it and to its right, height
    of a byte, from column to column for 2, 4 and 8; then tops and heights of the bands beneath, the height of all."""

    words: float
    names: float
    grid: float
    left: float
    right: float
    unit: float
    column_steps: dict[int, float]
    memory: tuple[float, float]
    host: tuple[float, float]
    wire: tuple[float, float]
    seconds: tuple[float, float]
    height: float


PLACES = {
    svg.WIDE: Places(13, 32, 39, 94, 8, 15, {2: 22, 4: 16, 8: 9}, (328, 14), (361, 10), (409, 22), (468, 12), 486),
    svg.NARROW: Places(12, 27, 33, 74, 4, 11, {2: 12, 4: 8, 8: 4}, (249, 11), (276, 9), (318, 16), (376, 10), 392),
}


def picture(setting: Setting, moment: int, width: int, run: dict | None) -> str:
    """The whole picture, at a moment; MOMENTS: what the update finds, and the whole step's bytes. run: a reader's."""
    frame, part = setting.frame_at(moment)
    shown = resting(setting) if moment == MOMENTS else setting.frames[frame]
    places, grid = PLACES[width], _grid(setting, width)
    flying = [] if moment == MOMENTS else flights(setting, moment)
    lower, upper = grid.flights(flying)
    body = [
        _above(setting, moment, width),
        _names(setting, grid, width, True),
        grid.frames(),
        lower,
        grid.cells(shown.held, grid.landed(flying)),
        upper,
        _memory(setting, shown, width),
        beneath.wire(
            _band(places.wire, width),
            cells(setting, frame, part),
            setting.piece,
            setting.stage,
            (record.matching_stage(run, setting) or [None])[0],
        ),
        _run_text(setting, run, width) if run else "",
        beneath.seconds(_band(places.seconds, width), setting.spent, setting.waits),
    ]
    label = (
        f"{setting.ranks} GPUs and the weights, gradients and optimizer states that each stores at ZeRO stage "
        f"{setting.stage}, areas as bytes; below, a GPU's usable memory, the communication volume of "
        f"{setting.pieces:.3g} N per step, and the step time."
    )
    return svg.figure(width, places.height, "".join(body), label)


def locked(setting: Setting, width: int) -> str:
    """Stage 0 and its communication volume: that of stage 2 is asked for."""
    places, grid = PLACES[width], _grid(setting, width)
    last = len(setting.frames) - 1
    body = [
        _above(setting, MOMENTS, width),
        _names(setting, grid, width, False),
        grid.frames(),
        grid.cells(resting(setting).held),
        _memory(setting, resting(setting), width, alone=True),
        beneath.wire(_band(places.wire, width), cells(setting, last, 0.0), setting.piece, 0),
    ]
    label = (
        f"{setting.ranks} GPUs that each store all weights, gradients and optimizer states; below, the communication "
        "volume of a step of DDP, 2 N."
    )
    return svg.figure(width, places.height, "".join(body), label)


def _memory(setting: Setting, frame: Frame, width: int, alone: bool = False) -> str:
    """What is on a GPU, and what is offloaded. alone: without the marks of other stages."""
    places, limit, stages, outside = PLACES[width], setting.usable, setting.by_stage, _outside(setting)
    band, outside_bytes = _band(places.memory, width), sum(outside.values())
    words = f"{gigabytes(outside_bytes)} {HOSTS[setting.tier]}"
    scale = beneath.scale(band, [limit, *stages], outside_bytes, words)
    marks = stages[: 1 if alone else len(stages)]
    memory_bar = beneath.memory(band, parts(setting, frame), scale, limit, marks, setting.stage, setting.pass_bytes)
    return memory_bar + beneath.host(_band(places.host, width), outside, scale, words)


def _run_text(setting: Setting, run: dict, width: int) -> str:
    """What a reader's run was, where nothing else stands: above the wire, or where that is taken beneath it."""
    places, words = PLACES[width], record.words(run, setting)
    band = _band(places.wire if setting.offloaded != "none" else places.host, width)
    text = fitting(words, band.room, bold=True) or cut(words[1], band.room, bold=True)
    y = band.y + band.height + (15 if setting.offloaded != "none" else 0)
    return svg.text(band.words, y, text, fill="key", bold=True, size=svg.SMALL)


def _band(span: tuple[float, float], width: int) -> Band:
    place = PLACES[width]
    return Band(
        place.left if width == svg.WIDE else 4.0, place.left, span[0], width - place.left - place.right, span[1]
    )


# --- the grid --------------------------------------------------------------------------------------------------------


def _grid(setting: Setting, width: int) -> Grid:
    places = PLACES[width]
    rows = tuple(Row(kind, size, *FILLS.get(kind, ("c2", ""))) for kind, size in setting.widths.items())
    inner_width = width - places.left - places.right
    return Grid(
        rows, setting.ranks, places.left, places.grid, inner_width, places.unit, places.column_steps[setting.ranks], 4
    )


def _above(setting: Setting, moment: int, width: int) -> str:
    """What the areas are; while a step plays, what happens now."""
    places = PLACES[width]
    if moment < MOMENTS:
        return svg.text(4, places.words, doing(setting, moment), bold=True, size=svg.SMALL, mark="now")
    sizes = [*setting.widths.values()]
    byte_sum = " + ".join(f"{size:g}" for size in (*sizes[:2], round(sum(sizes[2:]), 1)) if size)
    column = {2: "half", 4: "quarter", 8: "eighth"}[setting.ranks]
    ways = [
        f"areas are bytes: {byte_sum} per parameter; a narrow column is one {column} of the model",
        f"areas are bytes: {byte_sum} per parameter; columns: {column}s",
        f"areas are bytes: {byte_sum} per parameter",
    ]
    return svg.text(4, places.words, fitting(ways, width - 8), fill="muted", size=svg.SMALL)


def _names(setting: Setting, grid: Grid, width: int, alive: bool) -> str:
    """Of columns and rows; those of rows are pressed to split them, or to copy them again."""
    places, wide, parts = PLACES[width], width == svg.WIDE, []
    for rank in range(setting.ranks):
        name = f"GPU {rank}" if wide or setting.ranks < 8 else str(rank)
        parts.append(
            svg.text(grid.left(rank) + grid.column / 2, places.names, name, anchor="middle", bold=True, size=svg.SMALL)
        )
    for stage, group in GROUPS:
        rows = [row for row in grid.rows if splits(row.key) == stage]
        if not rows:
            continue
        body = "".join(_name(row, grid, places) for row in rows)
        next_stage = stage if setting.stage < stage else stage - 1
        top = grid.tops[rows[0].key] - 2 * (stage > 1)
        end = grid.tops[rows[-1].key] + rows[-1].size * grid.unit + 1
        if stage == 3:  # there is room above
            top = min(top, end - PRESS)
        box = (1.0, top, places.left - 4, max(PRESS, end - top))
        press_words = "replicated: press to shard" if setting.stage < stage else "sharded: press to replicate"
        parts.append(body)  # and the button over it: so it is called by its label alone
        if alive:
            parts.append(svg.press("", box, "stage", next_stage, f"{group}, {press_words}", f"name {group}"))
    return "".join(parts)


def _name(row: Row, grid: Grid, places: Places) -> str:
    """A kind, and beneath it, where there is room, its bytes."""
    x, high, size = places.left - 7, row.size * grid.unit, f"{round(row.size, 2):g} B"
    middle = grid.tops[row.key] + high / 2
    if high < 25:
        return svg.text(x, middle + 4, row.key, anchor="end", size=svg.SMALLEST)
    return svg.text(x, middle - 2, row.key, anchor="end", size=svg.SMALLEST) + svg.text(
        x, middle + 11, size, anchor="end", fill="muted", size=svg.SMALLEST
    )


def doing(setting: Setting, moment: int) -> str:
    """What happens at a moment of the step."""
    frame, part = setting.frame_at(moment)
    coming = setting.frames[min(frame + 1, len(setting.frames) - 1)]
    shown = coming if part and coming.move else setting.frames[frame]
    if shown.move is None:
        return shown.phase
    kind, shard, way = shown.move
    way_words = {
        "out": "to all",
        "in": f"to GPU {shard}",
        "both": "summed on all",
        "down": f"from GPU {shard}",
        "up": f"to GPU {shard}",
    }[way]
    return f"{shown.phase}: {kind}, shard {shard}, {way_words}"


def flights(setting: Setting, moment: int) -> list[Flight]:
    """What has come since the moment before, and what will have left by the next one."""
    (previous, _), (current, part), (following, _) = (
        setting.frame_at(flight) for flight in (max(0, moment - 1), moment, moment + 1)
    )
    result = []
    for number in range(previous + 1, max(following, current + (part > 0)) + 1):
        move = setting.frames[number].move
        if move is None:
            continue
        progress = 1.0 if number <= current else part if number == current + 1 else 0.0
        result.append(_flight(setting, number, move, progress, current))
    return [flight for flight in result if flight]


def _flight(setting: Setting, number: int, move, progress: float, current: int) -> Flight | None:
    """None for what has come and is gone again."""
    kind, shard, way = move
    neighbour = (shard + 1) % setting.ranks
    lent = setting.frames[number].held[kind][neighbour][shard] == LENT
    if progress == 1 and lent and setting.frames[current].held[kind][neighbour][shard] != LENT:
        return None
    return Flight(f"{kind}{number}", kind, shard, way, progress, lent and way == "out")


# --- what it comes to ------------------------------------------------------------------------------------------------


def resting(setting: Setting) -> Frame:
    """The states as the update finds them."""
    return next(frame for frame in setting.frames if frame.phase == "update")


def parts(setting: Setting, frame: Frame) -> dict[Part, float]:
    """Bytes on a GPU by kind, what is lent apart."""
    rank_parameters = setting.parameters / setting.ranks
    held = {
        (kind, state): size * rank_parameters * row.count(state)
        for kind, size in setting.widths.items()
        for row in (frame.held[kind][0],)
        for state in (OWNED, LENT)
    }
    states, lent = (
        sum(size for (kind, state), size in held.items() if splits(kind) == 1 and state == state_shown)
        for state_shown in (OWNED, LENT)
    )
    return {
        Part(("weights",), "c1"): held["weights", OWNED],
        Part(("gathered weights",), "c5"): held["weights", LENT],
        Part(("gradients",), "c6"): held["gradients", OWNED],
        Part(("gradients for a moment",), "c6", opacity=PALE): held["gradients", LENT],
        Part(("optimizer",), "c2"): states,
        Part(("gathered momentum",), "c2", opacity=PALE): lent,
    }


def _outside(setting: Setting) -> dict[Part, float]:
    """What is offloaded."""
    held = setting.resting_bytes[setting.tier]
    optimizer = sum(size for kind, size in held.items() if splits(kind) == 1)
    return sizes(BYTES[:3], {"weights": held["weights"], "gradients": held["gradients"], "optimizer": optimizer})


NEW = "gather new weights"
UPDATE = (NEW, muon.GATHER)  # what is sent once, whatever the passes
WORDS = {
    "sum": ("reduce-scatter gradients", "reduce-scatter g", "RS g", "RS"),
    "back": ("all-gather gradients", "all-gather g", "AG g", "AG"),
    "reduce-scatter": ("reduce-scatter gradients", "reduce-scatter g", "RS g", "g"),
    NEW: ("all-gather new weights", "all-gather w", "AG w", "w"),
    muon.GATHER: ("all-gather momentum", "gather for Muon", "Muon"),
    "gather for the forward": ("all-gather weights, forward", "all-gather w, fwd", "AG w, fwd", "AG w", "w"),
    "gather for the backward": ("all-gather weights, backward", "all-gather w, bwd", "AG w, bwd", "AG w", "w"),
}


def cells(setting: Setting, frame: int, part: float) -> list[Cell]:
    """The collectives of a step, and how far each has been sent. part: of the next frame."""
    pieces: dict[str, float] = {}
    sent_by_key: dict[str, float] = {}
    for number, key, sent in _sent(setting):
        pieces[key] = pieces.get(key, 0.0) + sent
        share = 1.0 if number <= frame else part if number == frame + 1 else 0.0
        sent_by_key[key] = sent_by_key.get(key, 0.0) + share * sent
    earlier = setting.passes - 1 if setting.stage >= 2 else 0  # passes that have sent as much, but for the update
    earlier_pieces = {key: earlier * size * (key not in UPDATE) for key, size in pieces.items()}
    return [
        Cell(WORDS[key], size + earlier_pieces[key], sent_by_key[key] + earlier_pieces[key])
        for key, size in pieces.items()
    ]


def _sent(setting: Setting) -> Iterator[tuple[int, str, float]]:
    """(number of the frame, its collective, volume in N); an all-reduce as its two halves."""
    for number, (last, frame) in enumerate(pairwise(setting.frames), 1):
        sent = frame.sent - last.sent
        if sent and frame.move and frame.move[2] == "both":
            yield from ((number, "sum", sent / 2), (number, "back", sent / 2))
        elif sent:
            yield number, frame.phase, sent
