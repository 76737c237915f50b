"""Kernels of attention side by side, behind one call: by hand, torch's by backend, flex_attention, torch.compile.

Each is run(q, k, v, mask) on (b, a, s, d) tensors with a mask of `kernels.MASKS`. `refused` tries a kernel on a few
tokens and says why it cannot run here, so that a lab leaves it out by name and never takes another one's result for it.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from scaleout.parallel import kernels
from scaleout.parallel.kernels import Mask

TRIED = 16  # tokens of a trial


@dataclass(frozen=True)
class Kernel:
    """words: its name in tables. run: the kernel. kind: what it makes of the scores: "naive" stores them, "fused" does
    not, "recomputed" makes them again in the backward, "tiled" is the fused one by hand."""

    words: str
    run: Callable[[Tensor, Tensor, Tensor, Mask | None], Tensor]
    kind: str


def checkpointed(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Tensor:
    """Naive attention under activation checkpointing: scores are recomputed in the backward, all at once."""
    return checkpoint(kernels.naive, q, k, v, mask, use_reentrant=False)


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, backend: SDPBackend | None = None) -> Tensor:
    """torch's scaled_dot_product_attention; backend: the only one that it may choose. RuntimeError where that cannot
    run these inputs. A causal mask is a flag, any other a tensor of booleans."""
    options: dict = {"is_causal": mask is kernels.causal}
    if mask not in (None, kernels.causal):
        options["attn_mask"] = kernels.allowed(mask, slice(0, q.shape[-2]), slice(0, k.shape[-2]), q.device)
    if backend is None:
        return F.scaled_dot_product_attention(q, k, v, **options)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, **options)


@cache
def _block_mask(mask: Mask, queries: int, keys: int, device: torch.device):
    return create_block_mask(mask, None, None, queries, keys, device=device)


@cache
def _compiled(run: Callable) -> Callable:
    return torch.compile(run)


def flex(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Tensor:
    """flex_attention with the mask as it is. Compiled on a GPU, where it becomes one kernel; on a CPU torch runs it one
    operation at a time, and forward only."""
    gpu = q.device.type == "cuda"
    run = _compiled(flex_attention) if gpu else flex_attention
    q, k, v = (x if gpu else x.detach() for x in (q, k, v))
    blocks = None if mask is None else _block_mask(mask, q.shape[-2], k.shape[-2], q.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled
        return run(q, k, v, block_mask=blocks)


def compiled(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Tensor:
    """`kernels.naive` under torch.compile."""
    return _compiled(kernels.naive)(q, k, v, mask)


KERNELS = {
    "naive": Kernel("naive", kernels.naive, "naive"),
    "checkpointed": Kernel("naive, checkpointed", checkpointed, "recomputed"),
    "tiled": Kernel("tiles by hand", kernels.tiled, "tiled"),
    "sdpa": Kernel("SDPA, its choice", sdpa, "fused"),
    "math": Kernel("SDPA, math", partial(sdpa, backend=SDPBackend.MATH), "math"),
    "flash": Kernel("SDPA, flash", partial(sdpa, backend=SDPBackend.FLASH_ATTENTION), "fused"),
    "efficient": Kernel("SDPA, efficient", partial(sdpa, backend=SDPBackend.EFFICIENT_ATTENTION), "fused"),
    "cudnn": Kernel("SDPA, cuDNN", partial(sdpa, backend=SDPBackend.CUDNN_ATTENTION), "fused"),
    "flex": Kernel("flex_attention", flex, "fused"),
    "compiled": Kernel("naive, compiled", compiled, "compiled"),
}


def differentiable(name: str, device: torch.device) -> bool:
    """Whether a kernel has a backward on this kind of device: flex_attention has none on a CPU."""
    return name != "flex" or device.type == "cuda"


def no_compiler(device: torch.device) -> str:
    """Why torch.compile cannot make kernels here, in a few words; "" where it can. Its kernels for a CPU are C++, with
    Python's headers; those for a GPU are Triton's, which a C compiler starts."""
    program = os.environ.get("CXX", "g++")
    if not shutil.which(program) and not shutil.which("clang++"):
        return f"torch.compile needs a C++ compiler, and there is no {program}"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "torch.compile needs Python's headers, and there is no Python.h (Debian: python3-dev)"
    if device.type == "cuda" and find_spec("triton") is None:
        return "torch.compile needs the package triton on a GPU"
    return ""


def refused(name: str, device: torch.device, dtype: torch.dtype, head: int, mask: str) -> str:
    """Why a kernel cannot run here with these dtypes, heads and mask, in a few words; "" where it can."""
    needs_compiler = name == "compiled" or (name == "flex" and device.type == "cuda")
    lack = no_compiler(device) if needs_compiler else ""
    if lack or needs_compiler:
        return lack
    q, k, v = (torch.zeros(1, 1, TRIED, head, dtype=dtype, device=device, requires_grad=True) for _ in range(3))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says there why each backend is out
            out = KERNELS[name].run(q, k, v, kernels.MASKS[mask])
            if differentiable(name, device):
                out.sum().backward()
    except RuntimeError as error:
        return f"torch has no such kernel here ({str(error).split('.')[0]})"
    return ""
