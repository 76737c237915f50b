"""The exercise of `ddp` that is done in the lab: average gradients on two real ranks, once per step."""

from __future__ import annotations

from scaleout.exercises.engine import Lab

STUB = '''\
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss


def train_step(model, optimizer, passes):
    """One optimizer step on all ranks' data.

    passes: this rank's list of (inputs, targets), all of one size
    """
    return ...
'''

_SOLUTION = """\
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss


def train_step(model, optimizer, passes):
    optimizer.zero_grad()
    for inputs, targets in passes:
        loss = mse_loss(model(inputs), targets) / len(passes)
        loss.backward()                               # accumulates in p.grad
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([one.view(-1) for one in gradients])
    dist.all_reduce(flat)                             # once per step, all gradients together
    flat /= dist.get_world_size()
    for one, mean in zip(gradients, flat.split([one.numel() for one in gradients])):
        one.copy_(mean.view_as(one))
    optimizer.step()
"""

TRAIN_STEP = Lab(
    key="train-step",
    level=3,
    minutes=15,
    title="A step on two ranks",
    prompt="Write `train_step(model, optimizer, passes)`: data parallelism with gradient accumulation, without DDP. It "
    "runs on **two** ranks that start with the same model. Each has its own `passes`, a list of (inputs, targets). "
    "Afterwards both must have the weights that one process reaches with **one step on all data**, for the mean of "
    "`mse_loss`. The optimizer is AdamW, in fp32, and one layer is frozen.\n\n"
    "All-reduce the gradients **once per step**, after the last pass; the bytes are counted. Save your function as "
    "`mine.py` in the folder of the book's repository, and run the command below.",
    hints=(
        "`backward()` adds to `grad`. So several passes accumulate by themselves, and you must clear the gradients of "
        "the previous step.",
        "The mean over all data is the mean over each rank's passes, then the mean over the ranks. All passes have "
        "the same size.",
        "`dist.all_reduce` adds, so divide by `dist.get_world_size()` afterwards.",
        "A frozen weight's `grad` is None.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "One all-reduce per tensor is right too: it sends the same bytes and pays more latencies. In DDP a bucket does "
    "what `flat` does here.",
    stub=STUB,
    command="python -m scaleout.exercises.ddp.ranks mine.py",
)

EXERCISES = (TRAIN_STEP,)
