"""Measurements on real ranks or fake tensors, and the faults that labs inject into runs.

`ledger` records every allocation of a step (`fsdp_ledger` under FSDP, `layout_bytes` by a layout); `memory` and
`fsdp_memory` measure the memory with which the account is compared, `memory_trace` draws it, and `model_run` measures
a model of a config.json. `peak` measures the rate
of matmuls. `ddp_calibration`, `rounds`, `fsdp_rounds`, `fsdp_knobs`, `tensor`, `tensor_link`, `mesh_link`,
`collectives` and `slow_link` time alternating implementations and predict them. `mesh` counts what each axis of a grid
sends, `mesh_seconds` composes its step time from parts. `pipeline` records when each action of a pipeline ran and what
it saves, `pipeline_sleep` has stages that only sleep. `zero` counts the states and the communication of
implementations of ZeRO, in the sockets too (`zero_step` predicts the peak, `zero_seconds` the step time from a
profile), `zero_muon` the additional needs of Muon. `precision` counts gradients by size, `precision_runs` trains one
model in many precisions. `recompute` measures saved tensors and counts recomputed operations; `traces` runs
torch.profiler. `inject`, `tensor_faults`, `pipeline_faults`, `zero_faults`, `mesh_faults`, `precision_faults` and
`recompute_faults` make faults. `figures` styles the plots of notebooks. `kernels` times the kernels of a block,
`units` what replicas and shards add to a step. `bottlenecks` makes a small job short of any one resource and counts
what a step takes. `architecture` injects one of ten faults into a job and records its trace; `architecture_input`,
`architecture_saves` and `architecture_link` measure loaders, saves, and ranks placed on two hosts.
Of attention's kernels `kernels_attention` measures errors, saved bytes and seconds, `kernels_fp8` what FP8 does to them
and to matrix multiplications; `kernels_fusion` times chains of operations fused and not, `kernels_block` a block before
and after each kernel, and `kernels_faults` has three that are silently slow. `budget` trains a byte model on text that
it has written.

Reading recorded files needs no torch: see `records`. Stands on `parallel` and `lab`.
"""

from scaleout import face

__getattr__, __dir__, __all__ = face(
    __name__,
    fsdp_memory="measure_fsdp",
    ledger="watch",
    memory="measure",
    peak="matmul_rate repeat",
)
