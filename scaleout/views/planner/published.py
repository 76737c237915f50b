"""Runs that somebody made and told of, to stand beside what is told here; the book's rows of them are
tests/published/mesh.json, from which these are copied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from scaleout.memory.mesh import accounts, fullest
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.timing.mesh import step
from scaleout.timing.mesh_search import Job
from scaleout.views.planner.setting import Setting


@dataclass(frozen=True, eq=False)
class Runs:
    """Weak scaling of a model on H100. each: sequences of a GPU and a step; seconds: of a step, by GPUs."""

    model: str
    seq: int
    each: int
    layout: Layout  # dp is what is left
    seconds: dict[int, float]
    dropout: float = 0.0


@dataclass(frozen=True)
class Run:
    """One of them. told: seconds by the book's model of the same layout; bytes: of its fullest GPU."""

    who: str
    layout: Layout
    seconds: float
    told: float
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
WHO = "NVIDIA ran"


def beside(setting: Setting) -> Run | None:
    """The published run of this very job, if there is one."""
    asked = setting.question
    for runs in RUNS:
        on_h100 = (asked.model, asked.device, asked.network) == (runs.model, "h100-sxm", "ndr")
        alike = asked.gpus in runs.seconds and asked.sequences == runs.each * asked.gpus
        if on_h100 and alike and setting.job.seq == runs.seq:
            return _run(runs, setting.job)
    return None


@lru_cache(maxsize=16)
def _run(runs: Runs, job: Job) -> Run:
    gpus, at = job.cluster.ranks, runs.layout
    layout = replace(at, dp=gpus // (at.tp * at.cp * at.pp))
    recipe = Recipe("bf16-master", dropout=runs.dropout, gradients="kept")  # as the rows are judged
    told = step(job.shape, 1, runs.seq, layout, job.device, job.cluster, recipe).seconds
    held = accounts(job.shape, 1, runs.seq, recipe, layout)
    return Run(WHO, layout, runs.seconds[gpus], told, held[fullest(held)].peak_bytes)
