"""Loss scaling (Micikevicius et al. 2018, arXiv 1710.03740): the loss is multiplied by a scale, and so is every
gradient; before the update they are divided by it, in fp32. What was too small for the format is in it then.

Dynamic, as torch.amp.GradScaler does it: a step whose scaled gradients have an infinity or a NaN is left out, and the
scale is multiplied by `backoff`; after `interval` good steps in a row it is multiplied by `growth`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from scaleout.numerics.formats import FORMATS, Format
from scaleout.numerics.rounding import beyond, rounded
from scaleout.spec import checks

FP32 = FORMATS["fp32"]


@dataclass(frozen=True)
class Scaler:
    """A loss scale and what it does next; torch's defaults. good: steps in a row without an overflow.

    interval: None for a static scale, which skips steps but never moves.
    """

    scale: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int | None = 2000
    good: int = 0

    def __post_init__(self) -> None:
        checks.number("scale", self.scale, FP32.smallest, FP32.largest)
        checks.number("growth", self.growth, 1)
        checks.share("backoff", self.backoff)
        if self.interval is not None:
            checks.whole("interval", self.interval)
        checks.whole("good", self.good, 0)

    def after(self, overflowed: bool) -> Scaler:
        """The scaler after a step. The scale is an fp32 number, as torch's is, and stays as it is where it would grow
        to infinity; it ends at the smallest number, where torch's goes on to zero."""
        if self.interval is None:
            return self
        if overflowed:
            return replace(self, scale=rounded(self.scale * self.backoff, FP32) or FP32.smallest, good=0)
        if self.good + 1 < self.interval:
            return replace(self, good=self.good + 1)
        grown = rounded(self.scale * self.growth, FP32)
        return replace(self, scale=grown if math.isfinite(grown) else self.scale, good=0)


def static(scale: float) -> Scaler:
    """A scale that never moves."""
    return Scaler(scale, interval=None)


@dataclass(frozen=True)
class Step:
    """A step of training, as a scaler sees it. largest: the largest scaled |gradient|; after: the next step's scale."""

    step: int
    scale: float
    largest: float
    skipped: bool
    after: float


def search(
    largest: Iterable[float], f: Format, scaler: Scaler | None = None, repeats: bool = False
) -> tuple[Step, ...]:
    """What a scaler does from step to step. largest: the largest |gradient| of each step, unscaled.

    repeats: a step that is left out leaves the weights as they are, and its gradient comes again in the next step; the
    last ones of `largest` are then never met. A format that saturates overflows where its largest number is passed,
    which a training in it has to look for.
    """
    scaler, gradients = scaler or Scaler(), list(largest)
    position, steps = 0, []
    for i in range(1, len(gradients) + 1):
        gradient = gradients[position]
        checks.number("a largest gradient", gradient, 0)
        skipped = beyond(gradient * scaler.scale, f)
        following = scaler.after(skipped)
        steps.append(Step(i, scaler.scale, gradient * scaler.scale, skipped, following.scale))
        scaler, position = following, position + (not (repeats and skipped))
    return tuple(steps)
