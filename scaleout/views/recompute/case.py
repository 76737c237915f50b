"""What is trained in the view `recompute`, and on what: one job, its blocks' saved tensors, its step, its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from scaleout.memory import accounts, recompute
from scaleout.memory.activations import Sizes
from scaleout.spec import topology
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.timing import job as timing_job
from scaleout.timing import machine
from scaleout.timing import recompute as timing
from scaleout.timing.compute import Phase
from scaleout.timing.job import Step
from scaleout.timing.knapsack import Priced
from scaleout.views import base

NODE = 8  # GPUs of a node
DROPOUT = 0.1
WALKED = (3, 4)  # blocks that are walked: each more holds as much more as the fourth; FSDP gathers ahead in three


@dataclass(frozen=True)
class Case(base.TextSetting):
    """What is trained, and on what, by the view's controls. batch: sequences of seq tokens that a GPU or a group of tp
    takes at once; dp: GPUs (or groups) over which FSDP shards the states."""

    attention: str
    batch: int
    tp: int
    dp: int
    dropout: bool
    program: str

    @cached_property
    def job(self) -> Job:
        """Saves everything: no block is recomputed."""
        ranks = self.dp * self.tp
        node_gpus = min(ranks, NODE)
        return Job(
            self.shape,
            self.tokens,
            self.card,
            topology.cluster(ranks // node_gpus, node_gpus, self.card.link, "ib-ndr", node_gpus),
            self.batch,
            Layout(dp=self.dp, tp=self.tp, zero=3 if self.dp > 1 else 0),
            Recipe("bf16-master", attention=self.attention, dropout=DROPOUT if self.dropout else 0.0),
            PROGRAMS[self.program],
        )

    @cached_property
    def z(self) -> Sizes:
        return timing.sizes(self.job)

    # --- seconds ----------------------------------------------------------------------------------------------------

    @cached_property
    def rank(self) -> machine.Machine:
        return machine.from_datasheet(self.job)

    @cached_property
    def plain(self) -> Step:
        """The step that saves everything."""
        return timing_job.step(self.job)

    @cached_property
    def step_seconds(self) -> Callable[[float], float]:
        """Of a step, by the seconds of recomputation in all blocks."""
        return timing.lengthened(self.plain, self.rank)

    @cached_property
    def phases(self) -> dict[str, Phase]:
        """The time to recompute each saved tensor, by its name."""
        return timing.phases(self.job, self.rank)

    @cached_property
    def items(self) -> dict[str, Priced]:
        """The tensors that a block can free, in the order of its forward pass."""
        return {item.name: item for item in timing.priced(self.job, self.rank)}

    @cached_property
    def rest_seconds(self) -> float:
        """Additional seconds of a block that frees all of them, because it is run again as a whole."""
        return timing.rest_seconds(self.job, self.rank)

    @cached_property
    def slot(self) -> float:
        """Bytes per second between the GPU and CPU memory, in one direction, that long copies reach."""
        link = topology.host(self.card)
        return link.one_way_bytes_per_s * link.reached

    def moved(self, size: float) -> tuple[float, float]:
        """Seconds of exposed copies if so many bytes are offloaded and come back: (out, back)."""
        layers = self.shape.layers
        block = self.plain.work[0]
        layer_seconds = [layers * seconds for seconds in (block.forward_seconds, block.backward_seconds)]
        return timing.offload(size, self.slot, *layer_seconds)

    # --- bytes ------------------------------------------------------------------------------------------------------

    @property
    def blocks(self) -> int:
        return self.shape.layers

    @cached_property
    def block(self) -> int:
        """Bytes that a block can free."""
        return sum(item.bytes for item in self.items.values())

    @cached_property
    def input(self) -> int:
        return self.z.x

    @cached_property
    def undropped(self) -> dict[str, dict[str, float]]:
        """By moment and kind, the bytes of a step that frees nothing."""
        return self._walked(recompute.none)

    @cached_property
    def bare(self) -> dict[str, dict[str, float]]:
        """The same for a step that saves inputs alone."""
        return self._walked(recompute.full)

    def _walked(self, policy) -> dict[str, dict[str, float]]:
        """Of all blocks, from steps of a few: `accounts.account` walks each, which takes longer than a picture may."""
        fewer, longer = (self._account(policy, layers) for layers in WALKED)
        extra = self.blocks - WALKED[0]
        return {
            moment: {kind: size + extra * (longer[moment][kind] - size) for kind, size in kinds.items()}
            for moment, kinds in fewer.items()
        }

    def _account(self, policy, layers: int) -> dict[str, dict[str, int]]:
        job = replace(self.job, shape=replace(self.shape, layers=layers))
        account = accounts.account(
            job.shape, job.batch, job.seq, job.recipe, job.layout, policy=policy(timing.sizes(job))
        )
        return account.moments
