"""Low-precision numbers in torch, rounded as in `numerics`, and linear layers that compute with them.

The matmuls are fp32 with rounded operands, which on any device gives the result of an FP8 or FP4 tensor core with fp32
accumulation. It shows the effect of a format on training, and nothing about its speed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scaleout.numerics.blocks import BLOCKS, Blocks
from scaleout.numerics.formats import FORMATS, Format
from scaleout.parallel.transformer import Transformer
from scaleout.spec import checks

DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "e5m2": torch.float8_e5m2,
    "e4m3": torch.float8_e4m3fn,
    "e5m2fnuz": torch.float8_e5m2fnuz,
    "e4m3fnuz": torch.float8_e4m3fnuz,
}


def rounded(x: Tensor, f: Format) -> Tensor:
    """x to the nearest number of the format, in x's own dtype, fp32 or fp64: torch's cast where there is one."""
    if f.name in DTYPES:
        return x.to(DTYPES[f.name]).to(x.dtype)
    octave = torch.frexp(x)[1] - 1
    step = torch.exp2((octave.clamp(min=f.lowest_octave) - f.mantissa).to(x.dtype))
    return ((x / step).round() * step).clamp(-f.largest, f.largest)


def by_chance(x: Tensor) -> Tensor:
    """fp32 numbers as bf16, up or down by chance so that the mean is x (stochastic rounding). bf16 is the
    upper half of fp32's bits, so a random lower half is added and what is then below is cut off."""
    bits = x.view(torch.int32)
    bits = bits + torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device)
    return (bits & -(2**16)).view(torch.float32).bfloat16()


def scales(largest: Tensor, b: Blocks, rule: str, tensor: Tensor) -> Tensor:
    """The scale of each block from its largest |x|, as `numerics.blocks.scale_of`; all fp64."""
    if b.scale.mantissa == 0:
        target = 2.0**b.element.highest_octave if rule == "floor" else b.element.largest
        significand, octave = torch.frexp(largest / target)
        exponent = octave - (1 if rule == "floor" else (significand == 0.5).int())
        exponent = torch.where(largest > 0, exponent, b.scale.lowest_octave)
        return torch.exp2(exponent.clamp(b.scale.lowest_octave, b.scale.highest_octave).double())
    chosen = (largest / b.element.largest / tensor).clamp(b.scale.smallest_normal, b.scale.largest)
    return rounded(chosen.float(), b.scale).double()


def quantized(x: Tensor, b: Blocks, rule: str = "floor") -> Tensor:
    """x as it comes back from blocks along its last dimension, in fp32: `numerics.blocks.quantized`, number by number.

    Raises ValueError where the blocks do not divide the dimension, or the rule is unknown.
    """
    checks.one_of("rule", rule, ("floor", "up"))
    size = b.size or x.numel()
    if b.size and x.shape[-1] % size:
        raise ValueError(f"{b.name} has blocks of {size}, which do not divide {x.shape[-1]} numbers: pad them")
    wide, unity = x.detach().double(), torch.ones((), dtype=torch.float64, device=x.device)
    largest = wide.abs().max()
    tensor = (largest / b.element.largest / b.scale.largest).float().double() if b.tensor else unity
    tensor = tensor.clamp(min=FORMATS["fp32"].smallest_normal)
    wide = wide.view(-1, size) if b.size else wide.reshape(1, -1)
    shared = scales(wide.abs().amax(-1, keepdim=True), b, rule, tensor)
    top = b.element.largest
    elements = rounded((wide / (shared * tensor)).clamp(-2 * top, 2 * top), b.element).clamp(-top, top)
    return (elements * shared * tensor).view(x.shape).float()


class _Product(torch.autograd.Function):
    """x wᵀ of rounded operands, and both matmuls of the backward. Blocks lie along the dimension that is summed, so
    each operand is rounded twice: in rows and in columns."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor, layer: LowLinear) -> Tensor:  # (n, inputs), (outputs, inputs)
        ctx.save_for_backward(x, w)
        ctx.of = layer
        return layer.values(x) @ layer.values(w).T

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple:  # (n, outputs)
        (x, w), layer = ctx.saved_tensors, ctx.of
        g = g.float()
        return (
            layer.gradients(g) @ layer.values(w.T.contiguous()).T,
            layer.gradients(g.T.contiguous()) @ layer.values(x.T.contiguous()).T,
            None,
        )


class LowLinear(nn.Module):
    """A linear layer, on the weights of `layer`, whose three matmuls have low-precision operands: weights and
    activations by `forward_blocks`, gradients by `backward_blocks` (of numerics.blocks). The bias is added in fp32."""

    def __init__(self, layer: nn.Linear, forward_blocks: str, backward_blocks: str, rule: str = "floor") -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.blocks, self.rule = (BLOCKS[forward_blocks], BLOCKS[backward_blocks]), rule

    def values(self, x: Tensor) -> Tensor:
        return quantized(x, self.blocks[0], self.rule)

    def gradients(self, g: Tensor) -> Tensor:
        return quantized(g, self.blocks[1], self.rule)

    def forward(self, x: Tensor) -> Tensor:  # (..., inputs) -> (..., outputs)
        y = _Product.apply(x.flatten(0, -2), self.weight, self).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


def convert(model: Transformer, forward_blocks: str, backward_blocks: str, rule: str = "floor") -> None:
    """Put a LowLinear in place of every linear layer of the blocks; tables, norms and head stay, as is usual."""
    for block in model.blocks:
        for part in (block.attention, block.mlp):
            for name, layer in list(part.named_children()):
                if isinstance(layer, nn.Linear):
                    setattr(part, name, LowLinear(layer, forward_blocks, backward_blocks, rule))
