"""A micro-batch on one rank: seconds of a block and of the model's two ends, under tensor and context parallelism.

A block is its matrix multiplications by shape, its attention, the kernels that only move bytes, the gaps between
kernels, and the communication of tensor parallelism that nothing hides. Fused attention skips the half of the scores
that the mask hides; naive attention moves all of them through memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from math import fsum
from operator import add

from scaleout.collectives import tensor
from scaleout.collectives.job import block_of, ends_of
from scaleout.collectives.placements import Move
from scaleout.collectives.tensor import Join
from scaleout.spec.blocks import Kind, kinds
from scaleout.spec.job import Job
from scaleout.spec.layout import keeps_keys
from scaleout.timing import passes
from scaleout.timing.machine import Machine
from scaleout.timing.products import core_seconds, products

LAST = {"attention": "out", "mlp": "down"}  # of each half the matrix that gives the sum


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
    """A block of the job's model in one micro-batch; where layers differ, the mean of them. cut: with its matrices cut
    otherwise than Megatron cuts them."""
    cut = cut or block_of(job)
    each = [(layers, _layer(job, rank, cut, kind, first)) for layers, kind, first in _kinds(job)]
    return each[0][1] if len(each) == 1 else _mean(each)


def _kinds(job: Job) -> Iterator[tuple[int, Kind, bool]]:
    """The kinds of the model's layers: (how many, the kind, whether their input needs no gradient).

    Under an adapter the first layer's needs none. Where layers are recomputed it has one all the same: without, a
    checkpoint would give none to what is in it (transformers, `enable_input_require_grads`).
    """
    alike = kinds(job.shape)
    first = job.recipe.adapter != "none" and job.recipe.checkpointing != "full"
    lone = next(kind for kind in alike if kind.holds(job.shape, 0)) if first else None
    for kind in alike:
        if kind.layers > (kind is lone):
            yield kind.layers - (kind is lone), kind, False
        if kind is lone:
            yield 1, kind, True


def _mean(each: list[tuple[int, Work]]) -> Work:
    """The mean of layers of several kinds."""
    total = sum(layers for layers, _ in each)
    shares = [(layers / total, work) for layers, work in each]

    def phase(name: str) -> Phase:
        return reduce(add, (getattr(work, name).times(share) for share, work in shares))

    matrices: dict[str, tuple[float, float]] = {}
    for share, work in shares:
        for name, forward, backward in work.matrices:
            a, b = matrices.get(name, (0.0, 0.0))
            matrices[name] = a + share * forward, b + share * backward
    return Work(
        phase("forward"),
        phase("backward"),
        phase("repeated"),
        (fsum(s * work.context[0] for s, work in shares), fsum(s * work.context[1] for s, work in shares)),
        fsum(share * work.weights for share, work in shares),
        tuple((name, *times) for name, times in matrices.items()),
    )


def _layer(job: Job, rank: Machine, cut: tensor.Block, kind: Kind, first: bool) -> Work:
    """A layer of one kind."""
    halves = (_half(job, rank, cut, half, kind, first) for half in tensor.HALVES)
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
        names = [name for name, *_ in matrices]
        last = names[names.index("out") - 1 if job.recipe.checkpointing == "selective" else -1]
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
    frozen = job.recipe.adapter != "none"
    if frozen:
        backward, weights = backward - weights, 0.0
    first: list[Phase] = []
    last: list[Phase] = []
    for phase, name in enumerate(("forward", "backward")):
        sent = {part: _priced(moves, rank) for part, moves in getattr(model_ends, name).items()}
        table = sent["embedding"]
        times = 1 + 2 * phase
        if phase and frozen:
            table = times = 0
        first.append(Phase(moves=rates.moved(times * stream), exposed=table, communication=table))
        reduced = fsum(seconds for part, seconds in sent.items() if part != "embedding")
        moved = job.program.moves * passes.logits(job, phase) * 4 * logits
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
    cut, kind = block_of(job), kinds(job.shape)[0]
    seconds: dict[str, float] = {}
    exposed: dict[tuple[str, str], float] = {}
    for half, last in LAST.items():
        forward = {name: times[0] for name, times in products(job, rank, cut, half, kind).items()}
        seconds |= forward
        for join in cut.joins:
            if join.half == half and join.forward:
                exposed[half, join.at] = _exposed(job, rank, join, "forward", _hiding(forward, last))[0]
    return Operations(seconds, core_seconds(job, rank, cut, kind)[0], exposed)


def _hiding(seconds: dict[str, float], last: str) -> dict[str, float]:
    """Forward seconds of the matrices of a half beside which communication can run, by place of the join."""
    return {"into": fsum(value for name, value in seconds.items() if name != last), "out of": seconds[last]}


# --- a half of a block ----------------------------------------------------------------------------------------------


def _half(
    job: Job, rank: Machine, cut: tensor.Block, half: str, kind: Kind, first_layer: bool
) -> tuple[Phase, Phase, float, tuple]:
    """(forward, backward, seconds of the weights' gradients, seconds by matrix) of attention or of the MLP."""
    rates = rank.rates
    times_of = products(job, rank, cut, half, kind, first_layer)
    core = core_seconds(job, rank, cut, kind) if half == "attention" else ((0.0, 0.0), (0.0, 0.0))
    kernels, small = passes.launches(job, half, kind), passes.small_launches(job, half, kind)
    last = list(times_of)[-1]
    hiding = _hiding({name: times[0] for name, times in times_of.items()}, last)
    phases = []
    for phase, name in enumerate(("forward", "backward")):
        exposed = sent = 0.0
        for join in cut.joins:
            if join.half == half and getattr(join, name):
                a, b = _exposed(job, rank, join, name, hiding)
                exposed, sent = exposed + a, sent + b
        attends, scores = core[phase]
        moved = job.program.moves * passes.moved(job, cut, half, phase, kind)
        moved += passes.adapters(job, half, phase, kind)
        parts = fsum(times[phase] for times in times_of.values()), attends, rates.moved(moved + scores)
        host = rates.host(rates.block_seconds[phase] / 2, fsum(parts))
        gaps = (1 + phase) * (kernels * rates.kernel_seconds + small * rates.small_seconds)
        phases.append(Phase(*parts, gaps + host, exposed, sent))
    weights = fsum(times[2] for times in times_of.values())
    first, center = next(iter(times_of)), list(times_of)[-2]
    remainders = [p.seconds - p.matmul - p.attention for p in phases]
    matrices = tuple(
        (
            name,
            times[0] + core[0][0] * (name == center) + remainders[0] * (name == first),
            times[1] + core[1][0] * (name == center) + remainders[1] * (name == first),
        )
        for name, times in times_of.items()
    )
    return phases[0], phases[1], weights, matrices


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
