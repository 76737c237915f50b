"""Exercises of `tensor` on splitting tokens, too: what it sends, what a block keeps, and who is to split them."""

from __future__ import annotations

from scaleout.collectives.tensor import block
from scaleout.exercises.engine import Choice, Number, Option, Slip
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
    prompt=f"A block, {GPT.hidden:,} wide, is split over **{_RANKS}** ranks, and its tokens too: one sequence of "
    f"**{_SEQ:,}**, bf16. What is gathered before QKV and before the MLP is not kept: the backward gathers it "
    "**again**, as Megatron-LM does. How many bytes does **each rank** send for this block, forward and "
    "backward, with rings?",
    hints=(
        "Forward: an all-gather and a reduce-scatter, for attention and for the MLP.",
        "Backward: where the forward gathers, the backward scatters, and the other way round. And two more gathers.",
        "Four messages and six, each (t − 1)/t of tokens × width × 2 bytes.",
    ),
    solution=f"The tensor has {_SEQ:,} × {GPT.hidden:,} × 2 bytes = {_X / 1e6:.1f} MB, and an all-gather or a "
    f"reduce-scatter sends 7/8 of it. Forward 2 + 2, backward 2 + 2, and 2 gathered again: 10 × 7/8 × {_X / 1e6:.1f} "
    f"MB = **{sent(_SEQUENCE_PARALLEL) / 1e6:.0f} MB**. Without splitting tokens there are four all-reduces, each a "
    f"reduce-scatter and an all-gather: {sent(_PLAIN) / 1e6:.0f} MB.\n\n**So it saves no message.** What it saves is "
    "memory, and the work of the norms: what stands between the matrices has an eighth of the tokens on each rank. The "
    "two gathers more are the price of not keeping what was gathered, and in the backward they can run beside a "
    "product.",
    value=sent(_SEQUENCE_PARALLEL),
    unit="MB",
    units=("kB", "MB", "GB", "MiB"),
    slips=(
        Slip(
            "as-before",
            sent(_PLAIN),
            "That is what is sent where tokens are not split, and where what was gathered is kept. Here it is "
            "gathered again.",
        ),
        Slip(
            "halved",
            sent(_PLAIN) / 2,
            "Either that is the forward alone, without what is gathered again; or an all-reduce became one of its "
            "halves, and it becomes both.",
        ),
        Slip(
            "as-all-reduces",
            2 * sent(_SEQUENCE_PARALLEL),
            "Either you counted each message as an all-reduce, and each is a gather or a scatter; or you took fp32.",
        ),
        Slip("backward-only", 6 * _HALF, "That is the backward alone."),
        Slip("whole", 10 * _X, "You sent the tensor whole each time. A part of it never leaves a rank."),
        Slip(
            "shards",
            10 * _X / _RANKS,
            "You sent one shard each time. In a ring a rank also passes on those of the others.",
        ),
        Slip("all-ranks", _RANKS * sent(_SEQUENCE_PARALLEL), "That is what all 8 ranks send. How much is it for each?"),
        Slip("one-gather-more", 9 * _HALF, "Count again what the forward gathers: all of it comes again."),
        Slip(
            "forward-again",
            12 * _HALF,
            "You did the whole forward's messages again. Only what was gathered comes again.",
        ),
    ),
    right="A quarter more than without. What it saves is memory.",
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
    title="Kept by one block",
    prompt=f"What a GPT's block keeps for its backward in 16 bits, with dropout and without a fused kernel for "
    "attention, Korthikanti et al. count for each of the s·b·h numbers of its stream:\n\n"
    "- 10 bytes outside of the matrices' pairs: the two norms' inputs, the inputs of QKV and of the MLP, two masks;\n"
    "- 24 bytes inside: Q, K, V, what the heads found, and the MLP's middle;\n"
    "- 5·a·s/h bytes of attention's scores, for its a heads.\n\n"
    f"The block is {GPT.hidden:,} wide with {GPT.heads} heads, and runs **{_BATCH}** sequences of **{_LONG:,}** tokens "
    f"on **{_T}** ranks, tensor parallel, **without** splitting tokens. What does one rank keep?",
    hints=("Which of the three are divided over the ranks?", "s·b·h · (10 + 24/t + 5·a·s/(h·t))."),
    solution=f"{_LONG:,} × {_BATCH} × {GPT.hidden:,} × (10 + 24/4 + {_SCORES:.0f}/4) bytes = "
    f"{_NUMBERS / 1e6:.1f} million × {10 + 6 + _SCORES / 4:.0f} = **{_saved_bytes() / 1e6:.0f} MB**. Heads and the "
    f"MLP's columns are split; the 10 bytes are on every rank. Split the tokens as well, and they are {10 / _T:.1f}: "
    f"{_saved_bytes(10 / _T) / 1e6:.0f} MB. A fused kernel for attention keeps no scores: "
    f"{_saved_bytes(scores=0) / 1e6:.0f} MB, of which the 10 bytes are then five eighths.\n\nSource: Korthikanti et "
    "al., arXiv 2205.05198, section 4 and table 2.",
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
            "You divided all by 4. What is outside of the matrices is whole on every rank, unless tokens are split.",
        ),
        Slip(
            "scores-undivided",
            _saved_bytes(scores=_SCORES),
            "You left the scores whole. They belong to heads, and a rank has a fourth of those.",
        ),
        Slip("scores-only", _saved_bytes(10, 24), "You divided the scores alone. What else lies inside of the pairs?"),
        Slip(
            "no-scores", _saved_bytes(scores=0), "The scores are missing: attention is not fused here, and keeps them."
        ),
        Slip("one-sequence", _saved_bytes() / _BATCH, f"That is one sequence. There are {_BATCH}."),
        Slip(
            "inside-only", _saved_bytes(0), "The 10 bytes outside are missing. Every rank keeps them, and all of them."
        ),
        Slip(
            "all-heads-twice",
            _saved_bytes(scores=_SCORES / _T * _BATCH),
            "You have the batch in the scores twice: the numbers of the stream have it already.",
        ),
    ),
    right="The more ranks, the more of it is what is not divided.",
)

SHARDED = Choice(
    key="already-sharded",
    level=3,
    minutes=3,
    title="Eight times the sequence",
    prompt='A model\'s plan for 8 ranks says `"norm1": SequenceParallel()`. Every rank looks up all 1,024 tokens in a '
    "plain `nn.Embedding`, and gives the result, of shape (2, 1024, 4096), to `norm1`. Inside of the norm a hook "
    "prints (2, **8192**, 4096). No error. Which change mends it?",
    hints=(
        "A style describes how its input lies. Who has to make it lie so?",
        "How does a plain tensor come to be split over ranks: by being called a part, or by being cut?",
    ),
    solution="**Give the norm what it expects: tokens that are split.** `SequenceParallel` takes a plain tensor for "
    "this rank's part, so eight whole copies count as eight parts of a sequence of 8,192. Nothing is cut and nothing "
    "checked. So let the table make parts:\n\n"
    '```\n"table": RowwiseParallel(\n    input_layouts=Replicate(), output_layouts=Shard(1)\n),\n```\n\n'
    "Or let a `PrepareModuleInput`, from `Replicate()` to `Shard(1)`, cut what comes in. Both then give "
    "(2, 1024, 4096) over the ranks, 128 tokens each.\n\nThe norm's own "
    "numbers are right even so, for it treats each token alone. What comes next is not: attention gathers 8,192 "
    "tokens, the same text eight times over. Source: pytorch/examples, issue 1271.",
    options=(
        Option(
            "layout",
            "Have the embedding's output laid out as Shard(1)",
            "Right: then a rank comes with its 128 tokens, and eight of those are the sequence.",
            True,
        ),
        Option(
            "dimension",
            "Tell the norm's style that sequence_dim is 0",
            "Then the eight copies are laid side by side as sequences: (16, 1024, 4096). Still nothing is cut.",
        ),
        Option(
            "local",
            "Tell the norm's style to use_local_output=True",
            "That makes a plain tensor of what comes out. What came in was taken for a part already.",
        ),
        Option(
            "gather",
            "Gather the tokens on all ranks before the norm",
            "All ranks have all tokens: that is what is wrong. The style expects a part on each.",
        ),
        Option(
            "positions",
            "Have the norm's weight laid out as Replicate()",
            "It is: the style makes copies of a norm's weight by itself. The input is what lies otherwise.",
        ),
    ),
)

EXERCISES = (BYTES, SAVED_BY_BLOCK, SHARDED)
