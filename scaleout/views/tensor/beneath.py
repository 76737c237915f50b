"""Beneath the block: the bytes sent, with a cell for each collective; the memory per GPU; the time of the block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, fsum

from scaleout.draw import guess, hatch, labels, plot, svg
from scaleout.words.amounts import amount, took

LEFT = 4
AXIS_ALL_REDUCES = 12  # all-reduces of x: where the axis of the wire ends, unless more are sent
CELL = {svg.WIDE: 20.0, svg.NARROW: 16.0}
RUN_HEIGHT = 16.0  # what a line of a reader's own takes, where it stands beneath
OVERLAPPED = {"none": "no overlap", "backward": "overlap in backward", "chunked": "overlap in chunks"}
ROW = {svg.WIDE: 19.0, svg.NARROW: 17.0}  # from one link to the next


@dataclass(frozen=True)
class Cell:
    """A collective: its letters, whether it goes forward, the all-reduces of x that it is worth, and words."""

    letters: str
    forward: bool
    worth: float
    title: str


@dataclass(frozen=True)
class Wait:
    """The seconds of the block over one link: words, its key, compute, exposed communication, whether it is chosen."""

    words: str
    key: str
    computes: float
    waits: float
    chosen: bool


# --- the wire --------------------------------------------------------------------------------------------------------


def wire(
    cells: Sequence[Cell],
    filled: int,
    all_reduce_bytes: float,
    names: dict[str, str],
    y: float,
    width: int,
    locked: bool = False,
) -> str:
    """Cells from y down, the first `filled` of them filled; an axis of all-reduces of x, `all_reduce_bytes` each, and
    the mark of a guess. names: of collectives by their letters. locked: without the bytes sent."""
    total = fsum(cell.worth for cell in cells)
    end = AXIS_ALL_REDUCES if locked else max(AXIS_ALL_REDUCES, ceil(total * 1.04))
    high, scale = CELL[width], (width - 2 * LEFT) / end
    parts = _head([] if locked else cells, all_reduce_bytes, names, y - 7, width)
    parts.append(svg.line(LEFT, y + high + 2, width - LEFT, y + high + 2))
    parts += _ticks(end, scale, y + high, width)
    if locked:
        parts.append(svg.text(LEFT + 6 * scale, y + high - 4, "?", anchor="middle", fill="muted", bold=True, size=16))
    else:
        parts += _cells(cells, filled, y, scale, high)
    stops = [(0.0, float(LEFT)), (end, LEFT + end * scale)]
    return "".join(parts) + guess.mark(stops, (y - 6, y + high + 6), "x")


def _head(cells: Sequence[Cell], all_reduce_bytes: float, names: dict[str, str], y: float, width: int) -> list[str]:
    """What the axis counts, and the letters that are there; without cells, the first alone."""
    met = {cell.letters for cell in cells}
    letters = ", ".join(f"{short} {name}" for short, name in names.items() if short in met)
    unit_words = f"1 is one all-reduce of x, {amount(all_reduce_bytes, 10**9)}"
    if not cells:
        words = ("sent by each GPU, in all-reduces of x", "")
    elif width == svg.WIDE:
        words = (f"sent by each GPU: {unit_words}", letters)
    else:
        long_words, room = (f"{unit_words}. {letters}", f"1: all-reduce of x. {letters}"), width - LEFT
        words = (labels.cut(long_words[svg.measure(long_words[0], svg.SMALL) > room], room), "")
    return [
        svg.text(LEFT - 2, y, words[0], fill="muted", size=svg.SMALL),
        svg.text(width - LEFT, y, words[1], fill="muted", size=svg.SMALLEST, anchor="end"),
    ]


def _ticks(end: int, scale: float, y: float, width: int) -> list[str]:
    step = next(step_size for step_size in (1, 2, 5, 10, 20, 50) if end / step_size <= 14)
    parts = []
    for value in range(0, end + 1, step):
        x = LEFT + value * scale
        anchor = "start" if value == 0 else "end" if x > width - 12 else "middle"
        parts += [
            svg.line(x, y + 2, x, y + 5),
            svg.text(x, y + 16, str(value), anchor=anchor, fill="muted", size=svg.SMALLEST),
        ]
    return parts


def _cells(cells: Sequence[Cell], filled: int, y: float, scale: float, high: float) -> list[str]:
    parts, cell_x = [], float(LEFT)
    for i, cell in enumerate(cells):
        wide = cell.worth * scale
        long = max(0.5, wide - 1.5) if i < filled else 0.0
        parts.append(
            svg.rect(
                cell_x, y, long, high, "c4", opacity=0.35 if cell.forward else 0.65, title=cell.title, mark=f"cell {i}"
            )
        )
        words = f"{cell.letters} {'fwd' if cell.forward else 'bwd'}"
        fitting = next((label for label in (words, cell.letters) if svg.measure(label, svg.SMALLEST) < long - 3), "")
        if fitting:
            middle = (cell_x + wide / 2, y + high / 2 + 4)
            parts.append(svg.text(*middle, fitting, anchor="middle", size=svg.SMALLEST, halo=True))
        cell_x += wide
    return parts


# --- what a GPU holds ------------------------------------------------------------------------------------------------


def memory(weights: float, activations: float, alone: tuple[float, float], x: float, y: float, width: float) -> str:
    """Memory per GPU as a bar `width` wide, weights and activations, within the outline of one GPU alone. alone: its
    weights and activations."""
    scale, high = width / sum(alone), 12.0
    head = f"memory per GPU: {amount(weights + activations, 10**9)}"
    keys, _ = labels.keys(
        x,
        y + high + 6,
        width,
        [
            ("c1", f"weights {amount(weights, 10**9)}"),
            ("c3", f"saved activations {amount(activations, 10**9)}"),
        ],
    )
    return "".join(
        [
            svg.text(x - 2, y - 6, head, size=svg.SMALL),
            svg.text(
                x + width,
                y - 6,
                f"not split: {amount(sum(alone), 10**9)}",
                anchor="end",
                fill="muted",
                size=svg.SMALLEST,
            ),
            svg.rect(x, y, width, high, "grid", opacity=0.45, title="on one GPU alone"),
            svg.rect(x, y, weights * scale, high, "c1", title="weights", mark="held weights"),
            svg.rect(
                x + weights * scale,
                y,
                activations * scale,
                high,
                "c3",
                title="activations saved for the backward pass",
                mark="held activations",
            ),
            keys,
        ]
    )


# --- what it takes ---------------------------------------------------------------------------------------------------


def seconds(
    rows: Sequence[Wait],
    overlap: str,
    x: float,
    y: float,
    right: float,
    width: int,
    run: tuple[float, str, str] | None,
) -> str:
    """A bar for each link: compute solid, exposed communication hatched. All on one scale of time. run: a reader's own,
    the exposed share of its step, shown on the chosen bar, and words, which are beneath, or above on a phone.
    """
    name = max(svg.measure(wait.words, svg.SMALL, bold=True) for wait in rows) + 8
    figures = 92 if width == svg.WIDE else 84
    longest = max(wait.computes + wait.waits for wait in rows)
    scale, pitch = (right - x - name - figures) / longest, ROW[width]
    parts, wide = [], width == svg.WIDE
    if wide or not run:
        parts.append(svg.text(x - 2, y - 6, f"Megatron-LM, {OVERLAPPED[overlap]}: compute, exposed", size=svg.SMALL))
    if run:
        words = labels.cut(run[1] if wide else run[2], width - 2 * LEFT, bold=True)
        run_y = y + len(rows) * pitch + RUN_HEIGHT - 4 if wide else y - 6
        parts.append(svg.text(LEFT - 2, run_y, words, size=svg.SMALL, fill="key", bold=True))
    for i, wait in enumerate(rows):
        parts.append(_row(wait, x, y + i * pitch, name, scale, right))
        if run and wait.chosen:
            run_x = x + name + (1 - run[0]) * (wait.computes + wait.waits) * scale
            middle = y + i * pitch + 6.5
            parts.append(svg.circle(run_x, middle, 9, "paper") + plot.ringed(run_x, middle, run[1]))
    return "".join(parts)


def _row(wait: Wait, x: float, y: float, name: float, scale: float, right: float) -> str:
    high, start = 11.0, x + name
    computes, waits = wait.computes * scale, wait.waits * scale
    share = wait.waits / (wait.computes + wait.waits)
    text = f"{took(wait.computes + wait.waits)}, {share:.0%}"
    body = [
        svg.text(x - 2, y + 10, wait.words, size=svg.SMALL, bold=wait.chosen, fill="ink" if wait.chosen else "muted"),
        svg.rect(
            start,
            y + 1,
            computes,
            high,
            "compute",
            opacity=1.0 if wait.chosen else 0.55,
            title=f"compute: {took(wait.computes)}",
            mark=f"computes {wait.key}",
        ),
        svg.rect(
            start + computes,
            y + 1,
            waits,
            high,
            "accent",
            opacity=hatch.PALE,
            title=f"exposed communication: {took(wait.waits)}",
            mark=f"ground {wait.key}",
        ),
        hatch.hatched(start + computes, y + 1, waits, high, "accent", f"waits {wait.key}"),
        svg.text(
            right, y + 10, text, anchor="end", size=svg.SMALL, bold=wait.chosen, fill="ink" if wait.chosen else "muted"
        ),
    ]
    return "".join(body)
