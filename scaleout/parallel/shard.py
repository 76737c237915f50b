"""A `Sharding` in torch: `fully_shard` (FSDP2) by the units of scaleout.spec.sharding, and a look at what was really
built.

Equal losses do not show that anything was sharded: a model that every rank trains whole has them too. So `built` reads
the module's own state, and `assert_built` compares it with what was asked for, shard by shard.
"""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from scaleout.parallel import private
from scaleout.spec.sharding import Sharding, units

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def mesh(s, sharding: Sharding) -> DeviceMesh:
    """The ranks as `fully_shard` wants them: ("shard",), or ("replicate", "shard") for hybrid sharding.

    s: a lab.session.Session. Neighbouring ranks share a copy of the model, so that its gathers stay on one node. A
    session of one process has no process group, and `fully_shard` needs one: a group of this process alone is made,
    which lab.session ends like any other. ValueError where the processes are not ranks * replicas.
    """
    if s.world != sharding.world:
        raise ValueError(
            f"{sharding.ranks} rank(s) x {sharding.replicas} replica(s) are {sharding.world} process(es), "
            f"and this job has {s.world}: use --replicas that divides {s.world}"
        )
    if not dist.is_initialized():
        on_gpu = s.device.type == "cuda"
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=dist.HashStore(),
            rank=0,
            world_size=1,
            **({"device_id": s.device} if on_gpu else {}),
        )
    if sharding.replicas == 1:
        return init_device_mesh(s.device.type, (sharding.ranks,), mesh_dim_names=("shard",))
    return init_device_mesh(s.device.type, (sharding.replicas, sharding.ranks), mesh_dim_names=("replicate", "shard"))


def policies(s, sharding: Sharding) -> tuple[MixedPrecisionPolicy, OffloadPolicy]:
    """What `fully_shard` is told of dtypes, and of where the shards live. Pages are pinned where a GPU copies them."""
    mixed = sharding.parameter != "fp32" or sharding.reduce != "fp32"
    precision = MixedPrecisionPolicy(
        param_dtype=DTYPES[sharding.parameter] if sharding.parameter != "fp32" else None,
        reduce_dtype=DTYPES[sharding.reduce] if mixed else None,
    )
    return precision, CPUOffloadPolicy(pin_memory=s.device.type == "cuda") if sharding.offload else OffloadPolicy()


def shard(s, model: nn.Module, sharding: Sharding, device_mesh: DeviceMesh | None = None) -> nn.Module:
    """Shard the book's Transformer in place, unit by unit, and return it. Make the optimizer after this.

    device_mesh: else `mesh(s, sharding)`. `fully_shard` gives a module those of its parameters that no module inside it
    has taken: the deepest units come first, the root last. It is left to `reshard_after_forward=None`, with which
    torch keeps the root's parameters and frees everyone else's.
    """
    # torch warns of in-place sums on what a unit returns; the book's blocks add out of place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    device_mesh = mesh(s, sharding) if device_mesh is None else device_mesh
    precision, offload = policies(s, sharding)
    names = [unit.name for unit in units(model.shape, sharding)]
    for name in sorted(names, key=lambda name: -name.count(".") - bool(name)):
        fully_shard(
            model.get_submodule(name),
            mesh=device_mesh,
            mp_policy=precision,
            offload_policy=offload,
            reshard_after_forward=sharding.reshard if name else None,
        )
    prefetch(model, names, sharding.prefetch)
    if s.device.type == "cpu":
        private.gather_beside_compute(model, True)  # no streams here: it does only if asked to
    return model


def prefetch(model: nn.Module, names: list[str], depth: int) -> None:
    """Every unit gathers the next `depth` units when it begins: in the forward those after it, in the backward those
    before it. names: of the units in forward order, the root first.

    The root stays gathered, so nobody prefetches it in the backward. A list with the unit itself asks for what is
    there already: an empty list would leave torch its default, which is to gather one ahead.
    """
    modules = [model.get_submodule(name) for name in names]
    for i, module in enumerate(modules):
        module.set_modules_to_forward_prefetch(modules[i + 1 : i + 1 + depth])
        later = modules[1:] if i == 0 else modules[1:i]
        module.set_modules_to_backward_prefetch(later[::-1][:depth] or [module])


# --- what was built ---------------------------------------------------------------------------------------------


def built(model: nn.Module) -> dict:
    """What was really built, from the model's own state: plain numbers and strings, for a Record or a comparison.

    "units": {name of the module: elements that this rank holds}; "shard_bytes", "whole_bytes": of this rank's
    parameters, and of all ranks' together; "mesh": {dimension: ranks}; "parameter", "reduce": dtypes; "reshard":
    True, False or the ranks that keep a copy between forward and backward, of the units below the root; "prefetch":
    units gathered ahead; "offload"; "unsharded": names of parameters that no unit holds.
    """
    modules = {name: module for name, module in model.named_modules() if isinstance(module, FSDPModule)}
    groups = {name: group for name, module in modules.items() if (group := private.group(module)) is not None}
    parameters = dict(model.named_parameters())
    local = {name: p.to_local() if isinstance(p, DTensor) else p for name, p in parameters.items()}
    width = lambda tensors: sum(t.numel() * t.element_size() for t in tensors.values())  # noqa: E731
    first = next(iter(groups.values()), None)
    groups_below = [group for name, group in groups.items() if name]
    return {
        "kinds": sorted({type(module).__name__ for module in modules.values()}),
        "units": {name: private.shard_elements(group) for name, group in groups.items()},
        "shard_bytes": width(local),
        "whole_bytes": width(parameters),
        "mesh": {} if first is None else _dimensions(first.mesh_info.mesh),
        "parameter": _dtype(first and first.mp_policy.param_dtype),
        "reduce": _dtype(first and (first.mp_policy.reduce_dtype or first.mp_policy.param_dtype)),
        "reshard": _reshard(groups_below),
        "prefetch": max(map(private.gathered_ahead, modules.values()), default=0),
        "offload": first is not None and isinstance(first.offload_policy, CPUOffloadPolicy),
        "unsharded": [name for name, p in parameters.items() if not isinstance(p, DTensor)],
    }


def assert_built(s, model: nn.Module, shape, sharding: Sharding) -> None:
    """RuntimeError, in one line, with the first thing in which the model is not what `sharding` asks for.

    shape: a transformer.Shape, whose units and shard sizes are the pure model's.
    """
    actual, rank = built(model), s.rank % sharding.ranks
    nested = len(units(shape, sharding)) > 1
    wanted = {
        "units": {unit.name: unit.own(sharding.ranks, rank) for unit in units(shape, sharding)},
        "mesh": {"shard": sharding.ranks}
        if sharding.replicas == 1
        else {"replicate": sharding.replicas, "shard": sharding.ranks},
        "parameter": sharding.parameter,
        "reduce": sharding.reduce,
        "offload": sharding.offload,
        "reshard": sharding.reshard if nested else None,
        "unsharded": [],
    }
    for name, right in wanted.items():
        if actual[name] != right:
            raise RuntimeError(f"asked for {name} {right}, and fully_shard built {actual[name]}")


def whole(model: nn.Module, gradients: bool = False) -> dict[str, torch.Tensor]:
    """{name: the full tensor}, copies, of all parameters, or of the gradients that are there. Collective: every rank
    calls it and gets them all. Plain parameters, of a model without FSDP, are copied as they are."""
    tensors = {name: p.grad if gradients else p.detach() for name, p in model.named_parameters()}
    return {name: full(tensor) for name, tensor in tensors.items() if tensor is not None}


def full(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the whole tensor, where it is a DTensor. Collective."""
    if isinstance(tensor, DTensor):  # offloaded shards travel from where the mesh is
        tensor = tensor.to(tensor.device_mesh.device_type).full_tensor()
    return tensor.detach().clone()


def _dimensions(mesh_: DeviceMesh) -> dict[str, int]:
    return dict(zip(mesh_.mesh_dim_names or ("shard",), mesh_.shape, strict=True))


def _dtype(dtype: torch.dtype | None) -> str:
    return next((name for name, kind in DTYPES.items() if kind == dtype), "fp32" if dtype is None else str(dtype))


def _reshard(groups: list) -> bool | int | None:
    """What the units below the root do after their forward; None where there are none, or they differ."""
    values = {
        False
        if group.post_forward_mesh_info is None
        else True
        if group.post_forward_mesh_info is group.mesh_info
        else group.post_forward_mesh_info.shard_mesh_size
        for group in groups
    }
    return values.pop() if len(values) == 1 else None
