"""Exercises of `fsdp` on communication: bytes of a step, gathers counted, the policy's dtypes, hybrid sharding."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip
from scaleout.exercises.fsdp.sizes import NAME, PARAMETERS, fsdp_sent, sent
from scaleout.spec.devices import GB

_BYTES = ("MB", "GB", "TB", "GiB")
_PARAMS, _RANKS = 1e9, 16
_MODEL = _PARAMS * 4
_DDP, _FSDP = sent("all_reduce", _MODEL, _RANKS), fsdp_sent(_PARAMS, _RANKS)
_GATHER_BYTES = sent("all_gather", _MODEL, _RANKS)

WIRE = Number(
    key="fsdp-wire-bytes",
    level=1,
    minutes=2,
    title="What sharding sends",
    prompt=f"FSDP trains a model of **1 billion** parameters on **{_RANKS}** ranks, all in fp32. Every unit is freed "
    "after its forward and gathered again in the backward. How many bytes does **each rank** send in a step, with "
    "rings?",
    hints=(
        "A weight is gathered twice, its gradient reduce-scattered once.",
        "Each of the three sends (W−1)/W of the model's bytes from each rank.",
    ),
    solution=f"3 × 15/16 × 4 GB = **{_FSDP / GB:.2f} GB**, against 2 × 15/16 × 4 GB = {_DDP / GB:.1f} GB with DDP: "
    "half as much again. An all-reduce is a reduce-scatter and an all-gather, so DDP's step has two of these thirds; "
    "the third one is the second gather. Keep the units between forward and backward, and it falls away.\n\nSource: "
    "Rajbhandari et al., *ZeRO*, arXiv 1910.02054, section 7.",
    value=_FSDP,
    unit="GB",
    units=_BYTES,
    slips=(
        Slip(
            "ddp",
            _DDP,
            "That is DDP's all-reduce, or FSDP with the units kept. Here every weight is gathered a second time for "
            "the backward.",
        ),
        Slip("once", _GATHER_BYTES, "That is one all-gather, or the reduce-scatter. A step has more than one of them."),
        Slip(
            "reduce-as-all-reduce",
            4 * _GATHER_BYTES,
            "That is what two gathers and an all-reduce of the gradients send. A rank needs only its shard of the "
            "mean: a reduce-scatter.",
        ),
        Slip(
            "whole-times-three",
            3 * _MODEL,
            "That sends the whole model each time. A rank has its own part of it already.",
        ),
        Slip(
            "shard-once",
            3 * _MODEL / _RANKS,
            "That is one shard each time. In a ring a rank also passes on the shards of others.",
        ),
        Slip(
            "all-ranks",
            _RANKS * _FSDP,
            "That is what all 16 ranks send together. They send at the same time, each over its own link.",
        ),
    ),
    right="1.5 times DDP: that is what the memory costs.",
)

_MIXED, _ALL_BF16 = fsdp_sent(_PARAMS, _RANKS, "bf16", "fp32"), fsdp_sent(_PARAMS, _RANKS, "bf16", "bf16")

POLICY_WIRE = Number(
    key="policy-wire",
    level=2,
    title="The same job with a policy",
    prompt=f"The same job, 1 billion parameters on {_RANKS} ranks and every unit gathered twice, now with "
    "`MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)`. How many bytes does **each rank** "
    "send in a step?",
    hints=("In which dtype do weights travel, in which gradients?", "Bytes for each parameter: 2 + 2 + 4."),
    solution=f"The two gathers send 2 bytes for each parameter, the reduce-scatter 4: 15/16 × (2 + 2 + 4) × 10^9 = "
    f"**{_MIXED / GB:.1f} GB**, as much as DDP sends with fp32 gradients. Reducing in bf16 too would send "
    f"{_ALL_BF16 / GB:.2f} GB, and add {_RANKS} gradients up in a format with 8 bits of precision.",
    value=_MIXED,
    unit="GB",
    units=_BYTES,
    slips=(
        Slip("fp32", _FSDP, "That is all in fp32. With param_dtype bf16 the weights are cast, then gathered."),
        Slip(
            "two-of-three",
            _ALL_BF16,
            "Either you counted the gradients in bf16, and reduce_dtype is fp32, or you counted one gather, and there "
            "are two.",
        ),
        Slip(
            "gather-fp32",
            fsdp_sent(_PARAMS, _RANKS, "fp32", "bf16"),
            "That is 10 bytes for each parameter: either the two dtypes are exchanged, or one of the gathers is in "
            "fp32. Weights travel in param_dtype, gradients in reduce_dtype.",
        ),
        Slip(
            "gradients-alone",
            _GATHER_BYTES,
            "That is the reduce-scatter alone, in fp32, or the gathers alone, in bf16.",
        ),
        Slip(
            "whole",
            8 * _PARAMS,
            "That sends everything each time. Each message leaves out the part that a rank has already.",
        ),
        Slip("all-ranks", _RANKS * _MIXED, "That is for all 16 ranks together. How much is it for each?"),
    ),
    right="The shards stay fp32: only what travels, and what computes, is bf16.",
)

DTYPES = Choice(
    key="policy-dtypes",
    level=2,
    title="Where fp32 stays",
    prompt="A model in fp32 is sharded with `MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
    "reduce_dtype=torch.float32)` and trained with AdamW. What is in **fp32**?",
    hints=(
        "The policy speaks of what is gathered and what is reduced. What is stored it does not change.",
        "The optimizer sees only shards.",
    ),
    solution="**The shards of the weights, the gradients while they are reduced, the gradient shards, and AdamW's "
    "moments.** Gathered weights are bf16, so matrix products and what they save for the backward are too. No master "
    "copy is needed: the shard is one, 4 bytes over W ranks.",
    options=(
        Option(
            "stored-and-reduced",
            "Weight shards, reduction, gradient shards, AdamW's moments",
            "Right: everything that is stored or added up. What is gathered and computed is bf16.",
            True,
        ),
        Option(
            "nothing",
            "Nothing: with param_dtype all the weights are bf16",
            "It makes the gathered ones bf16. The shards keep the dtype that the model had when it was wrapped, and "
            "small updates are not lost in them.",
        ),
        Option(
            "optimizer",
            "AdamW's moments, and nothing of the weights",
            "AdamW makes its moments like the weights that it is given, and these are the fp32 shards. So they are "
            "fp32 because the shards are.",
        ),
        Option(
            "gathered",
            "The gathered weights; their shards are bf16 to save memory",
            "Gathered weights are whole on every rank and dear, shards are small. Which of them to halve?",
        ),
        Option(
            "everything",
            "Everything: matrix products alone are cast, as under autocast",
            "That is autocast: fp32 weights, a cast at each product. The policy gathers bf16, and so halves the "
            "message and the gathered memory.",
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
    title="Count the gathers",
    prompt="Write `all_gathers(units, reshard, passes)`: how many all-gathers a rank takes part in during one step of "
    "FSDP. `units` counts the root, which is kept from its forward to the end of its backward. Each step accumulates "
    "over `passes` passes, and after each backward every unit is freed, the root too. `reshard` is "
    "`reshard_after_forward` of the others:\n\n"
    "- `True`: freed after the forward, gathered again in the backward.\n"
    "- `False`: kept until its backward.\n"
    "- a number, such as 8: kept as a shard of a group of 8 ranks, and gathered in that group in the backward.",
    hints=(
        "In the forward every unit is gathered, the root too.",
        "In the backward: which units are not whole?",
        "A gather in a smaller group is a gather.",
    ),
    solution="```python\n"
    f"{_GATHERS_SOLUTION}```\n\n"
    "`CommDebugMode` of torch counts the same: 9 with a root and four blocks, 5 where they are kept. Such a count is "
    "worth an assertion in your run: it says what was built.",
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
            "You gathered the root twice. It is kept: the backward begins with it.",
        ),
        Mistake(
            "forward-only",
            lambda units, reshard, passes: passes * units,
            "You counted the forward alone. What was freed has to be gathered again for its backward.",
        ),
        Mistake(
            "once-a-step",
            lambda units, reshard, passes: _gathers(units, reshard, 1),
            "You counted one pass. After each backward everything is freed, so every pass gathers anew.",
        ),
        Mistake(
            "number-is-kept",
            lambda units, reshard, passes: _gathers(units, reshard is True, passes),
            "With a number of ranks a unit is kept as a shard of a smaller group, and gathered there once more.",
        ),
        Mistake(
            "ignored-reshard",
            lambda units, reshard, passes: _gathers(units, True, passes),
            "Your function does not look at reshard: a unit that is kept is not gathered again.",
        ),
        Mistake(
            "forgot-root",
            lambda units, reshard, passes: passes * (units - 1) * (1 if reshard is False else 2),
            "The root is missing: it is gathered too, once a pass.",
        ),
        Mistake(
            "reduce-scatters-too",
            lambda units, reshard, passes: _gathers(units, reshard, passes) + passes * units,
            "You counted the reduce-scatters as well: one for each unit and pass.",
        ),
    ),
    right="Each has a start to pay: count them before you wrap finer.",
)

ROOT_KEPT = Choice(
    key="root-kept",
    level=2,
    minutes=2,
    title="Why the root stays",
    prompt="By default `reshard_after_forward` is True for all units **but the root**, which stays whole after the "
    "forward. Why?",
    hints=("Which unit does the forward use last?", "And which one does the backward need first?"),
    solution="**The backward needs it at once.** The root holds what comes last in the forward, the last norm and the "
    "head, and the backward begins there. To free it would save memory for an instant, and pay for it with an "
    "all-gather that nothing hides. That it also holds the token table, which the backward needs last, is the price.",
    options=(
        Option(
            "needed-at-once",
            "The backward begins with it and would gather it again",
            "Right: an all-gather saved that nothing could hide.",
            True,
        ),
        Option(
            "small",
            "It is so small that freeing it would not help at all",
            "Not with a large vocabulary: table and head can be larger than any block. It stays all the same.",
        ),
        Option(
            "optimizer",
            "The optimizer needs the whole weights of the root",
            "The optimizer works on shards, of the root too.",
        ),
        Option(
            "not-sharded",
            "It is not sharded: every rank holds it all the time",
            "It is sharded like every unit, and freed after the backward. Between steps a rank holds its part.",
        ),
        Option(
            "inputs",
            "Its forward is not over until the loss has been computed",
            "Its forward is over when the model returns its output. It could be freed then, and is with "
            "reshard_after_forward=True.",
        ),
    ),
)

_NODES, _GPUS = 4, 8
_WEIGHTS_BYTES = PARAMETERS * 4
# Each of the 8 GPUs of a node all-reduces its shard of the gradients with its 3 counterparts.
_HYBRID = _GPUS * sent("all_reduce", _WEIGHTS_BYTES / _GPUS, _NODES)
# One ring through all ranks, node by node: what one rank of it sends leaves the node.
_FULL = fsdp_sent(PARAMETERS, _NODES * _GPUS)

HYBRID = Number(
    key="hybrid-wire",
    level=3,
    minutes=6,
    title="Shard inside, copy across",
    prompt=f"{NAME} ({_WEIGHTS_BYTES / GB:.1f} GB in fp32) trains on **{_NODES}** nodes of **{_GPUS}** GPUs. With "
    "*hybrid sharding* the 8 GPUs of a node hold one copy between them: gathers and reduce-scatters stay inside the "
    "node. Then each GPU all-reduces its shard of the gradients in a ring with the GPUs of the other nodes that hold "
    "the same shard. All in fp32. How many bytes **leave one node** in a step?",
    hints=(
        "How large is the shard that a GPU all-reduces, and among how many ranks?",
        "Each of the 8 GPUs sends 2(r−1)/r of its shard, with r = 4 nodes.",
    ),
    solution=f"A shard has {_WEIGHTS_BYTES / GB:.1f} / 8 = {_WEIGHTS_BYTES / _GPUS / GB:.2f} GB. Each GPU sends 2 × "
    f"3/4 of it to another node, and there are 8: **{_HYBRID / GB:.1f} GB**. Sharded over all {_NODES * _GPUS} GPUs it "
    f"would be 3 × 31/32 × {_WEIGHTS_BYTES / GB:.2f} = {_FULL / GB:.1f} GB, since every gather then passes through the "
    f"network. The price: a rank holds {_NODES} times the shard.\n\nSource: Zhao et al., *PyTorch FSDP*, arXiv "
    f"2304.11277, section 3.2.2. (The paper writes (W−1)/W, where a ring over r copies sends (r−1)/r: by its formula "
    f"{sent('all_reduce', _WEIGHTS_BYTES, _NODES * _GPUS) / GB:.1f} GB.)",
    value=_HYBRID,
    unit="GB",
    units=_BYTES,
    slips=(
        Slip(
            "full-sharding",
            _FULL,
            "That is what leaves a node when the model is sharded over all 32 GPUs. Here the gathers stay inside.",
        ),
        Slip("one-gpu", _HYBRID / _GPUS, "That is what one GPU sends to other nodes. There are 8 in a node."),
        Slip(
            "whole-gradients",
            _GPUS * _HYBRID,
            "That lets each GPU all-reduce all gradients. After the reduce-scatter inside the node it holds an eighth "
            "of them.",
        ),
        Slip(
            "half",
            _HYBRID / 2,
            "Either you counted one of the two collectives of the all-reduce, or 2 bytes for each gradient.",
        ),
        Slip("all-nodes", _NODES * _HYBRID, "That leaves all four nodes together. How much leaves one?"),
        Slip(
            "factor-two",
            2 * _WEIGHTS_BYTES,
            "That is every shard twice. In each half of a ring a rank does not send all of its message.",
        ),
        Slip(
            "shards-once",
            _WEIGHTS_BYTES,
            "That is each shard once, all gradients together. A rank passes chunks on in both halves of the "
            "all-reduce.",
        ),
        Slip(
            "among-all",
            sent("all_reduce", _WEIGHTS_BYTES, _NODES * _GPUS),
            "That is an all-reduce over 32 ranks, or the paper's formula, which counts them too. A shard is "
            "all-reduced only among the four GPUs that hold the same one.",
        ),
    ),
    right="Half of what full sharding sends, for four times the shard.",
)

EXERCISES = (WIRE, POLICY_WIRE, DTYPES, ALL_GATHERS, ROOT_KEPT, HYBRID)
