"""A micro-batch on one rank: seconds of a block and of the model's two ends, under tensor and context parallelism.

A block is its matrix multiplications by shape, its attention, the kernels that only move bytes, the gaps between
kernels, and the communication of tensor parallelism that nothing hides. Fused attention skips the half of the scores
that the mask hides; naive attention moves all of them through memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum

from scaleout.collectives import tensor
from scaleout.collectives.job import block_of, ends_of
from scaleout.collectives.placements import Move
from scaleout.collectives.tensor import Join
from scaleout.spec.job import Job
from scaleout.spec.layout import keeps_keys
from scaleout.timing.machine import Machine

LAST = {"attention": "out", "mlp": "down"}  # of each half the matrix that gives the sum

# How often a block's half reads or writes its stream, (forward, backward): a norm and a residual sum; under dropout a
# mask of a byte too. An RMS norm in operations of its own casts, squares, takes the mean and scales: so many passes of
# 16 bits more.
STREAM, STREAM_DROPPED, RMS_NORM = (5, 6), (0.5, 2.5), (10, 14)
# The same of queries and keys that rotary positions turn, in one kernel and one operation at a time, in fp32.
ROTARY, ROTARY_UNFUSED = (2, 2), (9, 9)
# Of the MLP's inner tensors, whose activation is one kernel, or with a gate two: passes of one inner tensor.
GELU, GATED, GATED_UNFUSED = (2, 3), (3, 5), (5, 9)
# Of naive attention's scores: made, scaled and masked and made probabilities, read by the next product.
SCORES, SCORES_DROPPED = (4, 6), (2.5, 2.5)
# Of an fp32 logit: the cast and the three reductions; in one kernel 16 bits are read, and the gradient written.
LOGITS = {"eager": (5, 3), "fused": (0.5, 1), "chunked": (0.5, 1)}


@dataclass(frozen=True)
class Phase:
    """Seconds of a forward or a backward on one rank. launches: gaps between kernels. exposed: what of its
    communication no product hides, with what the hidden part takes from compute; communication: all of it."""

    matmul: float = 0.0
    attention: float = 0.0
    moves: float = 0.0
    launches: float = 0.0
    exposed: float = 0.0
    communication: float = 0.0

    @property
    def seconds(self) -> float:
        return self.matmul + self.attention + self.moves + self.launches + self.exposed

    def __add__(self, term: Phase) -> Phase:
        return Phase(*(a + b for a, b in zip(self.values, term.values, strict=True)))

    def times(self, n: float) -> Phase:
        """So many of them, one after the other."""
        return Phase(*(n * value for value in self.values))

    @property
    def values(self) -> tuple[float, ...]:
        return self.matmul, self.attention, self.moves, self.launches, self.exposed, self.communication


@dataclass(frozen=True)
class Work:
    """A micro-batch in one block, or in one end of the model. repeated: the part of the backward that is recomputation.
    context: exposed communication among cp ranks, forward and backward, not in the phases. weights: seconds of the
    backward for the weight gradients. matrices: forward and backward by matrix, in the order of the forward; their sum
    is the two phases."""

    forward: Phase
    backward: Phase
    repeated: Phase = Phase()
    context: tuple[float, float] = (0.0, 0.0)
    weights: float = 0.0
    matrices: tuple[tuple[str, float, float], ...] = ()

    @property
    def forward_seconds(self) -> float:
        return self.forward.seconds + self.context[0]

    @property
    def backward_seconds(self) -> float:
        return self.backward.seconds + self.context[1]

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward_seconds + self.backward_seconds

    @property
    def exposed(self) -> float:
        """Seconds of tensor parallelism's exposed communication."""
        return self.forward.exposed + self.backward.exposed

    @property
    def recompute(self) -> float:
        """Seconds of the forward once more, its launches too, its communication not."""
        return self.repeated.seconds - self.repeated.exposed

    @property
    def launches(self) -> float:
        """Seconds between kernels of what is computed for the first time."""
        return self.forward.launches + self.backward.launches - self.repeated.launches


def block(job: Job, rank: Machine, cut: tensor.Block | None = None) -> Work:
    """A block of the job's model in one micro-batch. cut: with its matrices cut otherwise than Megatron cuts them."""
    cut = cut or block_of(job)
    halves = (_half(job, rank, cut, half) for half in tensor.HALVES)
    forward, backward, weights, matrices = (a + b for a, b in zip(*halves, strict=True))
    keys = 2 * next(activation.bytes for activation in cut.tensors if activation.name == "k")
    context = (
        _passed(job, rank, keys, forward.attention, False),
        _passed(job, rank, 2 * keys, backward.attention, True),
    )
    parts = {"full": forward, "selective": Phase(attention=forward.attention)}
    repeated = parts.get(job.recipe.checkpointing, Phase())
    if repeated != Phase():
        if job.recipe.checkpointing == "full" or not keeps_keys(job.layout, job.context):
            context = (context[0], sum(context))
        last = "v" if job.recipe.checkpointing == "selective" else matrices[-1][0]
        matrices = tuple((name, f, b + repeated.seconds * (name == last)) for name, f, b in matrices)
    return Work(forward, backward + repeated, repeated, context, weights, matrices)


def ends(job: Job, rank: Machine) -> tuple[Work, Work]:
    """The first end of the model, its embedding, and the last, the head with the loss."""
    model_ends = ends_of(job)
    stream = job.tokens * job.shape.hidden * job.stream_bytes
    rates, logits = rank.rates, model_ends.logits
    rows, columns, depth = job.tokens, logits // job.tokens, job.shape.hidden
    width = job.recipe.width("compute")
    product = rates.matmul(rows, columns, depth, width)
    backward, weights = rates.backward(rows, columns, depth, width)
    passes = LOGITS[job.recipe.loss]
    first: list[Phase] = []
    last: list[Phase] = []
    for phase, name in enumerate(("forward", "backward")):
        sent = {part: _priced(moves, rank) for part, moves in getattr(model_ends, name).items()}
        table = sent["embedding"]
        first.append(Phase(moves=rates.moved((1 + 2 * phase) * stream), exposed=table, communication=table))
        reduced = fsum(seconds for part, seconds in sent.items() if part != "embedding")
        moved = job.program.moves * passes[phase] * 4 * logits
        parts = (product, backward)[phase], 0.0, rates.moved(moved)
        last.append(Phase(*parts, rates.host(rates.ends_seconds[phase], fsum(parts)), reduced, reduced))
    return Work(first[0], first[1]), Work(last[0], last[1], weights=weights)


@dataclass(frozen=True)
class Operations:
    """A block's forward, operation by operation. `products`: seconds of each matmul; attention: its (seconds, bytes
    moved); exposed: seconds of communication by half and place of the join."""

    products: dict[str, float]
    attention: tuple[float, float]
    exposed: dict[tuple[str, str], float]


def operations(job: Job, rank: Machine) -> Operations:
    """The operations that `block` adds up to a forward."""
    cut = block_of(job)
    products: dict[str, float] = {}
    exposed: dict[tuple[str, str], float] = {}
    for half, last in LAST.items():
        forward = {name: times[0] for name, times in _products(job, rank, cut, half).items()}
        products |= forward
        for join in cut.joins:
            if join.half == half and join.forward:
                exposed[half, join.at] = _exposed(job, rank, join, "forward", _hiding(forward, last))[0]
    return Operations(products, _core(job, rank, cut)[0], exposed)


def _hiding(seconds: dict[str, float], last: str) -> dict[str, float]:
    """Forward seconds of the matrices of a half beside which communication can run, by place of the join."""
    return {"into": fsum(value for name, value in seconds.items() if name != last), "out of": seconds[last]}


# --- a half of a block ----------------------------------------------------------------------------------------------


def _half(job: Job, rank: Machine, cut: tensor.Block, half: str) -> tuple[Phase, Phase, float, tuple]:
    """(forward, backward, seconds of the weights' gradients, seconds by matrix) of attention or of the MLP."""
    rates = rank.rates
    products = _products(job, rank, cut, half)
    core = _core(job, rank, cut) if half == "attention" else ((0.0, 0.0), (0.0, 0.0))
    kernels = job.program.kernels // 2
    hiding = _hiding({name: times[0] for name, times in products.items()}, LAST[half])
    phases = []
    for phase, name in enumerate(("forward", "backward")):
        exposed = sent = 0.0
        for join in cut.joins:
            if join.half == half and getattr(join, name):
                a, b = _exposed(job, rank, join, name, hiding)
                exposed, sent = exposed + a, sent + b
        attends, scores = core[phase]
        moved = job.program.moves * _moved(job, cut, half, phase)
        parts = fsum(times[phase] for times in products.values()), attends, rates.moved(moved + scores)
        host = rates.host(rates.block_seconds[phase] / 2, fsum(parts))
        phases.append(Phase(*parts, (1 + phase) * kernels * rates.kernel_seconds + host, exposed, sent))
    weights = fsum(times[2] for times in products.values())
    first = next(iter(products))
    remainders = [p.seconds - p.matmul - p.attention for p in phases]
    matrices = tuple(
        (
            name,
            times[0] + core[0][0] * (name == "v") + remainders[0] * (name == first),
            times[1] + core[1][0] * (name == "v") + remainders[1] * (name == first),
        )
        for name, times in products.items()
    )
    return phases[0], phases[1], weights, matrices


def _products(job: Job, rank: Machine, cut: tensor.Block, half: str) -> dict[str, tuple[float, float, float]]:
    """Seconds (forward, backward, of it the weights' gradient) of each matrix of a half. Matrices that read the same
    input are one multiplication where the program has them as one; each then has its share of the columns."""
    names = {"attention": ("q", "k", "v", "out"), "mlp": ("gate", "up", "down")}[half]
    local = {weight.name: (weight.local, weight.flops) for weight in cut.weights if weight.name in names}
    last = list(local)[-1]
    groups = [[name for name in local if name != last], [last]]
    if not job.program.projections:
        groups = [[name] for group in groups for name in group]
    seconds, width = {}, job.recipe.width("compute")
    for group in groups:
        depth, columns = local[group[0]][0][0], sum(local[name][0][1] for name in group)
        rows = local[group[0]][1] / (2 * depth * local[group[0]][0][1])
        forward = rank.rates.matmul(rows, columns, depth, width)
        backward, weights = rank.rates.backward(rows, columns, depth, width)
        for name in group:
            share = local[name][0][1] / columns
            seconds[name] = share * forward, share * backward, share * weights
    return seconds


def _core(job: Job, rank: Machine, cut: tensor.Block) -> tuple[tuple[float, float], tuple[float, float]]:
    """((seconds, bytes moved) forward, and backward) of attention between q, k, v and out; queries of a part of a
    sequence attend to the keys of all cp parts."""
    cp, rates = job.layout.cp, rank.rates
    if job.recipe.attention != "naive":
        heads = cut.scores / (job.seq // cp) ** 2 / cp  # of whole sequences
        forward, backward = rates.attention(cp * cut.core_flops, job.seq, job.shape.d, heads)
        return (forward, 0.0), (backward, 0.0)
    size = cut.scores * job.recipe.width("compute")
    passes = [a + b * bool(job.recipe.dropout) for a, b in zip(SCORES, SCORES_DROPPED, strict=True)]
    product = cut.core_flops / rates.matmul_flop_per_s
    return (product, passes[0] * size), (2 * product, passes[1] * size)


def _moved(job: Job, cut: tensor.Block, half: str, phase: int) -> float:
    """Bytes that the kernels of a half read and write, except matmuls and attention."""
    sizes = {activation.name: activation.bytes for activation in cut.tensors}
    fused, shape = job.program.fused, job.shape
    passes = STREAM[phase] + STREAM_DROPPED[phase] * bool(job.recipe.dropout)
    passes += RMS_NORM[phase] * (shape.norm == "rmsnorm" and not fused)
    moved = passes * sizes["x"]
    if half == "attention":
        rotary = ROTARY if fused else ROTARY_UNFUSED
        return moved + rotary[phase] * (sizes["q"] + sizes["k"]) * (shape.positions == "rotary")
    inner = GELU if not shape.gated_mlp else GATED if fused else GATED_UNFUSED
    return moved + inner[phase] * sizes["up"]


# --- communication --------------------------------------------------------------------------------------------------


def _exposed(job: Job, rank: Machine, join: Join, phase: str, hiding: dict[str, float]) -> tuple[float, float]:
    """Seconds of a join's communication: (exposed, with what the hidden part takes from compute; all of it)."""
    moves = getattr(join, phase)
    sent = [rank.tensor(move.collective, move.size) for move in moves]
    product, mode = hiding.get(join.at, 0.0), overlap(job, rank)
    hides = [0.0] * len(moves)
    if mode == "chunked":
        tp = job.layout.tp
        hides = [product * (tp - 1) / tp if move.collective != "all_reduce" else 0.0 for move in moves]
    elif mode == "backward" and phase == "backward" and join.at == "into":
        hides = [product] * len(moves)
    hidden = fsum(min(seconds, limit) for seconds, limit in zip(sent, hides, strict=True))
    total = fsum(sent)
    return total - (1 - job.program.contention) * hidden, total


def overlap(job: Job, rank: Machine) -> str:
    """How tensor parallelism's communication runs. Chunks are copied from GPU to GPU inside a node, and cut gathers and
    scatters: across nodes, and without sequence parallelism, they are no chunks."""
    mode = job.program.tensor_overlap
    if mode == "chunked" and ("tp" in rank.crossing or not job.layout.sequence_parallel):
        return "backward"
    return mode


def _passed(job: Job, rank: Machine, size: int, attention: float, backward: bool) -> float:
    """Exposed seconds of a block's keys and values, `size` bytes per rank, beside `attention` seconds; in the backward
    with their gradients, whose last part has nothing left to hide behind."""
    cp = job.layout.cp
    if cp == 1:
        return 0.0
    if job.context == "ring":
        turn = rank.turn(size)
        return (cp - 1) * max(0.0, turn - attention / cp) + (rank.turn(size / 2) if backward else 0.0)
    if not backward:
        return rank.context("all_gather", cp * size)
    gathered = 0.0 if keeps_keys(job.layout, job.context) else rank.context("all_gather", cp * size / 2)
    return gathered + rank.context("reduce_scatter", cp * size / 2)


def _priced(moves: Iterable[Move], rank: Machine) -> float:
    return fsum(rank.tensor(move.collective, move.size) for move in moves)
