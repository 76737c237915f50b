"""A step of one of the schedules of which only some ranks' actions are known, and these by kind: for a picture that
draws a few ranks, and their time by share. `pipeline.step` has all of it, and takes many times as long."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, repeat
from typing import NamedTuple

from scaleout.spec.pipeline import stages_of
from scaleout.spec.pipeline_weave import chunks, order, places
from scaleout.timing.pipeline import Costs, Summary, loads, seconds


class Strand(NamedTuple):
    """Actions of one kind on one rank, in order of time. starts: when each does; totals: seconds of all before it, and
    at the end of all."""

    starts: Sequence[float]
    totals: Sequence[float]

    def upto(self, moments: Sequence[float]) -> list[float]:
        """Seconds of work until each of these moments."""
        starts, totals = self
        return [
            (totals[n] if totals[n] < (part := totals[n - 1] + moment - starts[n - 1]) else part) if n else 0.0
            for n, moment in zip(map(bisect_right, repeat(starts), moments), moments, strict=True)
        ]

    def ended(self, moments: Sequence[float]) -> list[int]:
        """How many have ended by then."""
        starts, totals = self
        return [
            n - 1 if n and starts[n - 1] + totals[n] - totals[n - 1] > moment else n
            for n, moment in zip(map(bisect_right, repeat(starts), moments), moments, strict=True)
        ]


@dataclass(frozen=True)
class Sketch(Summary):
    """starts: by rank and kind. ValueError as `pipeline.step`."""

    schedule: str
    p: int
    m: int
    v: int
    costs: Costs
    starts: dict[int, dict[str, list[float]]]

    def strands(self, rank: int) -> dict[str, Strand]:
        """What a rank does, by kind."""
        return {
            kind: Strand(starts, self._totals(rank, kind, len(starts))) for kind, starts in self.starts[rank].items()
        }

    @cached_property
    def stages(self) -> dict[int, tuple[int, ...]]:
        """The stages of each of these ranks, in the order of the model."""
        return {rank: stages_of(self.schedule, rank, self.p, self.v) for rank in self.starts}

    def _totals(self, rank: int, kind: str, count: int) -> Sequence[float]:
        lengths = [self._lengths(kind)[stage] for stage in self.stages[rank]]
        if len({*lengths}) == 1:
            return _alike(lengths[0], count)
        numbers = chunks(self.schedule, self.p, self.m, self.v, rank, kind)
        return [0.0, *accumulate(map(lengths.__getitem__, numbers))]

    def _lengths(self, kind: str) -> tuple[float, ...]:
        return {"F": self.costs.forward, "B": self.costs.backward, "I": self.costs.input, "W": self.costs.weight}[kind]

    def of(self, rank: int, micro: int) -> list[tuple[str, int, float, float]]:
        """(kind, stage, start, end) of one micro-batch's actions, by their start."""
        actions = []
        for chunk, stage in enumerate(self.stages[rank]):
            for kind, position in places(self.schedule, self.p, self.m, self.v, rank, chunk, micro).items():
                start = self.starts[rank][kind][position]
                actions.append((kind, stage, start, start + self._lengths(kind)[stage]))
        return sorted(actions, key=lambda action: action[2])

    def lane(self, rank: int) -> tuple[Sequence, ...]:
        """As `Timeline.lane`."""
        kinds, stages, lengths = self.costs.places
        numbers = order(self.schedule, self.p, self.m, self.v, rank)
        action_places = [number // self.m for number in numbers]
        begun = {kind: iter(starts) for kind, starts in self.starts[rank].items()}
        starts = [next(begun[kinds[place]]) for place in action_places]
        return (
            [kinds[place] for place in action_places],
            [stages[place] for place in action_places],
            [number % self.m for number in numbers],
            starts,
            [start + lengths[place] for start, place in zip(starts, action_places, strict=True)],
        )


def sketch(schedule: str, p: int, m: int, v: int, costs: Costs, ranks: Sequence[int]) -> Sketch:
    """The step with the actions of these ranks. ValueError as `pipeline.step`."""
    starts: dict[int, dict[str, list[float]]] = {rank: {} for rank in ranks}
    total = seconds(schedule, p, m, v, costs, starts)
    return Sketch(total, *loads(schedule, p, m, v, costs), schedule, p, m, v, costs, starts)


@lru_cache(maxsize=16)
def _alike(seconds: float, count: int) -> Sequence[float]:
    return [seconds * n for n in range(count + 1)]
