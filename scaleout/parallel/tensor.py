"""Tensor parallelism from scratch: every rank has a part of every matrix, and all ranks work on the same tokens.

One matrix is split by columns and the next by rows: the columns that the first gives on a rank are the input that the
second needs there, and only a sum is communicated (Shoeybi et al., arXiv 1909.08053, section 3). Attention is split by
heads. With sequence parallelism (Korthikanti et al., arXiv 2205.05198, section 4.2.2) the tensors between those pairs
are split by tokens, and only the two Functions before and after each pair change. `tensor_model` makes a model of these
parts.
t: ranks, b: sequences, s: tokens, h: hidden, f: MLP width, V: vocabulary. As in torch, a weight has a row for each
output: a matrix's columns, as papers write y = xW, are its rows here.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from scaleout.parallel.flat import all_gather, reduce_scatter


class Group:
    """The ranks that split every matrix, and their collectives. One process without a process group is a group of one.

    silent: nothing is sent, and every result is this rank's own: to time the compute alone.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        joined = dist.is_initialized()
        self.group, self.silent = group, False
        self.size = dist.get_world_size(group) if joined else 1
        self.rank = dist.get_rank(group) if joined else 0

    def share(self, n: int) -> slice:
        """This rank's of n things."""
        size = n // self.size
        return slice(self.rank * size, (self.rank + 1) * size)

    def neighbours(self, n: int) -> dist.ProcessGroup:
        """A group of this rank and those beside it, n in all. Collective for those n."""
        first = self.rank // n * n
        ranks = [dist.get_global_rank(self.group or dist.group.WORLD, first + i) for i in range(n)]
        return dist.new_group(ranks, use_local_synchronization=True)

    def reduced(self, x: Tensor, operation=dist.ReduceOp.SUM) -> Tensor:
        """The sum over ranks, on every rank."""
        x = x.clone(memory_format=torch.contiguous_format)
        if self.size > 1 and not self.silent:
            dist.all_reduce(x, operation, group=self.group)
        return x

    def gathered(self, x: Tensor) -> Tensor:
        """The tokens of all ranks, in order: (b, s/t, h) -> (b, s, h)."""
        x = x.transpose(0, 1).contiguous()  # (s/t, b, h): a collective joins along the first dimension
        gathered = x.new_empty(self.size * len(x), *x.shape[1:])
        if self.size == 1 or self.silent:
            gathered.view(self.size, *x.shape).copy_(x)
        else:
            all_gather(gathered, x, group=self.group)
        return gathered.transpose(0, 1).contiguous()

    def scattered(self, x: Tensor) -> Tensor:
        """This rank's tokens of the sum over ranks: (b, s, h) -> (b, s/t, h)."""
        x = x.transpose(0, 1).contiguous()
        scattered = x.new_empty(len(x) // self.size, *x.shape[1:])
        if self.size == 1 or self.silent:
            scattered.copy_(x[self.share(len(x))])
        else:
            reduce_scatter(scattered, x, group=self.group)
        return scattered.transpose(0, 1).contiguous()


# --- the four Functions that communicate -------------------------------------------------------------------------


class Copy(torch.autograd.Function):
    """f: every rank uses a copy of x. Backward: each has a part of x's gradient, and the parts are added."""

    @staticmethod
    def forward(ctx, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return ctx.group.reduced(grad), None


class Sum(torch.autograd.Function):
    """g: adds the ranks' partial sums. Backward: the gradient of each part is that of the sum."""

    @staticmethod
    def forward(ctx, x: Tensor, group: Group) -> Tensor:
        return group.reduced(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad, None


class Gather(torch.autograd.Function):
    """f with sequence parallelism: (b, s/t, h) -> (b, s, h). Backward: adds, and keeps this rank's tokens."""

    @staticmethod
    def forward(ctx, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return group.gathered(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return ctx.group.scattered(grad), None


class Scatter(torch.autograd.Function):
    """g with sequence parallelism: (b, s, h) -> (b, s/t, h) of the sum. Backward: gathers all tokens' gradients."""

    @staticmethod
    def forward(ctx, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return group.scattered(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return ctx.group.gathered(grad), None


# --- matrices and the vocabulary ----------------------------------------------------------------------------------


def part(tensor: Tensor, rows: slice = slice(None), columns: slice = slice(None)) -> nn.Parameter:
    """A parameter of this rank: a copy of some rows or columns of a whole one."""
    local_part = tensor.detach()[rows] if tensor.dim() == 1 else tensor.detach()[rows, columns]
    return nn.Parameter(local_part.clone(memory_format=torch.contiguous_format))


class ColumnLinear(nn.Module):
    """Some of the outputs of a linear layer: (b, s, inputs) -> (b, s, outputs / t). Sends nothing."""

    def __init__(self, linear: nn.Linear, rows: slice) -> None:
        super().__init__()
        self.weight = part(linear.weight, rows)
        self.bias = None if linear.bias is None else part(linear.bias, rows)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer from some of its inputs: (b, s, inputs / t) -> (b, s, outputs), a partial sum until `leave` has
    added those of all ranks. The bias is added after that, once."""

    def __init__(self, linear: nn.Linear, columns: slice, leave) -> None:
        super().__init__()
        self.weight = part(linear.weight, columns=columns)
        self.bias, self.leave = linear.bias, leave

    def forward(self, x: Tensor) -> Tensor:
        y = self.leave(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


class VocabularyEmbedding(nn.Module):
    """The vectors of some tokens, and zeros for the others, to which other ranks add theirs: (b, s) -> (b, s, h)."""

    def __init__(self, embedding: nn.Embedding, rows: slice, leave) -> None:
        super().__init__()
        self.weight, self.own, self.leave = part(embedding.weight, rows), rows, leave

    def forward(self, tokens: Tensor) -> Tensor:
        row, outside = local(tokens, self.own)
        return self.leave(F.embedding(row, self.weight).masked_fill(outside[..., None], 0))


def local(tokens: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    """(the row of each token among this rank's, whether it is another rank's)."""
    outside = (tokens < rows.start) | (tokens >= rows.stop)
    return (tokens - rows.start).masked_fill(outside, 0), outside


class VocabularyLoss(torch.autograd.Function):
    """Mean cross-entropy when no rank has all logits: (n, V/t), (n,) -> (). Three numbers per token are communicated:
    the largest logit, the sum of exponentials, the target's logit. The backward pass sends nothing."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, own: slice, group: Group) -> Tensor:
        row, outside = local(targets, own)
        logits = logits.float() - group.reduced(logits.float().amax(-1), dist.ReduceOp.MAX)[:, None]
        wanted = group.reduced(logits.gather(1, row[:, None])[:, 0].masked_fill(outside, 0))
        total = group.reduced(logits.exp_().sum(-1))
        ctx.save_for_backward(logits.div_(total[:, None]), row, outside)  # the probabilities
        return (total.log() - wanted).mean()

    @staticmethod
    def backward(ctx, grad: Tensor):
        probabilities, row, outside = ctx.saved_tensors
        n = len(row)
        to = probabilities.clone()
        to[torch.arange(n, device=row.device), row] -= (~outside).float()
        return to.mul_(grad / n), None, None, None
