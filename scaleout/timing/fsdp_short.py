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
from operator import itemgetter

from scaleout.spec.sharding import Sharding, units
from scaleout.spec.transformer import Shape
from scaleout.timing.ddp import hidden_share
from scaleout.timing.fsdp import FsdpTimeline
from scaleout.timing.fsdp_plan import Piece, Plan
from scaleout.timing.fsdp_streams import Span
from scaleout.timing.intervals import Interval

LAGGING = ("across", "copy out")  # lanes that nothing waits for before the end: they may fall behind, block by block
ROUNDING = 1e-9  # of a block's seconds: what rounding may do

Placed = tuple[bool, float, Span]  # whether it is of the backward; its block, -1 before all and inf after; the span


@dataclass(frozen=True)
class ShortTimeline:
    """A step of one pass, as FsdpTimeline tells it. Of its blocks `sample` has some: `extra` more stand after `middle`,
    each `forward` seconds later in the forward; in the backward, `backward` seconds earlier, and on the lanes that may
    fall behind (LAGGING) `lagging` seconds."""

    sample: FsdpTimeline
    placed: tuple[Placed, ...]  # the spans of the sample
    middle: int = 0
    extra: int = 0
    forward: float = 0.0
    backward: float = 0.0
    lagging: float = 0.0

    @cached_property
    def longer(self) -> float:
        """Seconds that the further blocks add."""
        shown = self.extra * (self.forward + self.backward)
        if self.lagging == self.backward:
            return shown
        late_end = max(end for _, _, (lane, _, _, end, *_) in self.placed if lane in LAGGING)
        other_end = max(end for _, _, (lane, _, _, end, *_) in self.placed if lane not in LAGGING)
        until = max(other_end + shown, late_end + self.extra * (self.forward + self.lagging))
        return until - self.sample.passes[0][1]

    @property
    def passes(self) -> tuple[Interval]:
        return ((0.0, self.sample.passes[0][1] + self.longer),)

    @property
    def seconds(self) -> float:
        return self.sample.seconds + self.longer

    @property
    def update_seconds(self) -> float:
        return self.sample.update_seconds

    def updated(self, seconds: float) -> ShortTimeline:
        """The same step with so many seconds of the optimizer's update at its end, instead of its own."""
        bare = self.sample.seconds - self.sample.update_seconds
        return replace(self, sample=replace(self.sample, seconds=bare + seconds, update_seconds=seconds))

    @cached_property
    def compute_seconds(self) -> float:
        block = fsum(e - s for lane, _, s, e, *_ in self._middle_spans if lane == "compute")
        return self.sample.compute_seconds + self.extra * block

    @cached_property
    def communication_seconds(self) -> float:
        block = fsum(e - s for lane, _, s, e, *_ in self._middle_spans if lane != "compute")
        return self.sample.communication_seconds + self.extra * block

    @property
    def exposed_seconds(self) -> float:
        waits = self.sample.exposed_seconds + self.longer - (self.compute_seconds - self.sample.compute_seconds)
        return waits if waits > ROUNDING * self.seconds or not self.extra else 0.0

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
        run, block = (Counter([span[0] for span in spans]) for spans in (self.sample.runs[0], self._middle_spans))
        return Counter({lane: n + self.extra * block[lane] for lane, n in run.items()})

    @cached_property
    def _middle_spans(self) -> list[Span]:
        """What the middle block computes and sends."""
        return [span for _, block, span in self.placed if block == self.middle]

    # --- what a picture shows -----------------------------------------------------------------------------------

    def _copies(self, step: int) -> dict[int, int]:
        """Of the middle block and its copies, by number from 0, each `step`-th and the last; and the last of those
        that it stands for."""
        shown = sorted({*range(0, self.extra + 1, step), self.extra})
        return {copy: following - 1 for copy, following in zip(shown, [*shown[1:], self.extra + 1], strict=True)}

    def later(self, in_backward: bool, block: float, copy: int, lane: str = "") -> float:
        """Seconds by which a span of a lane is later than in the sample."""
        if not in_backward:
            return (self.extra if block > self.middle else copy if block == self.middle else 0) * self.forward
        passed = 0 if block > self.middle else self.extra - copy if block == self.middle else self.extra
        return self.extra * self.forward + passed * (self.lagging if lane in LAGGING else self.backward)

    def visits(self, numbers: set[int]) -> tuple[list[str], dict[tuple[str, int], Interval]]:
        """Units of the pieces in the order of the forward, of the blocks that are alike only those with these numbers,
        and where each computes: by what it computes ("forward", "backward", "recompute") and by piece, an interval."""
        blocks = blocks_of(self.sample.pieces)
        copies = [number - self.middle for number in sorted(numbers) if 0 <= number - self.middle <= self.extra]
        rows: list[str] = []
        rows_at: dict[tuple[int, int], int] = {}  # by piece of the sample and copy: the piece that it is here
        middle = [i for i, block in enumerate(blocks) if block == self.middle] if self.extra else []
        for i, block in enumerate(blocks):
            if i not in middle:
                rows_at[i, 0] = len(rows)
                rows.append(renamed(self.sample.pieces[i].name, self.extra if block > self.middle else 0))
            elif i == middle[0]:
                for copy in copies:
                    rows_at |= {(j, copy): len(rows) + k for k, j in enumerate(middle)}
                    rows += [renamed(self.sample.pieces[j].name, copy) for j in middle]
        spans, shifts = {}, {back: [self.later(back, self.middle, copy) for copy in copies] for back in (False, True)}
        for in_backward, block, (lane, name, start, end, piece, _) in self.placed:
            if lane != "compute":
                continue
            label = name.partition(" ")[0]
            if block == self.middle and self.extra:
                for copy, shift in zip(copies, shifts[in_backward], strict=True):
                    spans[label, rows_at[piece, copy]] = (start + shift, end + shift)
            else:
                shift = self.later(in_backward, block, 0)
                spans[label, rows_at[piece, 0]] = (start + shift, end + shift)
        return rows, spans

    def intervals(self, step: int) -> Iterator[tuple[str, str, float, float]]:
        """(lane, what, start, end) in the order of ends. Where blocks are left out a block's are one, and one with
        those of the blocks that it stands for: together as long, and ending with the last."""
        rows: list[tuple[str, str, float, float]] = []
        grouped: dict[tuple[str, str, bool, float], list[Interval]] = {}
        for in_backward, block, (lane, name, start, end, *_) in self.placed:
            label = name.rpartition(" ")[0]
            if self.extra and 0 <= block < inf:
                grouped.setdefault((lane, label, in_backward, block), []).append((start, end))
            else:
                shift = self.later(in_backward, block, 0, lane)
                rows.append((lane, label, start + shift, end + shift))
        copies = self._copies(step)
        counts = [last + 1 - copy for copy, last in copies.items()]
        shifts = {
            (back, late): [self.later(back, self.middle, copy, LAGGING[0] if late else "") for copy in of_copies]
            for back, of_copies in ((False, copies.values()), (True, copies))
            for late in (False, True)
        }
        for (lane, label, in_backward, block), spans in grouped.items():
            busy, end = fsum([b - a for a, b in spans]), max([b for _, b in spans])
            if block == self.middle:
                ends = [end + shift for shift in shifts[in_backward, lane in LAGGING]]
                rows += [(lane, label, end - n * busy, end) for n, end in zip(counts, ends, strict=True)]
            else:
                last_end = end + self.later(in_backward, block, 0, lane)
                rows.append((lane, label, last_end - busy, last_end))
        yield from sorted(rows, key=itemgetter(3))


def renamed(unit: str, shift: int) -> str:
    if not shift or not unit.startswith("blocks."):
        return unit
    _, number, *names = unit.split(".")
    return ".".join(("blocks", str(int(number) + shift), *names))


def blocks_of(work: tuple[Piece, ...]) -> list[float]:
    """The block of each piece. What the root computes of a block goes with what follows in it."""
    blocks, block = [], inf
    for piece in reversed(work):
        block = float(piece.name.split(".")[1]) if piece.name.startswith("blocks.") else block
        blocks.append(block)
        if piece.name == "tokens":
            block = -1.0
    return blocks[::-1]


def placed(line: FsdpTimeline) -> tuple[Placed, ...]:
    """The spans of a step of one pass, each with its block and its phase."""
    plan, blocks, arrived, spans = Plan(line.pieces), blocks_of(line.pieces), set(), []
    for span in line.runs[0]:
        lane, name, _, _, piece, unit = span
        in_backward = name.startswith(("backward", "recompute", "gather again", "reduce", "all-reduce", "copy out"))
        if lane == "copy in":
            in_backward = unit in arrived
            arrived.add(unit)
        name_of_unit = plan.names[unit]
        block = (
            blocks[piece]
            if piece >= 0
            else blocks[plan.last[unit]]
            if name_of_unit and name_of_unit != "tokens"
            else -1.0
        )
        spans.append((in_backward, block, span))
    return tuple(spans)


# --- a few blocks -----------------------------------------------------------------------------------------------


def looks_ahead(shape: Shape, sharding: Sharding) -> tuple[int, int]:
    """(units of a block, blocks that a gather looks ahead, and one)."""
    per_block = sum(unit.name.startswith("blocks.") for unit in units(replace(shape, layers=1), sharding))
    return per_block, 1 + ceil(sharding.prefetch / per_block) if per_block else 0


def steady(spans: tuple[Placed, ...], middle: int, window: int) -> tuple[float, float, float] | None:
    """Seconds from one block's forward to the next one's, of the backward, and of what may fall behind it, if `window`
    blocks before the middle one and the middle one itself take the same course as what follows them."""
    groups: dict[tuple[bool, bool, float], list[tuple[str, float, float]]] = {}
    for in_backward, block, (lane, name, start, end, *_) in spans:
        if abs(block - middle) > window:
            continue
        key = name.partition("blocks.")[0] + lane
        groups.setdefault((in_backward, lane in LAGGING, block), []).append((key, start, end))
    shifts: list[float] = []
    for in_backward, is_late, step_ in ((False, False, 1), (True, False, -1), (True, True, -1)):
        window_spans = [groups.get((in_backward, is_late, middle + k * step_), []) for k in range(-window, 2)]
        if is_late and not any(window_spans):
            return shifts[0], shifts[1], shifts[1]
        firsts = [
            next((start for name, start, _ in block_spans if is_late or name.endswith("compute")), None)
            for block_spans in window_spans
        ]
        starts = [start for start in firsts if start is not None]
        if len(starts) < len(firsts):
            return None
        shift = starts[-1] - starts[-2]
        for k in range(len(window_spans) - 1):
            if not _alike(window_spans[k], window_spans[k + 1], starts[k], starts[k + 1], ROUNDING * shift):
                return None
        if any(abs(b - a - shift) > ROUNDING * shift for a, b in pairwise(starts)):
            return None
        shifts.append(shift)
    return shifts[0], shifts[1], shifts[2]


def _alike(spans: list, next_spans: list, start: float, next_start: float, tolerance: float) -> bool:
    if len(spans) != len(next_spans):
        return False
    for (name, a, b), (next_name, c, d) in zip(spans, next_spans, strict=True):
        apart = max(abs((a - start) - (c - next_start)), abs((b - start) - (d - next_start)))
        if name != next_name or apart > tolerance:
            return False
    return True
