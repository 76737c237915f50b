"""The exercises of `zero` that are done in the lab: a step of AdamW on shards, and clipping by a norm of shards."""

from __future__ import annotations

from scaleout.exercises.engine import Lab

_COMMAND = "python -m scaleout.exercises.zero.ranks"

STEP_STUB = '''\
import torch
import torch.distributed as dist

BETAS, EPS, DECAY = (0.9, 0.95), 1e-3, 0.1


def zero_step(weights, gradient, state, step, lr):
    """One AdamW step on this rank's shard; updates weights in place.

    weights: all of them, flat, in fp32, the same on all ranks
    gradient: of this rank's samples, as long as weights
    state: a dict of this rank's own, empty before the first step
    step: 1, 2, 3, ...
    """
    return ...
'''

_STEP_SOLUTION = """\
import torch
import torch.distributed as dist

BETAS, EPS, DECAY = (0.9, 0.95), 1e-3, 0.1


def zero_step(weights, gradient, state, step, lr):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    each = -(-len(weights) // ranks)                      # elements of a part, padded

    def parts(flat):
        padding = ranks * each - len(flat)
        return list(torch.nn.functional.pad(flat, (0, padding)).chunk(ranks))

    mine = torch.empty(each)
    dist.reduce_scatter(mine, parts(gradient))
    mine /= ranks                                         # the mean over the ranks
    if not state:
        state.update(m=torch.zeros(each), v=torch.zeros(each))
    m, v = state["m"], state["v"]
    m.lerp_(mine, 1 - BETAS[0])
    v.lerp_(mine.square(), 1 - BETAS[1])
    down = (v / (1 - BETAS[1] ** step)).sqrt() + EPS
    part = parts(weights)[rank] * (1 - lr * DECAY)
    part -= lr * m / (1 - BETAS[0] ** step) / down
    whole = [torch.empty(each) for _ in range(ranks)]
    dist.all_gather(whole, part)
    weights.copy_(torch.cat(whole)[: len(weights)])       # without the padding
"""

STEP = Lab(
    key="zero-step",
    level=3,
    minutes=25,
    title="AdamW on a shard",
    prompt="Write `zero_step(weights, gradient, state, step, lr)`, which does what stage 1 does after the backward. "
    "Each rank has all weights and the gradient of its own samples. It gets its shard of the **mean** gradient and "
    "updates its shard of the weights with AdamW. At the end all ranks have the same new weights, equal to those of "
    "AdamW on one process.\n\n"
    "- Shards are equal, and the last is padded: there are 25 weights, and 2 or 3 ranks.\n"
    "- Store AdamW's moments of the rank's own shard **only**, in `state`, where their bytes are counted.\n"
    "- Your collectives are counted too: a volume of 2N, so no all-reduce.\n\n"
    "AdamW multiplies the weights by 1 − lr · DECAY and then subtracts lr · m̂ / (√v̂ + EPS), where m̂ and v̂ are the "
    "moments over 1 − β^step. Your function is checked on **2 and 3** processes with gloo, over four steps.\n\n"
    "Save it as `step.py` in the folder of the book's repository, and run the command below.",
    hints=(
        "`torch.nn.functional.pad(flat, (0, n))` adds n zeros; `.chunk(ranks)` of the result gives equal parts.",
        "`dist.reduce_scatter(mine, parts)` sums: divide by the number of ranks.",
        "`dist.all_gather(whole, part)` fills a list of tensors that are as large as the part, with its padding. "
        "`weights.copy_(...)` changes weights in place.",
    ),
    solution="```python\n"
    f"{_STEP_SOLUTION}```\n\n"
    "Why EPS is so large here: with the usual 1e-8, AdamW hardly tells a sum from a mean, because its update does "
    "not change when all gradients are scaled. Do not rely on that: clipping depends on the scale, and so does the "
    "update where gradients are as small as EPS.\n\nStage 2 has the same step. It reduces the gradient of each bucket "
    "in the backward, as soon as it is computed, and frees the rest of it. The book's three stages are in "
    "`scaleout/parallel/zero.py`.",
    stub=STEP_STUB,
    command=f"{_COMMAND} step.py",
)

CLIP_STUB = '''\
import torch
import torch.distributed as dist


def clip_sharded(shards, most):
    """Clips sharded gradients; returns the norm before.

    shards: this rank's part of each tensor's gradient, flat,
        changed in place; a part may be empty
    most: the largest allowed norm of all gradients together
    """
    return ...
'''

_CLIP_SOLUTION = """\
import torch
import torch.distributed as dist


def clip_sharded(shards, most):
    squares = sum((one.square().sum() for one in shards), torch.zeros(()))
    dist.all_reduce(squares)                              # one number
    norm = squares.sqrt()
    if norm > most:
        for one in shards:
            one *= most / norm
    return norm
"""

CLIP = Lab(
    key="clip-sharded",
    level=3,
    minutes=12,
    title="One norm for all shards",
    prompt="At stages 2 and 3, `clip_grad_norm_` on each rank's own shards scales every rank's shards by a different "
    "factor. Write `clip_sharded(shards, most)`, which does what `clip_grad_norm_` does on one process with all "
    "gradients:\n\n- If the norm of **all** gradients of all ranks, as one long vector, is above `most`, scale all "
    "shards in place so that the norm is `most`. Otherwise change nothing.\n"
    "- Return the norm before clipping, the same on all ranks.\n\n"
    "A rank may own no part of a tensor, or nothing at all, and gradients may be zero. Your function is checked on **2 "
    "and 3** processes, and its communication is counted: do not send the gradients.\n\nSave it as `clip.py` in the "
    "folder of the book's repository, and run the command below.",
    hints=(
        "Which quantity of a shard can be summed over tensors and over ranks: its norm, or something else?",
        "All ranks have to call the all-reduce, whatever they own.",
        "If the norm is at most `most`, the factor is 1. If it is zero, there is nothing to divide by.",
    ),
    solution="```python\n"
    f"{_CLIP_SOLUTION}```\n\n"
    "Squares can be summed, norms cannot. The sum communicates only one number, but a job without it raises no error. "
    "In SpecForge each rank clipped by the norm of its own shards, *roughly 1/sqrt(world_size) of the true norm*, so "
    "the gradient was clipped too little and *no longer points in the original direction*. The log showed the right "
    "norm, because it was computed separately after the update (pull request 663). So assert in the run that all ranks "
    "use the same factor. For DTensors, as `fully_shard` makes them, `torch.nn.utils.clip_grad_norm_` computes the "
    "norm of the whole gradient.\n\n"
    "If some ranks have copies of the same shard, as in hybrid sharding, sum only over ranks with different shards "
    "(VeOmni, issue 184).",
    stub=CLIP_STUB,
    command=f"{_COMMAND} clip.py",
)

EXERCISES = (CLIP, STEP)
