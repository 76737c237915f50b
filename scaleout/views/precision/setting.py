"""What a reader chose in the view `precision`, and what follows: a loss scale, what a format makes of the gradients,
what a scaler does step by step, and what scales that blocks share do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from scaleout.numerics.blocks import Blocks
from scaleout.numerics.formats import FORMATS, Format
from scaleout.numerics.octaves import Fate, Histogram, fate, kept_bits, together
from scaleout.numerics.recorded import GRADIENTS, LARGEST
from scaleout.numerics.rounding import beyond
from scaleout.numerics.scaling import Scaler, Step, search
from scaleout.numerics.shared import Shared, shared
from scaleout.views import base

EVERY_PART = "all"
HEADS = {"activations": "head", "weights": "embeddings"}  # the head's weights are those of the embedding
KINDS = ("queries and keys", "values and output", "MLP")
PARTS = tuple(f"block {i}, {kind}" for i in (1, 2, 3, 4) for kind in KINDS)
STEPS = len(LARGEST)
MOST_OCTAVES = 24  # octaves of a loss scale
SCALES = {"tensor": ("fp32", "floor"), "floor": ("e8m0", "floor"), "up": ("e8m0", "up"), "nv": ("e4m3", "floor")}


@dataclass(frozen=True)
class Setting(base.Setting, remembered=128):
    """What a reader chose. scale: log2 of the loss scale; step: of the search, 0 for none; block: numbers that share a
    scale; smaller: octaves that later gradients lie lower."""

    step: int
    format: str
    scale: int
    part: str
    moment: str
    kind: str
    shared: str
    block: int
    interval: int
    smaller: int

    @property
    def f(self) -> Format:
        return FORMATS[self.format]

    # --- the gradients ----------------------------------------------------------------------------------------------

    @cached_property
    def parts(self) -> dict[str, Histogram]:
        """Gradients of this moment and kind, of the blocks' parts and of the head."""
        recorded = GRADIENTS[self.moment][self.kind]
        return {part: recorded[part].scaled(-self.smaller) for part in (*PARTS, HEADS[self.kind])}

    @property
    def recorded(self) -> str:
        """The part as the recording calls it."""
        return HEADS[self.kind] if self.part == "head" else self.part

    @cached_property
    def h(self) -> Histogram:
        """The part's gradients, unscaled."""
        if self.part != EVERY_PART:
            return self.parts[self.recorded]
        return together(GRADIENTS[self.moment][self.kind].values()).scaled(-self.smaller)

    @cached_property
    def peak(self) -> tuple[float, str, str]:
        """log2 of the largest gradient that is stored in the format, unscaled, its part and its kind. 16-bit matmuls
        compute both kinds in it; those of fewer bits read activations' in it, and give weights' in more bits."""
        if self.searches:
            return math.log2(self.current.largest / self.current.scale), "", ""
        kinds = HEADS if self.f.bits > 8 else (self.kind,)
        rows = [(h.largest, part, kind) for kind in kinds for part, h in GRADIENTS[self.moment][kind].items()]
        largest, part, kind = max(rows)
        return math.log2(largest) - self.smaller, part, kind

    # --- the loss scale ---------------------------------------------------------------------------------------------

    @property
    def shares(self) -> bool:
        """Whether blocks share scales, which 16 bits do without."""
        return self.shared != "none" and self.f.bits <= 8

    @property
    def searches(self) -> bool:
        """Whether a scaler sets the loss scale, as it does in fp16."""
        return self.step > 0 and self.format == "fp16"

    @cached_property
    def course(self) -> tuple[Step, ...]:
        """What GradScaler does on the recorded largest gradients, from its own first scale."""
        largest = [math.ldexp(size, -self.smaller) for size in LARGEST]
        return search(largest, FORMATS["fp16"], Scaler(interval=self.interval), repeats=True)

    @property
    def current(self) -> Step:
        """The scaler's step that is shown, where it searches."""
        return self.course[self.step - 1]

    @property
    def octaves(self) -> int:
        """log2 of the loss scale in use."""
        if self.searches:
            return round(math.log2(self.current.scale))
        return 0 if self.shares else self.scale

    # --- what the format makes of them ------------------------------------------------------------------------------

    @cached_property
    def fate(self) -> Fate:
        """Of the part's gradients, under the loss scale alone."""
        return fate(self.h, self.f, self.octaves)

    @property
    def zero_below(self) -> int:
        """log2 of where zero begins, of what is scaled."""
        return self.f.lowest_octave - self.f.mantissa - 1

    @property
    def largest(self) -> float:
        """log2 of the part's largest gradient, scaled."""
        return math.log2(self.h.largest) + self.octaves

    @property
    def overflows(self) -> bool:
        """Whether the largest of all gradients is beyond the format."""
        return not self.shares and beyond(2.0 ** (self.peak[0] + self.octaves), self.f)

    @property
    def leaves_out(self) -> bool:
        """Whether the step is skipped for it: a format that saturates goes on."""
        return self.overflows and not self.f.saturates

    @property
    def lost(self) -> float:
        """Share of the part's gradients that become zero, or are beyond the top."""
        return self.fate.zero + self.fate.beyond

    @property
    def middle(self) -> int:
        """The octave of the median, scaled."""
        return self.h.middle() + self.octaves

    @property
    def kept_bits(self) -> int:
        """Significant bits that the median keeps."""
        return kept_bits(self.middle, self.f)

    @cached_property
    def zeros(self) -> dict[str, float]:
        """The share that becomes zero, by part."""
        return {part: fate(h, self.f, self.octaves).zero for part, h in self.parts.items()}

    @cached_property
    def best(self) -> int | None:
        """log2 of a loss scale: the largest of the control's at which no step is skipped; where the format saturates,
        the one that loses least."""
        ways = [self.other(step=0, shared="none", scale=k) for k in range(MOST_OCTAVES, -1, -1)]
        if self.f.saturates:
            return min(ways, key=lambda way: way.lost).scale
        return next((way.scale for way in ways if not way.leaves_out), None)

    # --- scales that blocks share -----------------------------------------------------------------------------------

    @property
    def rule(self) -> str:
        return SCALES[self.shared][1]

    @cached_property
    def blocks(self) -> Blocks:
        """How numbers share scales."""
        size = None if self.shared == "tensor" else self.block
        return Blocks(self.shared, self.f, size, FORMATS[SCALES[self.shared][0]], self.shared == "nv")

    @cached_property
    def shared_fate(self) -> Shared:
        """What that makes of the part's gradients."""
        return shared(self.h, self.blocks, self.rule)
