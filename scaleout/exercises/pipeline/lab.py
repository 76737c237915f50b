"""The exercises of `pipeline` that are done in the lab: 1F1B's messages, and a backward in two calls, on real ranks."""

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
    inputs: micro-batches for the first rank
    targets: and what the last rank's outputs should be
    loss(output, target): the mean loss of a micro-batch
    like: a tensor of the shape of what goes between ranks
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
    prompt="Write `pipeline_step(order, stage, inputs, targets, loss, like)`, a step of one rank of a pipeline, with "
    "`dist.send`, `isend`, `recv` and `irecv`. It does the actions of `order` one by one:\n\n"
    '- `("F", i)`: on the first rank from `inputs[i]`, else from what the rank above sends; on to the rank below, or '
    "on the last rank into the loss.\n"
    '- `("B", i)`: from the gradient that the rank below sends, or on the last rank from the loss; the gradient '
    "of the stage's **input** goes to the rank above.\n\n"
    "After it each weight's `.grad` is that of the **mean loss over all micro-batches**. The order is 1F1B's. It is "
    "checked on 2 and 3 processes with gloo, where a `send` lasts until it is received: gradients against one process, "
    "and how many micro-batches per rank held. After its backward neither a micro-batch's input nor what autograd kept "
    "of it may stay.\n\n"
    "Save your function as `step.py`, in the folder of the book's repository, and run the command below.",
    hints=(
        "`y.backward(gradient)` goes on from a gradient that came from elsewhere. The input's is in `x.grad`, if "
        "`x.requires_grad_()` was called before the stage ran.",
        "In the middle of 1F1B a rank sends down while its neighbour sends up. Start each send with `isend`, and "
        "wait for all of them at the end.",
        "Gradients add up in `.grad`. Divide each micro-batch's loss by the number of micro-batches.",
    ),
    solution="```python\n"
    f"{_STEP_SOLUTION}```\n\n"
    "`isend` returns at once and keeps the tensor until it is taken. Sends are not waited for, so no two ranks can "
    "stand in one each; receives are, because there is nothing else to do in this order. The lab's version also starts "
    "each receive ahead of time, and runs orders with several stages per rank, as long as two neighbours take the "
    "micro-batches alike.",
    stub=STEP_STUB,
    command=f"{_COMMAND} step.py",
)

SPLIT_STUB = '''\
import torch


def split_backward(stage, x, y, gradient):
    """The backward of y = stage(x) in two calls.

    gradient: that of y
    Returns the gradient of x, and a function without arguments
    that adds those of the stage's weights to their .grad.
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
    prompt="Zero-bubble schedules send the gradient of a stage's input first, and work out those of its weights when "
    "there is nothing else to do. Write `split_backward(stage, x, y, gradient)`. It is called after "
    "`y = stage(x)`, and returns two things:\n\n"
    "- the gradient of `x`, **without** having computed any weight's;\n"
    "- a function `later()`, which **adds** the weights' gradients to their `.grad`, and does not work out that of "
    "`x` again.\n\n"
    "It runs on **two** processes, a stage each, with three micro-batches. All input gradients go up first; each "
    "`later()` is called afterwards, the newest micro-batch first. The result has to be that of `.backward()`.\n\n"
    "Save your function as `split.py`, in the folder of the book's repository, and run the command below.",
    hints=(
        "`torch.autograd.grad(y, x, gradient)` gives the gradient of `x` alone and touches no `.grad`.",
        "A backward call frees what autograd kept, unless you say `retain_graph=True`.",
        "The weights are `list(stage.parameters())`. Three micro-batches add up in each `.grad`.",
    ),
    solution="```python\n"
    f"{_SPLIT_SOLUTION}```\n\n"
    "`y.backward(gradient, inputs=weights)` does the second half in one call. What autograd kept is held from the "
    "forward to `later()`: the price of filling the bubble. And both calls walk through the same layers, because a "
    "gradient of a lower layer's weights needs those of the outputs above it: torch's own zero-bubble stage keeps "
    "these from the first call.",
    stub=SPLIT_STUB,
    command=f"{_COMMAND} split.py",
)

EXERCISES = (STEP_ON_RANKS, SPLIT_ON_RANKS)
