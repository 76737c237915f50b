"""The step of a deep model from the schedule of a shallow one: blocks are alike, and so is what each adds to a step.

Once the streams are in step with each other, every further block computes and sends the same seconds after the one
before. Where the middle of a few blocks shows that, the others are not scheduled; where it does not yet (gathers that
compete with replicas drift for long), more blocks are, at last all. Tests hold it equal to the whole schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import (  # fsum is exact: sum adds otherwise from Python 3.12 on, and the page has a newer one
    ceil,
    fsum,
    inf,
)

from scaleout.spec.sharding import Sharding, units
from scaleout.spec.transformer import Shape
from scaleout.timing.ddp import hidden_share
from scaleout.timing.fsdp import FsdpTimeline
from scaleout.timing.fsdp_plan import Piece, Plan
from scaleout.timing.fsdp_streams import Span
from scaleout.timing.intervals import Interval

LATE = ("across", "copy out")  # lanes that nothing waits for before the end: they may fall behind, block by block
SAME = 1e-9  # of a block's seconds: what rounding may do

Placed = tuple[bool, float, Span]  # whether it is of the backward; its block, -1 before all and inf after; the span


@dataclass(frozen=True)
class ShortTimeline:
    """A step of one pass, as FsdpTimeline tells it. Of its blocks `few` has some: `extra` more stand after `middle`,
    each `forward` seconds later in the forward; in the backward, `backward` seconds earlier, and on the lanes that may
    fall behind (LATE) `late` seconds."""

    few: FsdpTimeline
    placed: tuple[Placed, ...]  # the spans of the few
    middle: int = 0
    extra: int = 0
    forward: float = 0.0
    backward: float = 0.0
    late: float = 0.0

    @property
    def longer(self) -> float:
        """Seconds that the further blocks add."""
        both = self.extra * (self.forward + self.backward)
        if self.late == self.backward:
            return both
        behind = max(end for _, _, (lane, _, _, end, *_) in self.placed if lane in LATE)
        ahead = max(end for _, _, (lane, _, _, end, *_) in self.placed if lane not in LATE)
        done = max(ahead + both, behind + self.extra * (self.forward + self.late))
        return done - self.few.passes[0][1]

    @property
    def passes(self) -> tuple[Interval]:
        return ((0.0, self.few.passes[0][1] + self.longer),)

    @property
    def seconds(self) -> float:
        return self.few.seconds + self.longer

    @property
    def update_seconds(self) -> float:
        return self.few.update_seconds

    def updated(self, seconds: float) -> ShortTimeline:
        """The same step with so many seconds of the optimizer's update at its end, instead of its own."""
        bare = self.few.seconds - self.few.update_seconds
        return replace(self, few=replace(self.few, seconds=bare + seconds, update_seconds=seconds))

    @cached_property
    def compute_seconds(self) -> float:
        own = fsum(e - s for lane, _, s, e, *_ in self._own if lane == "compute")
        return self.few.compute_seconds + self.extra * own

    @cached_property
    def communication_seconds(self) -> float:
        own = fsum(e - s for lane, _, s, e, *_ in self._own if lane != "compute")
        return self.few.communication_seconds + self.extra * own

    @property
    def exposed_seconds(self) -> float:
        waits = self.few.exposed_seconds + self.longer - (self.compute_seconds - self.few.compute_seconds)
        return waits if waits > SAME * self.seconds or not self.extra else 0.0

    @property
    def overlap_fraction(self) -> float:
        return hidden_share(self.communication_seconds, self.exposed_seconds)

    @property
    def gathers(self) -> int:
        return self.count("gather")

    @property
    def scatters(self) -> int:
        return self.count("reduce")

    def count(self, lane: str) -> int:
        """Messages or copies of a lane."""
        return self._counts[lane]

    @cached_property
    def _counts(self) -> Counter[str]:
        few, own = (Counter([span[0] for span in spans]) for spans in (self.few.runs[0], self._own))
        return Counter({lane: n + self.extra * own[lane] for lane, n in few.items()})

    @cached_property
    def _own(self) -> list[Span]:
        """What the middle block computes and sends."""
        return [span for _, block, span in self.placed if block == self.middle]

    # --- what a picture shows -----------------------------------------------------------------------------------

    def _copies(self, every: int) -> dict[int, int]:
        """Of the middle block and its copies, by number from 0, each `every`-th and the last; and the last of those
        that it stands for."""
        shown = sorted({*range(0, self.extra + 1, every), self.extra})
        return {copy: after - 1 for copy, after in zip(shown, [*shown[1:], self.extra + 1], strict=True)}

    def later(self, back: bool, block: float, copy: int, lane: str = "") -> float:
        """Seconds by which a span of a lane is later than in the few."""
        if not back:
            return (self.extra if block > self.middle else copy if block == self.middle else 0) * self.forward
        passed = 0 if block > self.middle else self.extra - copy if block == self.middle else self.extra
        return self.extra * self.forward + passed * (self.late if lane in LATE else self.backward)

    def visits(self, numbers: set[int]) -> tuple[list[str], dict[tuple[str, int], Interval]]:
        """Units of the pieces in the order of the forward, of the blocks that are alike only those with these numbers,
        and where each computes: by what it computes ("forward", "backward", "recompute") and by piece, an interval."""
        blocks = blocks_of(self.few.pieces)
        copies = [number - self.middle for number in sorted(numbers) if 0 <= number - self.middle <= self.extra]
        rows: list[str] = []
        place: dict[tuple[int, int], int] = {}  # by piece of the few and copy: the piece that it is here
        own = [i for i, block in enumerate(blocks) if block == self.middle] if self.extra else []
        for i, piece in enumerate(self.few.pieces):
            if i not in own:
                place[i, 0] = len(rows)
                rows.append(renamed(piece.name, self.extra if blocks[i] > self.middle else 0))
            elif i == own[0]:
                for copy in copies:
                    place |= {(j, copy): len(rows) + k for k, j in enumerate(own)}
                    rows += [renamed(self.few.pieces[j].name, copy) for j in own]
        found = {}
        for back, block, (lane, name, start, end, piece, _) in self.placed:
            for copy in (copies if block == self.middle and self.extra else (0,)) if lane == "compute" else ():
                late = self.later(back, block, copy)
                found[name.partition(" ")[0], place[piece, copy]] = (start + late, end + late)
        return rows, found

    def intervals(self, every: int) -> Iterator[tuple[str, str, float, float]]:
        """(lane, what, start, end) in the order of ends. Where blocks are left out a block's are one, and one with
        those of the blocks that it stands for: together as long, and ending with the last."""
        out, together = [], {}
        for back, block, (lane, name, start, end, *_) in self.placed:
            what = name.rpartition(" ")[0]
            if self.extra and 0 <= block < inf:
                together.setdefault((lane, what, back, block), []).append((start, end))
            else:
                late = self.later(back, block, 0, lane)
                out.append((lane, what, start + late, end + late))
        copies = self._copies(every)
        for (lane, what, back, block), spans in together.items():
            busy, end = fsum(b - a for a, b in spans), max(b for _, b in spans)
            for copy, last in copies.items() if block == self.middle else ((0, 0),):
                until = end + self.later(back, block, copy if back else last, lane)
                out.append((lane, what, until - (last + 1 - copy) * busy, until))
        yield from sorted(out, key=lambda one: one[3])


def renamed(unit: str, shift: int) -> str:
    if not shift or not unit.startswith("blocks."):
        return unit
    _, number, *rest = unit.split(".")
    return ".".join(("blocks", str(int(number) + shift), *rest))


def blocks_of(work: tuple[Piece, ...]) -> list[float]:
    """The block of each piece. What the root computes of a block goes with what follows in it."""
    out, after = [], inf
    for piece in reversed(work):
        after = float(piece.name.split(".")[1]) if piece.name.startswith("blocks.") else after
        out.append(after)
        if piece.name == "tokens":
            after = -1.0
    return out[::-1]


def placed(line: FsdpTimeline) -> tuple[Placed, ...]:
    """The spans of a step of one pass, each with its block and its phase."""
    plan, blocks, arrived, out = Plan(line.pieces), blocks_of(line.pieces), set(), []
    for span in line.runs[0]:
        lane, name, _, _, piece, unit = span
        back = name.startswith(("backward", "recompute", "gather again", "reduce", "all-reduce", "copy out"))
        if lane == "copy in":
            back = unit in arrived
            arrived.add(unit)
        own = plan.names[unit]
        block = blocks[piece] if piece >= 0 else blocks[plan.last[unit]] if own and own != "tokens" else -1.0
        out.append((back, block, span))
    return tuple(out)


# --- a few blocks -----------------------------------------------------------------------------------------------


def looks_ahead(shape: Shape, sharding: Sharding) -> tuple[int, int]:
    """(units of a block, blocks that a gather looks ahead, and one)."""
    each = sum(unit.name.startswith("blocks.") for unit in units(replace(shape, layers=1), sharding))
    return each, 1 + ceil(sharding.prefetch / each) if each else 0


def steady(spans: tuple[Placed, ...], middle: int, window: int) -> tuple[float, float, float] | None:
    """Seconds from one block's forward to the next one's, of the backward, and of what may fall behind it, if `window`
    blocks before the middle one and the middle one itself take the same course as what follows them."""
    found: dict[tuple[bool, bool, float], list[tuple[str, float, float]]] = {}
    for back, block, (lane, name, start, end, *_) in spans:
        key = name.partition("blocks.")[0] + lane
        found.setdefault((back, lane in LATE, block), []).append((key, start, end))
    shifts = []
    for back, late, step_ in ((False, False, 1), (True, False, -1), (True, True, -1)):
        own = [found.get((back, late, middle + k * step_)) for k in range(-window, 2)]
        if late and not any(own):
            return shifts[0], shifts[1], shifts[1]
        starts = [
            next((start for name, start, _ in one or () if late or name.endswith("compute")), None) for one in own
        ]
        if None in starts:
            return None
        shift = starts[-1] - starts[-2]
        for k in range(len(own) - 1):
            if not _alike(own[k], own[k + 1], starts[k], starts[k + 1], SAME * shift):
                return None
        if any(abs(b - a - shift) > SAME * shift for a, b in pairwise(starts)):
            return None
        shifts.append(shift)
    return tuple(shifts)


def _alike(one: list, other: list, start: float, then: float, most: float) -> bool:
    if [name for name, *_ in one] != [name for name, *_ in other]:
        return False
    return all(
        abs((a - start) - (c - then)) <= most and abs((b - start) - (d - then)) <= most
        for (_, a, b), (_, c, d) in zip(one, other, strict=True)
    )
