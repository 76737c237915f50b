"""The memory of each parameter through the whole step: weights, master copies, gradients, optimizer states."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from scaleout.memory import optimizers
from scaleout.memory.optimizers import Trained, optimizer_width
from scaleout.spec import checks
from scaleout.spec.adapters import nf4_bytes
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import MATRICES, Recipe
from scaleout.spec.sharding import tensors
from scaleout.spec.slices import block_parameters, check_tensor, slice_linears, table_parameters
from scaleout.spec.transformer import Shape, norm_parameters, qk_norm_widths
from scaleout.spec.variant import NORMS

STATES = ("weights", "master", "gradients", "optimizer")


# Families of transformers whose modules have one linear layer for several matrices, by `Variant.family`.
QKV, GATE_UP = ("q", "k", "v"), ("gate", "up")
FUSED = {"gpt2": (QKV,), "gpt_neox": (QKV,), "falcon": (QKV,), "phi3": (QKV, GATE_UP), "glm": (GATE_UP,)}


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


def check_experts(shape: Shape, recipe: Recipe) -> None:
    """ValueError, in one line, for what is not priced of models with experts."""
    if not shape.features.experts:
        return
    for wrong, what in (
        (recipe.adapter != "none", "adapters: train all weights"),
        (recipe.attention == "flash" and shape.features.sinks, "flash-attn with sinks"),
        (recipe.optimizer in ("adafactor", "muon"), recipe.optimizer),
    ):
        if wrong:
            raise ValueError(f"the memory of a model with experts is not priced with {what}")


def adapter_shapes(shape: Shape, recipe: Recipe, tp: int = 1) -> list[tuple[int, int]]:
    """Dimensions of one block's adapters: a rank x inputs and an outputs x rank matrix for each target."""
    if recipe.adapter == "none":
        return []
    check_experts(shape, recipe)
    pairs, rank = slice_linears(shape, tp), recipe.adapter_rank
    wanted = [names for names in _linears(shape, recipe) if set(names) <= set(recipe.targets) & pairs.keys()]
    if not wanted:
        raise ValueError(f"adapter_targets {recipe.adapter_targets} are no matrices of this model: use all")
    sides = [(pairs[names[0]][0], sum(pairs[name][1] for name in names)) for names in wanted]
    return [size for a, b in sides for size in ((rank, a), (b, rank))]


def _linears(shape: Shape, recipe: Recipe) -> list[tuple[str, ...]]:
    """The linear layers of a block, each of one matrix or of several."""
    family = shape.features.family or ("" if shape.gated_mlp else "gpt2")
    fused = FUSED.get(family, ()) if recipe.operations in ("transformers", "liger") else ()
    alone = [(name,) for name in MATRICES if not any(name in names for names in fused)]
    return [*fused, *alone]


def adapter_parameters(shape: Shape, recipe: Recipe, tp: int = 1) -> int:
    """Trained parameters of one block's low-rank adapters: rank x (inputs + outputs) for each target."""
    return sum(map(prod, adapter_shapes(shape, recipe, tp)))


def rank_parameters(shape: Shape, layout: Layout, stage: int = 0) -> int:
    """Model parameters on one rank of a pipeline stage, before ZeRO. A tied head is copied to the last stage."""
    blocks = shape.layers // layout.pp * block_parameters(shape, layout.tp)
    return blocks + sum(table_parameters(shape, layout, stage).values())


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
    adapts = recipe.adapter != "none"
    parameter_bytes = {
        "weights": recipe.adapter_bytes if adapts else recipe.width("weight"),
        "master": recipe.width("master"),
        "gradients": recipe.gradient_bytes if recipe.main_gradients != "none" or not adapts else recipe.adapter_bytes,
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
    """Bytes of the weights under an adapter: in the compute dtype; for QLoRA the blocks' matrices in NF4 and the rest
    as the recipe says."""
    total, layers = rank_parameters(shape, layout, stage), shape.layers // layout.pp
    quantized, rest = 0, recipe.width("compute")
    if recipe.adapter == "qlora":
        quantized = layers * sum(a * b for a, b in slice_linears(shape, layout.tp).values())
        if recipe.operations == "lit-gpt":
            quantized += table_parameters(shape, layout, stage)["head"]
        rest = 4 if recipe.unquantized == "fp32" else rest
    size = (total - quantized) * rest + quantized * nf4_bytes(recipe)
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
    """Bytes of each state on one rank of a pipeline stage; DDP's buckets are gradients. Released gradients are as many
    as the largest tensor's."""
    sizes = state_bytes(trained_parameters(shape, recipe, layout, stage), recipe, layout)
    trained = tensor_shapes(shape, recipe, layout, stage)
    if recipe.optimizer in optimizers.BY_TENSOR:
        sizes["optimizer"] = ceil(optimizers.stored(trained, recipe) / (layout.replicas if layout.zero else 1))
    if recipe.gradients == "released":
        sizes["gradients"] = max(trained.elements) * recipe.gradient_bytes
    sizes["gradients"] += bucket_bytes(shape, recipe, layout, stage)
    if recipe.adapter != "none":
        sizes["weights"] += frozen_bytes(shape, recipe, layout, stage)
    return sizes


def paged_bytes(shape: Shape, recipe: Recipe, layout: Layout, stage: int = 0) -> int:
    """Bytes of the optimizer's state that CUDA can move to the host's memory."""
    if not recipe.paged:
        return 0
    large = tensor_shapes(shape, recipe, layout, stage).from_elements(optimizers.PAGED_FROM)
    return ceil(optimizers.stored(large, recipe) / (layout.replicas if layout.zero else 1))


def tensor_shapes(shape: Shape, recipe: Recipe, layout: Layout, stage: int | None = None) -> Trained:
    """Dimensions of each trained tensor on one rank of a pipeline stage; not split by ZeRO. None: of a model that is
    not cut into stages."""
    layers = shape.layers // layout.pp
    if recipe.adapter != "none":
        return Trained([], adapter_shapes(shape, recipe, layout.tp) * layers, [])
    norm: list[tuple[int, ...]] = [(shape.hidden,)] * (2 if norm_parameters(shape) > shape.hidden else 1)
    if shape.features.experts:
        blocks = _experts_tensors(replace(shape, layers=layers))
    else:
        blocks = _block_tensors(shape, norm, layout.tp) * layers
    first, last = stage in (None, 0), stage in (None, layout.last_rank)
    table: list[tuple[int, ...]] = [(ceil(shape.vocab / layout.tp), shape.hidden)]
    positions: list[tuple[int, ...]] = [(shape.position_rows, shape.hidden)] if shape.position_rows else []
    head = [] if shape.tied_head and first else table
    return Trained((table + positions) * first, blocks, (norm + head) * last)


def _block_tensors(shape: Shape, norm: list[tuple[int, ...]], tp: int) -> list[tuple[int, ...]]:
    """Dimensions of the trained tensors of a block."""
    pairs = slice_linears(shape, tp)
    block = norm * NORMS[shape.features.norms] + [(width,) for width in qk_norm_widths(shape, tp)]
    for name in ("q", "k", "v", "out", "up", "gate", "down"):
        if name in pairs:
            a, b = pairs[name]
            block += [(b, a)] + ([(b,)] if shape.has_bias(name) else [])
    return block


def _experts_tensors(shape: Shape) -> list[tuple[int, ...]]:
    """Dimensions of the trained tensors of all blocks of a model with experts. transformers has the
    gates and the up-projections of a layer's experts in one tensor, and the down-projections in another."""
    found: list[tuple[int, ...]] = []
    for name, size in tensors(shape).items():
        part = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
        if name.startswith("blocks.") and part != "expert_gate":
            doubled = part == "expert_up" and shape.gated_mlp
            found.append((size[0], 2 * size[1], *size[2:]) if doubled else size)
    return found


def tensor_sizes(shape: Shape, recipe: Recipe, layout: Layout) -> list[int]:
    """Elements of each trained tensor on one rank, in the order of `Transformer.parameters()`."""
    return tensor_shapes(shape, recipe, layout).elements
