"""What is trained in the view `recompute`, and on what: the tiles of a block, the step that keeps them all, and what it
holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from scaleout.memory import accounts, allocator, recompute
from scaleout.memory.activations import Sizes
from scaleout.spec import topology
from scaleout.spec.hardware import DEVICES, LINKS, Device
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS, Shape
from scaleout.timing import recompute as timing
from scaleout.timing import tensor, tensor_machine
from scaleout.timing.recompute import Priced
from scaleout.timing.tensor import TensorTime

NODE = 8  # GPUs of a node
DROPOUT = 0.1
FEW = (3, 4)  # blocks that are walked: each more holds as much more as the fourth; FSDP gathers ahead in three


@dataclass(frozen=True)
class Job:
    """What is trained, and on what. batch: sequences of seq tokens that a GPU (or a group of tp) takes at once; dp:
    GPUs (or groups) among which FSDP splits the states."""

    attention: str
    batch: int
    model: str
    seq: str
    device: str
    tp: int
    dp: int
    dropout: bool

    @cached_property
    def shape(self) -> Shape:
        return PRESETS[self.model]

    @property
    def tokens(self) -> int:
        return self.shape.tokens(int(self.seq))

    @property
    def recipe(self) -> Recipe:
        return Recipe("bf16-master", "adamw", attention=self.attention, dropout=DROPOUT if self.dropout else 0.0)

    @property
    def layout(self) -> Layout:
        return Layout(dp=self.dp, tp=self.tp, zero=3 if self.dp > 1 else 0)

    @property
    def card(self) -> Device:
        return DEVICES[self.device]

    def sizes(self, shape: Shape) -> Sizes:
        return Sizes(shape, self.batch, self.tokens, self.recipe, self.layout)

    @cached_property
    def z(self) -> Sizes:
        return self.sizes(self.shape)

    # --- seconds ----------------------------------------------------------------------------------------------------

    @cached_property
    def on(self) -> tensor_machine.Machine:
        ranks = self.dp * self.tp
        each = min(ranks, NODE)
        found = topology.cluster(ranks // each, each, self.card.link, "ib-ndr", each)
        return tensor_machine.machine(self.card, found, self.layout)

    @cached_property
    def plain(self) -> TensorTime:
        """The step that keeps everything."""
        return tensor.step_seconds(self.shape, self.batch, self.tokens, self.layout, self.on, self.recipe)

    @cached_property
    def items(self) -> dict[str, Priced]:
        """The tiles that a block can drop, in the order of its forward."""
        return {item.name: item for item in timing.priced(self.z, self.on)}

    @cached_property
    def slot(self) -> float:
        """Bytes a second of the GPU's PCIe slot, one way, at the share of its rate that long copies reach."""
        link = LINKS[topology.HOST_LINK.get(self.card.link, self.card.link)]
        return link.one_way_bytes_per_s * link.reached

    def moved(self, size: float) -> tuple[float, float]:
        """Seconds that the blocks wait where so many bytes go to the host's memory and come back: (out, back)."""
        layers = self.shape.layers
        beside = [phase.seconds * layers for phase in (self.plain.forward, self.plain.backward)]
        return timing.offload(size, self.slot, *beside)

    # --- bytes ------------------------------------------------------------------------------------------------------

    @property
    def blocks(self) -> int:
        return self.shape.layers

    @cached_property
    def block(self) -> int:
        """Bytes that a block can drop."""
        return sum(item.bytes for item in self.items.values())

    @cached_property
    def input(self) -> int:
        return self.z.x

    @cached_property
    def whole(self) -> dict[str, dict[str, float]]:
        """By moment and kind, what a step holds that drops nothing."""
        return self._walked(recompute.none)

    @cached_property
    def bare(self) -> dict[str, dict[str, float]]:
        """The same of a step that keeps inputs alone."""
        return self._walked(recompute.full)

    def _walked(self, policy) -> dict[str, dict[str, float]]:
        """Of all blocks, from steps of a few: `accounts.account` walks each, which takes longer than a picture may."""
        few, more = (self._account(policy, layers) for layers in FEW)
        ahead = self.blocks - FEW[0]
        return {moment: {kind: size + ahead * (more[moment][kind] - size) for kind, size in kinds.items()}
                for moment, kinds in few.items()}  # fmt: skip

    def _account(self, policy, layers: int) -> dict[str, dict[str, int]]:
        shape = replace(self.shape, layers=layers)
        found = accounts.account(shape, self.batch, self.tokens, self.recipe, self.layout,
                                 policy=policy(self.sizes(shape)))  # fmt: skip
        return found.moments

    @property
    def room(self) -> int:
        """Bytes that tensors may fill."""
        return allocator.room(self.card.memory_bytes)
