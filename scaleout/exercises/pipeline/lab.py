"""The exercises of `pipeline` for the lab: the sends and receives of 1F1B, and a split backward, on real ranks."""

from __future__ import annotations

from scaleout.exercises.engine import Lab

_COMMAND = "python -m scaleout.exercises.pipeline.ranks"

STEP_STUB = '''\
import torch
import torch.distributed as dist


def pipeline_step(order, stage, inputs, targets, loss, like):
    """One step of this rank: leaves gradients in its stage.

    order: this rank's actions, such as [("F", 0), ("B", 0)]
    stage: this rank's layers, a module
    inputs: the micro-batches, on the first rank
    targets: their targets, on the last rank
    loss(output, target): the mean loss of a micro-batch
    like: a tensor with the shape of what ranks exchange
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return ...
'''

_STEP_SOLUTION = """\
import torch
import torch.distributed as dist


def pipeline_step(order, stage, inputs, targets, loss, like):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    held, sent = {}, []
    for kind, i in order:
        if kind == "F":
            x = inputs[i]
            if rank > 0:
                x = torch.empty_like(like)
                dist.recv(x, rank - 1)
                x.requires_grad_()
            y = stage(x)
            if rank < ranks - 1:
                sent.append(dist.isend(y.detach(), rank + 1))
            else:
                y = loss(y, targets[i]) / len(targets)
            held[i] = x, y
        else:
            x, y = held.pop(i)
            gradient = None
            if rank < ranks - 1:
                gradient = torch.empty_like(like)
                dist.recv(gradient, rank + 1)
            y.backward(gradient)
            if rank > 0:
                sent.append(dist.isend(x.grad, rank - 1))
    for message in sent:
        message.wait()
"""

STEP_ON_RANKS = Lab(
    key="on-ranks-1f1b",
    level=3,
    minutes=25,
    title="1F1B on real ranks",
    prompt="Write `pipeline_step(order, stage, inputs, targets, loss, like)`, a step of one rank, with `dist.send`, "
    "`isend`, `recv` and `irecv`. It does the actions of `order` one by one:\n\n"
    '- `("F", i)` takes `inputs[i]` on the first rank, or else receives from the previous rank. It sends the output to '
    "the next rank, or on the last rank computes the loss.\n"
    '- `("B", i)` receives the gradient from the next rank, or on the last rank starts from the loss. It sends the '
    "gradient of the stage's **input** to the previous rank.\n\n"
    "Afterwards each weight's `.grad` is that of the **mean loss over all micro-batches**. The checker runs 1F1B on 2 "
    "and 3 processes with gloo, where `send` blocks until the receiver takes the message. It compares the gradients "
    "with one process and counts the micro-batches in flight. After a micro-batch's backward, neither its input nor "
    "what autograd saved may stay in memory.\n\n"
    "Save it as `step.py` in the folder of the book and run the command below.",
    hints=(
        "`y.backward(gradient)` continues from a gradient that came from elsewhere. The input's gradient is in "
        "`x.grad` if `x.requires_grad_()` was called before the stage ran.",
        "In the steady state of 1F1B a rank sends forward while its neighbor sends back. Start each send with `isend`, "
        "and wait for all of them at the end.",
        "Gradients accumulate in `.grad`. Divide each micro-batch's loss by the number of micro-batches.",
    ),
    solution="```python\n"
    f"{_STEP_SOLUTION}```\n\n"
    "`isend` returns at once. The step does not wait for its sends until the end, so two ranks cannot block each other "
    "in a send. It does wait for each receive, because in this order the rank has nothing else to do. The lab's "
    "version also starts each receive ahead of time, and runs schedules with several stages per rank.",
    stub=STEP_STUB,
    command=f"{_COMMAND} step.py",
)

SPLIT_STUB = '''\
import torch


def split_backward(stage, x, y, gradient):
    """The backward of y = stage(x) in two calls.

    gradient: the gradient of y
    Returns the gradient of x, and a function without arguments
    that adds the weights' gradients to their .grad.
    """
    return ...
'''

_SPLIT_SOLUTION = """\
import torch


def split_backward(stage, x, y, gradient):
    to_input, = torch.autograd.grad(y, x, gradient, retain_graph=True)
    weights = list(stage.parameters())

    def later():
        found = torch.autograd.grad(y, weights, gradient)
        for weight, one in zip(weights, found):
            held = weight.grad
            weight.grad = one if held is None else held + one

    return to_input, later
"""

SPLIT_ON_RANKS = Lab(
    key="on-ranks-split",
    level=3,
    minutes=15,
    title="A backward in two calls",
    prompt="Zero-bubble schedules send the gradient of a stage's input first, and compute the weights' gradients when "
    "the rank is idle. Write `split_backward(stage, x, y, gradient)`. It is called after `y = stage(x)` and returns "
    "two things:\n\n"
    "- the gradient of `x`, **without** computing any gradient of a weight;\n"
    "- a function `later()`, which **adds** the weights' gradients to their `.grad`, and does not compute the gradient "
    "of `x` again.\n\n"
    "It runs on **two** processes with one stage each and three micro-batches. All input gradients are sent first; "
    "then each `later()` is called, the newest micro-batch first. The result must equal that of `.backward()`.\n\n"
    "Save it as `split.py` in the folder of the book and run the command below.",
    hints=(
        "`torch.autograd.grad(y, x, gradient)` returns the gradient of `x` alone and changes no `.grad`.",
        "A backward call frees what autograd saved, unless you pass `retain_graph=True`.",
        "The weights are `list(stage.parameters())`. Each `.grad` accumulates three micro-batches.",
    ),
    solution="```python\n"
    f"{_SPLIT_SOLUTION}```\n\n"
    "`y.backward(gradient, inputs=weights)` does the second half in one call. What autograd saved stays in memory from "
    "the forward to `later()`, which is the price of filling the bubble. Both calls also go through the same layers, "
    "because the gradient of an early layer's weights needs the gradients of the outputs of the layers after it. "
    "torch's own zero-bubble stage saves those from the first call.",
    stub=SPLIT_STUB,
    command=f"{_COMMAND} split.py",
)

EXERCISES = (STEP_ON_RANKS, SPLIT_ON_RANKS)
