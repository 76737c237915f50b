"""The models that the exercises of `fsdp` share, their units by wrapping, and bytes sent per collective.

The chapter counts Llama 3 8B on 16 GPUs; where an exercise asks for a count, it is about another model and number.
Memory is in GiB here, as in the chapter, and communication in GB.
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
GIB = 2**30


def wrapped(wrap: str, shape: Shape = SHAPE) -> tuple[Unit, ...]:
    """The units of the model, the root first."""
    return units(shape, Sharding(wrap=wrap))


ROOT, BLOCK = wrapped("block")[:2]


def memory(device_kind: str = "cuda", shape: Shape = SHAPE, ranks: int = 16, **sharding) -> FsdpAccount:
    """Memory with one sequence per rank: all-gathers in bf16, gradients reduced in fp32, blocks fully checkpointed."""
    recipe = Recipe(precision="fp32", checkpointing="full")
    cut = Sharding(ranks=ranks, parameter="bf16", **sharding)
    return fsdp_account(shape, 1, shape.max_seq, recipe, cut, device_kind)


def gathered_bytes(unit: Unit, dtype: str) -> int:
    """Bytes of an unsharded unit."""
    return unit.parameters * DTYPES[dtype]


def sent(collective: str, size: float, ranks: int) -> float:
    """Bytes that each of `ranks` sends in a ring; the size is counted as in `collectives.alpha_beta`."""
    return cost(collective, "ring", size, ranks, FAST).sent_bytes


def fsdp_sent(parameters: float, ranks: int, parameter: str = "fp32", reduce: str = "fp32") -> float:
    """Bytes that each rank sends per step with full sharding: two all-gathers and a reduce-scatter."""
    gathered, reduced = parameters * DTYPES[parameter], parameters * DTYPES[reduce]
    return 2 * sent("all_gather", gathered, ranks) + sent("reduce_scatter", reduced, ranks)
