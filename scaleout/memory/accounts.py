"""The account: the memory of one rank at each moment of a training step, by kind, and its peak."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil

from scaleout.memory.activations import Sizes
from scaleout.memory.fsdp import fsdp_account
from scaleout.memory.fsdp_tape import Moment
from scaleout.memory.recompute import Policy
from scaleout.memory.recompute_walk import policy_walk
from scaleout.memory.states import paged_bytes, states
from scaleout.memory.tape import KINDS, MOMENTS
from scaleout.memory.walk import resting, walk
from scaleout.spec import checks
from scaleout.spec.adapters import nf4_bytes
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.sharding import Sharding
from scaleout.spec.slices import block_parameters, table_parameters
from scaleout.spec.transformer import Shape

# Kinds of FSDP's own, by the kind of this account that they are copies of.
UNITS = {"gathered": "weights", "whole gradients": "gradients", "buffers": "temporaries"}


@dataclass(frozen=True)
class Account:
    """Bytes on one rank. `moments`: for each candidate peak, in the order of the step, bytes by kind. `rest`: bytes by
    kind between two steps; empty where they were not computed. `host`: states that are offloaded."""

    moments: dict[str, dict[str, int]]
    states: dict[str, int]  # weights, master copies, gradients and optimizer state, whole or sharded
    rest: dict[str, int] = field(default_factory=dict)
    host: dict[str, int] = field(default_factory=dict)

    def copies(self, moment: str) -> int:
        """Bytes of weights at a moment beyond those that stay: casts to 16 bits, or gathered."""
        return self.moments[moment]["weights"] - self.states["weights"]

    @cached_property
    def peak_moment(self) -> str:
        return max(self.moments, key=lambda moment: sum(self.moments[moment].values()))

    @property
    def peak(self) -> dict[str, int]:
        """Bytes by kind at the peak."""
        return self.moments[self.peak_moment]

    @cached_property
    def peak_bytes(self) -> int:
        return sum(self.peak.values())


def account(
    shape: Shape,
    batch: int,
    seq: int,
    recipe: Recipe | None = None,
    layout: Layout | None = None,
    policy: Policy | None = None,
    sharding: Sharding | None = None,
) -> Account:
    """The memory of one rank in a training step on `batch` sequences of `seq` tokens (per rank).

    With pipeline parallelism the rank is one of the first stage, which has the most micro-batches in flight, or of
    the last, which has the logits: the fuller of the two. ZeRO stage 3 is FSDP's: a block is gathered while another
    computes (fsdp.py), and its kinds are counted under this account's names; with fp32 weights or copies of them the
    shards are fp32 and the gathered weights 16 bits. Together with tensor or pipeline parallelism, an adapter or main
    gradients, the units are counted by their sizes alone (`units`). For each rank of a pipeline, and for context
    parallelism, see memory/mesh.py. Not counted: tensors that sequence parallelism gathers again, and a copy of a
    pipeline's messages. The activations of adapters are counted as one piece per block, the dequantized weights of
    QLoRA one matrix at a time. policy: what the blocks drop and recompute (memory/recompute.py), if the recipe's
    checkpointing is "none". sharding: how FSDP shards the model, None for one unit per block over all ranks. Raises
    ValueError, in one line, for sizes that do not divide or impossible values.
    """
    recipe, layout = recipe or Recipe(), layout or Layout()
    checks.instance("shape", shape, Shape)
    checks.instance("recipe", recipe, Recipe)
    checks.instance("layout", layout, Layout)
    plain = recipe.adapter == recipe.main_gradients == "none"
    gathered = layout.ranks > 1 or sharding is not None
    if layout.zero == 3 and layout.dp == layout.ranks and gathered and plain:
        return _account_by_units(shape, batch, seq, recipe, sharding or Replicas().sharding(layout, recipe), policy)
    ends = {0, layout.pp - 1}
    return max(
        (_stage(shape, batch, seq, recipe, layout, stage, policy) for stage in sorted(ends)),
        key=lambda candidate: candidate.peak_bytes,
    )


def _account_by_units(
    shape: Shape, batch: int, seq: int, recipe: Recipe, sharding: Sharding, policy: Policy | None = None
) -> Account:
    """ZeRO stage 3: FSDP's account at this account's moments."""
    stored = "bf16" if recipe.precision == "bf16" else "fp32"
    stored_recipe = replace(recipe, precision=stored, buckets="none")
    fsdp = fsdp_account(shape, batch, seq, stored_recipe, sharding, policy=policy)
    moments: dict[str, dict[str, int]] = {}
    for moment, kinds in _step_moments(fsdp.ends):
        if moment not in moments or sum(kinds.values()) > sum(moments[moment].values()):
            moments[moment] = kinds
    between_steps = dict.fromkeys(KINDS, 0) | fsdp.states | ({} if recipe.keeps_gradients else {"gradients": 0})
    host = {kind: size for kind, size in fsdp.host.items() if size}
    # one unit, the model, has no head of its own
    ordered = {name: moments[name] for name in MOMENTS if name in moments}
    return Account(ordered, fsdp.states, between_steps, host)


def _step_moments(fsdp_moments: Iterable[Moment]) -> Iterator[tuple[str, dict[str, int]]]:
    """(moment of a step, bytes by kind) of each of FSDP's moments.

    What the root does before the blocks' backward is the head's.
    """
    blocks = False
    for moment in fsdp_moments:
        blocks = blocks or (moment.phase == "backward" and moment.unit != "")
        inside = "block" if moment.unit else "embedding" if blocks else "head"
        name = {"update": "optimizer", "backward": inside}.get(moment.phase, moment.phase)
        kinds = dict.fromkeys(KINDS, 0)
        for kind, size in moment.held.items():
            kinds[UNITS.get(kind, kind)] += size
        yield name, kinds


def _stage(
    shape: Shape, batch: int, seq: int, recipe: Recipe, layout: Layout, stage: int, policy: Policy | None = None
) -> Account:
    state_sizes = states(shape, recipe, layout, stage)
    return of_sizes(Sizes(shape, batch, seq, recipe, layout, stage), state_sizes, policy)


def of_sizes(
    z: Sizes, state_sizes: dict[str, int], policy: Policy | None = None, sharding: Sharding | None = None
) -> Account:
    """The account of a rank from the sizes of its tensors and the bytes of its states (`states.states`). Paged states
    are the host's, because CUDA moves them there when memory runs out."""
    layout = z.layout
    paged = min(state_sizes["optimizer"], paged_bytes(z.shape, z.recipe, layout, z.stage))  # none of what is offloaded
    state_sizes = state_sizes | {"optimizer": state_sizes["optimizer"] - paged}
    tape = policy_walk(z, state_sizes, policy) if policy else walk(z, state_sizes)
    between_steps = dict.fromkeys(KINDS, 0) | resting(z, state_sizes)
    moments = {name: tape.fullest[name][1] for name in MOMENTS if name in tape.fullest}
    if layout.zero == 3 and layout.dp > 1:
        gathered, buffer = gathered_bytes(z, sharding)
        for name in moments.keys() - {"optimizer"}:
            moments[name]["weights"] += gathered
            moments[name]["temporaries"] += buffer
    return Account(moments, state_sizes, between_steps, {"optimizer": paged} if paged else {})


def units(shape: Shape, recipe: Recipe, layout: Layout, stage: int) -> tuple[int, int]:
    """Bytes of a gathered block and of the root, on one tensor-parallel rank: in the dtype that is computed in, or,
    under QLoRA, the block as it is stored."""
    block = block_parameters(shape, layout.tp)
    width = nf4_bytes(recipe) if recipe.adapter == "qlora" else recipe.width("compute")
    return int(block * width), sum(table_parameters(shape, layout, stage).values()) * recipe.width("compute")


def gathered_bytes(z: Sizes, sharding: Sharding | None = None) -> tuple[int, int]:
    """Bytes of weights that a rank has gathered at once, and of the buffer that the next unit is gathered in.

    They are the root, the block that computes and those ahead of it. A unit is taken for a block whatever the
    sharding's wrap, but "model", which is one unit. What is resharded to fewer ranks, or not at all, stays.
    None: one block ahead, all of them resharded.
    """
    block, root = units(z.shape, z.recipe, z.layout, z.stage)
    sharding = sharding or Sharding()
    whole = root + z.shape.layers // z.layout.stages * z.layout.chunks * block
    if sharding.wrap == "model":
        return whole, whole
    if sharding.reshard is False:
        return whole, block
    kept = 0 if sharding.reshard is True else ceil((whole - root) / sharding.reshard)
    return root + (1 + sharding.prefetch) * block + kept, block
