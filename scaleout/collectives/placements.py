"""Placements of a tensor and of its gradient on t ranks, and the collective that changes one placement into another.

Placements are spelled as torch's DTensor does, for tensors of (batch, tokens, width): "R" replicated, whole on every
rank; "S(1)" cut along the tokens, "S(2)" along the width; "P" partial, a summand of it on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from scaleout.collectives.alpha_beta import bus_factor


class Placed(NamedTuple):
    """Where a tensor is, and where its gradient."""

    value: str
    gradient: str


WHOLE = Placed("R", "R")
READ = Placed("R", "P")  # whole, and every rank makes another part of its gradient
PARTIAL = Placed("P", "R")
TOKENS = Placed("S(1)", "S(1)")
FEATURES = Placed("S(2)", "S(2)")


def collective(have: str, want: str) -> str:
    """What brings a tensor from one placement to another: "" where nothing moves, as from whole to a part of it."""
    if have == want or have == "R":
        return ""
    if have == "P":
        return "all_reduce" if want == "R" else "reduce_scatter"
    return "all_gather" if want == "R" else "all_to_all"


@dataclass(frozen=True)
class Move:
    """One collective of `size` bytes, as nccl-tests counts them, among `ranks`. of: the tensors that move."""

    collective: str
    size: int
    ranks: int
    of: tuple[str, ...]

    @cached_property
    def sent(self) -> float:
        """Bytes that a rank sends by a ring: 2 (t - 1) / t of an all-reduce, (t - 1) / t of its halves."""
        return self.size * bus_factor(self.collective, self.ranks)
