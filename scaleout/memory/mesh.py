"""Bytes of every rank of a mesh: the account of each stage of a pipeline, with tp, cp, sequence parallelism and ZeRO.

Ranks of one stage hold as much as one another, so that a mesh has as many accounts as its pipeline has ranks. Stages
need not be alike: the first has the token table and the most micro-batches in flight, the last the head and the logits,
and each may have its own number of blocks. A context-parallel rank is one of a shorter sequence whose weights its
neighbours have too; beside its own it has keys and values of other ranks (`passing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil

from scaleout.memory.accounts import Account, account, of_sizes
from scaleout.memory.activations import Sizes
from scaleout.memory.states import bucket_bytes
from scaleout.memory.states import states as rank_states
from scaleout.spec import checks, mesh
from scaleout.spec.layout import CONTEXTS, Layout, context_share, keeps_keys
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.slices import stage_parameters
from scaleout.spec.transformer import Shape


def rank_parameters(shape: Shape, layout: Layout, rank: int, stage_blocks: Sequence[int] | None = None) -> int:
    """Model parameters on one rank of the pipeline, before ZeRO."""
    blocks = mesh.rank_blocks(layout, rank, mesh.blocks_of(shape, layout, stage_blocks))
    return stage_parameters(shape, layout, rank, sum(blocks))


def passing(z: Sizes, cp: int, context: str) -> int:
    """Bytes of other ranks' keys and values that are on a rank while it computes attention.

    "ring": those that it uses, and those that are on their way to it (Liu et al. 2023, arXiv 2310.01889); "gather": all
    of the sequence's, gathered before (Llama 3, arXiv 2407.21783, section 3.3.2).
    """
    if cp == 1:
        return 0
    return 2 * z.kv * (min(2, cp - 1) if context == "ring" else cp - 1)


def gathered_keys(z: Sizes, layout: Layout, context: str) -> int:
    """Bytes of other ranks' keys and values that a block saves, where they are gathered once for forward and backward
    and the block is not recomputed."""
    kept = keeps_keys(layout, context) and z.recipe.checkpointing != "full"
    return 2 * z.kv * (layout.cp - 1) if kept else 0


def rank_account(
    shape: Shape,
    batch: int,
    seq: int,
    recipe: Recipe,
    layout: Layout,
    rank: int = 0,
    stage_blocks: Sequence[int] | None = None,
    context: str = "ring",
    replicas: Replicas | None = None,
) -> Account:
    """The memory of a rank of the pipeline in a step on micro-batches of `batch` sequences of `seq` tokens, which its
    cp ranks share.

    stage_blocks: the blocks of each stage (`spec.mesh.blocks_of`). Where the chunks of one rank differ in blocks, its
    activations are those of chunks as long as its longest. replicas: how many ranks share one copy of the states, what
    stays gathered and what is offloaded. ValueError, in one line, for what does not divide, for a rank that is not
    there, and for naive attention across cp, whose scores are not priced.
    """
    for name, value, kind in (("shape", shape, Shape), ("recipe", recipe, Recipe), ("layout", layout, Layout)):
        checks.instance(name, value, kind)
    checks.one_of("context", context, CONTEXTS)
    if not checks.is_whole(rank) or not 0 <= rank < layout.pp:
        raise ValueError(f"rank {rank!r} of the pipeline is not there: they go from 0 to {layout.pp - 1}")
    if layout.cp > 1 and recipe.attention == "naive":
        raise ValueError("across cp ranks no rank has all scores: use attention sdpa, not naive")
    replicas = replicas or Replicas()
    flat, tokens = context_share(layout, seq)
    flat = replace(flat, dp=replicas.shards or flat.dp, zero=3 if replicas.gathers(layout) else layout.zero)
    chunks = mesh.rank_blocks(layout, rank, mesh.blocks_of(shape, layout, stage_blocks))
    z = Sizes(replace(shape, layers=flat.stages * max(chunks)), batch, tokens, recipe, flat, rank)
    sharding = replicas.sharding(layout, recipe) if flat.zero == 3 else None
    plain = recipe.adapter == recipe.main_gradients == "none" and replicas.offload != "optimizer"
    keys = z.in_flight * z.chunk_layers * gathered_keys(z, layout, context)
    if flat.zero == 3 and flat.dp == flat.ranks and plain:
        base = account(shape, batch, tokens, recipe, flat, sharding=sharding)
    else:
        on_device, on_host = placed(states(shape, recipe, flat, rank, sum(chunks)), flat, replicas.offload)
        on_device["gradients"] += bucket_bytes(_of_blocks(shape, flat, sum(chunks)), recipe, flat, rank)
        base = of_sizes(z, on_device, sharding=sharding)
        base = replace(base, host=base.host | on_host)
    if flat.zero >= 2 and flat.dp > 1 and flat.m > 1 and replicas.every_pass is False:
        base = accumulated(base, states(shape, recipe, replace(flat, zero=1), rank, sum(chunks))["gradients"])
    passing_bytes = passing(z, layout.cp, context)
    moments = {
        name: kinds
        | {
            "temporaries": kinds["temporaries"] + passing_bytes * (name in ("forward", "block")),
            "activations": kinds["activations"] + keys * (name != "optimizer"),
        }
        for name, kinds in base.moments.items()
    }
    return replace(base, moments=moments)


def placed(state_sizes: dict[str, int], layout: Layout, offload: str) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of each state on the device, and in the host's memory or behind it.

    The host steps what is offloaded: with "optimizer" gradients go down as they are made from stage 2 on, and where
    there is no master copy the host has one of the weights that it steps (ZeRO-Offload, arXiv 2101.06840, section 4.1).
    """
    if offload == "none":
        return state_sizes, {}
    if offload == "parameters":
        return dict.fromkeys(state_sizes, 0), {kind: size for kind, size in state_sizes.items() if size}
    moved = {"master", "optimizer"} | ({"gradients"} if layout.zero >= 2 else set())
    host = {kind: size for kind, size in state_sizes.items() if kind in moved and size}
    if not state_sizes["master"]:
        host["weights"] = ceil(state_sizes["weights"] / (layout.dp if layout.zero < 3 else 1))
    if layout.zero == 1:
        host["gradients"] = ceil(state_sizes["gradients"] / layout.dp)
    return {kind: 0 if kind in moved else size for kind, size in state_sizes.items()}, host


def accumulated(base: Account, whole_bytes: int) -> Account:
    """The account where the gradients of several micro-batches add up whole before they are reduced once.

    So a rank keeps all of its parameters' gradients from pass to pass, where ZeRO would leave it a shard:
    FSDP's `set_requires_gradient_sync(False)`, which is what `no_sync` calls. whole_bytes: of those gradients,
    ZeRO-1's: the optimizer's own, where it has some beside these, stay split.
    """
    shard = base.states["gradients"]
    moments = {
        name: kinds if name == "optimizer" else kinds | {"gradients": max(kinds["gradients"] - shard, 0) + whole_bytes}
        for name, kinds in base.moments.items()
    }
    return replace(base, moments=moments)


def states(shape: Shape, recipe: Recipe, layout: Layout, rank: int, blocks: int) -> dict[str, int]:
    """Bytes of each state on a rank of the pipeline that has so many blocks; ZeRO splits over dp and cp."""
    return rank_states(_of_blocks(shape, layout, blocks), replace(recipe, buckets="none"), layout, rank)


def _of_blocks(shape: Shape, layout: Layout, blocks: int) -> Shape:
    """A model of as many blocks for each rank as this one has."""
    return replace(shape, layers=blocks * layout.pp)


@lru_cache(maxsize=64)
def _accounts(
    shape: Shape, batch: int, seq: int, recipe: Recipe, layout: Layout, stage_blocks: Sequence[int], context: str
) -> tuple[Account, ...]:
    return tuple(
        rank_account(shape, batch, seq, recipe, layout, rank, stage_blocks, context) for rank in range(layout.pp)
    )


def accounts(
    shape: Shape,
    batch: int,
    seq: int,
    recipe: Recipe,
    layout: Layout,
    stage_blocks: Sequence[int] | None = None,
    context: str = "ring",
) -> tuple[Account, ...]:
    """The account of each rank of the pipeline, first to last; all ranks of one stage hold as much. Errors as in
    `rank_account`."""
    return _accounts(shape, batch, seq, recipe, layout, mesh.blocks_of(shape, layout, stage_blocks), context)


def fullest(rank_accounts: Sequence[Account]) -> int:
    """The rank of the pipeline that has the highest peak; of several the first."""
    return max(range(len(rank_accounts)), key=lambda rank: (rank_accounts[rank].peak_bytes, -rank))
