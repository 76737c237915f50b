"""The account: what one rank holds at each moment of a training step, by kind, and where that is fullest."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.activations import Sizes
from scaleout.layout import Layout
from scaleout.recipe import Recipe
from scaleout.states import states
from scaleout.tape import KINDS, MOMENTS
from scaleout.transformer import Shape
from scaleout.walk import walk

__all__ = ["KINDS", "MOMENTS", "Account", "Layout", "Recipe", "account"]


@dataclass(frozen=True)
class Account:
    """Bytes on one rank. `moments`: for each candidate peak, in the order of the step, bytes by kind."""

    moments: dict[str, dict[str, int]]
    states: dict[str, int]  # weights, master copies, gradients and optimizer state, whole or sharded

    @property
    def peak_moment(self) -> str:
        return max(self.moments, key=lambda moment: sum(self.moments[moment].values()))

    @property
    def peak(self) -> dict[str, int]:
        """Bytes by kind at the peak."""
        return self.moments[self.peak_moment]

    @property
    def peak_bytes(self) -> int:
        return sum(self.peak.values())


def account(
    shape: Shape, batch: int, seq: int, recipe: Recipe | None = None, layout: Layout | None = None,
) -> Account:  # fmt: skip
    """What one rank holds in a training step on `batch` sequences of `seq` tokens (per rank).

    With pipeline parallelism the rank is one of the first stage, which has the most micro-batches in flight, or of
    the last, which has the logits: the fuller of the two. Not priced: the units that FSDP gathers in passing
    (ZeRO is what stays sharded), what sequence parallelism gathers again, a copy of a pipeline's messages. What
    adapters make is priced in one piece for each block, and QLoRA's unpacking one matrix at a time. Raises
    ValueError, in one line, for sizes that do not divide or values that cannot be.
    """
    recipe, layout = recipe or Recipe(), layout or Layout()
    for name, value, kind in (
        ("shape", shape, Shape),
        ("recipe", recipe, Recipe),
        ("layout", layout, Layout),
    ):
        if not isinstance(value, kind):
            raise ValueError(f"{name} must be a {kind.__name__}, not {value!r}")
    ends = {0, layout.pp - 1}
    return max(
        (_stage(shape, batch, seq, recipe, layout, stage) for stage in sorted(ends)),
        key=lambda held: held.peak_bytes,
    )


def _stage(shape: Shape, batch: int, seq: int, recipe: Recipe, layout: Layout, stage: int) -> Account:
    held = states(shape, recipe, layout, stage)
    tape = walk(Sizes(shape, batch, seq, recipe, layout, stage), held)
    return Account({name: tape.fullest[name][1] for name in MOMENTS if name in tape.fullest}, held)
