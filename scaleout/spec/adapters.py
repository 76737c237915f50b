"""Low-rank adapters: which matrices have one, their parameters, and the bytes of the weights under them."""

from __future__ import annotations

from functools import lru_cache

from scaleout.spec.blocks import Matrix, kinds, matrices
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape

# NF4: 4 bits and a scale for each 64 weights, in fp32 or, with double quantization, in 8 bits with an fp32 scale for
# each 256 of those: 4 + 8/64 + 32/(64*256) bits. Dettmers et al. 2023 (arXiv 2305.14314), section 3; bitsandbytes 0.50,
# functional.py, quantize_4bit.
NF4_BYTES = (4 + 8 / 64 + 32 / (64 * 256)) / 8
NF4_SINGLE_BYTES = (4 + 32 / 64) / 8

# What the matrices of latent attention and of shared experts are called among an adapter's targets.
ALIAS = {"q_down": "q", "q_up": "q", "kv_down": "k", "kv_up": "k", "shared_gate": "gate", "shared_up": "up",
         "shared_down": "down"}  # fmt: skip


def nf4_bytes(recipe: Recipe) -> float:
    """Bytes of a weight that is stored in four bits."""
    return NF4_BYTES if recipe.double_quantization else NF4_SINGLE_BYTES


def gradient_bytes(recipe: Recipe) -> int:
    """Bytes of stored gradient for one trained parameter, of the weights or of adapters."""
    adapts = recipe.adapter != "none" and recipe.main_gradients == "none"
    return recipe.adapter_bytes if adapts else recipe.gradient_bytes


def linear(matrix: Matrix) -> bool:
    """Whether a matrix is a linear layer of its own. transformers has experts and routers as parameters, which PEFT's
    "all-linear" and bitsandbytes leave as they are."""
    return matrix.name not in ("router", "shared_scale") and not matrix.name.startswith("expert_")


@lru_cache(maxsize=256)
def adapted(shape: Shape, recipe: Recipe, experts: bool = False, tp: int = 1) -> tuple[Matrix, ...]:
    """The matrices of a layer with an adapter, on one of tp ranks."""
    if recipe.adapter == "none":
        return ()
    rank = matrices(shape, experts, tp)
    return tuple(m for m in rank if linear(m) and ALIAS.get(m.name, m.name) in recipe.targets)


@lru_cache(maxsize=256)
def stored_in_4_bits(shape: Shape, recipe: Recipe, experts: bool = False, tp: int = 1) -> tuple[Matrix, ...]:
    """The matrices of a layer whose weights are in NF4: under QLoRA all linear layers, whether they have an adapter or
    not."""
    if recipe.adapter != "qlora":
        return ()
    return tuple(filter(linear, matrices(shape, experts, tp)))


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
    """Weights of the mean layer that are stored in NF4, on a rank."""
    each = [(kind.layers, stored_in_4_bits(shape, recipe, kind.experts, tp)) for kind in kinds(shape)]
    return sum(layers * sum(m.elements for m in rank) for layers, rank in each) / shape.layers
