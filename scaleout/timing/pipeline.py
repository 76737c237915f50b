"""When each action of a pipeline runs: a step from the order of each rank, the length of each action and the hop.

An action begins once its rank has done the one before and its input is there: a forward needs the forward of the
stage before, a backward (or input gradient) that of the stage behind, the last stage's its own forward, a weight
gradient its own input gradient. What comes from another rank comes `hop` later. `step` has the schedules of
`spec.pipeline`, `timeline` anybody's order; `summary` is the step time alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from math import fsum
from operator import add

from scaleout.memory import pipeline as memory
from scaleout.spec import checks
from scaleout.spec.pipeline import SCHEDULES, Action, code, coded, decode, ranks_of, refuse
from scaleout.timing import pipeline_clock, pipeline_queues, pipeline_sweep
from scaleout.timing.pipeline_waits import Order, blocked, check, needs


@dataclass(frozen=True)
class Costs:
    """Seconds (or slots) of each stage's actions, by stage; a whole backward is input and weight together.

    hop: from the end of an action until the rank that needs its result has it; nothing within a rank. blocking: the
    sender does nothing else in that time. ValueError for numbers below 0, and for other numbers of stages.
    """

    forward: tuple[float, ...]
    input: tuple[float, ...]
    weight: tuple[float, ...]
    hop: float = 0.0
    blocking: bool = False

    def __post_init__(self) -> None:
        three = {name: getattr(self, name) for name in ("forward", "input", "weight")}
        lengths = {len(values) if isinstance(values, (tuple, list)) else 0 for values in three.values()}
        if len(lengths) > 1 or 0 in lengths:
            raise ValueError("forward, input and weight have one number for each stage: give as many of each")
        for name, values in three.items():
            odd = [value for value in values if type(value) not in (int, float)]
            for value in odd or {*values}:  # of many stages most are alike
                checks.number(name, value, 0)
        checks.number("hop", self.hop, 0)
        checks.flag("blocking", self.blocking)

    @cached_property
    def backward(self) -> tuple[float, ...]:
        return tuple(map(float.__add__, map(float, self.input), map(float, self.weight)))

    @cached_property
    def places(self) -> tuple[list[str], list[int], list[float]]:
        """Kind, stage and seconds of an action by its number // m."""
        actions = [decode(place, len(self.forward), 1) for place in range(4 * len(self.forward))]
        return (
            [action.kind for action in actions],
            [action.stage for action in actions],
            [self.of(action) for action in actions],
        )

    def of(self, action: Action) -> float:
        """Seconds of one action."""
        return {"F": self.forward, "B": self.backward, "I": self.input, "W": self.weight}[action.kind][action.stage]


def even(
    stages: int,
    forward: float = 1.0,
    input: float = 1.0,
    weight: float = 1.0,
    hop: float = 0.0,
    blocking: bool = False,
) -> Costs:
    """Costs of stages that are all alike."""
    checks.whole("stages", stages)
    return Costs((forward,) * stages, (input,) * stages, (weight,) * stages, hop, blocking)


@dataclass(frozen=True)
class Summary:
    """A step in the unit of its costs. work: what each rank computes. in_flight: the most activations that each holds,
    in stages of one micro-batch each."""

    seconds: float
    work: tuple[float, ...]
    in_flight: tuple[int, ...]

    @property
    def idle(self) -> tuple[float, ...]:
        """By rank: what of the step it does not compute."""
        return tuple(self.seconds - busy for busy in self.work)

    @property
    def bubble(self) -> float:
        """Idle share of all ranks' seconds: (p-1)/(m+p-1) where stages are alike (GPipe, arXiv 1811.06965)."""
        return fsum(self.idle) / (len(self.work) * self.seconds) if self.seconds else 0.0

    @property
    def bubble_of_ideal(self) -> float:
        """Idle seconds against computed ones: (p-1)/m where stages are alike (arXiv 2104.04473, section 2.2)."""
        return fsum(self.idle) / fsum(self.work) if fsum(self.work) else 0.0


@dataclass(frozen=True)
class Run:
    """An action where and when it ran. wait: how long its rank stood idle before it (a send that blocks is not idle
    here, though it computes nothing)."""

    action: Action
    rank: int
    start: float
    end: float
    wait: float


@dataclass(frozen=True)
class Timeline(Summary):
    """The same with every action: numbers of `spec.pipeline_weave` by rank, and when each starts."""

    rows: tuple[Sequence[int], ...]
    starts: tuple[Sequence[float], ...]
    costs: Costs
    m: int
    homes: tuple[int, ...]  # the rank of each stage

    @cached_property
    def runs(self) -> tuple[tuple[Run, ...], ...]:
        """The actions of each rank, in its order."""
        return tuple(tuple(self._run(rank, i) for i in range(len(row))) for rank, row in enumerate(self.rows))

    def window(self, rank: int, start: float, end: float) -> tuple[Run, ...]:
        """The runs of a rank that reach into a stretch of time."""
        began = self.starts[self._known(rank)]
        first = max(0, bisect_right(began, start) - 1)
        return tuple(
            run for run in (self._run(rank, i) for i in range(first, bisect_left(began, end))) if run.end > start
        )

    def lane(self, rank: int) -> tuple[Sequence, ...]:
        """(kinds, stages, micro-batches, starts, ends) of what a rank does, in order: lists, for there may be many."""
        kinds, stages, lengths = self.costs.places
        rank = self._known(rank)
        places, starts = [number // self.m for number in self.rows[rank]], self.starts[rank]
        return (
            [*map(kinds.__getitem__, places)],
            [*map(stages.__getitem__, places)],
            [number % self.m for number in self.rows[rank]],
            starts,
            [*map(add, starts, map(lengths.__getitem__, places))],
        )

    def held(self, rank: int) -> tuple[tuple[float, int], ...]:
        """(when, activations held from then on): one more when a forward starts, one less when its backward ends."""
        counts, in_flight = [], 0
        for run in self.runs[self._known(rank)]:
            change = memory.CHANGES[run.action.kind]
            if change:
                in_flight += change
                counts.append((run.start if change > 0 else run.end, in_flight))
        return tuple(counts)

    @cached_property
    def critical(self) -> tuple[Run, ...]:
        """The runs that make the step as long as it is, first to last: each starts when the one before lets it."""
        stages = len(self.costs.forward)
        places: dict[int, tuple[int, int]] = {}
        for rank, row in enumerate(self.rows):
            places.update(zip(row, zip(repeat(rank), range(len(row))), strict=False))
        lasts = [self._run(rank, len(row) - 1) for rank, row in enumerate(self.rows) if row]
        path = [max(lasts, key=lambda run: run.end)]
        i = len(self.rows[path[0].rank]) - 1
        while path[-1].start > 0:
            rank, need = path[-1].rank, needs(path[-1].action, stages)
            if need is not None and path[-1].wait > 0:
                renamed = need._replace(kind={"B": "I", "I": "B"}.get(need.kind, need.kind))
                rank, i = next(
                    places[number] for action in (need, renamed) if (number := code(action, stages, self.m)) in places
                )
            else:
                i -= 1
            path.append(self._run(rank, i))
        return tuple(reversed(path))

    def _known(self, rank: int) -> int:
        checks.whole("rank", rank, 0, limit=len(self.rows) - 1)
        return rank

    def _run(self, rank: int, i: int) -> Run:
        action = decode(self.rows[rank][i], len(self.costs.forward), self.m)
        start = self.starts[rank][i]
        return Run(action, rank, start, start + self.costs.of(action), start - self._free(rank, i))

    def _free(self, rank: int, i: int) -> float:
        """When a rank is done with what comes before its i-th action, sending included where it blocks."""
        if not i:
            return 0.0
        action = decode(self.rows[rank][i - 1], len(self.costs.forward), self.m)
        end = self.starts[rank][i - 1] + self.costs.of(action)
        return end + self.costs.hop if self.costs.blocking and self._leaves(action, rank) else end

    def _leaves(self, action: Action, rank: int) -> bool:
        """Whether what an action makes goes to another rank."""
        receiver = action.stage + (1 if action.kind == "F" else -1)
        return action.kind != "W" and 0 <= receiver < len(self.homes) and self.homes[receiver] != rank


def timeline(order: Order, costs: Costs) -> Timeline:
    """Exact start and end of each action of any order. ValueError names the waits that cannot end, or what the
    order lacks."""
    checks.instance("costs", costs, Costs)
    stages = len(costs.forward)
    m = check(order, stages)
    if not m:
        raise ValueError("the order has no action in it: give each stage a forward and a backward of each micro-batch")
    ring = blocked(order)
    if ring:
        raise ValueError(f"{'; '.join(map(str, ring))}: nobody can go on, so put what is needed earlier in its order")
    rows = [[code(action, stages, m) for action in row] for row in order]
    home = {action.stage: rank for rank, row in enumerate(order) for action in row}
    in_flight = tuple(max(memory.held(row), default=0) for row in order)
    work = tuple(fsum(costs.of(action) for action in row) for row in order)
    return _timed(rows, [home[stage] for stage in range(stages)], m, costs, work, in_flight)


def step(schedule: str, p: int, m: int, v: int, costs: Costs) -> Timeline:
    """The timeline of one of the schedules. ValueError for what it cannot be, and for costs of other stages."""
    work_and_memory = loads(schedule, p, m, v, costs)
    return _timed(coded(schedule, p, m, v), ranks_of(schedule, p, v), m, costs, *work_and_memory)


def summary(schedule: str, p: int, m: int, v: int, costs: Costs) -> Summary:
    """The same without the actions: what a slider asks for while it moves."""
    return Summary(seconds(schedule, p, m, v, costs), *loads(schedule, p, m, v, costs))


def seconds(schedule: str, p: int, m: int, v: int, costs: Costs, notes: pipeline_sweep.Notes | None = None) -> float:
    """The step time alone. notes: by rank a dict, to be filled with the starts of its actions by kind."""
    _check(schedule, p, m, v, costs)
    lengths, hop = (costs.forward, costs.input, costs.weight), costs.hop if p > 1 else 0.0
    if SCHEDULES[schedule].v_shaped:
        return pipeline_queues.bent(schedule, p, m, lengths, hop, costs.blocking, notes)
    if v > 1 and m < p and schedule != "bfs":
        return pipeline_queues.rounds(schedule, p, m, v, lengths, hop, costs.blocking, notes)
    return pipeline_sweep.seconds(schedule, p, m, v, *lengths, hop, costs.blocking, notes)


def loads(schedule: str, p: int, m: int, v: int, costs: Costs) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Work of each rank, and what it holds."""
    _check(schedule, p, m, v, costs)
    seconds_by_rank: list[list[float]] = [[] for _ in range(p)]
    for home, forward, backward in zip(ranks_of(schedule, p, v), costs.forward, costs.backward, strict=True):
        seconds_by_rank[home].append(m * (forward + backward))
    return tuple(map(fsum, seconds_by_rank)), memory.in_flight(schedule, p, m, v)


def _check(schedule: str, p: int, m: int, v: int, costs: Costs) -> None:
    refuse(schedule, p, m, v)
    checks.instance("costs", costs, Costs)
    if len(costs.forward) != p * v:
        raise ValueError(f"costs are of {len(costs.forward)} stages, p * v is {p * v}: give costs of {p * v}")


def _timed(
    rows: list[list[int]], homes: list[int], m: int, costs: Costs, work: tuple[float, ...], in_flight: tuple[int, ...]
) -> Timeline:
    durations = (costs.forward, costs.input, costs.backward, costs.weight)
    starts, ends = pipeline_clock.starts(rows, homes, m, durations, costs.hop, costs.blocking)
    return Timeline(max(ends), work, in_flight, tuple(rows), tuple(starts), costs, m, tuple(homes))
