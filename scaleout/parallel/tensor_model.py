"""The book's Transformer in parts, one per rank, with the layers of `scaleout.parallel.tensor`: its blocks, the weights
that several ranks have copies of, and the whole model for a comparison.

t: ranks, b: sequences, s: tokens, h: hidden, V: vocabulary.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scaleout.parallel.pipeline_stage import Stage
from scaleout.parallel.tensor import (
    ColumnLinear,
    Copy,
    Gather,
    Group,
    RowLinear,
    Scatter,
    Sum,
    VocabularyEmbedding,
    VocabularyLoss,
)
from scaleout.parallel.transformer import Block, Transformer
from scaleout.spec.slices import check_tensor, check_vocabulary
from scaleout.spec.transformer import Shape


def refuse(shape: Shape, tp: int, dropout: float = 0.0) -> None:
    """ValueError, in one line with what would work, for a model of which tp ranks cannot have equal parts."""
    check_tensor(shape, tp)
    check_vocabulary(shape, tp)
    if dropout:
        raise ValueError(
            "dropout in parts needs random numbers that ranks share in some places and not in others: use dropout 0"
        )


def heads(shape: Shape, group: Group) -> tuple[slice, slice]:
    """This rank's outputs of Q, and of K and V. With more ranks than key-value heads, neighbors have the same one."""
    own, kv, d = group.share(shape.heads), group.share(shape.kv), shape.d
    if group.size > shape.kv:
        first = group.rank * shape.kv // group.size
        kv = slice(first, first + 1)
    return slice(own.start * d, own.stop * d), slice(kv.start * d, kv.stop * d)


def cut(block: Block, shape: Shape, group: Group, enter, leave) -> list:
    """Leave this rank's part of a block: fewer heads, a narrower MLP, and `enter` (f) and `leave` (g) around each half.
    Returns the handles of the hooks that apply f to x, one for each half, however many matrices read x."""
    own, kv = heads(shape, group)
    attention, mlp, width = block.attention, block.mlp, group.share(shape.h_ff)
    attention.q = ColumnLinear(attention.q, own)
    attention.k, attention.v = ColumnLinear(attention.k, kv), ColumnLinear(attention.v, kv)
    attention.out = RowLinear(attention.out, own, leave)
    mlp.up = ColumnLinear(mlp.up, width)
    if mlp.gate is not None:
        mlp.gate = ColumnLinear(mlp.gate, width)
    mlp.down = RowLinear(mlp.down, width, leave)
    return [module.register_forward_pre_hook(lambda _, x: (enter(x[0]),)) for module in (attention, mlp)]


class TensorTransformer(nn.Module):
    """This rank's part of the book's Transformer, or of a stage of it, which it takes apart. Every rank is given the
    same tokens.

    Tokens in, this rank's columns of the logits out, (b, s, V/t); with targets, the mean loss, on every rank. Between
    stages go activations, (b, s, h) or (b, s/t, h). After the backward, `sum_copies`. sequence: sequence parallelism,
    for a number of tokens that the ranks divide. ValueError as `refuse`.
    """

    def __init__(self, model: Transformer | Stage, group: Group, sequence: bool = False) -> None:
        super().__init__()
        shape = model.shape
        refuse(shape, group.size, model.p)
        self.shape, self.group, self.sequence, self.full = shape, group, sequence, model.full
        self.doors = (Gather, Scatter) if sequence else (Copy, Sum)
        self.words, self.blocks, self.edges = group.share(shape.vocab), model.blocks, []
        self.layers = list(self.blocks.values() if isinstance(model, Stage) else self.blocks)
        self.first, self.last = getattr(model, "first", True), getattr(model, "last", True)
        self.tied = getattr(model, "tied", False)  # here is one of two copies of the token table
        if self.first:
            self.positions = model.positions
            self.tokens = VocabularyEmbedding(model.tokens, self.words, self.leave)
        self.entrances = [door for block in self.layers for door in cut(block, shape, group, self.enter, self.leave)]
        if self.last:
            self.norm, self.head = model.norm, ColumnLinear(model.head, self.words)
            if shape.tied_head and self.first:
                self.head.weight = self.tokens.weight
        self.sharing = max(1, group.size // shape.kv)  # ranks that have the same key-value head
        self.kv_group = group.neighbours(self.sharing) if self.sharing > 1 else None

    def enter(self, x: Tensor) -> Tensor:
        """From the stream to matrices that are cut by columns."""
        return self.doors[0].apply(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """From matrices that are cut by rows to the stream."""
        return self.doors[1].apply(x, self.group)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.embed(x) if self.first else x
        for block in self.layers:
            x = checkpoint(block, x, use_reentrant=False) if self.full and self.training else block(x)
        if not self.last:
            return x
        logits = self.head(self.enter(self.norm(x)))  # (b, s, V/t)
        if targets is None:
            return logits
        return VocabularyLoss.apply(logits.flatten(0, 1), targets.flatten(), self.words, self.group)

    def embed(self, tokens: Tensor) -> Tensor:
        """(b, s) -> (b, s, h), or (b, s/t, h)."""
        x, s = self.tokens(tokens), tokens.shape[1]
        if self.positions is None:
            return x
        return x + self.positions.weight[self.group.share(s) if self.sequence else slice(s)]

    # --- copies and parts -------------------------------------------------------------------------------------------

    def copies(self) -> list[tuple[list[nn.Parameter], dist.ProcessGroup | None]]:
        """Parameters that several ranks have, of whose gradients each finds a part only, and the ranks that have them.

        With sequence parallelism each rank's tokens give a part of the gradient of norms, positions and the biases of
        row linears. A key-value head that several ranks have gets a part from each rank's query heads.
        """
        names = dict(self.named_parameters())
        replicated = [p for name, p in names.items() if dimension(name) is None] if self.sequence else []
        kv = [p for name, p in names.items() if is_kv(name)] if self.sharing > 1 else []
        if self.sharing == self.group.size:  # the same ranks: one message
            replicated, kv = replicated + kv, []
        return [
            (parameters, group)
            for parameters, group in ((replicated, self.group.group), (kv, self.kv_group))
            if parameters
        ]

    def sum_copies(self) -> None:
        """After the backward: add up the gradients of `copies`, each list in one message. Collective."""
        for parameters, group in self.copies() if self.group.size > 1 and not self.group.silent else ():
            flat = torch.cat([p.grad.flatten() for p in parameters])
            dist.all_reduce(flat, group=group)
            for p, summed in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                p.grad = summed.view_as(p).clone()

    def whole(self, gradients: bool = False) -> dict[str, Tensor]:
        """{name: full tensor}, copies, of the parameters or their gradients, by the names of the whole model; of what
        several ranks have, each rank gives its own. Collective."""
        tensors = {}
        for name, p in self.named_parameters():
            local, dim = (p.grad if gradients else p.detach()).contiguous(), dimension(name)
            if dim is None or self.group.size == 1:
                tensors[name] = local.clone()
                continue
            parts = [torch.empty_like(local) for _ in range(self.group.size)]
            dist.all_gather(parts, local, group=self.group.group)
            repeats = self.sharing if is_kv(name) else 1
            parts[self.group.rank // repeats * repeats] = local
            tensors[name] = torch.cat(parts[::repeats], dim=dim)
        return tensors


def dimension(name: str) -> int | None:
    """The dimension that a parameter is cut along; None where every rank has it whole."""
    layer, kind = name.split(".")[-2:]
    if layer in ("out", "down"):
        return 1 if kind == "weight" else None
    return 0 if layer in ("tokens", "head", "q", "k", "v", "up", "gate") else None


def is_kv(name: str) -> bool:
    return name.split(".")[-2] in ("k", "v")
