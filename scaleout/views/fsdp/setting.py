"""What a reader chose in the view `fsdp`, and what follows: the job, bytes by moment, seconds, and a unit's life."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

from scaleout.draw import fsdp_hill, fsdp_life, fsdp_units
from scaleout.memory import allocator
from scaleout.memory.activations import Sizes, block_kept
from scaleout.memory.fsdp import FsdpAccount, fsdp_account
from scaleout.spec import topology
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import program
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.sharding import Sharding
from scaleout.timing import fsdp_lives
from scaleout.timing.fsdp_lives import Life
from scaleout.timing.fsdp_short import ShortTimeline
from scaleout.timing.job import Step, step
from scaleout.views import base
from scaleout.views.choices import LINKS, NODE
from scaleout.views.fsdp import moments

LEAST = 10**8  # parameters of a unit when wrapping by size: the default of torch's size_based_auto_wrap_policy
BLOCKS = 16  # about, whose memory is drawn of those that are alike, by one moment each
# What is stored is fp32. Gradients that are reduced in bf16 leave an update as many bytes to move, 28 a parameter, as
# bf16 weights with an fp32 copy.
PRECISION = {"fp32": "fp32", "bf16": "autocast-bf16", "bf16-reduce": "bf16-master"}
ALIKE = ("ib", "h100-sxm", "compiled")  # the link, the device and the program, of which bytes know nothing


@dataclass(frozen=True)
class Setting(base.TextSetting):
    """What a reader chose; what follows from it is made once."""

    ranks: int
    link: str
    wrap: str
    reshard: str
    prefetch: int
    over: str
    batch: int
    checkpointing: str
    precision: str
    offload: bool
    program: str

    @property
    def gathers(self) -> bool:
        """Whether there is anything to gather: from other GPUs, or from the host."""
        return self.ranks > 1 or self.offload

    @cached_property
    def job(self) -> Job:
        group = min(self.ranks, NODE) if self.over == "node" else self.ranks
        replicas = Replicas(
            wrap=self.wrap,
            least_parameters=LEAST,
            prefetch=self.prefetch if self.gathers else 1,  # the same to the digit, where there is nothing to gather
            shards=group,
            reshard={"yes": True, "no": False, "node": NODE if group > NODE else True}[self.reshard],
            offload="parameters" if self.offload else "none",
        )
        node_gpus, node_link, adapters, rdma, _ = LINKS[self.link]
        device, gpus = self.card, min(node_gpus, self.ranks)
        return Job(
            self.shape,
            self.tokens,
            device,
            topology.cluster(self.ranks // gpus, gpus, device.link, node_link, adapters, rdma),
            self.batch,
            Layout(dp=self.ranks, zero=2 if replicas.reshard is False else 3),
            Recipe(PRECISION[self.precision], checkpointing=self.checkpointing),
            program(self.program),
            replicas,
        )

    @cached_property
    def sharding(self) -> Sharding:
        return self.job.sharding

    @cached_property
    def account(self) -> FsdpAccount:
        """Memory of a rank. The link, the device and the program do not matter."""
        if (self.link, self.device, self.program) != ALIKE:
            return self.other(**dict(zip(("link", "device", "program"), ALIKE, strict=True))).account
        recipe = Recipe(precision="fp32", checkpointing=self.checkpointing)
        return fsdp_account(self.shape, self.batch, self.tokens, recipe, self.sharding)

    @cached_property
    def time(self) -> Step:
        return step(self.job)

    @cached_property
    def line(self) -> ShortTimeline:
        """Its lanes, up to the end of the update."""
        return cast("ShortTimeline", self.time.timeline).updated(self.time.parts["update"])

    @property
    def fits(self) -> bool:
        """Whether a GPU has usable memory for it, and its node's host for what is offloaded."""
        return allocator.fits(self.account.peak_bytes, self.card.memory_bytes) and self.host_fits

    @cached_property
    def host_fits(self) -> bool:
        return allocator.host_fits(sum(self.account.host.values()), self.job.cluster.gpus_per_node)

    @property
    def waiting(self) -> float:
        """Share of the step in which the GPU waits: exposed communication, and the host's update with offload."""
        waiting_seconds = self.line.exposed_seconds + (self.line.update_seconds if self.offload else 0.0)
        return waiting_seconds / self.time.seconds

    # --- what is drawn -----------------------------------------------------------------------------------------------

    @cached_property
    def lives(self) -> tuple[list[Life], int]:
        """Of the units that are drawn, and how many there are."""
        return fsdp_lives.lives(self.line, fsdp_units.ROWS)

    @cached_property
    def life(self) -> Life:
        """Of the unit that is followed: the one half way through the model."""
        rows, count = self.lives
        return next(row for row in rows if row.number == count // 2)

    @cached_property
    def followed(self) -> str:
        return moments.named(self.life.name) if self.lives[1] > 1 else "the one unit, the model"

    @cached_property
    def unit(self) -> fsdp_life.Unit:
        """The unit that is followed, on as many ranks as are drawn."""
        recipe = Recipe(precision="fp32" if self.precision == "fp32" else "bf16")
        z = Sizes(self.shape, self.batch, self.tokens, recipe, Layout())
        kept_bytes = sum(block_kept(z, self.checkpointing).values())
        all_bytes = sum(block_kept(z, "none").values())
        ranks = min(fsdp_life.DRAWN, self.sharding.ranks)
        return fsdp_life.Unit(ranks, self.life.regather is None, self.offload, kept_bytes / all_bytes)

    @cached_property
    def rows(self) -> list[fsdp_hill.Placed]:
        """Memory over time: of blocks that are alike, the fullest moment of each of some."""
        chosen_moments = self.account.sampled(self.account.extra // BLOCKS + 1, self.account.extra > 2)
        return fsdp_hill.placed(chosen_moments, self.line)

    @cached_property
    def _seconds(self) -> list[float]:
        return moments.seconds(self.life, self.line)

    def seconds_at(self, moment: int) -> float:
        return self._seconds[moment]
