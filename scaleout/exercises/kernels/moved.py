"""Exercises of `kernels` on what a kernel moves and computes: scores in HBM, FLOPs of a backward, a fused chain."""

from __future__ import annotations

from scaleout.exercises.engine import Number, Slip

HEADS, SEQ, HEAD, SEQUENCES = 24, 6144, 64, 3
SCORES = SEQUENCES * HEADS * SEQ * SEQ * 2
NAIVE_SCORES = Number(
    key="scores-in-hbm",
    level=1,
    minutes=2,
    short=True,
    title="One pass over the scores",
    prompt=f"A naive attention layer has **{HEADS} heads of {HEAD}** and processes **{SEQUENCES} sequences of "
    f"{SEQ:,} tokens** in bf16. How many GB does it write when it stores the scores of all heads once?",
    hints=("How many scores has one head of one sequence?", "Each score takes 2 bytes."),
    solution=f"{SEQUENCES} × {HEADS} × {SEQ:,}² × 2 bytes = **{SCORES / 1e9:.2f} GB**. Q of all heads has "
    f"{SEQUENCES} × {HEADS} × {SEQ:,} × {HEAD} × 2 bytes = {SEQUENCES * HEADS * SEQ * HEAD * 2 / 1e6:.0f} MB. One pass "
    f"over the scores is {SEQ // HEAD} passes over Q: s / d of them.",
    value=SCORES,
    unit="GB",
    units=("GB", "MB", "GiB"),
    unit_given=True,
    slips=(
        Slip("one-head", SCORES / HEADS, "That is one head of each sequence. Every head has scores of its own."),
        Slip("one-sequence", SCORES / SEQUENCES, "That is one of the sequences."),
        Slip("fp32", 2 * SCORES, "You counted 4 bytes per score. In bf16 a score has 2."),
        Slip("elements", SCORES / 2, "That is the number of scores. How many bytes has each?"),
        Slip("q", SEQUENCES * HEADS * SEQ * HEAD * 2, "That is the size of Q: tokens times head size, for all heads."),
        Slip(
            "one-long-sequence",
            HEADS * (SEQUENCES * SEQ) ** 2 * 2,
            "You took all sequences for one long one. Tokens of different sequences have no scores with each other.",
        ),
    ),
    right="And the naive kernel goes over them four times in a forward pass.",
)

MORE = 7 / 6 - 1
MORE_FLOPS = Number(
    key="more-flops",
    level=1,
    minutes=2,
    short=True,
    title="The price of forgetting",
    prompt="Without a mask, the forward of attention takes two matrix multiplications, all of one size. A backward "
    "that stored the probabilities takes four more of them. FlashAttention stores only the log-sum-exp, and "
    "recomputes the scores once in its backward. By how many percent does this raise the FLOPs of forward and "
    "backward together?",
    hints=(
        "Count matrix multiplications: with stored probabilities there are six.",
        "Recomputing the scores is one more.",
    ),
    solution=f"Seven instead of six: **{MORE:.1%}** more FLOPs. FlashAttention is faster all the same, because what it "
    "saves are bytes: reading the probabilities back takes longer than computing them again.",
    value=MORE,
    unit="%",
    units=("%",),
    dimension="share",
    unit_given=True,
    slips=(
        Slip("backward-alone", 0.25, "That is the backward alone, five instead of four. The forward counts too."),
        Slip(
            "of-the-new", 1 / 7, "That is the share of the recomputation in the new total. Compare with the old total."
        ),
        Slip("forward-again", 2 / 6, "That would recompute the whole forward. Only the scores are needed."),
        Slip("of-the-forward", 0.5, "That is the recomputation compared with the forward alone."),
        Slip("total", 7 / 6, "That is the new total in percent of the old one. How much more is it?"),
    ),
    right="More FLOPs and less time: the number of FLOPs does not decide the time of a kernel that waits for memory.",
)

# A chain on one large tensor, each operation with what it reads and writes, in tensors: y = gelu(x * scale) * mask + x0
CHAIN = (("x · scale", 1, 1), ("GELU", 1, 1), ("× mask", 2, 1), ("+ residual", 2, 1))
APART = sum(reads + writes for _, reads, writes in CHAIN)
FUSED = 3 + 1  # x, mask and residual are read, the result is written
FUSION = Number(
    key="fused-chain",
    level=2,
    minutes=4,
    title="Four kernels or one",
    prompt="Four elementwise operations run one after another on large tensors of the same size. Each one reads its "
    "inputs from HBM and writes its output there:\n\n```\na = x * 0.5\nb = gelu(a)\nc = b * mask\ny = c + "
    "residual\n```\n\nA compiler fuses them into one kernel. All kernels are bound by memory bandwidth. How many "
    "times as fast is the chain?",
    hints=(
        "For each line, how many tensors are read, and how many written?",
        "Which tensors must the fused kernel read?",
    ),
    solution=f"One at a time: 2 + 2 + 3 + 3 = {APART} passes over a tensor. Fused: x, mask and residual are read, y is "
    f"written, {FUSED} passes. **{APART / FUSED:.1f} times** as fast. What fusion saves are the tensors between the "
    "operations. Inputs that come from outside have to be read in any case.",
    value=APART / FUSED,
    unit="times",
    units=("times",),
    dimension="times",
    slips=(
        Slip(
            "operations",
            4.0,
            "That is the number of kernels. A kernel that reads two tensors takes longer than one that reads one.",
        ),
        Slip("one-input", APART / 2, "You let the fused kernel read one tensor. It needs mask and residual too."),
        Slip("two-each", 8 / FUSED, "You counted one read and one write per line. Two of the lines read two tensors."),
        Slip("writes-alone", APART / 3, "You counted what the fused kernel reads, and left out what it writes."),
    ),
    right="Fusion pays by the tensors that never reach memory.",
)

EXERCISES = (NAIVE_SCORES, MORE_FLOPS, FUSION)
