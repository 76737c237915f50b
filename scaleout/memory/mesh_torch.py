"""Bytes of a rank where torch's own parts make the mesh, as `parallel.mesh_ways` composes them: `fully_shard` inside a
stage of `torch.distributed.pipelining`.

What differs from a rank of `memory.mesh`: gradients stay whole until the last micro-batch's, and are sharded then; each
gathered unit is a copy, of one rank's shard too; a stage keeps its outputs until their gradients come.
"""

from __future__ import annotations

from dataclasses import replace

from scaleout.memory.accounts import units
from scaleout.memory.activations import Sizes, block_kept
from scaleout.memory.mesh import blocks_of, rank_account, rank_blocks, rank_parameters
from scaleout.memory.pipeline import most
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape

HELD = ("weights", "gradients", "optimizer")


def peak(shape: Shape, batch: int, seq: int, recipe: Recipe, layout: Layout, rank: int = 0) -> int:
    """Most bytes of a rank of the pipeline in a step of layout.m micro-batches of `batch` sequences.

    recipe: with fp32 weights; "autocast-bf16" gathers them in 16 bits. ValueError as `memory.mesh.rank_account`.
    """
    whole = rank_parameters(shape, layout, rank)
    shards, width = layout.dp if layout.zero else 1, recipe.width("compute")
    block, root = units(shape, recipe, layout, rank)
    gathered = root + 2 * block if layout.zero == 3 else whole * width      # one computes, one is in its buffer
    if layout.zero == 3 and recipe.checkpointing == "full":                 # its forward gathers again, and ahead
        gathered += 2 * block
    flying = most(layout.schedule, layout.pp, layout.m, layout.chunks, rank) if layout.pp > 1 else 1
    kept = handed_on(shape, batch, seq, recipe, layout, rank, flying)
    fresh = busy(shape, batch, seq, replace(recipe, gradients="fresh"), layout, rank)
    again = busy(shape, batch, seq, replace(recipe, gradients="kept"), layout, rank) + 4 * whole
    if layout.m <= flying:                      # at the first gradients all are in flight, at the next one less
        z = Sizes(shape, batch, seq, recipe, replace(layout, zero=0), rank)
        blocks = sum(rank_blocks(layout, rank, blocks_of(shape, layout)))
        again -= blocks * sum(block_kept(z, recipe.checkpointing).values())
    most_busy = max(fresh, again) if layout.m > 1 else fresh
    return most_busy + whole * 12 // shards + gathered + kept


def busy(shape: Shape, batch: int, seq: int, recipe: Recipe, layout: Layout, rank: int) -> int:
    """Bytes at the fullest moment before the update, without the states."""
    found = rank_account(shape, batch, seq, recipe, replace(layout, zero=0), rank)
    kept = HELD if recipe.keeps_gradients else ("weights", "optimizer")
    return max(sum(kinds.values()) - sum(found.states[name] for name in kept)
               for moment, kinds in found.moments.items() if moment != "optimizer")  # fmt: skip


def handed_on(
    shape: Shape, batch: int, seq: int, recipe: Recipe, layout: Layout, rank: int, flying: int
) -> int:  # fmt: skip
    """Bytes of outputs that stages keep for their backward: of the stream, and of the last stage the logits."""
    if layout.pp == 1:
        return 0
    tokens, last = batch * seq, rank == layout.last_rank
    stream = tokens // layout.tp * shape.hidden * recipe.width("compute")
    logits = tokens * shape.vocab // layout.tp * recipe.width("compute")
    chunks = layout.chunks - last
    return flying * stream * chunks // layout.chunks + (logits if last else 0)
