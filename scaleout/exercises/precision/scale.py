"""Exercises of `precision` on loss scaling: what it changes, in which order, and what its log tells."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.scaling import Scaler, search

DOUBLED = Choice(
    key="doubled-scale",
    level=1,
    minutes=2,
    title="Twice the loss scale",
    prompt="A run in fp16 multiplies its loss by **1,024** and trains. Somebody makes it **2,048**. Nothing overflows, "
    "before or after, and there is no clipping. What is different in the update of a step from the same weights?",
    hints=(
        "What is done to the gradients between backward and update?",
        "1,024 and 2,048 are powers of two. Which numbers change their digits when they are multiplied by 2?",
    ),
    solution="**Only the gradients that fp16 had cut short.** Before the update gradients are divided by the scale, in "
    "fp32, so their size is what it was. A factor of two moves every number by one octave and changes no digit of it, "
    "as long as it is normal before and after. Of those that were subnormal each keeps one bit more, and some that "
    "were zero are there.\n\n"
    "So the learning rate stays as it is. *When computing the gradient, it is multiplied by loss_scale = 128.0, but "
    "during the adam->step(), the gradient is divided by loss_scale. Why do we use loss_scale in the first place?* "
    "asks somebody in tiny-cuda-nn (issue 472): for what happens to the numbers in between. What does change the "
    "update is a factor that is *not* taken back. nerfacc scaled the loss and left the gradients scaled, *since the "
    "Adam is not sensitive to the scale of the gradient* (issue 100). That holds as long as nothing looks at the size: "
    "not for SGD, for clipping, for an L2 term in the gradient, and not when the scale moves.",
    options=(
        Option(
            "cut-short",
            "Only gradients that were cut short keep more",
            "Right. The factor is taken back in fp32; what is gained are bits at the lower end.",
            True,
        ),
        Option(
            "twice",
            "It is twice as large: halve the learning rate",
            "The gradients are divided by the scale before the update. It is what it was.",
        ),
        Option(
            "sgd-twice",
            "It is twice as large with SGD, not with AdamW",
            "Neither of them sees the scale: gradients are divided by it before. Were they not, it would be so.",
        ),
        Option(
            "nothing",
            "Nothing at all, up to the last of all the bits",
            "That is so for numbers that are normal both times. Those at fp16's lower end gain a bit.",
        ),
        Option(
            "noisier",
            "It is noisier, as larger numbers round coarser",
            "Steps and numbers grow together: rounding is as coarse, relative to the number, in every octave.",
        ),
        Option(
            "coarser",
            "The largest gradients have one bit fewer now",
            "A bit is lost at the lower end only. At the upper end there is either the number or infinity.",
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
    f"In this step the norm of the *true* gradient, without any scale, is **{NORM}**. `scaler.step` divides gradients "
    "by the scale if nobody has. How many times too small is the gradient that SGD steps with?",
    hints=(
        "Which norm does `clip_grad_norm_` see, and what does it make of it?",
        "Which norm should the gradient have had, clipped at 1.0?",
    ),
    solution=f"Clipping sees {NORM} × {SCALE:,} = {NORM * SCALE:,.0f} and makes it 1. Divided by the scale that is "
    f"1/{SCALE:,}. It should have been {NORM}, which is below the limit: **{NORM * SCALE:,.0f} times** too small.\n\n"
    "Every step is clipped, to a norm of 1/scale, and each time that the scale doubles the steps are half as long. The "
    "order is: **unscale, clip, step, update.** `scaler.unscale_(optimizer)` before the clipping is the whole mend, "
    "and `scaler.step` then does not divide again.\n\n"
    "It has been in many trainers: *I trained a large model using native amp, but the loss converged very slow*, says "
    "Lightning's issue 9599; *the effective value gradient_clip_global_norm with AMP is reduced by a factor of 65k* "
    "(rwth-i6/returnn, issue 1590); in EveryDream2trainer the usual limit of 1.0 meant *effectively halting training* "
    "(pull request 175). With AdamW it hides, because the update does not see a constant factor. It shows once "
    "gradients come near eps, and whenever the scale moves.",
    value=NORM * SCALE,
    unit="times",
    units=("times",),
    dimension="times",
    slips=(
        Slip(
            "all-of-it",
            float(SCALE),
            "That would be so had the right one been clipped to 1. Its norm is below the limit.",
        ),
        Slip("nothing", 1.0, "Clipping does not know the scale: it sees a norm that is too large, and cuts."),
        Slip("other-way", SCALE / NORM, "You divided by the norm. The right gradient is not as long as the limit."),
        Slip("norm-alone", 1 / NORM, "That is the limit over the true norm. Clipping sees the scaled one."),
        Slip(
            "twice-unscaled",
            NORM * SCALE * SCALE,
            "You divided by the scale twice. scaler.step does it once, if nobody has.",
        ),
    ),
    right="Unscale, clip, step, update, in this order.",
)

# --- the scaler's log -------------------------------------------------------------------------------------------------

LARGEST = (0.9, 0.88, 0.87, 0.9, 0.86, 0.85, 0.84, 0.85, 0.83, 0.8, 0.82, 0.79)
START = Scaler(2.0**19, interval=4)
LOG = search(LARGEST, FORMATS["fp16"], START)


def _log() -> str:
    return "\n".join(
        [
            f"{'step':>4}{'loss scale':>13}{'left out':>11}",
            *(f"{step.step:>4}{step.scale:>13,.0f}{'yes' if step.skipped else '':>11}" for step in LOG),
        ]
    )


READ = Choice(
    key="scaler-log",
    level=2,
    minutes=4,
    title="What the scaler's log tells",
    prompt="The log of a run in fp16, whose scaler halves its scale when a step overflows and doubles it after 4 good "
    f"steps in a row:\n\n```\n{_log()}\n```\n\n"
    "Gradients hardly change in these steps, and fp16's largest number is 65,504. How large is the largest gradient, "
    "unscaled?",
    hints=(
        "In a step that is left out the largest gradient, times the scale, is above 65,504; in a good one not.",
        "Which is the smallest scale that overflowed, and which the largest that did not?",
    ),
    solution="At 131,072 steps are left out: g × 131,072 is above 65,504, so g is above 0.5. At 65,536 they are good: "
    "g is below 1. It lies **between 0.5 and 1**, and the log alone says no more.\n\n"
    "**A step that is left out now and then is the search at work,** not a fault: the scaler tries the next power of "
    "two every so often (torch: every 2,000 good steps), loses one step for it, and comes back. Counting them is a "
    "thermometer of the gradients, for free: a scale that falls over days says that they grow. *The loss scale going "
    "down indicates you're getting a lot of very large gradients which overflow the FP16 range* "
    "(facebookresearch/fairseq, issue 2488). One that falls in every step, without end, is another matter: then "
    "something is infinite whatever the scale.",
    options=(
        Option("half-to-one", "Between 0.5 and 1", "Right: 131,072 is too much for it, and 65,536 is not.", True),
        Option("one-to-two", "Between 1 and 2", "Times 65,536 that would be above 65,504, and those steps are good."),
        Option(
            "quarter-to-half",
            "Between 0.25 and 0.5",
            "Times 131,072 that would stay below 65,504, and those steps are left out.",
        ),
        Option("above-65504", "Above 65,504", "The scaled one is. Divide by the scale at which it overflowed."),
        Option("small", "Between 2^-17 and 2^-16", "That is 1 over the scale. It is 65,504 over the scale."),
        Option(
            "eighth",
            "Between 0.125 and 0.25",
            "That belongs to the first step's scale, 524,288. Two halvings did not help yet: look at the last scale "
            "that overflowed.",
        ),
    ),
)

_STUB = '''\
def scales(overflowed, scale, interval):
    """The loss scale with which each step is made: a list of numbers.

    overflowed: for each step, whether its gradients overflow
    scale: of the first step
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
    prompt="Write `scales(overflowed, scale, interval)`: the loss scale with which each step is made, as torch's "
    "`GradScaler` chooses it.\n\n"
    "- A step whose gradients overflow is left out, and the scale is **halved** for the next one.\n"
    "- After `interval` good steps **in a row** the scale is **doubled**, and the count begins anew.\n\n"
    "`scales([False, False, True, False], 8, 2)` is `[8, 8, 16, 8]`.",
    hints=(
        "Keep two numbers from step to step: the scale, and how many good steps in a row there were.",
        "What becomes of the count when a step overflows? And when the scale has just been doubled?",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "That is all of `GradScaler.update()`, but for two factors and the start: torch begins at 65,536, doubles after "
    "2,000, halves. A scale that is too low costs bits of small gradients, one that is too high costs a step, and so "
    "it stays as high as it can. All ranks have to come to the same scale: with gradients that are averaged *after* "
    "they were scaled, ranks whose scales differ make different weights of them (pytorch, issue 136009: *the optimizer "
    "updates parameters differently on each process*).",
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
            lambda *case: _scales(*case, reset=False),
            "You count good steps over an overflow. They have to be in a row: begin anew at zero.",
        ),
        Mistake(
            "count-goes-on",
            lambda *case: _scales(*case, restart=False),
            "Once the interval is reached, yours doubles in every good step. Begin the count anew after it.",
        ),
        Mistake(
            "one-late",
            lambda *case: _scales(*case, delay=1),
            "Yours doubles one good step too late: the scale is raised as soon as interval of them are there.",
        ),
        Mistake(
            "after-the-step",
            lambda *case: _scales(*case, after_step=True),
            "Those are the scales after each step. The first one is what you were given.",
        ),
        Mistake(
            "never-doubles",
            lambda *case: _scales(*case, grows=False),
            "Yours only falls. After interval good steps in a row it is doubled.",
        ),
        Mistake(
            "every-step-counts",
            lambda *case: _scales(*case, reset=False, over_counts=True),
            "You count every step, those that overflow too. Only good ones count, and only in a row.",
        ),
    ),
    right="Two numbers from step to step, the same on every rank.",
)

EXERCISES = (DOUBLED, CLIP, READ, NEXT_SCALE)
