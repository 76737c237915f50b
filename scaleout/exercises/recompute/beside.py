"""Exercises of `recompute` beside other techniques: FSDP's gathers, and sending activations away in place of it."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.exercises.recompute.sizes import BLOCK, CHEAP, FORWARD, NAME, SEQ, cost, gb, leaves
from scaleout.spec.devices import GB

GATHERS = Choice(
    key="third-gather",
    level=2,
    minutes=3,
    title="A third gather?",
    prompt="Each of 32 blocks is a unit of `fully_shard`, which frees a block's weights after its forward. All blocks "
    "are made again in full, each by itself, before their backward. How often is a block's weights gathered in a step?",
    hints=(
        "For what does a block need its weights in the backward?",
        "The rebuilding and the backward of a block follow one another. What lies between them?",
    ),
    solution="**Twice, as without recomputation.** The forward is made again right before the backward that it is "
    "for, and both need the same weights: the gather comes a little earlier and serves the two. So the step becomes "
    "longer and its messages do not, and there is more work to hide them behind.\n\n"
    "A third gather is what you get where a wrapper frees the weights in between. The older "
    "`FullyShardedDataParallel` does so where `checkpoint(..., use_reentrant=True)` stands *around* the FSDP unit: "
    "rebuilding is then a forward like any other. That *the backward pass has two allgathers per layer* was found in "
    "2023 (pytorch, issue 105635); FairScale's advice was `FSDP(checkpoint(module))`, *so that all-gather is not done "
    "one extra time* (issue 777). With `fully_shard` it is two in either order, counted with torch 2.13, with one "
    "exception: around a unit with `use_reentrant=True`, and prefetch set by hand "
    "(`set_modules_to_forward_prefetch`), each forward that is made again gathers the next unit too, 11 times where 8 "
    "would do for four blocks. Look at your trace all the same, and count.\n\n"
    "A segment of k blocks is another matter. Its blocks are all gathered for the rebuilding, and stand whole at once "
    "until their backwards are done.",
    options=(
        Option(
            "two",
            "Twice: rebuilding and backward share one gather",
            "Right. The one follows the other, and in between nobody frees the weights.",
            True,
        ),
        Option(
            "three",
            "Three times: forward, rebuilding, and backward",
            "That is so where a wrapper frees the weights between rebuilding and backward. fully_shard does not: "
            "it knows that it is in the backward.",
        ),
        Option(
            "once",
            "Once: a block to be rebuilt keeps its weights",
            "What is kept is the input. Weights are freed after the forward, whether a block is made again or not.",
        ),
        Option(
            "four",
            "Four times: each pass gathers, and frees, twice",
            "A unit gathers when its forward begins, and when its backward begins.",
        ),
        Option(
            "two-waits",
            "Twice, but all of them before the backward",
            "Then every block would stand whole at once, and nothing would be sharded. Blocks are made again one by "
            "one.",
        ),
    ),
)

LINK = 50 * GB
SHARE = LINK * FORWARD / BLOCK
_LONG, _LONGER = 16 * SEQ, 32 * SEQ
_CHEAP = cost("sdpa", *CHEAP)


OFFLOADED = Number(
    key="sent-away",
    level=2,
    minutes=4,
    title="Sent away in place of made again",
    prompt=f"{NAME}, one sequence of {SEQ:,} tokens on an H100. A block keeps **{gb(BLOCK, 3)}**, its forward takes "
    f"**{1e3 * FORWARD:.2f} ms** and its backward twice that. Nothing is to be made again: a part of what each block "
    f"keeps goes to the host's memory over PCIe, at **{LINK / GB:.0f} GB/s** in each direction, while the next block's "
    "forward runs, and comes back while the backward of the block behind it runs. Which share of a block can go, at "
    "most, so that nobody waits?",
    hints=("Which of the two ways has less time?", "How many bytes go over the link during one forward?"),
    solution=f"Out, a block has the {1e3 * FORWARD:.2f} ms of a forward: {LINK / GB:.0f} GB/s × {1e3 * FORWARD:.2f} ms "
    f"= {LINK * FORWARD / 1e6:.0f} MB, **{SHARE:.1%}** of {BLOCK / 1e6:,.0f}. Back, it has twice as long, and the way "
    "out decides.\n\n"
    f"So over PCIe offloading does not replace recomputation, it goes along with it: {_CHEAP[0] / 1e6:.0f} MB are made "
    f"again in {1e3 * _CHEAP[1]:.1f} ms, and what the link takes should be the dearest tiles. More tokens in a batch "
    "change nothing, because bytes and products grow alike. A longer *sequence* does, since attention's FLOPs grow "
    f"with its square: {LINK / leaves(_LONG):.0%} can go at {_LONG:,} tokens, and all of it at {_LONGER:,}. That is "
    "why those who train on long sequences offload (pytorch, issue 174960: *one GEMM alone can't hide its activation "
    "offload*, and attention can), and those with a link of 450 GB/s to the host's memory, as on a GH200, do so "
    "earlier (issue 158657).",
    value=SHARE,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip(
            "backward",
            2 * SHARE,
            "Either that is what comes back during a backward, and it has to go out first; or you gave the link both "
            "directions at once.",
        ),
        Slip("both", 3 * SHARE, "You added the two times. What goes out goes out during a forward."),
        Slip(
            "one-way-link",
            SHARE / 2,
            "Either you halved the link, and it gives that rate in each direction; or you gave it a part of the "
            "forward alone.",
        ),
        Slip("rest", 1 - SHARE, "That is the rest, which has to stay."),
        Slip("nothing-waits", 1.0, "All of it takes longer than a forward: compare the two times."),
    ),
    right="Offloading hides what the link takes during one forward. The rest stays, or is made again.",
)

EXERCISES = (GATHERS, OFFLOADED)
