"""Exercises of `tensor` on attention: why it is split between heads, which columns of Q, K and V a rank has, and what
fewer key-value heads change."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip
from scaleout.exercises.tensor.sizes import GPT, stream
from scaleout.spec.slices import slice_linears
from scaleout.spec.transformer import Shape

_STUB = '''\
def columns(rank, ranks, heads, kv, width):
    """The columns of a fused [Q | K | V] that a rank has.

    A list of column numbers from 0, in ascending order.

    heads: query heads, a multiple of ranks and of kv
    kv: key heads, and as many value heads
    width: columns of one head
    """
    return ...
'''

_SOLUTION = """\
def columns(rank, ranks, heads, kv, width):
    each = heads // ranks
    mine = range(rank * each, (rank + 1) * each)       # query heads
    read = sorted({head * kv // heads for head in mine})
    held = [*mine, *(heads + one for one in read),
            *(heads + kv + one for one in read)]
    return [head * width + i for head in held for i in range(width)]
"""


def _own_heads(rank: int, ranks: int, heads: int) -> list[int]:
    """A rank's query heads."""
    return list(range(rank * heads // ranks, (rank + 1) * heads // ranks))


def _columns_of(owned: list[int], width: int) -> list[int]:
    return [head * width + place for head in owned for place in range(width)]


def _columns(rank, ranks, heads, kv, width, starts=None, read=None, owned=None) -> list[int]:
    """A rank's columns; or with something else as the heads at which K and V begin, those of K and V that it reads, or
    its own of Q."""
    owned = owned or _own_heads(rank, ranks, heads)
    read = read if read is not None else sorted({head // (heads // kv) for head in owned})
    k, v = starts or (heads, heads + kv)
    return _columns_of([*owned, *(k + head for head in read), *(v + head for head in read)], width)


def _equal(rank, ranks, heads, kv, width) -> list[int]:
    total = (heads + 2 * kv) * width
    return list(range(rank * total // ranks, (rank + 1) * total // ranks))


def _cut_heads(rank, ranks, heads, kv, width) -> list[int]:
    """Q, K and V each in equal column blocks, whatever a head is."""
    columns: list[int] = []
    start = 0
    for wide in (heads * width, kv * width, kv * width):
        columns += range(start + rank * wide // ranks, start + (rank + 1) * wide // ranks)
        start += wide
    return columns


def _modulo(rank, ranks, heads, kv, width) -> list[int]:
    """Key-value heads dealt out in turns where there are fewer of them than ranks."""
    return _columns(rank, ranks, heads, kv, width, read=[rank % kv] if ranks > kv else None)


def _as_queries(rank, ranks, heads, kv, width) -> list[int]:
    return _columns(rank, ranks, heads, kv, width, starts=(heads, 2 * heads), read=_own_heads(rank, ranks, heads))


SPLIT = Function(
    key="split-heads",
    level=3,
    minutes=8,
    title="Whose columns of QKV",
    lists=True,
    prompt="Many models store the weights of Q, K and V in **one** matrix [Q | K | V], with the heads of each side by "
    "side and `width` columns per head. Write `columns(rank, ranks, heads, kv, width)`: the columns that `rank` needs "
    "to compute attention for its query heads **without communication**.\n\n"
    "- Rank 0 has the first `heads / ranks` query heads, rank 1 the next, and so on.\n"
    "- If there are fewer key-value heads than query heads, query heads share them in order: with 8 and 2, the first "
    "four query heads read key-value head 0.\n"
    "- A rank has the key and value heads that its query heads read, whole, and no others. If several ranks read the "
    "same one, each has a copy.",
    hints=(
        "There are three ranges, one each in Q, K and V. At which column do K and V begin?",
        "Query head j reads key-value head j // (heads // kv).",
        "With more ranks than key-value heads, a rank reads one of them, number `rank * kv // ranks`.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "**That is why QKV projections are easy to split.** Heads are independent of each other, so the columns of a "
    "head's queries, keys and values give one rank everything that this head's softmax needs. The split runs between "
    "heads. A fused matrix must not be split into equal column blocks: with four ranks, the first would have only "
    "queries and the last only values, and no rank could begin. Llama's checkpoints store the three separately. "
    "GPT-2's `c_attn` is fused. Megatron-LM's matrix is fused too, but head by head, with q, k and v of one head side "
    "by side, so that equal blocks are right.",
    function="columns",
    stub=_STUB,
    reference=_columns,
    cases=(
        (0, 2, 4, 4, 2),
        (1, 2, 4, 4, 2),
        (2, 3, 6, 6, 1),
        (0, 2, 4, 2, 3),
        (1, 2, 4, 2, 3),
        (1, 4, 8, 2, 2),
        (2, 4, 8, 2, 2),
        (3, 4, 8, 2, 2),
        (1, 8, 8, 2, 4),
        (5, 8, 16, 4, 4),
        (2, 3, 12, 6, 2),
        (3, 4, 4, 1, 4),
        (6, 7, 7, 7, 1),
        (0, 1, 3, 1, 2),
    ),
    mistakes=(
        Mistake(
            "equal-blocks",
            _equal,
            "You split the fused matrix into equal column blocks. Then the first rank has queries and no values, and "
            "the last has values and no queries. Split each of Q, K and V, and take a rank's part of all three.",
        ),
        Mistake(
            "cut-heads",
            _cut_heads,
            "You split each of Q, K and V into equal blocks. That is right for up to as many ranks as key-value heads. "
            "With more ranks it splits a head, but a softmax needs whole heads, so ranks have copies.",
        ),
        Mistake(
            "as-queries",
            _as_queries,
            "You took as many heads of K and V as of Q. There are only kv of each, and several query heads share one.",
        ),
        Mistake(
            "all-key-values",
            lambda rank, ranks, heads, kv, width: _columns(rank, ranks, heads, kv, width, read=list(range(kv))),
            "Each of your ranks has all of K and V. It needs only the heads that its own query heads read.",
        ),
        Mistake(
            "in-turns",
            _modulo,
            "With more ranks than key-value heads, your rank takes head rank % kv. But neighboring ranks share a head: "
            "the first query heads all read key-value head 0.",
        ),
        Mistake(
            "shared-in-turns",
            lambda rank, ranks, heads, kv, width: _columns(
                rank, ranks, heads, kv, width, read=sorted({head % kv for head in _own_heads(rank, ranks, heads)})
            ),
            "Your query head j reads key-value head j % kv. Query heads share in order: the first heads // kv of them "
            "read key-value head 0.",
        ),
        Mistake(
            "repeated",
            lambda rank, ranks, heads, kv, width: _columns(
                rank, ranks, heads, kv, width, read=[h // (heads // kv) for h in _own_heads(rank, ranks, heads)]
            ),
            "Your list has a key-value head once for each query head that reads it. The rank has it only once.",
        ),
        Mistake(
            "late-values",
            lambda rank, ranks, heads, kv, width: _columns(rank, ranks, heads, kv, width, starts=(heads, 2 * heads)),
            "Your V begins as far after K as K does after Q. But K has only kv heads.",
        ),
        Mistake(
            "round-robin",
            lambda rank, ranks, heads, kv, width: _columns(
                rank, ranks, heads, kv, width, owned=list(range(rank, heads, ranks))
            ),
            "Your rank has every ranks-th head. That can be made to work, but here the query heads of a rank are "
            "side by side.",
        ),
        Mistake(
            "queries-only",
            lambda rank, ranks, heads, kv, width: _columns(rank, ranks, heads, kv, width, read=[]),
            "Those are only the queries. Without the keys and values of its heads, the rank would have to communicate.",
        ),
        Mistake(
            "no-values",
            lambda rank, ranks, heads, kv, width: [
                column for column in _columns(rank, ranks, heads, kv, width) if column < (heads + kv) * width
            ],
            "Those are queries and keys. The softmax weighs values, so the rank needs the values of its heads too.",
        ),
        Mistake(
            "no-offset",
            lambda rank, ranks, heads, kv, width: _columns(rank, ranks, heads, kv, width, starts=(0, 0)),
            "You count K's and V's columns from 0. In the fused matrix they come after those of Q.",
        ),
        Mistake(
            "heads-not-columns",
            lambda rank, ranks, heads, kv, width: _columns(rank, ranks, heads, kv, 1),
            "Those are the numbers of the heads. A head has width columns.",
        ),
    ),
    right="Each rank computes attention for its own heads without any communication.",
)

_GQA, _RANKS = Shape(GPT.layers, GPT.hidden, GPT.heads, GPT.vocab, kv_heads=2), 8
_CUT = slice_linears(_GQA, _RANKS)["k"]
_K, _UNCUT = _CUT[0] * _CUT[1], _GQA.hidden * _GQA.kv * _GQA.d
_COPIES = _RANKS // _GQA.kv

KV = Number(
    key="kv-heads",
    level=2,
    title="Fewer key-value heads",
    prompt=f"A model is {_GQA.hidden:,} wide and has {_GQA.heads} heads of {_GQA.d}, but only **{_GQA.kv}** key heads "
    f"and {_GQA.kv} value heads. Its attention is split by heads over **{_RANKS}** ranks. How many parameters of the "
    "K and V weights **together** does one rank have in a block? There are no biases.",
    hints=(
        f"{_RANKS} ranks share {_GQA.kv} key-value heads. Is a piece of a head enough for a rank?",
        f"One head of K and one of V, {_GQA.hidden:,} × {_GQA.d} each.",
    ),
    solution=f"A rank's {_GQA.heads // _RANKS} query heads read one key head and one value head, each whole: 2 × "
    f"{_GQA.hidden:,} × {_GQA.d} = **{2 * _K / 1e6:.2f} million**. An even split would give "
    f"{2 * _UNCUT / _RANKS / 1e6:.3f} million, a fourth of that, because each head is on {_COPIES} ranks. Copies cost "
    f"memory and communication: each of the {_COPIES} ranks has the gradient from its own query heads only, and these "
    "parts have to be added.",
    value=2 * _K,
    unit="million",
    units=("thousand", "million", "billion"),
    dimension="parameters",
    slips=(
        Slip(
            "even-split",
            2 * _UNCUT / _RANKS,
            f"That is an {_RANKS}th of both. It would be a piece of a head, but a softmax needs all {_GQA.d} numbers "
            "of the head, so ranks have copies.",
        ),
        Slip("one-matrix", _K, "That is one head of one matrix. K and V each have one."),
        Slip(
            "all-heads",
            2 * _UNCUT,
            "That is both heads of both matrices. All query heads of one rank read the same head.",
        ),
        Slip(
            "as-queries",
            2 * _GQA.hidden * _GQA.d * _GQA.heads // _RANKS,
            f"You took {_GQA.heads // _RANKS} heads of K and V, as many as of Q. There are only {_GQA.kv} of each.",
        ),
        Slip(
            "with-queries", _GQA.hidden * _GQA.d * (_GQA.heads // _RANKS + 2), "You counted the columns of Q as well."
        ),
    ),
    right="Once there are more ranks than key-value heads, adding ranks does not make this smaller.",
)

TWO_HALVES = Choice(
    key="two-halves-of-qkv",
    level=2,
    minutes=4,
    short=True,
    title="Two ways to halve QKV",
    prompt=f"A GPT is {GPT.hidden:,} wide, with {GPT.heads} heads of {GPT.d}. Two ranks can each take half of the "
    "columns of Q, K and V in two ways:\n\n"
    f"- **between** the heads: rank 0 has all {GPT.d} columns of heads 0 to {GPT.heads // 2 - 1}, and rank 1 has those "
    "of the other heads;\n"
    f"- **through** every head: rank 0 has columns 0 to {GPT.d // 2 - 1} of each head, and rank 1 has columns "
    f"{GPT.d // 2} to {GPT.d - 1}.\n\n"
    "Between the heads, nothing is communicated before the output projection. Through the heads, what does rank 0 lack "
    "when it comes to the softmax?",
    hints=(
        "A score is the dot product of a query and a key of one head. Over which index does it sum?",
        "Which sums can be completed later, after a function that is not linear?",
    ),
    solution=f"**Half of the terms of each score.** A score is a sum over the {GPT.d} numbers of a head. Rank 0 has "
    f"the first {GPT.d // 2} of them, for every head and every pair of tokens, so its scores are partial sums. Softmax "
    "is not linear, so the two parts cannot be added after it, as the parts of the MLP's second matrix can. Either the "
    "scores are all-reduced before the softmax, or the halves of queries and keys are gathered.\n\n"
    "**Between the heads, the split does not divide any sum.** The queries, keys, values, scores and output of a head "
    "depend on that head's own columns and on no other head's. The first sum over several heads is in the output "
    "projection. Its rows are split by heads too, and one all-reduce follows, as after the MLP. That is why QKV "
    "projections are easy to split, and why there are no more ranks than heads.",
    options=(
        Option(
            "half-of-each-sum",
            "Half of the terms of every score that it works out",
            "Right: a score is a sum over a head's columns, and softmax needs the whole sum.",
            True,
        ),
        Option(
            "half-of-the-heads",
            "The scores of the heads that rank 1 has worked out",
            "Softmax runs over the keys of one head. It never reads another head's scores, and split this way, rank 0 "
            "has a part of every head.",
        ),
        Option(
            "half-of-the-tokens",
            "The keys of the tokens that are read on rank 1 only",
            "Tensor parallelism splits weights. Both ranks see all tokens, and have a part of each token's key.",
        ),
        Option(
            "nothing",
            "Nothing: its part can be added to rank 1's after it",
            "Softmax of a sum is not the sum of softmaxes. Parts can be added later only if what comes between is "
            "linear.",
        ),
        Option(
            "half-of-the-values",
            "The halves of the values, which softmax weighs",
            "The values come after the softmax, and each of their columns is weighed by itself. Rank 0 could weigh its "
            "own half, if it had the weights.",
        ),
    ),
)

_SEQ, _BYTES = 3000, 2
_SCORES = GPT.heads * _SEQ**2 * _BYTES
_STREAM = stream(GPT, 1, _SEQ)

CUT_HEADS = Number(
    key="through-the-heads",
    level=2,
    minutes=4,
    title="A split through every head",
    prompt=f"Take the GPT of {GPT.heads} heads of {GPT.d}, split over **two** ranks **through** every head: each rank "
    f"has half of the columns of every head. There is one sequence of {_SEQ:,} tokens, no causal mask, and all numbers "
    "are bf16. Before the softmax, one all-reduce adds the partial scores. How large is the tensor that each rank "
    "gives to it, in the forward pass of one block?",
    hints=(
        "For how many pairs of tokens, and for how many heads, does a rank have a partial score?",
        "Every rank has a part of every score of every head.",
    ),
    solution=f"{GPT.heads} heads × {_SEQ:,} × {_SEQ:,} pairs × {_BYTES} bytes = **{_SCORES / 1e6:.0f} MB**. If the "
    "split runs between the heads, attention's only all-reduce comes after the output projection. Its tensor has "
    f"{_SEQ:,} × {GPT.hidden:,} × {_BYTES} bytes = {_STREAM / 1e6:.1f} MB, {_SCORES / _STREAM:.0f} times less (the "
    "sequence length over the width of a head). Also, fused attention never has the scores as a tensor that could be "
    "sent. Gathering both halves of queries and keys instead sends less, but then each rank computes the scores of all "
    "heads, and nothing was split.",
    value=_SCORES,
    unit="MB",
    units=("MB", "MiB", "GB", "GiB"),
    slips=(
        Slip("one-head", _SCORES / GPT.heads, "That is for one head. Each rank has a part of every head."),
        Slip(
            "half",
            _SCORES / 2,
            "With a split through the heads, each rank has a partial sum for every head and every pair of tokens.",
        ),
        Slip(
            "stream",
            _STREAM,
            "That is the size of a tensor with one row for each token. Scores belong to pairs of tokens.",
        ),
        Slip(
            "in-fp32",
            2 * _SCORES,
            "A number in bf16 has two bytes. Count the tensor that a rank gives, not what the ring sends both ways.",
        ),
        Slip(
            "by-columns",
            _SCORES * GPT.d / 2,
            "You counted each score once for every column of a head. A dot product adds these to one number on each "
            "rank.",
        ),
    ),
    right="Split between the heads, the same attention sends none of this.",
)

EXERCISES = (TWO_HALVES, CUT_HEADS, SPLIT, KV)
