"""Exercises of `fsdp` on time against memory: prefetch and its depth, CPU offload, and which of them to use when."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.exercises.fsdp.sizes import (
    BLOCK,
    BLOCKS,
    GIB,
    NAME,
    OTHER_NAME,
    OTHER_PARAMETERS,
    OTHER_RANKS,
    PARAMETERS,
    gathered_bytes,
)
from scaleout.spec.devices import GB
from scaleout.spec.hardware import link
from scaleout.timing.fsdp import fsdp_step
from scaleout.timing.fsdp_plan import Piece

_TIME = ("s", "ms", "µs")
_MS = 1e-3
_GATHER, _COMPUTE = 5, 7  # milliseconds of one unit


def _forward(prefetch: int, gather: float = _GATHER) -> float:
    """Seconds of a forward of equal units, each of which is resharded when it starts."""
    units = [Piece(f"blocks.{i}", _COMPUTE * _MS, 0.0, 1.0) for i in range(BLOCKS)]
    step = fsdp_step(units, lambda size: size * gather * _MS, lambda size: 0.0, reshard=False, prefetch=prefetch)
    return step.seconds


_HIDDEN = _forward(1)

FORWARD = Number(
    key="prefetch-forward",
    level=2,
    title="Gather while you compute",
    prompt=f"A forward runs through **{BLOCKS}** units. Each all-gather takes **{_GATHER} ms**, and each unit computes "
    f"for **{_COMPUTE} ms**. **One** unit is prefetched: its all-gather runs while the unit before it computes, and "
    "neither slows the other down. How long is the forward?",
    hints=(
        "The first all-gather has no computation to hide behind.",
        "After it, which takes longer: an all-gather or a unit's computation?",
    ),
    solution=f"{_GATHER} + {BLOCKS} × {_COMPUTE} = **{_HIDDEN * 1e3:.0f} ms**. Without prefetch each unit first waits "
    f"for its own all-gather: {BLOCKS} × ({_GATHER} + {_COMPUTE}) = {_forward(0) * 1e3:.0f} ms. The price of prefetch "
    "is one more unsharded unit in memory.",
    value=_HIDDEN,
    unit="ms",
    units=_TIME,
    dimension="seconds",
    tolerance=0.005,
    slips=(
        Slip(
            "no-overlap",
            _forward(0),
            "You added every all-gather to its unit's computation. The next unit's all-gather runs while this one "
            "computes.",
        ),
        Slip(
            "all-hidden",
            BLOCKS * _COMPUTE * _MS,
            "That is the computation alone, as if every all-gather were hidden. No computation comes before the first "
            "one.",
        ),
        Slip(
            "communication",
            BLOCKS * _GATHER * _MS,
            "Those are the all-gathers alone. The computation takes longer, so it decides the time here.",
        ),
        Slip(
            "communication-first",
            (BLOCKS * _GATHER + _COMPUTE) * _MS,
            "Those are the all-gathers one after the other, and one computation. That is right where an all-gather "
            "takes longer than a unit's computation. Here it is shorter.",
        ),
        Slip(
            "half",
            (_forward(0) + BLOCKS * _COMPUTE * _MS) / 2,
            "That hides half of the all-gathers. With one unit prefetched, which of them has nothing to hide behind?",
        ),
    ),
    right="Prefetching one unit hides every all-gather but the first, as long as an all-gather is shorter than a "
    "unit's computation.",
)

_SLOW = 12
_DEEP = 4

DEPTH = Choice(
    key="prefetch-depth",
    level=2,
    title="Four units ahead",
    prompt=f"On a slower link each all-gather takes **{_SLOW} ms**, one after the other, and a unit computes for "
    f"{_COMPUTE} ms. With one unit prefetched, the forward takes {_forward(1, _SLOW) * 1e3:.0f} ms. Somebody "
    f"prefetches **{_DEEP}** units instead. All units are equal. What happens?",
    hints=(
        "For how much of the forward is the link busy when one unit is prefetched?",
        "What is in memory while the link is busy?",
    ),
    solution=f"**The forward still takes {_forward(_DEEP, _SLOW) * 1e3:.0f} ms.** The link was already busy all the "
    f"time: {BLOCKS} × {_SLOW} ms, and then the last computation. Only memory can change, because every prefetched "
    f"unit is allocated: for {NAME}, {gathered_bytes(BLOCK, 'bf16') / GIB:.2f} GiB per block in bf16. Prefetching more "
    "than one unit helps where units are *unequal*, so that a short computation comes before a long all-gather, or "
    "where the CPU issues the all-gathers late. When the link is the limit, send less: do not reshard after forward, "
    "or shard within the node only. Or compute more per step.",
    options=(
        Option(
            "memory-only",
            "It takes as long as before, and may need more memory",
            "Right: the link is already busy all the time. An all-gather that is issued earlier is not faster.",
            True,
        ),
        Option(
            "hidden",
            f"All gathers are hidden now: it takes {BLOCKS * _COMPUTE + _SLOW} ms",
            "That would need four all-gathers at once that do not slow each other down. They share the link's bytes "
            "per second.",
        ),
        Option(
            "fewer",
            "There are fewer all-gathers, because four units come in one",
            "Prefetch changes when an all-gather starts. The wrapping decides how many there are.",
        ),
        Option(
            "slower",
            "It gets slower, because the gathers compete with the compute",
            "They may slow the computation a little, but as many bytes are sent as before. The clear risk is memory.",
        ),
        Option(
            "backward",
            "The forward takes as long, and the backward gets faster",
            "The same holds in the backward: 12 ms of all-gather per unit, one after the other.",
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
    "offload: the fp32 shards are in CPU memory. Before every all-gather, a rank copies its shard of that unit to the "
    f"GPU over PCIe 4 ({_PCIE / GB:.1f} GB/s one way), in fp32. Every unit (for simplicity the root too) is unsharded "
    "for the forward and again for the backward. How long do the copies **to the GPU** take per step?",
    hints=(
        f"A rank's shard of the model has {OTHER_PARAMETERS / 1e9:.2f} × 10^9 × 4 / {_RANKS} bytes.",
        "How often is it copied to the GPU per step?",
    ),
    solution=f"2 × {_SHARD / GB:.2f} GB / {_PCIE / GB:.1f} GB/s = **{_COPIES * 1e3:.0f} ms**. The gradient shards go "
    "the other way, once, at the same time. Then AdamW runs on the CPU, at the bandwidth of CPU memory, and nothing "
    "hides it. A step of one second may bear that; a step of 200 ms may not. A larger batch hides the copies better. "
    "More gradient accumulation does not, because every pass unshards and copies again.",
    value=_COPIES,
    unit="ms",
    units=_TIME,
    dimension="seconds",
    slips=(
        Slip(
            "half",
            _COPIES / 2,
            "Either you copied the shards once, though each unit is unsharded again for the backward; or you counted 2 "
            "bytes per parameter, though the cast comes after the copy.",
        ),
        Slip(
            "undivided",
            _RANKS * _COPIES,
            "You copied the whole model. Each rank copies only its shard, and the all-gather brings the rest from the "
            "other GPUs.",
        ),
        Slip(
            "gradients-too",
            1.5 * _COPIES,
            "Those are three copies of the shards. Two go to the GPU; the copy of the gradients goes the other way.",
        ),
        Slip(
            "optimizer",
            2 * _COPIES,
            "That is 16 bytes per parameter, or four copies. AdamW runs on the CPU, so its moments are never copied, "
            "and gradients go the other way.",
        ),
        Slip(
            "undivided-once",
            _RANKS * _COPIES / 2,
            "That is the whole model, once. Each rank copies its own shard, as often as the unit is unsharded.",
        ),
    ),
    right="This is paid in every pass, whatever the batch.",
)

WHO_OFFLOADS = Choice(
    key="offload-when",
    level=2,
    short=True,
    title="Who should offload?",
    prompt="Five jobs run out of memory or are slow; every GPU has 68 usable GiB unless stated. For which one is "
    "**CPU offload** of shards and optimizer the right choice?",
    hints=(
        "What does CPU offload take off the GPU: model states, or activations?",
        "What does it cost, and which job can hide that cost?",
    ),
    solution="**The fine-tuning job.** Its states do not fit, no GPU can be added, and a step is long enough to hide "
    "the copies. CPU offload takes off the GPU the memory that depends on the *model*. Activations depend on the "
    "*batch*, stay on the GPU, and call for checkpointing or a smaller micro-batch.",
    options=(
        Option(
            "states",
            "Fine-tuning on its only 2 GPUs, with 40 usable GiB: 60 GiB of sharded states per rank, steps of 20 s",
            "Right: the states do not fit, and 20 s hide the copies.",
            True,
        ),
        Option(
            "activations",
            "Long sequences on 8 GPUs: sharded states take 10 GiB per rank, and activations take 90 GiB",
            "Offloading the states would free 10 GiB at most. The activations are too large: checkpoint them, or use a "
            "smaller micro-batch.",
        ),
        Option(
            "network",
            "8 nodes whose GPUs wait for all-gathers over Ethernet most of the time, with 30 GiB free on each",
            "Memory is not short. CPU offload would put a copy over PCIe before each of those all-gathers.",
        ),
        Option(
            "ddp",
            "A model that fits three times over, trained with DDP, whose all-reduce is mostly exposed",
            "Here memory is plenty and the link is scarce. CPU offload saves what this job has.",
        ),
        Option(
            "more-ranks",
            "A job whose sharded states take 90 GiB per rank on 8 GPUs, while 24 more GPUs stand idle",
            "Shard over all 32 GPUs: 22.5 GiB per rank, and more compute as well. CPU offload is for jobs that cannot "
            "get more GPUs.",
        ),
    ),
)

HEALTHY = Choice(
    key="which-lever",
    level=3,
    minutes=4,
    title="It fits. Now make it fast",
    prompt=f"{NAME} trains on 2 nodes of 8 GPUs with 68 usable GiB each: sharded over all 16, one unit per block, "
    "every block resharded after forward. It peaks at **35 GiB**. NVLink inside the nodes is mostly idle, "
    "the network between them is always busy, and **40%** of the step is exposed communication. Batch and sequence "
    "length are fixed. What do you change first?",
    hints=(
        "Which resource is scarce, and which do you have to spare?",
        "Which collectives cross the network, and which of them have to?",
    ),
    solution="**Hybrid sharding**: shard over the 8 GPUs of a node, and replicate across the two nodes. All-gathers "
    "and reduce-scatters then stay on NVLink, and only the gradient shards are all-reduced between the nodes. It costs "
    f"larger shards: 16 bytes × {PARAMETERS / 1e9:.2f} × 10^9 × (1/8 − 1/16) = {16 * PARAMETERS / 16 / GIB:.1f} GiB "
    "per rank, of 33 that are free. Whether a run fits is one question, and whether it is fast is another: the link "
    "decides the second.",
    options=(
        Option(
            "hybrid",
            "Shard inside each node, replicate across the two (hybrid sharding)",
            "Right: the all-gathers leave the network, and memory, of which there is plenty, pays for it.",
            True,
        ),
        Option(
            "layer",
            "Wrap every matrix by itself, so that gathers are spread more evenly",
            "That sends the same bytes in seven times as many messages. Here the bytes are the limit.",
        ),
        Option(
            "keep-all",
            "Keep all blocks unsharded (reshard_after_forward=False)",
            f"A good second: it saves one of the two all-gathers, for "
            f"{BLOCKS * gathered_bytes(BLOCK, 'bf16') / GIB:.0f} GiB. The other all-gather and the reduce-scatter "
            "still cross the network.",
        ),
        Option(
            "offload",
            "Offload the optimizer to the CPU, to make room for more prefetch",
            "There is room for it already. And the network is always busy: an all-gather issued earlier is not faster.",
        ),
        Option(
            "checkpointing",
            "Checkpoint the activations of every block, in full",
            "That frees memory, which is not scarce, and adds compute. It would hide more communication only by making "
            "the step longer.",
        ),
    ),
)

EXERCISES = (FORWARD, DEPTH, OFFLOAD, WHO_OFFLOADS, HEALTHY)
