"""The highest peak of a mesh at once, for searches: accounts of a few blocks, and what more blocks and passes add.

At every moment but the update a rank holds its states, what each micro-batch in flight keeps of each block, and a rest
that knows neither how many blocks nor how many ranks there are: the walk's temporaries, the logits, the batch. So the
rest is taken once from the account of two blocks, for each number of tokens, cut of a block and way to recompute.
Tests hold it against the whole account.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from scaleout.memory.accounts import of_sizes, units
from scaleout.memory.activations import Sizes, block_kept
from scaleout.memory.mesh import passing
from scaleout.memory.pipeline import most
from scaleout.memory.states import state_bytes, states
from scaleout.memory.walk import update
from scaleout.spec.layout import Layout
from scaleout.spec.mesh import rank_blocks
from scaleout.spec.recipe import Recipe
from scaleout.spec.slices import stage_parameters
from scaleout.spec.transformer import Shape


class End(NamedTuple):
    """A rank of a pipeline: the blocks of its longest chunk, and all its blocks."""

    rank: int
    longest: int
    blocks: int


def ends_of(layout: Layout, each: Sequence[int]) -> tuple[End, ...]:
    """The ranks of a pipeline that may hold most, whose stages have so many blocks each: the first, the last, and of
    those between them the first, with the most in flight, and the first of those with the longest chunks. Of schedules
    that go round: the last rank has the head."""
    chunks = [rank_blocks(layout, rank, each) for rank in range(layout.pp)]
    inside = range(1, layout.pp - 1)
    some = {0, *inside[:1], max(inside, key=lambda rank: max(chunks[rank]), default=0), layout.pp - 1}
    return tuple(End(rank, max(chunks[rank]), sum(chunks[rank])) for rank in sorted(some))


@lru_cache(maxsize=4)
def peaks(shape: Shape, seq: int, context: str, recipe: Recipe) -> Peaks:
    """The same one for every search of a model. recipe: that all of them differ from in what they recompute."""
    return Peaks(shape, seq, context)


# A pipeline and a rank of it, by whether the rank has the token table, and whether it has the head.
AS = {(True, True): (1, 0), (True, False): (2, 0), (False, True): (2, 1), (False, False): (3, 1)}


class Peaks:
    """Of a model, trained on sequences of `seq` tokens by recipes that differ in what they recompute. What has been
    asked for before is not worked out again."""

    def __init__(self, shape: Shape, seq: int, context: str = "ring") -> None:
        self.shape, self.seq, self.context = shape, seq, context
        self.sizes: dict[tuple, tuple[Sizes, int]] = {}
        self.rests: dict[tuple, int] = {}
        self.flights: dict[tuple, int] = {}
        self.counts: dict[tuple, int] = {}
        self.held: dict[tuple, dict[str, int]] = {}

    def peak(self, batch: int, recipe: Recipe, layout: Layout, ends: Sequence[End]) -> tuple[int, int]:
        """(bytes, rank of the pipeline) of the one that holds most. ends: those that may (`ends_of`). The recipe's
        gradients stay from micro-batch to micro-batch."""
        return max(((self._rank(batch, recipe, layout, end), end.rank) for end in ends), key=lambda one: one[0])

    def _rank(self, batch: int, recipe: Recipe, layout: Layout, end: End) -> int:
        z, kept = self._sizes(batch, recipe, layout)
        held = self._states(recipe, layout, end)
        at_rest = sum(held.values())
        mask = z.mask if end.rank == 0 else 0
        busy = self._in_flight(layout, end.rank) * (end.longest * kept + mask) + passing(z, layout.cp, self.context)
        busy += self._rest(z, recipe, layout, (end.rank == 0, end.rank == layout.pp - 1))
        if layout.zero == 3 and layout.replicas > 1:
            block, root = units(self.shape, recipe, layout, end.rank)
            busy += root + 3 * block
        return at_rest + max(busy, sum(update(z, held)))

    def parameters(self, layout: Layout, end: End) -> int:
        """Of the model, on a rank of the pipeline."""
        key = layout.tp, layout.pp, end
        if key not in self.counts:
            self.counts[key] = stage_parameters(self.shape, layout, end.rank, end.blocks)
        return self.counts[key]

    def _states(self, recipe: Recipe, layout: Layout, end: End) -> dict[str, int]:
        """No matter what is recomputed, and of how large a micro-batch."""
        key = self.parameters(layout, end), layout.replicas, layout.zero
        if key not in self.held:
            self.held[key] = state_bytes(key[0], recipe, layout)
        return self.held[key]

    def _in_flight(self, layout: Layout, rank: int) -> int:
        if layout.pp == 1:
            return 1
        key = layout.schedule, layout.pp, layout.m, layout.chunks, rank
        if key not in self.flights:
            self.flights[key] = most(*key)
        return self.flights[key]

    def _sizes(self, batch: int, recipe: Recipe, layout: Layout) -> tuple[Sizes, int]:
        """Of a micro-batch on one rank; with the bytes that a block keeps of it."""
        key = batch, recipe.checkpointing, layout.tp, layout.cp, layout.sequence_parallel, layout.gather_again
        if key not in self.sizes:
            z = self._few(batch, self.seq // layout.cp, recipe, layout, 1, 0)
            self.sizes[key] = z, sum(block_kept(z, recipe.checkpointing).values())
        return self.sizes[key]

    def _rest(self, z: Sizes, recipe: Recipe, layout: Layout, ends: tuple[bool, bool]) -> int:
        """Of two blocks' account. ends: whether the token table is there, and whether the head is. Several sequences
        are taken for one as long as all of them, but for a table of positions, which ends."""
        batch, seq = (1, z.tokens) if self.shape.positions == "rotary" else (z.batch, z.seq)
        key = batch, seq, recipe.checkpointing, layout.tp, layout.sequence_parallel, layout.gather_again, ends
        if key not in self.rests:
            z = self._few(batch, seq, recipe, layout, *AS[ends])
            held = states(z.shape, recipe, z.layout, z.stage)
            found = of_sizes(z, held)
            kept = 2 * sum(block_kept(z, recipe.checkpointing).values()) + (z.mask if z.first else 0)
            fullest = max(sum(kinds.values()) for moment, kinds in found.moments.items() if moment != "optimizer")
            self.rests[key] = fullest - sum(held.values()) - z.in_flight * kept
        return self.rests[key]

    def _few(self, batch: int, seq: int, recipe: Recipe, layout: Layout, pp: int, rank: int) -> Sizes:
        """The sizes of two blocks on a rank of one replica."""
        few = Layout(tp=layout.tp, pp=pp, sequence_parallel=layout.sequence_parallel, gather_again=layout.gather_again)
        return Sizes(replace(self.shape, layers=2 * pp), batch, seq, recipe, few, rank)
