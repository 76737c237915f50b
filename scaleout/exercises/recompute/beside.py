"""The exercise of `recompute` on offloading activations to CPU memory instead of recomputing them."""

from __future__ import annotations

from scaleout.exercises.engine import Number, Slip
from scaleout.exercises.recompute.sizes import BLOCK, CHEAP, FORWARD, NAME, SEQ, cost, gb, leaves
from scaleout.spec.devices import GB

LINK = 50 * GB
SHARE = LINK * FORWARD / BLOCK
_LONG, _LONGER = 16 * SEQ, 32 * SEQ
_CHEAP = cost("sdpa", *CHEAP)


OFFLOADED = Number(
    key="sent-away",
    level=2,
    minutes=4,
    title="Offloaded instead of recomputed",
    prompt=f"{NAME}, one sequence of {SEQ:,} tokens on an H100. A block saves **{gb(BLOCK, 3)}**, its forward pass "
    f"takes **{1e3 * FORWARD:.2f} ms**, and its backward pass twice as long. Nothing is recomputed. Instead, a part of "
    f"each block's saved tensors goes to CPU memory over PCIe, at **{LINK / GB:.0f} GB/s** in each direction, while "
    "the forward pass of the next block runs. It comes back while the backward pass of the block after it runs. What "
    "share of a block can be offloaded, at most, without making the step longer?",
    hints=(
        "Which of the two directions has less time?",
        "How many bytes go over the link during one forward pass?",
    ),
    solution=f"To copy it out, a block has the {1e3 * FORWARD:.2f} ms of a forward pass: {LINK / GB:.0f} GB/s × "
    f"{1e3 * FORWARD:.2f} ms = {LINK * FORWARD / 1e6:.0f} MB, **{SHARE:.1%}** of {BLOCK / 1e6:,.0f}. To copy it back "
    "there is twice as much time, so the way out is the limit.\n\n"
    f"Over PCIe, offloading therefore does not replace recomputation. The two go together: {_CHEAP[0] / 1e6:.0f} MB "
    f"are recomputed in {1e3 * _CHEAP[1]:.1f} ms, and the link should take the tensors that are most expensive to "
    "recompute. More sequences in a batch change nothing, because bytes and FLOPs grow alike. A longer *sequence* "
    f"does, since attention's FLOPs grow with its square: {LINK / leaves(_LONG):.0%} can go at {_LONG:,} tokens, and "
    f"all of it at {_LONGER:,}. That is why people who train on long sequences offload (pytorch, issue 174960: *one "
    "GEMM alone can't hide its activation offload*, and attention can). With a link of 450 GB/s to CPU memory, as on a "
    "GH200, it pays at shorter sequences already (issue 158657).",
    value=SHARE,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip(
            "backward",
            2 * SHARE,
            "Either that is what comes back during a backward pass, and it has to go out first; or you added the "
            "rates of the two directions.",
        ),
        Slip("both", 3 * SHARE, "You added the two times. The copy out has only the time of a forward pass."),
        Slip(
            "one-way-link",
            SHARE / 2,
            "Either you halved the link's rate, and it has that rate in each direction; or you used only a part of the "
            "forward pass.",
        ),
        Slip("rest", 1 - SHARE, "That is the rest, which has to stay on the GPU."),
        Slip("nothing-waits", 1.0, "Copying all of it takes longer than a forward pass: compare the two times."),
    ),
    right="Offloading is free for what the link can copy during one forward pass. The rest stays, or is recomputed.",
)

EXERCISES = (OFFLOADED,)
