"""Rates of one GPU: the time of a matrix multiplication, of fused attention, of a kernel that moves bytes.

A matrix multiplication is cut into tiles, and a multiprocessor makes one at a time: the last wave of tiles may leave
most of them idle, and each tile begins and ends with loads and stores that multiply nothing, as if its inner dimension
were `depth` longer. What is left is one share of the peak for a family of chips. Fused attention has shares of its own,
by kernel and family, which short sequences and narrow heads do not reach. The constants are *fitted*, all at once, by
`tools/fit_seconds.py`, to whole steps and to kernels that others measured (tests/published).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from scaleout.spec import checks
from scaleout.spec.devices import Device
from scaleout.spec.program import Program

# Rows and columns of a tile, as cuBLAS and CUTLASS have them for large multiplications in 16 bits.
TILE = (128, 256)

# Inner dimension that the beginning and the end of a tile are worth. Fitted.
DEPTH = 92

# Share of an idle last wave that is really lost: kernels with smaller tiles, or with tiles cut along the inner
# dimension, fill a part of it. Fitted.
WAVE = 0.783

# Share of the peak that a large multiplication in 16 bits reaches in a training step, by family of chips: the power
# limit holds an H100 below 0.7. Fitted, but for CDNA 3: the best shape of an MI300X reaches 0.51 (mamf-finder,
# tests/published/kernels.json), of which a step is taken to keep 0.84, about what it keeps on an H100 (0.69 of 0.80). A
# family that has no row here takes another's, which its GPUs name (`priced_as` in spec/devices.py): a guess.
# GeForce of Ada: with CACHED, by every second of nine steps on RTX 4090 (tests/published/fine_tuning_runs.json); the
# others are then off by 14% in the median. Its attention is taken for Ampere's, a guess.
MATMUL = {"ampere": 0.837, "ada-rtx": 0.92, "hopper": 0.693, "blackwell": 0.429, "cdna3": 0.43}

# Share of the peak that fused causal attention reaches (forward, backward) on long sequences with many heads of 128, by
# kernel and family. Hopper: FlashAttention-3 (arXiv 2407.08608), figures 5 and 6, FlashAttention-2 and cuDNN. Ampere
# and Blackwell: A100 and B200 as MooreThreads/SimuMax measured them (tests/published/kernels.json); FlashAttention-2
# is taken for cuDNN on A100. Triton's of 2023 and FlashAttention-2 on Blackwell are *fitted*.
ATTENTION = {
    "triton": {"ampere": (0.38, 0.314), "hopper": (0.272, 0.151), "blackwell": (0.20, 0.16), "cdna3": (0.20, 0.16)},
    "flash-2": {"ampere": (0.69, 0.56), "hopper": (0.38, 0.35), "blackwell": (0.20, 0.16), "cdna3": (0.30, 0.25)},
    "cudnn": {"ampere": (0.69, 0.56), "hopper": (0.60, 0.55), "blackwell": (0.62, 0.48), "cdna3": (0.30, 0.25)},
}
for _shares in ATTENTION.values():
    _shares["ada-rtx"] = _shares["ampere"]
# torch's memory-efficient kernel is CUTLASS's, of instructions that Ampere has: it is taken for as fast as Triton's of
# 2023, a guess.
ATTENTION["efficient"] = ATTENTION["triton"]
# FLOPs in 16 bits that the tensor cores compute while the special-function units compute one tanh, which is one
# instruction: 16 per clock and multiprocessor, beside 2,048, 4,096 and 8,192 FLOPs (timing/kernels.py, GENERATIONS;
# GeForce of Ada: 512; AMD CDNA 3: 16 transcendental results per clock and compute unit beside 2,048 FLOPs).
FLOPS_OF_TANH = {"ampere": 128, "ada-rtx": 32, "hopper": 256, "blackwell": 512, "cdna3": 128}
# Tokens of a sequence at which half of that is reached: H100, FlashAttention-2 and cuDNN, 512 to 16,384 tokens.
RAMP = 300
NARROW = 0.2  # exponent of d / 128 for narrower heads: 324 of 370 TFLOP/s with heads of 64 on H100 (the same figures)
# A multiprocessor takes a tile of queries of one head at a time, 128 of them, or 256 where two work together; the last
# ones, which attend to most keys, keep the others waiting: so many tiles' time of each multiprocessor is lost, forward
# and backward. A100 and B200, 4 to 128 heads of 4,096 tokens (SimuMax).
QUERIES = {"blackwell": 256}
TAIL = (1.4, 0.6)

# Multiplications of fused attention by those of its forward: the backward makes the scores again.
MATMULS = {"forward": 1.0, "backward": 2.5}

# Share of the memory's rate that kernels which only move bytes reach. Fitted.
MEMORY = 0.689
# How much faster such kernels are where most of what one writes is still in the L2 cache when the next one reads it: of
# 72 MB on an RTX 4090 and 96 MB on an L40S, beside 40 on an A100 and 50 on an H100, whose MEMORY has it in it.
CACHED = {"ada-rtx": 2.6}

# Seconds of a kernel that moves one number, on an H100, in a trace of the GPU: pytorch/ao, torchao/testing/float8/
# roofline_utils.py, KERNEL_LAUNCH_OVERHEAD_SEC. In a row of kernels the host is ahead, and no more of a launch shows.
KERNEL_SECONDS = 2e-6


@dataclass(frozen=True)
class Overhead:
    """Seconds of fused attention beside its multiplications, forward and backward: of a call, of each query of a head,
    of each number of one, of each score."""

    call: tuple[float, float] = (0.0, 0.0)
    query: tuple[float, float] = (0.0, 0.0)
    number: tuple[float, float] = (0.0, 0.0)
    score: tuple[float, float] = (0.0, 0.0)

    def seconds(self, phase: int, queries: float, head: int, seq: float) -> float:
        """Seconds of `queries` of all heads, each with `seq` scores."""
        per_query = self.query[phase] + head * self.number[phase] + seq * self.score[phase]
        return self.call[phase] + queries * per_query


@dataclass(frozen=True)
class Rates:
    """One GPU, or one process of a CPU. Rates in FLOP/s and bytes per second.

    peak: what MFU is relative to. matmul_flop_per_s: what large matrix multiplications reach. attention_flop_per_s:
    what fused attention reaches, forward and backward. memory_bytes_per_s: what kernels that move bytes reach.
    multiprocessors, queries, depth: of tiles, see the module. ramp, narrow: of attention. kernel_seconds: of each
    kernel, beside its arithmetic and its bytes. operand_seconds: of each byte of a multiplication's operands and
    result, beside its arithmetic. overhead: of attention. linear_seconds, backward_times: of the
    backward of a linear layer, its seconds beside two multiplications, and what those take relative to a forward's.
    block_seconds, ends_seconds: what the host takes for a block and for the model's ends, forward and backward;
    queued: beside kernels that it has launched before, which wait in a queue.
    update_bytes_per_s, tensor_seconds: what the optimizer reaches, 0 for what other kernels do, and of each tensor.
    masked_flop_per_s: what the attention reaches that takes a mask (None: the same). special_seconds: of one tanh, on
    all multiprocessors together. cached: how much faster kernels that only move bytes are for what lies in a cache.
    """

    peak: float
    matmul_flop_per_s: float
    attention_flop_per_s: tuple[float, float]
    memory_bytes_per_s: float
    multiprocessors: int = 0
    queries: int = 128
    depth: float = 0.0
    ramp: float = 0.0
    narrow: float = 0.0
    kernel_seconds: float = 0.0
    operand_seconds: float = 0.0
    overhead: Overhead = Overhead()
    linear_seconds: float = 0.0
    backward_times: float = 1.0
    block_seconds: tuple[float, float] = (0.0, 0.0)
    ends_seconds: tuple[float, float] = (0.0, 0.0)
    queued: bool = False
    update_bytes_per_s: float = 0.0
    tensor_seconds: float = 0.0
    masked_flop_per_s: tuple[float, float] | None = None
    special_seconds: float = 0.0
    cached: float = 1.0

    def matmul(self, rows: float, columns: int, depth: int, width: int = 2, count: int = 1) -> float:
        """Seconds of one (rows x depth) by (depth x columns) multiplication, elements of `width` bytes; of `count` of
        them in one grouped kernel."""
        wave = 1.0
        if self.multiprocessors:
            tiles = count * ceil(rows / TILE[0]) * ceil(columns / TILE[1])
            wave = 1 + WAVE * (ceil(tiles / self.multiprocessors) * self.multiprocessors / tiles - 1)
        computes = count * 2 * rows * columns * (depth + self.depth) * wave / self.matmul_flop_per_s
        size = count * width * (rows * depth + depth * columns + rows * columns)
        moves = size / self.memory_bytes_per_s
        return max(computes, moves) + size * self.operand_seconds + self.kernel_seconds

    def thin(self, rows: float, columns: int, depth: int, width: int = 2) -> float:
        """Seconds of a multiplication that has one small size, such as an adapter's rank: cut along its longest one, it
        occupies all multiprocessors, and takes the time of its bytes. The host launched it while larger ones ran."""
        size = width * (rows * depth + depth * columns + rows * columns)
        computes = 2 * rows * columns * depth / self.matmul_flop_per_s
        moves = size / self.memory_bytes_per_s
        return max(computes, moves) + size * self.operand_seconds + self.small_seconds

    @property
    def small_seconds(self) -> float:
        """Of a kernel among others that the host has launched before, beside its arithmetic and its bytes."""
        return min(KERNEL_SECONDS, self.kernel_seconds)

    def backward(self, rows: float, columns: int, depth: int, width: int = 2, count: int = 1) -> tuple[float, float]:
        """Seconds of a linear layer's backward, (all of it, of its weights' gradient). Sizes as in its forward."""
        weights = self.backward_times * self.matmul(depth, columns, max(1, int(rows)), width, count)
        inputs = self.backward_times * self.matmul(rows, depth, columns, width, count)
        return inputs + weights + self.linear_seconds, weights

    def attention(
        self,
        flops: float,
        seq: int,
        head: int,
        heads: float,
        share: float = 1.0,
        *,
        masked: bool = False,
        capped: bool = False,
    ) -> tuple[float, float]:
        """Seconds (forward, backward) of fused causal attention; its two matmuls have `flops` with the masked half.

        heads: of all sequences together, each of `seq` tokens and `head` wide. The kernel leaves out the masked half;
        its backward makes the scores again (`MATMULS`). share: of the scores below the diagonal those that it computes,
        fewer in a window, 2 for all scores. masked: by the kernel that takes a mask. capped: tanh limits each score.
        """
        keys = seq * share  # twice as many as a query has on average
        reached = keys / (keys + self.ramp) * min(1.0, head / 128) ** self.narrow
        tiles = heads * seq / self.queries / self.multiprocessors if self.multiprocessors else 0.0
        rate = (self.masked_flop_per_s if masked else None) or self.attention_flop_per_s
        beside = heads * seq * keys / 2 * self.special_seconds * capped
        seconds = []
        for phase, times in enumerate(MATMULS.values()):
            idle = 1 + TAIL[phase] / tiles if tiles else 1.0
            overhead = self.overhead.seconds(phase, heads * seq, head, keys)
            seconds.append(times * flops * share / 2 / rate[phase] / reached * idle + overhead + beside)
        return seconds[0], seconds[1]

    def moved(self, size: float, kernels: int = 0) -> float:
        """Seconds of kernels that read and write `size` bytes in all."""
        return size / self.memory_bytes_per_s / self.cached + kernels * self.kernel_seconds

    def host(self, seconds: float, kernels: float) -> float:
        """What shows of the host's seconds for kernels that take so many themselves."""
        return max(0.0, seconds - kernels) if self.queued else seconds

    def updated(self, size: float) -> float:
        """Seconds in which an optimizer reads and writes `size` bytes."""
        return size / (self.update_bytes_per_s or self.memory_bytes_per_s)


def family(device: Device) -> str:
    """The family of chips whose shares a device has: its own, or the one that its row takes by a guess."""
    return device.priced_as or device.architecture


def device_rates(device: Device, program: Program, dtype: str) -> Rates:
    """A GPU by its datasheet, as a program uses it. Only 16-bit rates of large chips were fitted: others take the same
    shares of their own peak."""
    checks.instance("device", device, Device)
    chips, peak = family(device), device.matmul_flop_per_s(dtype)
    forward, backward = (peak * share for share in ATTENTION[program.attention][chips])
    masked = ATTENTION["efficient"][chips]
    return Rates(
        peak,
        peak * MATMUL[chips],
        (forward, backward),
        device.memory_bytes_per_s * MEMORY,
        device.multiprocessors,
        QUERIES.get(chips, 128),
        DEPTH,
        RAMP,
        NARROW,
        program.kernel_seconds,
        masked_flop_per_s=None if program.windows else (peak * masked[0], peak * masked[1]),
        special_seconds=FLOPS_OF_TANH[chips] / device.matmul_flop_per_s(device.half),
        cached=CACHED.get(chips, 1.0),
    )
