"""Exercises of `zero` on communication: by stage and micro-batch, and by torch's own optimizer."""

from __future__ import annotations

from functools import partial

from scaleout.exercises.engine import Choice, Function, Mistake, Option

_STUB = '''\
def pieces(stage, passes, keep):
    """The communication volume of a step, in units of N.

    stage: 0 (DDP), 1, 2 or 3
    passes: micro-batches per step
    keep: at stage 3, keep gathered weights to the backward
    """
    return ...
'''

_SOLUTION = """\
def pieces(stage, passes, keep):
    if stage < 2:
        return 2                          # accumulated first
    if stage == 2:
        return passes + 1                 # reduced every time
    return passes * (2 if keep else 3)
"""


def _pieces(stage, passes, keep, full=2, second=None, gathers=2, third=None, extra=0):
    """With something wrong: the volume of stages 0 and 1, of stage 2 and 3, and what stage 3 adds after its update."""
    if stage < 2:
        return full
    if stage == 2:
        return passes + 1 if second is None else second
    return (passes * (gathers if keep else 3) if third is None else third) + extra


PIECES = Function(
    key="pieces-sent",
    level=2,
    minutes=6,
    title="Volume by stage",
    prompt="Write `pieces(stage, passes, keep)`: the communication volume of a step in units of N. One reduce-scatter "
    "of all gradients, or one all-gather of all weights, counts 1; an all-reduce counts 2. A step has `passes` "
    "micro-batches, whose gradients are accumulated before one update.\n\n"
    "- A rank never stores more than its stage allows, not even between micro-batches, and communicates as little as "
    "that permits.\n"
    "- At stages 1 and 2 the new weights are gathered after the update.\n"
    "- At stage 3 the weights are gathered in the forward, freed, and gathered again in the backward. With `keep` they "
    "stay from the forward of a micro-batch to its backward, and are freed then.",
    hints=(
        "Which stages may store all gradients until the last micro-batch? They accumulate first and communicate once.",
        "At stage 2 a rank has whole gradients only for a moment. What happens to them at the end of a micro-batch?",
        "At stage 3 nothing whole stays after a micro-batch. Count one micro-batch, and multiply.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "With one micro-batch that is 2, 2, 2 and 3. **With many, stage 2 is no longer like stage 1:** with 32, stage 2 "
    "communicates 33 and stage 1 communicates 2. *Why Stage2 need communicate gradients every steps?* asks DeepSpeed's "
    "issue 2252. The answer there: because a rank keeps only its part of the sum and frees the rest. For the same "
    "reason `no_sync` is refused. A program may store whole gradients and communicate once, but then it uses as much "
    "memory as stage 1. A pipeline has many micro-batches per step: DeepSeek-V3, on 16 pipeline stages, was trained at "
    "stage 1 (arXiv 2412.19437, section 3.2).",
    function="pieces",
    stub=_STUB,
    reference=_pieces,
    cases=(
        (0, 1, False),
        (0, 8, False),
        (0, 3, False),
        (1, 1, False),
        (1, 4, False),
        (1, 32, False),
        (1, 6, False),
        (2, 1, False),
        (2, 4, False),
        (2, 32, False),
        (2, 7, False),
        (3, 1, False),
        (3, 1, True),
        (3, 8, False),
        (3, 8, True),
        (3, 5, False),
        (3, 5, True),
        (3, 3, True),
    ),
    mistakes=(
        Mistake(
            "stage-2-waits",
            partial(_pieces, second=2),
            "Your stage 2 reduces once for all micro-batches. To wait for the last one it would have to store whole "
            "gradients, and that is stage 1.",
        ),
        Mistake(
            "stage-1-hurries",
            lambda stage, passes, keep: _pieces(stage, passes, keep, full=passes + 1 if stage else 2),
            "Your stage 1 reduces in every micro-batch. It stores whole gradients, and can accumulate them first.",
        ),
        Mistake(
            "every-pass",
            lambda stage, passes, keep: _pieces(stage, passes, keep, full=passes + 1 if stage else 2 * passes),
            "Your stages 0 and 1 reduce in every micro-batch. They store whole gradients: accumulate, then communicate "
            "once.",
        ),
        Mistake(
            "once",
            lambda stage, passes, keep: _pieces(stage, 1, keep),
            "You count one micro-batch. A rank must communicate in every micro-batch what it may not store between "
            "them.",
        ),
        Mistake(
            "all-times-passes",
            lambda stage, passes, keep: passes * _pieces(stage, 1, keep),
            "You multiplied everything by the micro-batches. Whole gradients can wait for the last one, and new "
            "weights are gathered once, after the update.",
        ),
        Mistake(
            "all-reduced",
            lambda stage, passes, keep: _pieces(stage, passes, keep, full=2 + (stage == 1), second=2 * passes + 1),
            "You all-reduce the gradients at stages 1 and 2. A rank needs only the sums of its own part: a "
            "reduce-scatter, which counts 1. (DeepSpeed does all-reduce there by default.)",
        ),
        Mistake(
            "stage-3-waits",
            lambda stage, passes, keep: _pieces(stage, passes, keep, third=passes * (1 if keep else 2) + 1),
            "At stage 3 you reduce the gradients once, after the last micro-batch. A rank would have to store whole "
            "gradients until then.",
        ),
        Mistake(
            "kept-all-step",
            lambda stage, passes, keep: _pieces(stage, passes, keep, third=passes + 1 if keep else None),
            "With keep you gather the weights once per step. They are freed in the backward, and the next micro-batch "
            "gathers them again.",
        ),
        Mistake(
            "kept-not-seen",
            partial(_pieces, gathers=3),
            "Your function does not use keep. Weights that stay need no second all-gather.",
        ),
        Mistake(
            "gathered-after",
            partial(_pieces, extra=1),
            "At stage 3 you gather the new weights after the update. No rank needs them whole before the next "
            "forward, which gathers them anyway.",
        ),
    ),
    right="2, 2, 2, 3 holds for one micro-batch. What a rank may not store has to be communicated in every one.",
)

WRAPPED = Choice(
    key="wrapped-optimizer",
    level=2,
    minutes=3,
    title="Stage 1 around DDP",
    prompt="A job on 8 GPUs trains in fp32 with DDP and AdamW. Somebody changes one line:\n\n"
    "```\noptimizer = ZeroRedundancyOptimizer(\n    model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-4)\n"
    "```\n\nDDP stays, and all-reduces the gradients in the backward. After its update each rank **broadcasts** the "
    "weights that it owns. What does a rank store now, and what is its communication volume per step? DDP alone "
    "has 2N.",
    hints=(
        "Which rank still gets all the gradients, and does it need them?",
        "What is communicated now that was not before?",
    ),
    solution="**About an eighth of AdamW's state, whole gradients and weights, and 3N.** DDP's all-reduce gives each "
    "rank all the sums, and a rank reads an eighth of them: half of the all-reduce is wasted. The broadcasts of the "
    "new weights are the third N. A reduce-scatter instead of the all-reduce would make it 2N again. torch's issue "
    "69591 asks for that: *Make DDP + Zero have the same communication volume as regular DDP*.\n\nIt is *about* an "
    "eighth, because a rank owns whole tensors, assigned by size. An embedding that is a third of the model has one "
    "owner.",
    options=(
        Option(
            "state-3",
            "An eighth of the state, and a volume of 3N",
            "Right: 2N for DDP, and N for the broadcasts of the new weights.",
            True,
        ),
        Option(
            "state-2",
            "An eighth of the state, and a volume of 2N",
            "That is stage 1 with a reduce-scatter. DDP all-reduces, which is already 2N. And the new weights?",
        ),
        Option(
            "gradients-2",
            "An eighth of state and gradients, and 2N",
            "DDP leaves whole gradients on every rank, in its buckets. And after its 2N the new weights are broadcast.",
        ),
        Option(
            "gradients-3",
            "An eighth of state and gradients, and 3N",
            "The volume is right. But DDP leaves whole gradients on every rank, and an optimizer cannot change that.",
        ),
        Option(
            "all-2",
            "The whole state as before, and a volume of 2N",
            "Each rank updates only the tensors that it owns, and stores moments for those alone.",
        ),
        Option(
            "state-9",
            "An eighth of the state, and a volume of 9N",
            "Eight ranks broadcast, but each only the weights that it owns: together, every weight once.",
        ),
    ),
)

EXERCISES = (PIECES, WRAPPED)
