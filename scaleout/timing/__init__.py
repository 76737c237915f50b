"""Seconds: a training step as events on lanes, and what follows for a run. Pure; stands on `collectives`.

`ddp` and `fsdp` lay out a step, compute above communication (`fsdp_plan` and `fsdp_streams` say when a gather may
start; `intervals` what stays exposed; `fsdp_short` a deep model's step from a shallow one's, `fsdp_lives`
when each of its units is whole). `step` and `fsdp_seconds`
turn them into seconds and MFU on a datasheet or on a measured machine, whose `profile` they read (`fsdp_machine` has
the wires of FSDP's groups). `tensor` has a step under tensor and sequence parallelism, on what `tensor_machine` says of
rates and wires. `zero` has a step of each ZeRO stage, with offload and Muon. `pipeline` has the step of any order of a
pipeline's actions, by its `pipeline_clock` or, of a known schedule, quicker by `pipeline_sweep` and `pipeline_queues`,
which `pipeline_sketch` has some ranks' actions from; `pipeline_waits` says which ranks wait for one another,
`pipeline_seconds` what a real model takes. `precision` has a step in FP8. `mesh` has a step under all degrees together:
of one micro-batch (`mesh_work`) on one rank (`mesh_machine`), with what replicas send (`mesh_replicas`); `mesh_traffic`
is what each axis sends, `mesh_search` every layout with why it loses, each priced by `mesh_plan`. `recompute` prices
what is made again and picks what to drop. `scaling`, `reliability` and `price` are what a whole run gives, loses and
costs.

How files of profiles are kept is `records.profiles`; measuring one is `measure`.
"""

from scaleout import face

__getattr__, __dir__, __all__ = face(
    __name__,
    ddp="BUCKET_CAP FIRST_BUCKET_CAP Layer buckets",
    fsdp_seconds="from_device",
)
