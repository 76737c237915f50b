"""Low-rank adapters: which matrices have one, their parameters, and the bytes of the weights under them."""

from __future__ import annotations

from functools import lru_cache

from scaleout.spec.blocks import Matrix, kinds, matrices
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape

# A 4-bit code, and for every 64 weights a scale in 8 bits, itself scaled by an fp32 number for every 256: QLoRA's
# double quantization, 0.127 bits for each weight (arXiv 2305.14314, section 3).
NF4_BYTES = (4 + 8 / 64 + 32 / (64 * 256)) / 8


@lru_cache(maxsize=256)
def adapted(shape: Shape, recipe: Recipe, experts: bool = False, tp: int = 1) -> tuple[Matrix, ...]:
    """The matrices of a layer with an adapter, on one of tp ranks. transformers has experts and routers as parameters,
    which are no linear layers: PEFT's "all-linear" leaves them as they are."""
    if recipe.adapter == "none":
        return ()
    return tuple(m for m in matrices(shape, experts, tp) if m.name != "router" and not m.name.startswith("expert_"))


@lru_cache(maxsize=256)
def adapter_parameters(shape: Shape, recipe: Recipe, tp: int = 1) -> float:
    """Trained parameters of the mean layer's adapters on a rank: rank x (inputs + outputs) for each matrix."""
    total = sum(
        kind.layers * recipe.adapter_rank * sum(m.depth + m.columns for m in adapted(shape, recipe, kind.experts, tp))
        for kind in kinds(shape)
    )
    return total / shape.layers


@lru_cache(maxsize=256)
def quantized(shape: Shape, recipe: Recipe, tp: int = 1) -> float:
    """Weights of the mean layer that are stored in NF4, on a rank: those under QLoRA's adapters."""
    if recipe.adapter != "qlora":
        return 0.0
    each = (kind.layers * sum(m.elements for m in adapted(shape, recipe, kind.experts, tp)) for kind in kinds(shape))
    return sum(each) / shape.layers
