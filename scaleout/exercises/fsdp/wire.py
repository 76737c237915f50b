"""Exercises of `fsdp` on communication: all-gathers counted, and the dtypes of the mixed precision policy."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Option

DTYPES = Choice(
    key="policy-dtypes",
    level=2,
    title="Where fp32 stays",
    prompt="A model in fp32 is sharded with `MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
    "reduce_dtype=torch.float32)` and trained with AdamW. What is in **fp32**?",
    hints=(
        "The policy decides in which dtype parameters are all-gathered and gradients reduced. It does not change what "
        "is stored.",
        "The optimizer sees only shards.",
    ),
    solution="**The weight shards, the gradients while they are reduced, the gradient shards, and AdamW's moments.** "
    "Unsharded weights are bf16, so the matmuls and the activations they save for the backward are too. No separate "
    "master copy is needed: the fp32 shard is the master copy, 4 bytes per parameter over W ranks.",
    options=(
        Option(
            "stored-and-reduced",
            "Weight shards, reduction, gradient shards, AdamW's moments",
            "Right: everything that is stored or summed. Unsharded weights, and the compute, are bf16.",
            True,
        ),
        Option(
            "nothing",
            "Nothing: with param_dtype all the weights are bf16",
            "Only the unsharded weights, the all-gathered ones, are bf16. The shards keep the dtype that the model had "
            "when it was wrapped, so small updates are not lost.",
        ),
        Option(
            "optimizer",
            "AdamW's moments, and nothing of the weights",
            "AdamW makes its moments in the dtype of the parameters it is given, which are the fp32 shards. The "
            "moments are fp32 because the shards are.",
        ),
        Option(
            "gathered",
            "The gathered weights; their shards are bf16 to save memory",
            "Unsharded weights have full size on every rank and take much memory; shards are small. Which of the two "
            "is worth halving?",
        ),
        Option(
            "everything",
            "Everything: only matmuls run in bf16, as under autocast",
            "That is autocast: the weights stay fp32 and are cast for each matmul. The policy all-gathers in bf16, "
            "which halves both the all-gather and the unsharded memory.",
        ),
    ),
)

_GATHERS_STUB = '''\
def all_gathers(units, reshard, passes):
    """All-gathers in one step.

    units: with the root, such as 33
    reshard: of all units but the root: True, False, or a number
        of ranks
    passes: forward and backward passes of the step (gradient
        accumulation)
    """
    return ...
'''

_GATHERS_SOLUTION = """\
def all_gathers(units, reshard, passes):
    backward = 0 if reshard is False else units - 1   # the root is kept
    return passes * (units + backward)
"""


def _gathers(units: int, reshard: bool | int, passes: int) -> int:
    return passes * (units + (0 if reshard is False else units - 1))


ALL_GATHERS = Function(
    key="all-gathers",
    level=2,
    minutes=5,
    title="Count the all-gathers",
    prompt="Write `all_gathers(units, reshard, passes)`: how many all-gathers does a rank take part in during one "
    "step? `units` includes the root, which stays unsharded until the end of its backward. A step has `passes` forward "
    "and backward passes (gradient accumulation), and after each backward every unit is resharded, the root too. "
    "`reshard` is `reshard_after_forward` of the other units:\n\n"
    "- `True`: resharded after the forward, unsharded again for the backward.\n"
    "- `False`: unsharded until its backward.\n"
    "- a number, such as 8: resharded to a group of 8 ranks, and all-gathered within that group for the backward.",
    hints=(
        "In the forward every unit is all-gathered, the root too.",
        "In the backward: which units are not unsharded yet?",
        "An all-gather in a smaller group is an all-gather.",
    ),
    solution="```python\n"
    f"{_GATHERS_SOLUTION}```\n\n"
    "torch's `CommDebugMode` counts the same: 9 with a root and four blocks, 5 with `reshard_after_forward=False`. "
    "Such a count is worth an assertion in your own run: it shows what was really built.",
    function="all_gathers",
    stub=_GATHERS_STUB,
    reference=_gathers,
    cases=(
        (33, True, 1),
        (33, False, 1),
        (5, True, 1),
        (1, True, 1),
        (33, True, 4),
        (227, False, 8),
        (33, 8, 1),
        (9, 4, 2),
        (12, False, 3),
        (7, 2, 3),
        (26, 4, 1),
        (1, False, 5),
    ),
    mistakes=(
        Mistake(
            "root-twice",
            lambda units, reshard, passes: passes * units * (1 if reshard is False else 2),
            "You all-gathered the root twice. It stays unsharded, because the backward begins with it.",
        ),
        Mistake(
            "forward-only",
            lambda units, reshard, passes: passes * units,
            "You counted the forward only. A unit that was resharded has to be all-gathered again for its backward.",
        ),
        Mistake(
            "once-a-step",
            lambda units, reshard, passes: _gathers(units, reshard, 1),
            "You counted one pass. After each backward every unit is resharded, so every pass all-gathers anew.",
        ),
        Mistake(
            "number-is-kept",
            lambda units, reshard, passes: _gathers(units, reshard is True, passes),
            "With a number of ranks a unit is resharded to a smaller group, and all-gathered there once more.",
        ),
        Mistake(
            "ignored-reshard",
            lambda units, reshard, passes: _gathers(units, True, passes),
            "Your function does not use reshard: with False, a unit is not all-gathered a second time.",
        ),
        Mistake(
            "forgot-root",
            lambda units, reshard, passes: passes * (units - 1) * (1 if reshard is False else 2),
            "The root is missing: it is all-gathered too, once per pass.",
        ),
        Mistake(
            "reduce-scatters-too",
            lambda units, reshard, passes: _gathers(units, reshard, passes) + passes * units,
            "You counted the reduce-scatters as well: there is one per unit and pass.",
        ),
    ),
    right="Each one has a start-up cost: count them before you wrap finer.",
)

EXERCISES = (DTYPES, ALL_GATHERS)
