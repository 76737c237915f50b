"""Published runs to compare with the prediction, copied from tests/published (fp8.json, step_times_dense.json).

No constant was fitted to those with context parallelism, and no table of errors has them: they are for comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from scaleout.memory.job import fullest
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.timing.job import step
from scaleout.views.planner.setting import Setting


@dataclass(frozen=True, eq=False)
class Runs:
    """Weak scaling of a model on H100. gpu_sequences: sequences of a GPU and a step; seconds: of a step, by GPUs."""

    model: str
    seq: int
    gpu_sequences: int
    layout: Layout  # dp is what is left
    seconds: dict[int, float]
    dropout: float = 0.0


@dataclass(frozen=True)
class Run:
    """One of them. predicted: seconds of the same job by the book's model; bytes: of its fullest GPU."""

    runner: str
    layout: Layout
    seconds: float
    predicted: float
    bytes: int


# NVIDIA/dgxc-benchmarking, seconds of a step in bf16 on DGX H100 with one NDR adapter for each GPU.
RUNS = (
    Runs("llama-3-8b", 8192, 16, Layout(cp=2, zero=1, micro_batches=32),
         {8: 12.91, 16: 13.0, 32: 13.05, 64: 13.08, 128: 13.1}),
    Runs("llama-3-70b", 8192, 2, Layout(tp=4, cp=2, pp=4, zero=1, sequence_parallel=True, chunks=5, micro_batches=64,
                                        schedule="interleaved"),
         {64: 14.72, 128: 14.73, 256: 14.8, 512: 14.89, 1024: 14.92, 2048: 14.98}),
    Runs("gpt-3-175b", 2048, 2, Layout(tp=4, pp=8, zero=1, sequence_parallel=True, chunks=12, micro_batches=64,
                                       schedule="interleaved"),
         {128: 8.309, 256: 8.408, 512: 8.42, 1024: 8.453, 2048: 8.49}, 0.1),
)  # fmt: skip
RUNNER = "NVIDIA measured"


def published_run(setting: Setting) -> Run | None:
    """The published run of this very job, if there is one."""
    question = setting.question
    for runs in RUNS:
        job_key = (question.model, question.device, question.network, question.program)
        alike = question.gpus in runs.seconds and question.sequences == runs.gpu_sequences * question.gpus
        if job_key == (runs.model, "h100-sxm", "ndr", "megatron") and alike and setting.job.seq == runs.seq:
            return _run(runs, setting.job)
    return None


@lru_cache(maxsize=16)
def _run(runs: Runs, job: Job) -> Run:
    gpus, published_layout = job.cluster.ranks, runs.layout
    layout = replace(published_layout, dp=gpus // (published_layout.tp * published_layout.cp * published_layout.pp))
    job = replace(job, batch=1, layout=layout, recipe=replace(job.recipe, dropout=runs.dropout, loss="eager"))
    return Run(RUNNER, layout, runs.seconds[gpus], step(job).seconds, fullest(job).peak_bytes)
