"""A model on every rank with its optimizer, and steps that never make the host wait for the device.

With fp16 the loss is scaled (Micikevicius et al. 2018, arXiv 1710.03740): gradients below 6e-8, the least that fp16
holds, would be zero. torch's GradScaler finds out on the device whether a scaled gradient overflowed, and the fused
optimizer leaves such a step out there. A sum or a mean over ranks carries the overflow to all of them.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from scaleout.parallel import private, shard
from scaleout.parallel.transformer import Transformer
from scaleout.spec.layout import Layout
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import Shape

STRATEGIES = ("fsdp", "ddp", "one")
BETAS = (0.9, 0.95)  # usual for language models since Brown et al. 2020 (arXiv 2005.14165), appendix B
EPSILON = 1e-6  # keeps the clipping factor finite, as torch's clip_grad_norm_ does


@dataclass(frozen=True)
class Setup:
    """What is trained and how it is spread. `sharding` counts for strategy "fsdp" only; its `parameter` is "bf16"
    exactly where precision is, and "fp16" likewise."""

    shape: Shape
    strategy: str = "fsdp"  # "mesh": by `layout`, in a train.mesh_trainer.MeshTrainer
    layout: Layout | None = None
    sequences: int = 1  # of a replica's step, by a layout: a pipeline takes no other number
    sharding: Sharding = field(default_factory=Sharding)
    precision: str = "fp32"  # "bf16", "fp16": of products; weights and optimizer are fp32
    attention: str = "sdpa"
    checkpointing: str = "none"
    compiled: bool = False  # torch.compile, a block at a time
    sync_every_pass: bool = False  # reduce gradients after every pass: slower, and FSDP keeps no whole ones
    clip: float = 1.0  # largest norm of the whole gradient; 0: no clipping
    weight_decay: float = 0.1  # of matrices and tables only
    seed: int = 0


class Trainer:
    """Steps of one model. The same Setup makes the same weights on every rank and with every strategy.

    shares: by parameter, the part of its squared norm that this rank counts; None: its own shard, whole.
    """

    strategies, shares = STRATEGIES, None

    def __init__(self, s, setup: Setup) -> None:
        """s: a lab.session.Session. ValueError for a strategy that this number of processes cannot have."""
        if setup.strategy not in self.strategies:
            raise ValueError(f"strategy {setup.strategy!r} is unknown: use one of {', '.join(self.strategies)}")
        if setup.strategy == "one" and s.world > 1:
            raise ValueError(f"strategy one is for one process, and this job has {s.world}: use fsdp or ddp")
        self.s, self.setup = s, setup
        torch.manual_seed(setup.seed)
        self.model = self._model()
        self.hand, self.buckets = None, {}  # what measure.fsdp_ledger also looks for: no unit is by hand
        self.wrapped, self.group = self._spread(), None
        if setup.strategy == "fsdp" and s.world > 1:
            self.group = self.mesh["shard"].get_group() if self.mesh.ndim > 1 else self.mesh.get_group()
        self.parameters = list(self.model.parameters())
        matrices = [p for p in self.parameters if p.ndim > 1]
        vectors = [p for p in self.parameters if p.ndim < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": setup.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            betas=BETAS,
            fused=True,
        )
        self.scaler = torch.amp.GradScaler(s.device.type, enabled=setup.precision == "fp16")  # else it does nothing

    def _model(self):
        with self.s.device:
            model = Transformer(self.setup.shape, self.setup.attention, 0.0, self.setup.checkpointing)
        if self.setup.compiled:
            for block in model.blocks:
                block.compile()
        return model

    def _spread(self):
        s, setup = self.s, self.setup
        if setup.strategy == "fsdp":
            self.mesh = shard.mesh(s, setup.sharding)
            shard.shard(s, self.model, setup.sharding, self.mesh)
            shard.assert_built(s, self.model, setup.shape, setup.sharding)
            return self.model
        if setup.strategy == "ddp" and s.world > 1:
            device_ids = [s.device] if s.device.type == "cuda" else None
            return DistributedDataParallel(self.model, device_ids=device_ids, gradient_as_bucket_view=True)
        return self.model

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of one pass, () fp32."""
        with self.casting():
            return self.wrapped(tokens, targets)

    def casting(self):
        """A context in which matmuls have this precision. `fully_shard` casts by itself."""
        setup = self.setup
        enabled = setup.precision != "fp32" and setup.strategy != "fsdp"
        return torch.autocast(self.s.device.type, shard.DTYPES[setup.precision]) if enabled else nullcontext()

    @contextmanager
    def _syncing(self, last: bool):
        """Gradients are averaged over ranks in the backward of this pass, or add up on this rank until the last."""
        enabled = last or self.setup.sync_every_pass
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(enabled)
            self.model.set_is_last_backward(last)
        with (
            self.wrapped.no_sync()
            if isinstance(self.wrapped, DistributedDataParallel) and not enabled
            else nullcontext()
        ):
            yield

    def gradients(self, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Forward and backward of the passes of this rank; the mean loss of them, on the device."""
        losses = []
        for i, (tokens, targets) in enumerate(batches):
            with self._syncing(i == len(batches) - 1):
                loss = self.loss(tokens, targets)
                loss = loss / len(batches) if len(batches) > 1 else loss
                self.scaler.scale(loss).backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]

    def update(self, rate: float = 0.0) -> Tensor:
        """Clip, step, forget the gradients; the norm of the whole gradient, on the device.

        With fp16 a norm that is not finite is that of a step left out: the weights stay, and the scale is halved.
        """
        self.scaler.unscale_(self.optimizer)
        norm = self.clipped()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    @property
    def scale(self) -> Tensor | None:
        """What the loss is multiplied by in the next step, () on the device; None without scaling."""
        return self.scaler.scale(torch.ones((), device=self.s.device)) if self.scaler.is_enabled() else None

    def rescale(self, saved: dict | None) -> list[str]:
        """Go on with the loss scale of a checkpoint, the scaler's `state_dict()`. What is to be said of it: a run that
        was none of fp16 has no scale to go on with."""
        if saved and self.scaler.is_enabled():
            self.scaler.load_state_dict(saved)
        elif self.scaler.is_enabled():
            return [f"fp16 begins with a loss scale of {self.scaler.get_scale():,g}: the checkpoint holds none"]
        return []

    def step(self, batches: list[tuple[Tensor, Tensor]], rate: float) -> tuple[Tensor, Tensor]:
        """One step: (its mean loss on this rank, norm of the whole gradient), on the device."""
        loss = self.gradients(batches)
        return loss, self.update(rate)

    @torch.no_grad()
    def clipped(self) -> Tensor:
        """Scale the gradients down to the largest norm allowed; their norm before that, over all ranks, ().

        Each rank takes its own shards, and one number is summed over the ranks that share a copy: what
        `clip_grad_norm_` does with DTensors, without a DTensor for every step on the way. On a CPU the host may look:
        gradients that are short enough stay as they are, which is what a factor of 1 would leave.
        """
        gradients = [
            p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in self.parameters if p.grad is not None
        ]
        squares = torch.stack(private.foreach_norm(gradients)).square()
        square = (squares if self.shares is None else squares * self.shares).sum().to(self.s.device)
        if self.group is not None:
            dist.all_reduce(square, group=self.group)
        norm = square.sqrt()
        if self.setup.clip and not (norm.device.type == "cpu" and norm + EPSILON <= self.setup.clip):
            factor = (self.setup.clip / (norm + EPSILON)).clamp(max=1.0)
            private.foreach_mul_(gradients, factor.to(gradients[0].device))
        return norm

    @torch.no_grad()
    def evaluate(self, batches: list[tuple[Tensor, Tensor]]) -> float:
        """Mean loss in nats per token over the batches of all ranks, which have as many each."""
        self.wrapped.eval()
        total = sum(self.loss(*batch) for batch in batches) / len(batches)
        self.wrapped.train()
        self.reshard()
        return self.s.mean(total.item())

    @torch.no_grad()
    def logits(self, window: Tensor, position: int) -> Tensor:
        """What the model makes of one window (1, seq) at a token, (V,) fp32 on the host. Collective."""
        with self.casting():
            return self.model(window)[0, position].float().cpu()

    def reshard(self) -> None:
        """After a forward without a backward: the root unit, kept for a backward that never came, is freed."""
        if isinstance(self.model, FSDPModule):
            self.model.reshard()

    @property
    def built(self) -> str:
        """What was built, in words, for the Record."""
        setup = self.setup
        if setup.strategy == "fsdp":
            facts = shard.built(self.model)
            return (
                f"fully_shard: {len(facts['units'])} units by {setup.sharding.wrap}, {facts['shard_bytes']:,} of "
                f"{facts['whole_bytes']:,} bytes on rank 0, mesh {facts['mesh']}"
            )
        return f"{type(self.wrapped).__name__} on {self.s.world} process(es)"


@torch.no_grad()
def sample(trainer: Trainer, prompt: bytes, count: int, temperature: float = 0.8, seed: int = 0) -> bytes:
    """`prompt` and `count` bytes that the model writes after it. Collective: every rank calls it alike.

    temperature: 0 takes the likeliest byte each time. The window stays full, so that a compiled model sees one size;
    what stands behind the last byte cannot be seen by it. Ranks draw alike, from a generator of their own.
    """
    seq, device = trainer.setup.shape.max_seq, trainer.s.device
    chance, text = torch.Generator().manual_seed(seed), list(prompt)
    trainer.model.eval()
    for _ in range(count):
        seen = text[-seq:]
        window = torch.tensor([seen + [0] * (seq - len(seen))], device=device)
        logits = trainer.logits(window, len(seen) - 1)
        if temperature:
            text.append(int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=chance)))
        else:
            text.append(int(logits.argmax()))
    trainer.model.train()
    trainer.reshard()
    return bytes(text)
