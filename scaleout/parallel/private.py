"""The book's imports of private parts of torch: the one place to look if a new torch has moved one.

tests/parallel/test_private.py asks for every name and says which is gone. Names are looked up when first asked for, so
that a lab imports what it uses and nothing else. ImportError, one line, where torch has no such name.
"""

from __future__ import annotations

from pkgutil import resolve_name

import torch

NAMES = {
    "TorchDispatchMode": "torch.utils._python_dispatch:TorchDispatchMode",
    "tree_leaves": "torch.utils._pytree:tree_leaves",
    "FakeTensorMode": "torch._subclasses:FakeTensorMode",
    "DynamicOutputShape": "torch._subclasses.fake_tensor:DynamicOutputShapeException",
    "active_fake_mode": "torch._guards:active_fake_mode",
    "FakeStore": "torch.testing._internal.distributed.fake_pg:FakeStore",
    "MemTracker": "torch.distributed._tools.mem_tracker:MemTracker",
    "FSDPMemTracker": "torch.distributed._tools.fsdp2_mem_tracker:FSDPMemTracker",
    "EventType": "torch._C._profiler:_EventType",
    "operation_names": "torch._C:_dispatch_get_all_op_names",
    "has_kernel": "torch._C:_dispatch_has_kernel_for_dispatch_key",
    "record_memory_history": "torch.cuda.memory:_record_memory_history",
    "dump_snapshot": "torch.cuda.memory:_dump_snapshot",
    "profile_to_snapshot": "torch.cuda._memory_viz:_profile_to_snapshot",
    "flight_pickle": "torch._C._distributed_c10d:_dump_fr_trace",
    "flight_json": "torch._C._distributed_c10d:_dump_fr_trace_json",
    "process_group": "torch.distributed.distributed_c10d:_resolve_process_group",
    "StorageInfo": "torch.distributed.checkpoint.filesystem:_StorageInfo",
    "schedule_ops": "torch.distributed.pipelining._schedule_visualizer:get_schedule_ops",
    "schedule_runtime": "torch.distributed.pipelining.schedules:_PipelineScheduleRuntime",
    "foreach_norm": "torch:_foreach_norm",
    "foreach_mul_": "torch:_foreach_mul_",
    "functorch_config": "torch._functorch.config",
    "dynamo_config": "torch._dynamo.config",
    "dynamo_counters": "torch._dynamo.utils:counters",
    "DynamoError": "torch._dynamo.exc:TorchDynamoException",
    "scaled_mm": "torch:_scaled_mm",
    "to_copy": "torch:ops.aten._to_copy.default",
    "all_gather_op": "torch:ops.c10d._allgather_base_.default",
    "reduce_scatter_op": "torch:ops.c10d._reduce_scatter_base_.default",
}

# What is read of the parameters that `fully_shard` communicates together, and what is called of them.
GROUP = ("fsdp_params", "mesh_info", "post_forward_mesh_info", "mp_policy", "offload_policy")
METHODS = ("unshard", "wait_for_unshard", "reshard", "pre_forward", "post_forward", "pre_backward", "post_backward")


def __getattr__(name: str):
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = globals()[name] = resolve_name(NAMES[name])
    except (ImportError, AttributeError):
        raise ImportError(f"torch {torch.__version__} has no {NAMES[name].replace(':', '.')}") from None
    return value


def ranks_of(func, args) -> list[int]:
    """The ranks of the group that an operation of torch.distributed is asked of, as a dispatcher sees it."""
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if "ProcessGroup" in str(argument.type):
            return torch.distributed.get_process_group_ranks(torch.distributed.ProcessGroup.unbox(value))
        if argument.name == "group_name":
            return torch.distributed.get_process_group_ranks(__getattr__("process_group")(value))
    raise RuntimeError(f"torch {torch.__version__}: {func._schema.name} names no group")


def group(module):
    """The parameters that a module under `fully_shard` communicates together, or None where others took them all."""
    return module._get_fsdp_state()._fsdp_param_group


def shard_elements(group) -> int:
    """Elements of a group that this rank holds."""
    return sum(p._sharded_local_tensor.numel() for p in group.fsdp_params)


def gathered_ahead(module) -> int:
    """Units that a module under `fully_shard` gathers ahead in the forward."""
    return len(module._get_fsdp_state()._states_to_forward_prefetch)


def gather_beside_compute(model, enabled: bool) -> None:
    """Whether all-gathers of `fully_shard` run on a thread of the process group's, and not on a stream of a GPU's."""
    model._set_unshard_async_op(enabled)
