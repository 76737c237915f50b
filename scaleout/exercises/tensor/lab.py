"""The exercises of `tensor` that are done in the lab: an MLP split over two real ranks, without and with its tokens."""

from __future__ import annotations

from scaleout.exercises.engine import Lab

STUB = '''\
import torch
import torch.distributed as dist
from torch.nn.functional import gelu


def split_mlp(x, up, down, bias):
    """gelu(x @ all of up) @ all of down + bias, whole on every rank.

    x: (n, h), the same on all ranks
    up: (h, m / t), this rank's columns
    down: (m / t, h), this rank's rows
    bias: (h,), the same on all ranks
    """
    return ...
'''

_SOLUTION = """\
import torch
import torch.distributed as dist
from torch.nn.functional import gelu


class Copy(torch.autograd.Function):                      # f
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Sum(torch.autograd.Function):                       # g
    @staticmethod
    def forward(ctx, part):
        whole = part.clone()
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def split_mlp(x, up, down, bias):
    middle = gelu(Copy.apply(x) @ up)
    return Sum.apply(middle @ down) + bias
"""

MLP = Lab(
    key="on-ranks-mlp",
    level=3,
    minutes=15,
    title="An MLP on two ranks",
    prompt="Write `split_mlp(x, up, down, bias)`, an MLP on **two** ranks, and the f and g that it needs. Every "
    "rank gets all of `x` and `bias`, its own columns of `up` and its own rows of `down`, and returns the whole "
    "output.\n\n"
    "The checker works out the same loss on both ranks from what you return, calls `backward()`, and compares the "
    "output and the gradients of `x`, `up`, `down` and `bias` with those of one process. A rank's `up` and `down` have "
    "the gradient of the rank's own part; `x` and `bias` have all of theirs on every rank. Your collectives are "
    "counted: one all-reduce forward, one backward.\n\n"
    "Save your function as `mlp.py`, in the folder of the book's repository, and run the command below.",
    hints=(
        "Two subclasses of `torch.autograd.Function`: each has an all-reduce in one direction, and nothing in the "
        "other.",
        "`dist.all_reduce` works in place: give it a clone of what came in.",
        "f stands between x and up; g behind down. And the bias?",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "The same two, with a group that may be a part of all ranks, are `Copy` and `Sum` in "
    "`scaleout/parallel/tensor.py`. `dist.all_reduce` on the product itself, outside of a "
    "Function, adds up too, and autograd does not see it: that happens to be right for g, and leaves f to be written.",
    stub=STUB,
    command="python -m scaleout.exercises.tensor.ranks mlp.py",
)

TOKENS_STUB = '''\
import torch
import torch.distributed as dist
from torch.nn.functional import gelu


def split_tokens(x, up, down):
    """This rank's tokens of gelu(x @ up) @ down, all of each meant.

    x: (n / t, h), this rank's tokens; rank 0 has the first
    up: (h, m / t), this rank's columns
    down: (m / t, h), this rank's rows
    """
    return ...
'''

_TOKENS_SOLUTION = """\
import torch
import torch.distributed as dist
from torch.nn.functional import gelu


def gathered(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


def scattered(x):
    ranks = dist.get_world_size()
    parts = [part.contiguous() for part in x.chunk(ranks)]
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts)
    return mine


class Gather(torch.autograd.Function):                    # f
    @staticmethod
    def forward(ctx, x):
        return gathered(x)

    @staticmethod
    def backward(ctx, gradient):
        return scattered(gradient)


class Scatter(torch.autograd.Function):                   # g
    @staticmethod
    def forward(ctx, part):
        return scattered(part)

    @staticmethod
    def backward(ctx, gradient):
        return gathered(gradient)


def split_tokens(x, up, down):
    return Scatter.apply(gelu(Gather.apply(x) @ up) @ down)
"""

TOKENS = Lab(
    key="on-ranks-sequence",
    level=3,
    minutes=10,
    title="Tokens split, too",
    prompt="Now a rank has only its own tokens of x, and returns only its own tokens of the output: the loss is a sum "
    "over the tokens of all ranks. Write `split_tokens(x, up, down)` for **two** ranks, with the two functions that "
    "take the places of f and g. No bias this time.\n\n"
    "The checker compares this rank's tokens of the output and of x's gradient, and the gradients of `up` and `down`, "
    "which count the tokens of **all** ranks. Your collectives are counted: an all-gather and a reduce-scatter "
    "forward, one of each backward, and no all-reduce.\n\n"
    "Save your function as `tokens.py`, in the folder of the book's repository, and run the command below.",
    hints=(
        "Forward: before `up` a rank needs all tokens; after `down` it has a part of the sum of all tokens, and "
        "needs the sum of its own.",
        "The backward of an all-gather adds up, and each rank keeps what belongs to its tokens.",
        "`dist.all_gather(parts, x)` and `dist.reduce_scatter(mine, parts)`; tensors must be contiguous.",
    ),
    solution="```python\n"
    f"{_TOKENS_SOLUTION}```\n\n"
    "Each function is the other's backward. Autograd keeps the gathered x for the gradient of `up`; Megatron-LM keeps "
    "the rank's own tokens and gathers once more. `torch.distributed.nn.functional` has both as they are: here each "
    "rank has a loss of its own tokens, and the sum over ranks is what they are made for.",
    stub=TOKENS_STUB,
    command="python -m scaleout.exercises.tensor.ranks tokens.py",
)

EXERCISES = (MLP, TOKENS)
