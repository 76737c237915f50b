"""Times: a training step as events on lanes, and the results for a whole run. Pure; stands on `collectives`.

`job` is the only model of step time: `rates` has the rates of a GPU, `compute` the time of a micro-batch (`products`
its matrix multiplications, `passes` the bytes that its other kernels move), `machine` the communication along each
axis, `exchange` the communication of replicas that overlaps with compute, `pipeline` the order in which stages work,
and `pipeline_exchange` the exposed part of the exchange in a pipeline. `sent` has the time of all communication, hidden
or not, `starts` the latencies in it. `search` ranks all layouts of a job, each a `plan`, first with the closed formulas
of `quick`; `band` has the error of a prediction. `muon` has the time that this optimizer adds to a step.

`ddp` and `fsdp` lay out a step, compute above communication (`fsdp_plan` and `fsdp_streams` say when a gather may
start, `intervals` what stays exposed; `fsdp_short` derives a deep model's step from a shallow one's, `fsdp_lives` when
each of its units is unsharded). `pipeline` has the step for any order of a pipeline's actions, by its `pipeline_clock`
or, for a known schedule, faster by `pipeline_sweep` and `pipeline_queues`, from which `pipeline_sketch` takes the
actions of some ranks; `pipeline_waits` says which ranks wait for one another. `scaling`, `reliability` and `price` are
about whole runs.

`verdict` names the scarce resource of a run from its counters, or none. `stragglers` names the rank that slows a run
down from its trace, and replays the trace without it; `diagnosis` names which of ten faults it is. `budget` divides
FLOPs among a model's size, its training tokens and the samples of its answers, by scaling laws and pass@k.

`recompute` has the time of recomputation, tile by tile, and `knapsack` chooses among tiles.

`kernels` has attention kernel by kernel: FLOPs, bytes, and the cycles of each unit of a multiprocessor.

`precision` compares a step in FP8 with one in 16 bits. `calibrated` fits the rates of a measured machine to its
`profile`.

Files of profiles are in `records.profiles`; `measure` measures them.
"""

from scaleout import face

__getattr__, __dir__, __all__ = face(
    __name__,
    ddp="BUCKET_CAP FIRST_BUCKET_CAP Layer buckets",
    job="step step_on update_bytes",
)
