"""What a reader chose in the view `tensor`, and what follows from it for a block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum

from scaleout.collectives import tensor
from scaleout.collectives.job import cut
from scaleout.collectives.placements import Move
from scaleout.collectives.tensor import MEGATRON, Block
from scaleout.memory.activations import Sizes, block_kept
from scaleout.spec import topology
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.transformer import PRESETS, Shape
from scaleout.timing import compute, machine
from scaleout.timing.compute import Work
from scaleout.views import base
from scaleout.views.base import kept
from scaleout.views.tensor.scene import Scene

LINKS = {"nvlink": "NVLink, one node", "pcie": "PCIe, one node", "nodes": "InfiniBand, two nodes"}
SHORT = {"nvlink": "NVLink", "pcie": "PCIe", "nodes": "two nodes"}
PROGRAM = PROGRAMS["megatron"]
DEVICE = DEVICES["h100-sxm"]


@dataclass(frozen=True)
class Setting(base.Setting):
    """What a reader chose, but for what only moves the picture."""

    tp: int
    sequence: bool
    link: str
    up: str
    model: str
    seq: int
    kv: str
    qkv: str
    out: str
    down: str
    overlap: str

    @cached_property
    def cuts(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in MEGATRON}

    @cached_property
    def shape(self) -> Shape:
        preset = PRESETS[self.model]
        return preset if self.kv == "own" else replace(preset, kv_heads=int(self.kv))

    @property
    def tokens(self) -> int:
        """Of the one sequence."""
        return self.shape.tokens(self.seq)

    @cached_property
    def job(self) -> Job:
        """The whole model, one sequence, on one group of tp GPUs; its matrices cut as Megatron cuts them."""
        return self.job_over(self.link, self.overlap)

    def job_over(self, link: str, overlap: str) -> Job:
        """The job over another link, or with another overlap: in a node, or in two with half of the GPUs each, and an
        adapter for each GPU."""
        nodes = 2 if link == "nodes" else 1
        inside = "pcie5" if link == "pcie" else "nvlink4"
        return Job(
            self.shape,
            self.tokens,
            DEVICE,
            topology.cluster(nodes, self.tp // nodes, inside),
            layout=Layout(tp=self.tp, sequence_parallel=self.sequence),
            program=replace(PROGRAM, tensor_overlap=overlap),
        )

    @cached_property
    def one_gpu(self) -> Job:
        """The same on one GPU."""
        return self.job.other(cluster=topology.cluster(1, 1), tp=1, sequence_parallel=False)

    @cached_property
    def block(self) -> Block:
        return _cut(self.job, self.cuts)

    @cached_property
    def uncut(self) -> Block:
        """The same block on one GPU."""
        return _cut(self.one_gpu, MEGATRON)

    # --- what is sent ------------------------------------------------------------------------------------------------

    @cached_property
    def scene(self) -> Scene:
        return Scene(self.block, self.shape, self.cuts)

    @property
    def all_reduce_bytes(self) -> float:
        """Bytes that a GPU sends in one all-reduce of x."""
        return Move("all_reduce", self.job.stream_bytes * self.tokens * self.shape.hidden, self.tp, ("x",)).sent

    @property
    def sent(self) -> float:
        """Bytes that a GPU sends, forward and backward."""
        return self.block.sent("forward") + self.block.sent("backward")

    @property
    def worth(self) -> float:
        """All-reduces of x that would send as much: a whole number where it is a count."""
        count = round(self.sent / self.all_reduce_bytes, 9)
        return int(count) if count.is_integer() else count

    def progress(self, step: int) -> dict:
        """The bytes sent up to a moment, and where the pass is."""
        moves = [move for moment in self.scene.moments[: step + 1] for move in moment.moves]
        return {
            "moment": self.scene.moments[step].name,
            "messages_so_far": len(moves),
            "sent_so_far_mb": fsum(moment.sent for moment in moves) / 1e6,
        }

    # --- what is held ------------------------------------------------------------------------------------------------

    @cached_property
    def held_bytes(self) -> tuple[float, float]:
        """Bytes of a GPU's weights, and of the activations that it keeps for the backward: under Megatron's cuts to the
        byte, under others with what kernels keep beside the block's tensors in proportion."""
        listed = _cut(self.job, MEGATRON).kept
        return _weights(self.block, self.job), self.block.kept * _kept_bytes(self.job) / listed

    @cached_property
    def alone(self) -> tuple[float, float]:
        """The same where one GPU holds it all."""
        return _weights(self.uncut, self.one_gpu), _kept_bytes(self.one_gpu)

    def heads(self, rank: int) -> list[list[int]]:
        """Query heads and key-value heads of a rank, each [first, one past the last]: all of them unless Q, K and V are
        cut in columns."""
        if self.cuts["qkv"] != "columns":
            return [[0, self.shape.heads], [0, self.shape.kv]]
        mine = self.shape.heads // self.tp
        first = rank * self.shape.kv // self.tp
        return [[rank * mine, (rank + 1) * mine], [first, first + max(1, self.shape.kv // self.tp)]]

    # --- what it takes -----------------------------------------------------------------------------------------------

    @kept
    def work(self, link: str, overlap: str) -> Work:
        """Forward and backward of the block over a link, with its own cuts."""
        job = self.job_over(link, overlap)
        return compute.block(job, machine.from_datasheet(job), self.block)

    @property
    def overlapped(self) -> str:
        """How communication overlaps here: chunks need sequence parallelism and one node."""
        return compute.overlap(self.job, machine.from_datasheet(self.job))

    def seconds(self, link: str) -> tuple[float, float]:
        """Computing, and waiting for the wire, of forward and backward."""
        work = self.work(link, self.overlap)
        return work.forward_seconds + work.backward_seconds - work.exposed, work.exposed


def _cut(job: Job, cuts: dict[str, str]) -> Block:
    return tensor.block(job.shape, job.batch, job.seq, job.layout.tp, cuts=cuts, **cut(job))


def _weights(block: Block, job: Job) -> int:
    """Bytes of a GPU's matrices."""
    width = job.recipe.width("compute")
    return sum(width * weight.local[0] * weight.local[1] for weight in block.weights)


def _kept_bytes(job: Job) -> int:
    """Bytes of a block's activations that a GPU keeps for the backward."""
    sizes = Sizes(job.shape, job.batch, job.seq, job.recipe, job.layout)
    return sum(block_kept(sizes, "none").values())
