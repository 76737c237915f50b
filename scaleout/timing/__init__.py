"""Seconds: a training step as events on lanes, and what follows for a run. Pure; stands on `collectives`.

`job` is the one model of a job's seconds: `rates` says what a GPU computes with, `compute` what a micro-batch costs on
it, `machine` what communication costs along each axis, `exchange` what replicas send beside compute, `pipeline` in
which order stages work, `pipeline_exchange` what of the exchange shows in a pipeline. `sent` has the seconds of all
communication, hidden or not, `starts` those that no bandwidth shortens. `search` ranks all layouts of a job, each a
`plan`, by the closed forms of `quick` first; `band` says how far a prediction may be off. `muon` is what
that optimizer adds to a step.

`ddp` and `fsdp` lay out a step, compute above communication (`fsdp_plan` and `fsdp_streams` say when a gather may
start; `intervals` what stays exposed; `fsdp_short` a deep model's step from a shallow one's, `fsdp_lives` when each of
its units is whole). `pipeline` has the step of any order of a pipeline's actions, by its `pipeline_clock` or, of a
known schedule, quicker by `pipeline_sweep` and `pipeline_queues`, which `pipeline_sketch` has some ranks' actions from;
`pipeline_waits` says which ranks wait for one another. `scaling`, `reliability` and `price` are what a whole run gives,
loses and costs.

`verdict` names the scarce resource of a run from its counters, or none.

`recompute` prices what is made again, tile by tile, and `knapsack` chooses among tiles.

`precision` says what a step in FP8 takes beside one in 16 bits. What a measured machine computes with is fitted to its
`profile` by `calibrated`.

How files of profiles are kept is `records.profiles`; measuring one is `measure`.
"""

from scaleout import face

__getattr__, __dir__, __all__ = face(
    __name__,
    ddp="BUCKET_CAP FIRST_BUCKET_CAP Layer buckets",
    job="step step_on update_bytes",
)
