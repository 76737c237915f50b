"""A run in the view `bottlenecks`: what is trained and on what, which levers the reader has pressed, and what follows:
the step time by the resource that takes them, and the bytes to compare with usable memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import fsum, gcd

from scaleout.draw.parts import BUBBLE, COMMUNICATION
from scaleout.memory import allocator
from scaleout.memory import job as memory
from scaleout.memory.accounts import Account
from scaleout.spec import topology
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.transformer import PRESETS
from scaleout.timing import job as timing
from scaleout.views import base

# Resources of a step, in the order in which they are drawn.
ARITHMETIC, MEMORY, NETWORK, WAITING, INPUT, FIXED = RESOURCES = (
    "arithmetic", "memory bandwidth", "network", "waiting", "input", "fixed overhead",
)  # fmt: skip

FASTER = ("ib-ndr", 8, True)  # a 400 Gbit/s InfiniBand adapter for each GPU of a node


@dataclass(frozen=True)
class Run:
    """A run that the reader can look at. link: a key of `hardware.LINKS` between nodes, its adapters for each node, and
    whether they have RDMA; loader: tokens per second that one worker process prepares for one GPU, a figure that the
    view assumes; offload: Adam's states and its update are on the CPU."""

    words: str
    model: str
    nodes: int
    gpus: int
    seq: int
    program: str = "compiled"
    link: tuple[str, int, bool] = FASTER
    loader: float = 1e6
    offload: bool = False


RUNS = {
    "ethernet": Run("Llama 3 8B, 4 nodes, Ethernet", "llama-3-8b", 4, 8, 4096, link=("ethernet-100g", 1, False)),
    "node": Run("Llama 3 8B, one node", "llama-3-8b", 1, 8, 8192),
    "large": Run("Llama 3 70B, 8 nodes", "llama-3-70b", 8, 8, 4096),
    "loader": Run("GPT-2 small, slow data loader", "gpt2", 1, 8, 1024, "eager", loader=20_000.0),
    "host": Run("Llama 2 7B, Adam on the CPU", "llama-2-7b", 1, 4, 4096, offload=True),
}


@dataclass(frozen=True)
class Setting(base.Setting):
    """Controls by name. states: "copy" or "split"; recompute: "none", "selective", "full"; batch: sequences per GPU;
    link: "same" or "faster"; tp: tensor-parallel ranks; workers: of the loader, for each GPU."""

    run: str
    states: str
    recompute: str
    batch: int
    link: str
    tp: int
    workers: int

    @property
    def chosen(self) -> Run:
        return RUNS[self.run]

    @property
    def most_tensor_ranks(self) -> int:
        """The largest number of tensor-parallel ranks that divides the model's heads and the GPUs of a node."""
        shape = PRESETS[self.chosen.model]
        return gcd(shape.heads, shape.kv_heads or shape.heads, self.chosen.gpus)

    @property
    def tensor_ranks(self) -> int:
        """`tp`, or the most that the model and the node allow."""
        return min(self.tp, self.most_tensor_ranks)

    @property
    def link_matters(self) -> bool:
        """Whether the run has a network that a faster one could replace."""
        return self.chosen.nodes > 1 and self.chosen.link != FASTER

    @property
    def can_be_faster(self) -> bool:
        """Whether the run has such a network still."""
        return self.link_matters and self.link == "same"

    @property
    def split(self) -> bool:
        """Whether each GPU has only its share of the states: always, where Adam is on the CPU."""
        return self.states == "split" or self.chosen.offload

    @cached_property
    def job(self) -> Job:
        run, device, tp = self.chosen, DEVICES["h100-sxm"], self.tensor_ranks
        across, adapters, rdma = FASTER if self.link == "faster" else run.link
        return Job(
            PRESETS[run.model],
            run.seq,
            device,
            topology.cluster(run.nodes, run.gpus, device.link, across, adapters, rdma),
            self.batch * tp,
            Layout(dp=run.nodes * run.gpus // tp, tp=tp, zero=3 if self.split else 0, sequence_parallel=tp > 1),
            Recipe(
                "bf16-master", checkpointing=self.recompute, buckets="none" if self.split else "beside", loss="chunked"
            ),
            PROGRAMS[run.program],
            Replicas(offload="optimizer") if run.offload else Replicas(),
        )

    @cached_property
    def step(self) -> timing.Step:
        return timing.step(self.job)

    @cached_property
    def seconds_by(self) -> dict[str, float]:
        """Step time by resource, without what overlaps: the parts sum to the step time."""
        parts, work, job = self.step.parts, self.step.work, self.job
        blocks = (job.shape.layers, 1, 1)
        phases = [(n, phase) for n, part in zip(blocks, work, strict=True) for phase in (part.forward, part.backward)]
        moves = job.layout.m * fsum(n * phase.moves for n, phase in phases)
        seconds = {
            ARITHMETIC: parts["compute"] + parts["recompute"] - moves,
            MEMORY: moves + (0.0 if self.chosen.offload else parts["update"]),
            NETWORK: COMMUNICATION.of(parts),
            WAITING: parts["stragglers"] + BUBBLE.of(parts),
            FIXED: parts["launches"] + parts["host"] + self._on_host,
        }
        busy = fsum(seconds.values())
        wanted = job.tokens_per_step / job.layout.ranks / (self.chosen.loader * self.workers)
        seconds[INPUT] = max(0.0, wanted - busy)  # the loader works beside the step
        return {name: seconds[name] for name in RESOURCES}

    @property
    def _on_host(self) -> float:
        """Seconds of an update on the CPU, and of the copies around it that nothing hides."""
        return self.step.parts["exposed host"] + (self.step.parts["update"] if self.chosen.offload else 0.0)

    @cached_property
    def seconds(self) -> float:
        return fsum(self.seconds_by.values())

    @property
    def tallest(self) -> str:
        return max(RESOURCES, key=lambda name: self.seconds_by[name])

    @property
    def tokens_per_second(self) -> float:
        return self.job.tokens_per_step / self.seconds

    @cached_property
    def account(self) -> Account:
        return memory.fullest(self.job)

    @property
    def usable(self) -> float:
        return allocator.usable(self.job.device.memory_bytes)

    @property
    def fits(self) -> bool:
        return allocator.fits(self.account.peak_bytes, self.job.device.memory_bytes)

    @property
    def mfu(self) -> float:
        """Model FLOPs by the seconds with the loader's share, and the datasheet's peak of all GPUs."""
        return self.step.mfu * self.step.seconds / self.seconds

    @property
    def before(self) -> Setting:
        """The same run before any lever is pressed."""
        return self.other(states="split", recompute="none", batch=2, link="same", tp=1, workers=1)

    def gain_of(self, **changes) -> float:
        """How many times as many tokens per second the run processes with these changes."""
        return self.other(**changes).tokens_per_second / self.tokens_per_second
