"""Exercises of `zero` on what a rank holds: what stays whole, what a stage frees, and how many GPUs it takes."""

from __future__ import annotations

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
    f"**{_SMALL_DP}** GPUs, each with a sequence of 8,192 tokens. A GPU holds {_SMALL_TOTAL / GB:.1f} GB of states and "
    f"**{_ACTIVATIONS / GB:.0f} GB** of activations. Now the job moves to **{_LARGE_DP}** GPUs, each again with one "
    "sequence of 8,192 tokens. How much does a GPU hold, states and activations together?",
    hints=("Which of the two is split over the GPUs?", "Whose activations does a GPU hold?"),
    solution=f"{_LARGE_TOTAL / GB:.2f} GB of states, half as much as before, and the same {_ACTIVATIONS / GB:.0f} GB "
    f"of activations: **{(_LARGE_TOTAL + _ACTIVATIONS) / GB:.1f} GB**, 13% less. A GPU's activations are those of its "
    "own samples, and it computes all of the model on them. No stage splits them. A smaller micro-batch, shorter "
    "sequences or checkpointing make them less.\n\n"
    "It is asked again and again: *Mem usage is the same for 2 gpus and 4 gpus* (DeepSpeed, issue 4093), *Partition "
    "activations brings no activation memory reduction in zero3* (issue 3652: that option splits them over ranks of "
    "tensor parallelism, and here are none). When stage 1 came to llm.c, a model of "
    "124 million parameters went from 16,661 to 15,593 MiB on 4 GPUs: 13,629 were activations (karpathy/llm.c, pull "
    "request 309).",
    value=_LARGE_TOTAL + _ACTIVATIONS,
    unit="GB",
    units=_BYTES,
    slips=(
        Slip(
            "all-halved",
            (_SMALL_TOTAL + _ACTIVATIONS) / 2,
            "You halved the activations too. They are those of a GPU's own sequence, and it has the same one to do.",
        ),
        Slip(
            "unchanged",
            _SMALL_TOTAL + _ACTIVATIONS,
            "That is what it held before. The states are split over twice as many GPUs.",
        ),
        Slip(
            "activations-halved",
            _SMALL_TOTAL + _ACTIVATIONS / 2,
            "It is the other way round: the states are split over the GPUs, and activations are not.",
        ),
        Slip(
            "states-alone",
            _LARGE_TOTAL,
            "Those are the states alone. What a GPU computes with has to lie somewhere too.",
        ),
        Slip("activations-alone", _ACTIVATIONS, "Those are the activations alone. A GPU holds its part of the states."),
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
            "That has two sequences on a GPU. Each of the 16 has one.",
        ),
    ),
    right="More GPUs thin out what depends on the model. What depends on a GPU's samples stays.",
)

_SGD, _RANKS = Recipe(precision="fp32", optimizer="momentum"), 8
_UNSHARDED, _STAGE_1 = states_of(0, _RANKS, recipe=_SGD), states_of(1, _RANKS, recipe=_SGD)
_SHARE = 1 - sum(_STAGE_1.values()) / sum(_UNSHARDED.values())
_ADAM = 1 - total(1, _RANKS) / total(0, _RANKS)

FIRST_SHARE = Number(
    key="first-stage-share",
    level=1,
    minutes=2,
    title="What the first stage frees",
    prompt=f"An image model trains in fp32 with **momentum SGD**, which keeps one number for each parameter, on "
    f"**{_RANKS}** GPUs. There is no master copy. What share of a GPU's weights, gradients and optimizer state does "
    "**stage 1** free?",
    hints=("How many bytes does a parameter have of each kind?", f"Of what is split a GPU keeps 1/{_RANKS}."),
    solution=f"Weight, gradient and momentum have 4 bytes each. Stage 1 splits the last: 1/3, of which a GPU keeps an "
    f"eighth. 1/3 × 7/8 = **{_SHARE:.1%}**.\n\nWith bf16 weights, fp32 master copy and AdamW it would be 12/16 × 7/8 = "
    f"{_ADAM:.1%}. *Moderate savings*, says a course of stage 1 (repovive.com, *DeepSpeed ZeRO stages*); *4x memory "
    "reduction*, says the paper (arXiv 1910.02054, section 1). Which of them is right is for the recipe to say. With "
    "AdamW the optimizer is three quarters of the states and no detail, and so it is split first.",
    value=_SHARE,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip("adamw", _ADAM, "That is AdamW with a master copy. Momentum SGD keeps less, and here all is in fp32."),
        Slip(
            "two-moments",
            7 / 16,
            "Either that is AdamW in fp32, or one of the three kinds is missing in what a GPU holds.",
        ),
        Slip("all-of-it", 1 / 3, "That is the whole momentum. A GPU keeps a part of it."),
        Slip("stage-2", 7 / 12, "That frees two kinds of the three. Which of them does stage 1 split?"),
        Slip(
            "stage-3",
            7 / 8,
            "Either you split all three kinds, and that is stage 3; or it is a share of the momentum alone.",
        ),
        Slip("left", 1 - _SHARE, "That is what is left on a GPU. The question is what is freed."),
        Slip("own-part", 1 / 24, "That is what a GPU keeps of the momentum. The question is what is freed."),
        Slip("of-the-optimizer", 3 / 4 / 8, "That is what a GPU would keep of AdamW's states, with a master copy."),
    ),
    right="Stage 1 frees what the optimizer is worth: count it before you expect three quarters.",
)

_STUB = '''\
def fewest_ranks(whole, stage, room):
    """The fewest GPUs on which the states fit; 0 if none do.

    whole: GB of one copy, [weights, gradients, optimizer]
    stage: 0, 1, 2 or 3
    room: GB that a GPU has for states
    """
    return ...
'''

_SOLUTION = """\
from math import ceil


def fewest_ranks(whole, stage, room):
    weights, gradients, optimizer = whole
    split = sum([optimizer, gradients, weights][:stage])
    left = room - (sum(whole) - split)    # beside what stays whole
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
    prompt="Write `fewest_ranks(whole, stage, room)`: the fewest GPUs on which the states of a model fit, when each "
    "has `room` GB for them. `whole` is what one copy takes, `[weights, gradients, optimizer]`, the optimizer with its "
    "master copy. A model of 13 billion parameters with AdamW is `[26, 26, 156]`.\n\n"
    "- What the stage splits is split evenly; all else is whole on every GPU. Stage 0 is DDP.\n"
    "- A full GPU is not an error: states may take all of `room`.\n"
    "- Where no number of GPUs is enough, the answer is 0.",
    hints=(
        "What is whole on every GPU at this stage? Take it off the room first.",
        "The rest of the room has to hold one part of what is split.",
        "With more GPUs the part becomes as small as you like, but not zero. When is even that too much?",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    f"With 60 of 73 GB left beside the activations, the 13B takes {_fewest([26, 26, 156], 1, 60)} GPUs at stage 1, "
    f"{_fewest([26, 26, 156], 2, 60)} at stage 2 and {_fewest([26, 26, 156], 3, 60)} at stage 3. **What stays whole is "
    "a floor that no number of GPUs lowers:** 4 bytes for each parameter at stage 1, 2 at stage 2, none at stage 3. So "
    "60 GB hold less than 15 billion parameters at stage 1 and less than 30 billion at stage 2, on however many "
    "GPUs.",
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
            "You split everything at every stage: that is stage 3. What does this one leave whole?",
        ),
        Mistake(
            "weights-first",
            lambda *case: _fewest(*case, order=(0, 1, 2)),
            "You split the weights first. Stage 1 splits what the optimizer keeps, stage 2 the gradients too, "
            "stage 3 the weights too.",
        ),
        Mistake(
            "stage-alone",
            lambda unsharded, stage, room: _ranks_needed((0, *reversed(unsharded))[stage], unsharded, room),
            "Your stages split one kind each. Stage 2 splits the gradients beside the optimizer, stage 3 all.",
        ),
        Mistake(
            "rounded-down",
            lambda *case: _fewest(*case, rounded=int),
            "You rounded down. With one GPU fewer than the quotient each part is too large: round up.",
        ),
        Mistake(
            "one-more",
            lambda *case: _fewest(*case, rounded=lambda quotient: int(quotient) + 1),
            "You took one more GPU than needed where the quotient is whole. States may take all of the room.",
        ),
        Mistake(
            "nearest",
            lambda *case: _fewest(*case, rounded=round),
            "You rounded to the nearest. Below the quotient it does not fit: round up.",
        ),
        Mistake(
            "no-floor",
            _no_floor,
            "You gave the split part all of the room. What is whole on every GPU has to lie there first.",
        ),
        Mistake(
            "below-zero",
            _unlimited,
            "Your quotient goes below zero where what stays whole is larger than the room. No number of GPUs is "
            "enough then: 0.",
        ),
        Mistake(
            "one-where-none",
            lambda *case: _fewest(*case, never=1),
            "Where nothing is enough you say 1. The answer is 0 then.",
        ),
        Mistake(
            "gradients-early",
            lambda unsharded, stage, room: _fewest(unsharded, 2 if stage == 1 else stage, room),
            "Your stage 1 splits the gradients. It splits what the optimizer keeps, and gradients stay whole.",
        ),
    ),
    right="What is left whole sets the limit, and only then the number of GPUs counts.",
)

EXERCISES = (MORE_GPUS, FIRST_SHARE, FEWEST)
