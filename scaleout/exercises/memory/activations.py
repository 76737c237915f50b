"""Exercises of `memory` on what a batch costs: activations, logits, checkpoints, and the peak over a step."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip
from scaleout.exercises.memory.sizes import BYTES
from scaleout.memory.accounts import Recipe, account
from scaleout.spec.devices import GB
from scaleout.spec.transformer import PRESETS

# A batch whose peak an 80 GB card may hold or not: it is within the allocator's band.
_XL = PRESETS["gpt2-xl"]
_BATCH, _SEQ = 16, 1024
_PEAK = account(_XL, _BATCH, _SEQ).peak
_TOTAL = sum(_PEAK.values())


def _share(kind: str) -> str:
    return f"{_PEAK[kind] / GB:.1f} GB"


DOMINATES = Choice(
    key="largest-kind",
    level=2,
    title="What fills the card?",
    prompt=f"GPT-2 XL (1.56 billion parameters, {_XL.layers} layers, hidden size {_XL.hidden}) trains "
    f"with AdamW under bf16 autocast, fused attention and no checkpointing, on {_BATCH} sequences "
    f"of {_SEQ} tokens at a time. What is largest at the peak?",
    hints=(
        "States cost 16 bytes for each parameter, whatever the batch.",
        f"Each layer keeps some tens of bytes for each token and hidden unit: {_BATCH} × {_SEQ} tokens "
        f"× {_XL.hidden} × {_XL.layers} layers × about 40 bytes.",
    ),
    solution=f"**Activations**: {_share('activations')} of {_TOTAL / GB:.0f} GB at the peak, against "
    f"{_share('optimizer')} of optimizer states and {_share('weights')} of weights with their copies in bf16. "
    "The states depend on the model only. The activations grow with every token you add, so the answer "
    "changes with the batch: compute both.",
    options=(
        Option(
            "activations",
            "The activations",
            "Right. They grow with the batch, and at this one they have passed the states. Halve the "
            "batch and you halve them.",
            True,
        ),
        Option(
            "optimizer",
            "The optimizer's states",
            f"AdamW's two moments are 8 bytes for each parameter, {_share('optimizer')} here. That "
            f"would win for one short sequence, but {_BATCH * _SEQ:,} tokens leave more behind in "
            "every layer.",
        ),
        Option(
            "weights",
            "The weights",
            "Weights take 4 bytes for each parameter, and 2 more while autocast has a copy of them in bf16: "
            f"{_share('weights')} here. AdamW's moments are more, and neither grows with the batch.",
        ),
        Option(
            "gradients",
            "The gradients",
            "Gradients are never larger than the weights, so they can never be the largest kind.",
        ),
        Option(
            "logits",
            "The logits",
            f"One fp32 tensor of their size is {_BATCH} × {_SEQ} × {_XL.vocab:,} × 4 bytes = "
            f"{_BATCH * _SEQ * _XL.vocab * 4 / GB:.1f} GB, and three stand at the loss. Worth knowing; but "
            f"{_XL.layers} layers together keep more.",
        ),
    ),
)

_LONG = 4096


def _growth(attention: str) -> float:
    """By how much the activations grow from _LONG to 2 × _LONG tokens, one sequence of Llama 3 8B's shape."""
    recipe, shape = Recipe(attention=attention), PRESETS["llama-3-8b"]
    short, long = (account(shape, 1, seq, recipe).moments["loss"] for seq in (_LONG, 2 * _LONG))
    return long["activations"] / short["activations"]


DOUBLE = Choice(
    key="double-sequence",
    level=2,
    title="Twice the sequence",
    prompt="You double the sequence length and leave the batch, the number of sequences, as it is. What "
    "happens to the memory of the activations, with naive attention and with a fused kernel (sdpa, "
    "FlashAttention)?",
    hints=(
        "Naive attention keeps a score for every pair of tokens.",
        "A fused kernel recomputes the scores in backward. What it keeps has one row for each token.",
    ),
    solution="**Naive grows by more than 2, towards 4; fused by 2.** Most activations have one row for "
    "each token, so they double. Naive attention also keeps the s × s scores of every head, and "
    "these grow by 4. A fused kernel keeps only Q, K, V, the output and one number for each "
    "row.\n\n"
    f"The book's model, for Llama 3 8B's shape from {_LONG:,} to {2 * _LONG:,} tokens: naive × "
    f"{_growth('naive'):.1f}, fused × {_growth('sdpa'):.1f}.\n\n"
    "Source: Dao et al., FlashAttention, arXiv 2205.14135: memory linear in the sequence.",
    options=(
        Option(
            "more-than-two",
            "Naive: 2 to 4 times. Fused: 2 times",
            "Right, and the longer the sequence, the nearer to 4. Fused attention still does the quadratic work, "
            "but it no longer stores it.",
            True,
        ),
        Option(
            "both-double",
            "Naive: 2 times. Fused: 2 times",
            "True of the fused kernel, and of everything that has one row for each token. Naive "
            "attention also keeps a score for each pair of tokens, and there are 4 times as many pairs.",
        ),
        Option(
            "both-four",
            "Naive: 4 times. Fused: 4 times",
            "The arithmetic of attention grows by 4 in both. The memory of a fused kernel does not: it "
            "never stores the s × s scores.",
        ),
        Option(
            "fused-four", "Naive: 2 times. Fused: 2 to 4 times", "Which of the two kernels stores the s × s scores?"
        ),
        Option(
            "no-change",
            "Naive: unchanged. Fused: unchanged",
            "Activations are kept for each token. Twice the sequence at the same number of sequences "
            "is twice the tokens.",
        ),
    ),
)

_LLAMA = PRESETS["llama-3-8b"]
_SEQUENCES = 6  # not 8: one sequence must not be what a division by 8 bits gives
_TOKENS = _SEQUENCES * 8192
_LOGITS = _TOKENS * _LLAMA.vocab * BYTES["fp32"]

LOGITS = Number(
    key="logits",
    level=2,
    title="One tensor at the end",
    prompt=f"Llama 3 has a vocabulary of {_LLAMA.vocab:,}. You train on {_SEQUENCES} sequences of 8,192 tokens. How "
    "large is **one** copy of the logits in fp32?",
    hints=(
        "The logits have one row for each token and one column for each word of the vocabulary.",
        f"Tokens = {_SEQUENCES} × 8,192. An fp32 number has 4 bytes.",
    ),
    solution=f"{_SEQUENCES} × 8,192 tokens × {_LLAMA.vocab:,} × 4 bytes = **{_LOGITS / GB:.1f} GB**.\n\n"
    "Cross-entropy in PyTorch has up to three such tensors alive at once: the log-softmax, its gradient, "
    "and the gradient of the logits that is made from both. This one line of the model can be the peak of "
    "the whole step. "
    "The vocabulary is that of Grattafiori et al., The Llama 3 Herd of Models, arXiv 2407.21783, "
    "section 3.",
    value=_LOGITS,
    unit="GB",
    units=("MB", "GB", "TB", "GiB"),
    slips=(
        Slip(
            "fp16",
            _LOGITS / 2,
            "You took 2 bytes for each number. Here it is fp32: cross-entropy is computed in it for its accuracy.",
        ),
        Slip("forgot-batch", _LOGITS / _SEQUENCES, f"That is one sequence. There are {_SEQUENCES} of them."),
        Slip("bits", _LOGITS * 8, "That is right in bits. This asks for bytes."),
        Slip(
            "forgot-sequence",
            _LOGITS / 8192,
            "That is one token of each sequence. In training every token predicts the next one.",
        ),
        Slip(
            "forgot-bytes",
            _LOGITS / 4,
            "Either the bytes of an fp32 number are missing, or you took Llama 2's vocabulary of 32,000.",
        ),
        Slip(
            "hidden",
            _TOKENS * _LLAMA.hidden * 4,
            f"You used the hidden size, {_LLAMA.hidden:,}. Logits have one column for each word of the vocabulary.",
        ),
        Slip(
            "three-copies",
            3 * _LOGITS,
            "That is three copies: what cross-entropy holds at its worst. This asks for one.",
        ),
    ),
    right="Remember it when a loss runs out of memory and the layers did not.",
)

_GPT3 = PRESETS["gpt-3-175b"]
_ROW = 2048 * _GPT3.hidden  # numbers in one layer's input, for one sequence
_CHECKPOINTS = _GPT3.layers * _ROW * BYTES["bf16"]
_SCORES = 5 * _GPT3.heads * 2048 / _GPT3.hidden  # Korthikanti et al., arXiv 2205.05198, equation 2

CHECKPOINTS = Number(
    key="checkpointing",
    level=2,
    title="What full checkpointing keeps",
    prompt=f"GPT-3 has {_GPT3.layers} layers and hidden size {_GPT3.hidden:,}. With full checkpointing "
    "each layer keeps only its input, here in bf16. How much is that for **one** sequence of 2,048 "
    "tokens, all layers together? Leave out the one layer that is being recomputed.",
    hints=("A layer's input has one row of hidden size for each token.", "Layers × tokens × hidden size × 2 bytes."),
    solution=f"{_GPT3.layers} × 2,048 × {_GPT3.hidden:,} × 2 bytes = **{_CHECKPOINTS / GB:.2f} GB**.\n\n"
    f"Without checkpointing it is {(34 + _SCORES) / 2:.0f} times as much, "
    f"{_CHECKPOINTS * (34 + _SCORES) / 2 / GB:.0f} GB, with naive attention and dropout. The "
    "price is one more forward.\n\n"
    "Source: Korthikanti et al., arXiv 2205.05198, sections 4.1 and 5: sbh(34 + 5as/h) bytes a "
    "layer, and 2sbh with full recomputation.",
    value=_CHECKPOINTS,
    unit="GB",
    units=("MB", "GB", "TB", "GiB"),
    slips=(
        Slip(
            "fp32",
            _CHECKPOINTS * 2,
            "That is fp32. It is what bf16 autocast keeps, whose residual stream stays in fp32, but here "
            "the inputs are in bf16.",
        ),
        Slip(
            "one-layer",
            _CHECKPOINTS / _GPT3.layers,
            f"That is one layer. All {_GPT3.layers} keep their input until backward reaches them.",
        ),
        Slip(
            "no-checkpointing",
            _CHECKPOINTS * (34 + _SCORES) / 2,
            "That is everything each layer saves without checkpointing. With it, a layer saves only its input.",
        ),
        Slip(
            "34-only",
            _CHECKPOINTS * 17,
            "34 bytes for each token and hidden unit is what a layer saves without checkpointing (and "
            "without attention scores). With it, a layer saves only its input.",
        ),
        Slip(
            "forgot-bytes",
            _CHECKPOINTS / 2,
            "That counts the numbers, or gives each of them one byte. They are in bf16.",
        ),
        Slip("forgot-sequence", _CHECKPOINTS / 2048, "That is one token. The sequence has 2,048."),
    ),
    right="For 175 billion parameters that is almost nothing: full checkpointing is a strong lever.",
)

_PEAK_STUB = '''\
def peak_bytes(always, moments):
    """The most that one step holds at any time.

    always: bytes held all the time, such as 18_000_000_000
    moments: what comes on top, by moment, such as
        {"loss": 14_000_000_000, "optimizer": 12_000_000_000}
    """
    return ...
'''

_PEAK_SOLUTION = """\
def peak_bytes(always, moments):
    return always + max(moments.values(), default=0)
"""

PEAK = Function(
    key="peak-function",
    level=2,
    title="The peak of one step",
    prompt="Write `peak_bytes(always, moments)`. Some bytes are held through the whole step (`always`). "
    "Others come and go: `moments` gives, for each moment, what is held on top. Return the largest "
    "total at any one moment. A step without special moments has an empty `moments`.",
    hints=(
        "At the loss there are logits and no optimizer temporaries; at the optimizer step it is the other way.",
        "Memory that is freed before the next moment is used again: take the largest, not the sum.",
    ),
    solution="```python\n"
    f"{_PEAK_SOLUTION}```\n\n"
    "Adding the moments prices memory that is never held at once. Calculators that print one "
    "column of sums do this.",
    function="peak_bytes",
    stub=_PEAK_STUB,
    reference=lambda always, moments: always + max(moments.values(), default=0),
    cases=(
        (18 * GB, {"loss": 14 * GB, "backward": 9 * GB, "optimizer": 12 * GB}),
        (18 * GB, {"loss": 5 * GB, "backward": 9 * GB, "optimizer": 12 * GB}),
        (18 * GB, {"loss": 5 * GB, "backward": 20 * GB, "optimizer": 12 * GB}),
        (25 * GB, {"backward": 40 * GB, "optimizer": 6 * GB}),
        (3, {"forward": 2, "loss": 11, "backward": 7, "evaluation": 5}),
        (9_345_678_901, {"embedding": 1_234_567, "optimizer": 7_654_321_987, "sample": 7_654_321_986}),
        (6, {"checkpoint": 13}),
        (0, {"forward": 17, "backward": 23, "loss": 19}),
        (7 * GB, {"loss": 0, "optimizer": 0}),
        (120 * GB, {}),
        (5, {}),
    ),
    mistakes=(
        Mistake(
            "summed-moments",
            lambda always, moments: always + sum(moments.values()),
            "You added the moments up. They do not happen at once: what the loss needs is free again "
            "at the optimizer step.",
        ),
        Mistake(
            "forgot-always",
            lambda always, moments: max(moments.values(), default=0),
            "You left out always: it is there at every moment, the peak too.",
        ),
        Mistake(
            "forgot-moments",
            lambda always, moments: always,
            "You returned only what is always held. The largest moment comes on top.",
        ),
        Mistake(
            "max-of-both",
            lambda always, moments: max([always, *moments.values()]),
            "You took the larger of always and the moments. A moment comes on top of always: add them.",
        ),
        Mistake(
            "last-moment",
            lambda always, moments: always + ([0, *moments.values()])[-1],
            "You took the last moment. The peak can be at any of them: take the largest.",
        ),
        Mistake(
            "first-moment",
            lambda always, moments: always + ([*moments.values(), 0])[0],
            "You took the first moment. The peak can be at any of them: take the largest.",
        ),
        Mistake(
            "smallest",
            lambda always, moments: always + min(moments.values(), default=0),
            "You took the smallest moment. The peak is at the largest.",
        ),
    ),
    right="Lower the largest moment and another one becomes the peak. That is why one change often saves "
    "less than it should.",
)

EXERCISES = (DOMINATES, DOUBLE, LOGITS, CHECKPOINTS, PEAK)
