"""A pipeline by hand and by torch.distributed.pipelining, behind one surface: any of the seven schedules.

torch splits the batch into micro-batches, has a runtime for each schedule, and knows of no tied weights: the gradient
that two stages share is added here for both. Accelerate has pipelines for inference only (`prepare_pippy`).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import pipelining
from torch.nn import functional as F

from scaleout.parallel import pipeline
from scaleout.parallel.transformer import Transformer
from scaleout.spec import pipeline as spec_pipeline
from scaleout.spec.transformer import Shape

ROUTES = ("hand", "torch")


class Way:
    """A model cut into stages over the ranks, and steps with it. The same seed gives the same model whatever the cut.

    `built` says what does the work. `whole(gradients)` is {name: tensor} of the whole model, on every rank.
    """

    def __init__(self, s, shape: Shape, via: str, schedule: str, m: int, b: int, seq: int, v: int = 1,
                 layers: tuple[int, ...] | None = None, seed: int = 0, timeout=None) -> None:
        """via: one of ROUTES. schedule: a name in spec.pipeline.SCHEDULES, by hand "naive" too. m: micro-batches of b
        sequences of seq tokens. v: stages a rank. layers: of each stage; without them, as many in each. ValueError for
        what cannot be cut."""
        self.s, self.via, self.m, p = s, via, m, s.world
        order = "gpipe" if schedule == "naive" else schedule            # whose stages lie as naive's do
        spec_pipeline.refuse(order, p, m, v)
        self.place = tuple(spec_pipeline.rank_of(order, i, p) for i in range(p * v))
        self.layers = layers or pipeline.cut(shape.layers, p * v)
        torch.manual_seed(seed)
        mine = [i for i, rank in enumerate(self.place) if rank == s.rank]
        self.stages = pipeline.stages_of(Transformer(shape), self.layers, mine, s.device)
        like = torch.empty(b, seq, shape.hidden, device=s.device)
        if via == "hand":
            self.pipe = pipeline.HandPipeline(s, self.stages, self.place, like, timeout)
            loops = pipeline.WAYS if v == 1 else {}
            self.work = loops.get(schedule) or pipeline.run(spec_pipeline.orders(schedule, p, m, v)[s.rank])
        else:
            self.schedule = with_torch(s, self.stages, len(self.place), schedule, m)
            self.tie = pipeline.tie(s, self.stages, self.place, timeout)

    @property
    def built(self) -> str:
        """What was built, in words."""
        name = type(self.schedule).__name__ if self.via == "torch" else f"HandPipeline.{self.work.__name__}"
        return f"{name} on {self.s.world} rank(s), layers {'-'.join(map(str, self.layers))}"

    def step(self, tokens: list[Tensor], targets: list[Tensor]) -> float:
        """Losses and gradients of m micro-batches, each (b, s); the mean loss, on every rank."""
        if self.via == "hand":
            return self.pipe.step(tokens, targets, self.work)
        first, last = (any(getattr(stage, end) for stage in self.stages.values()) for end in ("first", "last"))
        losses: list[Tensor] = []
        self.schedule.step(*([torch.cat(tokens)] if first else []),
                           **({"target": torch.cat(targets), "losses": losses} if last else {}))
        self.tie()
        share = sum(loss.item() for loss in losses) / self.m
        return self.s.mean(share) * self.s.world

    def gradients(self) -> dict[str, Tensor]:
        """{name: gradient} of this rank's stages; a tied head's under the name of the token table."""
        return {named(name, stage): p.grad for stage in self.stages.values() for name, p in stage.named_parameters()}

    def clear(self) -> None:
        """Forget the gradients."""
        for stage in self.stages.values():
            stage.zero_grad(set_to_none=True)


def named(name: str, stage: pipeline.Stage) -> str:
    """A parameter of a stage as the whole model calls it."""
    return "tokens.weight" if stage.tied and name == "head.weight" else name


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of a micro-batch, as torch's schedules ask for it."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def with_torch(s, stages: dict[int, pipeline.Stage], count: int, schedule: str, m: int):
    """torch's schedule over the stages of this rank, of `count` in all. ValueError for "naive", which torch lacks."""
    if s.world == 1 and not dist.is_initialized():
        raise ValueError("torch's schedules need a process group: start with torchrun --nproc-per-node 2")
    if schedule == "naive":
        raise ValueError("torch has no naive schedule: use gpipe with one micro-batch")
    kind = getattr(pipelining, f"Schedule{spec_pipeline.SCHEDULES[schedule].torch}")
    made = [pipelining.PipelineStage(stage, i, count, s.device) for i, stage in stages.items()]
    return kind(made[0] if issubclass(kind, pipelining.schedules.PipelineScheduleSingle) else made, m, loss_fn=loss)
