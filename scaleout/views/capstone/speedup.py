"""Scaling curves of a run from 1 GPU to thousands: its job at each number of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil

from scaleout.memory.job import fullest
from scaleout.spec import topology
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import program
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.transformer import total_parameters
from scaleout.timing.job import step
from scaleout.views import base
from scaleout.views.base import kept
from scaleout.views.choices import LINKS

WORLDS = (1, 8, 64, 512, 4096)  # priced for every curve, beside the chosen one


@dataclass(frozen=True)
class Setting(base.TextSetting, remembered=128):
    """What is scaled. link: of `choices.LINKS`.

    sharding: "full" (FSDP over all GPUs), "hybrid" (FSDP in each node, copies across) or "ddp". batch: sequences of
    all GPUs together; each: at most so many a GPU and pass. program: of `spec.program`.
    """

    world: int
    link: str
    sharding: str
    batch: int
    each: int
    checkpointing: str
    program: str

    def passes(self, world: int) -> tuple[int, int]:
        """(sequences per pass, passes) of one GPU when `world` of them share the global batch, rounded up."""
        share = ceil(self.batch / world)
        count = ceil(share / self.each)
        return ceil(share / count), count

    @property
    def job(self) -> Job:
        """Of the GPUs that have a sequence, which share the global batch."""
        busy = min(self.world, self.batch)
        return self.job_of(busy, *self.passes(busy))

    def job_of(self, world: int, batch: int, count: int) -> Job:
        """`world` GPUs, each on `count` passes of `batch` sequences per step."""
        return _job(self._model, world, batch, count)

    @cached_property
    def _model(self) -> Setting:
        """What is the same for any number of GPUs and any batch."""
        return self.other(world=1, batch=1, each=1)


@kept
def _job(setting: Setting, world: int, batch: int, count: int) -> Job:
    device, (most_per_node, node_link, adapters, rdma, _) = setting.card, LINKS[setting.link]
    nodes, gpus = nodes_of(world, most_per_node)
    return Job(
        setting.shape,
        setting.tokens,
        device,
        topology.cluster(nodes, gpus, device.link, node_link, adapters, rdma),
        batch,
        Layout(dp=world, zero=0 if setting.sharding == "ddp" else 3, micro_batches=count),
        Recipe(
            "autocast-bf16",
            checkpointing=setting.checkpointing,
            buckets="views" if setting.sharding == "ddp" else "none",
        ),
        program(setting.program),
        Replicas(shards=gpus if setting.sharding == "hybrid" else None),
    )


def nodes_of(world: int, most_per_node: int) -> tuple[int, int]:
    """(nodes, GPUs in each): as few nodes as hold `world` GPUs evenly, each of at most
    `most_per_node`."""
    gpus = next(g for g in range(min(most_per_node, world), 0, -1) if world % g == 0)
    return world // gpus, gpus


# --- curves ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """One number of GPUs. exposed: share of the step that communication takes: a GPU waits for it, copies what it
    brings, and computes more slowly beside it. compute, wire: seconds that a GPU computes, and that communication is
    under way; busy: share of the places for sequences that are filled, each GPU having as many as the fullest;
    efficiency: tokens per second of a GPU over those of one alone."""

    seconds: float
    tokens_per_second: float
    exposed: float
    mfu: float
    compute: float = 0.0
    wire: float = 0.0
    busy: float = 1.0
    efficiency: float = 1.0

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Of a GPU's time: it works as one alone would; has less to do in each step beside its update, the host and the
        slowest GPU; communicates; is idle."""
        sends = self.exposed * self.busy
        works = min(self.efficiency, self.busy - sends)
        return works, self.busy - sends - works, sends, 1 - self.busy


@dataclass(frozen=True)
class Curves:
    """strong: the global batch is shared; weak: each GPU has what it has at the chosen number.

    By number of GPUs. Both are measured by one GPU that makes the whole global batch in passes of `each`, as if its
    memory were large enough. weak_batch: by number, its global batch.
    """

    strong: dict[int, Size]
    weak: dict[int, Size]
    weak_batch: dict[int, int]


@kept
def curves(setting: Setting) -> Curves:
    """The curves at WORLDS and the chosen number."""
    worlds = sorted({*WORLDS, setting.world})
    batch, count = setting.passes(setting.world)
    strong = {n: strong_at(setting, n) for n in worlds}
    weak = {n: size(setting.job_of(n, batch, count)) for n in worlds}
    alone = strong[1].tokens_per_second
    return Curves(_shares(strong, alone), _shares(weak, alone), {n: n * batch * count for n in worlds})


def strong_at(setting: Setting, world: int) -> Size:
    """`world` GPUs share the global batch; more GPUs than sequences leave the rest idle, and in the last round those
    that get none. efficiency is left at 1."""
    job = setting.other(world=world).job
    point, busy = size(job), job.layout.dp
    real = setting.batch / job.sequences  # of the sequences that the rounds have room for
    filled = real * busy / world
    return replace(point, tokens_per_second=point.tokens_per_second * real, mfu=point.mfu * filled, busy=filled)


@lru_cache(maxsize=1024)  # the same while the chosen number moves
def size(job: Job) -> Size:
    """A job's step."""
    timed = step(job)
    compute = timed.parts["compute"] + timed.parts["recompute"] + timed.parts["launches"]
    exposed = timed.parts["exposed data"] / timed.seconds
    return Size(timed.seconds, timed.tokens_per_second, exposed, timed.mfu, compute, timed.communication)


def _shares(sizes: dict[int, Size], alone: float) -> dict[int, Size]:
    return {n: replace(point, efficiency=point.tokens_per_second / n / alone) for n, point in sizes.items()}


# --- memory ---------------------------------------------------------------------------------------------------------


def groups(setting: Setting, kind: str) -> tuple[int, int]:
    """(ranks that share a copy of the model, copies) at the chosen number of GPUs."""
    ranks = {"full": setting.world, "hybrid": nodes_of(setting.world, LINKS[setting.link][0])[1], "ddp": 1}[kind]
    return ranks, setting.world // ranks


def fits(setting: Setting, kind: str) -> bool:
    """Whether one GPU holds its share of a step, and what the driver and the allocator take beside it."""
    states = 16 * total_parameters(setting.shape) / groups(setting, kind)[0]  # fp32 weights, gradients, two moments
    return states <= setting.usable and peak_bytes_of(setting, kind) <= setting.usable


def peak_bytes_of(setting: Setting, kind: str) -> int:
    """Bytes of one GPU at the peak of a pass. The device and the program do not matter."""
    alike = setting.other(sharding=kind, device="h100-sxm", program="compiled")
    return fullest(alike.job_of(setting.world, *setting.passes(min(setting.world, setting.batch)))).peak_bytes
