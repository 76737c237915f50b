"""A step of ZeRO by hand, allocation by allocation: the memory of one rank, and its peak.

The operations are a plain step's, as `memory` walks them, in fp32; what `parallel.zero` does at the edges of a unit
stands between them: it reduces a unit through two flat copies of its gradients, the second of which is padded. A
prediction of one program's bytes, which nobody needs without that program: so it stands here, and not in `memory`.
"""

from __future__ import annotations

from math import ceil

from scaleout.memory.activations import Sizes
from scaleout.memory.fsdp import WholeGradients, units_forward
from scaleout.memory.loss import head, loss
from scaleout.memory.tape import KINDS as PLAIN
from scaleout.memory.tape import Tape
from scaleout.memory.walk import embedding, update
from scaleout.spec import checks
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding, units
from scaleout.spec.transformer import Shape

KINDS = (*PLAIN, "gathered", "buffers", "whole gradients")
WIDTH = 4  # bytes of a number: fp32


class ZeroTape(Tape):
    """A Tape of whose units the gradients become shards, and in stage 3 whole weights come and go."""

    def __init__(self, shape: Shape, ranks: int, stage: int) -> None:
        super().__init__(KINDS)
        self.stage, self.ranks = stage, ranks
        self.units = {unit.name: unit.parameters for unit in units(shape, Sharding(ranks))}
        self.gathered: set[str] = set()

    def padded(self, name: str) -> int:
        """Elements of a unit, with those that make its shards equal."""
        return self.ranks * ceil(self.units[name] / self.ranks)

    def begin(self, *_) -> None:
        """FSDP's tape keeps a moment of each stretch; this one has the moments of a plain step."""

    def _unit(self, module: str) -> str | None:
        return self.inside if module == "" else None

    def pre_forward(self, module: str) -> None:
        if self._unit(module) is not None:
            self._gather(self.inside)

    def post_forward(self, module: str) -> None:
        if self._unit(module) is not None:
            self._free(self.inside)

    pre_backward = pre_forward

    def post_backward(self, module: str) -> None:
        if self.stage > 1 and self._unit(module) is not None:
            self.reduce(self.inside)

    def _gather(self, name: str) -> None:
        if self.stage == 3 and name not in self.gathered:
            self.gathered.add(name)
            self.hold("gathered", WIDTH * self.padded(name))

    def _free(self, name: str) -> None:
        if name in self.gathered:
            self.gathered.remove(name)
            self.drop("gathered", WIDTH * self.padded(name))

    def reduce(self, name: str) -> None:
        """The unit's gradients end to end, then padded; one shard of their mean stays."""
        self._free(name)
        plain, padded = WIDTH * self.units[name], WIDTH * self.padded(name)
        self.hold("buffers", plain, padded)
        self.drop("buffers", plain)
        self.drop("whole gradients", plain)
        self.hold("gradients", padded // self.ranks)
        self.drop("buffers", padded)


def zero_step(shape: Shape, batch: int, seq: int, ranks: int, stage: int) -> dict[str, dict[str, int]]:
    """{moment: {kind: bytes}} of one rank at the fullest instant of each moment, in a step with AdamW on `batch`
    sequences of `seq` tokens; it is not the first. Stage 1, 2 or 3, by hand, in fp32 (`parallel.zero`).

    Raises ValueError, in one line, for sizes that cannot be.
    """
    checks.whole("ranks", ranks)
    if not checks.is_whole(stage) or stage not in (1, 2, 3):
        raise ValueError(f"stage must be 1, 2 or 3, not {stage!r}")
    recipe, tape = Recipe(precision="fp32"), ZeroTape(shape, ranks, stage)
    z = Sizes(shape, batch, seq, recipe, Layout())
    padded_bytes = WIDTH * sum(map(tape.padded, tape.units))
    sizes = {
        "weights": padded_bytes // (ranks if stage == 3 else 1),
        "optimizer": 2 * padded_bytes // ranks,
        "master": 0,
    }
    for kind, size in sizes.items():
        tape.hold(kind, size)
    tape.hold("activations", z.batch_bytes)
    units_forward(z, tape)
    tape.enter("loss")
    tape.pre_backward("")
    loss(z, tape)
    backward = WholeGradients(z, tape)
    head(z, backward)
    tape.enter("block")
    for i in reversed(range(shape.layers)):
        tape.inside = f"blocks.{i}"
        tape.pre_backward("")
        backward.block()
        tape.post_backward("")
    tape.inside = ""
    embedding(z, backward)
    tape.post_backward("")
    for name in tape.units if stage == 1 else ():
        tape.reduce(name)
    tape.enter("optimizer")
    tape.passing("temporaries", *update(z, sizes))
    return {moment: kinds for moment, (_, kinds) in tape.fullest.items()}
