"""The layers of a model by kind, and the matrices of each kind on one tensor-parallel rank.

Layers of one model may differ: in the tokens that attention looks back over, and in having experts or a dense MLP. All
doors count a layer as the mean over the model's kinds, so that every stage of a pipeline has the same share of each.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

from scaleout.spec.transformer import Shape, attention_matrices, mlp_matrices, vector_parameters

ROW_PARALLEL = ("out", "down", "expert_down", "shared_down")  # split along the input, so the bias stays whole
# Whole on each rank: the small matrices before latent attention's heads (Megatron-LM, core/transformer/
# multi_latent_attention.py: "duplicated"), routers, and the one number that scales the shared experts.
WHOLE = ("q_down", "kv_down", "router", "shared_scale")

EVEN = 64  # ranks that can share the mean of layers with experts and without


@dataclass(frozen=True)
class Kind:
    """So many layers that are alike. window: tokens that attention looks back over, None for all before; experts:
    whether their MLP is experts."""

    layers: int
    window: int | None = None
    experts: bool = False

    def holds(self, shape: Shape, layer: int) -> bool:
        """Whether a layer of the model is of this kind."""
        return (window_of(shape, layer), has_experts(shape, layer)) == (self.window, self.experts)


@dataclass(frozen=True)
class Matrix:
    """One matrix of a layer on one rank, or `count` experts' matrices of one size, of which each token passes through
    `active`. half: "attention" or "mlp". reads: what it multiplies; matrices that read the same may be one
    multiplication. bias: numbers of it on the rank."""

    name: str
    half: str
    depth: int
    columns: int
    reads: str
    bias: int = 0
    count: int = 1
    active: int = 1

    @property
    def elements(self) -> int:
        """Of all of them, without biases."""
        return self.count * self.depth * self.columns


def has_experts(shape: Shape, layer: int) -> bool:
    """Whether a layer's MLP is experts."""
    experts = shape.features.experts
    return experts is not None and layer not in experts.dense


def window_of(shape: Shape, layer: int) -> int | None:
    """Tokens that a layer's attention looks back over, None for all."""
    features = shape.features
    return None if layer in features.global_layers else features.window


def of_layers(shape: Shape, layers: int) -> Shape:
    """A model of so many layers; of one with experts they all have them, if any has."""
    experts = shape.features.experts
    if experts is None or len(experts.dense) == shape.layers:
        return replace(shape, layers=layers)
    variant = replace(shape.features, experts=replace(experts, dense=()))
    return replace(shape, layers=layers, variant=variant)


def kinds(shape: Shape) -> tuple[Kind, ...]:
    """The kinds of a model's layers, the most frequent first."""
    return (Kind(shape.layers),) if shape.variant is None else _kinds(shape)


@lru_cache(maxsize=256)
def _kinds(shape: Shape) -> tuple[Kind, ...]:
    counts = Counter((window_of(shape, layer), has_experts(shape, layer)) for layer in range(shape.layers))
    return tuple(Kind(layers, *kind) for kind, layers in counts.most_common())


@lru_cache(maxsize=256)
def matrices(shape: Shape, experts: bool = False, tp: int = 1) -> tuple[Matrix, ...]:
    """The matrices of a layer on one of tp ranks, in the order of the forward: Megatron's split (arXiv 1909.08053), of
    each expert as of a dense MLP. With more ranks than key-value heads a head is copied rather than cut."""
    found = [
        _cut(shape, tp, "attention", name.replace(" ", "_"), size, _reads(name), name)
        for name, size in attention_matrices(shape).items()
    ]
    return (*found, *(_expert_matrices(shape, tp) if experts else _mlp(shape, tp, shape.h_ff, "")))


def _mlp(shape: Shape, tp: int, ff: int, prefix: str, **counts: int) -> list[Matrix]:
    sizes = mlp_matrices(shape, ff)
    order = [name for name in ("gate", "up", "down") if name in sizes]
    reads = {"down": f"{prefix}activated"}
    biased = prefix != "shared_"
    return [
        _cut(shape, tp, "mlp", prefix + name, sizes[name], reads.get(name, f"{prefix}mlp input"), name * biased, counts)
        for name in order
    ]


def _expert_matrices(shape: Shape, tp: int) -> list[Matrix]:
    experts, h = shape.features.experts, shape.hidden
    assert experts is not None
    found = [_cut(shape, tp, "mlp", "router", (h, experts.count), "router input", "router")]
    found += _mlp(shape, tp, experts.ff, "expert_", count=experts.count, active=experts.active)
    if experts.shared_gate:
        found.append(_cut(shape, tp, "mlp", "shared_scale", (h, 1), "router input", ""))
    return found + (_mlp(shape, tp, experts.shared_ff, "shared_") if experts.shared_ff else [])


def _reads(name: str) -> str:
    """What a matrix of attention multiplies: the layer's input, but for the second of two and the last."""
    return {"q up": "q_down", "kv up": "kv_down", "out": "heads"}.get(name, "attention input")


def _cut(
    shape: Shape, tp: int, half: str, name: str, size: tuple[int, int], reads: str, biased: str, counts=None
) -> Matrix:
    a, b = size
    if name in ROW_PARALLEL:
        a //= tp
    elif name in ("k", "v"):
        b = max(1, shape.kv // tp) * shape.d
    elif name not in WHOLE:
        b //= tp
    bias = b if biased and shape.has_bias(biased) else 0
    return Matrix(name, half, a, b, reads, bias, **(counts or {}))


@lru_cache(maxsize=256)
def layer_elements(shape: Shape, tp: int = 1) -> dict[str, float]:
    """Elements of the matrices of the model's mean layer on a rank, by name, without biases."""
    totals: dict[str, float] = {}
    for kind in kinds(shape):
        for matrix in matrices(shape, kind.experts, tp):
            totals[matrix.name] = totals.get(matrix.name, 0) + kind.layers * matrix.elements
    return {name: total / shape.layers for name, total in totals.items()}


@lru_cache(maxsize=256)
def layers_parameters(shape: Shape, tp: int = 1) -> int:
    """Parameters of all layers on one of tp ranks; norms and the biases of matrices cut by rows are whole."""
    total = shape.layers * vector_parameters(shape, tp)
    for kind in kinds(shape):
        rank = matrices(shape, kind.experts, tp)
        total += kind.layers * sum(matrix.elements + matrix.count * matrix.bias for matrix in rank)
    return total


def dense(shape: Shape) -> Shape:
    """A model whose activations and their communication are those of a model with experts or latent attention: an MLP
    as wide as all experts that a token passes through, and heads of their own keys and values."""
    return shape if shape.variant is None else _dense(shape)


@lru_cache(maxsize=256)
def _dense(shape: Shape) -> Shape:
    features = shape.features
    experts, latent = features.experts, features.latent
    changes: dict = {}
    if experts:
        wide = experts.active * experts.ff + experts.shared_ff
        alike = kinds(shape)
        mean = sum(kind.layers * (wide if kind.experts else shape.h_ff) for kind in alike) / shape.layers
        changes["ff"] = wide if all(kind.experts for kind in alike) else max(1, round(mean / EVEN)) * EVEN
    if latent:
        changes |= {"head_dim": latent.nope + latent.rope, "kv_heads": shape.heads}
    return replace(shape, **changes, variant=replace(features, experts=None, latent=None)) if changes else shape
