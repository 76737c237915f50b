"""The sizes that the exercises of `memory` share, all from the memory model."""

from __future__ import annotations

from functools import cache

from scaleout.memory.accounts import account
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS, total_parameters

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
PRECISIONS = ("fp32", "bf16", "bf16-master")
OPTIMIZERS = ("sgd", "momentum", "adamw")


@cache
def per_parameter(precision: str, optimizer: str) -> dict[str, float]:
    """Bytes that one trained parameter costs, by kind of state."""
    shape = PRESETS["llama-2-7b"]
    kinds = account(shape, 1, 1, Recipe(precision=precision, optimizer=optimizer)).states
    # Rounded: AdamW's step counters, one number for each tensor, are no cost of a parameter.
    return {kind: round(size / total_parameters(shape), 3) for kind, size in kinds.items()}


def states(precision: str, optimizer: str) -> float:
    """Bytes of all states of one parameter."""
    return sum(per_parameter(precision, optimizer).values())
