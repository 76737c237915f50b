"""The exercises of `mesh` that are done in the lab: sums along axes, each replica's samples, and a check that finds an
axis that is not there.
"""

from __future__ import annotations

from scaleout.exercises.engine import Lab

_COMMAND = "python -m scaleout.exercises.mesh.ranks"
_SAVE = "Save your function as `{0}`, in the folder of the book's repository, and run the command below."

FINISH_STUB = '''\
import torch
import torch.distributed as dist


def finish(gradients, sizes):
    """Finishes this rank's gradients along all axes, in place.

    gradients: {"cut": ..., "whole": ..., "tied": ...}, tensors
    sizes: (pp, dp, tp); ranks count along tp fastest
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
    prompt="Write `finish(gradients, sizes)`. Each of the pp × dp × tp ranks has had its last backward, on the "
    "**mean** loss of its replica's samples. Change its gradients in place so that they are those of all samples:\n\n"
    '- `"cut"`: of weights cut along tp. Each rank has other columns.\n'
    '- `"whole"`: of a norm\'s weight, which all tp ranks have, and which each has applied to its **own part of the '
    "tokens** (sequence parallelism).\n"
    '- `"tied"`: of the token table, which has served as table on the first stage and as head on the last. pp is 1 '
    "or 2 here.\n\n"
    "Stages have other blocks, so that nothing else is added up along pp. Build the groups yourself, by `new_group` or "
    "`init_device_mesh`. It is checked on **4** processes, with several `sizes`.\n\n" + _SAVE.format("finish.py"),
    hints=(
        '`init_device_mesh("cpu", sizes, mesh_dim_names=("pp", "dp", "tp"))`, and `mesh.get_group("tp")` '
        "is the group of this rank along tp.",
        "Replicas: a mean, because each has the mean of its own samples. Parts of one sum, along tp and pp: a sum.",
        "With `new_group` every rank makes every group, in the same order, also those that it is not in.",
    ),
    solution="```python\n"
    f"{_FINISH_SOLUTION}```\n\n"
    "`init_device_mesh` makes the groups of every axis on all ranks; in a training script it is called once, at the "
    "start. The division is by dp alone. Who divides by all ranks has gradients that are too small "
    "by tp · pp, which AdamW hides and clipping does not. For torchtune somebody had to propose it: *scale grads by DP "
    "size, not world size* (meta-pytorch/torchtune, issue 2420).\n\nWith more than "
    "two stages a tied table needs a group of its own, the first and the last rank of each pipeline: "
    "Megatron's embedding group.",
    stub=FINISH_STUB,
    command=f"{_COMMAND} finish.py",
)

SAMPLES_STUB = '''\
import torch
import torch.distributed as dist


def my_samples(count, epoch, sizes):
    """The samples that this rank reads in an epoch: a list.

    count: of the data set, 0 to count - 1; dp divides it
    epoch: 0, 1, 2, ...
    sizes: (pp, dp, tp); ranks count along tp fastest
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
    "order.\n\n- Ranks along **tp** and **pp** work on the same samples: they read the same list.\n"
    "- Replicas, along **dp**, share out the data set: each sample is in one list, and lists are of one length.\n"
    "- The order is shuffled, in each epoch in another way.\n\n"
    "Before it is called each rank has seeded `random` and torch with its own number, as a script does whose dropout "
    "is to differ, and what ranks draw after it still has to differ. It is checked on **4** processes, "
    "with several `sizes`.\n\n" + _SAVE.format("samples.py"),
    hints=(
        "Which coordinate of the rank decides what it reads? tp counts fastest.",
        "All ranks need the same permutation: `torch.Generator().manual_seed(epoch)` is a source of its own.",
        "`order[replica::dp]` takes every dp-th sample.",
    ),
    solution="```python\n"
    f"{_SAMPLES_SOLUTION}```\n\n"
    "`DistributedSampler` does the same with `num_replicas=dp` and `rank=replica`; left alone it takes the world's "
    "size and the rank, and gives tp neighbours different samples. A library did that to a loader that had been right: "
    "*Data on the same dp rank is inconsistent after prepare* (huggingface/accelerate, issue 3092). Of the second "
    "trap, a seed that differs by rank, somebody else's trainer had an example: *samples can overlap between ranks and "
    "other samples can be skipped* (NVlabs/LongLive, issue 71). Neither ends with an error. With cp, its ranks read "
    "the same sequences and then each keeps its part of the tokens.",
    stub=SAMPLES_STUB,
    command=f"{_COMMAND} samples.py",
)

ABSENT_STUB = '''\
import torch
import torch.distributed as dist


def absent(part, whole, samples, gradient, sizes):
    """Axes that are not in effect: [], ["dp"], ["tp"] or both.

    part: this rank's part of a weight, flat; whole: elements of
        all of it
    samples: those that this rank has read, whole numbers
    gradient: of part, as the optimizer will see it
    sizes: (dp, tp); ranks count along tp fastest
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
    prompt="A layout was asked for, and the loss goes down. Write `absent(part, whole, samples, gradient, sizes)`, "
    "which a trainer calls once on every rank after its first backward. It returns the axes that are **not in effect** "
    "anywhere in the job, sorted, **the same list on every rank**.\n\n"
    "- **tp** is not in effect where a rank's part is not 1/tp of the weight, or where two ranks along tp have "
    "the same part.\n"
    "- **dp** is not in effect where two replicas have read the same sample, be it one of many, or where their "
    "gradients differ, which should have been added up.\n\n"
    "An axis of 1 is in effect. Tensors are small here: send what you like. It is checked on **4** processes, with and "
    "without faults; some are on one replica alone.\n\n" + _SAVE.format("absent.py"),
    hints=(
        "A rank sees its own alone. What do you need from the others to compare?",
        "Ranks along tp: the same `rank // tp`. Along dp: the same `rank % tp`.",
        "`dist.all_gather_object(seen, mine)` fills a list with what each rank gives. Then all decide on the same.",
    ),
    solution="```python\n"
    f"{_ABSENT_SOLUTION}```\n\n"
    "Parity with one process would not have found it: a run in which nothing was cut has the right loss and the right "
    "gradients. So a check of a layout asks what was **built**: bytes of a shard, who reads what, which copies are "
    "equal. In a real job send a checksum in place of the tensor, and compare that; and look at every rank, because a "
    "fault on one node of a thousand is enough.",
    stub=ABSENT_STUB,
    command=f"{_COMMAND} absent.py",
)

EXERCISES = (SAMPLES, FINISH, ABSENT)
