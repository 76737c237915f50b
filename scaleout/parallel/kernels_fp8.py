"""FP8 in kernels: attention with FP8 operands, emulated, and linear layers on the FP8 units of a GPU.

FlashAttention-3 (arXiv 2407.08608, section 3.3) multiplies Q by K and the probabilities by V in e4m3, and has two
ingredients against the loss of precision: a scale for each block of tokens instead of one for the whole tensor, and a
random rotation of Q and K, which leaves Q K^T as it is and spreads an outlier over all numbers of its head. `attention`
rounds the operands and multiplies in fp32, which gives the result of a tensor core with fp32 sums, on any device.

`Fp8Linear` trains with tensorwise scales, taken anew in each step: all three matrix multiplications of a linear layer
have FP8 operands, e4m3 forward and e5m2 for gradients. What is not a linear layer stays in 16 bits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scaleout.numerics.formats import FORMATS
from scaleout.parallel import private
from scaleout.parallel.low import DTYPES, rounded

E4M3 = FORMATS["e4m3"]
# Probabilities are multiplied by 2^8 before they are rounded, so that small ones do not become zero: flash-attention,
# hopper/softmax.h, Max_offset.
OFFSET = 2.0**8
OPERANDS = ("q and k", "v", "probabilities")
scaled_mm = private.scaled_mm  # looked up now: a compiled block cannot look it up
MULTIPLE = 16  # the rows and columns of an FP8 matrix multiplication are multiples of it: torch._scaled_mm


def hadamard(size: int, device: torch.device | str = "cpu") -> Tensor:  # -> (size, size), fp32, orthogonal
    """Sylvester's matrix of +1 and -1, over the square root of its size. ValueError where that is no power of two."""
    if size < 1 or size & (size - 1):
        raise ValueError(f"a Hadamard matrix of Sylvester's has a power of two of rows, not {size}: use 64, 128 or 256")
    matrix = torch.ones(1, 1, device=device)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / size**0.5


def rotation(head: int, seed: int = 0, device: torch.device | str = "cpu") -> Tensor:  # -> (head, head), fp32
    """A random rotation: signs drawn at random, then Hadamard's matrix, which a GPU multiplies in d log d steps."""
    signs = torch.randint(2, (head,), generator=torch.Generator().manual_seed(seed)).to(device)
    return (2.0 * signs - 1)[:, None] * hadamard(head, device)


def quantized(x: Tensor, rows: int | None) -> Tensor:  # (b, a, s, d) -> the same, fp32
    """x as it comes back from e4m3, with a scale for each `rows` tokens of a head; None: one for the whole tensor."""
    blocks = x.float()[None] if rows is None else x.float().unflatten(-2, (-1, rows))
    axes = tuple(range(1, blocks.dim())) if rows is None else (-2, -1)
    scale = blocks.abs().amax(axes, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / E4M3.largest
    back = rounded(blocks / scale, E4M3) * scale
    return back[0] if rows is None else back.flatten(-3, -2)


def attention(
    q: Tensor, k: Tensor, v: Tensor, rows: int | None, turn: Tensor | None, low: tuple[str, ...] = OPERANDS
) -> Tensor:  # (b, a, s, d) each -> (b, a, s, d), fp32
    """Attention without a mask whose operands are e4m3. rows: of `quantized`. turn: what Q and K are multiplied by.
    low: the operands that are rounded at all; the others stay in fp32."""
    q, k, v = q.float(), k.float(), v.float()
    if turn is not None:
        q, k = q @ turn, k @ turn
    if "q and k" in low:
        q, k = quantized(q, rows), quantized(k, rows)
    if "v" in low:
        v = quantized(v, rows)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    weights = (scores - scores.amax(-1, keepdim=True)).exp() * OFFSET
    totals = weights.sum(-1, keepdim=True)  # of the exact ones, as the kernel sums them
    if "probabilities" in low:
        weights = rounded(weights, E4M3)
    return weights @ v / totals


def in_half(q: Tensor, k: Tensor, v: Tensor, fused: bool) -> Tensor:  # -> (b, a, s, d), fp32
    """Attention in fp16, emulated: fused keeps the scores in fp32, otherwise they are rounded between the kernels."""
    q, k, v = (x.half().float() for x in (q, k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    weights = (scores if fused else scores.half().float()).softmax(-1)
    return (weights.half().float() @ v).half().float()


# --- linear layers ----------------------------------------------------------------------------------------------------


def cast(x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """(x over its scale in e4m3 or e5m2, its scale in fp32), the largest number of x at the format's largest."""
    scale = (x.abs().amax().float() / FORMATS[name].largest).clamp_min(torch.finfo(torch.float32).tiny)
    return (x.float() / scale).to(DTYPES[name]), scale


def product(a: Tensor, b: Tensor, a_name: str = "e4m3", b_name: str = "e4m3", dtype=torch.bfloat16) -> Tensor:
    """a b^T, (m, k) and (n, k), with FP8 operands and fp32 sums. Each operand is read twice and written once before:
    its largest number, then the cast."""
    (low_a, scale_a), (low_b, scale_b) = cast(a, a_name), cast(b, b_name)
    return scaled_mm(low_a, low_b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=dtype)


class _Product(torch.autograd.Function):
    """x w^T, and both matrix multiplications of its backward."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor) -> Tensor:  # (n, inputs), (outputs, inputs) -> (n, outputs)
        ctx.save_for_backward(x, w)
        return product(x, w, dtype=x.dtype)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, Tensor]:  # (n, outputs)
        x, w = ctx.saved_tensors
        rows = [y.t().contiguous() for y in (w, g, x)]  # an FP8 unit takes operands along the dimension that is summed
        return (
            product(g.contiguous(), rows[0], "e5m2", dtype=x.dtype),
            product(rows[1], rows[2], "e5m2", dtype=w.dtype),
        )


class Fp8Linear(nn.Module):
    """A linear layer on the weights of `layer`, its matrix multiplications in FP8, the bias added in its own dtype."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:  # (..., inputs) -> (..., outputs)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        y = _Product.apply(x.flatten(0, -2), self.weight.to(x.dtype)).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias.to(x.dtype)


def convert(module: nn.Module) -> int:
    """Put an Fp8Linear in place of every linear layer inside a module whose sizes its units take; how many."""
    count = 0
    for child_name, child in list(module.named_children()):
        if isinstance(child, nn.Linear) and not (child.in_features % MULTIPLE or child.out_features % MULTIPLE):
            setattr(module, child_name, Fp8Linear(child))
            count += 1
        else:
            count += convert(child)
    return count
