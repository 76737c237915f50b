"""Memory of a GPU beyond tensors, as a range from low to high, separate from the account; and so what fits.

The account (`memory`) is a formula that can be exact. These are not: they depend on the driver, the library
versions and the order of allocations, so each is a range with its reason, and none is ever added to the account.

A run fits if the GPU holds the upper end of the band too. The largest peak of which that is so is its usable memory,
and this is the only capacity that any page, exercise, search or lab compares with: of an H100, whose driver reports
79.6 GiB (85.5 GB), it is 68.4 GiB (73.4 GB). The other 11.3 GiB are the reserve: 1.0 for the context and the
workspaces, the rest for fragments and NCCL's buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.spec import checks
from scaleout.spec.hardware import NODE_HOST_BYTES

MIB = 2**20

# Each tensor takes a multiple of 512 bytes of the caching allocator: kMinBlockSize in torch's
# c10/core/AllocatorConfig.h. What is left of a large block stays with the tensor if it is under 1 MiB (kSmallSize
# there; CUDACachingAllocator.cpp, should_split).
LEFT_OVER = 1 * MIB

# For a handle and stream torch gives cuBLAS 8,320 KiB (seen as 8,519,680 bytes in discuss.pytorch.org/t/178671), and
# 32 MiB on Hopper, as NVIDIA's cuBLAS reference recommends under cublasSetWorkspace; cuBLASLt as much again there
# (pytorch pull request 120925). CUBLAS_WORKSPACE_CONFIG changes it.
WORKSPACE = (8_320 * 1024, 2 * 32 * MIB)

# The CUDA context with the kernels that are loaded (781 MB in pytorch issue 34323; less since kernels are loaded
# when first used, more with NCCL), and what the driver keeps of its own total (453 MiB of an H100: hardware.py).
# nvidia-smi counts the former; torch.cuda.memory_allocated and memory_reserved count neither.
CONTEXT = (300 * MIB, 1_000 * MIB)

# Free pieces between tensors, and NCCL's buffers, as a share of the peak. Pieces: none where sizes repeat from step to
# step, more with changing sequence lengths. Buffers: 544 to 688 MB for each group of ranks on four A100s (NVIDIA/nccl
# issue 964), 1.6 GB for one and 6 for three in issue 864; none on one GPU. The upper end is an assumption of this book,
# not a measurement: of an H100 it is 11 GB, of which a mesh's three groups take some 2. Of 209 published runs that ran,
# 188 fit below it with a fused loss and 21 lie within the band (tests/memory/test_published_runs.py). Read your own
# run's pieces from torch.cuda.memory_stats()["inactive_split_bytes.all.peak"], and all else from nvidia-smi.
FRAGMENTS = (0.0, 0.15)


@dataclass(frozen=True)
class Effect:
    """One thing a GPU holds beside the tensors: bytes from low to high, and why."""

    name: str
    low: int
    high: int
    why: str


def effects(peak_bytes: int, tensors: int) -> tuple[Effect, ...]:
    """The effects for a step whose tensors take `peak_bytes` at the peak, in `tensors` pieces. Bytes.

    Raises ValueError unless both are whole numbers, of at least 0.
    """
    checks.whole("peak_bytes", peak_bytes, 0)
    checks.whole("tensors", tensors, 0)
    rounding = min(tensors * LEFT_OVER, peak_bytes)
    return (
        Effect(
            "rounding",
            0,
            rounding,
            "every tensor takes a multiple of 512 bytes, and a remainder under 1 MiB of a large block stays with it",
        ),
        Effect(
            "fragments",
            int(FRAGMENTS[0] * peak_bytes),
            int(FRAGMENTS[1] * peak_bytes),
            "free blocks between tensors, too small for the next one (reserved, not allocated), and NCCL's buffers",
        ),
        Effect("workspaces", *WORKSPACE, "scratch memory that the matrix libraries keep for each stream"),
        Effect(
            "context", *CONTEXT, "the driver's own state and the kernels' code: in nvidia-smi, not in torch's counters"
        ),
    )


def band(peak_bytes: int, tensors: int = 0) -> tuple[int, int]:
    """(low, high): what nvidia-smi may show for a step whose tensors take `peak_bytes` in `tensors` pieces."""
    parts = effects(peak_bytes, tensors)
    return peak_bytes + sum(effect.low for effect in parts), peak_bytes + sum(effect.high for effect in parts)


def usable(memory_bytes: int) -> int:
    """Usable memory: the largest peak of tensors, in bytes, that fits a GPU whose driver reports `memory_bytes`; at
    least 0. What a tensor's rounding takes is counted as fragments."""
    return max(0, int((memory_bytes - WORKSPACE[1] - CONTEXT[1]) / (1 + FRAGMENTS[1])))


def fits(peak_bytes: float, memory_bytes: int) -> bool:
    """Whether tensors of `peak_bytes` fit a card that reports `memory_bytes`: with the upper end of the band."""
    return peak_bytes <= usable(memory_bytes)


def host_fits(host_bytes: float, gpus: int) -> bool:
    """Whether a node's host has memory for what each of its `gpus` GPUs offloads: as much as a node of 8 H100 has."""
    return host_bytes * gpus <= NODE_HOST_BYTES


def verdict(peak_bytes: float, memory_bytes: int) -> str:
    """ "fits", "may fit" (within the band: the allocator decides) or "does not fit" (not even its lower end)."""
    if fits(peak_bytes, memory_bytes):
        return "fits"
    return "may fit" if band(int(peak_bytes))[0] <= memory_bytes else "does not fit"
