"""The model that the exercises of `fsdp` share, its units by wrapping, and what a collective makes each rank send."""

from __future__ import annotations

from scaleout.collectives.alpha_beta import cost
from scaleout.exercises.collectives.sizes import FAST
from scaleout.memory.fsdp import FsdpAccount, fsdp_account
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import DTYPES, Sharding, Unit, units
from scaleout.spec.transformer import PRESETS, total_parameters

SHAPE = PRESETS["llama-3-8b"]
NAME = "Llama 3 8B"
PARAMETERS = total_parameters(SHAPE)
BLOCKS = SHAPE.layers


def wrapped(wrap: str) -> tuple[Unit, ...]:
    """The units of the model, the root first."""
    return units(SHAPE, Sharding(wrap=wrap))


ROOT, BLOCK = wrapped("block")[:2]


def memory(device_kind: str = "cuda", **sharding) -> FsdpAccount:
    """Of one sequence on one of 16 ranks, gathered in bf16 and reduced in fp32, blocks checkpointed in full."""
    recipe = Recipe(precision="fp32", checkpointing="full")
    return fsdp_account(SHAPE, 1, SHAPE.max_seq, recipe, Sharding(ranks=16, parameter="bf16", **sharding), device_kind)


def whole(unit: Unit, dtype: str) -> int:
    """Bytes of a gathered unit."""
    return unit.parameters * DTYPES[dtype]


def sent(collective: str, size: float, ranks: int) -> float:
    """Bytes that each of `ranks` sends when a ring does the collective; size as `collectives.alpha_beta` counts it."""
    return cost(collective, "ring", size, ranks, FAST).sent_bytes


def fsdp_sent(parameters: float, ranks: int, parameter: str = "fp32", reduce: str = "fp32") -> float:
    """Bytes that each rank sends in a step of full sharding: gathered twice, reduced once."""
    gathered, reduced = parameters * DTYPES[parameter], parameters * DTYPES[reduce]
    return 2 * sent("all_gather", gathered, ranks) + sent("reduce_scatter", reduced, ranks)
