"""The exercises of `fsdp` that run on two real ranks: unshard, compute, reshard and reduce-scatter; and prefetch."""

from __future__ import annotations

from scaleout.exercises.engine import Lab

STUB = '''\
import torch
import torch.distributed as dist


def sharded_step(shards, sizes, forward, backward):
    """The gradient shards of one step.

    A list of flat tensors, one per unit, as long as its shard.

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
        forward(unit, gather(unit))                       # no name refers to it now: freed
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
    title="Unshard, compute, reshard",
    prompt="Write `sharded_step(shards, sizes, forward, backward)`, one step of FSDP on **two** ranks, in fp32. Of "
    "each unit a rank stores only its flat shard: the unit's weights laid end to end, padded to a multiple of the "
    "number of ranks, and split into equal parts.\n\n"
    "- Forward, unit by unit: all-gather the unit, call `forward(unit, whole)`, and **free it before the next unit**.\n"
    "- Backward, from the last unit to the first: all-gather it again, call `backward(unit, whole)`, which returns "
    "this rank's gradient of the whole unit, and free it. Only the last unit may stay unsharded from its forward to "
    "its backward.\n"
    "- Reduce-scatter each gradient, so that a rank gets its shard of the **mean** over the ranks, and never the rest."
    "\n\nReturn the gradient shards in the order of the units. Values, memory and "
    "collectives are checked. Save your function as `mine.py` in the book's folder, and run the command below.",
    hints=(
        "`dist.all_gather(parts, shard)` fills a list of tensors that are as long as the shard, padding included. Cut "
        "the padding off before you call back.",
        "A tensor is freed when no variable refers to it or to a view of it. So keep no list of unsharded units.",
        "`dist.reduce_scatter(out, parts)` sums, so divide by the world size. Pad the gradient with zeros first.",
        "An all-reduce gives the right numbers, but sends twice as many bytes.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "`all_gather_into_tensor` and `reduce_scatter_tensor` take one long tensor instead of a list, which saves the "
    "copies. This step waits for every collective. FSDP issues the next unit's all-gather while the GPU still computes "
    "this one: one more unit is unsharded, and only the first all-gather is exposed.",
    stub=STUB,
    command="python -m scaleout.exercises.fsdp.ranks mine.py",
)

AHEAD_STUB = '''\
import torch
import torch.distributed as dist


def prefetched(shards, sizes, forward):
    """One forward, with the next unit prefetched.

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
    "shards are those of the exercise above: flat, padded to a multiple of the number of ranks, in fp32.\n\n"
    "- Before you call `forward(unit, whole)`, start the all-gather of the **next** unit. Wait for it only when that "
    "unit's turn comes.\n"
    "- All-gather each unit once, and never one further ahead than the next.\n"
    "- While a unit computes, your tensors may use no more bytes than the largest two consecutive units, padding "
    "included. So there is no room for a third unit, nor for a second copy of one.\n\n"
    "In each `forward` the checker looks at which all-gathers have been started, and sums the bytes of your tensors. "
    "Rank 1 stays in each `forward` until rank 0 has reached its next one. Save your function as `ahead.py` in the "
    "book's folder, and run the command below.",
    hints=(
        "`work = dist.all_gather_into_tensor(whole, shard, async_op=True)` returns at once; `work.wait()` returns when "
        "`whole` is filled.",
        "Keep two things of the prefetched unit: its tensor and its work. Wait, start the next one, then compute.",
        "A variable that still refers to the previous unit keeps it in memory. Where does it get its next value?",
    ),
    solution="```python\n"
    f"{_AHEAD_SOLUTION}```\n\n"
    "The second unit in memory is the price of hiding the all-gather. `fully_shard` pays it too, and more where "
    "`set_modules_to_forward_prefetch` names more than one unit. It issues the next all-gather on a CUDA stream of its "
    "own, so that the GPU, not Python, runs both at once.",
    stub=AHEAD_STUB,
    command="python -m scaleout.exercises.fsdp.ranks ahead.py",
)

EXERCISES = (SHARDED_STEP, PREFETCHED)
