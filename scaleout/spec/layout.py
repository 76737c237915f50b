"""How a job's ranks divide the model and the data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm

from scaleout.spec import checks, pipeline

# How keys and values reach the ranks that share a sequence.
CONTEXTS = ("ring", "gather")

AXES = ("dp", "cp", "tp", "pp")  # in the order in which they are printed


@dataclass(frozen=True)
class Layout:
    """Degrees of data (dp), tensor (tp), pipeline (pp) and context (cp) parallelism, and the ZeRO stage.

    cp ranks share the tokens of each sequence and have the same weights, so that ZeRO splits over dp x cp ranks
    (`replicas`). Experts borrow ranks of these axes (`spec.mesh`): they are no further factor of `ranks`.

    ZeRO (arXiv 1910.02054): stage 1 splits the optimizer's state over the replicas, 2 the gradients too, 3 the
    weights too. `sequence_parallel` splits what tensor parallelism leaves whole (arXiv 2205.05198, section 4.2.2);
    `gather_again`: what its matrices read whole is then gathered a second time in the backward, as there, and not kept;
    the same holds for keys and values that cp ranks gather.

    Of a pipeline: chunks is v, the stages that each rank has; micro_batches is m, None for as few as fill it; schedule
    is one of `spec.pipeline`'s.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero: int = 0
    sequence_parallel: bool = False
    gather_again: bool = True
    chunks: int = 1
    micro_batches: int | None = None
    schedule: str = "1f1b"
    cp: int = 1

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "cp"):
            checks.whole(name, getattr(self, name))
        if not checks.is_whole(self.zero) or not 0 <= self.zero <= 3:
            raise ValueError(f"zero must be 0, 1, 2 or 3, not {checks.said(self.zero)}")
        for name in ("sequence_parallel", "gather_again"):
            checks.flag(name, getattr(self, name))
        checks.known("schedule", self.schedule, pipeline.SCHEDULES)
        if self.pp > 1:
            pipeline.refuse(self.schedule, self.pp, self.m, self.chunks)
        elif self.chunks != 1:
            raise ValueError(f"chunks {self.chunks!r} needs a pipeline: use chunks 1, or pp of at least 2")
        elif self.micro_batches is not None:
            checks.whole("micro_batches", self.micro_batches)

    @property
    def degrees(self) -> list[str]:
        """The degrees above 1, in words."""
        return [f"{axis} {getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1]

    @property
    def ranks(self) -> int:
        """Processes in the job."""
        return self.dp * self.cp * self.tp * self.pp

    @property
    def replicas(self) -> int:
        """Ranks that have the same weights: gradients are summed over them, ZeRO splits over them."""
        return self.dp * self.cp

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


def context_share(layout: Layout, seq: int) -> tuple[Layout, int]:
    """The layout and the tokens of a sequence on one context-parallel rank: the other cp ranks count as replicas.

    Each rank has one piece from the front and one from the back of the sequence, so that causal attention takes all
    of them as long: 2 cp pieces. ValueError, in one line with the nearest length that works, for other lengths.
    """
    checks.whole("seq", seq)
    if layout.cp == 1:
        return layout, seq
    pieces = 2 * layout.cp
    if seq % pieces:
        nearest = max(pieces, round(seq / pieces) * pieces)
        raise ValueError(f"cp {layout.cp} cuts a sequence into {pieces} pieces, not {seq:,} tokens: use {nearest:,}")
    return replace(layout, dp=layout.replicas, cp=1), seq // layout.cp


def sequence_unit(layout: Layout) -> int:
    """Tokens that a sequence must be a multiple of: two pieces for each cp rank (`context_share`), and with sequence
    parallelism as many tokens of each on every tp rank."""
    pieces = 2 * layout.cp if layout.cp > 1 else 1
    return lcm(pieces, layout.cp * layout.tp) if layout.tp > 1 and layout.sequence_parallel else pieces


def keeps_keys(layout: Layout, context: str) -> bool:
    """Whether attention saves the keys and values of all cp ranks for its backward: those that are gathered once."""
    return layout.cp > 1 and context == "gather" and not layout.gather_again


def alone(layout: Layout, *degrees: str) -> None:
    """ValueError, in one line, unless it is a layout with no other degrees than these: for what prices them alone."""
    checks.instance("layout", layout, Layout)
    for name in ("dp", "tp", "pp", "cp"):
        value = getattr(layout, name)
        if name not in degrees and value > 1:
            raise ValueError(f"{name} is priced in the models of a mesh: use {name} 1, not {value}")
