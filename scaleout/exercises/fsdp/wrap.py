"""Exercises of `fsdp` on wrapping: what a rank holds, what is gathered at once, and which wrapping to choose."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip
from scaleout.exercises.fsdp.sizes import (
    BLOCK,
    BLOCKS,
    LLAMA,
    NAME,
    OTHER_NAME,
    OTHER_PARAMETERS,
    OTHER_RANKS,
    ROOT,
    SHAPE,
    gathered_bytes,
    memory,
    wrapped,
)
from scaleout.exercises.memory.sizes import states
from scaleout.spec.devices import GB
from scaleout.spec.sharding import Sharding, Unit, units
from scaleout.spec.transformer import PRESETS, total_parameters

_BYTES = ("MB", "GB", "TB", "GiB")
_N, _RANKS, _CALLED = OTHER_PARAMETERS, OTHER_RANKS, OTHER_NAME
_ROOT, _BLOCK = wrapped("block", LLAMA)[:2]
_STATES = states("fp32", "adamw")
_STATE_BYTES = _N * _STATES / _RANKS

STATES = Number(
    key="fsdp-states",
    level=1,
    minutes=2,
    title="One rank's part",
    prompt=f"FSDP trains {_CALLED} ({_N / 1e9:.2f} billion parameters) on **{_RANKS}** GPUs. Weights, gradients "
    "and AdamW's two moments are all in fp32. How many bytes of them does **one rank** keep between two steps, if the "
    "gradients stay until they are cleared?",
    hints=(
        "Bytes for each parameter: weight 4, gradient 4, two moments of 4.",
        "FSDP splits all of them over the ranks.",
    ),
    solution=f"{_N / 1e9:.2f} × 10^9 × {_STATES:.0f} bytes / {_RANKS} = **{_STATE_BYTES / GB:.2f} GB**. What DDP "
    f"would copy {_RANKS} times, {_N * _STATES / GB:.0f} GB, is there once. This is the part that more GPUs make "
    "smaller. What is gathered on top does not shrink with them.",
    value=_STATE_BYTES,
    unit="GB",
    units=_BYTES,
    slips=(
        Slip(
            "undivided",
            _N * _STATES,
            f"That is what a rank of DDP holds. FSDP splits weights, gradients and moments over all {_RANKS}.",
        ),
        Slip(
            "weights-only",
            _N * 4 / _RANKS,
            "That is 4 bytes for each parameter: the weights alone, or weights and gradients in 16 bits. A rank keeps "
            "its part of the moments too.",
        ),
        Slip(
            "forgot-gradients",
            _N * 12 / _RANKS,
            "That is 12 bytes for each parameter: the gradient is missing, or one of AdamW's moments, or two of the "
            "four are in 16 bits.",
        ),
        Slip(
            "forgot-optimizer",
            _N * 8 / _RANKS,
            "That is 8 bytes for each parameter: something is missing, such as AdamW's moments, or you counted "
            "formats of 2 bytes.",
        ),
        Slip(
            "optimizer-only-split",
            _N * (8 + 8 / _RANKS),
            "That is the optimizer's states split, and weights and gradients copied: ZeRO stage 1. FSDP splits all "
            "three.",
        ),
        Slip(
            "gradients-split",
            _N * (4 + 12 / _RANKS),
            "You left the weights whole. Between two uses FSDP keeps only a shard of them too.",
        ),
    ),
    right="Twice the GPUs, half of it.",
)

_PAIR = gathered_bytes(_ROOT, "bf16") + 2 * gathered_bytes(_BLOCK, "bf16")

GATHERED = Number(
    key="gathered-peak",
    level=2,
    minutes=4,
    title="What is whole at once",
    prompt=f"{_CALLED} is wrapped **block by block**: {LLAMA.layers} units of {_BLOCK.parameters / 1e6:.0f} million "
    f"parameters, and a root with the token table, the last norm and the head, {_ROOT.parameters / 1e9:.2f} billion. "
    "The policy gathers in **bf16**. The root is kept, other units are freed after use, and **one** unit is prefetched "
    "while another computes. How many bytes of whole units does a rank hold **while a block in the middle computes**, "
    "the one on its way counted? Leave out the buffer that the computing block came in.",
    hints=(
        "Which units are whole while a block in the middle computes?",
        "The root, the block that computes, and the one that is on its way.",
    ),
    solution=f"The root and two blocks: ({_ROOT.parameters / 1e9:.3f} + 2 × {_BLOCK.parameters / 1e9:.3f}) × 10^9 × 2 "
    f"bytes = **{_PAIR / GB:.2f} GB**. Wrapped as a whole the model would be gathered at once, "
    f"{_N * 2 / GB:.1f} GB. The root alone has {gathered_bytes(_ROOT, 'bf16') / GB:.2f}; in {NAME}, with a vocabulary "
    f"of {SHAPE.vocab:,}, it has {gathered_bytes(ROOT, 'bf16') / GB:.2f}, and table and head are worth units of their "
    "own.\n\nOn a GPU `fully_shard` keeps the buffer of a gather until the next one has been copied out, in the "
    "forward: one block more, which the view of this chapter shows as *buffers*.",
    value=_PAIR,
    unit="GB",
    units=_BYTES,
    slips=(
        Slip(
            "whole-model",
            _N * 2,
            "That is the whole model: what is gathered when it is wrapped as one unit. Wrapped block by block, a "
            "block is freed when it has computed.",
        ),
        Slip(
            "forgot-root",
            2 * gathered_bytes(_BLOCK, "bf16"),
            "The root is missing. It is gathered first and kept, because the backward begins with it.",
        ),
        Slip(
            "no-prefetch",
            gathered_bytes(_ROOT, "bf16") + gathered_bytes(_BLOCK, "bf16"),
            "A block is missing: the all-gather of the prefetched one runs while another computes, so it has its "
            "memory already.",
        ),
        Slip(
            "fp32",
            2 * _PAIR,
            "That is fp32. The stored shards are, but what is gathered has the policy's parameter dtype.",
        ),
        Slip(
            "one-block",
            gathered_bytes(_BLOCK, "bf16"),
            "That is one block. It is not all that is whole, or on its way, while it computes.",
        ),
        Slip(
            "three-blocks",
            _PAIR + gathered_bytes(_BLOCK, "bf16"),
            "That is a block too many: either the one before, which has been freed, or the buffer that the computing "
            "block came in, which was to be left out.",
        ),
    ),
    right="More ranks do not change this number: what is gathered is whole on every rank.",
)

_TALL = PRESETS["llama-2-13b"]
_TALL_PARAMETERS = total_parameters(_TALL)
_BLOCK_PARAMETERS = wrapped("block", _TALL)[-1].parameters
_AT_REDUCE = memory(shape=_TALL, ranks=_RANKS, wrap="model").peak
_WAY_OUT = _AT_REDUCE["whole gradients"] + _AT_REDUCE["buffers"]

WAY_OUT = Number(
    key="whole-model-reduce",
    level=3,
    minutes=5,
    title="The peak at the very end",
    prompt=f"Llama 2 13B ({_TALL_PARAMETERS / 1e9:.2f} billion parameters) is wrapped as **one unit** over {_RANKS} "
    "ranks, gathered in bf16 and reduced in fp32. Its peak is not where everything is gathered. It comes when the "
    "backward is over: the gathered weights have been freed, every weight has its whole gradient in the dtype of the "
    "compute, and all of them are copied into **one** buffer for the reduce-scatter, in the dtype of the reduction. "
    "How many bytes do whole gradients and buffer take together?",
    hints=(
        "In which dtype does the backward give a gradient, if the gathered weight was bf16?",
        "2 bytes for each parameter, and 4 for its copy in the buffer.",
    ),
    solution=f"{_TALL_PARAMETERS / 1e9:.2f} × 10^9 × (2 + 4) bytes = **{_WAY_OUT / GB:.1f} GB**, "
    f"{_WAY_OUT / _TALL_PARAMETERS / 2:.0f} times the gathered weights. Wrapped block by block, a block's gradients go "
    f"as soon as they are there: {_BLOCK_PARAMETERS / 1e6:.0f} million × 6 bytes = {_BLOCK_PARAMETERS * 6 / GB:.1f} GB "
    "on their way at a time. So a unit bounds what is whole on the way in, and on the way out.",
    value=_WAY_OUT,
    unit="GB",
    units=_BYTES,
    slips=(
        Slip(
            "bf16",
            _TALL_PARAMETERS * 2,
            "Those are the whole gradients in bf16. Their copy in the buffer comes on top, in its own dtype.",
        ),
        Slip(
            "buffer",
            _TALL_PARAMETERS * 4,
            "That is 4 bytes for each parameter: one of the two alone, in fp32, or both in bf16. The gradients are "
            "still there while they are copied, and the policy has two dtypes.",
        ),
        Slip(
            "both-fp32",
            _TALL_PARAMETERS * 8,
            "You took fp32 for both, or added the gathered weights. Those have been freed, and the backward gives "
            "gradients in the dtype of the weights that it used.",
        ),
        Slip(
            "shard", _TALL_PARAMETERS * 4 / _RANKS, "That is what is left after the reduce-scatter: one rank's shard."
        ),
        Slip("block", _BLOCK_PARAMETERS * 6, "That is one block. The model is one unit: all its gradients go at once."),
        Slip(
            "divided",
            _TALL_PARAMETERS * 6 / _RANKS,
            "You divided by the ranks. Before the reduce-scatter every rank has its own gradient for every weight.",
        ),
    ),
    right="A unit bounds the memory twice: when it is gathered, and when its gradients leave.",
)

_LAYERS = len(wrapped("layer"))
_MEDIUM = PRESETS["gpt2-medium"]
_FINE, _COARSE = (units(_MEDIUM, Sharding(wrap=wrap)) for wrap in ("layer", "block"))
_SMALL_BLOCK = _COARSE[-1].parameters

LAYER_BY_LAYER = Choice(
    key="which-wrapping",
    level=2,
    title="Every matrix a unit",
    prompt=f"Somebody wraps GPT-2 medium **layer by layer**: every matrix is a unit, {len(_FINE)} with the root. On 8 "
    "nodes of 8 H100 with InfiniBand, each on two sequences of 1,024 tokens, the GPUs wait for a quarter of the time. "
    "The trace shows hundreds of all-gathers of 2 or 8 MB that reach an eighth of the link's rate or less. A rank uses "
    "3 of its 73 usable GB. What do you change first?",
    hints=("Each all-gather pays its latency, whatever its size.", "Tensors may fill 70 GB more. Where do they help?"),
    solution=f"**Wrap block by block.** That is {len(_COARSE)} units instead of {len(_FINE)}: the same bytes in a "
    f"sixth of the messages, each {2 * _SMALL_BLOCK / 1e6:.0f} MB in bf16, and a whole block of compute to hide the "
    "next gather behind. By the book's model (`torch.compile`) the waiting falls from 26% of the step to 2.0%. The "
    "price is a larger unit, and memory is not what is scarce here.\n\nA block is the usual unit: "
    "large enough for the link, small enough for the memory. Go finer only when a unit does not fit; go coarser when "
    "messages are too short.",
    options=(
        Option(
            "block",
            "Make each block a unit",
            "Right: fewer and larger messages, and more compute behind which the next one hides.",
            True,
        ),
        Option(
            "model",
            "Make the model one unit",
            f"One all-gather of {total_parameters(_MEDIUM) * 2 / GB:.1f} GB would use the link well, but nothing "
            "computes until all of it has come: there is no next unit to gather meanwhile. And the whole model is "
            "then in memory at once.",
        ),
        Option(
            "finer",
            "Nothing: finer saves memory",
            "It does, but memory is not scarce here: 70 GB are free. The wrapping pays for them with latency.",
        ),
        Option(
            "offload",
            "Offload shards to the host",
            "That frees memory, which is not scarce, and adds a copy over PCIe before every one of these gathers.",
        ),
        Option(
            "ranks",
            "Use more nodes for the job",
            "The shards get smaller, and so do the messages of each ring step: there is more latency for the same "
            "bytes.",
        ),
    ),
)

_LARGE = wrapped("layer")
_TABLE = max(unit.parameters for unit in _LARGE)


def _middle(**sharding) -> int:
    """Most bytes that a rank holds while a block in the middle is in its backward."""
    return max(
        moment.bytes
        for moment in memory(**sharding).moments
        if (moment.phase, moment.unit) == ("backward", f"blocks.{BLOCKS // 2}")
    )


_SPARED = _middle(wrap="block") - _middle(wrap="size", least_parameters=BLOCK.parameters)

HUGE_ROOT = Choice(
    key="huge-root",
    level=2,
    title="What is left in the root",
    prompt=f"Wrapped block by block, the root of {NAME} keeps {ROOT.parameters / 1e9:.2f} billion parameters: table, "
    f"last norm and head, against {BLOCK.parameters / 1e9:.2f} billion in a block. It stays whole through forward and "
    "backward. A rank is **1.5 GB** short at its peak, in the middle of the blocks. Which wrapping helps, at the "
    "least cost?",
    hints=(
        "What does the root hold while a block computes, and who needs it then?",
        f"The table alone has {_TABLE / 1e6:.0f} million parameters, 2 bytes each in bf16.",
    ),
    solution="**Wrap the token table and the head as units of their own, beside the blocks.** While the blocks "
    f"compute, neither is needed, and {2 * _TABLE * 2 / GB:.1f} GB in bf16 are freed. The "
    "head's gradient goes too: it is reduced at once, and does not wait for the rest of the root. The book's memory "
    f"model finds {_SPARED / GB:.1f} GB less in the middle of the backward. It costs three more all-gathers per step: "
    "the table twice, the head once. The head is used last in the forward and first in the backward, so keep "
    "it in between (`reshard_after_forward=False`).\n\nA wrapping by size does this by itself: every module "
    "above a number of parameters becomes a unit.",
    options=(
        Option(
            "table-and-head",
            "Make table and head units of their own",
            f"Right: {2 * _TABLE * 2 / GB:.1f} GB that nobody needs while the blocks compute.",
            True,
        ),
        Option(
            "layer",
            "Make every matrix a unit of its own",
            f"That frees the root as well, but it cuts {BLOCKS} messages into {_LAYERS - 3}. Two units more are "
            "enough.",
        ),
        Option(
            "keep",
            "Set reshard_after_forward=False on blocks",
            f"Then the blocks stay whole too, {BLOCKS * gathered_bytes(BLOCK, 'bf16') / GB:.0f} GB of them: it saves "
            "all-gathers and costs memory.",
        ),
        Option(
            "ranks",
            "Use more ranks, for a smaller root on each",
            "The shards become smaller. The gathered root does not: it is whole on every rank.",
        ),
        Option(
            "model",
            "Make the whole model one single unit",
            "Then everything is in the root, and whole from the forward's start to the backward's end.",
        ),
    ),
)

BOTTOM_UP = Choice(
    key="bottom-up",
    level=1,
    minutes=2,
    title="The model first",
    prompt="A model has `model.blocks`, a list of blocks, and a head. With torch 2.13 you call `fully_shard(model)` "
    "**first**, and then `fully_shard(block)` for each block. What do you get?",
    hints=(
        "Each call takes the parameters below it that no unit has taken yet.",
        "What is left for a block, when its parent came first?",
    ),
    solution="**The root takes everything, and the blocks come too late.** Each call of `fully_shard` makes one group "
    "of all parameters below that module which are not in a group yet. So the order is bottom-up: blocks first, the "
    "model last, so that it takes what is left. In torch 2.13 the second call raises a TypeError (*value was None "
    "when it should not be*), or with a named mesh a RuntimeError (*Cannot concatenate overlapping meshes*), because "
    "the block's weights are sharded already; neither says *order*.\n\nSource: the docstring of "
    '`torch.distributed.fsdp.fully_shard`: "should be called bottom-up on your model".',
    options=(
        Option(
            "one-unit",
            "The root takes all parameters, and the calls on the blocks fail",
            "Right. Call it bottom-up: the blocks first, the model last.",
            True,
        ),
        Option(
            "same",
            "The same as the other way round: FSDP sorts the modules itself",
            "It does not. Each call takes what no call before it has taken, at once.",
        ),
        Option(
            "nested",
            "Every block is sharded twice, over W × W parts, once by each call",
            "A parameter belongs to one group only. It is not sharded again by the same ranks.",
        ),
        Option(
            "head-only",
            "The root takes only what is directly in the model, such as the head",
            "That is what is left for it when the blocks were first. Called first, it takes everything below it.",
        ),
        Option(
            "no-root",
            "Nothing is gathered until a block runs, because the root is empty",
            "The root is not empty: called first, it has all the parameters.",
        ),
    ),
)

_ROWS_STUB = '''\
def shard_rows(rows, ranks):
    """How many rows of a weight each rank holds: a number a rank.

    rows: size of the weight's first dimension, such as 10
    """
    return ...
'''

_ROWS_SOLUTION = """\
def shard_rows(rows, ranks):
    chunk = -(-rows // ranks)                         # rounded up
    return [max(0, min(chunk, rows - rank * chunk)) for rank in range(ranks)]
"""


def _rows(rows: int, ranks: int) -> list[int]:
    return [Unit("", (("weight", (rows,)),)).own(ranks, rank) for rank in range(ranks)]


SHARD_ROWS = Function(
    key="shard-rows",
    level=2,
    minutes=5,
    title="Ten rows on four ranks",
    lists=True,
    prompt="`fully_shard` splits each weight along its **first** dimension, as `torch.chunk` does: every rank gets "
    "**rows / ranks, rounded up**, as long as there are rows. The last rank that gets any may have fewer, and ranks "
    "after it have none. Write `shard_rows(rows, ranks)`: the list of how many rows each rank holds.",
    hints=(
        "A chunk has ceil(rows / ranks) rows: `-(-rows // ranks)`.",
        "Before rank r there are r full chunks. What is left, at most a chunk and at least 0?",
    ),
    solution="```python\n"
    f"{_ROWS_SOLUTION}```\n\n"
    "Messages of a collective have to be equal, so FSDP pads every shard to a full chunk: 5 rows on 4 ranks are 2, 2, "
    "1 and 0, but 8 travel. With large weights that is nothing. With norms and many ranks it shows.\n\nSource: "
    "`_init_sharded_param` in torch, `torch/distributed/fsdp/_fully_shard/_fsdp_param.py`.",
    function="shard_rows",
    stub=_ROWS_STUB,
    reference=_rows,
    cases=((8, 4), (10, 4), (5, 4), (3, 8), (128_256, 5), (9, 2), (1, 3), (13, 6)),
    mistakes=(
        Mistake(
            "even",
            lambda rows, ranks: [rows // ranks + (rank < rows % ranks) for rank in range(ranks)],
            "You gave the first ranks one row more and all the others one less. torch.chunk gives every rank a "
            "full chunk, as long as there are rows.",
        ),
        Mistake(
            "rest-last",
            lambda rows, ranks: [*[rows // ranks] * (ranks - 1), rows - rows // ranks * (ranks - 1)],
            "You rounded down and gave the rest to the last rank. The chunk is rounded up.",
        ),
        Mistake(
            "rounded-down",
            lambda rows, ranks: [rows // ranks] * ranks,
            "You rounded down: the rows that are left over would belong to nobody.",
        ),
        Mistake(
            "padded",
            lambda rows, ranks: [-(-rows // ranks)] * ranks,
            "That is what each rank sends, padding included. How many real rows does it hold?",
        ),
        Mistake(
            "fraction",
            lambda rows, ranks: [rows / ranks] * ranks,
            "A rank cannot hold a fraction of a row. Round the chunk up.",
        ),
        Mistake(
            "negative",
            lambda rows, ranks: [min(-(-rows // ranks), rows - rank * -(-rows // ranks)) for rank in range(ranks)],
            "A rank after the last row holds 0 rows, not fewer.",
        ),
    ),
    right="Each rank pads its part to a full chunk before it sends it.",
)

EXERCISES = (STATES, GATHERED, WAY_OUT, LAYER_BY_LAYER, HUGE_ROOT, BOTTOM_UP, SHARD_ROWS)
