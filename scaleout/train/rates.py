"""The learning rate of each step: a linear warm-up, then a cosine down to a share of the peak."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """The schedule of a run of `steps` steps (Loshchilov and Hutter 2016, arXiv 1608.03983, with one warm-up).

    peak: the highest rate. warmup: steps that climb to it. floor: share of the peak at the end. Raises ValueError for
    values that cannot be.
    """

    peak: float
    steps: int
    warmup: int = 0
    floor: float = 0.1

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("warmup", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if not (math.isfinite(self.peak) and self.peak > 0):
            raise ValueError(f"the peak of the learning rate must be above 0, not {self.peak!r}")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor is a share of the peak: it must be from 0 to 1, not {self.floor!r}")

    def rate(self, step: int) -> float:
        """The rate of step `step`, counted from 0. The step after the warm-up has the peak; the last one is near the
        floor, which steps beyond it keep. A warm-up longer than the run is cut short by its end."""
        if step < self.warmup:
            return self.peak * (step + 1) / (self.warmup + 1)
        falling = max(1, self.steps - self.warmup)
        progress = min(1.0, (step - self.warmup) / falling)
        return self.peak * (self.floor + (1 - self.floor) * (1 + math.cos(math.pi * progress)) / 2)


def planned_steps(minutes: float, step: int, spent: float, step_seconds: float, least: int) -> int:
    """Steps of a run of so many minutes, of which `step` took `spent` seconds and one takes `step_seconds` (float).

    Raises ValueError for a length or a step that takes no time.
    """
    if not (math.isfinite(minutes) and minutes > 0 and step_seconds > 0):
        raise ValueError(f"a run must take some time: {minutes!r} minutes at {step_seconds!r} seconds per step do not")
    return max(least, step + int(max(0.0, minutes * 60 - spent) / step_seconds))
