"""Exercises of `recompute` on FLOPs that are done twice: what a log calls utilization, and what a frozen model pays."""

from __future__ import annotations

from scaleout.exercises.engine import Number, Slip

_LOGGED = 0.56
_MFU = _LOGGED * 6 / 8

MFU = Number(
    key="logged-mfu",
    level=1,
    minutes=2,
    title="56% in the log",
    prompt=f"A job makes every block again in full, and its log says **{_LOGGED:.0%} MFU**. In its code stands "
    "8 × parameters × tokens/s / peak, because *with recomputation we do four forwards' worth of work, not three*. "
    "What is the MFU?",
    hints=(
        "Whose FLOPs does MFU count: the model's, or the hardware's?",
        "Forward and backward of a model with N parameters are 6N for each token.",
    ),
    solution=f"MFU counts what the *model* needs, 6N a token, whatever the hardware did for it: {_LOGGED:.0%} × 6/8 = "
    f"**{_MFU:.1%}**. What the log has is HFU, hardware FLOPs utilization, and a generous one: the head is not made "
    "again, and torch's checkpoint stops before the last product of each block.\n\n"
    "Otherwise you could raise your MFU by recomputing more. A run without recomputation at 48% MFU is 48 / 42 = "
    "1.14 times as quick as this one, and would look worse in that log. *Multiply by 3 is for gradient checkpointing "
    "right?* asks a reviewer of such code. It is for the forward and the backward's two products; with recomputation "
    "counted in, *we'll be artificially inflating the MFU* (AI-Hypercomputer/torchprime, pull request 49). "
    "Papers give both: Korthikanti et al. report 56.3% MFU and 57.0% HFU for a model of a trillion parameters with "
    "selective recomputation (arXiv 2205.05198, table 5).",
    value=_MFU,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip("as-logged", _LOGGED, "That is HFU. MFU leaves out what was done a second time."),
        Slip(
            "wrong-way", _LOGGED * 8 / 6, "You made it larger. Does the log count more than the model needs, or less?"
        ),
        Slip("doubled", _LOGGED / 2, "You halved it, as if recomputation doubled the work."),
        Slip("repeated-part", _LOGGED * 2 / 8, "That is the part that was done again."),
        Slip("of-two", _LOGGED * 2 / 3, "You took a third off. Of which count is a forward a third?"),
    ),
    right="The model's FLOPs stay the same, whatever is done twice.",
)

FROZEN = Number(
    key="frozen-again",
    level=1,
    minutes=3,
    title="A frozen model, made again",
    prompt="A large model is fine-tuned with **adapters**: its own weights are frozen, and the adapters are so small "
    "that their FLOPs do not count. Now all blocks are made again in full. Count matrix products alone, and say that "
    "the whole forward is repeated. How much longer is the step?",
    hints=(
        "Which two products does the backward of y = xW have, and what is each for?",
        "With frozen weights one of the two is not needed. How long is the step, in forwards?",
    ),
    solution="The backward of a product makes the gradient of its input and the gradient of its weight, each as large "
    "as the forward. A frozen weight needs none, so forward and backward are 1 + 1, and one forward more makes it "
    "**50% longer**. Where all weights are trained it is 1 + 2, and a third.\n\n"
    "torch does a little less: it stops once the last tensor is back that somebody waits for, and so leaves out the "
    "last product of each checkpointed stretch. With one stretch of 8 frozen layers a step does 2 + 7/8 forwards' "
    "worth. *~2x forward compute time*, says a plan for fine-tuning with adapters (flux-2-swift-mlx, issue 41): of the "
    "forward that is so, and the step has a backward too. Where a step takes far longer than this arithmetic says, "
    "look for another cause. *Why Does Activation Checkpointing Cause a 3.75x Training Slowdown?* asks issue 69 of "
    "Qwen-Image, *when the theoretical overhead from recomputation is only around 1.3x*.",
    value=0.5,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip(
            "all-trained",
            1 / 3,
            "Either all weights are trained in it, and here they are frozen; or it is recomputation's share of the "
            "new step, and the question is what is added to the old one.",
        ),
        Slip(
            "doubled",
            1.0,
            "Either the whole step is done again in it, or you compared with the forward alone. What is done again, "
            "and what was the step?",
        ),
        Slip("of-four", 1 / 4, "That is recomputation's share of a step that trains all weights."),
        Slip("backward-twice", 2.0, "Compare what is added with the step as it was."),
        Slip(
            "two-thirds",
            2 / 3,
            "With which step did you compare? Count what its backward makes, and what it leaves out.",
        ),
    ),
    right="A third, a half: it depends on how long the backward is beside the forward.",
)

EXERCISES = (MFU, FROZEN)
