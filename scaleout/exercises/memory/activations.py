"""Exercises of `memory` on what a batch costs: activations and logits."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.exercises.memory.sizes import BYTES
from scaleout.memory.accounts import account
from scaleout.spec.devices import GB
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS

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
    prompt="You double the sequence length and do not change the number of sequences. By what factor does the memory "
    "of the activations grow, with naive attention and with a fused kernel (sdpa, FlashAttention)?",
    hints=(
        "Naive attention saves a score for every pair of tokens.",
        "A fused kernel recomputes the scores in the backward pass. What it saves has one row per token.",
    ),
    solution="**Naive grows 2 to 4 times, fused 2 times.** Most activations have one row per token, so they double. "
    "Naive "
    "attention also saves the s × s scores of every head, and these grow 4 times. A fused kernel saves only Q, K, V, "
    "the output and one number per row and head.\n\n"
    f"For Llama 3 8B's shape, from {_LONG:,} to {2 * _LONG:,} tokens, the book's account gives a factor of "
    f"{_growth('naive'):.1f} with naive and {_growth('sdpa'):.1f} with fused attention.\n\n"
    "Source: Dao et al., FlashAttention, arXiv 2205.14135: memory linear in the sequence.",
    options=(
        Option(
            "more-than-two",
            "Naive: 2 to 4 times. Fused: 2 times",
            "Right, and the longer the sequence, the nearer to 4. Fused attention still does a quadratic amount of "
            "work, "
            "but it does not store the scores.",
            True,
        ),
        Option(
            "both-double",
            "Naive: 2 times. Fused: 2 times",
            "That holds for the fused kernel, and for everything that has one row per token. Naive attention also "
            "saves "
            "a score for each pair of tokens, and there are 4 times as many pairs.",
        ),
        Option(
            "both-four",
            "Naive: 4 times. Fused: 4 times",
            "The arithmetic of attention grows 4 times in both. The memory of a fused kernel does not, because it "
            "never "
            "stores the s × s scores.",
        ),
        Option(
            "fused-four", "Naive: 2 times. Fused: 2 to 4 times", "Which of the two kernels stores the s × s scores?"
        ),
        Option(
            "no-change",
            "Naive: unchanged. Fused: unchanged",
            "Activations are saved for each token. Sequences that are twice as long have twice the tokens.",
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
        "The logits have one row per token and one column per entry of the vocabulary.",
        f"Tokens = {_SEQUENCES} × 8,192. An fp32 number has 4 bytes.",
    ),
    solution=f"{_SEQUENCES} × 8,192 tokens × {_LLAMA.vocab:,} × 4 bytes = **{_LOGITS / GB:.1f} GB**.\n\n"
    "PyTorch's cross-entropy needs up to three such tensors at the same time: the log-softmax, its gradient, "
    "and the gradient of the logits, which is computed from both. So one line of the model can be the peak of the "
    "whole step. The vocabulary is that of Grattafiori et al., The Llama 3 Herd of Models, arXiv 2407.21783, "
    "section 3.",
    value=_LOGITS,
    unit="GB",
    units=("MB", "GB", "TB", "GiB"),
    slips=(
        Slip(
            "fp16",
            _LOGITS / 2,
            "You took 2 bytes per number. The logits are in fp32 here, because cross-entropy is computed in fp32 for "
            "accuracy.",
        ),
        Slip("forgot-batch", _LOGITS / _SEQUENCES, f"That is one sequence. There are {_SEQUENCES} of them."),
        Slip("bits", _LOGITS * 8, "That is right in bits. The question asks for bytes."),
        Slip(
            "forgot-sequence",
            _LOGITS / 8192,
            "That is one token per sequence. In training, every token predicts the next one.",
        ),
        Slip(
            "forgot-bytes",
            _LOGITS / 4,
            "Either the 4 bytes of an fp32 number are missing, or you took Llama 2's vocabulary of 32,000.",
        ),
        Slip(
            "hidden",
            _TOKENS * _LLAMA.hidden * 4,
            f"You used the hidden size, {_LLAMA.hidden:,}. Logits have one column per entry of the vocabulary.",
        ),
        Slip(
            "three-copies",
            3 * _LOGITS,
            "That is three copies, which is what cross-entropy needs at most. The question asks for one.",
        ),
    ),
    right="Remember this number when a job gets through the layers and runs out of memory in the loss.",
)

EXERCISES = (DOUBLE, LOGITS)
