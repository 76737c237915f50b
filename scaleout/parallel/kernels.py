"""Attention by hand: as the formula reads, and in tiles with an online softmax, as FlashAttention computes it.

`naive` stores every score. `tiled` reads one tile of keys at a time, and corrects its sums whenever a row's maximum
grows, so that no (s, s) tensor exists. Of the softmax it saves one number per query, the log-sum-exp of its scores,
from which the backward recomputes every probability. The result is the same up to rounding: nothing is approximated.

On a GPU the loops are inside one kernel. Here each tile is a handful of operations of torch, so `tiled` shows what is
read, computed and saved, and is no faster. Rounding is that of tensor cores: operands in the dtype of the inputs, sums
in fp32. Sources: Milakov and Gimelshein 2018 (arXiv 1805.02867) for the online softmax, FlashAttention-2 (arXiv
2307.08691), algorithms 1 and 2.
b: sequences, a: heads, s: tokens, d: head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# A mask as flex_attention takes it, its mask_mod: (batch, head, query, key), tensors of indices -> may attend.
Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

TILE = 128  # queries, and keys, of a tile: those of FlashAttention's kernels for heads of 128
WINDOW = PREFIX = 64  # tokens of the two masks that no kernel has a flag for
LOWEST = -1e30  # the maximum of a row before its first key: below every score, and finite, since -inf - -inf is NaN


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A token attends to itself and to those before it."""
    return query >= key


def window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Causal, and at most `WINDOW` tokens back."""
    return (query >= key) & (query - key < WINDOW)


def prefix(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Causal, and all attend to the first `PREFIX` tokens: a prompt that is read as a whole."""
    return (query >= key) | (key < PREFIX)


MASKS: dict[str, Mask | None] = {"none": None, "causal": causal, "window": window, "prefix": prefix}


def allowed(mask: Mask, rows: slice, columns: slice, device: torch.device) -> Tensor:  # -> (rows, columns), bool
    """Which of these queries may attend to which of these keys."""
    query, key = (torch.arange(span.start, span.stop, device=device) for span in (rows, columns))
    zero = query.new_zeros(())
    return mask(zero, zero, query[:, None], key)


def naive(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None) -> Tensor:  # (b, a, s, d) each -> (b, a, s, d)
    """Attention as the formula reads: all scores and all probabilities are tensors."""
    scores = q @ k.mT * q.shape[-1] ** -0.5  # (b, a, s, s)
    if mask is not None:
        permitted = allowed(mask, slice(0, q.shape[-2]), slice(0, k.shape[-2]), q.device)
        scores = scores.masked_fill(~permitted, -math.inf)
    return scores.softmax(-1) @ v


# --- in tiles ---------------------------------------------------------------------------------------------------------


def spans(length: int, tile: int) -> list[slice]:
    """0 to `length` in parts of `tile`; the last may be shorter."""
    return [slice(first, min(first + tile, length)) for first in range(0, length, tile)]


def tiles(
    q: Tensor, k: Tensor, mask: Mask | None, tile: int
) -> Iterator[tuple[slice, slice, Tensor]]:  # scores: (b, a, rows, columns), fp32
    """(rows, columns, scores) of each tile in which the mask allows anything, row by row. Scores are scaled, and -inf
    where the mask forbids."""
    wide, scale = torch.promote_types(q.dtype, torch.float32), q.shape[-1] ** -0.5
    for rows in spans(q.shape[-2], tile):
        for columns in spans(k.shape[-2], tile):
            permitted = None if mask is None else allowed(mask, rows, columns, q.device)
            if permitted is not None and not permitted.any():
                continue
            scores = q[..., rows, :].to(wide) @ k[..., columns, :].to(wide).mT * scale
            yield rows, columns, scores if permitted is None else scores.masked_fill(~permitted, -math.inf)


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None, tile: int = TILE
) -> tuple[Tensor, Tensor]:  # -> (b, a, s, d) in the dtype of q, (b, a, s) in fp32
    """The output, and the log-sum-exp of each query's scores. A query that may attend to nothing has an output of 0."""
    wide = torch.promote_types(q.dtype, torch.float32)
    sums = q.new_zeros(q.shape, dtype=wide)  # of exp(score - peak) v
    totals = q.new_zeros(q.shape[:-1], dtype=wide)  # of exp(score - peak)
    peaks = torch.full_like(totals, LOWEST)  # the largest score so far
    for rows, columns, scores in tiles(q, k, mask, tile):
        peak = torch.maximum(peaks[..., rows], scores.amax(-1))
        shrink = (peaks[..., rows] - peak).exp()  # what was summed so far has the old peak
        weights = (scores - peak[..., None]).exp()
        totals[..., rows] = shrink * totals[..., rows] + weights.sum(-1)
        mixed = weights.to(q.dtype).to(wide) @ v[..., columns, :].to(wide)
        sums[..., rows, :] = shrink[..., None] * sums[..., rows, :] + mixed
        peaks[..., rows] = peak
    tiny = torch.finfo(wide).tiny
    return (sums / totals.clamp_min(tiny)[..., None]).to(q.dtype), peaks + totals.clamp_min(tiny).log()


def backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Mask | None, tile: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v. Each tile's probabilities are exp(score - lse), recomputed: five matrix multiplications
    where a backward that had saved them needs four."""
    wide, scale = lse.dtype, q.shape[-1] ** -0.5
    dq, dk, dv = (torch.zeros_like(x, dtype=wide) for x in (q, k, v))
    rowsum = (gradient.to(wide) * out.to(wide)).sum(-1, keepdim=True)  # of P dP, by row
    for rows, columns, scores in tiles(q, k, mask, tile):
        g = gradient[..., rows, :].to(wide)
        weights = (scores - lse[..., rows, None]).exp()
        dv[..., columns, :] += weights.to(q.dtype).to(wide).mT @ g
        into = weights * (g @ v[..., columns, :].to(wide).mT - rowsum[..., rows, :]) * scale
        into = into.to(q.dtype).to(wide)
        dq[..., rows, :] += into @ k[..., columns, :].to(wide)
        dk[..., columns, :] += into.mT @ q[..., rows, :].to(wide)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


class Tiled(torch.autograd.Function):
    """`forward` and `backward` as one operation of autograd. It saves q, k, v, the output and the log-sum-exp."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, tile: int) -> Tensor:
        out, lse = forward(q, k, v, mask, tile)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.of = mask, tile
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple:
        return *backward(gradient, *ctx.saved_tensors, *ctx.of), None, None


def tiled(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None, tile: int = TILE) -> Tensor:
    """Attention in tiles, (b, a, s, d) as `naive`, without a tensor of all scores in either direction."""
    return Tiled.apply(q, k, v, mask, tile)
