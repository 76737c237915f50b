"""A block of the transformer before and after each kernel: step time and MFU, one change at a time."""

from __future__ import annotations

import statistics

import torch

from scaleout.measure.kernels_attention import in_turn
from scaleout.measure.kernels_fp8 import has_fp8
from scaleout.parallel import kernels_fp8
from scaleout.parallel.kernels_ways import no_compiler
from scaleout.parallel.transformer import Transformer
from scaleout.spec.transformer import flops

WAYS = {
    "naive": "naive attention",
    "sdpa": "SDPA",
    "compiled": "SDPA, compiled",
    "fp8": "SDPA, compiled, linear layers in FP8",
}
PASSES = 3  # model FLOPs of a step, by those of a forward
PEAK_SIDES = {"cpu": 1024, "cuda": 8192}  # of the square matrices whose multiplication is the peak of MFU


def able(o, device):
    """([way], [why another is left out])."""
    lack = no_compiler(device) if o.compile else "not asked for (--compile)"
    names = ["naive", "sdpa"] + ["compiled"] * (not lack) + ["fp8"] * (not lack and has_fp8(device))
    skipped = [f"block, compiled: {lack}"] * bool(lack)
    if not has_fp8(device):
        skipped.append(
            "block and matrix multiplications in FP8: this device has no FP8 units, and emulating them is slow"
        )
    return names, skipped


def make(o, way, device):
    """A block with these kernels; the same weights every time."""
    torch.manual_seed(o.seed)
    block = Transformer(o.block_shape, "naive" if way == "naive" else "sdpa").to(device).blocks[0]
    if way == "fp8":
        kernels_fp8.convert(block)
    if way in ("compiled", "fp8"):
        block.compile()
    return block


def work(s, o, block):
    """A step of a block: forward and backward of the sum of its squares, in 16 bits on a GPU."""
    x = torch.randn(o.micro_batch, o.block_seq, o.hidden, generator=torch.Generator().manual_seed(o.seed)).to(s.device)
    x.requires_grad_()

    def step():
        with torch.autocast(s.device.type, torch.bfloat16, enabled=s.device.type == "cuda"):
            out = block(x)
        out.float().square().sum().backward()
        block.zero_grad(set_to_none=True)
        x.grad = None

    return step


def model_flops(o):
    """FLOPs of a step of one block, forward and backward, all scores counted."""
    return PASSES * flops(o.block_shape, o.micro_batch, o.block_seq, "full")["recompute"]


def measure(s, o, names):
    """({way: {"seconds", "mfu", "samples"}}, FLOP/s of large matrix multiplications of one device, in the same rounds,
    to which MFU is relative)."""
    works = {way: work(s, o, make(o, way, s.device)) for way in names}
    side, dtype = PEAK_SIDES[s.device.type], torch.bfloat16 if s.device.type == "cuda" else torch.float32
    a, b = (torch.randn(side, side, device=s.device).to(dtype) for _ in range(2))
    times = in_turn(s, works | {"peak": lambda: a @ b}, o.rounds, "block")
    peak = 2 * side**3 / statistics.median(times.pop("peak"))
    rows = {}
    for way, samples in times.items():
        seconds = statistics.median(samples)
        rows[way] = {"seconds": seconds, "mfu": model_flops(o) / seconds / peak, "samples": samples}
    return rows, peak
