"""The memory of each parameter through the whole step: weights, master copies, gradients, optimizer states."""

from __future__ import annotations

from math import ceil

from scaleout.spec import checks
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.slices import block_parameters, check_tensor, slice_linears, table_parameters
from scaleout.spec.transformer import Shape, norm_parameters, qk_norm_widths
from scaleout.spec.variant import NORMS

STATES = ("weights", "master", "gradients", "optimizer")

# NF4 with double quantization: 4 bits, an 8-bit scale for each 64 weights, and an fp32 scale for each 256 of
# those: 4 + 8/64 + 32/(64*256) bits. Dettmers et al. 2023 (arXiv 2305.14314), section 3.
NF4_BYTES = (4 + 8 / 64 + 32 / (64 * 256)) / 8

# One byte for each moment and an fp32 scale for each block of values. Dettmers et al. 2022 (arXiv 2110.02861),
# section 2.1: blocks of 2048.
EIGHT_BIT_BYTES = 1 + 4 / 2048


def check_layout(shape: Shape, layout: Layout) -> None:
    """Raise ValueError unless the layout's degrees divide the shape's heads, key-value heads, MLP and layers."""
    check_tensor(shape, layout.tp)
    if shape.layers % layout.pp:
        nearest = checks.nearest(layout.pp, checks.divisors(shape.layers))
        raise ValueError(f"pp {layout.pp} does not divide {shape.layers} layers: the nearest that works is {nearest}")
    if shape.layers % layout.stages:
        rank_layers = shape.layers // layout.pp
        nearest = checks.nearest(layout.chunks, checks.divisors(rank_layers))
        raise ValueError(
            f"chunks {layout.chunks} does not divide {rank_layers} layers of a rank: the nearest is {nearest}"
        )


def adapter_parameters(shape: Shape, recipe: Recipe, tp: int = 1) -> int:
    """Trained parameters of one block's low-rank adapters: rank x (inputs + outputs) for each matrix."""
    if recipe.adapter == "none":
        return 0
    return sum(recipe.adapter_rank * (a + b) for a, b in slice_linears(shape, tp).values())


def rank_parameters(shape: Shape, layout: Layout, stage: int = 0) -> int:
    """Model parameters on one rank of a pipeline stage, before ZeRO. A tied head is copied to the last stage."""
    blocks = shape.layers // layout.pp * block_parameters(shape, layout.tp)
    return blocks + sum(table_parameters(shape, layout, stage).values())


def optimizer_width(recipe: Recipe) -> float:
    """Bytes of optimizer state for one trained parameter."""
    width = recipe.width("master") or recipe.width("weight")
    return {"sgd": 0, "momentum": width, "adamw": 2 * width, "adamw-8bit": 2 * EIGHT_BIT_BYTES}[recipe.optimizer]


def state_bytes(parameters: int, recipe: Recipe, layout: Layout) -> dict[str, int]:
    """Bytes of weights, master, gradients and optimizer on one rank that holds and trains `parameters` of them.

    ZeRO divides over the replicas: from stage 1 the master copy and the optimizer's state, from 2 the gradients,
    from 3 the weights (arXiv 1910.02054, section 5). With bf16-master and AdamW this is the paper's 2 + 2 + 12.
    """
    checks.whole("parameters", parameters, 0)
    share = {
        name: layout.replicas if layout.zero >= stage else 1
        for name, stage in (("weights", 3), ("master", 1), ("gradients", 2), ("optimizer", 1))
    }
    parameter_bytes = {
        "weights": recipe.width("weight"),
        "master": recipe.width("master"),
        "gradients": recipe.gradient_bytes,
        "optimizer": optimizer_width(recipe),
    }
    sizes = {name: ceil(parameters * parameter_bytes[name] / share[name]) for name in STATES}
    if recipe.main_gradients == "beside":  # the fp32 ones belong to the optimizer, and are split with it
        width, main = recipe.width("gradient"), 4
        sizes["gradients"] = ceil(parameters * width / share["gradients"]) + ceil(
            parameters * main / share["optimizer"]
        )
    return sizes


def frozen_bytes(shape: Shape, recipe: Recipe, layout: Layout, stage: int) -> int:
    """Bytes of the weights under an adapter: in the compute dtype; for QLoRA the blocks' matrices in NF4."""
    total, layers = rank_parameters(shape, layout, stage), shape.layers // layout.pp
    quantized = 0
    if recipe.adapter == "qlora":
        quantized = layers * sum(a * b for a, b in slice_linears(shape, layout.tp).values())
    size = (total - quantized) * recipe.width("compute") + quantized * NF4_BYTES
    return ceil(size / (layout.replicas if layout.zero == 3 else 1))


def bucket_width(recipe: Recipe, layout: Layout) -> int:
    """Bytes for each trained parameter of DDP's buckets where they stand beside the gradients. From ZeRO's stage 2
    there are none, because gradients are reduced into shards."""
    beside = recipe.buckets == "beside" and (layout.zero < 2 or layout.replicas == 1)
    return recipe.width("gradient") if beside else 0


def bucket_bytes(shape: Shape, recipe: Recipe, layout: Layout, stage: int = 0) -> int:
    """Bytes of those buckets on one rank of a pipeline stage."""
    return trained_parameters(shape, recipe, layout, stage) * bucket_width(recipe, layout)


def trained_parameters(shape: Shape, recipe: Recipe, layout: Layout, stage: int = 0) -> int:
    """Parameters with a gradient on one rank of a pipeline stage: all, or the adapters'."""
    if recipe.adapter == "none":
        return rank_parameters(shape, layout, stage)
    return shape.layers // layout.pp * adapter_parameters(shape, recipe, layout.tp)


def states(shape: Shape, recipe: Recipe, layout: Layout, stage: int = 0) -> dict[str, int]:
    """Bytes of each state on one rank of a pipeline stage; DDP's buckets are gradients."""
    sizes = state_bytes(trained_parameters(shape, recipe, layout, stage), recipe, layout)
    sizes["gradients"] += bucket_bytes(shape, recipe, layout, stage)
    if recipe.adapter != "none":
        sizes["weights"] += frozen_bytes(shape, recipe, layout, stage)
    return sizes


def tensor_sizes(shape: Shape, recipe: Recipe, layout: Layout) -> list[int]:
    """Elements of each trained tensor on one rank, in the order of `Transformer.parameters()`; not split by ZeRO."""
    pairs = slice_linears(shape, layout.tp)
    names = [name for name in ("q", "k", "v", "out", "up", "gate", "down") if name in pairs]
    if recipe.adapter != "none":
        rank = recipe.adapter_rank
        return [rank * side for name in names for side in pairs[name]] * (shape.layers // layout.pp)
    norm = [shape.hidden] * (2 if norm_parameters(shape) > shape.hidden else 1)
    block = norm * NORMS[shape.features.norms] + list(qk_norm_widths(shape, layout.tp))
    for name in names:
        a, b = pairs[name]
        block += [a * b] + ([b] if shape.has_bias(name) else [])
    table = [ceil(shape.vocab / layout.tp) * shape.hidden]
    positions = [shape.position_rows * shape.hidden] if shape.position_rows else []
    blocks = block * (shape.layers // layout.pp)
    return table + positions + blocks + norm + ([] if shape.tied_head else table)
