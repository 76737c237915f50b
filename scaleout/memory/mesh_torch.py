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

    recipe: fp32, that recomputes nothing: of others torch's order is not followed. ValueError for others, and as
    `memory.mesh.rank_account`.
    """
    if recipe.precision != "fp32" or recipe.checkpointing != "none":
        raise ValueError("bytes by a layout are predicted for fp32 without recomputation: use both, or measure")
    whole = rank_parameters(shape, layout, rank)
    shards, width = layout.dp if layout.zero else 1, recipe.width("compute")
    block, root = units(shape, recipe, layout, rank)
    gathered, blocks_whole = whole * width, 0       # torch's runtime of several chunks gathers whole stages ahead
    if layout.zero == 3 and layout.chunks == 1:
        gathered, blocks_whole = root, block * (2 if layout.dp > 1 else 1)      # one computes, one is in its buffer
    flying = most(layout.schedule, layout.pp, layout.m, layout.chunks, rank) if layout.pp > 1 else 1
    fresh = busy(shape, batch, seq, replace(recipe, gradients="fresh"), layout, rank, blocks_whole)
    again = busy(shape, batch, seq, replace(recipe, gradients="kept"), layout, rank, blocks_whole) + 4 * whole
    if layout.m * layout.chunks <= flying:      # at the first gradients all are in flight, at the next one less
        z = Sizes(shape, batch, seq, recipe, replace(layout, zero=0), rank)
        blocks = sum(rank_blocks(layout, rank, blocks_of(shape, layout)))
        again -= blocks * sum(block_kept(z, recipe.checkpointing).values())
    fullest = max(fresh, again) if layout.m > 1 else fresh
    return fullest + whole * 12 // shards + gathered + handed_on(shape, batch, seq, recipe, layout, rank, flying)


def busy(shape: Shape, batch: int, seq: int, recipe: Recipe, layout: Layout, rank: int, gathered: int) -> int:
    """Bytes at the fullest moment before the update, without the states. gathered: of blocks, which none are while the
    loss is.

    A stage keeps its logits until their backward is over. DTensor's parallel loss has five tensors of their size at
    once: logits, log-probabilities, and in its backward their exponentials, the one-hot targets and the sum.
    """
    found = rank_account(shape, batch, seq, recipe, replace(layout, zero=0), rank)
    kept = HELD if recipe.keeps_gradients or layout.pp > 1 else ("weights", "optimizer")
    last, one = rank == layout.last_rank, batch * seq * shape.vocab // layout.tp * 4
    sizes = []
    for moment, kinds in found.moments.items():
        size = sum(kinds.values()) - sum(found.states[name] for name in kept)
        size += gathered if moment != "loss" else 0
        if moment == "loss" and layout.tp > 1:
            size += 5 * one - kinds["logits"]
        elif last and layout.pp > 1:
            size += one
        sizes += [size] if moment != "optimizer" else []
    return max(sizes)


def handed_on(
    shape: Shape, batch: int, seq: int, recipe: Recipe, layout: Layout, rank: int, flying: int
) -> int:  # fmt: skip
    """Bytes of outputs that stages have handed on and keep for their backward."""
    if layout.pp == 1:
        return 0
    chunks = layout.chunks - (rank == layout.last_rank)
    return flying * batch * seq // layout.tp * shape.hidden * recipe.width("compute") * chunks // layout.chunks
