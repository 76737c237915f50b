"""What is measured on real ranks or fake tensors, and what a lab does to a run to show a fault.

`ledger` books every allocation of a step (`fsdp_ledger` under FSDP, `layout_bytes` by a layout), `memory` and
`fsdp_memory` are the truth that the account is held against, `memory_trace` draws it. `peak` is the rate of matrix
products; `ddp_calibration`, `rounds`, `fsdp_rounds`, `fsdp_knobs`, `tensor`, `tensor_link`, `mesh_link`, `collectives`
and `slow_link` time alternating ways beside their prediction; `mesh` counts what each axis of a grid sends,
`mesh_seconds` puts its steps together from their pieces; `pipeline` notes when each action of a pipeline ran and what
is kept for it, `pipeline_sleep` has stages that only take time; `zero` counts what ZeRO's ways hold and send, in the
sockets too (`zero_step` predicts the peak by hand, `zero_seconds` a step's seconds by a profile), `zero_muon` what Muon
needs beside; `precision` looks at gradients by size, and `precision_runs` trains one model in many precisions;
`recompute` weighs what is kept and counts what is repeated; `traces` runs torch.profiler. `inject`, `tensor_faults`,
`pipeline_faults`, `zero_faults`, `mesh_faults`, `precision_faults` and `recompute_faults` make faults, `figures` is the
look of plots in a notebook. `kernels` times, one by one, what a block is made of. `bottlenecks` makes a
small job short of any one resource, and counts what a step of it takes.

Reading what was recorded needs no torch: `records`. Stands on `parallel` and `lab`.
"""

from scaleout import face

__getattr__, __dir__, __all__ = face(
    __name__,
    fsdp_memory="measure_fsdp",
    ledger="watch",
    memory="measure",
    peak="matmul_rate repeat",
)
