"""What a reader chose in the view `recompute`, and what follows: tensors freed, seconds of recomputation, bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import ceil, fsum

from scaleout.timing.knapsack import Priced, curve
from scaleout.views.recompute.case import Case
from scaleout.words.amounts import quantity

STEP = 5  # percent of what can be freed, from one stop of the slider to the next


@dataclass(frozen=True)
class Setting(Case):
    """A case, and what is freed: percent of what all blocks can free, in what order, by recomputing or offloading."""

    dropped: int
    order: str
    way: str

    @cached_property
    def case(self) -> Case:
        """What does not depend on what is freed, computed once."""
        return Case.of(vars(self))

    # --- what is freed ----------------------------------------------------------------------------------------------

    @cached_property
    def tiles(self) -> tuple[Priced, ...]:
        """In the order in which they are freed."""
        last = curve([*self.case.items.values()], self.order)[-1]
        return tuple(self.case.items[name] for name in last.names)

    @cached_property
    def counts(self) -> dict[str, int]:
        """In how many blocks each tensor is freed: in all blocks, one tensor after the other; the last one in as many
        as it takes."""
        blocks, free, blocks_by_tile = self.case.blocks, self.requested_bytes, {}
        for item in self.tiles:
            blocks_by_tile[item.name] = max(0, min(blocks, ceil(free / item.bytes)))
            free -= blocks_by_tile[item.name] * item.bytes
        return blocks_by_tile

    @property
    def requested_bytes(self) -> int:
        """Bytes to be freed, in all blocks."""
        return ceil(self.case.blocks * self.case.block * self.dropped / 100)

    @cached_property
    def freed(self) -> int:
        return sum(n * self.case.items[name].bytes for name, n in self.counts.items())

    @property
    def kept_bytes(self) -> int:
        """Bytes that the blocks save between forward and backward."""
        return self.case.blocks * (self.case.block + self.case.input) - self.freed

    # --- what it takes ----------------------------------------------------------------------------------------------

    @cached_property
    def recompute_seconds(self) -> float:
        """Seconds of recomputation. A block that frees all of its tensors is run again as a whole."""
        tiles = fsum(n * self.case.items[name].seconds for name, n in self.counts.items())
        return tiles + min(self.counts.values()) * self.case.rest_seconds

    @cached_property
    def waits(self) -> tuple[float, float]:
        """Seconds of copies that nothing overlaps with: (out, back)."""
        return self.case.moved(self.freed)

    @property
    def longer(self) -> float:
        """Seconds by which the step is longer."""
        if self.way == "offload":
            return fsum(self.waits)
        return self.case.step_seconds(self.recompute_seconds) - self.case.plain.seconds

    @property
    def share(self) -> float:
        return self.longer / self.case.plain.seconds

    @property
    def percent(self) -> str:
        """The share in percent, as words."""
        value = 100 * self.share
        return f"{value:.1f}" if 9.95 <= value < 99.95 else f"{value:,.0f}" if value > 99 else quantity(value, 2)

    @property
    def parts(self) -> dict[str, float]:
        """Step time by part."""
        plain = self.case.plain.parts
        waits = fsum(plain[name] for name in ("exposed tensor", "exposed data", "stragglers"))
        last = "recomputation" if self.way == "rebuild" else "exposed copies"
        return {
            "compute": plain["compute"] + plain["launches"],
            "update": plain["update"] + plain["host"],
            "exposed communication": waits,
            last: self.longer,
        }

    @property
    def seconds(self) -> float:
        return self.case.plain.seconds + self.longer

    def rise(self, way: str, stops: int = 0) -> list[tuple[float, float]]:
        """(bytes freed per block, share by which the step is longer): tensor after tensor, or, where the curve bends
        between them, at so many stops. way: as the control's, or "blocks": all tensors in some of the blocks."""
        sizes = [0, *accumulate(item.bytes for item in self.tiles)]
        plain, blocks = self.case.plain.seconds, self.case.blocks
        spent, block_seconds = [0.0, *accumulate(item.seconds for item in self.tiles)], self.case.step_seconds
        spent[-1] += self.case.rest_seconds
        if way == "rebuild":
            return [
                (size, block_seconds(blocks * seconds) / plain - 1) for size, seconds in zip(sizes, spent, strict=True)
            ]
        stop_sizes = [sizes[-1] * k / stops for k in range(stops + 1)]
        if way == "blocks":
            return [(size, block_seconds(size / sizes[-1] * blocks * spent[-1]) / plain - 1) for size in stop_sizes]
        return [(size, fsum(self.case.moved(blocks * size)) / plain) for size in stop_sizes]

    @property
    def by_blocks(self) -> float:
        """The share, if as many bytes were freed by some of the blocks, each recomputed as a whole."""
        all_dropped = self.other(dropped=100, way="rebuild")
        return (
            self.case.step_seconds(self.freed / all_dropped.freed * all_dropped.recompute_seconds)
            / self.case.plain.seconds
            - 1
        )

    # --- bytes of a GPU ---------------------------------------------------------------------------------------------

    @cached_property
    def peak_kinds(self) -> dict[str, float]:
        """Bytes by kind at the peak of the step. What is freed is missing from the end of the forward pass on, and is
        there again in a block's backward pass. If a part is freed, the moments of a step that saves only inputs bound
        it from below; where FSDP's gathered blocks are as large as what is saved, a walk of all blocks finds up to 2.5%
        more."""
        freed_block = sum(self.case.items[name].bytes for name, n in self.counts.items() if n == self.case.blocks)
        moments = [*self.case.bare.values()] if self.freed else []
        for moment, kinds in self.case.undropped.items():
            freed_at = {
                "forward": self.freed,
                "loss": self.freed,
                "head": self.freed,
                "block": self.freed - freed_block,
            }
            freed = min(freed_at.get(moment, 0), kinds["activations"])
            moments.append(kinds | {"activations": kinds["activations"] - freed})
        return max(moments, key=lambda kinds: fsum(kinds.values()))

    @cached_property
    def peak(self) -> float:
        return fsum(self.peak_kinds.values())

    @property
    def fits(self) -> bool:
        return self.peak <= self.case.usable

    @cached_property
    def least(self) -> int | None:
        """Percent, on the control's stops, from which the step fits; None where it does not."""
        if not self.other(dropped=100).fits:
            return None
        low, high = -1, 100 // STEP  # the last that does not, the first that does
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.other(dropped=STEP * middle).fits else (middle, high)
        return STEP * high
