"""Bytes of a rank where torch's own parts make the mesh, as `parallel.mesh_ways` composes them: `fully_shard` inside a
stage of `torch.distributed.pipelining`.

What differs from a rank of `memory.mesh`: gradients stay whole until the last micro-batch's, and are sharded then; each
gathered unit is a copy, of one rank's shard too; a stage keeps its outputs until their gradients come, the last one its
logits, and DTensor the whole gradient of a table that is cut.

Held against torch for 11 layouts of 8 ranks, 33 ranks of three models (tests/ranks/specimen_layouts.py has five):
first and last ones within 2%, those between within 3%, of which the receive buffers, which the ledger does not see,
are most.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from scaleout.memory.accounts import units
from scaleout.memory.activations import Sizes, block_kept
from scaleout.memory.mesh import rank_account, rank_parameters
from scaleout.memory.pipeline import CHANGES, ends_in_flight, rank_in_flight
from scaleout.spec.layout import Layout
from scaleout.spec.mesh import blocks_of, rank_blocks
from scaleout.spec.pipeline import orders, stages_of
from scaleout.spec.recipe import Recipe
from scaleout.spec.slices import block_parameters, table_parameters
from scaleout.spec.transformer import Shape

STATES = ("weights", "gradients", "optimizer")


def peak(shape: Shape, batch: int, seq: int, recipe: Recipe, layout: Layout, rank: int = 0) -> int:
    """The peak in bytes of a rank of the pipeline, in a step of layout.m micro-batches of `batch` sequences.

    recipe: fp32, that recomputes nothing: of others torch's order is not followed. ValueError for others, and as
    `memory.mesh.rank_account`.
    """
    if recipe.precision != "fp32" or recipe.checkpointing != "none":
        raise ValueError("bytes by a layout are predicted for fp32 without recomputation: use both, or measure")
    parameters = rank_parameters(shape, layout, rank)
    shards, width = layout.dp if layout.zero else 1, recipe.width("compute")
    block, root = units(shape, recipe, layout, rank)
    gathered, blocks_whole = parameters * width, 0  # torch's runtime of several chunks gathers whole stages ahead
    if layout.zero == 3 and layout.chunks == 1:
        gathered, blocks_whole = root, block * (2 if layout.dp > 1 else 1)  # one computes, one is in its buffer
    flying = rank_in_flight(layout.schedule, layout.pp, layout.m, layout.chunks, rank) if layout.pp > 1 else 1
    z = Sizes(replace(shape, layers=layout.stages), batch, seq, recipe, replace(layout, zero=0), rank)
    stage_blocks = dict(zip(own_stages(layout, rank), rank_blocks(layout, rank, blocks_of(shape, layout)), strict=True))
    chunk_bytes = max(stage_blocks.values()) * sum(block_kept(z, recipe.checkpointing).values())
    first_busy, later_busy = (
        busy(shape, batch, seq, replace(recipe, gradients=option), layout, rank, blocks_whole)
        for option in ("fresh", "kept")
    )
    fullest = max(
        (later_busy if stage in finished else first_busy)
        - (flying - in_flight) * chunk_bytes
        + sum(gradients(shape, layout, done_stage, stage_blocks[done_stage]) for done_stage in finished)
        for stage, in_flight, finished in backwards(layout, rank)
    )
    return fullest + parameters * 12 // shards + gathered + handed_on(shape, batch, seq, recipe, layout, rank, flying)


def own_stages(layout: Layout, rank: int) -> tuple[int, ...]:
    """The stages of a rank, in the order of the model."""
    return stages_of(layout.schedule, rank, layout.pp, layout.chunks) if layout.pp > 1 else (0,)


@lru_cache(maxsize=64)
def backwards(layout: Layout, rank: int) -> tuple[tuple[int, int, frozenset[int]], ...]:
    """Of a step's backwards: (its stage, activations in flight when it begins, stages that have gradients by then)."""
    if layout.pp == 1:
        return tuple((0, 1, frozenset([0] if i else [])) for i in range(min(layout.m, 2)))
    rows: dict[tuple[int, int, frozenset[int]], None] = {}
    in_flight, finished = 0, frozenset[int]()
    for action in orders(layout.schedule, layout.pp, layout.m, layout.chunks)[rank]:
        if action.kind in "BI":
            rows[action.stage, in_flight, finished] = None
            finished |= {action.stage}
        in_flight += CHANGES[action.kind]
    return tuple(rows)


def gradients(shape: Shape, layout: Layout, stage: int, blocks: int) -> int:
    """Bytes of a stage's whole gradients. DTensor's of a token table that is cut is as large as the whole table, until
    the ranks' are added up: each has rows that tokens of all ranks point to. A tied head's on one rank is not."""
    ends = table_parameters(shape, replace(layout, schedule="gpipe", pp=layout.stages, chunks=1), stage)
    parameters = blocks * block_parameters(shape, layout.tp) + sum(ends.values())
    alone = shape.tied_head and layout.pp == 1
    if stage == 0 and layout.tp > 1 and not alone:
        parameters += (layout.tp - 1) * (shape.vocab * shape.hidden // layout.tp)
    return 4 * parameters


def busy(shape: Shape, batch: int, seq: int, recipe: Recipe, layout: Layout, rank: int, gathered: int) -> int:
    """Bytes at the fullest moment before the update, without the states. gathered: of blocks, which none are while the
    loss is.

    A stage of a pipeline keeps its logits until their backward is over. DTensor's parallel loss has four tensors of
    their size at once: log-probabilities, and in its backward their exponentials, the one-hot targets and the sum.
    """
    base = rank_account(shape, batch, seq, recipe, replace(layout, zero=0), rank)
    state_kinds = STATES if recipe.keeps_gradients or layout.pp > 1 else ("weights", "optimizer")
    last, logits = rank == layout.last_rank, batch * seq * shape.vocab // layout.tp * 4
    flying = ends_in_flight(layout.schedule, layout.pp, layout.m)[1] if layout.pp > 1 else 0
    sizes = []
    for moment, kinds in base.moments.items():
        size = sum(kinds.values()) - sum(base.states[name] for name in state_kinds)
        size += gathered if moment != "loss" else 0
        if moment == "loss" and layout.tp > 1:
            size += 2 * logits  # beside the two of the book's own loss
        size += flying * logits * last
        sizes += [size] if moment != "optimizer" else []
    return max(sizes)


def handed_on(shape: Shape, batch: int, seq: int, recipe: Recipe, layout: Layout, rank: int, flying: int) -> int:
    """Bytes of outputs that stages have handed on and keep for their backward."""
    if layout.pp == 1:
        return 0
    chunks = layout.chunks - (rank == layout.last_rank)
    return flying * batch * seq // layout.tp * shape.hidden * recipe.width("compute") * chunks // layout.chunks
