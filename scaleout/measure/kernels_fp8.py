"""FP8 in attention and in matrix multiplications: errors by emulation, and seconds by shape on units that have it."""

from __future__ import annotations

import statistics

import torch

from scaleout.measure.kernels_attention import in_turn
from scaleout.parallel import kernels, kernels_fp8, private

# FlashAttention-3 (arXiv 2407.08608), section 4.3: normal numbers, and one in a thousand has an outlier, normal with a
# variance of 100, added.
OUTLIERS, OUTLIER_DEVIATION = 0.001, 10.0
ROWS = 128  # tokens of a block with a scale of its own: FlashAttention-3's tiles of queries
# {variant: (tokens of a block, None for a scale of the whole tensor; whether Q and K are rotated)}
VARIANTS = {"tensor": (None, False), "both": (ROWS, True), "rotation": (None, True), "blocks": (ROWS, False)}
HALF = {"fp16": False, "fp16-fused": True}  # in 16 bits: scores in fp16 between kernels, or in fp32 inside one


def check(o):
    """ValueError, one line, for sizes that blocks, the rotation or FP8 units do not take."""
    if o.fp8_seq % ROWS:
        raise ValueError(f"--fp8-seq {o.fp8_seq}: blocks with a scale have {ROWS} tokens: use a multiple of {ROWS}")
    if o.fp8_head & (o.fp8_head - 1):
        raise ValueError(f"--fp8-head {o.fp8_head}: the rotation needs a power of two: use 64, 128 or 256")
    wrong = [size for size in (o.fp8_tokens, *o.fp8_sides) if size % kernels_fp8.MULTIPLE]
    if wrong:
        raise ValueError(f"FP8 matrix multiplications of size {wrong[0]}: use multiples of {kernels_fp8.MULTIPLE}")


def outliers(o, device):
    """Q, K and V of --fp8-seq tokens and heads of --fp8-head, two heads."""
    chance = torch.Generator().manual_seed(o.seed)
    shape = (3, 1, 2, o.fp8_seq, o.fp8_head)
    rare = (torch.rand(shape, generator=chance) < OUTLIERS) * torch.randn(shape, generator=chance)
    return (torch.randn(shape, generator=chance) + OUTLIER_DEVIATION * rare).to(device)


def errors(o, device):
    """({variant: {"error", "predicted", operand: error of rounding it alone}}, {fp16 variant: error}). Errors are root
    mean squares against fp64. predicted: roundings of different operands have nothing to do with each other, so their
    squares add up."""
    q, k, v = outliers(o, device)
    right = kernels.naive(q.double(), k.double(), v.double())

    def error(out):
        return (out.double() - right).square().mean().sqrt().item()

    turn, rows = kernels_fp8.rotation(o.fp8_head, o.seed, device), {}
    for name, (block, rotated) in VARIANTS.items():
        how = block, turn if rotated else None
        row = {part: error(kernels_fp8.attention(q, k, v, *how, (part,))) for part in kernels_fp8.OPERANDS}
        row["predicted"] = sum(row[part] ** 2 for part in kernels_fp8.OPERANDS) ** 0.5
        row["error"] = error(kernels_fp8.attention(q, k, v, *how))
        rows[name] = row
    return rows, {name: error(kernels_fp8.in_half(q, k, v, fused)) for name, fused in HALF.items()}


# --- matrix multiplications -------------------------------------------------------------------------------------------


def has_fp8(device):
    """Whether a device multiplies FP8 numbers in units of their own: GPUs from compute capability 8.9 on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def products(device, tokens, width):
    """{way: work} of (tokens, width) by (width, width): in bf16, in FP8 on operands that are cast already, and in FP8
    with both casts."""
    x, w = (torch.randn(rows, width, device=device, dtype=torch.bfloat16) for rows in (tokens, width))
    (low_x, scale_x), (low_w, scale_w) = (kernels_fp8.cast(y, "e4m3") for y in (x, w))
    scales = {"scale_a": scale_x, "scale_b": scale_w, "out_dtype": torch.bfloat16}
    return {
        "bf16": lambda: x @ w.t(),
        "fp8": lambda: private.scaled_mm(low_x, low_w.t(), **scales),
        "fp8 with casts": lambda: kernels_fp8.product(x, w),
    }


def by_shape(s, tokens, widths, rounds):
    """{(width, way): median seconds} of square weights."""
    found = {}
    for width in widths:
        works = {(width, way): work for way, work in products(s.device, tokens, width).items()}
        times = in_turn(s, works, rounds, f"FP8, {width} wide")
        found |= {name: statistics.median(samples) for name, samples in times.items()}
    return found
