"""What a reader chose in the view `mesh`, and what follows: the grid of ranks, what each axis sends, bytes, seconds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import fsum

from scaleout.collectives.job import Traffic, traffic
from scaleout.memory.accounts import Account
from scaleout.memory.job import fullest, fullest_rank
from scaleout.spec import frameworks, mesh, pipeline, topology
from scaleout.spec.hardware import LINKS as WIRES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.mesh import Grid
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.slices import divides
from scaleout.spec.topology import Cluster
from scaleout.timing import sent
from scaleout.timing.job import Step, step
from scaleout.views import base
from scaleout.views.base import kept

AXES = ("tp", "cp", "dp", "pp")  # as they are told: from what is sent in every block to what goes from stage to stage
# By name: (link between nodes, one adapter per GPU or one per node, RDMA, words)
LINKS = {
    "ib-ndr": (True, True, "InfiniBand 400 Gbit/s"), "ib-hdr": (True, True, "InfiniBand 200 Gbit/s"),
    "ethernet-400g": (True, True, "RoCE 400 Gbit/s"),
    "ethernet-100g": (False, False, "Ethernet 100 Gbit/s, one per node"),
}  # fmt: skip
MOST_MICRO_BATCHES = 512  # micro-batches
ACTIONS = 4096  # forwards of a step on all ranks of a pipeline, at most: each of them is placed in time
WIDEST = 16  # GPUs of a tensor or context group
CHUNKS = 8  # of a pipeline rank, at most


@dataclass(frozen=True)
class Look(base.Setting):
    """What of the picture is lit: a rank, and what it has in common with others (LOOKS); moment: of the step."""

    rank: int
    look: str
    moment: int


LOOKS = {"all": "nothing: all links", "groups": "ranks it communicates with",
         "weights": "ranks with the same weights", "tokens": "ranks with the same tokens"}  # fmt: skip


@dataclass(frozen=True)
class Setting(base.TextSetting):
    """What a reader chose, but for what is lit. order: of the axes, outermost first, those of replicas as "dp"; the
    others as the controls have them: what cannot be together becomes the nearest that can, in this order: tp, pp, cp,
    chunks, micro-batches."""

    order: str
    micro_batches: int
    link: str
    gpus: int
    tp: int
    pp: int
    cp: int
    zero: int
    chunks: int
    batch: int
    recompute: str
    node: int
    loss: str = "eager"
    program: str = "megatron"

    # --- what can be ------------------------------------------------------------------------------------------------

    @cached_property
    def layout(self) -> Layout:
        tp = next(n for n in _halvings(self.tp) if divides(self.shape, n) and n <= self.gpus)
        pp = next(n for n in _halvings(self.pp) if n <= min(self.gpus // tp, self.shape.layers))
        cp = next(n for n in _halvings(self.cp) if n <= self.gpus // (tp * pp))
        chunk_counts = (1, *self.all_chunks(pp))
        v = max(n for n in chunk_counts if n <= max(1, self.chunks))
        schedule = "interleaved" if v > 1 else "1f1b"
        m = max(pp, min(self.micro_batches, most_micro_batches(pp, v)))
        m = pipeline.nearest(schedule, pp, m) if pp > 1 else m
        dp = self.gpus // (tp * pp * cp)
        zero = self.zero if dp * cp > 1 else 0
        return Layout(
            dp=dp,
            tp=tp,
            pp=pp,
            zero=zero,
            sequence_parallel=tp > 1,
            chunks=v,
            micro_batches=m,
            schedule=schedule,
            cp=cp,
        )

    def all_chunks(self, pp: int) -> tuple[int, ...]:
        """Numbers of chunks above 1 that leave the stages of so many ranks alike: as many blocks on each, or one less
        on the first and on the last, which have the embedding and the head."""
        layers = self.shape.layers
        tried = range(2, min(CHUNKS, layers // pp) + 1) if pp > 1 else ()
        return tuple(v for v in tried if not layers % (v * pp) or not (layers + 2) % (v * pp))

    @cached_property
    def nodes(self) -> int:
        return self.gpus // self.node

    @cached_property
    def standing(self) -> Setting:
        """The setting of all those whose ranks stand and hold as this one's do."""
        return self.other(micro_batches=1, link="ib-ndr", device="h100-sxm", recompute="none", batch=1, seq=4096)

    # --- the job ----------------------------------------------------------------------------------------------------

    @cached_property
    def job(self) -> Job:
        """What seconds, bytes and communication are of."""
        return Job(
            self.shape,
            self.tokens,
            self.card,
            self.cluster,
            self.batch,
            self.layout,
            self.recipe,
            PROGRAMS[self.program],
            order=self.axes,
        )

    @cached_property
    def recipe(self) -> Recipe:
        recipe = Recipe("bf16-master", checkpointing=self.recompute, main_gradients="instead", loss=self.loss)
        return frameworks.trained(PROGRAMS[self.program], self.layout, recipe)

    @cached_property
    def cluster(self) -> Cluster:
        per_gpu, rdma, _ = LINKS[self.link]
        return topology.cluster(self.nodes, self.node, self.card.link, self.link, self.node if per_gpu else 1, rdma)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """All four, outermost first: cp lies within dp, as Megatron has it."""
        return tuple(axis for name in self.order.split(".") for axis in (("dp", "cp") if name == "dp" else (name,)))

    @property
    def grid(self) -> Grid:
        return self.job.grid

    @cached_property
    def crossing(self) -> tuple[str, ...]:
        """Axes whose groups lie on several nodes."""
        return tuple(axis for axis in self.grid.names if mesh.crosses(self.cluster, self.grid, axis))

    def wire(self, axis: str) -> str:
        """The name of the link that an axis takes."""
        key = self.link if axis in self.crossing else self.card.link
        return WIRES[key].name

    @cached_property
    def shown(self) -> tuple[str, ...]:
        """The axes that are shown: all three, and cp where there is one."""
        return tuple(axis for axis in AXES if axis != "cp" or self.layout.cp > 1)

    # --- what follows -----------------------------------------------------------------------------------------------

    @kept
    def traffic(self, stage: int) -> dict[str, Traffic]:
        """By axis, of a rank in this stage of the pipeline."""
        return traffic(self.job, stage)

    @kept
    def wire_seconds(self, stage: int) -> dict[str, float]:
        """Seconds of the same, hidden or not."""
        return sent.seconds(self.job, stage)

    def spent(self, stage: int) -> float:
        """Of all axes together."""
        return fsum(self.wire_seconds(stage).values())

    def longest(self, stage: int) -> float:
        """The same where what sends most, tensor parallelism if there is any, lies farthest apart: the end of an axis
        that stays while axes are dragged."""
        dearest = "tp.pp.dp" if self.layout.tp > 1 else "dp.pp.tp"
        return max(self.spent(stage), self.other(order=dearest).spent(stage))

    @cached_property
    def time(self) -> Step:
        return step(self.job)

    @property
    def program_name(self) -> str:
        """Of the program whose seconds they are, as short as a picture has it."""
        return self.job.program.label.removesuffix(" with Transformer Engine")

    @property
    def pace(self) -> float:
        """Tokens per second of one GPU."""
        return self.time.tokens_per_second / self.gpus

    @cached_property
    def exposed(self) -> dict[str, float]:
        """Seconds of exposed communication in a step, by axis."""
        parts = self.time.parts
        return {
            "tp": parts["exposed tensor"],
            "cp": parts["exposed context"],
            "dp": parts["exposed data"],
            "pp": parts["hops"],
        }

    @cached_property
    def account(self) -> Account:
        """What the fullest rank uses."""
        return fullest(self.job)

    @property
    def fullest_stage(self) -> int:
        return fullest_rank(self.job)

    @property
    def fits(self) -> bool:
        return self.account.peak_bytes <= self.usable


def most_micro_batches(pp: int, v: int) -> int:
    """As many as a step is shown with."""
    return max(pp, min(MOST_MICRO_BATCHES, ACTIONS // (pp * v))) if pp > 1 else MOST_MICRO_BATCHES


def _halvings(count: int) -> tuple[int, ...]:
    """What was asked for, and its halves."""
    return tuple(count >> k for k in range(count.bit_length()))
