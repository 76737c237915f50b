"""What a micro-batch costs on one rank of a mesh: a block under tensor and context parallelism, and the model's ends.

A block is `timing.tensor`'s, of this rank's part of each sequence; its queries attend to the keys of all cp parts, so
that its core takes cp times as long as that of a sequence as short as the part. Causal attention is cut so that all
ranks have as much of it (`spec.layout.within`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from scaleout.collectives.tensor import block
from scaleout.collectives.vocabulary import ends
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape
from scaleout.timing.mesh_machine import MeshMachine, Sends
from scaleout.timing.tensor import Phase, block_seconds, core_seconds, outside
from scaleout.timing.tensor_machine import Machine


@dataclass(frozen=True)
class Work:
    """Seconds of a micro-batch in one block, or in an end of the model. again: what of the backward is forward once
    more, without messages; context: what is exposed among cp ranks, forward and backward, beside the phases' own;
    weights: how much of the backward is the weights' gradients."""

    forward: Phase
    backward: Phase
    again: float = 0.0
    context: tuple[float, float] = (0.0, 0.0)
    weights: float = 0.0

    @property
    def there(self) -> float:
        return self.forward.seconds + self.context[0]

    @property
    def back(self) -> float:
        return self.backward.seconds + self.context[1]

    @property
    def exposed(self) -> float:
        """Of messages among tp ranks."""
        return self.forward.exposed + self.backward.exposed



def block_work(
    shape: Shape, batch: int, tokens: int, layout: Layout, on: MeshMachine, recipe: Recipe, overlap: str = "backward",
    context: str = "ring",
) -> Work:  # fmt: skip
    """A block on one rank, of `tokens` of each sequence: its queries attend to all cp parts of the keys.

    Chunks travel by copies from GPU to GPU, inside a node: where tp groups cross nodes, "chunked" is "backward".
    """
    if overlap == "chunked" and layout.tp > 1 and not layout.sequence_parallel:
        raise ValueError("overlap chunked cuts gathers and scatters: it needs sequence_parallel=True")
    if layout.cp > 1 and recipe.attention == "naive":
        raise ValueError("across cp ranks no rank has all scores: use attention sdpa, not naive")
    overlap = "backward" if overlap == "chunked" and "tp" in on.crossing else overlap
    kept, phases, core = _block(shape, batch, tokens, layout.tp, on.rank, overlap, recipe.attention,
                                bool(recipe.dropout), tuple(cut(layout, recipe).items()))  # fmt: skip
    forward, backward = (_attending(phase, layout.cp) for phase in phases)
    passed = tuple(_passed(kept * times, phase.attention, layout.cp, on, context, back)
                   for times, phase, back in ((1, forward, False), (2, backward, True)))  # fmt: skip
    weights = forward.products
    if recipe.checkpointing == "full":
        again = forward.seconds - forward.exposed
        return Work(forward, backward + forward, again, (passed[0], passed[1] + passed[0]), weights)
    if recipe.checkpointing == "selective":
        core = _attending(core, layout.cp)
        return Work(forward, backward + core, core.seconds, (passed[0], passed[1] + passed[0]), weights)
    return Work(forward, backward, 0.0, passed, weights)


@lru_cache(maxsize=8)
def _block(
    shape: Shape, batch: int, tokens: int, tp: int, rank: Machine, overlap: str, attention: str, dropout: bool,
    options: tuple,
) -> tuple[int, tuple[Phase, Phase], Phase]:  # fmt: skip
    """What of a block no context parallelism and no recomputation changes: bytes of its keys and values, its phases,
    and of the forward the attention's core alone. Those who ask ask with one way to recompute after another."""
    one = block(shape, batch, tokens, tp, **dict(options))
    kept = 2 * next(tensor.bytes for tensor in one.tensors if tensor.name == "k")
    phases = block_seconds(one, rank, overlap=overlap, attention=attention, dropout=dropout)
    return kept, phases, Phase(0.0, *core_seconds(one, rank, attention, dropout)[0], 0.0, 0.0)


def end_work(
    shape: Shape, batch: int, tokens: int, layout: Layout, on: MeshMachine, recipe: Recipe
) -> tuple[Work, Work]:
    """The first end, the token table, and the last, the head with the loss."""
    both = ends(shape, batch, tokens, layout.tp, **cut(layout, recipe))
    first = Work(*outside(shape, both, on.rank, ("embedding",)))
    last = outside(shape, both, on.rank, ("head", "loss"))
    return first, Work(*last, weights=last[0].products)


def hop_bytes(shape: Shape, batch: int, tokens: int, layout: Layout, recipe: Recipe) -> float:
    """A message from stage to stage: the residual stream, of which sequence parallelism has a part on each rank."""
    size = batch * tokens * shape.hidden * recipe.width("stream")
    return size / layout.tp if layout.sequence_parallel else size


def hop_seconds(shape: Shape, batch: int, tokens: int, layout: Layout, recipe: Recipe, hop: Sends) -> float:
    """Until it is there; 0 without a pipeline."""
    return hop(hop_bytes(shape, batch, tokens, layout, recipe)) if layout.pp > 1 else 0.0


def tied_bytes(shape: Shape, layout: Layout, recipe: Recipe) -> float:
    """Gradients of a tied table, which the pipeline's first and last rank both have and add up once a step; 0 where one
    rank has both ends."""
    if not shape.tied_head or layout.last_rank == 0:
        return 0
    return ceil(shape.vocab / layout.tp) * shape.hidden * recipe.gradient_bytes


def tied_seconds(shape: Shape, layout: Layout, recipe: Recipe, hop: Sends) -> float:
    """The same in a ring of two: half of it there, and half of the sum back. After the last backward, behind nothing
    (Megatron-LM, megatron/core/distributed/finalize_model_grads.py)."""
    size = tied_bytes(shape, layout, recipe)
    return 2 * hop(size / 2) if size else 0.0


def cut(layout: Layout, recipe: Recipe) -> dict:
    """Options of `collectives.tensor.block` and `vocabulary.ends`."""
    return {"sequence_parallel": layout.sequence_parallel, "width": recipe.width("compute"),
            "stream": recipe.width("stream"), "gather_again": layout.gather_again}  # fmt: skip


def _attending(phase: Phase, cp: int) -> Phase:
    """Queries of a part attend to cp parts: as many times the core of a sequence that is as long as the part."""
    return replace(phase, attention=cp * phase.attention)


def _passed(size: int, attention: float, cp: int, on: MeshMachine, context: str, back: bool) -> float:
    """Exposed seconds of a block's keys and values, `size` bytes a rank, beside `attention` seconds; in the backward
    with their gradients, whose last part has nothing left to hide behind."""
    if cp == 1:
        return 0.0
    if context == "ring":
        turn = on.turn(size)
        return (cp - 1) * max(0.0, turn - attention / cp) + (on.turn(size / 2) if back else 0.0)
    if not back:
        return on.context("all_gather", cp * size)
    return on.context("all_gather", cp * size / 2) + on.context("reduce_scatter", cp * size / 2)
