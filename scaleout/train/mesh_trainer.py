"""The trainer of a layout: `parallel.mesh_ways` behind the surface of `Trainer`.

Ranks before the last stage of a pipeline see no loss. Each rank of the last stage counts its own as many times as the
pipeline has ranks, and the others count zero, so that the mean over all ranks is the loss.
"""

from __future__ import annotations

from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor

from scaleout.parallel import mesh_ways
from scaleout.spec import mesh
from scaleout.train.trainer import Setup, Trainer


class MeshTrainer(Trainer):
    """Steps of this rank's stages. `model` is one module that has them, by the names of the whole model."""

    strategies = ("mesh",)

    def _model(self):
        setup = self.setup
        self.way = mesh_ways.TorchMesh(
            self.s,
            setup.shape,
            setup.layout,
            setup.shape.max_seq,
            setup.attention,
            setup.checkpointing,
            setup.precision,
            setup.seed,
        )
        return self.way.model

    def _spread(self):
        self.shares = torch.tensor(self.way.shares(), device=self.s.device)
        return self.model

    @property
    def group(self):
        """Of all ranks: each has parameters that others lack."""
        return dist.group.WORLD if dist.is_initialized() else None

    @group.setter
    def group(self, _) -> None:
        """What `Trainer` finds for one group of shards."""

    def gradients(self, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Forward and backward of this replica's micro-batches; this rank's count of their mean loss, on the device."""
        return self.way.gradients(batches) * self.setup.layout.pp

    @torch.no_grad()
    def evaluate(self, batches) -> float:
        """Mean loss in nats per token over the batches of all replicas, which have as many each."""
        self.way.train(False)
        coming, losses = iter(batches), []
        while group := list(islice(coming, self.setup.layout.m)):
            losses += self.way.losses(group)
        self.way.train(True)
        self.reshard()
        mean = torch.stack(losses).mean().item() if losses else 0.0
        return self.s.mean(mean * self.setup.layout.pp)

    @torch.no_grad()
    def logits(self, window: Tensor, position: int) -> Tensor:
        """As in `Trainer`."""
        layout, logits = self.setup.layout, self.way.logits(window)
        row = (
            logits[0, position].float()
            if logits is not None
            else torch.empty(self.setup.shape.vocab, device=self.s.device)
        )
        if layout.pp > 1:
            dist.broadcast(row, mesh.grid(layout).rank({"pp": self.way.place[-1], "dp": 0, "cp": 0, "tp": 0}))
        return row.cpu()

    def reshard(self) -> None:
        """As in `Trainer`, for each stage."""
        for stage in self.way.stages.values():
            stage.reshard()

    @property
    def built(self) -> str:
        """What was built, in words, for the Record."""
        return self.way.built


def trainer(s, o) -> Trainer:
    """What the options ask for, on the ranks of this job. s: a lab.session.Session. o: a train.options.Options."""
    strategy, extra = o.strategy_on(s.world), {}
    if strategy == "fsdp":
        extra["sharding"] = o.sharding(s.world)
    elif strategy == "mesh":
        layout = o.layout_on(s.world)
        extra |= {"layout": layout, "sequences": o.batch // layout.dp}
    return (MeshTrainer if strategy == "mesh" else Trainer)(
        s,
        Setup(
            o.shape,
            strategy,
            precision=o.precision,
            attention=o.attention,
            checkpointing=o.checkpointing,
            compiled=o.compile,
            sync_every_pass=o.sync_every_pass,
            clip=o.clip,
            weight_decay=o.weight_decay,
            seed=o.seed,
            **extra,
        ),
    )
