"""The memory of each rank under ZeRO: states by kind, split by stage, and with offload. `zero_frames` plays a step.

ZeRO (Rajbhandari et al., arXiv 1910.02054, section 5) cuts the parameters into as many shards as ranks; who owns a
shard keeps the states of it. Offload puts an owner's states into its host's memory or on NVMe (ZeRO-Offload, arXiv
2101.06840; ZeRO-Infinity, arXiv 2104.07857). Activations are not split, and are not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from scaleout.memory.optimizers import optimizer_width
from scaleout.memory.states import state_bytes
from scaleout.spec import checks
from scaleout.spec.layout import Layout, alone
from scaleout.spec.muon import matrix_parameters
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import OFFLOADS, PLACES
from scaleout.spec.transformer import Shape, total_parameters

TIERS = ("device", *PLACES)
# The first stage that splits a kind of state: of what is the optimizer's, the first.
FIRST_SPLIT = {"weights": 3, "gradients": 2, "main gradients": 1, "master": 1, "momentum": 1, "variance": 1}


def widths(recipe: Recipe) -> dict[str, float]:
    """Bytes of one parameter by kind, in the order of the picture; the optimizer's kinds after the gradients."""
    checks.instance("recipe", recipe, Recipe)
    gradient_width = recipe.width("gradient")
    sizes = {"weights": recipe.width("weight"), "gradients": recipe.gradient_bytes}
    if recipe.main_gradients == "beside":
        sizes |= {"gradients": gradient_width, "main gradients": recipe.gradient_bytes - gradient_width}
    if recipe.width("master"):
        sizes["master"] = recipe.width("master")
    moments = {"sgd": (), "momentum": ("momentum",)}.get(recipe.optimizer, ("momentum", "variance"))
    return sizes | {name: optimizer_width(recipe) / len(moments) for name in moments}


def splits(kind: str) -> int:
    """The first stage that splits a kind: 3 for weights, 2 for gradients, 1 for what is the optimizer's. ValueError
    that lists the kinds for another."""
    return checks.known("kind of state", kind, FIRST_SPLIT)


def check(
    recipe: Recipe, layout: Layout, keep: bool = False, offload: str = "none", offload_tier: str = "host"
) -> None:
    """Raise ValueError, in one line, for a choice that no program has, or that is not priced here."""
    checks.instance("recipe", recipe, Recipe)
    alone(layout, "dp", "tp", "pp")
    checks.flag("keep", keep)
    checks.one_of("offload", offload, OFFLOADS)
    checks.one_of("offload_tier", offload_tier, PLACES)
    if recipe.adapter != "none":
        raise ValueError(f"adapters are not split here: use adapter none, not {recipe.adapter}")
    if keep and layout.zero < 3:
        raise ValueError(f"keep is about gathered weights: use stage 3, not {layout.zero}")
    if offload == "optimizer" and not layout.zero:
        raise ValueError("offload needs an owner for each shard: use stage 1, 2 or 3")
    if offload == "parameters" and layout.zero < 3:
        raise ValueError(f"offload of parameters needs stage 3, not {layout.zero}: or offload the optimizer alone")
    if offload != "none" and offload_tier == "nvme" and layout.zero < 3:
        raise ValueError(f"offload to NVMe needs stage 3, not {layout.zero}: or offload to the host")


def at_rest(
    parameters: int, recipe: Recipe, layout: Layout, offload: str = "none", offload_tier: str = "host"
) -> dict[str, dict[str, int]]:
    """Bytes that one rank keeps, by tier and kind, as the update finds them: gradients are there.

    With offload the optimizer steps in the host, from gradients that were handed down (ZeRO-Offload, section 4.1);
    before stage 2 the GPU has all of them too. It steps its master copy, or where the recipe has none a copy of the
    weights. offload_tier: where offloaded states lie. ValueError as in `check`.
    """
    check(recipe, layout, offload=offload, offload_tier=offload_tier)
    states, kinds = state_bytes(parameters, recipe, layout), widths(recipe)
    bytes_of = {"weights": states["weights"], "gradients": states["gradients"], "master": states["master"]}
    if "main gradients" in kinds:
        bytes_of["gradients"] = ceil(parameters * kinds["gradients"] / (layout.dp if layout.zero >= 2 else 1))
        bytes_of["main gradients"] = states["gradients"] - bytes_of["gradients"]
    bytes_of["variance"] = states["optimizer"] // 2 if "variance" in kinds else 0
    bytes_of["momentum"] = states["optimizer"] - bytes_of["variance"]
    sizes = {tier: dict.fromkeys(kinds, 0) for tier in TIERS}
    for kind in kinds:
        offloaded = offload == "parameters" or (offload == "optimizer" and kind != "weights")
        sizes[offload_tier if offloaded else "device"][kind] = bytes_of[kind]
    if offload == "optimizer" and "master" not in kinds:
        sizes[offload_tier]["weights"] = ceil(parameters * kinds["weights"] / layout.dp)
    if offload == "optimizer" and layout.zero == 1:  # every rank has all gradients on its GPU, and hands down its own
        sizes["device"]["gradients"] = bytes_of["gradients"]
        sizes[offload_tier]["gradients"] = ceil(parameters * kinds["gradients"] / layout.dp)
    return sizes


def dealt(sizes: Sequence[int], ranks: int) -> list[int]:
    """The owner of each tensor where tensors are dealt out whole: the largest first, to the rank with the least so far.

    As torch's ZeroRedundancyOptimizer does it (_partition_parameters), which cuts none: a rank with a large table has
    more than an n-th. sizes: elements of each.
    """
    checks.whole("ranks", ranks)
    checks.instance("sizes", sizes, Sequence)
    for size in sizes:
        checks.whole("each size", size, 0)
    rank_elements = [0] * min(ranks, len(sizes))  # of more ranks than tensors the last get none
    owner = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owner[i] = rank_elements.index(min(rank_elements))
        rank_elements[owner[i]] += sizes[i]
    return owner


def muon_bytes(shape: Shape, recipe: Recipe, layout: Layout) -> dict[str, int]:
    """Bytes of the optimizer's state on one rank where Muon steps the blocks' matrices and AdamW the rest: "momentum"
    of all parameters, "variance" of the rest alone. recipe: its precision; split evenly from stage 1."""
    check(recipe, layout)
    checks.instance("shape", shape, Shape)
    width = recipe.width("master") or recipe.width("weight")
    total, share = total_parameters(shape), layout.dp if layout.zero else 1
    adamw_parameters = total - matrix_parameters(shape)
    return {"momentum": ceil(total * width / share), "variance": ceil(adamw_parameters * width / share)}


def fullest(
    parameters: int,
    recipe: Recipe,
    layout: Layout,
    unit: int,
    keep: bool = False,
    offload: str = "none",
    offload_tier: str = "host",
) -> tuple[str, dict[str, dict[str, int]]]:
    """The fullest moment of a step for states, and its bytes by tier and kind: the backward, in what all programs do.

    unit: parameters that are gathered or reduced at once (a block; a bucket). They lie in a buffer of their own beside
    the shards: the weights whole in stage 3 (all of the model, if kept), the gradients whole from stage 2. One rank
    has no such buffers, but for weights that come from the host.
    """
    check(recipe, layout, keep, offload, offload_tier)
    checks.whole("parameters", parameters)
    checks.whole("unit", unit)
    if unit > parameters:
        raise ValueError(f"unit {unit} is more than all {parameters} parameters")
    sizes, kinds = at_rest(parameters, recipe, layout, offload, offload_tier), widths(recipe)
    device = sizes["device"]
    if layout.zero == 3 and (layout.dp > 1 or offload == "parameters"):
        device["weights"] += ceil((parameters if keep else unit) * kinds["weights"])
    if layout.zero >= 2 and (layout.dp > 1 or offload != "none"):
        device["gradients"] += ceil(unit * kinds["gradients"])
    return "backward", sizes
