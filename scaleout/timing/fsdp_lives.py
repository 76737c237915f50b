"""When each unit of a step is gathered, unsharded, computed with and reduced, from the short schedule."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.timing.fsdp_plan import Plan
from scaleout.timing.fsdp_short import ShortTimeline, blocks_of, renamed
from scaleout.timing.intervals import Interval


@dataclass(frozen=True)
class Life:
    """When one unit is gathered and used, in seconds from the start of the step; None if it does not happen. number:
    its place in the order of the forward. regather: its second gather; without one it stays until its backward."""

    name: str
    number: int
    gather: Interval | None
    forward: Interval
    regather: Interval | None
    backward: Interval
    reduce: Interval | None

    @property
    def gathered(self) -> list[Interval]:
        """When all of its weights are there, or on their way."""
        begin = self.gather[0] if self.gather else self.forward[0]
        if self.regather is None:
            return [(begin, self.backward[1])]
        return [(begin, self.forward[1]), (self.regather[0], self.backward[1])]


def lives(line: ShortTimeline, limit: int) -> tuple[list[Life], int]:
    """The lives of at most `limit` units, evenly spread from the first to the last in the order of the forward, the one
    half way among them; and how many units there are."""
    plan, blocks = Plan(line.sample.pieces), blocks_of(line.sample.pieces)
    middle = [blocks[plan.last[unit]] == line.middle and bool(line.extra) for unit in range(len(plan.names))]
    first = middle.index(True) if True in middle else len(middle)
    last = len(middle) - middle[::-1].index(True) if True in middle else first
    per_block = last - first
    further = line.extra * per_block  # units of the blocks that are alike, beside those of the sample
    n, spans = len(middle) + further, _Spans(line)

    def place(number: int) -> tuple[int, int]:
        """(unit of the sample, copy) of a unit."""
        if number < first:
            return number, 0
        if number < last + further:
            copy, unit = divmod(number - first, per_block)
            return first + unit, copy
        unit = number - further
        return unit, line.extra if blocks[plan.last[unit]] > line.middle else 0

    shown = sorted({round(k * (n - 1) / (limit - 1)) for k in range(limit)} | {n // 2}) if n > limit else range(n)
    return [spans.life(plan, blocks, number, *place(number)) for number in shown], n


class _Spans:
    """The spans of the sample, by what they are of."""

    def __init__(self, line: ShortTimeline) -> None:
        self.line = line
        self.by_unit: dict[tuple[str, bool, int], tuple[float, float, float]] = {}
        self.by_piece: dict[tuple[str, int], tuple[float, float, float]] = {}
        for in_backward, block, (lane, name, start, end, piece, unit) in line.placed:
            if lane == "compute":
                self.by_piece[name.partition(" ")[0], piece] = (block, start, end)
            elif lane in ("gather", "reduce"):
                self.by_unit.setdefault((lane, in_backward, unit), (block, start, end))

    def life(self, plan: Plan, blocks: list[float], number: int, unit: int, copy: int) -> Life:
        first, last, name = plan.first[unit], plan.last[unit], plan.names[unit]
        opened = self._piece("forward", first, copy)
        closed = self._piece("forward", last, copy)
        begun = self._piece("recompute", last, copy) or self._piece("backward", last, copy)
        ended = self._piece("backward", first, copy)
        zero = (0.0, 0.0)
        opened, closed = opened or closed or zero, closed or opened or zero
        begun, ended = begun or ended or (closed[1],) * 2, ended or begun or (closed[1],) * 2
        alike = self.line.extra and blocks[last] >= self.line.middle and name
        return Life(
            renamed(name, copy if alike else 0),
            number,
            self._sent("gather", False, unit, copy),
            (opened[0], closed[1]),
            self._sent("gather", True, unit, copy),
            (begun[0], ended[1]),
            self._sent("reduce", True, unit, copy),
        )

    def _piece(self, phase: str, piece: int, copy: int) -> Interval | None:
        return self._moved(self.by_piece.get((phase, piece)), phase != "forward", copy)

    def _sent(self, lane: str, in_backward: bool, unit: int, copy: int) -> Interval | None:
        return self._moved(self.by_unit.get((lane, in_backward, unit)), in_backward, copy)

    def _moved(self, place: tuple[float, float, float] | None, in_backward: bool, copy: int) -> Interval | None:
        if place is None:
            return None
        block, start, end = place
        shift = self.line.later(in_backward, block, copy if block == self.line.middle else 0)
        return start + shift, end + shift
