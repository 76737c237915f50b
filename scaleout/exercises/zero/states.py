"""Exercises of `zero` on a rank's memory: what stays replicated, what a stage frees, and how many GPUs a job needs."""

from __future__ import annotations

from functools import partial
from math import ceil

from scaleout.exercises.engine import Function, Mistake, Number, Slip
from scaleout.exercises.zero.sizes import BYTES_EACH, NAME, PARAMETERS, states_of, total
from scaleout.spec.devices import GB
from scaleout.spec.recipe import Recipe

_BYTES = ("MB", "GB", "GiB")
_SMALL_DP, _LARGE_DP, _ACTIVATIONS = 8, 16, 46 * GB
_SMALL_TOTAL, _LARGE_TOTAL = total(3, _SMALL_DP), total(3, _LARGE_DP)

MORE_GPUS = Number(
    key="more-gpus",
    level=1,
    minutes=2,
    title="Twice the GPUs",
    prompt=f"{NAME} ({PARAMETERS / 1e9:.2f} billion parameters, {BYTES_EACH} bytes each) trains at **stage 3** on "
    f"**{_SMALL_DP}** GPUs, with one sequence of 8,192 tokens per GPU. A GPU stores {_SMALL_TOTAL / GB:.1f} GB of "
    f"states and **{_ACTIVATIONS / GB:.0f} GB** of activations. The job moves to **{_LARGE_DP}** GPUs, again with one "
    "sequence of 8,192 tokens per GPU. How much does a GPU store now, states and activations together?",
    hints=("Which of the two is sharded over the GPUs?", "Whose activations does a GPU store?"),
    solution=f"The states are half as large, {_LARGE_TOTAL / GB:.2f} GB, and the activations are the same "
    f"{_ACTIVATIONS / GB:.0f} GB: **{(_LARGE_TOTAL + _ACTIVATIONS) / GB:.1f} GB**, 13% less. A GPU's activations are "
    "those of its own samples, and it runs the whole model on them, so no stage shards them. A smaller micro-batch, "
    "shorter sequences or activation checkpointing reduce them.\n\n"
    "People ask about this again and again: *Mem usage is the same for 2 gpus and 4 gpus* (DeepSpeed, issue 4093). "
    "When llm.c got stage 1, the memory for a model of 124 million parameters fell by only 6% on 4 GPUs, because 82% "
    "of it were activations (karpathy/llm.c, pull request 309).",
    value=_LARGE_TOTAL + _ACTIVATIONS,
    unit="GB",
    units=_BYTES,
    slips=(
        Slip(
            "all-halved",
            (_SMALL_TOTAL + _ACTIVATIONS) / 2,
            "You halved the activations too. They belong to a GPU's own sequence, and each GPU still has one.",
        ),
        Slip(
            "unchanged",
            _SMALL_TOTAL + _ACTIVATIONS,
            "That is what a GPU stored before. The states are now split over twice as many GPUs.",
        ),
        Slip(
            "activations-halved",
            _SMALL_TOTAL + _ACTIVATIONS / 2,
            "It is the other way round: the states are split over the GPUs, and the activations are not.",
        ),
        Slip(
            "states-alone",
            _LARGE_TOTAL,
            "Those are the states alone. A GPU stores activations too.",
        ),
        Slip(
            "activations-alone",
            _ACTIVATIONS,
            "Those are the activations alone. A GPU also stores its part of the states.",
        ),
        Slip(
            "stage-2",
            total(2, _LARGE_DP) + _ACTIVATIONS,
            "That is stage 2, with whole weights. Stage 3 splits the weights too.",
        ),
        Slip(
            "stage-1",
            total(1, _LARGE_DP) + _ACTIVATIONS,
            "That is stage 1, with whole weights and gradients. Stage 3 splits all of them.",
        ),
        Slip(
            "activations-doubled",
            _LARGE_TOTAL + 2 * _ACTIVATIONS,
            "That has two sequences per GPU. Each of the 16 GPUs has one.",
        ),
    ),
    right="More GPUs make the states smaller. Activations depend on a GPU's own samples, and stay.",
)

_SGD, _RANKS = Recipe(precision="fp32", optimizer="momentum"), 8
_UNSHARDED, _STAGE_1 = states_of(0, _RANKS, recipe=_SGD), states_of(1, _RANKS, recipe=_SGD)
_SHARE = 1 - sum(_STAGE_1.values()) / sum(_UNSHARDED.values())
_ADAM = 1 - total(1, _RANKS) / total(0, _RANKS)

FIRST_SHARE = Number(
    key="first-stage-share",
    level=1,
    minutes=2,
    short=True,
    title="What the first stage frees",
    prompt=f"An image model trains in fp32 with **momentum SGD**, which stores one number per parameter, on "
    f"**{_RANKS}** GPUs. There are no master weights. What share of a GPU's weights, gradients and optimizer state "
    "does **stage 1** free?",
    hints=("How many bytes per parameter does each kind of state take?", f"A GPU keeps 1/{_RANKS} of what is sharded."),
    solution=f"Weight, gradient and momentum take 4 bytes each. Stage 1 shards the momentum, which is 1/3 of the "
    f"states, and a GPU keeps an eighth of it. 1/3 × 7/8 = **{_SHARE:.1%}**.\n\nWith bf16 weights, fp32 master weights "
    f"and AdamW it would be 12/16 × 7/8 = {_ADAM:.1%}. A course calls stage 1's savings *moderate* (repovive.com, "
    "*DeepSpeed ZeRO stages*), and the paper says *4x memory reduction* (arXiv 1910.02054, section 1). Which of them "
    "is right depends on the recipe. With AdamW the optimizer state is three quarters of all states, which is why it "
    "is sharded first.",
    value=_SHARE,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip(
            "adamw",
            _ADAM,
            "That is for AdamW with master weights. Momentum SGD stores less, and here everything is in fp32.",
        ),
        Slip(
            "two-moments",
            7 / 16,
            "Either that is AdamW in fp32, or one of the three kinds of state is missing.",
        ),
        Slip("all-of-it", 1 / 3, "That is all of the momentum. A GPU keeps a part of it."),
        Slip("stage-2", 7 / 12, "That frees parts of two kinds of state. Which one does stage 1 shard?"),
        Slip(
            "stage-3",
            7 / 8,
            "Either you sharded all three kinds, which is stage 3, or this is a share of the momentum alone.",
        ),
        Slip("left", 1 - _SHARE, "That is the share left on a GPU. The question is which share is freed."),
        Slip("own-part", 1 / 24, "That is what a GPU keeps of the momentum. The question is which share is freed."),
        Slip("of-the-optimizer", 3 / 4 / 8, "That is what a GPU would keep of AdamW's states, with master weights."),
    ),
    right="How much stage 1 frees depends on the optimizer: compute it before you expect three quarters.",
)

_STUB = '''\
def fewest_ranks(whole, stage, room):
    """The smallest number of GPUs that fits; 0 if none does.

    whole: GB of one copy, [weights, gradients, optimizer]
    stage: 0, 1, 2 or 3
    room: GB that each GPU has for states
    """
    return ...
'''

_SOLUTION = """\
from math import ceil


def fewest_ranks(whole, stage, room):
    weights, gradients, optimizer = whole
    split = sum([optimizer, gradients, weights][:stage])
    left = room - (sum(whole) - split)    # after what stays whole
    if split == 0:
        return 1 if left >= 0 else 0
    return ceil(split / left) if left > 0 else 0
"""


def _ranks_needed(split: float, unsharded: list, room: float, rounded=ceil, never=0) -> int:
    """GPUs for that much split and the rest whole; how their number is rounded, and what stands for none."""
    remaining = room - (sum(unsharded) - split)
    if split == 0:
        return 1 if remaining >= 0 else never
    return rounded(split / remaining) if remaining > 0 else never


def _fewest(unsharded, stage, room, order=(2, 1, 0), **wrong) -> int:
    """With kinds split in another order, or as `_with` says."""
    return _ranks_needed(sum(unsharded[kind] for kind in order[:stage]), unsharded, room, **wrong)


def _no_floor(unsharded, stage, room) -> int:
    """All of the room for what is split."""
    split = sum([*reversed(unsharded)][:stage])
    return ceil(split / room) if split else _fewest(unsharded, stage, room)


def _unlimited(unsharded, stage, room) -> int:
    """The quotient, whatever its sign."""
    split = sum([*reversed(unsharded)][:stage])
    remaining = room - (sum(unsharded) - split)
    return ceil(split / remaining) if split and remaining else _fewest(unsharded, stage, room)


FEWEST = Function(
    key="fewest-ranks",
    level=2,
    minutes=8,
    title="How many GPUs until it fits",
    prompt="Write `fewest_ranks(whole, stage, room)`: the smallest number of GPUs on which the states of a model fit, "
    "if each GPU has `room` GB for them. `whole` is what one copy takes, `[weights, gradients, optimizer]`, where the "
    "optimizer includes master weights. For 13 billion parameters with AdamW it is `[26, 26, 156]`.\n\n"
    "- What the stage shards is split evenly; everything else is whole on every GPU. Stage 0 is DDP.\n"
    "- The states may take all of `room`.\n"
    "- If no number of GPUs is enough, return 0.",
    hints=(
        "What is whole on every GPU at this stage? Subtract it from the room first.",
        "What is left has to fit one shard of what is split.",
        "With more GPUs a shard becomes as small as you like, but not zero. When is even that too much?",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    f"With 60 of 73 GB left for states, the 13B model takes {_fewest([26, 26, 156], 1, 60)} GPUs at stage 1, "
    f"{_fewest([26, 26, 156], 2, 60)} at stage 2 and {_fewest([26, 26, 156], 3, 60)} at stage 3. **What stays whole is "
    "a lower limit, whatever the number of GPUs:** 4 bytes per parameter at stage 1, 2 at stage 2, none at stage 3. So "
    "60 GB are enough for fewer than 15 billion parameters at stage 1 and fewer than 30 billion at stage 2.",
    function="fewest_ranks",
    stub=_STUB,
    reference=_fewest,
    cases=(
        ([26, 26, 156], 1, 60),
        ([26, 26, 156], 2, 60),
        ([26, 26, 156], 3, 60),
        ([26, 26, 156], 0, 80),
        ([14, 14, 84], 1, 30),
        ([14, 14, 84], 2, 30),
        ([14, 14, 84], 3, 30),
        ([14, 14, 84], 1, 20),
        ([3, 3, 18], 0, 24),
        ([3, 3, 18], 1, 24),
        ([32, 32, 192], 2, 30),
        ([32, 32, 192], 1, 60),
        ([32, 32, 192], 1, 64),
        ([4, 4, 4], 1, 11),
        ([4, 4, 4], 2, 7),
        ([5, 5, 0], 1, 9),
        ([5, 5, 0], 1, 10),
        ([5, 5, 0], 2, 6),
        ([60, 60, 360], 3, 23),
        ([10, 10, 60], 2, 24),
        ([7, 14, 42], 1, 23),
        ([7, 14, 42], 2, 9),
        ([9, 9, 54], 2, 8),
        ([26, 26, 156], 1, 53),
        ([26, 26, 156], 2, 26.125),
        ([140, 140, 840], 3, 8),
    ),
    mistakes=(
        Mistake(
            "all-split",
            lambda unsharded, stage, room: _fewest(unsharded, 3 if stage else 0, room),
            "You split everything at every stage: that is stage 3. What does this stage leave whole?",
        ),
        Mistake(
            "weights-first",
            partial(_fewest, order=(0, 1, 2)),
            "You split the weights first. Stage 1 splits the optimizer state, stage 2 the gradients too, "
            "stage 3 the weights too.",
        ),
        Mistake(
            "stage-alone",
            lambda unsharded, stage, room: _ranks_needed((0, *reversed(unsharded))[stage], unsharded, room),
            "Each of your stages splits one kind of state. Stage 2 splits gradients and optimizer, stage 3 everything.",
        ),
        Mistake(
            "rounded-down",
            partial(_fewest, rounded=int),
            "You rounded down. With fewer GPUs than the quotient each shard is too large: round up.",
        ),
        Mistake(
            "one-more",
            partial(_fewest, rounded=lambda quotient: int(quotient) + 1),
            "You took one GPU too many where the quotient is a whole number. States may take all of the room.",
        ),
        Mistake(
            "nearest",
            partial(_fewest, rounded=round),
            "You rounded to the nearest number. With fewer GPUs than the quotient it does not fit: round up.",
        ),
        Mistake(
            "no-floor",
            _no_floor,
            "You gave all of the room to what is split. What is whole on every GPU takes its part first.",
        ),
        Mistake(
            "below-zero",
            _unlimited,
            "Your quotient is below zero where what stays whole is larger than the room. No number of GPUs is "
            "enough then: return 0.",
        ),
        Mistake(
            "one-where-none",
            partial(_fewest, never=1),
            "Where no number of GPUs is enough you return 1. Return 0 there.",
        ),
        Mistake(
            "gradients-early",
            lambda unsharded, stage, room: _fewest(unsharded, 2 if stage == 1 else stage, room),
            "Your stage 1 splits the gradients. Stage 1 splits only the optimizer state, and gradients stay whole.",
        ),
    ),
    right="What stays whole sets the limit. Only below that limit do more GPUs help.",
)

EXERCISES = (MORE_GPUS, FIRST_SHARE, FEWEST)
