"""Exercises of `precision` on additions in few bits: a weight that stands still, a mean, and rounding by chance."""

from __future__ import annotations

import math

from scaleout.exercises.engine import Function, Mistake, Number, Slip
from scaleout.numerics.formats import FORMATS, Format
from scaleout.numerics.rounding import rounded
from scaleout.numerics.sums import swamped_from

BF16, FP16 = FORMATS["bf16"], FORMATS["fp16"]
BEGIN, UPDATE = 0.01, 3e-4
BEGIN_BF16 = rounded(BEGIN, BF16)


def stops(f: Format, weight: float = BEGIN, update: float = UPDATE) -> float:
    """Where a weight of the format stands still, that is moved up by `update` in each step and rounded."""
    total = rounded(weight, f)
    while (next_total := rounded(total + update, f)) != total:
        total = next_total
    return total


STUCK = Number(
    key="no-further",
    level=2,
    minutes=4,
    title="A weight that stops",
    prompt=f"Weights are in **bf16**, and no copy is kept. A weight begins at **{BEGIN}**. AdamW's updates are at "
    f"most about as large as the learning rate. This weight's are as large, **{UPDATE:g}**, and all go up. They are "
    "computed in fp32, added, and the sum is rounded to the nearest number of bf16. At how many times its beginning "
    "does the weight stand "
    "still?",
    hints=(
        "In which steps does bf16 go between 2^-4 and 2^-3? It has 7 bits of mantissa.",
        "An update of less than half a step is rounded away. From which octave on is it less?",
        "Between 2^e and 2^(e+1) steps are 2^(e-7). Half of one has to be above 3e-4.",
    ),
    solution="Between 2^e and 2^(e+1) bf16 goes in steps of 2^(e-7); an update counts if it is above half a step, "
    "2^(e-8). From 2^-4 = 0.0625 to 0.125 that is 2.4e-4, and 3e-4 is above; from 0.125 on it is 4.9e-4. So the "
    f"weight stops at **0.125**, {stops(BF16) / BEGIN_BF16:.1f} times {BEGIN}.\n\n"
    "In fp32 it would have gone on. And it does not get there at the right speed: just below 0.125 each update of 3e-4 "
    "is rounded up to a step of 4.9e-4, and between 0.03 and 0.06 down to 2.4e-4. In general a bf16 weight stands "
    "still where it is more than 2^8 to 2^9 times its update.\n\n"
    "Large weights are hit first, and those are norms, which begin at 1. *All models trained with speculators end up "
    "with untrained normalization layers (.weight == 1.0)*, found vllm-project/speculators (pull request 765), after "
    "several had been published; with fp32 weights they measured 10 to 15% improvement in an ablation. The remedies "
    "are an fp32 copy that the optimizer steps (4 bytes), a second bf16 number for what was cut off (Kahan, 2 bytes), "
    "or rounding by chance (none).",
    value=stops(BF16) / BEGIN_BF16,
    unit="times",
    units=("times",),
    dimension="times",
    slips=(
        Slip("the-weight", stops(BF16), "That is a weight, and the right one. How many times its beginning is it?"),
        Slip(
            "whole-step",
            0.0625 / BEGIN_BF16,
            "That is where the update is less than a whole step. Has it to be as much as that?",
        ),
        Slip(
            "fp16", stops(FP16) / rounded(BEGIN, FP16), "Those are fp16's steps, with 10 bits of mantissa. bf16 has 7."
        ),
        Slip("one-bit-more", 0.25 / BEGIN_BF16, "You counted 8 bits of mantissa. bf16 has 7, and a leading one."),
        Slip(
            "256",
            256 * UPDATE / BEGIN_BF16,
            "You took a multiple of the update. Steps are the same within an octave: the weight goes on to its end.",
        ),
        Slip(
            "512",
            512 * UPDATE / BEGIN_BF16,
            "You took a multiple of the update. Steps change at a power of two, and there the weight stops.",
        ),
    ),
    right="In bf16 an update has to be more than 2^-9 to 2^-8 of the weight, or it never was.",
)

TOKENS, LOSS = 4096, 2.3
SHARE = swamped_from(LOSS, BF16) / (TOKENS * LOSS)
MEAN = Number(
    key="mean-loss",
    level=2,
    minutes=4,
    title="A mean of 4,096 losses",
    prompt=f"A script makes the mean loss of a batch itself. It adds up the losses of **{TOKENS:,}** tokens, one after "
    f"the other, all about **{LOSS}**, in a **bf16** variable, and divides by {TOKENS:,}. Which share of the true mean "
    "does it log?",
    hints=(
        "When does adding 2.3 no longer change the total?",
        "The total stops at a power of two. Steps behind it are 2^-7 of it, and half a step has to be above 2.3.",
    ),
    solution=f"Behind 1,024 bf16 goes in steps of 8. Half a step is 4, more than {LOSS}: the total stays at 1,024. "
    f"(Behind 512 steps are 4, half of one is 2, and the total still moves, by 4 each time.) The true sum is "
    f"{TOKENS * LOSS:,.0f}: **{SHARE:.1%}**, and a log with a loss of 0.25 for one of 2.3.\n\n"
    "Whatever is added after that is gone, **swamped**: twice the tokens give the same total. So products, norms, "
    "softmax, losses and the gradients of many passes are added up in fp32 also where everything else is in 16 bits. "
    "Where somebody forgets, it is found like this: 10,000 random numbers from 0 to 1 add up to 256, "
    "and 20,000 do so too (jax-ml/ml_dtypes, issue 63); *a uniform softmax over 512 elements in BFloat16 gives ~1/256 "
    "per output instead of 1/512* (pytorch/executorch, pull request 20090). Megatron-LM adds up the gradients of bf16 "
    "weights in fp32, and is asked why (issue 502); a test of a later change to it has gradients of 256 and 1, which "
    "have to become 257 (ISEEKYAN/Megatron-LM, pull request 146).",
    value=SHARE,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip("the-mean", SHARE * LOSS, "That is the mean that it logs. Which share is it of the true one?"),
        Slip("whole-step", SHARE / 2, "That is where a step is larger than 2.3. But sums are rounded to the nearest."),
        Slip(
            "addends-256",
            256 / TOKENS,
            "You stopped after 256 addends. What stops is the total, and it does so at a power of two.",
        ),
        Slip(
            "addends-512",
            512 / TOKENS,
            "You stopped after 512 addends. What stops is the total, and it does so at a power of two.",
        ),
        Slip(
            "fp16",
            swamped_from(LOSS, FP16) / (TOKENS * LOSS),
            "Those are fp16's 11 digits. bf16 has 8, the leading one included.",
        ),
        Slip("all", 1.0, "Each addition rounds. From some total on what is added is less than half a step."),
    ),
    right="A total in bf16 stops at 2^8 times what is added, rounded up to a power of two.",
)

_STUB = '''\
def moved(weight, update, step, draws):
    """The weight after one update for each of draws.

    weight: a multiple of step, as all numbers of the format here
    update: what is added each time, below or above 0
    draws: random numbers, evenly from 0 up to 1, not 1 itself
    """
    return ...
'''

_SOLUTION = """\
import math

def moved(weight, update, step, draws):
    for u in draws:
        exact = (weight + update) / step    # in steps
        low = math.floor(exact)
        up = u < exact - low                # with that probability
        weight = (low + up) * step
    return weight
"""


def _moved(weight, update, step, draws, choose=lambda u, share: u < share):
    """The weight; `choose` says from a draw and the share that is cut off whether to round up."""
    for u in draws:
        exact = (weight + update) / step
        low = math.floor(exact)
        weight = (low + choose(u, exact - low)) * step
    return weight


def _nearest(weight, update, step, draws):
    for _ in draws:
        weight = round((weight + update) / step) * step
    return weight


def _at_the_end(weight, update, step, draws):
    return _moved(weight, update * len(draws), step, draws[-1:])


_DRAWS = [0.03, 0.71, 0.22, 0.94, 0.4, 0.13, 0.58, 0.86, 0.31, 0.67]
CHANCE = Function(
    key="by-chance",
    level=3,
    minutes=10,
    title="Rounded by chance",
    prompt="A weight in few bits, and updates that are smaller than its steps. Rounded to the nearest it never moves. "
    "Write `moved(weight, update, step, draws)`: the weight after `len(draws)` updates, each of which is added and "
    "then rounded **by chance** to one of the two multiples of `step` beside the sum:\n\n"
    "- **up with the probability of what rounding down would cut off**, as a share of a step; what is a multiple "
    "already stays;\n"
    "- with a random number u for each update: up where u is **below** that share.\n\n"
    "`moved(1.0, 0.125, 0.5, [0.6, 0.1])` is 1.5: 1.125 is a quarter of a step above 1.0, 0.6 is not below 0.25, and "
    "0.1 is.",
    hints=(
        "Count in steps: (weight + update) / step. What is its whole part, and what is left?",
        "`math.floor` rounds down below zero, too: -0.25 lies above -1.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "**On average the weight moves by exactly the update,** since a share p of the times it moves by a step and is p "
    "of a step away. It is a random walk around where fp32 would be: noise in place of standing still, and no copy of "
    "the weights. On bits it is quicker still: bf16 is the upper half of an fp32 number, so a random lower half is "
    "added and what is then below is cut off (pytorch, issue 120376; torchao, pull request 1124: *BF16 only has around "
    "3 decimal precision. This means that if weight update is smaller than 1e-3 of the weight magnitude, there will be "
    "no change to the weight*). With copies of the weights on several ranks all of them have to draw the same numbers.",
    function="moved",
    stub=_STUB,
    reference=_moved,
    cases=(
        (1.0, 0.125, 0.5, [0.6, 0.1]),
        (1.0, 2**-10, 2**-7, _DRAWS),
        (1.0, -(2**-10), 2**-7, _DRAWS),
        (0.5, 0.75, 1.0 / 2, [0.7, 0.2, 0.9]),
        (2.0, 0.0625, 0.25, _DRAWS),
        (-1.0, 0.375, 1.0, [0.5, 0.2, 0.3]),
        (3.0, 0.5, 0.5, _DRAWS),
        (0.25, 0.2, 0.25, [0.9, 0.85, 0.79]),
        (4.0, -0.65, 1.0, _DRAWS),
        (8.0, 0.3, 2.0, [0.1, 0.2, 0.14]),
        (1.0, 0.125, 0.5, []),
        (0.0, -0.1, 1.0, [0.95, 0.95, 0.3]),
        (16.0, 0.9, 2.0, _DRAWS),
        (1.0, 0.5, 0.5, [0.0, 0.3]),
    ),
    mistakes=(
        Mistake(
            "nearest",
            _nearest,
            "You rounded to the nearest: what is less than half a step never counts, however often it comes.",
        ),
        Mistake(
            "share-turned",
            lambda *case: _moved(*case, choose=lambda u, share: u >= share),
            "Your chance is the wrong way round: what lies just above a multiple goes down most of the time.",
        ),
        Mistake(
            "coin",
            lambda *case: _moved(*case, choose=lambda u, share: u < 0.5),
            "You tossed a coin. The chance of going up is the share of a step that is cut off.",
        ),
        Mistake(
            "always-down",
            lambda *case: _moved(*case, choose=lambda u, share: False),
            "You rounded down each time. Where u is below the share, go up.",
        ),
        Mistake(
            "always-up",
            lambda *case: _moved(*case, choose=lambda u, share: share > 0),
            "You rounded up each time. Only where u is below the share.",
        ),
        Mistake(
            "at-the-end",
            _at_the_end,
            "You added all updates first and rounded once. The weight is in few bits after each of them.",
        ),
    ),
    right="Right on average, whatever the step.",
)

EXERCISES = (STUCK, MEAN, CHANCE)
