"""Seconds of a step under tensor and sequence parallelism: products, other kernels, and messages that nothing hides.

Each message of a block stands between two operations that need each other, so it is exposed, unlike DDP's. Three ways
to run it: "none", one after the other; "backward", as Megatron does, where in the backward what is gathered again goes
beside the input's gradient, and the input's gradient is summed beside the weights' (Korthikanti et al. 2022, arXiv
2205.05198, section 4.2.2); "chunked", asynchronous tensor parallelism, where a gather or a scatter is cut into t parts
that travel round a ring beside the t parts of its product (Wang et al. 2023, ASPLOS, doi 10.1145/3567955.3567959;
torch's symmetric memory). What chunks cost beside (smaller products, engines shared with the copies) is not priced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum

from scaleout.collectives.placements import Move
from scaleout.collectives.tensor import HALVES, Block, Join, block
from scaleout.collectives.vocabulary import Ends, ends, sums
from scaleout.memory.states import rank_parameters
from scaleout.spec import checks
from scaleout.spec.layout import Layout, alone
from scaleout.spec.recipe import CHOICES, Recipe
from scaleout.spec.transformer import Shape, flops
from scaleout.timing.ddp_seconds import ADAMW_BYTES, utilization
from scaleout.timing.tensor_machine import Machine, Price

OVERLAPS = ("none", "backward", "chunked")

# How often kernels that are no matrix product read or write a tensor, (forward, backward). Of the stream, for each
# half of a block: a norm and a residual sum, and under dropout a mask of a byte. Of naive attention's scores: made,
# scaled and masked and made probabilities, read by the next product. Of an fp32 logit: the cast, the three reductions.
STREAM, STREAM_DROPPED = (5, 6), (0.5, 2.5)
SCORES, SCORES_DROPPED = (4, 6), (2.5, 2.5)
LOGITS = (5, 3)


# --- one block ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phase:
    """Seconds of a forward or a backward on one rank. messages: of all collectives; exposed: of those, what no product
    hides. `seconds` is the sum of all but the messages."""

    products: float
    attention: float  # its core, between q, k, v and out
    other: float  # kernels that move bytes and multiply no matrices
    messages: float
    exposed: float

    @property
    def seconds(self) -> float:
        return self.products + self.attention + self.other + self.exposed

    def __add__(self, more: Phase) -> Phase:
        return Phase(*(a + b for a, b in zip(self._all(), more._all(), strict=True)))

    def times(self, n: float) -> Phase:
        """n of them, one after the other."""
        return Phase(*(n * value for value in self._all()))

    def _all(self) -> tuple[float, ...]:
        return self.products, self.attention, self.other, self.messages, self.exposed


def block_seconds(
    one: Block, on: Machine, *, attention: str = "sdpa", dropout: bool = False, overlap: str = "none"
) -> tuple[Phase, Phase]:
    """(forward, backward) of a block. Backward: two products for each of the forward's, and naive attention's likewise.

    attention: "sdpa" is a fused causal kernel, which skips the half of the scores that the mask hides; "naive" moves
    the scores through memory. ValueError for an overlap that there is not.
    """
    checks.instance("one", one, Block)
    checks.instance("on", on, Machine)
    checks.one_of("overlap", overlap, OVERLAPS)
    checks.one_of("attention", attention, CHOICES["attention"])
    core = core_seconds(one, on, attention, dropout)
    moved = _moved(one, dropout)
    products = {half: _products(one, half, on) for half in HALVES}
    whole = fsum(fsum(pair) for pair in products.values())
    phases = []
    for phase, name in enumerate(("forward", "backward")):
        messages = _sum(one.moves(name), on.inside)
        exposed = fsum(
            _exposed(join, name, products[join.half], one.tp, on, overlap) for join in one.joins if getattr(join, name)
        )
        attends, moves = core[phase]
        other = moves + moved[phase] / on.memory_bytes_per_s
        phases.append(Phase((1 + phase) * whole, attends, other, messages, exposed))
    return phases[0], phases[1]


def _products(one: Block, half: str, on: Machine) -> tuple[float, float]:
    """Forward seconds of the matrices of a half: of those that read x, and of the one that gives the sum."""
    last = {"attention": "out", "mlp": "down"}[half]
    names = {"attention": ("q", "k", "v"), "mlp": ("gate", "up")}[half]
    first = sum(weight.flops for weight in one.weights if weight.name in names)
    second = sum(weight.flops for weight in one.weights if weight.name == last)
    return first / on.flop_per_s, second / on.flop_per_s


def _exposed(join: Join, phase: str, products: tuple[float, float], tp: int, on: Machine, overlap: str) -> float:
    """Seconds of a join's messages that no product hides."""
    moves = getattr(join, phase)
    seconds = [on.inside(move.collective, move.size) for move in moves]
    beside = {"into": products[0], "out of": products[1]}.get(join.at, 0.0)
    if overlap == "chunked":
        return fsum(
            chunked(s, beside, tp) if m.collective != "all_reduce" else s for m, s in zip(moves, seconds, strict=True)
        )
    if overlap == "backward" and phase == "backward" and join.at == "into":
        return fsum(max(0.0, s - beside) for s in seconds)
    return fsum(seconds)


def chunked(message: float, product: float, tp: int) -> float:
    """Exposed seconds of a gather or scatter of t chunks round a ring beside the t chunks of its product.

    The first chunk of a gather's product is there at once, the last of a scatter's goes nowhere; t - 1 hops of
    message / (t - 1) seconds stand beside t - 1 chunks of product / t seconds: what is longer, the other waits for.
    """
    checks.whole("tp", tp)
    return max(0.0, message - product * (tp - 1) / tp)


def core_seconds(one: Block, on: Machine, attention: str, dropout: bool) -> tuple[tuple[float, float], ...]:
    """((seconds of its products, of its other kernels) forward, and backward) of attention between q, k, v and out."""
    if attention == "sdpa":
        fused = one.core_flops / 2 / on.fused_flop_per_s
        return (fused, 0.0), (2.5 * fused, 0.0)  # which makes the scores again
    size = one.scores * next(tensor.width for tensor in one.tensors if tensor.name == "q")
    passes = [a + b * dropout for a, b in zip(SCORES, SCORES_DROPPED, strict=True)]
    product = one.core_flops / on.flop_per_s
    return tuple(((1 + i) * product, passes[i] * size / on.memory_bytes_per_s) for i in (0, 1))


def _moved(one: Block, dropout: bool) -> tuple[float, float]:
    """Bytes that the kernels of the stream and of the MLP's activation read and write, forward and backward."""
    sizes = {tensor.name: tensor.bytes for tensor in one.tensors}
    inner = sizes.get("gate", 0) + sizes["up"]
    forward = 2 * (STREAM[0] + STREAM_DROPPED[0] * dropout) * sizes["x"] + inner + sizes["activated"]
    backward = 2 * (STREAM[1] + STREAM_DROPPED[1] * dropout) * sizes["x"] + 2 * inner + sizes["activated"]
    return forward, backward


# --- the step -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorTime:
    """One step. `parts` are seconds and add up to `seconds`; forward and backward are of one block and micro-batch.

    mfu: model FLOPs of all ranks by seconds and peak, forward and backward; hfu with recomputation. messages: seconds
    of all messages among the tp ranks, hidden or not.
    """

    seconds: float
    parts: dict[str, float]
    messages: float
    forward: Phase
    backward: Phase
    tokens_per_second: float
    mfu: float
    hfu: float


def step_seconds(
    shape: Shape, batch: int, seq: int, layout: Layout, on: Machine, recipe: Recipe | None = None, *,
    overlap: str = "none", accumulation: int = 1, hide_data: bool = True,
) -> TensorTime:  # fmt: skip
    """A step of `accumulation` micro-batches of `batch` sequences for each group of tp ranks.

    The replicas' gradients are reduced once a step, or with ZeRO scattered and the new weights gathered; hide_data:
    beside the last micro-batch's backward and the first one's forward, so that only what is longer shows. ValueError as
    in `block`, for pp and cp above 1, and for "chunked" without sequence parallelism, which has no gather to cut.
    """
    recipe = recipe or Recipe("bf16-master")
    checks.instance("recipe", recipe, Recipe)
    checks.whole("accumulation", accumulation)
    alone(layout, "dp", "tp")
    if overlap == "chunked" and not layout.sequence_parallel:
        raise ValueError("overlap chunked cuts gathers and scatters: it needs sequence_parallel=True")
    cut = {"sequence_parallel": layout.sequence_parallel, "width": recipe.width("compute"),
           "stream": recipe.width("stream"), "gather_again": layout.gather_again}  # fmt: skip
    one = block(shape, batch, seq, layout.tp, **cut)
    options = {"attention": recipe.attention, "dropout": bool(recipe.dropout)}
    forward, backward = block_seconds(one, on, overlap=overlap, **options)
    if recipe.checkpointing == "full":
        backward += forward
    elif recipe.checkpointing == "selective":
        backward += Phase(0.0, *core_seconds(one, on, **options)[0], 0.0, 0.0)
    both = ends(shape, batch, seq, layout.tp, **cut)
    there, back = outside(shape, both, on)
    first, last = forward.times(shape.layers) + there, backward.times(shape.layers) + back
    passes = (first + last).times(accumulation)
    copies = _copies(sums(one, both, shape.layers), recipe, on)
    parts = {
        "products": passes.products, "attention": passes.attention, "other kernels": passes.other,
        "exposed tensor": passes.exposed + copies,
        "exposed data": _data(shape, layout, recipe, on, first.seconds, last.seconds, hide_data),
        "update": rank_parameters(shape, layout) * ADAMW_BYTES / (layout.dp if layout.zero else 1)
        / on.memory_bytes_per_s,
    }  # fmt: skip
    phases = forward, backward
    return _time(shape, batch * accumulation, seq, layout, recipe, on, parts, passes.messages + copies, *phases)


def _time(shape, sequences, seq, layout, recipe, on, parts, messages, forward, backward) -> TensorTime:
    seconds, work = fsum(parts.values()), flops(shape, sequences, seq, recipe.checkpointing)
    model = (work["forward"] + work["backward"]) / layout.tp
    return TensorTime(
        seconds, parts, messages, forward, backward, sequences * seq * layout.dp / seconds,
        utilization(model, seconds, on.peak), utilization(model + work["recompute"] / layout.tp, seconds, on.peak),
    )  # fmt: skip


def _copies(sizes: dict[int, int], recipe: Recipe, on: Machine) -> float:
    """Seconds in which gradients of copies are added, once a step: all blocks' and the ends' in one message for each
    group of ranks."""
    wide = recipe.width("gradient") / recipe.width("compute")
    return fsum(on.inside("all_reduce", wide * size) for size in sizes.values())


def outside(
    shape: Shape, both: Ends, on: Machine, parts: tuple[str, ...] = ("embedding", "head", "loss")
) -> tuple[Phase, Phase]:  # fmt: skip
    """Forward and backward outside the blocks: head and loss, with all their messages exposed. parts: of them, those
    that a stage of a pipeline has."""
    logits = both.logits if "head" in parts else 0
    product, out = 2 * logits * shape.hidden / on.flop_per_s, []
    for phase, name in enumerate(("forward", "backward")):
        moves = [move for part, some in getattr(both, name).items() if part in parts for move in some]
        messages = _sum(moves, on.inside)
        out.append(Phase(
            (1 + phase) * product, 0.0, LOGITS[phase] * 4 * logits / on.memory_bytes_per_s, messages, messages
        ))  # fmt: skip
    return out[0], out[1]


def _sum(moves: Iterable[Move], price: Price) -> float:
    return fsum(price(move.collective, move.size) for move in moves)


def _data(shape, layout: Layout, recipe: Recipe, on: Machine, forward: float, backward: float, hide: bool) -> float:
    """Exposed seconds of what the replicas send."""
    if layout.dp == 1:
        return 0.0
    n = rank_parameters(shape, layout)
    gradients = n * recipe.gradient_bytes
    if not layout.zero:
        return max(0.0, on.across("all_reduce", gradients) - (backward if hide else 0.0))
    scatter, gather = on.across("reduce_scatter", gradients), on.across("all_gather", n * recipe.width("compute"))
    return max(0.0, scatter - (backward if hide else 0.0)) + max(0.0, gather - (forward if hide else 0.0))
