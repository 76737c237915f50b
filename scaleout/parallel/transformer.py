"""The book's transformer: GPT- or Llama-style, built from a `Shape`.

Written so that what it keeps for backward is plain to see and the same on every device: dropout stores a one-byte
mask, the attention core stays in the dtype of its inputs, and the loss is taken in fp32.
b: sequences, s: tokens, h: hidden, a: heads, k: key-value heads, d: head width, f: MLP width, V: vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from scaleout.parallel.norm import RMSNorm
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape, plain


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Dropout that keeps a bool mask on every device; F.dropout keeps a mask of x's dtype on a CPU."""
    return torch.native_dropout(x, p, True)[0] if training and p else x


def make_norm(shape: Shape) -> nn.Module:
    return RMSNorm(shape.hidden) if shape.norm == "rmsnorm" else nn.LayerNorm(shape.hidden, bias=shape.bias)


def rotate(x: Tensor) -> Tensor:
    """Rotary positions (arXiv 2104.09864): pair i of a head turns by position / 10000^(2i/d). x: (b, a, s, d)."""
    s, d = x.shape[-2:]
    speed = 10_000.0 ** (-torch.arange(0, d, 2, device=x.device) / d)
    angle = torch.arange(s, device=x.device)[:, None] * speed  # (s, d/2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def naive_attention(q: Tensor, k: Tensor, v: Tensor, p: float) -> Tensor:
    """Attention as the formula reads: every score exists. q: (b, a, s, d); k, v: (b, k, s, d) -> (b, a, s, d)."""
    groups, s = q.shape[1] // k.shape[1], q.shape[2]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (b, a, s, s)
    future = torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1)
    probabilities = scores.masked_fill(future, -math.inf).softmax(-1)
    return dropout(probabilities, p, True) @ v


def fused_attention(q: Tensor, k: Tensor, v: Tensor, p: float) -> Tensor:
    """The same without the scores in memory (but see Transformer). No dropout inside: a CPU would turn naive."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


KERNELS = {"naive": naive_attention, "sdpa": fused_attention, "flash": fused_attention}


class Attention(nn.Module):
    def __init__(self, shape: Shape, kernel: str, p: float, recompute: bool) -> None:
        super().__init__()
        self.d, self.rotary = shape.d, shape.positions == "rotary"
        self.core, self.p, self.recompute = KERNELS[kernel], p, recompute
        self.q = nn.Linear(shape.hidden, shape.heads * shape.d, bias=shape.bias)
        self.k = nn.Linear(shape.hidden, shape.kv * shape.d, bias=shape.bias)
        self.v = nn.Linear(shape.hidden, shape.kv * shape.d, bias=shape.bias)
        self.out = nn.Linear(shape.heads * shape.d, shape.hidden, bias=shape.bias)

    def forward(self, x: Tensor) -> Tensor:  # (b, s, h) -> (b, s, h)
        split = lambda y: y.view(*y.shape[:2], -1, self.d).transpose(1, 2)  # (b, s, a*d) -> (b, a, s, d)  # noqa: E731
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        if self.rotary:
            q, k = rotate(q), rotate(k)
        p = self.p if self.training else 0.0
        with torch.autocast(x.device.type, enabled=False):  # stay in q's dtype: CUDA's autocast would widen softmax
            if self.recompute:
                mixed = checkpoint(self.core, q, k, v, p, use_reentrant=False)
            else:
                mixed = self.core(q, k, v, p)
        return self.out(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.hidden, shape.h_ff, bias=shape.bias)
        self.gate = nn.Linear(shape.hidden, shape.h_ff, bias=shape.bias) if shape.gated_mlp else None
        self.down = nn.Linear(shape.h_ff, shape.hidden, bias=shape.bias)

    def forward(self, x: Tensor) -> Tensor:  # (b, s, h) -> (b, s, f) -> (b, s, h)
        if self.gate is None:
            return self.down(F.gelu(self.up(x)))
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, shape: Shape, kernel: str, p: float, recompute_core: bool) -> None:
        super().__init__()
        self.p = p
        self.norm1, self.norm2 = make_norm(shape), make_norm(shape)
        self.attention = Attention(shape, kernel, p, recompute_core)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor) -> Tensor:  # (b, s, h), the residual stream
        x = x + dropout(self.attention(self.norm1(x)), self.p, self.training)
        return x + dropout(self.mlp(self.norm2(x)), self.p, self.training)


class Transformer(nn.Module):
    """Tokens in, logits out; with targets, the mean loss in nats per token.

    `checkpointing`: "full" keeps each block's input and recomputes the block, "selective" recomputes the
    attention core only (arXiv 2205.05198), "none" keeps everything. On CUDA, "sdpa" in fp32 with fewer key-value heads
    than heads has no fused kernel and keeps the (s, s) scores, as "naive" does; in 16 bits, and on a CPU, it does not.
    """

    def __init__(self, shape: Shape, attention: str = "sdpa", dropout: float = 0.0, checkpointing: str = "none"):
        super().__init__()
        Recipe(attention=attention, dropout=dropout, checkpointing=checkpointing)  # says what is wrong with them
        self.shape, self.p, self.full = plain(shape), dropout, checkpointing == "full"
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(shape.max_seq, shape.hidden) if shape.positions == "learned" else None
        core = checkpointing == "selective"
        self.blocks = nn.ModuleList(Block(shape, attention, dropout, core) for _ in range(shape.layers))
        self.norm = make_norm(shape)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        self.apply(self._initialise)
        if shape.tied_head:
            self.head.weight = self.tokens.weight

    @staticmethod
    def _initialise(module: nn.Module) -> None:  # GPT-2's: normal with 0.02, biases zero
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:  # (b, s) -> (b, s, V) or ()
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        x = dropout(x, self.p, self.training)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.full and self.training else block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
