"""Steps that exercises of `pipeline` ask for: a forward of a rank takes one slot, a backward two."""

from __future__ import annotations

from scaleout.timing import pipeline
from scaleout.timing.pipeline import Timeline


def step(schedule: str, p: int, m: int, v: int = 1, hop: float = 0.0) -> Timeline:
    """A step in slots, however many chunks a rank's share of the model is cut into."""
    return pipeline.step(schedule, p, m, v, pipeline.even(p * v, 1 / v, 1 / v, 1 / v, hop=hop))


def slow_last(p: int, m: int, times: float) -> Timeline:
    """1F1B whose last stage takes so many times as long as each of the others."""
    slots = (1.0,) * (p - 1) + (times,)
    return pipeline.step("1f1b", p, m, 1, pipeline.Costs(slots, slots, slots))
