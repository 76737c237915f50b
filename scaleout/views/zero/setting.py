"""What a reader chose in the view `zero`, and what follows: bytes held and sent, seconds, and the step in frames."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import fsum

from scaleout.collectives import zero as wire
from scaleout.memory import allocator, zero, zero_frames
from scaleout.memory.job import fullest
from scaleout.memory.zero_frames import Frame
from scaleout.spec import topology
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.slices import block_parameters
from scaleout.spec.transformer import total_parameters
from scaleout.timing.job import Step, step
from scaleout.views import base
from scaleout.views.zero import muon

MOMENTS = 16  # that a step is played in: the frames of the opening setting, and the whole step after them
SEQ = 2048  # tokens of a sequence, at most
LINKS = {"own": "the GPU's own link, one node", "nodes": "InfiniBand, two nodes",
         "ethernet": "100 Gbit/s Ethernet, two nodes"}  # fmt: skip
STAGES = range(4)
# What a step's time is spent on, by parts of `timing.job`; the rest is input, logging and stragglers.
SPENT = {"compute": ("compute", "recompute", "launches"), "exposed data": ("exposed data",), "update": ("update",),
         "exposed host": ("exposed host",), "rest": ("host", "stragglers")}  # fmt: skip
ALIKE = "DeepSpeed reduce"  # DeepSpeed with another option, which sends what the paper does


@dataclass(frozen=True)
class Setting(base.ModelSetting):
    """What a reader chose, but for the moment that is shown. passes: forward and backward before an update; batch:
    sequences of one of them on each GPU."""

    stage: int
    ranks: int
    keep: bool
    offload: str
    precision: str
    optimizer: str
    passes: int
    batch: int
    link: str
    to: str

    # --- what can be ------------------------------------------------------------------------------------------------

    @property
    def muon(self) -> bool:
        """Whether Muon steps the matrices, and AdamW the rest."""
        return self.optimizer == "muon"

    @property
    def keeps(self) -> bool:
        """Whether gathered weights stay from forward to backward."""
        return self.keep and self.stage == 3

    @property
    def offloaded(self) -> str:
        """What is offloaded: as much of what was asked for as the stage can; Muon's matmuls need the GPU."""
        if not self.stage or self.muon:
            return "none"
        return "optimizer" if self.offload == "parameters" and self.stage < 3 else self.offload

    @property
    def tier(self) -> str:
        """Where it lies."""
        return self.to if self.stage == 3 else "host"

    # --- the models' words for it -----------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> int:
        return total_parameters(self.shape)

    @cached_property
    def recipe(self) -> Recipe:
        return Recipe(self.precision, "adamw" if self.muon else self.optimizer)

    @cached_property
    def layout(self) -> Layout:
        return Layout(dp=self.ranks, zero=self.stage)

    @cached_property
    def widths(self) -> dict[str, float]:
        """Bytes of a parameter by kind, the mean over parameters."""
        return self._one_state(zero.widths(self.recipe))

    def _one_state(self, by_kind: dict) -> dict:
        """With the second state of what has one alone: under Muon, of what it does not step."""
        return by_kind | {"variance": by_kind["variance"] * muon.adamw_share(self)} if self.muon else by_kind

    # --- what is held -----------------------------------------------------------------------------------------------

    @cached_property
    def resting_bytes(self) -> dict[str, dict[str, float]]:
        """Bytes by tier and kind as the update finds them."""
        tiers = zero.at_rest(self.parameters, self.recipe, self.layout, self.offloaded, self.tier)
        return {tier: self._one_state(sizes) for tier, sizes in tiers.items()}

    def held_bytes(self, tier: str = "device") -> float:
        return sum(self.resting_bytes[tier].values())

    @cached_property
    def by_stage(self) -> list[float]:
        """Bytes of states on a GPU in each stage, at rest."""
        offload = self.offload if self.stage else "none"
        return [self.other(stage=stage, offload=offload).held_bytes() for stage in STAGES]

    @cached_property
    def fullest_bytes(self) -> float:
        """Bytes of states on a GPU at its fullest, where a block is gathered or reduced at a time."""
        unit = block_parameters(self.shape)
        _, tiers = zero.fullest(self.parameters, self.recipe, self.layout, unit, self.keeps, self.offloaded, self.tier)
        return sum(self._one_state(tiers["device"]).values())

    @property
    def states_fit(self) -> bool:
        """Whether the states alone do."""
        return self.fullest_bytes <= self.usable

    @cached_property
    def pass_bytes(self) -> int:
        """Bytes beside the states at the fullest moment of a pass: activations, logits, temporaries."""
        kinds = ("activations", "logits", "temporaries")
        return max(
            sum(kind_bytes[kind] for kind in kinds)
            for name, kind_bytes in fullest(self.job).moments.items()
            if name != "optimizer"
        )

    @cached_property
    def peak(self) -> float:
        """Bytes on a GPU at the fullest moment of a step. Where states are offloaded, or Muon keeps one fewer, the
        fullest moments of states and of the rest are taken for one."""
        plain = self.offloaded == "none" and not self.muon
        return fullest(self.job).peak_bytes if plain else self.fullest_bytes + self.pass_bytes

    @property
    def fits(self) -> bool:
        """Whether a GPU has memory for the states, and its node's host for what is offloaded."""
        return self.states_fit and self.host_fits

    @property
    def step_fits(self) -> bool:
        """Whether it has for all of the step."""
        return self.peak <= self.usable and self.host_fits

    @property
    def node_host(self) -> float:
        """Bytes of host memory that the GPUs of one node ask for."""
        return self.held_bytes("host") * self.job.cluster.gpus_per_node

    @property
    def host_fits(self) -> bool:
        """Whether a node of 8 H100 has as much."""
        return allocator.host_fits(self.held_bytes("host"), self.job.cluster.gpus_per_node)

    # --- what moves -------------------------------------------------------------------------------------------------

    @cached_property
    def frames(self) -> tuple[Frame, ...]:
        """Of the step, or of its last pass, with what the passes before it have sent."""
        step_frames = _frames(self.recipe, self.layout, self.keeps, self.passes, self.offloaded)
        if not self.muon:
            return step_frames
        return tuple(muon.frames(step_frames, wire.sent(muon.messages(self), self.ranks) / self.piece))

    def bytes_at(self, frame: Frame) -> dict[str, float]:
        """On a GPU, by kind, at a moment."""
        return self._one_state(zero_frames.frame_bytes(frame, self.parameters, self.recipe))

    @property
    def pieces(self) -> float:
        """The communication volume of a step in units of N: an int where it is whole."""
        return integral(self.frames[-1].sent)

    @cached_property
    def piece(self) -> float:
        """Bytes that a GPU sends for one N."""
        return self.parameters * self.widths["weights"] * (self.ranks - 1) / self.ranks

    @cached_property
    def sent(self) -> float:
        """Bytes that a GPU sends in a step."""
        messages = wire.messages(self.parameters, self.recipe, self.layout, keep=self.keeps, passes=self.passes)
        return wire.sent((*messages, *(muon.messages(self) if self.muon else ())), self.ranks)

    @cached_property
    def by_way(self) -> dict[str, float]:
        """Volumes of programs that have the stage, as they are installed, with an optimizer that updates each element
        independently."""
        if self.muon:
            return {}
        ways = [way for way, stages in wire.WAYS.items() if self.stage in stages and way not in ("paper", ALIKE)]
        job_args = (self.parameters, self.recipe, self.layout)
        return {way: integral(wire.pieces(*job_args, way, keep=self.keeps, passes=self.passes)) for way in ways}

    def frame_at(self, moment: int) -> tuple[int, float]:
        """The frame of a moment, and how far it is to the next one; MOMENTS: the last."""
        last = len(self.frames) - 1
        if moment >= MOMENTS - 1:
            return last, 0.0
        frame, part = divmod(moment * last, MOMENTS - 1)
        return frame, part / (MOMENTS - 1)

    # --- what it takes ----------------------------------------------------------------------------------------------

    @cached_property
    def job(self) -> Job:
        """Stage 3 that keeps what it gathered is `fully_shard`'s, which the job calls stage 2 without resharding."""
        layout = replace(self.layout, zero=2 if self.keeps else self.stage, micro_batches=self.passes)
        replicas = Replicas(reshard=not self.keeps, offload=self.offloaded, offload_to=self.tier)
        return Job(
            self.shape,
            self.shape.tokens(SEQ),
            self.card,
            self.cluster,
            self.batch,
            layout,
            self.recipe,
            PROGRAMS["compiled"],
            replicas,
        )

    @cached_property
    def time(self) -> Step:
        timed = step(self.job)
        return muon.time(self, timed) if self.muon else timed

    @cached_property
    def spent(self) -> dict[str, float]:
        """The step time by what it is spent on."""
        return {name: fsum(self.time.parts[part] for part in parts) for name, parts in SPENT.items()}

    @property
    def waits(self) -> tuple[str, ...]:
        """What communication and the host cost; with offload the update is the host's."""
        return ("exposed data", "exposed host") + ("update",) * (self.offloaded != "none")

    @property
    def exposed(self) -> float:
        """Seconds of them."""
        return fsum(self.time.parts[name] for name in self.waits)

    @cached_property
    def cluster(self) -> topology.Cluster:
        if self.link == "own":
            return topology.cluster(1, self.ranks, self.card.link)
        node_link = "ib-ndr" if self.link == "nodes" else "ethernet-100g"
        node_gpus = self.ranks // 2
        nics = node_gpus if self.link == "nodes" else 1
        return topology.cluster(2, node_gpus, self.card.link, node_link, nics, rdma=self.link == "nodes")


@lru_cache(maxsize=64)  # the same for every model, and every GPU
def _frames(recipe: Recipe, layout: Layout, keep: bool, passes: int, offload: str) -> tuple[Frame, ...]:
    frame = zero_frames.frames(recipe, layout, keep, 1, offload)
    if passes == 1:
        return frame
    two = zero_frames.frames(recipe, layout, keep, 2, offload)
    begins = len(two) - len(frame) + 1  # the frame after the first pass
    first_pass, extra_passes = two[begins - 1], passes - 2
    earlier = Frame(
        f"{passes - 1} of {passes} micro-batches done", first_pass.held, first_pass.sent, first_pass.crossed
    )
    return tuple(
        replace(
            frame,
            sent=frame.sent + extra_passes * first_pass.sent,
            crossed=frame.crossed + extra_passes * first_pass.crossed,
        )
        for frame in (earlier, *two[begins:])
    )


def integral(count: float) -> float:
    """A whole float as an int."""
    count = round(count, 9)
    return int(count) if count == int(count) else count
