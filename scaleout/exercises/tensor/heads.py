"""Exercises of `tensor` on attention: why it is cut between heads, whose columns of Q, K and V, and what fewer
key-value heads change."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip
from scaleout.exercises.tensor.sizes import GPT, stream
from scaleout.spec.slices import slice_linears
from scaleout.spec.transformer import Shape

_STUB = '''\
def columns(rank, ranks, heads, kv, width):
    """The columns of a fused [Q | K | V] that a rank holds.

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
    columns, start = [], 0
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
    prompt="Many models keep the weights of Q, K and V in **one** matrix [Q | K | V], the heads of each side by side, "
    "`width` columns per head. Write `columns(rank, ranks, heads, kv, width)`: the columns that `rank` has to hold "
    "to do "
    "attention for its query heads with **no message**.\n\n"
    "- Rank 0 has the first `heads / ranks` query heads, rank 1 the next, and so on.\n"
    "- With fewer key-value heads than heads, query heads share them in order: of 8 and 2, the first four query heads "
    "read key-value head 0.\n"
    "- A rank holds the key and value heads that its query heads read, whole, and no others. Where ranks read the "
    "same one, each has a copy.",
    hints=(
        "Three ranges, one in each of Q, K and V. Where do K and V begin?",
        "Query head j reads key-value head j // (heads // kv).",
        "With more ranks than key-value heads a rank reads one. `rank * kv // ranks` is its number.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "**That is why QKV projections are easy to split.** Heads never look at each other, so columns that go with a "
    "head's queries, keys and values make everything that its softmax needs, on one rank. The cut runs between heads. "
    "A fused matrix must not be cut into equal column blocks: the first of four ranks would have queries alone, the "
    "last values alone, and nobody could begin. Llama's checkpoints keep the three apart. GPT-2's `c_attn` is fused. "
    "Megatron-LM's is too, but head by head, with q, k and v of a head side by side, so that equal blocks are right.",
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
            "You cut the fused matrix into equal column blocks. Then the first rank has queries and no values, "
            "the last values and no queries. Cut Q, K and V each, and take a rank's part of all three.",
        ),
        Mistake(
            "cut-heads",
            _cut_heads,
            "You cut Q, K and V each into equal blocks. That is right up to as many ranks as key-value heads; with "
            "more, it cuts through a head, and a softmax needs whole ones: ranks have copies then.",
        ),
        Mistake(
            "as-queries",
            _as_queries,
            "You took as many heads of K and V as of Q. There are kv of them, and query heads share one.",
        ),
        Mistake(
            "all-key-values",
            lambda rank, ranks, heads, kv, width: _columns(rank, ranks, heads, kv, width, read=list(range(kv))),
            "Every rank of yours holds all of K and V. It needs those that its own query heads read.",
        ),
        Mistake(
            "in-turns",
            _modulo,
            "With more ranks than key-value heads you deal them out in turns, rank % kv. Neighbours share one: the "
            "first query heads all read key-value head 0.",
        ),
        Mistake(
            "shared-in-turns",
            lambda rank, ranks, heads, kv, width: _columns(
                rank, ranks, heads, kv, width, read=sorted({head % kv for head in _own_heads(rank, ranks, heads)})
            ),
            "Your query head j reads key-value head j % kv. They share in order: the first heads // kv query heads "
            "read key-value head 0.",
        ),
        Mistake(
            "repeated",
            lambda rank, ranks, heads, kv, width: _columns(
                rank, ranks, heads, kv, width, read=[h // (heads // kv) for h in _own_heads(rank, ranks, heads)]
            ),
            "A key-value head stands in your list once for each query head that reads it. The rank holds it once.",
        ),
        Mistake(
            "late-values",
            lambda rank, ranks, heads, kv, width: _columns(rank, ranks, heads, kv, width, starts=(heads, 2 * heads)),
            "Your V begins as far behind K as K does behind Q. K has kv heads.",
        ),
        Mistake(
            "round-robin",
            lambda rank, ranks, heads, kv, width: _columns(
                rank, ranks, heads, kv, width, owned=list(range(rank, heads, ranks))
            ),
            "Your rank has every ranks-th head. That can be made to work, but here a rank's query heads stand "
            "side by side.",
        ),
        Mistake(
            "queries-only",
            lambda rank, ranks, heads, kv, width: _columns(rank, ranks, heads, kv, width, read=[]),
            "Those are the queries alone. Without keys and values of its heads the rank has to ask for them.",
        ),
        Mistake(
            "no-values",
            lambda rank, ranks, heads, kv, width: [
                column for column in _columns(rank, ranks, heads, kv, width) if column < (heads + kv) * width
            ],
            "Those are queries and keys. The softmax weighs values: the rank needs those of its heads too.",
        ),
        Mistake(
            "no-offset",
            lambda rank, ranks, heads, kv, width: _columns(rank, ranks, heads, kv, width, starts=(0, 0)),
            "You count K's and V's columns from 0. In the fused matrix they stand behind those of Q.",
        ),
        Mistake(
            "heads-not-columns",
            lambda rank, ranks, heads, kv, width: _columns(rank, ranks, heads, kv, 1),
            "Those are the numbers of heads. A head has width columns.",
        ),
    ),
    right="Each rank does attention for its own heads, from projection to mix, without a word.",
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
    f"and {_GQA.kv} value heads. Its attention is cut by heads over **{_RANKS}** ranks. How many parameters of K's "
    "and V's weights **together** does one rank hold in a block? No biases.",
    hints=(
        f"{_RANKS} ranks share {_GQA.kv} key-value heads. Can a rank do with a piece of one?",
        f"One head of K and one of V, {_GQA.hidden:,} × {_GQA.d} each.",
    ),
    solution=f"A rank's {_GQA.heads // _RANKS} query heads read one key head and one value head, whole: 2 × "
    f"{_GQA.hidden:,} × {_GQA.d} = **{2 * _K / 1e6:.2f} million**. An even split would be "
    f"{2 * _UNCUT / _RANKS / 1e6:.3f} million, a fourth of it: each head stands on {_COPIES} ranks. Copies cost twice: "
    f"their memory, and a message, for each of the {_COPIES} finds the gradient from its own query heads alone, and "
    "the parts have to be added.",
    value=2 * _K,
    unit="million",
    units=("thousand", "million", "billion"),
    dimension="parameters",
    slips=(
        Slip(
            "even-split",
            2 * _UNCUT / _RANKS,
            f"That is an {_RANKS}th of both. It would be a piece of a head, and a softmax needs all {_GQA.d} numbers "
            "of it: ranks hold copies.",
        ),
        Slip("one-matrix", _K, "That is one head of one matrix. K and V each have one."),
        Slip(
            "all-heads",
            2 * _UNCUT,
            "That is both heads of both matrices. The query heads of one rank all read the same head.",
        ),
        Slip(
            "as-queries",
            2 * _GQA.hidden * _GQA.d * _GQA.heads // _RANKS,
            f"You took {_GQA.heads // _RANKS} heads of K and V, as many as of Q. There are {_GQA.kv} of each in all.",
        ),
        Slip(
            "with-queries", _GQA.hidden * _GQA.d * (_GQA.heads // _RANKS + 2), "You counted the columns of Q as well."
        ),
    ),
    right="Beyond as many ranks as key-value heads, more ranks do not make this smaller.",
)

TWO_HALVES = Choice(
    key="two-halves-of-qkv",
    level=2,
    minutes=4,
    title="Two ways to halve QKV",
    prompt=f"A GPT is {GPT.hidden:,} wide, with {GPT.heads} heads of {GPT.d}. Two ranks each take half of the columns "
    "of Q, of K and of V. There are two ways:\n\n"
    f"- **between** the heads: rank 0 has all {GPT.d} columns of heads 0 to {GPT.heads // 2 - 1}, rank 1 those of the "
    "others;\n"
    f"- **through** every head: rank 0 has columns 0 to {GPT.d // 2 - 1} of each head, rank 1 columns {GPT.d // 2} to "
    f"{GPT.d - 1}.\n\n"
    "Bytes of weights and FLOPs are the same. Between the heads, nothing is communicated before the output projection. "
    "Through them, what does rank 0 lack when it comes to the softmax?",
    hints=(
        "A score is the dot product of a query and a key of one head. Over which index is it a sum?",
        "Which sums can be finished later, behind a function that is not linear?",
    ),
    solution=f"**Half of the terms of each score.** A score is a sum over the {GPT.d} numbers of a head. Rank 0 has "
    f"the first {GPT.d // 2} of them, for every head and every pair of tokens, so that its scores are partial sums. "
    "Softmax is not linear: parts cannot pass it one by one and be added behind it, as the MLP's can behind its second "
    "matrix. So the scores are all-reduced before it, or the halves of queries and keys are gathered.\n\n"
    "**Between the heads the cut meets no sum.** Each head's queries, keys, values, scores and mix depend on its own "
    "columns and on no other head's. The first sum that runs over heads is in the output projection, whose rows are "
    "cut the same way: one all-reduce, as behind the MLP. That is why QKV projections are easy to parallelize, and why "
    "there are no more ranks than heads.",
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
            "Softmax runs over the keys of one head. It never looks at another head's scores, and cut this way rank "
            "0 has a part of every head.",
        ),
        Option(
            "half-of-the-tokens",
            "The keys of the tokens that are read on rank 1 only",
            "Tensor parallelism cuts weights. Both ranks see all tokens, and have a part of each one's key.",
        ),
        Option(
            "nothing",
            "Nothing: its part can be added to rank 1's after it",
            "The softmax of a sum is not the sum of softmaxes. Parts add up only as long as what comes next is linear.",
        ),
        Option(
            "half-of-the-values",
            "The halves of the values, which softmax weighs",
            "Values come behind the softmax, and each column of them is weighed by itself: rank 0 could mix its "
            "half alone, if it had the weights.",
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
    title="A cut through every head",
    prompt=f"The GPT of {GPT.heads} heads of {GPT.d} on **two** ranks, cut **through** every head: each rank has half "
    f"of a head's columns, for all heads. One sequence of {_SEQ:,} tokens, no causal mask, all in bf16. Before the "
    "softmax the ranks add up their partial scores by one all-reduce. How large is the tensor that each of them gives "
    "to it, in the forward of one block?",
    hints=(
        "For how many pairs of tokens, and for how many heads, does a rank have a part of the score?",
        "Every rank has a part of every score of every head.",
    ),
    solution=f"{GPT.heads} heads × {_SEQ:,} × {_SEQ:,} pairs × {_BYTES} bytes = **{_SCORES / 1e6:.0f} MB**. The "
    f"all-reduce behind the output projection, the only one of attention where the cut runs between heads, has "
    f"{_SEQ:,} × {GPT.hidden:,} × {_BYTES} bytes, {_STREAM / 1e6:.1f} MB: {_SCORES / _STREAM:.0f} times less, "
    "the sequence over a head's width. And fused attention never has the scores as a tensor that could be sent. "
    "Gathering both ranks' halves of queries and keys instead sends less, and leaves each rank with the scores of all "
    "heads to work out: then nothing was split.",
    value=_SCORES,
    unit="MB",
    units=("MB", "MiB", "GB", "GiB"),
    slips=(
        Slip("one-head", _SCORES / GPT.heads, "That is for one head. Each rank has a part of every head."),
        Slip(
            "half",
            _SCORES / 2,
            "A cut through the heads leaves no pair of tokens and no head out: each rank has a "
            "partial sum for all of them.",
        ),
        Slip("stream", _STREAM, "That is the size of a tensor with one row a token. Scores belong to pairs of tokens."),
        Slip(
            "in-fp32",
            2 * _SCORES,
            "A number in bf16 has two bytes, and what is asked is what a rank gives, not what goes both ways.",
        ),
        Slip(
            "by-columns",
            _SCORES * GPT.d / 2,
            "You counted each score once for every column of a head. A dot product "
            "adds them up, to one number on each rank.",
        ),
    ),
    right="Between the heads the same attention sends none of it.",
)

EXERCISES = (TWO_HALVES, CUT_HEADS, SPLIT, KV)
