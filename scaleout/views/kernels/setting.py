"""An attention layer in the view `kernels`: what is computed, on which GPU, by which kind of kernel, and the cycles of
each unit that follow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from scaleout.timing import kernels
from scaleout.timing.kernels import GENERATIONS, Attention, Chip, Clocks
from scaleout.views import base

# What the benchmark of FlashAttention computes: so many tokens, in heads of a layer of this width.
TOKENS, HIDDEN = 16_384, 2048
BLACKWELL = ("b200", "b300")

# Measured TFLOP/s of a forward without a mask, 16,384 tokens, and the peak that they are a share of, by (generation,
# head size, bytes of an element, kernel). H100: FlashAttention-3 (arXiv 2407.08608), figures 5 to 7, with FA2 as the
# kernel that uses the units in turn. B200: FA4 in Dao-AILab/flash-attention, pull request 2605, whose GPU has no name
# there and a peak of 2,500 (tests/published/kernels.json).
H100, BLACKWELL_PEAK = (989.4, 1978.9), 2500
PUBLISHED = {
    ("h100", 64, 2, "turn"): (324, H100[0]), ("h100", 128, 2, "turn"): (370, H100[0]),
    ("h100", 256, 2, "turn"): (326, H100[0]), ("h100", 64, 2, "overlap"): (497, H100[0]),
    ("h100", 128, 2, "overlap"): (648, H100[0]), ("h100", 256, 2, "overlap"): (756, H100[0]),
    ("h100", 64, 1, "overlap"): (613, H100[1]), ("h100", 256, 1, "overlap"): (1171, H100[1]),
    ("b200", 64, 2, "overlap"): (1225, BLACKWELL_PEAK), ("b200", 128, 2, "overlap"): (1882, BLACKWELL_PEAK),
}  # fmt: skip


@dataclass(frozen=True)
class Setting(base.Setting):
    """Controls by name. chip: a key of GENERATIONS; head, seq: numbers of a head, tokens of a sequence; precision: "16"
    or "8" bits of Q, K and V; kernel: "naive", "turn" or "overlap"; direction: "forward" or "backward"; emulated: per
    cent of the exponentials that FMA units compute."""

    chip: str
    head: int
    precision: str
    kernel: str
    seq: int
    causal: bool
    direction: str
    emulated: int

    @property
    def generation(self) -> Chip:
        return GENERATIONS[self.chip]

    @property
    def no_fp8(self) -> str:
        """Why this setting has no FP8; "" where it has."""
        if 1 not in self.generation.flop:
            return "An A100 has no FP8 tensor cores."
        if self.kernel == "naive":
            return "Here only the kernels that work in tiles use FP8."
        return "FlashAttention's FP8 kernels have no backward." if self.direction == "backward" else ""

    @property
    def no_emulation(self) -> str:
        """Why no exponentials are emulated; "" where they can be."""
        if self.kernel == "naive":
            return "The naive kernel waits for HBM, not for exponentials."
        if self.chip == "b200" and self.kernel == "overlap" and self.direction == "forward":
            return ""
        return "FlashAttention-4 does this in its forward on B200."

    @property
    def width(self) -> int:
        """Bytes of an element of Q, K and V."""
        return 1 if self.precision == "8" and not self.no_fp8 else 2

    @cached_property
    def attention(self) -> Attention:
        heads = HIDDEN // self.head * (TOKENS // self.seq)
        return Attention(self.seq, self.head, heads, self.causal, self.width)

    @property
    def file(self) -> str:
        """The kernel's name in `timing.kernels`."""
        return "naive" if self.kernel == "naive" else "fused"

    @cached_property
    def clocks(self) -> Clocks:
        return self._clocks(self.attention)

    def _clocks(self, attention: Attention) -> Clocks:
        share = 0.0 if self.no_emulation else self.emulated / 100
        pair = self.direction == "backward" and self.chip in BLACKWELL and self.kernel == "overlap"
        return kernels.clocks(self.generation, attention, self.direction, emulated=share, pair=pair, kernel=self.file)

    def _tile(self, clocks: Clocks) -> float:
        return clocks.longest if self.kernel == "overlap" else clocks.in_turn

    @property
    def tile(self) -> float:
        """Cycles of a tile, at the least."""
        return self._tile(self.clocks)

    @cached_property
    def wide(self) -> Clocks:
        """The same with Q, K and V in 16 bits."""
        return self._clocks(replace(self.attention, width=2))

    @cached_property
    def fp8_percent(self) -> float | None:
        """Time with FP8 in per cent of the time with 16 bits; None where there is no FP8."""
        if self.no_fp8:
            return None
        return 100 * self._tile(self._clocks(replace(self.attention, width=1))) / self._tile(self.wide)

    @property
    def seconds(self) -> float:
        return (
            self.attention.tiles(self.file) * self.tile / self.generation.device.multiprocessors / self.generation.clock
        )

    @property
    def flop_per_s(self) -> float:
        """As benchmarks count it, but without the scores that a naive backward does not compute again."""
        counted = kernels.model_flops(self.attention, self.direction)
        made = kernels.MATMULS[self.file][self.direction] / kernels.MATMULS["fused"][self.direction]
        return made * counted / self.seconds

    @property
    def share(self) -> float:
        """Of the tensor cores' peak."""
        return self.flop_per_s / self.generation.peak(self.width)

    @property
    def bound(self) -> str:
        """What decides the time of a tile: a unit, or two of them in turn."""
        clocks = self.clocks
        if self.kernel != "overlap" and self.tile > max(clocks.shared, clocks.memory):
            return "in turn"
        return clocks.tallest

    @property
    def published(self) -> float | None:
        """The share of the peak that was measured for this setting, where somebody published it."""
        if self.seq != TOKENS or self.causal or self.direction == "backward" or self.emulated:
            return None
        found = PUBLISHED.get((self.chip, self.head, self.width, self.kernel))
        return found[0] / found[1] if found else None
