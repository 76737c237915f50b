"""Exercises of `kernels` on remedies: the share of a step that FP8 reaches, and what each remedy relieves."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Number, Option, Slip

STEP, PART = 1.34, 1.72  # times as fast: the step, and the matrix multiplications in it
SHARE = (1 - 1 / STEP) / (1 - 1 / PART)
FP8_SHARE = Number(
    key="fp8-share",
    level=2,
    minutes=4,
    title="How much was converted",
    prompt=f"After a switch to FP8 the matrix multiplications of the linear layers run **{PART} times** as fast, "
    f"casts and scales included, and the training step is **{STEP:.2f} times** as fast. Nothing else changed. Which "
    "share of the old step time were these matrix multiplications?",
    hints=(
        "Let the old step take 1. How much time did the step save?",
        f"Of each second of the matrix multiplications, 1 − 1/{PART} is saved.",
    ),
    solution=f"The step saves 1 − 1/{STEP:.2f} = {1 - 1 / STEP:.3f} of its time. Of each second of matrix "
    f"multiplications 1 − 1/{PART} = {1 - 1 / PART:.3f} s is saved. {1 - 1 / STEP:.3f} / {1 - 1 / PART:.3f} = "
    f"**{SHARE:.0%}**. The other {1 - SHARE:.0%} (attention, norms, the head, the optimizer, communication) take as "
    f"long as before: matrix multiplications that take no time at all would make this step {1 / (1 - SHARE):.1f} "
    f"times as fast.",
    value=SHARE,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip("saved", 1 - 1 / STEP, "That is the share of the step that was saved. How much of the part was saved?"),
        Slip(
            "ratio-of-gains",
            (STEP - 1) / (PART - 1),
            "Dividing the gains gives the share of the new step. The share of the old one is asked for.",
        ),
        Slip("new-step", 1 / STEP, "That is the new step time as a part of the old one."),
        Slip("ratio", STEP / PART, "You divided one factor by the other."),
    ),
    right="A measured speedup tells you how much of the step the remedy has reached.",
)


def _row(name: str, reliefs: tuple[str, ...], reason: str, right: bool = False) -> Option:
    return Option(name, " · ".join(reliefs), reason, right)


RELIEVES = Choice(
    key="five-remedies",
    level=3,
    minutes=6,
    title="Five remedies, and what each relieves",
    prompt="A team lists five changes to its training job on H100s. Which resource does each one relieve?\n\n"
    "- **A** FlashAttention in place of naive attention, sequences of 4,096 tokens\n"
    "- **B** linear layers in FP8, tensors of 8,192 × 8,192\n"
    "- **C** `torch.compile`, which fuses norm, activation and residual sum\n"
    "- **D** FP8 for linear layers with 512 tokens of width 1,024, where each cast is a kernel of its own\n"
    "- **E** scales for blocks of 128 in place of one scale per tensor\n\n"
    "*HBM*: memory traffic. *matmul*: the tensor cores' time. *none*: no time is saved, or time is lost.",
    hints=(
        "For each: are bytes saved, or FLOPs done faster, or neither?",
        "In D compare the time of the matrix multiplication with the launch and the bytes of two casts.",
    ),
    solution="**HBM · matmul · HBM · none · none.** FlashAttention and fusion both keep intermediate tensors away "
    "from HBM. Large FP8 matrix multiplications use the doubled rate of the tensor cores. In D the matrix "
    "multiplications are too small: reading, casting and writing costs more than the faster arithmetic saves. "
    "torchao reports 0.8 times the speed of bf16 for a linear layer of 1,024 × 2,048 × 1,024. And block scales buy "
    "accuracy, for which they pay in time.",
    options=(
        _row("bytes-first", ("HBM", "matmul", "HBM", "none", "none"), "Right.", True),
        _row("flash-flops", ("matmul", "matmul", "HBM", "matmul", "none"),
             "FlashAttention computes more FLOPs than naive attention, at the same rate. What does it save?"),
        _row("small-is-fast", ("HBM", "matmul", "HBM", "matmul", "none"),
             "In D each matrix multiplication takes microseconds. What do two casts cost beside it?"),
        _row("fusion-flops", ("HBM", "matmul", "matmul", "none", "HBM"),
             "Norms and residual sums have hardly any FLOPs. And block scales add numbers to be read."),
        _row("all-good", ("HBM", "matmul", "matmul", "matmul", "HBM"),
             "Not each of the five saves time. Look at D and E again."),
    ),
)  # fmt: skip

EXERCISES = (FP8_SHARE, RELIEVES)
