"""Exercises of `pipeline` on the bubble: its two shares, how it grows with more copies, and what 1F1B changes."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.exercises.pipeline.steps import step

_P, _M = 8, 24
_STEP = step("1f1b", _P, _M)

BUBBLE_SHARE = Number(
    key="bubble-share",
    level=1,
    title="The bubble's share",
    prompt=f"**{_P} ranks** with equal stages run **{_M} micro-batches** with 1F1B. What share of the **total time** "
    "of the step is bubble?",
    hints=(
        "For how many micro-batches' time does a rank work, and for how many is it idle?",
        "The total time is the work plus the bubble.",
    ),
    solution=f"A rank works for the time of {_M} micro-batches and is idle for that of {_P - 1}: "
    f"{_P - 1}/{_M + _P - 1} = **{_STEP.bubble:.1%}** of the total time. Of the ideal time it is {_P - 1}/{_M} = "
    f"{_STEP.bubble_of_ideal:.1%}. Papers call both numbers *bubble fraction*: check which one is meant before you "
    "compare.",
    value=_STEP.bubble,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip(
            "of-the-work",
            _STEP.bubble_of_ideal,
            "That is the bubble as a share of the ideal time, the work alone. The total time is longer.",
        ),
        Slip(
            "ranks-of-the-work",
            _P / _M,
            "That is a share of the work, not of the total time. Also, a rank does not wait for itself.",
        ),
        Slip("one-rank-more", _P / (_M + _P - 1), "How many ranks come before the last one? It waits for those only."),
        Slip("ranks-of-both", _P / (_M + _P), "Which ranks does the last rank wait for? You counted it too."),
        Slip("one-piece-more", (_P - 1) / (_M + _P), "Your bubble is right, but your total time is not."),
        Slip("work", 1 - _STEP.bubble, "That is the share of the time in which a rank works."),
        Slip(
            "in-halves",
            (_P - 1) / (2 * _M + _P - 1),
            "That counts forwards and backwards separately in the work, but together in the bubble.",
        ),
        Slip(
            "both-ends",
            2 * (_P - 1) / (_M + 2 * (_P - 1)),
            "That counts a forward and a backward at both ends. At the start the last rank waits for forwards only, "
            "and at the end only backwards are left.",
        ),
    ),
    right="Almost a quarter of the GPU time is paid for and idle.",
)

_BATCH, _SIZE, _COPIES, _DEEP = 1536, 2, 16, 12
_PER_PIPELINE = _BATCH // (_COPIES * _SIZE)
_SCALED, _UNSCALED = step("1f1b", _DEEP, _PER_PIPELINE), step("1f1b", _DEEP, 4 * _PER_PIPELINE)

MICRO_BATCHES = Number(
    key="micro-batches",
    level=2,
    title="How many micro-batches",
    minutes=4,
    short=True,
    prompt=f"A model trains on pipelines of **{_DEEP} ranks**, with **{_BATCH:,} sequences** per batch and "
    f"**{_SIZE} sequences** per micro-batch. To finish sooner you go from 4 copies of the pipeline to "
    f"**{_COPIES} copies**, with the same batch. How large is the bubble now, as a share of the **ideal time**?",
    hints=(
        f"The {_COPIES} copies share the batch. How many sequences does one pipeline get?",
        "How many micro-batches are those?",
    ),
    solution=f"Each pipeline gets {_BATCH:,} / {_COPIES} = {_BATCH // _COPIES} sequences, which are {_PER_PIPELINE} "
    f"micro-batches. The bubble is {_DEEP - 1}/{_PER_PIPELINE} = **{_SCALED.bubble_of_ideal:.1%}** of the ideal time. "
    f"With 4 copies it was {_DEEP - 1}/{4 * _PER_PIPELINE} = {_UNSCALED.bubble_of_ideal:.1%}. So four times as many "
    f"GPUs make the step only {_UNSCALED.seconds / _SCALED.seconds:.2f} times as fast, even before any communication: "
    "the batch is fixed, and every copy you add takes micro-batches from the others.",
    value=_SCALED.bubble_of_ideal,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip(
            "of-the-step",
            _SCALED.bubble,
            "That is its share of the total time of the step. The question asks for the share of the ideal time.",
        ),
        Slip("all-ranks", _DEEP / _PER_PIPELINE, "A rank waits for the others, but not for itself."),
        Slip(
            "sequences",
            (_DEEP - 1) / (_PER_PIPELINE * _SIZE),
            "You counted each sequence as a micro-batch of its own. A micro-batch has two.",
        ),
        Slip(
            "one-copy",
            (_DEEP - 1) / (_PER_PIPELINE * _COPIES),
            "That is the bubble of a single pipeline that gets the whole batch. The copies share the batch.",
        ),
        Slip("four-copies", _UNSCALED.bubble_of_ideal, "That is the bubble with 4 copies, before you scaled."),
        Slip(
            "larger-batch",
            (_DEEP - 1) / (_PER_PIPELINE * _COPIES * _SIZE),
            "That treats every sequence of the batch as a micro-batch of one pipeline.",
        ),
        Slip(
            "ranks-share",
            (_DEEP - 1) / (_BATCH / _COPIES / _SIZE / _DEEP),
            "You divided the micro-batches by the ranks of the pipeline. Every micro-batch goes through all of them.",
        ),
    ),
    right="More copies mean fewer micro-batches for each pipeline, so the bubble grows as you scale.",
)

# What is taught at times: GPipe (p-1)/(m+p-1) against "1F1B" (p-1)/(2m+p-1), where forwards and backwards are counted
# separately in the work, and together in the bubble.
_WIDE, _MICRO = 8, 32
_GPIPE = step("gpipe", _WIDE, _MICRO)
_CLAIM = (_WIDE - 1) / (2 * _MICRO + _WIDE - 1)

SAME_BUBBLE = Choice(
    key="same-bubble",
    level=2,
    short=True,
    title="7 of 39, or 7 of 71",
    prompt=f"A course teaches: with {_WIDE} ranks and {_MICRO} micro-batches, GPipe's bubble is {_WIDE - 1}/"
    f"{_MICRO + _WIDE - 1} = {_GPIPE.bubble:.1%} of the total time. 1F1B starts its backwards early, so it has "
    f"2 × {_MICRO} actions to fill its step with, and its bubble is {_WIDE - 1}/{2 * _MICRO + _WIDE - 1} = "
    f"**{_CLAIM:.1%}**. What is right?",
    hints=(
        "The last rank cannot begin before the first micro-batch has reached it. Does the order change that?",
        "If forwards and backwards are counted separately in the work, how must they be counted in the bubble?",
    ),
    solution=f"Both schedules end after (m + p − 1)(F + B) = {_GPIPE.seconds:.0f} slots, and both bubbles are "
    f"{_GPIPE.bubble:.1%}. The claim counts forwards and backwards separately in the work ({2 * _MICRO}) but together "
    f"in the bubble ({_WIDE - 1}). Counted alike it is {2 * (_WIDE - 1)} of {2 * (_MICRO + _WIDE - 1)}, which is the "
    f"same.\n\nWhat 1F1B saves is **memory**: the first rank has at most {_WIDE} micro-batches in flight and not "
    f"{_MICRO}. You can use the free memory for more micro-batches, and those make the bubble smaller.",
    options=(
        Option(
            "memory",
            "The bubbles are equal; 1F1B stores less",
            f"Right: both take {_GPIPE.seconds:.0f} slots. The first rank has {_WIDE} micro-batches in flight instead "
            f"of {_MICRO}, and nothing else changes.",
            True,
        ),
        Option(
            "smaller",
            "1F1B's is smaller, by this formula",
            "Simulate it: both end in the same slot. The formula counts forwards and backwards separately in the "
            "work, but together in the bubble.",
        ),
        Option(
            "half",
            "1F1B's is exactly half of GPipe's",
            "The backwards begin earlier, but the last one ends when it always did: after the last micro-batch "
            "has gone forward to the last rank and its gradient has come back.",
        ),
        Option(
            "larger",
            "1F1B's is larger: it waits more often",
            "A rank waits more often, but for a shorter time. In total it is idle for as long as with GPipe, as long "
            "as hops are free.",
        ),
        Option(
            "many",
            "Equal only when m is much larger",
            "They are equal for every m that is at least p. Try a small one in the simulator.",
        ),
    ),
)

EXERCISES = (BUBBLE_SHARE, MICRO_BATCHES, SAME_BUBBLE)
