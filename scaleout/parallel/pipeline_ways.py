"""A pipeline by hand and by torch.distributed.pipelining, behind one interface, in any of the seven schedules.

torch splits the batch into micro-batches, has a runtime for each schedule, and knows of no tied weights: the gradient
that two stages share is added here for both. Accelerate has no pipeline of its own for training (`prepare_pippy` is
for inference).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import pipelining

from scaleout.parallel import pipeline
from scaleout.parallel.pipeline_stage import Stage, named, stages_of
from scaleout.parallel.transformer import Transformer
from scaleout.spec import pipeline as spec_pipeline
from scaleout.spec.transformer import Shape

ROUTES = ("hand", "torch")
NO_SELF = 2, 13  # of torch: it no longer sends to a neighbouring stage that the same rank has (2.11 does)


class Pipeline:
    """A model cut into stages over the ranks, and steps with it, by hand or by torch.

    `stages` are this rank's, {stage: module}, `place` the rank of each, `built` says what does the work.
    """

    def __init__(
        self,
        s,
        via: str,
        schedule: str,
        m: int,
        make_stages,
        like: Tensor,
        v: int = 1,
        pipeline_type=pipeline.HandPipeline,
        **options,
    ) -> None:
        """via: one of ROUTES. schedule: a name in spec.pipeline.SCHEDULES; by hand "naive" too. m: micro-batches.
        make_stages(list of stages) is {stage: module} of them; `of_model` makes it. like: what stages hand on,
        (b, s, h). v: stages per rank. options: for pipeline_type. ValueError for what cannot be."""
        self.s, self.via, self.m, self.like = s, via, m, like
        self.place = placed(schedule, s.world, m, v)
        self.stages = make_stages([i for i, rank in enumerate(self.place) if rank == s.rank])
        if via == "hand":
            self.pipe = pipeline_type(s, self.stages, self.place, like, **options)
            loop = pipeline.WAYS.get(schedule)
            self.work = loop or pipeline.run(spec_pipeline.orders(schedule, s.world, m, v)[s.rank])
            name = f"{schedule} by hand, " + (f"{loop.__name__}()" if loop else "run() of a list of actions")
        else:
            self.schedule = with_torch(s, self.stages, len(self.place), schedule, m)
            self.tie = pipeline.Tie(self.stages, self.place, (tuple(range(s.world)),))
            name = type(self.schedule).__name__
        self.built = f"{name}, {len(self.place)} stage(s) on {s.world} rank(s)"

    def step(self, tokens: list[Tensor], targets: list[Tensor]) -> float:
        """Losses and gradients of m micro-batches, each (b, s); the mean loss, on every rank."""
        if self.via == "hand":
            return self.pipe.step(tokens, targets, self.work)
        first, last = (any(getattr(stage, end) for stage in self.stages.values()) for end in ("first", "last"))
        losses: list[Tensor] = []
        self.schedule.step(
            *([torch.cat(tokens)] if first else []),
            **({"target": torch.cat(targets), "losses": losses} if last else {}),
        )
        self.tie()
        share = sum(loss.item() for loss in losses) / self.m
        return self.s.total(share)

    def gradients(self) -> dict[str, Tensor]:
        """{name: gradient} of this rank's stages; a tied head's under the name of the token table."""
        return {named(name, stage): p.grad for stage in self.stages.values() for name, p in stage.named_parameters()}

    def close(self) -> None:
        """Give the process groups back."""
        (self.pipe if self.via == "hand" else self.tie).close()

    def clear(self) -> None:
        """Forget the gradients."""
        for stage in self.stages.values():
            stage.zero_grad(set_to_none=True)


class LibraryStage(pipelining.PipelineStage):
    """torch's stage, also for a V-shaped schedule that only looks: `schedule.eval()` skips each backward, and then asks
    the stage on the same rank for the gradient that it did not compute."""

    def get_local_bwd_output(self, mb_index: int):
        """The gradient of this stage's inputs; nothing where no backward runs."""
        return super().get_local_bwd_output(mb_index) if self.has_backward else ()

    def set_local_bwd_input(self, next_stage_bwd_outputs, mb_index: int) -> None:
        """Take it over as the gradient of this stage's outputs."""
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)


def placed(schedule: str, p: int, m: int, v: int) -> tuple[int, ...]:
    """The rank of each of p * v stages. ValueError for what the schedule cannot be."""
    order = "gpipe" if schedule == "naive" else schedule  # the stages of both lie alike
    spec_pipeline.refuse(order, p, m, v)
    return tuple(spec_pipeline.ranks_of(order, p, v))


def torch_has(s, schedule: str) -> bool:
    """Whether torch can run a schedule here. Where two neighbouring stages share a rank, as in a V, an older torch
    begins with a message from the rank to itself, and gloo has no such."""
    new = tuple(map(int, torch.__version__.split(".")[:2])) >= NO_SELF
    return s.world > 1 and (new or s.device.type != "cpu" or not spec_pipeline.SCHEDULES[schedule].v_shaped)


def of_model(shape: Shape, layers: tuple[int, ...], device, seed: int = 0):
    """A function that makes a rank's stages of the Transformer, `layers` blocks in each. The same seed gives the same
    model whatever the cut."""

    def make(mine: list[int]) -> dict[int, Stage]:
        torch.manual_seed(seed)
        return stages_of(Transformer(shape), layers, mine, device)

    return make


def with_torch(s, stages: dict[int, Stage], count: int, schedule: str, m: int, group=None):
    """torch's schedule over the stages of this rank, of `count` in all. group: the ranks of the pipeline, all of them
    where None. ValueError for "naive", which torch lacks."""
    if s.world == 1:
        raise ValueError("torch's schedules need a process group: start with torchrun --nproc-per-node 2")
    if schedule == "naive":
        raise ValueError("torch has no naive schedule: use gpipe with one micro-batch")
    kind = getattr(pipelining, f"Schedule{spec_pipeline.SCHEDULES[schedule].torch}")
    library_stages = [LibraryStage(stage, i, count, s.device, group=group) for i, stage in stages.items()]
    return kind(
        library_stages[0] if issubclass(kind, pipelining.schedules.PipelineScheduleSingle) else library_stages,
        m,
        loss_fn=library_stages[0].submod.loss,
    )
