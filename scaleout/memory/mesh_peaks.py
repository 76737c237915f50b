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
from scaleout.memory.activations import Sizes
from scaleout.memory.mesh import gathered_keys, passing
from scaleout.memory.pipeline import rank_in_flight
from scaleout.memory.states import bucket_width, state_bytes, states
from scaleout.memory.traces import block_bytes
from scaleout.memory.walk import update
from scaleout.spec.blocks import of_layers
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


def ends_of(layout: Layout, stage_blocks: Sequence[int]) -> tuple[End, ...]:
    """The ranks of a pipeline that may hold most, whose stages have so many blocks each: the first, the last, and of
    those between them the first, with the most in flight, and the first of those with the longest chunks. Of schedules
    that go round: the last rank has the head."""
    chunks = [rank_blocks(layout, rank, stage_blocks) for rank in range(layout.pp)]
    inside = range(1, layout.pp - 1)
    ranks = {0, *inside[:1], max(inside, key=lambda rank: max(chunks[rank]), default=0), layout.pp - 1}
    return tuple(End(rank, max(chunks[rank]), sum(chunks[rank])) for rank in sorted(ranks))


@lru_cache(maxsize=4)
def peaks(shape: Shape, seq: int, context: str, recipe: Recipe, fp32_shards: bool = False) -> Peaks:
    """The same one for every search of a model. recipe: that all of them differ from in what they recompute;
    fp32_shards: of `spec.frameworks`."""
    return Peaks(shape, seq, context, fp32_shards)


# A pipeline and a rank of it, by whether the rank has the token table, and whether it has the head.
AS = {(True, True): (1, 0), (True, False): (2, 0), (False, True): (2, 1), (False, False): (3, 1)}


class Peaks:
    """Of a model, trained on sequences of `seq` tokens by recipes that differ in what they recompute. What has been
    asked for before is not worked out again."""

    def __init__(self, shape: Shape, seq: int, context: str = "ring", fp32_shards: bool = False) -> None:
        self.shape, self.seq, self.context, self.fp32_shards = shape, seq, context, fp32_shards
        self.sizes: dict[tuple, tuple[Sizes, tuple[int, int, int]]] = {}
        self.rests: dict[tuple, tuple[int, int]] = {}
        self.flights: dict[tuple, int] = {}
        self.counts: dict[tuple, int] = {}
        self.held: dict[tuple, dict[str, int]] = {}

    def peak(self, batch: int, recipe: Recipe, layout: Layout, ends: Sequence[End]) -> tuple[int, int]:
        """(bytes, rank of the pipeline) of the one that holds most. ends: those that may (`ends_of`). The recipe's
        gradients stay from micro-batch to micro-batch."""
        return max(
            ((self._rank(batch, recipe, layout, end), end.rank) for end in ends), key=lambda candidate: candidate[0]
        )

    def _rank(self, batch: int, recipe: Recipe, layout: Layout, end: End) -> int:
        z, (saved, *copies) = self._sizes(batch, recipe, layout)
        state_sizes = self._states(recipe, layout, end)
        at_rest = sum(state_sizes.values())
        mask = z.mask if end.rank == 0 else 0
        saved += gathered_keys(z, layout, self.context)
        busy = self._in_flight(layout, end.rank) * (end.longest * saved + mask)
        busy += passing(z, layout.cp, self.context)
        forward, later = self._other_bytes(z, recipe, layout, (end.rank == 0, end.rank == layout.pp - 1))
        busy += max(forward + end.longest * copies[0], later + end.longest * copies[1])
        if layout.zero == 3 and layout.replicas > 1:
            block, root = units(self.shape, recipe, layout, end.rank)
            # one tensor has the gates and up-projections of all experts, two thirds of a block, and so has its gradient
            busy += root + 3 * block + (2 * block // 3 if self.shape.features.experts else 0)
        return at_rest + max(busy, sum(update(z, state_sizes)))

    def parameters(self, layout: Layout, end: End) -> int:
        """Parameters of the model on a rank of the pipeline."""
        key = layout.tp, layout.pp, end
        if key not in self.counts:
            self.counts[key] = stage_parameters(self.shape, layout, end.rank, end.blocks)
        return self.counts[key]

    def _states(self, recipe: Recipe, layout: Layout, end: End) -> dict[str, int]:
        """Bytes of each state: the same whatever is recomputed, and however large a micro-batch is."""
        key = self.parameters(layout, end), layout.replicas, layout.zero
        if key not in self.held:
            self.held[key] = sizes = state_bytes(key[0], recipe, layout)
            sizes["gradients"] += key[0] * bucket_width(recipe, layout)
            sizes["weights"] *= not (self.fp32_shards and layout.zero == 3 and layout.replicas > 1)
        return self.held[key]

    def _in_flight(self, layout: Layout, rank: int) -> int:
        if layout.pp == 1:
            return 1
        key = layout.schedule, layout.pp, layout.m, layout.chunks, rank
        if key not in self.flights:
            self.flights[key] = rank_in_flight(*key)
        return self.flights[key]

    def _sizes(self, batch: int, recipe: Recipe, layout: Layout) -> tuple[Sizes, tuple[int, int, int]]:
        """The Sizes of a micro-batch on one rank, and what a block saves of it (`traces.block_bytes`)."""
        key = batch, recipe.checkpointing, layout.tp, layout.cp, layout.sequence_parallel, layout.gather_again
        if key not in self.sizes:
            z = self._two_blocks(batch, self.seq // layout.cp, recipe, layout, 1, 0)
            whole = replace(z, shape=self.shape) if z.transformers else z
            self.sizes[key] = z, block_bytes(whole)
        return self.sizes[key]

    def _other_bytes(self, z: Sizes, recipe: Recipe, layout: Layout, ends: tuple[bool, bool]) -> tuple[int, int]:
        """Bytes beside states and blocks, from the account of two blocks: in the forward, where autocast has copies of
        all weights, and later, where it has those that the backward needs.

        ends: whether the rank has the embedding, and whether it has the head. Several sequences are taken for one as
        long as all of them, unless there is a table of positions, which ends.
        """
        alike = self.shape.positions == "rotary" and not z.transformers
        batch, seq = (1, z.tokens) if alike else (z.batch, z.seq)
        key = batch, seq, recipe.checkpointing, layout.tp, layout.sequence_parallel, layout.gather_again, ends
        if key not in self.rests:
            z = self._two_blocks(batch, seq, recipe, layout, *AS[ends])
            state_sizes = states(z.shape, recipe, z.layout, z.stage)
            account = of_sizes(z, state_sizes)
            saved, *copies = block_bytes(z)
            kept_bytes = 2 * saved + (z.mask if z.first else 0)
            sizes = {moment: sum(kinds.values()) for moment, kinds in account.moments.items() if moment != "optimizer"}
            constant = sum(state_sizes.values()) + z.in_flight * kept_bytes
            self.rests[key] = (
                sizes.pop("forward") - constant - 2 * copies[0],
                max(sizes.values()) - constant - 2 * copies[1],
            )
        return self.rests[key]

    def _two_blocks(self, batch: int, seq: int, recipe: Recipe, layout: Layout, pp: int, rank: int) -> Sizes:
        """The sizes of two blocks on a rank of one replica."""
        cut = Layout(tp=layout.tp, pp=pp, sequence_parallel=layout.sequence_parallel, gather_again=layout.gather_again)
        return Sizes(of_layers(self.shape, 2 * pp), batch, seq, recipe, cut, rank)
