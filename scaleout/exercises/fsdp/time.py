"""Exercises of `fsdp` on time against memory: prefetch and its depth, offload, and which of them when."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip
from scaleout.exercises.fsdp.sizes import (
    BLOCK,
    BLOCKS,
    NAME,
    OTHER_NAME,
    OTHER_PARAMETERS,
    OTHER_RANKS,
    PARAMETERS,
    gathered_bytes,
)
from scaleout.spec.devices import GB
from scaleout.spec.hardware import link
from scaleout.timing.fsdp import Piece, fsdp_step

_TIME = ("s", "ms", "µs")
_MS = 1e-3
_GATHER, _COMPUTE = 5, 7  # milliseconds of one unit


def _forward(prefetch: int, gather: float = _GATHER) -> float:
    """Seconds of a forward of equal units, none of which is whole at its start."""
    units = [Piece(f"blocks.{i}", _COMPUTE * _MS, 0.0, 1.0) for i in range(BLOCKS)]
    step = fsdp_step(units, lambda size: size * gather * _MS, lambda size: 0.0, reshard=False, prefetch=prefetch)
    return step.seconds


_HIDDEN = _forward(1)

FORWARD = Number(
    key="prefetch-forward",
    level=2,
    title="Gather while you compute",
    prompt=f"A forward runs through **{BLOCKS}** units. Each all-gather takes **{_GATHER} ms**, each unit computes "
    f"for **{_COMPUTE} ms**. With **one** unit prefetched, the next unit's gather runs while this one computes, and "
    "neither slows the other down. How long is the forward?",
    hints=("The first gather has nothing to hide behind.", "After it, which is longer: a gather or a unit's compute?"),
    solution=f"{_GATHER} + {BLOCKS} × {_COMPUTE} = **{_HIDDEN * 1e3:.0f} ms**. Without prefetch each unit waits for "
    f"its gather: {BLOCKS} × ({_GATHER} + {_COMPUTE}) = {_forward(0) * 1e3:.0f} ms. The price is one more gathered "
    "unit in memory.",
    value=_HIDDEN,
    unit="ms",
    units=_TIME,
    dimension="seconds",
    tolerance=0.005,
    slips=(
        Slip(
            "no-overlap",
            _forward(0),
            "You added every gather to its compute. The next unit's gather runs while this one computes.",
        ),
        Slip(
            "all-hidden",
            BLOCKS * _COMPUTE * _MS,
            "That is the compute alone: all gathers are hidden. The first has no compute before it.",
        ),
        Slip(
            "communication",
            BLOCKS * _GATHER * _MS,
            "Those are the gathers alone. The compute is longer, and it is what takes the time here.",
        ),
        Slip(
            "communication-first",
            (BLOCKS * _GATHER + _COMPUTE) * _MS,
            "Those are the gathers one after the other and one compute. That is right when a gather is longer than "
            "a unit's compute. Here it is shorter.",
        ),
        Slip(
            "half",
            (_forward(0) + BLOCKS * _COMPUTE * _MS) / 2,
            "That hides half of the gathers. With one unit ahead, which of them has nothing to hide behind?",
        ),
    ),
    right="One unit ahead hides everything but the first gather, as long as a gather is shorter than a compute.",
)

_SLOW = 12
_DEEP = 4

DEPTH = Choice(
    key="prefetch-depth",
    level=2,
    title="Four units ahead",
    prompt=f"On a slower link each all-gather takes **{_SLOW} ms**, one after the other, and a unit computes for "
    f"{_COMPUTE} ms. With one unit prefetched the forward takes {_forward(1, _SLOW) * 1e3:.0f} ms. Somebody sets "
    f"the depth to **{_DEEP}** units. All units are equal. What happens?",
    hints=(
        "For how much of the forward is the link busy, with one unit prefetched?",
        "What is in memory while the link is busy?",
    ),
    solution=f"**The forward still takes {_forward(_DEEP, _SLOW) * 1e3:.0f} ms.** The link was busy all the time "
    f"already: {BLOCKS} × {_SLOW} ms and the last compute. What can change is the memory: whatever is asked for ahead "
    f"is allocated, for {NAME} {gathered_bytes(BLOCK, 'bf16') / GB:.2f} GB a block in bf16. A depth above 1 helps "
    "where units are *unequal*, so that a short compute stands before a long gather, or where the CPU is late in "
    "asking. When the link is the limit, send less: keep units after the forward, or shard inside the node only. Or do "
    "more compute a step.",
    options=(
        Option(
            "memory-only",
            "It takes as long as before, and may need more memory",
            "Right: the link is busy all the time with a depth of 1. Asking earlier does not make it faster.",
            True,
        ),
        Option(
            "hidden",
            f"All gathers are hidden now: it takes {BLOCKS * _COMPUTE + _SLOW} ms",
            "They would be if four gathers could share the link without slowing each other down. They share its "
            "bytes per second.",
        ),
        Option(
            "fewer",
            "There are fewer all-gathers, because four units come in one",
            "Prefetch changes when a gather starts. How many there are is decided by the wrapping.",
        ),
        Option(
            "slower",
            "It gets slower, because the gathers compete with the compute",
            "They may slow the compute down a little, but as many bytes travel as before. What surely can grow is "
            "the memory.",
        ),
        Option(
            "backward",
            "The forward takes as long, and the backward gets faster",
            "The same holds there: 12 ms of gather for each unit, one after the other.",
        ),
    ),
)

_RANKS, _PCIE = OTHER_RANKS, link("pcie4").one_way_bytes_per_s
_SHARD = OTHER_PARAMETERS * 4 / _RANKS
_COPIES = 2 * _SHARD / _PCIE

OFFLOAD = Number(
    key="offload-seconds",
    level=2,
    minutes=4,
    title="Over PCIe in every step",
    prompt=f"{OTHER_NAME} ({OTHER_PARAMETERS / 1e9:.2f} billion parameters) trains on **{_RANKS}** GPUs with CPU "
    "offload: the fp32 shards live in the host's memory. Before every all-gather a rank copies its shard of that unit "
    f"over PCIe 4 ({_PCIE / GB:.1f} GB/s one way), in fp32. Every unit (for simplicity the root too) is gathered in "
    "the forward and again in the backward. How long do the copies **to the GPU** take in a step, at the full rate?",
    hints=(
        f"A rank's shard of the model has {OTHER_PARAMETERS / 1e9:.2f} × 10^9 × 4 / {_RANKS} bytes.",
        "How often does it travel to the GPU in a step?",
    ),
    solution=f"2 × {_SHARD / GB:.2f} GB / {_PCIE / GB:.1f} GB/s = **{_COPIES * 1e3:.0f} ms**. The gradient shards go "
    "the other way, once, at the same time. Then AdamW runs on the host, over the host's slower memory, and nothing "
    "hides it. A step of a second may bear that; a step of 200 ms may not. A larger batch hides them better; "
    "more accumulation does not, since every pass gathers anew and copies anew.",
    value=_COPIES,
    unit="ms",
    units=_TIME,
    dimension="seconds",
    slips=(
        Slip(
            "half",
            _COPIES / 2,
            "Either you copied the shards once, and each unit is gathered again in the backward; or you took formats "
            "of 2 bytes, and any cast comes after the copy.",
        ),
        Slip(
            "undivided",
            _RANKS * _COPIES,
            "You copied the whole model. Each rank copies its shard, and the all-gather brings the rest from the "
            "other GPUs.",
        ),
        Slip(
            "gradients-too",
            1.5 * _COPIES,
            "Those are three copies of the shards. Two go to the GPU; that of the gradients goes the other way, to "
            "the host.",
        ),
        Slip(
            "optimizer",
            2 * _COPIES,
            "That is 16 bytes for each parameter, or four copies. AdamW runs on the host, so its moments never "
            "travel, and gradients go the other way.",
        ),
        Slip(
            "undivided-once",
            _RANKS * _COPIES / 2,
            "That is the whole model, once. Each rank copies its own shard, as often as the unit is gathered.",
        ),
    ),
    right="In every pass, whatever the batch.",
)

WHO_OFFLOADS = Choice(
    key="offload-when",
    level=2,
    title="Who should offload?",
    prompt="Five jobs are out of memory or slow. For which one is CPU offload of shards and optimizer the right lever?",
    hints=("What does offload take off the GPU: states, or activations?", "What does it cost, and who can hide it?"),
    solution="**The fine-tuning job.** Its states do not fit, no GPU can be added, and a step is long enough to carry "
    "the copies. Offload moves what depends on the *model* off the GPU. What depends on the *batch*, the activations, "
    "stays, and is a matter of checkpointing or a smaller micro-batch.",
    options=(
        Option(
            "states",
            "Fine-tuning on 2 GPUs of 48 GB: 60 GB of sharded states a rank, steps of 20 s",
            "Right: states are what does not fit, and 20 s hide the copies.",
            True,
        ),
        Option(
            "activations",
            "Long sequences on 8 GPUs: states need 10 GB per rank, activations 90 GB",
            "Offloading shards would free 10 GB at most. Activations are what is too large: checkpoint them, or "
            "take a smaller micro-batch.",
        ),
        Option(
            "network",
            "8 nodes whose GPUs wait for all-gathers over Ethernet, with 30 GB free",
            "Nothing is short of memory. Offload puts a copy over PCIe before each of those gathers.",
        ),
        Option(
            "ddp",
            "A model that fits three times over, trained with DDP, whose all-reduce is exposed",
            "Here memory is plenty and the link is scarce. Offload buys what this job has.",
        ),
        Option(
            "more-ranks",
            "A job whose states need 90 GB per rank on 8 GPUs with 73 usable, with 24 more GPUs idle",
            "Shard over the 32 GPUs: 22.5 GB per rank, and more compute as well. Offload is for when there are no "
            "more GPUs.",
        ),
    ),
)

_PLAN_STUB = '''\
def plan(sizes, depth, cap):
    """Which units are whole while each unit computes.

    In a forward that frees a unit after use. Returns a list with
    one list of unit numbers for each unit, in rising order.

    sizes: bytes of each unit, whole, in the order of the forward
    """
    return ...
'''

_PLAN_SOLUTION = """\
def plan(sizes, depth, cap):
    whole, out = [], []
    for unit in range(len(sizes)):
        if unit not in whole:
            whole.append(unit)                        # nobody prefetched it
        for ahead in range(unit + 1, min(unit + depth + 1, len(sizes))):
            if ahead in whole:
                continue
            if sum(sizes[i] for i in whole) + sizes[ahead] > cap:
                break                                 # gathers go in order
            whole.append(ahead)
        out.append(list(whole))
        whole.remove(unit)                            # computed: free it
    return out
"""


def _plan(
    sizes,
    depth,
    cap,
    *,
    full=lambda gathered, size, cap: gathered + size > cap,
    skip=False,
    keep=False,
    shortfall=0,
    start=True,
    new=False,
):
    """The plan; with another rule of what is full, units passed over or kept, or another depth."""
    gathered, plan = [], []
    for unit in range(len(sizes)):
        if unit not in gathered:
            gathered.append(unit)
        first = max(gathered) if new else unit
        for later in range(first + 1, min(first + depth + 1 - shortfall, len(sizes))):
            if later in gathered:
                continue
            counted = gathered if start else [i for i in gathered if i != unit]
            if full(sum(sizes[i] for i in counted), sizes[later], cap):
                if skip:
                    continue
                break
            gathered.append(later)
        plan.append(sorted(gathered))
        if not keep:
            gathered.remove(unit)
    return plan


PLAN = Function(
    key="prefetch-plan",
    level=3,
    minutes=12,
    title="Prefetch under a cap",
    lists=True,
    prompt="Write `plan(sizes, depth, cap)`: for each unit of a forward, the units that are **whole while it "
    "computes**, as a list of lists of unit numbers, counted from 0.\n\n"
    "- The unit that computes is whole, whatever its size. If nobody prefetched it, it is gathered first.\n"
    "- When a unit starts to compute, the `depth` units that come right after it are prefetched, in order. One of "
    "them that is whole already stays so, and counts as one of the `depth`: no unit further ahead takes its place.\n"
    "- A unit is prefetched only if all whole units and it have **at most** `cap` bytes. Gathers go in order: when one "
    "does not fit, the ones after it wait too.\n"
    "- After a unit has computed, it is freed.",
    hints=(
        "Keep a list of the units that are whole. It changes in three places: gather, prefetch, free.",
        "Add up the whole units, the one that computes too, before each prefetch.",
        "`break` where the next one does not fit: `continue` would pass it over.",
    ),
    solution="```python\n"
    f"{_PLAN_SOLUTION}```\n\n"
    "The largest sum of a list of yours is the gathered peak. Where the cap stops a prefetch, the next unit waits for "
    "its gather: that is memory paid for with time.",
    function="plan",
    stub=_PLAN_STUB,
    reference=_plan,
    cases=(
        ([10, 10, 10, 10], 1, 100),
        ([10, 10, 10, 10, 10], 2, 20),
        ([4, 4, 9, 2, 2, 2], 3, 12),
        ([30, 5, 5, 5, 5], 2, 20),
        ([6, 7, 8], 0, 100),
        ([5, 30, 5, 5], 2, 20),
        ([1, 2, 3, 4, 5], 4, 10),
        ([10, 10, 10, 10, 10, 10], 2, 100),
        ([3, 1, 4, 1, 5, 9, 2, 6], 3, 40),
        ([7, 3, 9, 1, 8, 2, 2], 3, 13),
        ([5, 6, 1, 7, 3, 2], 2, 12),
        ([4, 8, 1, 6, 3, 5, 2], 2, 30),
        ([7, 4, 6], 7, 13),
        ([], 2, 10),
    ),
    mistakes=(
        Mistake(
            "no-cap",
            lambda sizes, depth, cap: _plan(sizes, depth, float("inf")),
            "Your plan does not look at the cap: it would run out of memory.",
        ),
        Mistake(
            "passed-over",
            lambda sizes, depth, cap: _plan(sizes, depth, cap, skip=True),
            "You passed over a unit that does not fit and prefetched a later one. Gathers go in order: stop.",
        ),
        Mistake(
            "never-freed",
            lambda sizes, depth, cap: _plan(sizes, depth, cap, keep=True),
            "Your units stay whole after they have computed. That is reshard_after_forward=False.",
        ),
        Mistake(
            "strictly-below",
            lambda sizes, depth, cap: _plan(sizes, depth, cap, full=lambda total, size, cap: total + size >= cap),
            "You stop when the sum reaches the cap. Exactly the cap still fits.",
        ),
        Mistake(
            "depth-with-itself",
            lambda sizes, depth, cap: _plan(sizes, depth, cap, shortfall=1),
            "You counted the unit that computes as one of the depth. It is so many units after it.",
        ),
        Mistake(
            "without-the-computing",
            lambda sizes, depth, cap: _plan(sizes, depth, cap, start=False),
            "You left the unit that computes out of the sum. It is whole, so it counts.",
        ),
        Mistake(
            "only-its-size",
            lambda sizes, depth, cap: _plan(sizes, depth, cap, full=lambda total, size, cap: size > cap),
            "You compared each unit alone with the cap. All whole units together have to fit.",
        ),
        Mistake(
            "further-ahead",
            lambda sizes, depth, cap: _plan(sizes, depth, cap, new=True),
            "You prefetch depth more units at every start, so that you run further and further ahead. What is "
            "whole already counts as one of them.",
        ),
        Mistake(
            "no-prefetch",
            lambda sizes, depth, cap: [[unit] for unit in range(len(sizes))],
            "Only the computing unit is whole in your plan: nothing is prefetched.",
        ),
    ),
    right="Its largest sum is the gathered peak of the forward.",
)

HEALTHY = Choice(
    key="which-lever",
    level=3,
    minutes=4,
    title="It fits. Now make it fast",
    prompt=f"{NAME} trains on 2 nodes of 8 GPUs with 73 usable GB, sharded over all 16, each block a unit, everything "
    "freed after its forward. It peaks at **38 GB**. Inside a node NVLink is idle half of the time; the network "
    "between the nodes is busy all the time, and **40%** of the step is exposed communication. Batch and sequence are "
    "given. What do you change first?",
    hints=(
        "What is scarce, and what is there to spend?",
        "Which collectives pass between the nodes, and which have to?",
    ),
    solution="**Hybrid sharding**: 8 ranks share a copy, two copies. Gathers and reduce-scatters stay on NVLink; "
    f"between the nodes only the gradient shards are all-reduced. It costs the difference of the shards: 16 bytes × "
    f"{PARAMETERS / 1e9:.2f} × 10^9 × (1/8 − 1/16) = {16 * PARAMETERS / 16 / GB:.0f} GB per rank, and tensors "
    "may fill 35 more. *Merely fits* was one question. *Trains with healthy throughput* is another one, and it is "
    "asked of the link.",
    options=(
        Option(
            "hybrid",
            "Shard inside each node, copy across the two (hybrid sharding)",
            "Right: the gathers leave the network, and memory, of which there is plenty, pays for it.",
            True,
        ),
        Option(
            "layer",
            "Wrap every matrix by itself, so that gathers are spread more evenly",
            "The same bytes in seven times as many messages. The network is full of bytes, not short of messages.",
        ),
        Option(
            "keep-all",
            "Keep all blocks after the forward (reshard_after_forward=False)",
            f"A good second: it saves one of the two gathers, for {BLOCKS * gathered_bytes(BLOCK, 'bf16') / GB:.0f} "
            "GB. One gather and the reduce-scatter still pass through the network.",
        ),
        Option(
            "offload",
            "Offload the optimizer, to make room for more prefetch",
            "There is room. And the network is busy all the time: asking earlier does not make it faster.",
        ),
        Option(
            "checkpointing",
            "Checkpoint the activations of every block, in full",
            "That frees memory, which is not scarce, and adds compute. It would hide more communication, by making "
            "the step longer.",
        ),
    ),
)

EXERCISES = (FORWARD, DEPTH, OFFLOAD, WHO_OFFLOADS, PLAN, HEALTHY)
