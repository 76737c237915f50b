"""The exercises of `tensor` on two real ranks: a split MLP, without and with sequence parallelism."""

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
    prompt="Write `split_mlp(x, up, down, bias)`, an MLP on **two** ranks, with the f and g that it needs. Every rank "
    "gets all of `x` and `bias`, its own columns of `up` and its own rows of `down`, and returns the whole output.\n\n"
    "The checker computes the same loss on both ranks and compares the output and all gradients with those of one "
    "process: for `x` and `bias` the whole gradient on every rank, for `up` and `down` the rank's own part. It allows "
    "one all-reduce forward and one backward.\n\n"
    "Save your function as `mlp.py` in the folder of the book's repository, and run the command below.",
    hints=(
        "Two subclasses of `torch.autograd.Function`: each has an all-reduce in one direction, and nothing in the "
        "other.",
        "`dist.all_reduce` works in place: give it a clone of its input.",
        "f is between x and up, and g is after down. Where does the bias go?",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "The same two functions, for any group of ranks, are `Copy` and `Sum` in `scaleout/parallel/tensor.py`. "
    "`dist.all_reduce` on the output itself, without a Function, adds too, but autograd does not see it. That happens "
    "to be right for g, and leaves f to be written.",
    stub=STUB,
    command="python -m scaleout.exercises.tensor.ranks mlp.py",
)

TOKENS_STUB = '''\
import torch
import torch.distributed as dist
from torch.nn.functional import gelu


def split_tokens(x, up, down):
    """This rank's tokens of gelu(x @ all of up) @ all of down.

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
    prompt="Now a rank has only its own tokens of x, and returns only its own tokens of the output. The loss is a sum "
    "over the tokens of all ranks. Write `split_tokens(x, up, down)` for **two** ranks, with the two functions that "
    "replace f and g. There is no bias.\n\n"
    "The checker compares this rank's tokens of the output and of x's gradient, and the gradients of `up` and `down`, "
    "which count the tokens of **all** ranks. It allows an all-gather and a reduce-scatter forward, one of each "
    "backward, and no all-reduce.\n\n"
    "Save your function as `tokens.py` in the folder of the book's repository, and run the command below.",
    hints=(
        "Forward: before `up` a rank needs all tokens. After `down` it has a partial sum for all tokens, and needs the "
        "finished sums of its own tokens.",
        "The backward pass of an all-gather adds over the ranks, and each rank keeps the sums of its own tokens.",
        "`dist.all_gather(parts, x)` and `dist.reduce_scatter(mine, parts)`; tensors must be contiguous.",
    ),
    solution="```python\n"
    f"{_TOKENS_SOLUTION}```\n\n"
    "Each function is the other's backward pass. Autograd stores the gathered x for the gradient of `up`; Megatron-LM "
    "stores the rank's own tokens and gathers once more. `torch.distributed.nn.functional` has both functions ready to "
    "use: they differentiate the sum of all ranks' losses, and here each rank has the loss of its own tokens.",
    stub=TOKENS_STUB,
    command="python -m scaleout.exercises.tensor.ranks tokens.py",
)

EXERCISES = (MLP, TOKENS)
