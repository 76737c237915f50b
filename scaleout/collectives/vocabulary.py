"""The two ends of a model split over the vocabulary: token embedding, output head and cross-entropy on tp ranks.

Each rank has the rows of its own tokens. It looks up zeros for the others', so that the table gives a partial sum; the
head gives it the logits of its own tokens, and the loss needs three numbers per token from the others: the greatest
logit, the sum of the exponentials, and the logit of the token that came (Shoeybi et al. 2019, arXiv 1909.08053,
section 3; Megatron-LM and torch's loss_parallel send each as an fp32 all-reduce of its own). The logits are never
gathered.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from scaleout.collectives.placements import PARTIAL, READ, TOKENS, WHOLE, Move, Placed, collective
from scaleout.collectives.tensor import Block
from scaleout.spec import checks
from scaleout.spec.slices import check_options, check_sequence
from scaleout.spec.transformer import Shape, check_run, norm_parameters

LOSS = ("greatest logit", "sum of exponentials", "logit of the target")


@dataclass(frozen=True)
class Ends:
    """Communication outside the blocks, by part: "embedding", "head", "loss"; each in the order of the calls.

    sums: all-reduces of weights' gradients, once per step. logits: elements on one rank. gathered: the all-gather of
    the logits that a loss over the whole vocabulary would need, which is not done.
    """

    forward: dict[str, tuple[Move, ...]]
    backward: dict[str, tuple[Move, ...]]
    sums: tuple[Move, ...]
    logits: int
    gathered: tuple[Move, ...]

    def moves(self, phase: str) -> list[Move]:
        """Messages of "forward" or "backward". ValueError for another phase."""
        checks.one_of("phase", phase, ("forward", "backward"))
        return [move for part in getattr(self, phase).values() for move in part]

    def sent(self, phase: str) -> float:
        """Bytes that a rank sends by rings."""
        return sum(move.sent for move in self.moves(phase))


def ends(
    shape: Shape,
    batch: int,
    seq: int,
    tp: int,
    *,
    sequence_parallel: bool = False,
    width: int = 2,
    stream: int | None = None,
    gather_again: bool = True,
) -> Ends:
    """The ends of a model on tp ranks, for `batch` sequences of `seq` tokens, in elements of `width` bytes, and of
    `stream` in the residual stream, as in `tensor.block`.

    A vocabulary that tp does not divide is padded: a rank has its share, rounded up. With sequence parallelism a rank
    has the learned positions' and the last norm's gradients from its own tokens only. Raises ValueError, in one line,
    for what does not divide.
    """
    checks.instance("shape", shape, Shape)
    check_run(batch, seq)
    checks.whole("tp", tp)
    check_options(sequence_parallel, width, stream, gather_again)
    if sequence_parallel:
        check_sequence(seq, tp)
    outside = TOKENS if sequence_parallel and tp > 1 else WHOLE
    x, tokens = batch * seq * shape.hidden * (stream or width), batch * seq
    table, untable = _join(PARTIAL, outside, x, tp, "embedded")
    head, unhead = _join(outside, READ, x, tp, "last norm")
    repeated = head if gather_again else ()
    loss = tuple(Move("all_reduce", 4 * tokens, tp, (name,)) for name in LOSS) if tp > 1 else ()
    positions = shape.position_rows * shape.hidden
    summed = (positions + norm_parameters(shape)) * width if outside == TOKENS else 0
    logits = tokens * ceil(shape.vocab / tp)
    return Ends(
        {"embedding": table, "head": head, "loss": loss},
        {"loss": (), "head": repeated + unhead, "embedding": untable},
        (Move("all_reduce", summed, tp, ("gradients",)),) if summed else (),
        logits,
        (Move("all_gather", logits * tp * width, tp, ("logits",)),) if tp > 1 else (),
    )


def sums(block: Block, model_ends: Ends, layers: int) -> dict[int, int]:
    """{ranks: bytes} of the gradients that they reduce once per step, of all blocks and the ends, in one all-reduce."""
    checks.whole("layers", layers)
    totals: dict[int, int] = {}
    for move in block.sums * layers + model_ends.sums:
        totals[move.ranks] = totals.get(move.ranks, 0) + move.size
    return totals


def _join(gives: Placed, reads: Placed, size: int, tp: int, tensor: str) -> tuple[tuple[Move, ...], tuple[Move, ...]]:
    """The messages forward and backward where a tensor of `size` bytes is given one way and read another."""
    names = collective(gives.value, reads.value), collective(reads.gradient, gives.gradient)
    forward, backward = ((Move(name, size, tp, (tensor,)),) if name and tp > 1 else () for name in names)
    return forward, backward
