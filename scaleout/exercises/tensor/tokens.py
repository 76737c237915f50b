"""Exercises of `tensor` on sequence parallelism: the bytes that it sends, and the activations that a block stores."""

from __future__ import annotations

from scaleout.collectives.tensor import block
from scaleout.exercises.engine import Number, Slip
from scaleout.exercises.tensor.sizes import GPT, sent, stream

_SEQ, _RANKS = 4096, 8
_X = stream(GPT, 1, _SEQ)
_PLAIN, _SEQUENCE_PARALLEL = (block(GPT, 1, _SEQ, _RANKS, sequence_parallel=split) for split in (False, True))
_HALF = _X * (_RANKS - 1) / _RANKS  # what a rank sends of an all-gather or a reduce-scatter

BYTES = Number(
    key="sequence-bytes",
    level=2,
    minutes=3,
    title="What splitting tokens saves",
    prompt=f"A block, {GPT.hidden:,} wide, is split over **{_RANKS}** ranks with sequence parallelism: one sequence "
    f"of **{_SEQ:,}** tokens, bf16. The tensors gathered before QKV and before the MLP are not stored. The backward "
    "pass gathers them **again**, as Megatron-LM does. How many bytes does **each rank** send for this block, forward "
    "and backward, with rings?",
    hints=(
        "Forward: an all-gather and a reduce-scatter, for attention and for the MLP.",
        "Backward: a reduce-scatter for each all-gather of the forward pass, and an all-gather for each "
        "reduce-scatter. Then there are the repeated gathers.",
        "Four collectives and six, each sending (t − 1)/t of tokens × width × 2 bytes.",
    ),
    solution=f"The tensor has {_SEQ:,} × {GPT.hidden:,} × 2 bytes = {_X / 1e6:.1f} MB, and an all-gather or a "
    f"reduce-scatter sends 7/8 of it. There are 2 + 2 collectives forward, 2 + 2 backward, and 2 repeated all-gathers: "
    f"10 × 7/8 × {_X / 1e6:.1f} MB = **{sent(_SEQUENCE_PARALLEL) / 1e6:.0f} MB**. Without sequence parallelism there "
    f"are four all-reduces, each a reduce-scatter and an all-gather: {sent(_PLAIN) / 1e6:.0f} MB.\n\n**So it saves no "
    "communication.** It saves memory, and work in the norms: between the matrices each rank has an eighth of the "
    "tokens. The two repeated all-gathers are the price of not storing the gathered tensors, and in the backward pass "
    "they can overlap with a matrix multiplication.",
    value=sent(_SEQUENCE_PARALLEL),
    unit="MB",
    units=("kB", "MB", "GB", "MiB"),
    slips=(
        Slip(
            "as-before",
            sent(_PLAIN),
            "That would be right without sequence parallelism, or if the gathered tensors were stored. Here they are "
            "gathered again.",
        ),
        Slip(
            "halved",
            sent(_PLAIN) / 2,
            "Either that is the forward pass alone, or you replaced each all-reduce by one of its halves, and it "
            "becomes both halves.",
        ),
        Slip(
            "as-all-reduces",
            2 * sent(_SEQUENCE_PARALLEL),
            "Either you counted each collective as an all-reduce, but each is an all-gather or a reduce-scatter; or "
            "you took fp32.",
        ),
        Slip("backward-only", 6 * _HALF, "That is the backward alone. The forward pass communicates too."),
        Slip("whole", 10 * _X, "You sent the whole tensor each time. A part of it never leaves a rank."),
        Slip(
            "shards",
            10 * _X / _RANKS,
            "You sent one shard each time. In a ring, a rank also passes on the shards of the others.",
        ),
        Slip(
            "all-ranks",
            _RANKS * sent(_SEQUENCE_PARALLEL),
            "That is what all 8 ranks send. How much does each rank send?",
        ),
        Slip("one-gather-more", 9 * _HALF, "Count the all-gathers of the forward pass: each of them is repeated."),
        Slip(
            "forward-again",
            12 * _HALF,
            "You repeated all collectives of the forward pass. The backward pass repeats only the all-gathers.",
        ),
    ),
    right="A quarter more than without sequence parallelism. It saves memory instead.",
)

_T, _LONG, _BATCH = 4, 2048, 2
_NUMBERS = stream(GPT, _BATCH, _LONG) / 2  # of the stream, s b h
_SCORES = 5 * GPT.heads * _LONG / GPT.hidden  # bytes for each of them


def _saved_bytes(outside: float = 10.0, inside: float = 24 / _T, scores: float = _SCORES / _T) -> float:
    return _NUMBERS * (outside + inside + scores)


SAVED_BY_BLOCK = Number(
    key="kept",
    level=2,
    minutes=5,
    title="What one block stores",
    prompt="With 16-bit numbers, dropout and unfused attention, a GPT's block stores for its backward pass, for each "
    "of the s·b·h numbers of its residual stream:\n\n"
    "- 10 bytes outside the two pairs of matrices: the inputs of the norms, of QKV and of the MLP, and two masks;\n"
    "- 24 bytes inside the pairs: Q, K, V, the output of the heads, and the middle of the MLP;\n"
    "- 5·a·s/h bytes of attention scores, with a heads.\n\n"
    f"The block is {GPT.hidden:,} wide with {GPT.heads} heads. It runs **{_BATCH}** sequences of **{_LONG:,}** tokens "
    f"on **{_T}** ranks with tensor parallelism, **without** sequence parallelism. How much does one rank store?",
    hints=("Which of the three terms are divided over the ranks?", "s·b·h · (10 + 24/t + 5·a·s/(h·t))."),
    solution=f"{_LONG:,} × {_BATCH} × {GPT.hidden:,} × (10 + 24/4 + {_SCORES:.0f}/4) bytes = "
    f"{_NUMBERS / 1e6:.1f} million × {10 + 6 + _SCORES / 4:.0f} = **{_saved_bytes() / 1e6:.0f} MB**. The heads and the "
    "MLP's columns are split; the 10 bytes are on every rank. With sequence parallelism those are divided too, to "
    f"{10 / _T:.1f} bytes, and the sum is {_saved_bytes(10 / _T) / 1e6:.0f} MB. With fused attention no scores are "
    f"stored: {_saved_bytes(scores=0) / 1e6:.0f} MB, and the 10 bytes are five eighths of that.\n\nSource: "
    "Korthikanti et al., arXiv 2205.05198, section 4 and table 2.",
    value=_saved_bytes(),
    unit="MB",
    units=("MB", "GB", "MiB", "GiB"),
    slips=(
        Slip(
            "undivided",
            _saved_bytes(10, 24, _SCORES),
            "That is on one GPU. Which of the three terms do the ranks share?",
        ),
        Slip(
            "all-divided",
            _saved_bytes(10 / _T),
            "You divided everything by 4. The tensors outside the matrices are whole on every rank, unless tokens are "
            "split.",
        ),
        Slip(
            "scores-undivided",
            _saved_bytes(scores=_SCORES),
            "You did not divide the scores. They belong to heads, and a rank has a fourth of the heads.",
        ),
        Slip("scores-only", _saved_bytes(10, 24), "You divided the scores alone. What else is inside the pairs?"),
        Slip(
            "no-scores", _saved_bytes(scores=0), "The scores are missing: attention is not fused here, and stores them."
        ),
        Slip("one-sequence", _saved_bytes() / _BATCH, f"That is one sequence. There are {_BATCH}."),
        Slip("inside-only", _saved_bytes(0), "The 10 bytes outside are missing. Every rank stores them, undivided."),
        Slip(
            "all-heads-twice",
            _saved_bytes(scores=_SCORES / _T * _BATCH),
            "You counted the batch twice in the scores: the numbers of the stream have it already.",
        ),
    ),
    right="The more ranks, the larger the share of the part that is not divided.",
)

EXERCISES = (BYTES, SAVED_BY_BLOCK)
