"""Exercises of `pipeline` on the bubble: its two shares, what it does with more copies, and what fills it."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.exercises.pipeline.steps import step

_SHARE = {"unit": "%", "units": ("%",), "dimension": "share"}

_SINGLE = step("gpipe", 6, 1)

ONE_BATCH = Number(
    key="one-batch",
    level=1,
    title="One batch at a time",
    prompt="A model is cut into 6 equal stages, one on each of **6 ranks**. The whole batch goes through in one piece, "
    "down and up again. What share of the step does a rank **work**?",
    hints=("How many of the six compute at any moment?",),
    solution=f"One of six at any moment: **{1 - _SINGLE.bubble:.1%}**. You pay for six GPUs and get the speed of one, "
    "with room for a model six times as large. That is what a pipeline is without micro-batches.",
    value=1 - _SINGLE.bubble,
    **_SHARE,
    slips=(
        Slip("idle", _SINGLE.bubble, "That is the share in which a rank waits. The question is when it works."),
        Slip("neighbours", 1 / 5, "That leaves out the rank itself."),
        Slip("half", 1 / 2, "Half the ranks would have to work at once. With one batch, who else has anything to do?"),
        Slip(
            "there-and-back",
            1 / 12,
            "That counts the way back twice: in the backward pass a rank works too, each in its turn.",
        ),
        Slip(
            "third", 1 / 3, "A forward is a third of a rank's work. But the rank also waits while the five others work."
        ),
        Slip("all", 1, "All would have to work at once. What does the last rank do while the first computes?"),
    ),
    right="The rest is the bubble: five times the work.",
)

_P, _M = 8, 24
_STEP = step("1f1b", _P, _M)

BUBBLE_SHARE = Number(
    key="bubble-share",
    level=1,
    title="The bubble's share",
    prompt=f"**{_P} ranks**, **{_M} micro-batches**, 1F1B, stages alike. What share of the **step** is bubble?",
    hints=(
        "How many pieces of work does a rank wait for, and how many does it do?",
        "The step is the work and the bubble together.",
    ),
    solution=f"A rank does {_M} pieces and waits for {_P - 1}: {_P - 1}/{_M + _P - 1} = **{_STEP.bubble:.1%}** of the "
    f"step. Of the work it is {_P - 1}/{_M} = {_STEP.bubble_of_ideal:.1%}. Both numbers are in papers under the name "
    "*bubble fraction*: look which one is meant before you compare.",
    value=_STEP.bubble,
    **_SHARE,
    slips=(
        Slip(
            "of-the-work",
            _STEP.bubble_of_ideal,
            "That is the bubble as a share of the work. The step is longer than the work.",
        ),
        Slip("ranks-of-the-work", _P / _M, "That is a share of the work. And a rank does not wait for itself."),
        Slip("one-rank-more", _P / (_M + _P - 1), "The last rank waits for the ranks above it: how many are those?"),
        Slip("ranks-of-both", _P / (_M + _P), "Who does the last rank wait for? You counted it, too."),
        Slip("one-piece-more", (_P - 1) / (_M + _P), "Your bubble is right, and your step is not."),
        Slip("work", 1 - _STEP.bubble, "That is the share in which a rank works."),
        Slip(
            "in-halves",
            (_P - 1) / (2 * _M + _P - 1),
            "That counts a forward and a backward as two pieces of work, but as one piece of waiting.",
        ),
        Slip(
            "both-ends",
            2 * (_P - 1) / (_M + 2 * (_P - 1)),
            "That counts whole pieces at both ends. On the way down the last rank waits for forwards only, on the way "
            "up for backwards only.",
        ),
    ),
    right="A GPU in four or five is paid for and idle.",
)

_BATCH, _SIZE, _COPIES, _DEEP = 1536, 2, 16, 12
_PER_PIPELINE = _BATCH // (_COPIES * _SIZE)
_SCALED, _UNSCALED = step("1f1b", _DEEP, _PER_PIPELINE), step("1f1b", _DEEP, 4 * _PER_PIPELINE)

MICRO_BATCHES = Number(
    key="micro-batches",
    level=2,
    title="How many micro-batches",
    minutes=4,
    prompt=f"A model trains on pipelines of **{_DEEP} ranks**, with a batch of **{_BATCH:,} sequences** a step and "
    f"**{_SIZE} sequences** a micro-batch. To be done sooner, you go from 4 copies of the pipeline to "
    f"**{_COPIES} copies**, with the same batch. How large is the bubble now, as a share of the **work**?",
    hints=(
        f"The {_COPIES} copies share the batch. How many sequences does one pipeline get?",
        "And how many micro-batches are those?",
    ),
    solution=f"Each pipeline gets {_BATCH:,} / {_COPIES} = {_BATCH // _COPIES} sequences, {_PER_PIPELINE} "
    f"micro-batches. The bubble is {_DEEP - 1}/{_PER_PIPELINE} = **{_SCALED.bubble_of_ideal:.1%}** of the work. With 4 "
    f"copies it was {_DEEP - 1}/{4 * _PER_PIPELINE} = {_UNSCALED.bubble_of_ideal:.1%}. So four times the GPUs make the "
    f"step {_UNSCALED.seconds / _SCALED.seconds:.2f} times as fast, before any message is counted: the batch is fixed, "
    "and each copy more takes micro-batches from the others.",
    value=_SCALED.bubble_of_ideal,
    **_SHARE,
    slips=(
        Slip("of-the-step", _SCALED.bubble, "That is its share of the step. The question is the share of the work."),
        Slip("all-ranks", _DEEP / _PER_PIPELINE, "A rank waits for the others, not for itself."),
        Slip(
            "sequences",
            (_DEEP - 1) / (_PER_PIPELINE * _SIZE),
            "You counted each sequence as a micro-batch of its own. There are two in each.",
        ),
        Slip(
            "one-copy",
            (_DEEP - 1) / (_PER_PIPELINE * _COPIES),
            "That is the bubble of one pipeline that gets the whole batch. The copies share it.",
        ),
        Slip("four-copies", _UNSCALED.bubble_of_ideal, "That is the bubble with 4 copies, before you scaled."),
        Slip(
            "larger-batch",
            (_DEEP - 1) / (_PER_PIPELINE * _COPIES * _SIZE),
            "That takes every sequence of the batch for a micro-batch of one pipeline.",
        ),
        Slip(
            "ranks-share",
            (_DEEP - 1) / (_BATCH / _COPIES / _SIZE / _DEEP),
            "You divided the micro-batches by the ranks of the pipeline. Every micro-batch goes through all of them.",
        ),
    ),
    right="More copies of a pipeline mean fewer micro-batches in each: the bubble grows just when you scale.",
)

# What is taught at times: GPipe (p-1)/(m+p-1) against "1F1B" (p-1)/(2m+p-1), where forwards and backwards are counted
# as pieces of their own in the work, and not in the bubble.
_WIDE, _MICRO = 8, 32
_GPIPE = step("gpipe", _WIDE, _MICRO)
_CLAIM = (_WIDE - 1) / (2 * _MICRO + _WIDE - 1)

SAME_BUBBLE = Choice(
    key="same-bubble",
    level=2,
    title="7 of 39, or 7 of 71",
    prompt=f"A course teaches: with {_WIDE} ranks and {_MICRO} micro-batches GPipe's bubble is {_WIDE - 1} pieces of "
    f"{_MICRO + _WIDE - 1}, {_GPIPE.bubble:.1%} of the step. 1F1B turns to backwards early and so has "
    f"2 × {_MICRO} pieces to fill its step with: {_WIDE - 1} of {2 * _MICRO + _WIDE - 1}, **{_CLAIM:.1%}**. "
    "What is right?",
    hints=(
        "The last rank cannot begin before the first micro-batch has come down. Does the order change that?",
        "If the work is counted in forwards and backwards apart, in what is the bubble counted?",
    ),
    solution=f"Both end after (m + p − 1)(F + B) = {_GPIPE.seconds:.0f} slots, and both bubbles are "
    f"{_GPIPE.bubble:.1%}. The claim counts forwards and backwards apart in the work, {2 * _MICRO} pieces, and "
    f"together in the bubble, {_WIDE - 1}. Counted alike it is {2 * (_WIDE - 1)} of {2 * (_MICRO + _WIDE - 1)}: the "
    f"same.\n\nWhat 1F1B saves is **memory**: the first rank holds at most {_WIDE} micro-batches and not {_MICRO}. "
    "With the memory that is left you can take more micro-batches, and those make the bubble smaller.",
    options=(
        Option(
            "memory",
            "The bubbles are equal; 1F1B holds fewer",
            f"Right: {_GPIPE.seconds:.0f} slots each. The first rank holds {_WIDE} micro-batches instead of "
            f"{_MICRO}, and that is all that changed.",
            True,
        ),
        Option(
            "smaller",
            "1F1B's is smaller, by this formula",
            "Simulate it: both end in the same slot. The formula counts a forward and a backward as two pieces of "
            "work, but as one piece of bubble.",
        ),
        Option(
            "half",
            "1F1B's is exactly half of GPipe's",
            "The backwards begin earlier, but the last one ends when it always did: after the last micro-batch "
            "has come down and gone up again.",
        ),
        Option(
            "larger",
            "1F1B's is larger: it waits more often",
            "It waits more often and for shorter. The sum of its waits on each rank is that of GPipe's, as long as "
            "a hop costs nothing.",
        ),
        Option(
            "many",
            "Equal only when m is much larger",
            "They are equal for every m from p on. Try a small one in the simulator.",
        ),
    ),
)

_Z, _ZM = 8, 16
_ZERO, _PLAIN = step("zb1", _Z, _ZM), step("1f1b", _Z, _ZM)

ZERO_BUBBLE = Number(
    key="zero-bubble",
    level=2,
    title="What W can fill",
    prompt=f"**{_Z} ranks**, **{_ZM} micro-batches**. The backward is cut in two: I, the gradient of the input, and W, "
    "that of the weights. F, I and W take **one slot each**. The schedule is ZB-H1, which holds no more on the first "
    "rank than 1F1B does. What share of the **step** is bubble?",
    hints=(
        "How many slots of work does a rank have in all?",
        "Each rank waits for p − 1 slots. What had it waited for under 1F1B?",
    ),
    solution=f"A rank works 3 × {_ZM} = {3 * _ZM} slots and waits for {_Z - 1}: {_Z - 1}/{3 * _ZM + _Z - 1} = "
    f"**{_ZERO.bubble:.1%}** of the step. Under 1F1B it waits for 3 × {_Z - 1} slots, {_PLAIN.bubble:.1%}. The idle "
    "*time* is a third; its *share* is a little more than a third, because the step became shorter too.",
    value=_ZERO.bubble,
    **_SHARE,
    slips=(
        Slip("third-of-the-share", _PLAIN.bubble / 3, "That is 1F1B's share, divided. Is the step as long as it was?"),
        Slip("work", 1 - _ZERO.bubble, "That is the share in which a rank works."),
        Slip("one-f-one-b", _PLAIN.bubble, "That is 1F1B's bubble: W fills none of it yet."),
        Slip(
            "of-the-work",
            _ZERO.bubble_of_ideal,
            "That is the bubble as a share of the work. The step has the bubble in it too.",
        ),
        Slip(
            "slots-for-pieces",
            (_Z - 1) / _ZM,
            "That divides slots by micro-batches. How many slots of work is a micro-batch?",
        ),
        Slip("two-thirds", 2 * (_Z - 1) / (3 * _ZM + 2 * (_Z - 1)), "That has more waiting in it than ZB-H1 leaves."),
        Slip("ranks", _Z / (3 * _ZM + _Z), "Count again whom a rank waits for."),
        Slip(
            "two-slots",
            (_Z - 1) / (2 * _ZM + _Z - 1),
            "That has fewer slots of work for a micro-batch than F, I and W take.",
        ),
        Slip("none", 0, "W fills most of the waiting. But at the beginning no rank has a W yet."),
    ),
    right="The weights' gradients are work that nobody waits for: it goes where waiting was.",
)

EXERCISES = (ONE_BATCH, BUBBLE_SHARE, MICRO_BATCHES, SAME_BUBBLE, ZERO_BUBBLE)
