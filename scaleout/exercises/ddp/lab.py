"""The exercise of `ddp` that is done in the lab: average gradients on two real ranks, and only once a step."""

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
        loss.backward()                               # gradients add up on this rank
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([one.view(-1) for one in gradients])
    dist.all_reduce(flat)                             # once a step, all of them in one message
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
    prompt="Write `train_step(model, optimizer, passes)`, data parallelism with gradient accumulation by hand. It "
    "runs on **two** ranks that hold the same model. Each has its own `passes`, a list of (inputs, targets). After it "
    "both ranks must hold the weights that one process would reach with **one step on all the data**, with the mean "
    "of `mse_loss` over it. The optimizer is AdamW; all is in fp32.\n\n"
    "Gradients travel **once a step**, after the last pass: the numbers that you all-reduce are counted. No DDP here. "
    "One of the layers is frozen.\n\nSave your function as `mine.py`, in the folder of the book's repository, and run "
    "the command below.",
    hints=(
        "`backward()` adds to `grad`. So several passes accumulate by themselves, and the step before has to be "
        "cleared.",
        "The mean over all the data is the mean over the passes of each rank, then the mean over the ranks. All "
        "have the same size.",
        "`dist.all_reduce` adds: divide by `dist.get_world_size()` afterwards.",
        "A frozen weight has `grad` None.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "One all-reduce for each tensor, instead of one for all, is right too: the same bytes, more starts. What `flat` "
    "does here is what a bucket does in DDP.",
    stub=STUB,
    command="python -m scaleout.exercises.ddp.ranks mine.py",
)

EXERCISES = (TRAIN_STEP,)
