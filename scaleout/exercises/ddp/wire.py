"""Exercises of `ddp` on what a rank holds, what it sends, and what the mean of the gradients is for."""

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
    key="ddp-wire-bytes", level=1, minutes=2, title="What a step sends",
    prompt="DDP trains a model of **1 billion** parameters on **16** ranks. The gradients are in fp32, and a ring "
    "all-reduces them. How many bytes does **each rank** send in a step?",
    hints=("How many bytes do the gradients have?", "A ring all-reduce sends 2(W−1)/W of its message from each rank."),
    solution=f"The gradients have 10^9 × 4 bytes = {_GRADIENTS / GB:.0f} GB. Each rank sends 2 × 15/16 of that: "
    f"**{_SENT / GB:.1f} GB**. The batch is not in this sum: small or large, a step sends the same.",
    value=_SENT, unit="GB", units=_BYTES,
    slips=(
        Slip("half", _SENT / 2,
             "Either you counted one of the two collectives of an all-reduce, or 2 bytes for each gradient, and they "
             "are in fp32."),
        Slip("gradients-once", _GRADIENTS,
             "Those are the gradients, sent once. A rank passes chunks on in both halves of the all-reduce."),
        Slip("gradients-twice", 2 * _GRADIENTS,
             "That is all of the gradients, twice. In each half of a ring a rank does not send every chunk."),
        Slip("all-ranks", _RANKS * _SENT,
             "That is what all 16 ranks send together. They send at the same time, each over its own link."),
        Slip("to-everybody", (_RANKS - 1) * _GRADIENTS,
             "That sends all gradients to each of the 15 others. A ring sends to one neighbour, chunk by chunk."),
        Slip("all-states", 4 * _SENT,
             "That is what 16 bytes for each parameter would send. Weights and optimizer states stay where they are: "
             "every rank computes the same update. Only gradients travel."),
        Slip("divided-by-ranks", 2 * (_RANKS - 1) / _RANKS * _GRADIENTS / _RANKS,
             "You divided by 16 once too often. Every rank has a gradient for every parameter."),
    ),
    right="In every step, whatever the batch. That is why a larger batch hides it better.",
)  # fmt: skip

_PASSES = 8
_SAVED = (_PASSES - 1) * _SENT

NO_SYNC = Number(
    key="no-sync", level=2, title="Accumulate before you send",
    prompt="DDP trains a model whose gradients have 4 GB on 16 ranks. Each synchronised backward sends "
    f"**{_SENT / GB:.1f} GB** from each rank. Now each step accumulates the gradients of **{_PASSES}** passes, and all "
    "passes but the last run inside `no_sync()`. How many bytes does that save **each rank** in a step, against a loop "
    "that forgot `no_sync()`?",
    hints=("Without `no_sync()`, every backward all-reduces.", "With it, one of the eight does."),
    solution=f"Without `no_sync()` all {_PASSES} backwards send: {_PASSES * _SENT / GB:.0f} GB. With it, one does: "
    f"{_SENT / GB:.1f} GB. Saved: {_PASSES - 1} × {_SENT / GB:.1f} = **{_SAVED / GB:.1f} GB**. The gradients come out "
    "the same, because a sum of means is the mean of sums. So this slip shows in no loss curve, only in the step time.",
    value=_SAVED, unit="GB", units=_BYTES,
    slips=(
        Slip("all-passes", _PASSES * _SENT,
             "That is what the loop without no_sync() sends. The last pass still has to be synchronised."),
        Slip("what-is-left", _SENT, "That is what is still sent. How much is saved?"),
        Slip("gradients-once", (_PASSES - 1) * _GRADIENTS,
             "Seven passes is right, but those are the gradients, 4 GB each. An all-reduce of them sends more."),
        Slip("half", _SAVED / 2, "Does a pass that does not synchronise still send something?"),
        Slip("all-ranks", _RANKS * _SAVED, "That is for all 16 ranks together. How much is it for each?"),
    ),
    right="And the gradients are the same.",
)  # fmt: skip

MEAN = Choice(
    key="mean-not-sum", level=1, title="Sum or mean",
    prompt="You write data parallelism by hand on **4** ranks. `dist.all_reduce` adds, and you forget to divide the "
    "gradients by 4 afterwards. The optimizer is plain SGD; each rank's loss is the mean over its own sequences. What "
    "happens?",
    hints=("The gradient of the mean loss over the whole batch is the mean of the ranks' gradients.",
           "SGD subtracts learning rate × gradient."),
    solution="The gradient is **4 times too large**, and with SGD that is the same as a learning rate 4 times as high. "
    "It grows with the number of ranks, so a run that worked on 2 may diverge on 16. Sum, then divide by the number of "
    "ranks.\n\nWith Adam you may never notice: it divides the gradient by its own size. But clipping by norm, weight "
    "decay in the gradient and the printed gradient norm are all off.",
    options=(
        Option("four-times", "The run behaves as if the learning rate were 4 times as high",
               "Right. And on 64 ranks, 64 times.", True),
        Option("nothing", "Nothing: the sum points in the same direction as the mean",
               "The direction is the same, the length is not, and SGD's step is as long as the gradient."),
        Option("quarter", "The run behaves as if the learning rate were a quarter as high",
               "Summing 4 gradients makes the gradient longer, not shorter."),
        Option("batch", "Nothing is wrong: a batch 4 times as large has such a gradient",
               "Each rank's gradient is already a mean over its sequences. A larger batch makes the mean less noisy, "
               "not larger. (Whether you then choose a higher learning rate is your decision.)"),
        Option("differ", "The ranks drift apart: each of them adds up another sum",
               "An all-reduce gives every rank the same sum. They stay equal, and make the same wrong step."),
    ),
)  # fmt: skip

COPIES = Choice(
    key="ddp-memory", level=1, title="Eight GPUs, how much memory",
    prompt="A model and its AdamW states need 90 GB. You start DDP on **8** GPUs, each with 73 usable GB. Does it fit?",
    hints=("Which of the four levers is DDP: copy, split, move or recompute?", "What does each rank need for its own "
                                                                               "backward?"),
    solution="**No.** DDP *copies*: every rank holds all weights, gradients and optimizer states, and its buckets on "
    "top. It splits the batch, which makes activations smaller, and nothing else. To split the states is ZeRO's idea.",
    options=(
        Option("no-copies", "No: each rank holds all of the 90 GB",
               "Right. DDP copies the model and splits the batch. It buys throughput, not memory.", True),
        Option("yes-split", "Yes: 90 GB / 8 is 11.25 GB on each rank",
               "That is what ZeRO stage 3 or FSDP would do. DDP splits the batch, not the model."),
        Option("yes-batch", "Yes: each rank has an eighth of the batch",
               "A smaller batch makes activations smaller. The 90 GB are states, which do not depend on the batch."),
        Option("yes-optimizer", "Yes: rank 0 alone keeps the moments",
               "In DDP every rank makes the same update by itself, with its own copy of the states. That is why only "
               "gradients have to travel."),
        Option("total", "Yes: together the GPUs have 584 GB",
               "A rank computes with what its own GPU holds. The total helps only when something splits the states."),
        Option("no-rank-0", "No: rank 0 needs room for 8 gradients",
               "It does not fit, but not for that. A ring adds chunk by chunk on the way: no rank ever holds the "
               "gradients of all. What does each hold?"),
    ),
)  # fmt: skip

UNUSED = Choice(
    key="unused", level=2, title="A branch that was not taken",
    prompt="A model has two heads, and each example goes to one of them. In this batch the other ranks have examples "
    "for both heads. **Rank 1** has none for head B, so that its weights get no gradient there. DDP runs with its "
    "defaults. What happens?",
    hints=("A bucket is sent when all its gradients are there.", "Which event would say that head B's are there?"),
    solution="The bucket with head B **never fills on rank 1**, so rank 1 does not call its all-reduce. The other "
    "ranks do, and wait. Rank 1 goes on, and its next forward raises `Expected to have finished reduction in the prior "
    "iteration`; the others are left waiting until the connection is gone, or until their time-out.\n\n"
    "`find_unused_parameters=True` walks the graph after each forward and marks what is missing as ready. It costs "
    "time in every step, so better is a model that uses all its weights: 0 × the output of head B, added to the loss.",
    options=(
        Option("never-full", "Rank 1's bucket never fills, and the other ranks wait for it",
               "Right. DDP counts gradients, and one that never comes keeps its bucket open. Rank 1's next forward "
               "raises.", True),
        Option("zero", "DDP takes zeros for the gradients of head B on rank 1",
               "With find_unused_parameters=True it would. By default nobody tells DDP that this gradient will not "
               "come."),
        Option("skip", "DDP leaves head B out of the all-reduce, on all the ranks",
               "The ranks do not agree on what is missing: that would need communication of its own. Each waits for "
               "its own bucket to fill."),
        Option("local", "The ranks that have a gradient use their own, and drift apart",
               "They would, if each rank went on. But the all-reduce of that bucket cannot end without rank 1."),
        Option("nothing", "Nothing: a gradient that is None is left out by the optimizer",
               "By the optimizer, yes. DDP comes before it, and waits for every gradient that it has registered."),
    ),
)  # fmt: skip

EXERCISES = (WIRE, NO_SYNC, MEAN, COPIES, UNUSED)
