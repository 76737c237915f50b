"""Steps of a small pipeline one above the other, on one axis of slots: who works when, and who waits. Blocks look as
`pipeline_lanes` has them."""

from __future__ import annotations

from scaleout.draw import hatch, pipeline_lanes, svg
from scaleout.draw.pipeline_lanes import LOOK, Lane, Rows
from scaleout.timing import pipeline
from scaleout.timing.pipeline import Timeline

RANKS, PIECES = 4, 8
WORDS = {"F": "forward", "B": "backward", "I": "backward", "W": "for the weights"}
GAP = 44.0  # from one step's lanes to the next's


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
    left, pitch = (52, 22) if width > 500 else (16, 20)
    out, y = [_legend(left, steps)], 30.0
    for name, one in steps.items():
        on = Rows(left, y + 26, width - left - 4, longest, pitch, pitch - 4, tuple(range(RANKS)))
        out += [_head(name, one, on, y), _lanes(one, on, width > 500)]
        y += RANKS * pitch + GAP
    return svg.figure(width, y - 14, "".join(out), label)


def _legend(x: float, steps: dict[str, Timeline]) -> str:
    """What the fills mean, of those that there are."""
    kinds = {run.action.kind for one in steps.values() for row in one.runs for run in row}
    out = []
    for kind in [kind for kind in LOOK if kind in kinds and (kind, "I" in kinds) != ("B", True)]:
        out.append(svg.rect(x, 4, 12, 12, LOOK[kind][0]))
        out.append(svg.text(x + 16, 14, WORDS[kind], size=svg.SMALLEST, fill="muted"))
        x += 26 + svg.measure(WORDS[kind], svg.SMALLEST)
    out += [hatch.box(x, 4, 12, 12), svg.text(x + 16, 14, "idle", size=svg.SMALLEST, fill="muted")]
    return "".join(out)


def _head(name: str, one: Timeline, on: Rows, y: float) -> str:
    """The name of a step at the left of its lanes, and where it ends."""
    took = f"{svg.quantity(one.seconds, 2)} slots, {one.bubble:.0%} idle"
    room = svg.measure(name, 14, True) + svg.measure(took, 14, True) + 16
    at = max(on.at(one.seconds), on.x + room)
    return svg.text(on.x, y + 14, name, bold=True, size=14) + svg.text(
        at, y + 14, took, anchor="end", bold=True, size=14, fill="accent"
    )


def _lanes(one: Timeline, on: Rows, wide: bool) -> str:
    """A lane for each rank: its actions with the number of their micro-batch, hatched where it waits."""
    names = "".join(
        svg.text(
            on.x - 6,
            on.top(rank) + 13,
            f"GPU {rank}" if wide else str(rank),
            anchor="end",
            fill="muted",
            size=svg.SMALLEST,
        )
        for rank in on.ranks
    )
    marks, numbers = pipeline_lanes.blocks(on, [Lane(rank, *one.lane(rank)) for rank in on.ranks], -1, False)
    return "".join([names, pipeline_lanes.waiting(on, one.seconds), *marks.values(), numbers])
