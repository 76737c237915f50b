"""How FSDP shards a model: which modules form a unit that is gathered and freed together, and over which ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

from scaleout.spec import checks
from scaleout.spec.blocks import has_experts, matrices
from scaleout.spec.transformer import Shape, check_timed, norm_parameters, qk_norm_widths
from scaleout.spec.variant import NORMS

WRAPS = ("model", "block", "layer", "size")
DTYPES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Sharding:
    """The choices of an FSDP run (torch's `fully_shard`; Zhao et al. 2023, arXiv 2304.11277).

    ranks: that hold one copy of the model between them, each a shard of every tensor. replicas: such groups; with
        more than one it is hybrid sharding, and the job has ranks * replicas processes.
    wrap: what becomes a unit: the "model" as a whole, each "block", each "layer" (every matrix and table), or, by
        "size", every module that has at least `least_parameters` which no unit inside it has taken. What is left
        is in the root unit.
    reshard: `reshard_after_forward` of every unit but the root: True frees a unit after its forward and gathers it
        again in the backward (ZeRO-3); False keeps it (gradients and optimizer are sharded, ZeRO-2); a number of
        ranks, a divisor of `ranks`, keeps a shard of that smaller group. The root is kept, as torch does by default.
    prefetch: units gathered ahead of the one that computes.
    offload: shards, gradients and the optimizer's state live in the host's memory.
    parameter, reduce: dtype that is gathered and computed in, and dtype that gradients are reduced in
        (`MixedPrecisionPolicy`); stored shards are fp32.

    Raises ValueError, in one line, for values that cannot be.
    """

    ranks: int = 1
    replicas: int = 1
    wrap: str = "block"
    least_parameters: int = 1_000_000
    reshard: bool | int = True
    prefetch: int = 1
    offload: bool = False
    parameter: str = "fp32"
    reduce: str = "fp32"

    def __post_init__(self) -> None:
        for name, least in (("ranks", 1), ("replicas", 1), ("least_parameters", 1), ("prefetch", 0)):
            checks.whole(name, getattr(self, name), least)
        for name, options in (("wrap", WRAPS), ("parameter", tuple(DTYPES)), ("reduce", tuple(DTYPES))):
            checks.one_of(name, getattr(self, name), options)
        checks.flag("offload", self.offload)
        if isinstance(self.reshard, bool):
            return
        if not isinstance(self.reshard, int) or not 1 < self.reshard < self.ranks or self.ranks % self.reshard:
            raise ValueError(
                f"reshard must be True, False or a divisor of {self.ranks} ranks between 1 and that, "
                f"not {self.reshard!r}"
            )

    @property
    def world(self) -> int:
        """Processes of the job."""
        return self.ranks * self.replicas

    @property
    def kept_ranks(self) -> int:
        """Ranks that share a unit between its forward and its backward: 1 where each keeps it whole."""
        return self.ranks if self.reshard is True else 1 if self.reshard is False else self.reshard


@dataclass(frozen=True)
class Unit:
    """What one all-gather brings. `name` is the module's ("blocks.0"), "" for the root.

    tensors: (name, dimensions) of its own parameters, without those of units inside it.
    """

    name: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...]

    @cached_property
    def rows(self) -> list[tuple[int, int, int]]:
        """(first dimension, elements of one of its rows, how many such tensors) of each size there is. Experts, stored
        together, are split by the rows of their matrices, as torchtitan does where they are fewer than ranks."""
        sizes = Counter((prod(size[:-1]), size[-1]) if len(size) == 3 else size for _, size in self.tensors)
        return [(size[0], prod(size[1:]), times) for size, times in sizes.items()]

    @cached_property
    def parameters(self) -> int:
        """Elements of the unit."""
        return sum(rows * columns * times for rows, columns, times in self.rows)

    def shard(self, ranks: int) -> int:
        """Elements that each of `ranks` stores and sends: rows are dealt in equal chunks, the last ones padded.

        `fully_shard` splits every parameter along its first dimension; a rank whose chunk is short pads it, so that
        all messages are equal.
        """
        return sum([-(-rows // ranks) * columns * times for rows, columns, times in self.rows])

    def own(self, ranks: int, rank: int = 0) -> int:
        """Elements that rank `rank` of `ranks` holds without padding; rank 0 has the most."""
        total = 0
        for rows, columns, times in self.rows:
            chunk = -(-rows // ranks)
            total += max(0, min(chunk, rows - rank * chunk)) * columns * times
        return total


def tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Dimensions of every parameter of the book's Transformer by name, in the order of `named_parameters()`. Those of a
    variant are named alike."""
    h = shape.hidden
    sizes: dict[str, tuple[int, ...]] = {"tokens.weight": (shape.vocab, h)}
    if shape.positions == "learned":
        sizes["positions.weight"] = (shape.position_rows, h)
    check_timed(shape)
    norm = ["weight", "bias"][: norm_parameters(shape) // h]
    for i in range(shape.layers):
        block = f"blocks.{i}"
        sizes |= {f"{block}.norm{n + 1}.{kind}": (h,) for n in range(NORMS[shape.features.norms]) for kind in norm}
        for name, width in zip(("q_norm", "k_norm"), qk_norm_widths(shape), strict=False):
            sizes[f"{block}.attention.{name}.weight"] = (width,)
        sizes |= {f"{block}.attention.{name}": size for name, size in _of_heads(shape).items()}
        for matrix in sorted(matrices(shape, has_experts(shape, i)), key=lambda matrix: _MADE.get(matrix.name, 0)):
            several = (matrix.count,) if matrix.count > 1 else ()
            sizes[f"{block}.{matrix.half}.{matrix.name}.weight"] = (*several, matrix.columns, matrix.depth)
            if matrix.bias:
                sizes[f"{block}.{matrix.half}.{matrix.name}.bias"] = (*several, matrix.columns)
    sizes |= {f"norm.{kind}": (h,) for kind in norm}
    if not shape.tied_head:
        sizes["head.weight"] = (shape.vocab, h)
    return sizes


def _of_heads(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Vectors of latent attention's norms, and of scores that no value belongs to."""
    latent = shape.features.latent
    sizes: dict[str, tuple[int, ...]] = {}
    if latent and latent.q_rank:
        sizes["q_down_norm.weight"] = (latent.q_rank,)
    if latent:
        sizes["kv_down_norm.weight"] = (latent.kv_rank,)
    if shape.features.sinks:
        sizes["sinks"] = (shape.heads,)
    return sizes


def units(shape: Shape, sharding: Sharding) -> tuple[Unit, ...]:
    """The units in the order in which the forward pass reaches them, the root first. Every parameter is in one.

    A unit that would have no parameters of its own is left out.
    """
    return _units(shape, sharding.wrap, sharding.least_parameters)


@lru_cache(maxsize=64)
def _units(shape: Shape, wrap: str, least: int) -> tuple[Unit, ...]:
    sizes = tensors(shape)
    if wrap == "size":
        names = _by_size(sizes, least, _root_only(shape))
    else:
        names = {name: _home(name, shape, wrap) for name in sizes}
    grouped: dict[str, list[tuple[str, tuple[int, ...]]]] = {"": []}
    for tensor, unit in names.items():
        grouped.setdefault(unit, []).append((tensor, sizes[tensor]))
    return tuple(Unit(name, tuple(grouped[name])) for name in sorted(grouped, key=_reached) if grouped[name])


_MADE = {"up": 1, "gate": 2, "down": 3}  # the order in which an MLP makes its matrices, behind attention's
_ORDER = ("tokens", "positions", "blocks", "norm1", "attention", "q", "q_down", "q_down_norm", "q_up", "kv_down",
          "kv_down_norm", "kv_up", "k", "v", "q_norm", "k_norm", "sinks", "out", "norm2", "norm3", "mlp", "router",
          "expert_gate", "expert_up", "expert_down", "shared_scale", "shared_gate", "shared_up", "shared_down", "gate",
          "up", "down", "norm4", "norm", "head")  # fmt: skip


def _reached(module: str) -> tuple[int, ...]:
    """Sorts modules as the forward of the book's Transformer reaches them: a module before those inside it. The gate
    runs before `up`, which is made before it: prefetching by the order of making would gather units too late."""
    return tuple(int(part) if part.isdigit() else _ORDER.index(part) for part in module.split(".") if part)


def stand_in_units(shape: Shape, sharding: Sharding, layers: int, middle: int) -> tuple[tuple[Unit, ...], int]:
    """Units of a shorter model of `layers` layers that stands for `shape`, and how many more layers `shape` has. The
    root unit has the tensors of those layers too; the units of block `middle` stand for their units."""
    return _stand_in_units(shape, sharding.wrap, sharding.least_parameters, layers, middle)


@lru_cache(maxsize=64)
def _stand_in_units(shape: Shape, wrap: str, least: int, layers: int, middle: int) -> tuple[tuple[Unit, ...], int]:
    extra = shape.layers - layers
    parts = _units(replace(shape, layers=layers), wrap, least)
    if not extra or parts[0].name:
        return parts, extra
    Tensors = list[tuple[str, tuple[int, ...]]]
    head: Tensors = []
    block: Tensors = []
    tail: Tensors = []
    for tensor in parts[0].tensors:  # in order: which one is last matters to its messages
        (block if tensor[0].startswith(f"blocks.{middle}.") else tail if block else head).append(tensor)
    return (Unit("", (*head, *((1 + extra) * block), *tail)), *parts[1:]), extra


def alike(shape: Shape, sharding: Sharding) -> list[tuple[Unit, int]]:
    """Each unit that differs from the others, and how often the model has it."""
    parts, extra = stand_in_units(shape, sharding, 1, 0)
    return [(unit, 1 + extra * unit.name.startswith("blocks.")) for unit in parts]


def _home(tensor: str, shape: Shape, wrap: str) -> str:
    """The unit of a tensor, for every wrapping but that by size."""
    module = tensor.rpartition(".")[0]
    if wrap == "block" and module.startswith("blocks."):
        return ".".join(module.split(".")[:2])
    if wrap == "layer" and "norm" not in module.rpartition(".")[2] and module not in _root_only(shape):
        return module
    return ""


def _root_only(shape: Shape) -> set[str]:
    """Modules that are never units: a unit is gathered when its module's forward begins. The positions are read as a
    weight, with no forward; tied embeddings are used at both ends; the last norm stays, so that there is a root."""
    return {"positions", "norm"} | ({"tokens"} if shape.tied_head else set())


def _by_size(sizes: dict[str, tuple[int, ...]], least: int, never: set[str]) -> dict[str, str]:
    """From the leaves up, a module becomes a unit once it has `least` parameters that no unit inside it took.

    A list of modules never does: it has no forward of its own. This is FSDP's size-based policy (torch's
    `size_based_auto_wrap_policy`), and the root takes what is left.
    """
    home = dict.fromkeys(sizes, "")
    inside: dict[str, list[str]] = {}
    for name in sizes:
        for i in range(1, name.count(".") + 1):
            inside.setdefault(".".join(name.split(".")[:i]), []).append(name)
    for module in sorted(inside.keys() - {"blocks"} - never, key=lambda name: (-name.count("."), name)):
        free = [name for name in inside[module] if not home[name]]
        if sum(prod(sizes[name]) for name in free) >= least:
            home |= dict.fromkeys(free, module)
    return home
