"""What recomputation keeps and repeats in torch: bytes by the ledger, FLOPs as torch counts them, gradients by bits."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from scaleout.measure.ledger import Ledger

aten = torch.ops.aten


def _fused(q, k, v, *_, out_shape=None, **__):
    """FLOPs of fused attention, all scores counted, as torch counts the kernels of GPUs."""
    b, heads, s, d = q
    return 4 * b * heads * s * k[2] * d


def _fused_backward(gradient, q, k, v, *_, out_shape=None, **__):
    """Five products: one of them makes the scores again."""
    return _fused(q, k, v) * 5 // 2


# torch's table has the kernels of GPUs only.
KERNELS = {aten._scaled_dot_product_flash_attention_for_cpu: _fused,
           aten._scaled_dot_product_flash_attention_for_cpu_backward: _fused_backward}  # fmt: skip


def stream(model, tokens):
    """What the first block of a Transformer reads, (b, s, h)."""
    x = model.tokens(tokens)
    return x if model.positions is None else x + model.positions.weight[: tokens.shape[1]]


def through(model, x):
    """x behind all blocks of a Transformer."""
    for block in model.blocks:
        x = block(x)
    return x


def kept(model, x):
    """Bytes that the blocks keep between forward and backward, their inputs among them: of all tensors that are there
    once the forward has returned, each storage once, without weights and the blocks' output."""
    with Ledger() as ledger:
        ledger.claim(x, "activations")
        for p in model.parameters():
            ledger.claim(p, "weights")
        out = through(model, x)
        ledger.claim(out, "temporaries")
        return ledger.now["activations"]


def counted(model, x, seed=0):
    """FLOPs of matrix products in forward and backward of the blocks."""
    torch.manual_seed(seed)
    with FlopCounterMode(display=False, custom_mapping=KERNELS) as seen:
        through(model, x).sum().backward()
    return seen.get_total_flops()


def gradients(model, x, seed=0):
    """[gradient of x, and of each of the blocks' parameters] of the sum of squares behind the blocks."""
    x = x.detach().requires_grad_()
    parameters = list(model.blocks.parameters())
    for p in parameters:
        p.grad = None
    torch.manual_seed(seed)
    through(model, x).square().sum().backward()
    return [x.grad, *(p.grad for p in parameters)]


def equal(found, wanted):
    """Whether two lists of tensors agree in every bit."""
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
