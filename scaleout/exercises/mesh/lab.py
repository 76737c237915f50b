"""The exercises of `mesh` that are done in the lab: gradients reduced along axes, the samples of each replica, and a
check that finds an axis that is not there.
"""

from __future__ import annotations

from scaleout.exercises.engine import Lab

_COMMAND = "python -m scaleout.exercises.mesh.ranks"
_SAVE = "Save it as `{0}` in the book's folder, and run the command below."

FINISH_STUB = '''\
import torch
import torch.distributed as dist


def finish(gradients, sizes):
    """Reduces this rank's gradients along all axes, in place.

    gradients: {"cut": ..., "whole": ..., "tied": ...}, tensors
    sizes: (pp, dp, tp); the tp coordinate varies fastest
    """
    return ...
'''

_FINISH_SOLUTION = """\
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def finish(gradients, sizes):
    mesh = init_device_mesh("cpu", tuple(sizes), mesh_dim_names=("pp", "dp", "tp"))
    for gradient in gradients.values():
        dist.all_reduce(gradient, group=mesh.get_group("dp"))
        gradient /= sizes[1]                              # the mean of the replicas
    dist.all_reduce(gradients["whole"], group=mesh.get_group("tp"))
    dist.all_reduce(gradients["tied"], group=mesh.get_group("pp"))
"""

FINISH = Lab(
    key="finish-gradients",
    level=3,
    minutes=20,
    title="Three axes, three sums",
    prompt="Write `finish(gradients, sizes)`. Each of the pp × dp × tp ranks has run its last backward, on the "
    "**mean** loss of its replica's samples. Change its gradients in place so that they are those of all samples:\n\n"
    '- `"cut"`: of weights that are cut along tp. Each rank has other columns.\n'
    '- `"whole"`: of a norm\'s weight. All tp ranks have it, and each has applied it to its **own part of the tokens** '
    "(sequence parallelism).\n"
    '- `"tied"`: of tied embeddings: the table on the first stage, the head on the last. pp is 1 or 2 here.\n\n'
    "Create the groups yourself, with `new_group` or `init_device_mesh`. The check runs on **4** processes, "
    "with several `sizes`.\n\n" + _SAVE.format("finish.py"),
    hints=(
        '`init_device_mesh("cpu", sizes, mesh_dim_names=("pp", "dp", "tp"))`, and `mesh.get_group("tp")` '
        "is the group of this rank along tp.",
        "Replicas take a mean, because each has the mean of its own samples. Along tp and pp the gradients are parts "
        "of one sum.",
        "With `new_group` every rank creates every group, in the same order, also those that it is not in.",
    ),
    solution="```python\n"
    f"{_FINISH_SOLUTION}```\n\n"
    "`init_device_mesh` creates the groups of every axis on all ranks. A training script calls it once, at the start. "
    "Divide by dp only. If you divide by all ranks, the gradients are too small by a factor of tp · pp, which AdamW "
    "hides and clipping does not. torchtune needed a proposal for it: *scale grads by DP size, not world size* "
    "(meta-pytorch/torchtune, issue 2420).\n\nWith more than two stages, tied embeddings need a group of their own "
    "with the first and the last rank of each pipeline: Megatron-LM's embedding group.",
    stub=FINISH_STUB,
    command=f"{_COMMAND} finish.py",
)

SAMPLES_STUB = '''\
import torch
import torch.distributed as dist


def my_samples(count, epoch, sizes):
    """The samples that this rank reads in an epoch: a list.

    count: samples in the data set, 0 to count - 1; dp divides it
    epoch: 0, 1, 2, ...
    sizes: (pp, dp, tp); the tp coordinate varies fastest
    """
    return ...
'''

_SAMPLES_SOLUTION = """\
import torch
import torch.distributed as dist


def my_samples(count, epoch, sizes):
    pp, dp, tp = sizes
    replica = dist.get_rank() // tp % dp                  # not the rank
    seed = torch.Generator().manual_seed(epoch)           # the same on all ranks
    order = torch.randperm(count, generator=seed).tolist()
    return order[replica::dp]
"""

SAMPLES = Lab(
    key="own-samples",
    level=3,
    minutes=12,
    title="Who reads what",
    prompt="Write `my_samples(count, epoch, sizes)`, the list of samples that this rank reads in an epoch, in "
    "order.\n\n- Ranks along **tp** and **pp** work on the same samples, so they read the same list.\n"
    "- Replicas, along **dp**, share out the data set: each sample is in exactly one list, and all lists are equally "
    "long.\n"
    "- The order is shuffled, differently in each epoch.\n\n"
    "Each rank has seeded `random` and torch with its own number, so that dropout differs, and must still draw numbers "
    "of its own afterwards. The check runs on **4** processes, with several `sizes`.\n\n" + _SAVE.format("samples.py"),
    hints=(
        "Which coordinate of the rank decides what it reads? The tp coordinate varies fastest.",
        "All ranks need the same permutation. `torch.Generator().manual_seed(epoch)` is a random source of its own.",
        "`order[replica::dp]` takes every dp-th sample.",
    ),
    solution="```python\n"
    f"{_SAMPLES_SOLUTION}```\n\n"
    "`DistributedSampler` does the same with `num_replicas=dp` and `rank=replica`. By default it takes the world "
    "size and the global rank, and gives tp neighbors different samples. A library did this to a loader that had been "
    "right: *Data on the same dp rank is inconsistent after prepare* (huggingface/accelerate, issue 3092). The "
    "second trap is a seed that differs by rank: in another trainer, *samples can overlap between ranks and other "
    "samples can be skipped* (NVlabs/LongLive, issue 71). Neither raises an error. With cp, its ranks read "
    "the same sequences and then each takes its part of the tokens.",
    stub=SAMPLES_STUB,
    command=f"{_COMMAND} samples.py",
)

ABSENT_STUB = '''\
import torch
import torch.distributed as dist


def absent(part, whole, samples, gradient, sizes):
    """Axes that are not in effect: [], ["dp"], ["tp"] or both.

    part: this rank's part of a weight, flat; whole: number of
        elements of the whole weight
    samples: integers, the samples that this rank has read
    gradient: of part, as the optimizer will see it
    sizes: (dp, tp); the tp coordinate varies fastest
    """
    return ...
'''

_ABSENT_SOLUTION = """\
import torch
import torch.distributed as dist


def absent(part, whole, samples, gradient, sizes):
    dp, tp = sizes
    seen = [None] * dist.get_world_size()
    dist.all_gather_object(seen, (part, samples.tolist(), gradient))
    found = set()
    for rank, (mine, read, summed) in enumerate(seen):
        if len(mine) * tp != whole:
            found.add("tp")                               # not cut
        for other in range(rank):
            theirs, others, theirs_summed = seen[other]
            if rank // tp == other // tp and torch.equal(mine, theirs):
                found.add("tp")                           # cut, and the same part twice
            if rank % tp == other % tp:
                if set(read) & set(others) or not torch.equal(summed, theirs_summed):
                    found.add("dp")
    return sorted(found)
"""

ABSENT = Lab(
    key="find-absent",
    level=3,
    minutes=25,
    title="An axis that is not there",
    prompt="Write `absent(part, whole, samples, gradient, sizes)`, which a trainer calls on every rank after the first "
    "backward. It returns the axes that are **not in effect** anywhere in the job, sorted, and **the same list on "
    "every rank**.\n\n"
    "- **tp** is not in effect if a rank's part is not 1/tp of the weight, or if two ranks along tp have "
    "the same part.\n"
    "- **dp** is not in effect if two replicas have read the same sample, even one of many, or if their "
    "gradients differ: they should have been reduced.\n\n"
    "An axis of 1 is in effect. The tensors are small, so you may send anything. The check runs on **4** processes, "
    "with and without faults, some of them on one replica only.\n\n" + _SAVE.format("absent.py"),
    hints=(
        "A rank sees only its own tensors. What do you need from the other ranks to compare?",
        "Ranks along tp have the same `rank // tp`, and ranks along dp the same `rank % tp`.",
        "`dist.all_gather_object(seen, mine)` fills a list with one entry per rank. Then all ranks decide from the "
        "same list.",
    ),
    solution="```python\n"
    f"{_ABSENT_SOLUTION}```\n\n"
    "A comparison with one process would not have found it: a run in which nothing was cut has the right loss and the "
    "right gradients. So a check of a layout asks what was **built**: the bytes of a shard, who reads what, which "
    "copies are equal. In a real job send a checksum and not the tensor, and look at every rank, because "
    "a fault on one node of a thousand is enough.",
    stub=ABSENT_STUB,
    command=f"{_COMMAND} absent.py",
)

EXERCISES = (SAMPLES, FINISH, ABSENT)
