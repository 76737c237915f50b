"""How a job's ranks divide the model and the data."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.spec import checks, pipeline


@dataclass(frozen=True)
class Layout:
    """Degrees of data (dp), tensor (tp) and pipeline (pp) parallelism, and the ZeRO stage on the dp ranks.

    ZeRO (arXiv 1910.02054): stage 1 splits the optimizer's state over the dp ranks, 2 the gradients too, 3 the
    weights too. `sequence_parallel` splits what tensor parallelism leaves whole (arXiv 2205.05198, section 4.2.2).

    Of a pipeline: chunks is v, the stages that each rank has; micro_batches is m, None for as few as fill it; schedule
    is one of `spec.pipeline`'s.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero: int = 0
    sequence_parallel: bool = False
    chunks: int = 1
    micro_batches: int | None = None
    schedule: str = "1f1b"

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp"):
            checks.whole(name, getattr(self, name))
        if not checks.is_whole(self.zero) or not 0 <= self.zero <= 3:
            raise ValueError(f"zero must be 0, 1, 2 or 3, not {self.zero!r}")
        checks.flag("sequence_parallel", self.sequence_parallel)
        checks.known("schedule", self.schedule, pipeline.SCHEDULES)
        if self.pp > 1:
            pipeline.refuse(self.schedule, self.pp, self.m, self.chunks)
        elif self.chunks != 1:
            raise ValueError(f"chunks {self.chunks!r} needs a pipeline: use chunks 1, or pp of at least 2")
        elif self.micro_batches is not None:
            checks.whole("micro_batches", self.micro_batches)

    @property
    def ranks(self) -> int:
        """Processes in the job."""
        return self.dp * self.tp * self.pp

    @property
    def m(self) -> int:
        """Micro-batches of a step: those asked for, or the fewest that fill the pipeline."""
        if self.micro_batches is not None:
            return self.micro_batches
        return pipeline.enough(self.schedule, self.pp) if self.pp > 1 else 1

    @property
    def stages(self) -> int:
        """Pieces that the model is cut into along its depth."""
        return self.pp * self.chunks

    @property
    def last_rank(self) -> int:
        """The pipeline rank that has the head: the last, or the first where the schedule bends back."""
        return pipeline.rank_of(self.schedule, self.stages - 1, self.pp)
