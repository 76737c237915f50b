"""Bytes of a rank where torch's own parts make the mesh, as `parallel.mesh_ways` composes them: `fully_shard` inside a
stage of `torch.distributed.pipelining`.

What differs from a rank of `memory.mesh`: gradients stay whole until the last micro-batch's, and are sharded then; each
gathered unit is a copy, of one rank's shard too; a stage keeps its outputs until their gradients come.
"""

from __future__ import annotations

from dataclasses import replace

from scaleout.memory.accounts import units
from scaleout.memory.mesh import rank_account, rank_parameters
from scaleout.memory.pipeline import most
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape


def peak(shape: Shape, batch: int, seq: int, recipe: Recipe, layout: Layout, rank: int = 0) -> int:
    """Most bytes of a rank of the pipeline in a step of layout.m micro-batches of `batch` sequences.

    recipe: with fp32 weights; "autocast-bf16" gathers them in 16 bits. ValueError as `memory.mesh.rank_account`.
    """
    whole = rank_parameters(shape, layout, rank)
    shards, width = layout.dp if layout.zero else 1, recipe.width("compute")
    alone = rank_account(shape, batch, seq, replace(recipe, gradients="kept"), replace(layout, zero=0), rank)
    busy = max(sum(kinds.values()) for moment, kinds in alone.moments.items() if moment != "optimizer")
    block, root = units(shape, recipe, layout, rank)
    gathered = root + 2 * block if layout.zero == 3 else whole * width      # one computes, one is in its buffer
    once = layout.pp == 1 and layout.m == 1
    gradients = whole * 4 // shards + 2 * block if once else whole * 4
    states = sum(alone.states[name] for name in ("weights", "gradients", "optimizer"))
    kept = outputs(shape, batch, seq, recipe, layout, rank)
    return busy - states + whole * 12 // shards + gathered + gradients + kept


def outputs(shape: Shape, batch: int, seq: int, recipe: Recipe, layout: Layout, rank: int) -> int:
    """Bytes of the outputs that a stage has handed on and keeps for their backward."""
    if layout.pp == 1 or rank == layout.last_rank:
        return 0
    flying = most(layout.schedule, layout.pp, layout.m, layout.chunks, rank)
    return flying * batch * seq // layout.tp * shape.hidden * recipe.width("compute")
