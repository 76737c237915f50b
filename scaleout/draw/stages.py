"""Steps of a small pipeline one above the other, on one axis of slots: who works when, and who waits."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.draw import hatch, svg
from scaleout.timing import pipeline
from scaleout.timing.pipeline import Run, Timeline

RANKS, PIECES = 4, 8
FILL = {"F": ("compute", 0.35), "B": ("compute", 1.0), "I": ("compute", 1.0), "W": ("c6", 0.75)}
WORDS = {"F": "forward", "B": "backward", "I": "backward", "W": "for the weights"}
GAP = 44.0  # from one step's lanes to the next's


@dataclass(frozen=True)
class Sheet:
    """Where lanes are: from `left` on, `row` apart; `scale` is pixels of a slot."""

    width: float
    left: float
    row: float
    scale: float

    @property
    def wide(self) -> bool:
        return self.width > 500


def opening(width: float) -> str:
    """One batch in one piece, and in eight, in the time that one forward of a stage on all of it takes."""
    whole = pipeline.step("gpipe", RANKS, 1, 1, pipeline.even(RANKS))
    cut = pipeline.step("gpipe", RANKS, PIECES, 1, pipeline.even(RANKS, *[1 / PIECES] * 3))
    label = "A batch on four GPUs: in one piece three of them wait at any time, in eight all work most of the time"
    return _draw(width, {"The batch in one piece": whole, "In eight pieces": cut}, label)


def split(width: float) -> str:
    """1F1B, and the same with the backward in two pieces of which one can wait."""
    found = {name: pipeline.step(name, RANKS, PIECES, 1, pipeline.even(RANKS)) for name in ("1f1b", "zb1")}
    label = "1F1B ends at slot 33; with weight gradients put off to where a rank would wait, it ends at 27"
    return _draw(width, {"1F1B": found["1f1b"], "Weight gradients can wait": found["zb1"]}, label)


def _draw(width: float, steps: dict[str, Timeline], label: str) -> str:
    longest = max(one.seconds for one in steps.values())
    left, row = (52, 22) if width > 500 else (16, 20)
    sheet = Sheet(width, left, row, (width - left - 4) / longest)
    out, y = [_legend(left, steps)], 30.0
    for name, one in steps.items():
        out += [_head(name, one, sheet, y), _lanes(one, sheet, y + 24)]
        y += 24 + RANKS * row + GAP - 24
    return svg.figure(width, y - 14, "".join(out), label)


def _legend(x: float, steps: dict[str, Timeline]) -> str:
    """What the fills mean, of those that there are."""
    kinds = {run.action.kind for one in steps.values() for row in one.runs for run in row}
    out = []
    for kind in [kind for kind in FILL if kind in kinds and (kind, "I" in kinds) != ("B", True)]:
        fill, opacity = FILL[kind]
        out.append(svg.rect(x, 4, 12, 12, fill, opacity=opacity))
        out.append(svg.text(x + 16, 14, WORDS[kind], size=svg.SMALLEST, fill="muted"))
        x += 26 + svg.measure(WORDS[kind], svg.SMALLEST)
    out += [hatch.box(x, 4, 12, 12, "grid"), svg.text(x + 16, 14, "idle", size=svg.SMALLEST, fill="muted")]
    return "".join(out)


def _head(name: str, one: Timeline, sheet: Sheet, y: float) -> str:
    """The name of a step at the left of its lanes, and where it ends."""
    end = sheet.left + one.seconds * sheet.scale
    took = f"{svg.quantity(one.seconds, 2)} slots, {one.bubble:.0%} idle"
    room = svg.measure(name, 14, True) + svg.measure(took, 14, True) + 16
    at = max(end, sheet.left + room)
    return svg.text(sheet.left, y + 14, name, bold=True, size=14) + svg.text(
        at, y + 14, took, anchor="end", bold=True, size=14, fill="accent"
    )


def _lanes(one: Timeline, sheet: Sheet, y: float) -> str:
    """A lane for each rank: its actions with the number of their micro-batch, hatched where it waits."""
    idle, blocks = [], []
    for rank, row in enumerate(one.runs):
        top = y + rank * sheet.row + 2
        words = f"GPU {rank}" if sheet.wide else str(rank)
        blocks.append(svg.text(sheet.left - 6, top + 13, words, anchor="end", fill="muted", size=svg.SMALLEST))
        now = 0.0
        for run in row:
            idle.append((now, run.start, top))
            blocks.append(_block(run, sheet, top))
            now = run.end
        idle.append((now, one.seconds, top))
    boxes = [(sheet.left + a * sheet.scale, top, (b - a) * sheet.scale, sheet.row - 4) for a, b, top in idle if b > a]
    return hatch.area(boxes, "grid") + "".join(blocks)


def _block(run: Run, sheet: Sheet, top: float) -> str:
    fill, opacity = FILL[run.action.kind]
    x, long = sheet.left + run.start * sheet.scale, (run.end - run.start) * sheet.scale
    out = svg.rect(x, top, long - 0.8, sheet.row - 4, fill, opacity=opacity)
    number = str(run.action.micro)
    if svg.measure(number, svg.SMALLEST) < long - 2:
        ink = "paper" if run.action.kind in "BI" else "ink"
        out += svg.text(x + long / 2 - 0.4, top + 13, number, anchor="middle", size=svg.SMALLEST, fill=ink)
    return out
