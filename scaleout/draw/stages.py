"""Steps of a small pipeline one above the other, on one axis of time: which rank works when, and which is idle.
Blocks look as `pipeline_lanes` has them."""

from __future__ import annotations

from collections.abc import Sequence

from scaleout.draw import hatch, pipeline_lanes, svg
from scaleout.draw.pipeline_lanes import LOOK, Lane, Rows
from scaleout.timing import pipeline
from scaleout.timing.pipeline import Timeline
from scaleout.words.amounts import quantity

RANKS, PIECES = 4, 8
WORDS = {"F": "forward", "B": "backward", "I": "backward", "W": "weight gradient"}
GAP = 44.0  # from one step's lanes to the next's


def opening(width: float) -> str:
    """One batch in one piece, and in eight micro-batches, on one axis of time. No count of either: a guess follows."""
    single = pipeline.step("gpipe", RANKS, 1, 1, pipeline.even(RANKS))
    cut = pipeline.step("gpipe", RANKS, PIECES, 1, pipeline.even(RANKS, 1 / PIECES, 1 / PIECES, 1 / PIECES))
    label = "A batch on four GPUs: in one piece, one GPU works at a time; in eight micro-batches, all work mostly"
    steps = {"The batch in one piece": single, "In eight micro-batches": cut}
    return _draw(width, steps, label, ("three of four idle", "hatched: the bubble"))


def split(width: float) -> str:
    """1F1B, and the same with the backward in two pieces of which one can wait."""
    schedules = {name: pipeline.step(name, RANKS, PIECES, 1, pipeline.even(RANKS)) for name in ("1f1b", "zb1")}
    label = "1F1B ends at slot 33; with weight gradients moved to where a rank would be idle, the step ends at slot 27"
    facts = [f"{quantity(one.seconds, 2)} slots, {one.bubble:.0%} idle" for one in schedules.values()]
    return _draw(width, {"1F1B": schedules["1f1b"], "Backward split": schedules["zb1"]}, label, facts)


def _draw(width: float, steps: dict[str, Timeline], label: str, facts: Sequence[str]) -> str:
    longest = max(step.seconds for step in steps.values())
    left, pitch = (52, 22) if svg.broad(width) else (16, 20)
    marks, y = [_legend(left, steps)], 30.0
    for (name, step), fact in zip(steps.items(), facts, strict=True):
        rows = Rows(left, y + 26, width - left - 4, longest, pitch, pitch - 4, tuple(range(RANKS)))
        marks += [_head(name, fact, step, rows, y), _lanes(step, rows, svg.broad(width))]
        y += RANKS * pitch + GAP
    return svg.figure(width, y - 14, "".join(marks), label)


def _legend(x: float, steps: dict[str, Timeline]) -> str:
    """What the fills mean, of those that there are."""
    kinds = {run.action.kind for step in steps.values() for row in step.runs for run in row}
    marks = []
    for kind in [kind for kind in LOOK if kind in kinds and (kind, "I" in kinds) != ("B", True)]:
        marks += [
            svg.rect(x, 4, 12, 12, LOOK[kind][0]),
            svg.text(x + 16, 14, WORDS[kind], size=svg.SMALLEST, fill="muted"),
        ]
        x += 26 + svg.measure(WORDS[kind], svg.SMALLEST)
    marks += [hatch.box(x, 4, 12, 12), svg.text(x + 16, 14, "idle", size=svg.SMALLEST, fill="muted")]
    return "".join(marks)


def _head(name: str, fact: str, step: Timeline, rows: Rows, y: float) -> str:
    """The name of a step above its lanes, and a fact of it where it ends."""
    room = svg.measure(name, 14, True) + svg.measure(fact, 14, True) + 16
    right = max(rows.at(step.seconds), rows.x + room)
    return svg.text(rows.x, y + 14, name, bold=True, size=14) + svg.text(
        right, y + 14, fact, anchor="end", bold=True, size=14, fill="accent"
    )


def _lanes(step: Timeline, rows: Rows, wide: bool) -> str:
    """A lane for each rank: its actions with the number of their micro-batch, hatched where it waits."""
    names = "".join(
        svg.text(
            rows.x - 6,
            rows.top(rank) + 13,
            f"GPU {rank}" if wide else str(rank),
            anchor="end",
            fill="muted",
            size=svg.SMALLEST,
        )
        for rank in rows.ranks
    )
    marks, numbers = pipeline_lanes.blocks(rows, [Lane(rank, *step.lane(rank)) for rank in rows.ranks], -1, False)
    return "".join([names, pipeline_lanes.waiting(rows, step.seconds), *marks.values(), numbers])
