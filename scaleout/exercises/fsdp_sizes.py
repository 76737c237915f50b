"""The model that the exercises of rung 06 share, its units by wrapping, and what a collective makes each rank send."""

from __future__ import annotations

from scaleout.collectives import cost
from scaleout.exercises.collectives_sizes import FAST
from scaleout.sharding import DTYPES, Sharding, Unit, units
from scaleout.transformer import PRESETS, total_parameters

SHAPE = PRESETS["llama-3-8b"]
NAME = "Llama 3 8B"
PARAMETERS = total_parameters(SHAPE)
BLOCKS = SHAPE.layers


def wrapped(wrap: str) -> tuple[Unit, ...]:
    """The units of the model, the root first."""
    return units(SHAPE, Sharding(wrap=wrap))


ROOT, BLOCK = wrapped("block")[:2]


def whole(unit: Unit, dtype: str) -> int:
    """Bytes of a gathered unit."""
    return unit.parameters * DTYPES[dtype]


def sent(collective: str, size: float, ranks: int) -> float:
    """Bytes that each of `ranks` sends when a ring does the collective; size as `scaleout.collectives` counts it."""
    return cost(collective, "ring", size, ranks, FAST).sent_bytes


def fsdp_sent(parameters: float, ranks: int, parameter: str = "fp32", reduce: str = "fp32") -> float:
    """Bytes that each rank sends in a step of full sharding: gathered twice, reduced once."""
    gathered, reduced = parameters * DTYPES[parameter], parameters * DTYPES[reduce]
    return 2 * sent("all_gather", gathered, ranks) + sent("reduce_scatter", reduced, ranks)
