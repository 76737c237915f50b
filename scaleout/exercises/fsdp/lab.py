"""The exercise of `fsdp` that is done in the lab: gather, compute, free, and reduce-scatter on two real ranks."""

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

_SOLUTION = '''\
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
'''

SHARDED_STEP = Lab(
    key="sharded-step", level=3, minutes=20, title="Gather, compute, free",
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
    hints=("`dist.all_gather(parts, shard)` fills a list of tensors like the shard, padding too. Cut it off for the "
           "callbacks.",
           "A tensor is freed when no name holds it, or a view of it: no list of whole units.",
           "`dist.reduce_scatter(out, parts)` adds: divide by the world size. Pad the gradient with zeros first.",
           "An all-reduce gives the right numbers, and moves twice as many bytes."),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "`all_gather_into_tensor` and `reduce_scatter_tensor`, which take one long tensor instead of a list, save the "
    "copies. This step waits for every collective. FSDP starts the next unit's gather before `forward` returns: one "
    "more unit alive, and nothing exposed but the first gather.",
    stub=STUB,
    command="python -m scaleout.exercises.fsdp.ranks mine.py",
)  # fmt: skip

EXERCISES = (SHARDED_STEP,)
