"""Exercises of `ddp` on what a rank sends, why gradients are averaged, and a gradient that never comes."""

from __future__ import annotations

from scaleout.exercises.collectives.sizes import ring
from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.exercises.memory.sizes import BYTES
from scaleout.spec.devices import GB

_BYTES = ("MB", "GB", "TB", "GiB")
_PARAMS, _RANKS = 1e9, 16
_GRADIENTS = _PARAMS * BYTES["fp32"]
_SENT = ring(_GRADIENTS, _RANKS).sent_bytes

WIRE = Number(
    key="ddp-wire-bytes",
    level=1,
    minutes=2,
    title="What a step sends",
    prompt="DDP trains a model of **1 billion** parameters on **16** ranks, with fp32 gradients and a ring all-reduce. "
    "You **double the sequences** per rank. How many bytes does **each rank** now send per step?",
    hints=(
        "How many bytes do the gradients have? Do more sequences make more gradients?",
        "A rank sends 2(W−1) chunks, each 1/W of the gradients.",
    ),
    solution=f"The gradients have 10^9 × 4 bytes = {_GRADIENTS / GB:.0f} GB, and each rank sends 2 × 15/16 of that: "
    f"**{_SENT / GB:.1f} GB**, as before. There is one gradient per parameter, however large the batch is.",
    value=_SENT,
    unit="GB",
    units=_BYTES,
    slips=(
        Slip(
            "half",
            _SENT / 2,
            "Either you counted one half of the ring only (an all-reduce is a reduce-scatter and an all-gather), or 2 "
            "bytes per gradient: these are in fp32.",
        ),
        Slip(
            "gradients-once",
            _GRADIENTS,
            "That is the size of the gradients. In a ring all-reduce a rank sends chunks in both halves.",
        ),
        Slip(
            "gradients-twice",
            2 * _GRADIENTS,
            "That is twice the size of the gradients. In each half of a ring a rank sends all chunks but one.",
        ),
        Slip(
            "all-ranks",
            _RANKS * _SENT,
            "That is what all 16 ranks send together. The question is what one rank sends over its own link.",
        ),
        Slip(
            "to-everybody",
            (_RANKS - 1) * _GRADIENTS,
            "That sends all gradients to each of the 15 others. In a ring a rank sends to one neighbor, chunk by "
            "chunk.",
        ),
        Slip(
            "doubled",
            2 * _SENT,
            "Either you doubled the bytes with the batch, or you added those that a rank receives. There is one "
            "gradient per parameter, and the question is what a rank sends.",
        ),
        Slip(
            "all-states",
            4 * _SENT,
            "That would send 16 bytes per parameter. Only gradients are sent: every rank computes the same update "
            "of its own weights and optimizer states.",
        ),
        Slip(
            "divided-by-ranks",
            2 * (_RANKS - 1) / _RANKS * _GRADIENTS / _RANKS,
            "You divided by 16 once too often. Every rank has a gradient for every parameter.",
        ),
    ),
    right="The same as before you doubled the batch. So a larger batch hides it better.",
)

MEAN = Choice(
    key="mean-not-sum",
    level=1,
    title="Sum or mean",
    short=True,
    prompt="You write data parallelism by hand on **4** ranks. `dist.all_reduce` adds the gradients, and you forget to "
    "divide by 4. The optimizer is plain SGD, and each rank's loss is the mean over its own sequences. What happens?",
    hints=(
        "The gradient of the mean loss over the whole batch is the mean of the ranks' gradients.",
        "SGD subtracts learning rate × gradient.",
    ),
    solution="The gradient is **4 times too large**, and with SGD that has the effect of a learning rate 4 times as "
    "high. The factor is the number of ranks, so a run that works on 2 may diverge on 16. Divide the sum by the number "
    "of ranks.\n\nWith Adam you may not notice, because Adam divides the gradient by its own size. But gradient "
    "clipping, weight decay that is added to the gradient, and the logged gradient norm are all wrong.",
    options=(
        Option(
            "four-times",
            "The run behaves as if the learning rate were 4 times as high",
            "Right. On 64 ranks it would be 64 times as high.",
            True,
        ),
        Option(
            "nothing",
            "Nothing changes: the sum has the same direction as the mean",
            "The direction is the same, but the length is not, and SGD's update is proportional to the length.",
        ),
        Option(
            "quarter",
            "The run behaves as if the learning rate were a quarter as high",
            "Summing 4 gradients makes the gradient longer, not shorter.",
        ),
        Option(
            "batch",
            "Nothing is wrong: a batch 4 times as large has that gradient",
            "Each rank's gradient is already a mean over its sequences. A larger batch makes the mean less noisy, "
            "not larger. (You may then choose a higher learning rate, but that is your decision.)",
        ),
        Option(
            "differ",
            "The ranks drift apart, because each of them has another sum",
            "An all-reduce gives every rank the same sum. The ranks stay equal and all make the same wrong update.",
        ),
    ),
)

UNUSED = Choice(
    key="unused",
    level=2,
    title="A branch that was not taken",
    prompt="A model has two heads, and each example uses one of them. In this batch **rank 1** has no example for "
    "head B, so head B's weights get no gradient there. The other ranks have examples for both heads. DDP has its "
    "default settings. What happens?",
    hints=(
        "A bucket is all-reduced when all its gradients are ready.",
        "What would tell DDP on rank 1 that the gradients of head B are ready?",
    ),
    solution="The bucket with head B **never fills on rank 1**, so rank 1 does not start its all-reduce. The other "
    "ranks start it and wait. Rank 1 goes on, and its next forward pass raises `Expected to have finished reduction in "
    "the prior iteration`. The other ranks wait until the connection is closed or their timeout ends.\n\n"
    "`find_unused_parameters=True` walks the graph after each forward pass and marks unused parameters as ready. This "
    "costs time in every step. It is better if the model uses all its weights: add 0 × the output of head B to the "
    "loss.",
    options=(
        Option(
            "never-full",
            "A bucket never fills on rank 1, and the other ranks wait for it",
            "Right. DDP counts the gradients of a bucket, and one that never comes keeps the bucket open. Rank 1's "
            "next forward pass raises an error.",
            True,
        ),
        Option(
            "zero",
            "DDP uses zeros for the gradients of head B on rank 1",
            "With find_unused_parameters=True it would. By default DDP does not know that this gradient will not come.",
        ),
        Option(
            "skip",
            "DDP leaves head B out of the all-reduce, on all of the ranks",
            "The ranks do not agree on which gradients are missing, because that would need communication. Each "
            "waits for its own bucket to fill.",
        ),
        Option(
            "local",
            "Ranks that have such a gradient use their own, and drift apart",
            "That needs each rank to go on. But the all-reduce of that bucket cannot end without rank 1.",
        ),
        Option(
            "nothing",
            "Nothing: the optimizer skips a parameter whose gradient is None",
            "The optimizer does. But DDP runs before it, and waits for every gradient that it has registered.",
        ),
    ),
)

EXERCISES = (WIRE, MEAN, UNUSED)
