"""Exercises of `precision` on loss scaling: what it changes, in which order, and what its log says."""

from __future__ import annotations

from functools import partial

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.scaling import Scaler, search

DOUBLED = Choice(
    key="doubled-scale",
    level=1,
    minutes=2,
    title="Twice the loss scale",
    short=True,
    prompt="A run in fp16 multiplies its loss by **1,024** and trains. Somebody changes that to **2,048**. Nothing "
    "overflows, before or after, and there is no clipping. Compare the updates of one step from the same weights. What "
    "is different?",
    hints=(
        "What is done to the gradients between the backward pass and the update?",
        "1,024 and 2,048 are powers of two. Which numbers change their digits when they are multiplied by 2?",
    ),
    solution="**Only the gradients that were subnormal or zero in fp16.** Before the update, gradients are divided by "
    "the scale in fp32, so their size is what it was. A factor of two changes a number's exponent and none of its "
    "digits, as long as the number is normal before and after. Each gradient that was subnormal keeps one bit more, "
    "and some that were zero no longer are.\n\n"
    "So the learning rate stays as it is. *When computing the gradient, it is multiplied by loss_scale = 128.0, but "
    "during the adam->step(), the gradient is divided by loss_scale. Why do we use loss_scale in the first place?* "
    "asks somebody in tiny-cuda-nn (issue 472). The answer is what happens to the numbers in between. A factor that is "
    "*not* divided out does change the update. nerfacc scaled the loss and left the gradients scaled, *since the Adam "
    "is not sensitive to the scale of the gradient* (issue 100). That works only while nothing depends on the size of "
    "gradients. SGD, clipping and an L2 term in the gradient depend on it, and Adam's averages do when the scale "
    "changes.",
    options=(
        Option(
            "cut-short",
            "Only gradients that had lost bits keep more",
            "Right. The factor is divided out in fp32, and the gain is bits at the lower end of the range.",
            True,
        ),
        Option(
            "twice",
            "It is twice as large: halve the learning rate",
            "The gradients are divided by the scale before the update, so its size is what it was.",
        ),
        Option(
            "sgd-twice",
            "It is twice as large with SGD, not with AdamW",
            "Neither optimizer sees the scale, because gradients are divided by it before. Without the division it "
            "would be so.",
        ),
        Option(
            "nothing",
            "Nothing at all, down to the last of all bits",
            "That is so for numbers that are normal both times. Those at the lower end of fp16's range gain a bit.",
        ),
        Option(
            "noisier",
            "It is noisier, as large numbers round coarsely",
            "Steps grow with the numbers: the relative error of rounding is the same in every binade.",
        ),
        Option(
            "coarser",
            "The largest gradients have lost one of their bits",
            "Bits are lost at the lower end only. At the upper end a number is either exact to 11 bits, or infinity.",
        ),
    ),
)

NORM, SCALE = 0.7, 2**15
CLIP = Number(
    key="clipped-first",
    level=2,
    minutes=3,
    title="Clipped, then unscaled",
    prompt=f"A script for fp16 with SGD, with a loss scale of **{SCALE:,}**:\n\n"
    "```\nscaler.scale(loss).backward()\nclip_grad_norm_(model.parameters(), 1.0)\nscaler.step(optimizer)\n"
    "scaler.update()\n```\n\n"
    f"In this step the norm of the *true* gradient, without a scale, is **{NORM}**. `scaler.step` divides the "
    "gradients by the scale if `unscale_` has not been called. How many times too small is the gradient that SGD uses?",
    hints=(
        "Which norm does `clip_grad_norm_` see, and to what does it reduce that norm?",
        "Which norm should the gradient have after clipping at 1.0?",
    ),
    solution=f"Clipping sees {NORM} × {SCALE:,} = {NORM * SCALE:,.0f} and reduces it to 1. Divided by the scale, that "
    f"is 1/{SCALE:,}. It should have been {NORM}, which is below the limit, so the gradient is **{NORM * SCALE:,.0f} "
    "times** too small.\n\n"
    "Every step is clipped to a norm of 1/scale, and each time the scale doubles, the updates become half as large. "
    "The right order is **unscale, clip, step, update.** Calling `scaler.unscale_(optimizer)` before the clipping is "
    "the whole fix, and `scaler.step` then does not divide again.\n\n"
    "Many trainers have had this bug. *I trained a large model using native amp, but the loss converged very slow*, "
    "says Lightning's issue 9599. In rwth-i6/returnn, *the effective value gradient_clip_global_norm with AMP is "
    "reduced by a factor of 65k* (issue 1590). In EveryDream2trainer the usual limit of 1.0 meant *effectively halting "
    "training* (pull request 175). AdamW hides the bug, because its update does not depend on a constant factor. It "
    "shows when gradients come near eps, and whenever the scale changes.",
    value=NORM * SCALE,
    unit="times",
    units=("times",),
    dimension="times",
    slips=(
        Slip(
            "all-of-it",
            float(SCALE),
            "That would be right if the true gradient were clipped to 1. But its norm is below the limit.",
        ),
        Slip(
            "nothing", 1.0, "Clipping does not know about the scale. It sees a norm that is too large, and reduces it."
        ),
        Slip(
            "other-way",
            SCALE / NORM,
            "You divided by the norm. The norm of the right gradient is below the limit, so it is not clipped.",
        ),
        Slip("norm-alone", 1 / NORM, "That is the limit over the true norm. Clipping sees the scaled norm."),
        Slip(
            "twice-unscaled",
            NORM * SCALE * SCALE,
            "You divided by the scale twice. scaler.step divides once, and only if unscale_ has not been called.",
        ),
    ),
    right="The right order is unscale, clip, step, update.",
)

# --- the scaler's log -------------------------------------------------------------------------------------------------

LARGEST = (0.9, 0.88, 0.87, 0.9, 0.86, 0.85, 0.84, 0.85, 0.83, 0.8, 0.82, 0.79)
START = Scaler(2.0**19, interval=4)
LOG = search(LARGEST, FORMATS["fp16"], START)


def _log() -> str:
    return "\n".join(
        [
            f"{'step':>4}{'loss scale':>13}{'skipped':>11}",
            *(f"{step.step:>4}{step.scale:>13,.0f}{'yes' if step.skipped else '':>11}" for step in LOG),
        ]
    )


READ = Choice(
    key="scaler-log",
    level=2,
    minutes=4,
    title="Reading a scaler's log",
    prompt="This is the log of a run in fp16. Its scaler halves the scale when a step overflows and doubles it after 4 "
    f"good steps in a row:\n\n```\n{_log()}\n```\n\n"
    "Gradients hardly change in these steps, and the largest number in fp16 is 65,504. How large is the largest "
    "gradient, unscaled?",
    hints=(
        "In a skipped step, the largest gradient times the scale is above 65,504. In a good step it is not.",
        "Which is the smallest scale at which a step overflowed, and which is the largest at which none did?",
    ),
    solution="At 131,072 steps are skipped, so g × 131,072 is above 65,504, and g is above 0.5. At 65,536 steps are "
    "good, so g is below 1. It lies **between 0.5 and 1**, and the log alone says no more.\n\n"
    "**A step that is skipped now and then is the scaler's search,** not a fault. The scaler tries the next power of "
    "two every so often (in torch, after 2,000 good steps), loses one step by it, and goes back. Its log is a free "
    "measure of the gradients: a scale that falls over days says that they grow. *The loss scale going down indicates "
    "you're getting a lot of very large gradients which overflow the FP16 range* (facebookresearch/fairseq, issue "
    "2488). A scale that falls in every step without end is different. Then something is infinite at any scale.",
    options=(
        Option("half-to-one", "Between 0.5 and 1", "Right: it overflows at 131,072 and not at 65,536.", True),
        Option(
            "one-to-two",
            "Between 1 and 2",
            "Times 65,536 that would be above 65,504, and the steps with that scale are good.",
        ),
        Option(
            "quarter-to-half",
            "Between 0.25 and 0.5",
            "Times 131,072 that would stay below 65,504, and the steps with that scale are skipped.",
        ),
        Option("above-65504", "Above 65,504", "The scaled gradient is. Divide by the scale at which it overflowed."),
        Option("small", "Between 2^-17 and 2^-16", "That is 1 over the scale. The limit is 65,504 over the scale."),
        Option(
            "eighth",
            "Between 0.125 and 0.25",
            "That follows from the scale of the first step, 524,288. Two steps more overflowed: look at the last scale "
            "at which a step did.",
        ),
    ),
)

_STUB = '''\
def scales(overflowed, scale, interval):
    """The loss scale of each step: a list of numbers.

    overflowed: for each step, whether its gradients overflow
    scale: that of the first step
    interval: good steps in a row after which the scale doubles
    """
    return ...
'''

_SOLUTION = """\
def scales(overflowed, scale, interval):
    found, good = [], 0
    for over in overflowed:
        found.append(scale)
        good = 0 if over else good + 1
        if over:
            scale /= 2
        elif good == interval:
            scale, good = scale * 2, 0
    return found
"""


def _scales(
    overflowed, scale, interval, reset=True, restart=True, delay=0, after_step=False, grows=True, over_counts=False
):
    """The scales, or those of a scaler with something wrong in it."""
    scales, good = [], 0
    for overflow in overflowed:
        scales.append(scale)
        good = (0 if reset else good + over_counts) if overflow else good + 1
        scale = scale / 2 if overflow else scale
        if (not overflow or over_counts) and good >= interval + delay and grows:
            scale, good = scale * 2, 0 if restart else good
        if after_step:
            scales[-1] = scale
    return scales


NEXT_SCALE = Function(
    key="scale-by-step",
    level=2,
    minutes=8,
    title="The scaler's next scale",
    lists=True,
    prompt="Write `scales(overflowed, scale, interval)`, the loss scale of each step, as torch's `GradScaler` chooses "
    "it.\n\n"
    "- A step whose gradients overflow is skipped, and the scale is **halved** for the next step.\n"
    "- After `interval` good steps **in a row** the scale is **doubled**, and the count starts again at zero.\n\n"
    "`scales([False, False, True, False], 8, 2)` is `[8, 8, 16, 8]`.",
    hints=(
        "Keep two numbers from step to step: the scale, and how many good steps in a row there were.",
        "What happens to the count when a step overflows? And when the scale has just been doubled?",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "That is all of `GradScaler.update()`. By default torch starts at 65,536 and doubles after 2,000 good steps. A "
    "scale that is too low costs bits of small gradients, and one that is too high costs a step, so the scaler keeps "
    "it as high as it can. All ranks need the same scale: gradients are averaged *after* they were scaled, so ranks "
    "with different scales would compute different weights from them (pytorch, issue 136009: *the optimizer updates "
    "parameters differently on each process*).",
    function="scales",
    stub=_STUB,
    reference=_scales,
    cases=(
        ([False, False, True, False], 8, 2),
        ([True, True, False, False, False, False, False], 64, 3),
        ([False] * 7, 2, 2),
        ([False, False, True, False, False, False, True, False], 1024, 3),
        ([True] * 5, 32, 4),
        ([False, True] * 5, 16, 2),
        ([], 8, 2),
        ([False] * 5, 4, 1),
        ([True, False, False, True, False, False, False, False, False, False], 256, 2),
        ([False], 2, 3),
        ([False, False, False, True, True, False, False, False, False, False, False, False], 4096, 5),
        ([True, False, True], 1, 1),
        ([False] * 9 + [True] + [False] * 4, 512, 4),
    ),
    mistakes=(
        Mistake(
            "not-in-a-row",
            partial(_scales, reset=False),
            "You keep counting across an overflow. Good steps have to be in a row: set the count to zero.",
        ),
        Mistake(
            "count-goes-on",
            partial(_scales, restart=False),
            "Once the interval is reached, yours doubles in every good step. Start the count anew after it.",
        ),
        Mistake(
            "one-late",
            partial(_scales, delay=1),
            "Yours doubles one good step too late. The scale rises as soon as there are interval good steps.",
        ),
        Mistake(
            "after-the-step",
            partial(_scales, after_step=True),
            "Those are the scales after each step. The first one should be the scale that you were given.",
        ),
        Mistake(
            "never-doubles",
            partial(_scales, grows=False),
            "Yours only falls. After enough good steps in a row it should double.",
        ),
        Mistake(
            "every-step-counts",
            partial(_scales, reset=False, over_counts=True),
            "You count every step, including those that overflow. Only good ones count, and only in a row.",
        ),
    ),
    right="The scaler needs two numbers from step to step, the same on every rank.",
)

EXERCISES = (DOUBLED, CLIP, READ, NEXT_SCALE)
