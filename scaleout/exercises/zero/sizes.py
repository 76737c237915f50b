"""The model and the recipe that the exercises of `zero` share, and the bytes of states on a rank."""

from __future__ import annotations

from scaleout.memory.zero import at_rest
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS, total_parameters

SHAPE = PRESETS["llama-3-8b"]
NAME = "Llama 3 8B"
PARAMETERS = total_parameters(SHAPE)
ADAMW = Recipe(precision="bf16-master")  # bf16 weights and gradients; fp32 master copy and moments
BYTES_EACH = "2 + 2 + 12"  # bytes per parameter: weights, gradients, optimizer states


def states_of(stage: int, ranks: int, parameters: int = PARAMETERS, recipe: Recipe = ADAMW) -> dict[str, float]:
    """Bytes of a rank's weights, gradients and optimizer between two steps; the master copy is the optimizer's."""
    kinds = at_rest(parameters, recipe, Layout(dp=ranks, zero=stage))["device"]
    split = {kind: kinds.pop(kind) for kind in ("weights", "gradients")}
    return {**split, "optimizer": sum(kinds.values())}


def total(stage: int, ranks: int, parameters: int = PARAMETERS, recipe: Recipe = ADAMW) -> float:
    """Bytes of all of them."""
    return sum(states_of(stage, ranks, parameters, recipe).values())
