"""Attention on one GPU: FLOPs, bytes of HBM, bytes kept, and the clocks of a multiprocessor that one tile occupies.

A kernel that computes attention in tiles computes for each tile of 128 queries by 128 keys two matrix multiplications
(five in the backward) and one exponential per score, and reads its operands from shared memory. Three units work on
this, each with a rate per clock of its own, and HBM brings the inputs. `clocks` has the cycles of each. If a kernel
overlaps them all, a tile takes as long as the longest (`Clocks.longest`), which no kernel can beat. If the exponentials
wait for the matrix multiplications, and these for them, it takes their sum (`Clocks.in_turn`). Both leave out
everything else that a kernel does: maxima, rescaling, conversions, masks, starts and ends.

    chip = GENERATIONS["b200"]
    a = Attention(seq=8192, head=128, heads=32)  # 16 bits, no mask
    clocks(chip, a).by_unit                      # tensor cores and exponentials 1,024 cycles, shared memory 768, HBM 71
    fp8_gain(chip, a)                            # 1.0: the exponentials do not get faster

Sources: FlashAttention-4 (arXiv 2603.05451), tables 1 and 3 and section 3, for rates and for B200's cycles
(tests/published/attention.json); NVIDIA, "Making softmax more efficient with Blackwell Ultra", for the doubled
exponentials of B300; datasheets (`spec.devices`) for clocks and HBM. What the book counts itself is said at its line.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scaleout.spec import checks
from scaleout.spec.devices import DEVICES, Device

TILE = 128  # queries, and keys, of a tile
UNITS = ("tensor cores", "exponentials", "shared memory", "HBM")
KERNELS = ("naive", "fused")
DIRECTIONS = ("forward", "backward")
FP32 = 4  # bytes of the log-sum-exp of a query, and of its sum over dO * O

# Matrix multiplications of a tile. The forward computes the scores and the output. The backward of a kernel that stored
# the probabilities has four; one that stored only the log-sum-exp recomputes the scores, and has five.
MATMULS = {"naive": {"forward": 2, "backward": 4}, "fused": {"forward": 2, "backward": 5}}

# Tensors of the size of Q that go through HBM at least once: Q, K, V and O in the forward; in the backward Q, K, V and
# dO are read and dQ, dK, dV written, and a fused kernel reads O too.
TENSORS = {"naive": {"forward": 4, "backward": 7}, "fused": {"forward": 4, "backward": 8}}

# How often a naive kernel goes over all scores. Forward: written, read by the softmax, written as probabilities, read.
# Backward: dV reads the probabilities, their gradient is written, the softmax's gradient reads both and writes a third,
# and dQ and dK read that (FlashAttention, arXiv 2205.14135, the algorithms of standard attention).
SCORES = {"forward": 4, "backward": 1 + 1 + 2 + 1 + 2}


@dataclass(frozen=True)
class Chip:
    """A generation of data-centre GPUs, by what one multiprocessor (SM) does in one clock.

    flop: dense tensor-core FLOPs by bytes of an operand. exponentials: of the special-function units (MUFU). shared:
    bytes of shared memory. rows: query rows that one instruction multiplies by operands of K or V, read once from
    shared memory. queries_read: whether an instruction reads Q from there too, or the warp holds it in registers.
    """

    name: str
    device: Device
    flop: dict[int, int]
    exponentials: int
    rows: int
    queries_read: bool
    shared: int = 128

    @property
    def clock(self) -> float:
        """Clocks per second at which its datasheet's peak is reached."""
        return self.device.matmul_flop_per_s("bf16") / self.device.multiprocessors / self.flop[2]

    @property
    def memory(self) -> float:
        """Bytes of HBM per clock, for each multiprocessor."""
        return self.device.memory_bytes_per_s / self.device.multiprocessors / self.clock

    def peak(self, width: int) -> float:
        """FLOP/s of all multiprocessors with operands of `width` bytes."""
        return self.flop[self.takes(width)] * self.device.multiprocessors * self.clock

    def takes(self, width: int) -> int:
        """The width, in bytes, if the chip multiplies numbers of it. Raises ValueError if not."""
        if width not in self.flop:
            raise ValueError(f"{self.name} multiplies no numbers of {width} byte: use 2 (bf16), or an H100 or newer")
        return width


# FLOPs per clock and SM follow from the datasheets (spec/devices.py has A100's and H100's clocks); FlashAttention-4
# prints 4,096 and 8,192. Exponentials: 16 per clock and SM from A100 to B200, 32 on B300; shared memory: 32 banks of 4
# bytes. Rows of an instruction: FlashAttention-2 gives each of 4 warps 32 of 128 query rows, and a warp loads all of K
# and V into its registers; Hopper's wgmma multiplies 64 rows, Blackwell's tcgen05.mma 128 (PTX ISA). For A100 and H100
# the cycles of shared memory are the book's own count from these rows, for B200 they are the paper's.
_B200 = Chip("B200", DEVICES["b200"], {2: 8192, 1: 16384}, 16, 128, True)
GENERATIONS = {
    "a100": Chip("A100", DEVICES["a100-80gb"], {2: 2048}, 16, 32, False),
    "h100": Chip("H100", DEVICES["h100-sxm"], {2: 4096, 1: 8192}, 16, 64, True),
    "b200": _B200,
    "b300": replace(_B200, name="B300", exponentials=32),  # else taken for a B200
}


@dataclass(frozen=True)
class Attention:
    """One attention layer's core. heads: of all sequences of the batch together, each with its own K and V; width:
    bytes of an element of Q, K and V as the tensor cores multiply them; O and all gradients have 2."""

    seq: int
    head: int
    heads: int = 1
    causal: bool = False
    width: int = 2

    def __post_init__(self) -> None:
        for name in ("seq", "head", "heads"):
            checks.whole(name, getattr(self, name), 1)
        checks.one_of("width", self.width, (1, 2))

    @property
    def scores(self) -> int:
        """Scores of all heads, masked ones included."""
        return self.heads * self.seq**2

    @property
    def row(self) -> int:
        """Numbers of Q, of all heads."""
        return self.heads * self.seq * self.head

    def tiles(self, kernel: str = "fused") -> int:
        """Tiles that a kernel computes: a fused one, with a causal mask, only those on the diagonal and below it."""
        along = -(-self.seq // TILE)
        return self.heads * (along * (along + 1) // 2 if self.causal and kernel == "fused" else along**2)


def model_flops(a: Attention, direction: str = "forward") -> float:
    """FLOPs that benchmarks divide by the time: 4 s^2 d per head, half of it under a causal mask, and 2.5 times that
    for a backward, as if each kernel recomputed the scores."""
    flops = 4 * a.scores * a.head / (2 if a.causal else 1)
    return flops * _matmuls("fused", direction) / 2


def made_flops(a: Attention, kernel: str, direction: str = "forward") -> int:
    """FLOPs of the matrix multiplications in a kernel: a fused one computes whole tiles, a naive one all scores."""
    matmuls = _matmuls(kernel, direction)
    return 2 * (a.tiles() * TILE**2 if kernel == "fused" else a.scores) * a.head * matmuls


def _matmuls(kernel: str, direction: str) -> int:
    checks.one_of("kernel", kernel, KERNELS)
    checks.one_of("direction", direction, DIRECTIONS)
    return MATMULS[kernel][direction]


def hbm_bytes(a: Attention, kernel: str, direction: str = "forward") -> float:
    """Bytes that a kernel at least reads from HBM and writes there.

    Naive: `SCORES` passes over all scores, in 16 bits. Fused: inputs and outputs once, and a log-sum-exp per query;
    K and V of a head are read by all its query tiles at about the same time, so that the L2 cache serves the others.
    """
    _matmuls(kernel, direction)
    inputs = 3 * a.row * a.width
    moved = inputs + 2 * a.row * (TENSORS[kernel][direction] - 3)
    if kernel == "naive":
        return moved + 2 * SCORES[direction] * a.scores
    rows = 1 if direction == "forward" else 3  # the backward writes and reads a sum per query too
    return moved + rows * FP32 * a.heads * a.seq


def kept_bytes(a: Attention, kernel: str) -> int:
    """Bytes saved for the backward, in 16 bits: Q, K and V, and naive the probabilities, fused the output and a
    log-sum-exp per query. The naive kernel's O is the next layer's input, which saves it."""
    checks.one_of("kernel", kernel, KERNELS)
    if kernel == "naive":
        return 2 * (3 * a.row + a.scores)
    return 2 * 4 * a.row + FP32 * a.heads * a.seq


@dataclass(frozen=True)
class Clocks:
    """Cycles of one multiprocessor for one tile, by unit."""

    matmul: float
    exponentials: float
    shared: float
    memory: float

    @property
    def by_unit(self) -> dict[str, float]:
        return dict(zip(UNITS, (self.matmul, self.exponentials, self.shared, self.memory), strict=True))

    @property
    def longest(self) -> float:
        """Cycles of a tile if a kernel overlaps all units: a bound that no kernel beats."""
        return max(self.by_unit.values())

    @property
    def in_turn(self) -> float:
        """Cycles if the exponentials wait for the matrix multiplications, and these for them; operands and HBM are
        fetched ahead meanwhile."""
        return max(self.matmul + self.exponentials, self.shared, self.memory)

    @property
    def tallest(self) -> str:
        """The unit that needs most cycles, the first of equal ones."""
        return max(self.by_unit, key=lambda unit: self.by_unit[unit])


def clocks(
    chip: Chip,
    a: Attention,
    direction: str = "forward",
    *,
    emulated: float = 0.0,
    pair: bool = False,
    kernel: str = "fused",
) -> Clocks:
    """Cycles of one tile. emulated: share of the exponentials that the kernel computes as polynomials on the FMA units
    (FlashAttention-4: 10 to 25%). pair: in the backward, two multiprocessors share each second operand (2-CTA)."""
    checks.number("emulated", emulated, 0, 1)
    flops = 2 * TILE * TILE * a.head * _matmuls(kernel, direction)
    operands = _forward_reads(chip, a) if direction == "forward" else _backward_reads(chip, a, pair)
    return Clocks(
        flops / chip.flop[chip.takes(a.width)],
        TILE * TILE * (1 - emulated) / chip.exponentials,
        operands / chip.shared,
        hbm_bytes(a, kernel, direction) / a.tiles(kernel) / chip.memory,
    )


def _forward_reads(chip: Chip, a: Attention) -> float:
    """Bytes of shared memory that the forward reads for a tile: K and V once for each `rows` queries, and Q. The
    probabilities stay in registers or tensor memory. On B200 three operands: 3 * 128 * d numbers, as in the paper."""
    times = 2 * TILE // chip.rows + chip.queries_read
    return times * TILE * a.head * a.width


def _backward_reads(chip: Chip, a: Attention, pair: bool) -> float:
    """Bytes of shared memory for a tile of the backward, in 16 bits: S and dP read two operands each, dV and dK one, dQ
    reads dS and K; dS is written, and dQ leaves in fp32, written once and read once.

    This split is the book's; its sum is the paper's for B200, 3,328 cycles for 128^3 and 2,688 with pairs, which halve
    each second operand. Other generations hold other parts in registers: for them only operands are counted as in the
    forward, once for each `rows`, and the result is a rough one.
    """
    square, wide = TILE * TILE, TILE * a.head
    shared = 0.5 if pair else TILE / chip.rows
    first = (2 * wide if chip.queries_read else 0) + square
    return a.width * (first + 5 * shared * wide + square) + 2 * FP32 * wide


def seconds(chip: Chip, a: Attention, direction: str = "forward", *, overlapped: bool = True, **ways) -> float:
    """Seconds of the whole kernel at the least, all multiprocessors busy to the end; ways: of `clocks`."""
    tile = clocks(chip, a, direction, **ways)
    cycles = tile.longest if overlapped else tile.in_turn
    return a.tiles(ways.get("kernel", "fused")) * cycles / chip.device.multiprocessors / chip.clock


def ceiling(chip: Chip, a: Attention, direction: str = "forward", **ways) -> float:
    """Share of the tensor cores' peak that a kernel reaches at most, its FLOPs counted as benchmarks count them."""
    return model_flops(a, direction) / seconds(chip, a, direction, **ways) / chip.peak(a.width)


def fp8_gain(chip: Chip, a: Attention, direction: str = "forward", **ways) -> float:
    """The least time with Q, K and V in 16 bits over the least time with 8: how many times as fast FP8 makes a kernel
    that reaches both."""
    wide, narrow = replace(a, width=2), replace(a, width=1)
    return seconds(chip, wide, direction, **ways) / seconds(chip, narrow, direction, **ways)
