"""The exercises of `fsdp` that are done in the lab: gather, compute, free and reduce-scatter on two real ranks, and a
unit ahead."""

from __future__ import annotations

from scaleout.exercises.engine import Lab

STUB = '''\
import torch
import torch.distributed as dist


def sharded_step(shards, sizes, forward, backward):
    """The gradient shards of one step.

    A list of flat tensors, one a unit, each as long as its shard.

    shards: this rank's flat shard of each unit, padded, in fp32
    sizes: elements of each unit, without padding
    forward(unit, whole): computes with the whole unit, a flat
        tensor of sizes[unit] elements
    backward(unit, whole): returns this rank's gradient for the
        whole unit, of the same length
    """
    return ...
'''

_SOLUTION = """\
import torch
import torch.distributed as dist


def sharded_step(shards, sizes, forward, backward):
    world = dist.get_world_size()

    def gather(unit):
        parts = [torch.empty_like(shards[unit]) for _ in range(world)]
        dist.all_gather(parts, shards[unit])
        return torch.cat(parts)[:sizes[unit]]             # without the padding

    for unit in range(len(shards)):
        forward(unit, gather(unit))                       # nobody holds it afterwards: freed
    gradients = [None] * len(shards)
    for unit in reversed(range(len(shards))):
        gradient = backward(unit, gather(unit))
        padded = torch.zeros(world * shards[unit].numel())
        padded[:sizes[unit]] = gradient
        gradients[unit] = torch.empty_like(shards[unit])
        dist.reduce_scatter(gradients[unit], list(padded.chunk(world)))
        gradients[unit] /= world                          # the mean over the ranks
    return gradients
"""

SHARDED_STEP = Lab(
    key="sharded-step",
    level=3,
    minutes=20,
    title="Gather, compute, free",
    prompt="Write `sharded_step(shards, sizes, forward, backward)`, one step of FSDP on **two** ranks. A rank keeps of "
    "each unit only its flat shard: the unit's weights laid end to end, padded to a multiple of the ranks, cut in "
    "equal parts. All is in fp32.\n\n"
    "- Forward, unit by unit: gather it whole, call `forward(unit, whole)`, **free it before the next one**.\n"
    "- Backward, from the last unit to the first: gather it again, call `backward(unit, whole)`, which returns this "
    "rank's gradient for the whole unit, and free it. Only the last unit may stay from its forward to its backward.\n"
    "- Reduce-scatter each gradient, so that a rank gets its shard of the **mean** over the ranks, and never the rest."
    "\n\nReturn the gradient shards in the order of the units. Values are checked, and so is memory: which whole units "
    "are still alive when the next one computes, and whether a gradient shard is a tensor of its own. Your collectives "
    "are counted.\n\nSave your function as `mine.py`, in the folder of the book's repository, and run the command "
    "below.",
    hints=(
        "`dist.all_gather(parts, shard)` fills a list of tensors like the shard, padding too. Cut it off for the "
        "callbacks.",
        "A tensor is freed when no name holds it, or a view of it: no list of whole units.",
        "`dist.reduce_scatter(out, parts)` adds: divide by the world size. Pad the gradient with zeros first.",
        "An all-reduce gives the right numbers, and moves twice as many bytes.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "`all_gather_into_tensor` and `reduce_scatter_tensor`, which take one long tensor instead of a list, save the "
    "copies. This step waits for every collective. FSDP starts the next unit's gather before `forward` returns: one "
    "more unit alive, and nothing exposed but the first gather.",
    stub=STUB,
    command="python -m scaleout.exercises.fsdp.ranks mine.py",
)

AHEAD_STUB = '''\
import torch
import torch.distributed as dist


def prefetched(shards, sizes, forward):
    """One forward, with the next unit on its way.

    shards: this rank's flat shard of each unit, padded, in fp32
    sizes: elements of each unit, without padding
    forward(unit, whole): computes with the whole unit, a flat
        tensor of sizes[unit] elements
    """
    return ...
'''

_AHEAD_SOLUTION = """\
import torch
import torch.distributed as dist


def prefetched(shards, sizes, forward):
    def start(unit):
        if unit == len(shards):
            return None, None
        whole = torch.empty(dist.get_world_size() * shards[unit].numel())
        return whole, dist.all_gather_into_tensor(whole, shards[unit], async_op=True)

    ahead = start(0)
    for unit in range(len(shards)):
        whole, work = ahead                               # the unit before is free now
        work.wait()
        ahead = start(unit + 1)
        forward(unit, whole[:sizes[unit]])
"""

PREFETCHED = Lab(
    key="prefetch-by-hand",
    level=3,
    minutes=15,
    title="One unit ahead",
    prompt="Write `prefetched(shards, sizes, forward)`, the forward of FSDP on **two** ranks with prefetch. Units and "
    "shards are those of the step above: flat, padded to a multiple of the ranks, in fp32.\n\n"
    "- Before `forward(unit, whole)` is called, the all-gather of the **next** unit has been started; it is waited for "
    "when that unit's turn comes.\n"
    "- Each unit is gathered once, and none further ahead than the next.\n"
    "- While a unit computes, your tensors hold no more bytes than the largest two units side by side, padding "
    "included: there is no room for a third, nor for a unit's parts beside the whole.\n\n"
    "The checker looks at what has been started and adds up the bytes of every tensor that is alive, each time "
    "`forward` is called. Rank 1 stays in each `forward` until rank 0 has come to its next one.\n\n"
    "Save your function as `ahead.py`, in the folder of the book's repository, and run the command below.",
    hints=(
        "`work = dist.all_gather_into_tensor(whole, shard, async_op=True)` returns at once; `work.wait()` ends when "
        "`whole` is filled.",
        "Keep the pair of the unit that is ahead: its tensor and its work. Wait, start the next one, then compute.",
        "A name that still stands for the unit before keeps it alive. Where is it given another value?",
    ),
    solution="```python\n"
    f"{_AHEAD_SOLUTION}```\n\n"
    "The price of hiding the gather is that second unit: `fully_shard` pays it too, and more where "
    "`set_modules_to_forward_prefetch` names more than one. It starts the next gather on a stream of its own, so that "
    "the GPU, not Python, runs both at once.",
    stub=AHEAD_STUB,
    command="python -m scaleout.exercises.fsdp.ranks ahead.py",
)

EXERCISES = (SHARDED_STEP, PREFETCHED)
