"""Tensor and sequence parallelism: each rank's part of a block's tensors, and the collective at each boundary.

A matrix cut in columns reads its input whole, and leaves a partial gradient of it; cut in rows it reads its own
features, and gives a partial sum. Where one operation gives another placement than the next one reads, a collective
stands, and in the backward the one that the gradients' placements ask for: Megatron's f and g (Shoeybi et al. 2019,
arXiv 1909.08053, section 3) and, with sequence parallelism, their other halves (Korthikanti et al. 2022, arXiv
2205.05198, section 4.2.2). No list of them is kept here: `placements.collective` is the one rule.

Bytes are of one micro-batch unless said. `scaleout.collectives.vocabulary` has the two ends of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

from scaleout.collectives.placements import FEATURES, PARTIAL, READ, TOKENS, WHOLE, Move, Placed, collective
from scaleout.spec import checks
from scaleout.spec.slices import check_hidden, check_options, check_sequence, check_tensor
from scaleout.spec.transformer import Shape, check_run, linears, vector_parameters

CUTS = ("columns", "rows", "copies")
MEGATRON = {"qkv": "columns", "out": "rows", "up": "columns", "down": "rows"}
HALVES = {"attention": ("qkv", "out"), "mlp": ("up", "down")}  # the matrices of each half of a block, in order


@dataclass(frozen=True)
class Tensor:
    """One activation. shape: (batch, tokens, width) of the whole; local: of a rank's part. kept: for the backward."""

    name: str
    shape: tuple[int, int, int]
    local: tuple[int, int, int]
    placed: Placed
    width: int  # bytes of an element
    kept: bool

    @property
    def bytes(self) -> int:
        """On one rank."""
        return self.width * self.local[0] * self.local[1] * self.local[2]


@dataclass(frozen=True)
class Weight:
    """One matrix. shape, local: (input width, output width); flops: of a rank's forward product with it, two a
    multiply-add. summed_over: ranks whose gradients of it must be added once a step, because each saw other tokens or
    other queries; 1 where a rank's own is whole."""

    name: str
    cut: str
    shape: tuple[int, int]
    local: tuple[int, int]
    flops: int
    summed_over: int


@dataclass(frozen=True)
class Join:
    """Between two operations of a half: what the first gives, what the second reads, and what must move for it.

    legal: False where in the forward a message must pass between the two matrices of a half; `reason` says why, and the
    moves are then the cheapest that fix it.
    """

    at: str  # "into", "middle", "between" or "out of" the half
    half: str
    gives: Placed
    reads: Placed
    forward: tuple[Move, ...]
    backward: tuple[Move, ...]
    reason: str = ""

    @property
    def legal(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class Block:
    """One transformer block on tp ranks. sums: all-reduces of weights' gradients, once a step."""

    tp: int
    tensors: tuple[Tensor, ...]
    weights: tuple[Weight, ...]
    joins: tuple[Join, ...]
    sums: tuple[Move, ...]
    core_flops: int  # of attention between q, k, v and out, in a rank's forward, the masked half counted
    scores: int  # elements of its scores on a rank

    def moves(self, phase: str) -> list[Move]:
        """Messages of "forward" or of "backward", each in its own order. ValueError for another phase."""
        checks.one_of("phase", phase, ("forward", "backward"))
        joins = self.joins if phase == "forward" else self.joins[::-1]
        return [move for join in joins for move in getattr(join, phase)]

    def counts(self, phase: str) -> dict[str, int]:
        """How often each collective is called."""
        counts: dict[str, int] = {}
        for move in self.moves(phase):
            counts[move.collective] = counts.get(move.collective, 0) + 1
        return counts

    def sent(self, phase: str) -> float:
        """Bytes that a rank sends by rings."""
        return fsum(move.sent for move in self.moves(phase))

    @property
    def legal(self) -> bool:
        return all(join.legal for join in self.joins)

    @property
    def kept(self) -> int:
        """Bytes a rank keeps of the tensors listed here; `scaleout.memory` has every byte of Megatron's cut."""
        return sum(tensor.bytes for tensor in self.tensors if tensor.kept)

    @property
    def flops(self) -> int:
        """A rank's forward."""
        return self.core_flops + sum(weight.flops for weight in self.weights)


def block(
    shape: Shape,
    batch: int,
    seq: int,
    tp: int,
    *,
    sequence_parallel: bool = False,
    cuts: dict[str, str] | None = None,
    width: int = 2,
    stream: int | None = None,
    gather_again: bool = True,
) -> Block:
    """One block of `batch` sequences of `seq` tokens on tp ranks, of elements of `width` bytes; those of the residual
    stream and of its norms have `stream` bytes, where that is more: 4 under autocast, which casts where a matrix reads.

    cuts: of "qkv", "out", "up" (and gate) and "down", one of CUTS each; those left out as Megatron has them.
    gather_again: with sequence parallelism what the first matrix of a half reads is not kept whole, but gathered once
    more in the backward. Raises ValueError, in one line, for what does not divide and for cuts that there are not.
    """
    check_run(batch, seq)
    check_tensor(shape, tp)
    check_options(sequence_parallel, width, stream, gather_again)
    checks.instance("cuts", {} if cuts is None else cuts, dict)
    cuts = MEGATRON | (cuts or {})
    for name, cut in cuts.items():
        checks.known("matrix", name, MEGATRON)
        checks.one_of(f"the cut of {name}", cut, CUTS)
    if sequence_parallel:
        check_sequence(seq, tp)
    if "rows" in (cuts["qkv"], cuts["up"]) or "columns" in (cuts["out"], cuts["down"]):
        check_hidden(shape, tp)
    outside = TOKENS if sequence_parallel and tp > 1 else WHOLE
    sheet = _Sheet(shape, batch, seq, tp, outside, (width, stream or width), gather_again)
    for half in HALVES:
        sheet.half(half, cuts)
    return sheet.block()


class _Sheet:
    """A block as it is laid out, half by half."""

    def __init__(
        self, shape: Shape, batch: int, seq: int, tp: int, outside: Placed, widths: tuple[int, int], gather_again: bool
    ) -> None:
        self.s, self.batch, self.seq, self.tp, (self.width, self.stream) = shape, batch, seq, tp, widths
        self.outside, self.gather_again = outside, gather_again  # where the stream is; whether the backward gathers
        self.tensors: list[Tensor] = []
        self.weights: list[Weight] = []
        self.joins: list[Join] = []
        self.parts: dict[int, int] = {}  # elements of weights' gradients to be added, by ranks that add them
        self.scores = 0
        self.add("x", shape.hidden, self.outside, kept=True, stream=True)

    def block(self) -> Block:
        sums = tuple(Move("all_reduce", n * self.width, ranks, ("gradients",)) for ranks, n in self.parts.items())
        rows = tuple(self.tensors), tuple(self.weights), tuple(self.joins)
        return Block(self.tp, *rows, sums, 4 * self.s.d * self.scores, self.scores)

    def half(self, half: str, cuts: dict[str, str]) -> None:
        """Enter attention or the MLP, from the stream to the stream."""
        s, (first, second) = self.s, HALVES[half]
        gated = first == "up" and s.gated_mlp
        names = ("q", "k", "v") if first == "qkv" else ("gate", "up") if gated else ("up",)
        read = _reads(cuts[first], self.outside)
        gathered = self.join("into", half, self.outside, read, ("normed",), s.hidden, gather_again=self.gather_again)
        self.add(
            f"{half} normed",
            s.hidden,
            read if gathered and not self.gather_again else self.outside,
            kept=True,
            stream=True,
        )
        self.sum_later(vector_parameters(s, self.tp) // 2, self.tp if self.outside == TOKENS else 1)
        produced = _gives(cuts[first], read)
        scatters = cuts[second] == "rows" and not (half == "attention" and self.tp > s.kv)
        middle = produced if produced != PARTIAL else FEATURES if scatters else WHOLE
        for name in names:
            self.matrix(name, cuts[first], read)
        inner = self.middle(half, names, produced, middle)
        read = _reads(cuts[second], middle, self.outside)
        wide = s.heads * s.d if half == "attention" else s.h_ff
        self.join("between", half, middle, read, (inner,), wide, reason=_reason(middle, read))
        self.add(inner, wide, read if read.value == "R" else middle, kept=True)
        self.matrix(second, cuts[second], read)
        produced = _gives(cuts[second], read)
        self.join("out of", half, produced, self.outside, (second,), s.hidden)
        self.add(f"{half} sum", s.hidden, produced)
        name, saved = ("x + attention", True) if half == "attention" else ("y", False)
        self.add(name, s.hidden, self.outside, saved, stream=True)

    def middle(self, half: str, names: tuple[str, ...], produced: Placed, middle: Placed) -> str:
        """Attention's core or the activation function: what it reads, and the name of what it gives."""
        s = self.s
        widths = {"q": s.heads * s.d, "k": s.kv * s.d, "v": s.kv * s.d, "up": s.h_ff, "gate": s.h_ff}
        if half == "attention" and produced == TOKENS:
            reason = "each query needs the keys and values of all tokens"
            self.join("middle", half, produced, READ, ("k", "v"), widths["k"] + widths["v"], reason=reason)
            places = {"q": TOKENS, "k": READ, "v": READ}
        else:
            function = "softmax" if half == "attention" else "SwiGLU" if s.gated_mlp else "GeLU"
            reason = f"{function} needs the whole sum, not partial sums" if produced == PARTIAL else ""
            self.join("middle", half, produced, middle, names, sum(widths[name] for name in names), reason=reason)
            places = dict.fromkeys(names, middle)
        for name in names:
            self.add(name, widths[name], places[name], kept=True)
        if half == "attention":
            self.scores = self.batch * self.seq**2 * s.heads // (self.tp if middle != WHOLE else 1)
            return "heads"
        return "activated"

    def matrix(self, name: str, cut: str, read: Placed) -> None:
        """Enter one matrix, and what of its gradients and its bias's is still to be added."""
        (a, b), t = linears(self.s)[name], self.tp
        copies = self.sharing(name) if cut == "columns" else 1
        ranks = t if cut == "copies" and read == TOKENS else copies
        local = {"columns": (a, b * copies // t), "rows": (a // t, b), "copies": (a, b)}[cut]
        tokens = self.batch * self.seq // (t if read == TOKENS else 1)
        flops = 2 * tokens * local[0] * local[1]
        self.weights.append(Weight(name, cut, (a, b), local, flops, ranks))
        self.sum_later(local[0] * local[1], ranks)
        if self.s.has_bias(name):
            bias_ranks = t if cut == "rows" and self.outside == TOKENS and name in ("out", "down") else ranks
            self.sum_later(local[1], bias_ranks)

    def join(
        self,
        at: str,
        half: str,
        gives: Placed,
        reads: Placed,
        names: tuple[str, ...],
        wide: int,
        *,
        reason: str = "",
        gather_again: bool = False,
    ) -> bool:
        """Enter one join, of tensors that are `wide` in all. Returns whether it gathers."""
        n = self.batch * self.seq * wide * (self.stream if at == "into" else self.width)
        forward_name, backward_name = collective(gives.value, reads.value), collective(reads.gradient, gives.gradient)
        forward, backward = self.moves(forward_name, n, names), self.moves(backward_name, n, names)
        if gather_again and forward_name == "all_gather":
            backward = forward + backward
        self.joins.append(Join(at, half, gives, reads, forward, backward, reason))
        return bool(forward) and forward_name == "all_gather"

    def moves(self, name: str, size: int, tensors: tuple[str, ...]) -> tuple[Move, ...]:
        if not name or self.tp == 1:
            return ()
        return (Move(name, size // self.tp if name == "all_to_all" else size, self.tp, tensors),)

    def add(self, name: str, wide: int, placed: Placed, kept: bool = False, stream: bool = False) -> None:
        """Enter one tensor, of the stream or of what matrices read and write."""
        tokens = self.seq // self.tp if placed.value == "S(1)" else self.seq
        part = wide * self.sharing(name) // self.tp if placed.value == "S(2)" else wide
        shape = (self.batch, self.seq, wide)
        self.tensors.append(
            Tensor(name, shape, (self.batch, tokens, part), placed, self.stream if stream else self.width, kept)
        )

    def sharing(self, name: str) -> int:
        """Ranks that have the same key-value head, where there are fewer heads than ranks."""
        return max(1, self.tp // self.s.kv) if name in ("k", "v") else 1

    def sum_later(self, elements: int, ranks: int) -> None:
        if ranks > 1:
            self.parts[ranks] = self.parts.get(ranks, 0) + elements


def _reads(cut: str, have: Placed, outside: Placed = WHOLE) -> Placed:
    """How a matrix of this cut reads what lies before it as `have`."""
    if cut == "copies":
        return outside if have == FEATURES else have
    return READ if cut == "columns" else FEATURES


def _gives(cut: str, read: Placed) -> Placed:
    return {"columns": FEATURES, "rows": PARTIAL, "copies": read}[cut]


def _reason(gives: Placed, reads: Placed) -> str:
    dimension = {FEATURES: "columns", TOKENS: "tokens"}.get(gives)
    words = f"each rank has only its own {dimension}, and the next matrix reads all of them"
    return words if dimension and gives != reads else ""
