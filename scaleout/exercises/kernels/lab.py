"""The exercise of `kernels` on two real ranks: attention whose keys are divided, merged by the log-sum-exp."""

from __future__ import annotations

from scaleout.exercises.engine import Lab

STUB = '''\
import torch
import torch.distributed as dist


def split_keys(q, k, v):
    """Attention of q over the keys of all ranks, on every rank.

    q: (heads, n, d), the same on all ranks
    k, v: (heads, m, d), this rank's keys and values
    """
    return ...
'''

_SOLUTION = """\
import torch
import torch.distributed as dist


def split_keys(q, k, v):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    peak = scores.amax(-1, keepdim=True)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)     # the common maximum
    weights = (scores - peak).exp()
    total = weights.sum(-1, keepdim=True)
    mixed = weights @ v
    dist.all_reduce(total)
    dist.all_reduce(mixed)
    return mixed / total
"""

SPLIT = Lab(
    key="keys-on-two-ranks",
    level=3,
    minutes=15,
    title="Keys on two ranks",
    prompt="Write `split_keys(q, k, v)`, the forward of attention without a mask on **two** ranks. Every rank has all "
    "queries, and its own half of the keys and values. Every rank returns the output over **all** keys, in fp32.\n\n"
    "- Scores are divided by the square root of the head size. Some are as large as 200, so that exp of them "
    "overflows.\n- There are many more keys than queries. Communicate what belongs to the queries, not keys or "
    "values.\n\nSave your function as `keys.py`, in the folder of the book's repository, and run the command below.",
    hints=(
        "`merge` of the exercise before, with ranks in place of blocks: which three things belong to a query?",
        "`dist.all_reduce(peak, op=dist.ReduceOp.MAX)` gives every rank the common maximum. Then sums can be added.",
    ),
    solution=f"```python\n{_SOLUTION}```\n\nThe three all-reduces have n + n + n·d numbers per head, however many keys "
    "there are. Inside one GPU, FlashAttention divides keys among blocks of threads in the same way if there are few "
    "queries. Among GPUs it is the core of context parallelism, where the queries are divided too.",
    stub=STUB,
    command="python -m scaleout.exercises.kernels.ranks keys.py",
)

EXERCISES = (SPLIT,)
