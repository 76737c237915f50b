"""What a reader chose in the view `tensor`, and what follows from it for a block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import fsum

from scaleout.collectives import tensor
from scaleout.collectives.placements import Move
from scaleout.collectives.tensor import MEGATRON, Block
from scaleout.memory.activations import Sizes, block_kept
from scaleout.spec import topology
from scaleout.spec.hardware import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS, Shape
from scaleout.timing.tensor import Phase, block_seconds
from scaleout.timing.tensor_machine import Machine, machine
from scaleout.views.tensor.scene import Scene

LINKS = {"nvlink": "NVLink, one node", "pcie": "PCIe, one node", "nodes": "InfiniBand, two nodes"}
SHORT = {"nvlink": "NVLink", "pcie": "PCIe", "nodes": "two nodes"}
RECIPE = Recipe("bf16-master")
WIDTH = RECIPE.width("compute")  # bytes of an element
DEVICE = DEVICES["h100-sxm"]


@dataclass(frozen=True)
class Setting:
    """What a reader chose, but for what only moves the picture."""

    tp: int
    sequence: bool
    link: str
    up: str
    model: str
    seq: str
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
        own = PRESETS[self.model]
        return own if self.kv == "own" else replace(own, kv_heads=int(self.kv))

    @property
    def tokens(self) -> int:
        """Of the one sequence."""
        return self.shape.tokens(int(self.seq))

    @cached_property
    def block(self) -> Block:
        return self._cut(self.tp, self.sequence, self.cuts)

    @cached_property
    def uncut(self) -> Block:
        """The same block on one GPU."""
        return self._cut(1, False, MEGATRON)

    def _cut(self, ranks: int, sequence: bool, cuts: dict[str, str]) -> Block:
        return tensor.block(
            self.shape, 1, self.tokens, ranks, sequence_parallel=sequence, cuts=cuts, width=WIDTH
        )

    # --- what is sent ------------------------------------------------------------------------------------------------

    @cached_property
    def scene(self) -> Scene:
        return Scene(self.block, self.shape, self.cuts)

    @property
    def one(self) -> float:
        """Bytes that a GPU sends in one all-reduce of x."""
        return Move("all_reduce", WIDTH * self.tokens * self.shape.hidden, self.tp, ("x",)).sent

    @property
    def sent(self) -> float:
        """Bytes that a GPU sends, forward and backward."""
        return self.block.sent("forward") + self.block.sent("backward")

    @property
    def worth(self) -> float:
        """All-reduces of x that would send as much: a whole number where it is a count."""
        count = round(self.sent / self.one, 9)
        return int(count) if count.is_integer() else count

    def at(self, step: int) -> dict:
        """What has been sent at a moment, and where the pass is."""
        done = [move for one in self.scene.moments[: step + 1] for move in one.moves]
        return {"moment": self.scene.moments[step].name, "messages_so_far": len(done),
                "sent_so_far_mb": fsum(one.sent for one in done) / 1e6}  # fmt: skip

    # --- what is held ------------------------------------------------------------------------------------------------

    @cached_property
    def held(self) -> tuple[float, float]:
        """Bytes of a GPU's weights, and of the activations that it keeps for the backward: under Megatron's cuts to the
        byte, under others with what kernels keep beside the block's tensors in proportion."""
        listed = self._cut(self.tp, self.sequence, MEGATRON).kept
        return _weights(self.block), self.block.kept * self._kept(self.tp, self.sequence) / listed

    @cached_property
    def alone(self) -> tuple[float, float]:
        """The same where one GPU holds it all."""
        return _weights(self.uncut), self._kept(1, False)

    def _kept(self, ranks: int, sequence: bool) -> int:
        sizes = Sizes(self.shape, 1, self.tokens, RECIPE, Layout(tp=ranks, sequence_parallel=sequence))
        return sum(block_kept(sizes, "none").values())

    def heads(self, rank: int) -> list[list[int]]:
        """Query heads and key-value heads of a rank, each [first, one past the last]: all of them unless Q, K and V are
        cut in columns."""
        if self.cuts["qkv"] != "columns":
            return [[0, self.shape.heads], [0, self.shape.kv]]
        mine = self.shape.heads // self.tp
        first = rank * self.shape.kv // self.tp
        return [[rank * mine, (rank + 1) * mine], [first, first + max(1, self.shape.kv // self.tp)]]

    # --- what it takes -----------------------------------------------------------------------------------------------

    def phases(self, link: str, overlap: str) -> tuple[Phase, Phase]:
        """Forward and backward of the block over a link."""
        return block_seconds(self.block, _machine(link, self.tp), overlap=overlap)

    def seconds(self, link: str) -> tuple[float, float]:
        """Computing, and waiting for the wire, of forward and backward."""
        there, back = self.phases(link, self.overlap)
        waits = there.exposed + back.exposed
        return there.seconds + back.seconds - waits, waits


@lru_cache(maxsize=16)  # each finds the prices of its collectives once
def _machine(link: str, ranks: int) -> Machine:
    """A rank of a node of as many GPUs, or of two nodes of half as many, each with an adapter of its own."""
    nodes = 2 if link == "nodes" else 1
    inside = "pcie5" if link == "pcie" else "nvlink4"
    return machine(DEVICE, topology.cluster(nodes, ranks // nodes, inside), Layout(tp=ranks))


def _weights(block: Block) -> int:
    """Bytes of a GPU's matrices."""
    return sum(WIDTH * one.local[0] * one.local[1] for one in block.weights)
