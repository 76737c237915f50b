"""Exercises of `recompute` on repeated FLOPs: what a log calls utilization, and what a frozen model pays."""

from __future__ import annotations

from scaleout.exercises.engine import Number, Slip

_LOGGED = 0.56
_MFU = _LOGGED * 6 / 8

MFU = Number(
    key="logged-mfu",
    level=1,
    minutes=2,
    title="56% in the log",
    prompt=f"A job recomputes every block in full, and its log says **{_LOGGED:.0%} MFU**. The code computes "
    "8 × parameters × tokens/s / peak, because *with recomputation we do four forwards' worth of work, not three*. "
    "What is the MFU?",
    hints=(
        "Which FLOPs does MFU count: those of the model, or those of the hardware?",
        "The forward and backward pass of a model with N parameters take 6N FLOPs per token.",
    ),
    solution=f"MFU counts what the *model* needs, 6N FLOPs per token, however many the hardware did: {_LOGGED:.0%} × "
    f"6/8 = **{_MFU:.1%}**. The log shows HFU, hardware FLOPs utilization, and even overstates it: the output head is "
    "not recomputed, and torch's checkpoint stops before the last matrix multiplication of each block.\n\n"
    "Otherwise you could raise your MFU by recomputing more. A run without recomputation at 48% MFU is 48 / 42 = "
    "1.14 times as fast as this one, and would look worse in that log. *Multiply by 3 is for gradient checkpointing "
    "right?* asks a reviewer of such code. No: it is for the forward pass and the two matrix multiplications of the "
    "backward pass. With recomputation counted in, *we'll be artificially inflating the MFU* "
    "(AI-Hypercomputer/torchprime, pull request 49). Papers give both: Korthikanti et al. report 56.3% MFU and 57.0% "
    "HFU for a model of a trillion parameters with selective recomputation (arXiv 2205.05198, table 5).",
    value=_MFU,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip("as-logged", _LOGGED, "That is HFU. MFU does not count FLOPs that were done a second time."),
        Slip(
            "wrong-way",
            _LOGGED * 8 / 6,
            "You made it larger. Does the log count more FLOPs than the model needs, or fewer?",
        ),
        Slip("doubled", _LOGGED / 2, "You halved it, as if recomputation doubled the work."),
        Slip("repeated-part", _LOGGED * 2 / 8, "That is the part that was computed again."),
        Slip("of-two", _LOGGED * 2 / 3, "You subtracted a third. Of which count is a forward pass a third?"),
    ),
    right="The FLOPs of the model stay the same, however many of them are repeated.",
)

FROZEN = Number(
    key="frozen-again",
    level=1,
    minutes=3,
    short=True,
    title="A frozen model, recomputed",
    prompt="A large model is fine-tuned with **adapters**: its own weights are frozen, and the adapters are so small "
    "that their FLOPs do not count. All blocks are recomputed in full. Count only matrix multiplications, and assume "
    "that the whole forward pass is repeated. How much longer is the step?",
    hints=(
        "The backward pass of y = xW has two matrix multiplications. What is each of them for?",
        "With frozen weights one of the two is not needed. How many forward passes' worth of work is a step?",
    ),
    solution="For each matrix multiplication, the backward pass computes the gradient of its input and the gradient "
    "of its weight, each as much work as the forward pass. A frozen weight needs no gradient, so a step is 1 + 1 "
    "forward passes' worth of work, and one more forward pass makes it **50% longer**. If all weights are trained, "
    "the step is 1 + 2, and one more is a third.\n\n"
    "torch repeats a little less. It stops as soon as it has recomputed the last tensor that the backward pass needs, "
    "so it skips the last matrix multiplication of each checkpointed section. With one section of 8 frozen layers, a "
    "step does 2 + 7/8 forward passes' worth of work. *~2x forward compute time*, says a plan for fine-tuning with "
    "adapters (flux-2-swift-mlx, issue 41). This holds for the forward pass, but the step has a backward pass too. "
    "If a step takes far longer than this arithmetic says, look for another cause. *Why Does Activation Checkpointing "
    "Cause a 3.75x Training Slowdown?* asks issue 69 of Qwen-Image, *when the theoretical overhead from recomputation "
    "is only around 1.3x*.",
    value=0.5,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip(
            "all-trained",
            1 / 3,
            "Either you assumed that all weights are trained, and here they are frozen; or it is recomputation's "
            "share of the new step, and the question is how much longer the old one gets.",
        ),
        Slip(
            "doubled",
            1.0,
            "Either you repeated the whole step, or you compared with the forward alone. What is repeated, and how "
            "long was the step before?",
        ),
        Slip("of-four", 1 / 4, "That is recomputation's share of a step that trains all weights."),
        Slip("backward-twice", 2.0, "Compare the added time with the step as it was."),
        Slip(
            "two-thirds",
            2 / 3,
            "With which step did you compare? Count what its backward pass computes, and what it skips.",
        ),
    ),
    right="A third or a half: it depends on how long the backward pass is, compared with the forward pass.",
)

EXERCISES = (MFU, FROZEN)
