"""The models that the exercises of `fsdp` share, their units by wrapping, and what a collective makes each rank send.

The chapter counts Llama 3 8B on 16 GPUs; where an exercise asks for a count, it is of another model and number.
"""

from __future__ import annotations

from scaleout.collectives.alpha_beta import cost
from scaleout.exercises.collectives.sizes import FAST
from scaleout.memory.fsdp import FsdpAccount, fsdp_account
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import DTYPES, Sharding, Unit, units
from scaleout.spec.transformer import PRESETS, Shape, total_parameters

SHAPE = PRESETS["llama-3-8b"]
NAME = "Llama 3 8B"
PARAMETERS = total_parameters(SHAPE)
BLOCKS = SHAPE.layers
LLAMA = PRESETS["llama-2-7b"]
OTHER_NAME, OTHER_PARAMETERS, OTHER_RANKS = "Llama 2 7B", total_parameters(LLAMA), 32


def wrapped(wrap: str, shape: Shape = SHAPE) -> tuple[Unit, ...]:
    """The units of the model, the root first."""
    return units(shape, Sharding(wrap=wrap))


ROOT, BLOCK = wrapped("block")[:2]


def memory(device_kind: str = "cuda", shape: Shape = SHAPE, ranks: int = 16, **sharding) -> FsdpAccount:
    """Of one sequence on one rank, gathered in bf16 and reduced in fp32, blocks checkpointed in full."""
    recipe = Recipe(precision="fp32", checkpointing="full")
    cut = Sharding(ranks=ranks, parameter="bf16", **sharding)
    return fsdp_account(shape, 1, shape.max_seq, recipe, cut, device_kind)


def gathered_bytes(unit: Unit, dtype: str) -> int:
    """Bytes of a gathered unit."""
    return unit.parameters * DTYPES[dtype]


def sent(collective: str, size: float, ranks: int) -> float:
    """Bytes that each of `ranks` sends when a ring does the collective; size as `collectives.alpha_beta` counts it."""
    return cost(collective, "ring", size, ranks, FAST).sent_bytes


def fsdp_sent(parameters: float, ranks: int, parameter: str = "fp32", reduce: str = "fp32") -> float:
    """Bytes that each rank sends in a step of full sharding: gathered twice, reduced once."""
    gathered, reduced = parameters * DTYPES[parameter], parameters * DTYPES[reduce]
    return 2 * sent("all_gather", gathered, ranks) + sent("reduce_scatter", reduced, ranks)
