"""When each action of a pipeline runs: a step from the order of each rank, the length of each action and the hop.

An action begins once its rank has done the one before and its input is there: a forward needs the forward of the
stage before, a backward (or input gradient) that of the stage behind, the last stage's its own forward, a weight
gradient its own input gradient. What comes from another rank comes `hop` later. Orders are those of `spec.pipeline`,
or anybody's: an order in which ranks wait for one another is refused with the action that waits (`blocked`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import fsum

from scaleout.spec import checks
from scaleout.spec.pipeline import Action, Orders, orders


@dataclass(frozen=True)
class Costs:
    """Seconds (or slots) of each stage's actions, by stage; a whole backward is input and weight together.

    hop: from the end of an action until the rank that needs its result has it; nothing within a rank. blocking: the
    sender does nothing else in that time.
    """

    forward: tuple[float, ...]
    input: tuple[float, ...]
    weight: tuple[float, ...]
    hop: float = 0.0
    blocking: bool = False

    def __post_init__(self) -> None:
        if not len(self.forward) == len(self.input) == len(self.weight) > 0:
            raise ValueError("forward, input and weight have one number for each stage: give as many of each")
        for name in ("forward", "input", "weight"):
            for value in getattr(self, name):
                checks.number(name, value, 0)
        checks.number("hop", self.hop, 0)
        checks.flag("blocking", self.blocking)

    def of(self, action: Action) -> float:
        """Seconds of one action."""
        kind, stage, _ = action
        if kind == "B":
            return self.input[stage] + self.weight[stage]
        return {"F": self.forward, "I": self.input, "W": self.weight}[kind][stage]


def even(
    stages: int, forward: float = 1.0, input: float = 1.0, weight: float = 1.0, hop: float = 0.0,
    blocking: bool = False,
) -> Costs:  # fmt: skip
    """Costs of stages that are all alike."""
    checks.whole("stages", stages)
    return Costs((forward,) * stages, (input,) * stages, (weight,) * stages, hop, blocking)


@dataclass(frozen=True)
class Run:
    """An action where and when it ran. `wait`: seconds that its rank stood idle before it."""

    action: Action
    rank: int
    start: float
    end: float
    wait: float


def needs(action: Action, stages: int) -> Action | None:
    """The action whose result this one needs, or None. (A backward may stand there as its input gradient.)"""
    kind, stage, micro = action
    if kind == "F":
        return Action("F", stage - 1, micro) if stage else None
    if kind == "W":
        return Action("I", stage, micro)
    return Action(kind, stage + 1, micro) if stage + 1 < stages else Action("F", stage, micro)


@dataclass(frozen=True)
class Timeline:
    """One step, in the unit of its costs. `runs`: of each rank, in its order."""

    runs: tuple[tuple[Run, ...], ...]
    costs: Costs

    @cached_property
    def seconds(self) -> float:
        return max(row[-1].end for row in self.runs if row)

    @cached_property
    def work(self) -> tuple[float, ...]:
        """Seconds that each rank computes."""
        return tuple(fsum(self.costs.of(run.action) for run in row) for row in self.runs)

    @property
    def idle(self) -> tuple[float, ...]:
        """Seconds of the step in which each rank does not compute."""
        return tuple(self.seconds - busy for busy in self.work)

    @property
    def bubble(self) -> float:
        """Share of all ranks' seconds in which nothing is computed: (p-1)/(m+p-1) for even stages (GPipe's name)."""
        return fsum(self.idle) / (len(self.runs) * self.seconds)

    @property
    def bubble_of_ideal(self) -> float:
        """The same seconds against those that are computed: (p-1)/m for even stages (Narayanan et al.)."""
        return fsum(self.idle) / fsum(self.work)


def timeline(order: Sequence[Sequence[Action]], costs: Costs) -> Timeline:
    """Exact start and end of each action. ValueError names the wait that cannot end, or what is no order."""
    stages = len(costs.forward)
    home = {action.stage: rank for rank, row in enumerate(order) for action in row}
    done: dict[Action, float] = {}
    runs: list[list[Run]] = [[] for _ in order]
    free = [0.0] * len(order)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(order):
            while len(runs[rank]) < len(row):
                action = row[len(runs[rank])]
                need = needs(action, stages)
                came = done.get(need) if need else 0.0
                if came is None:
                    break
                away = need is not None and home[need.stage] != rank
                start = max(free[rank], came + costs.hop if away else came)
                end = start + costs.of(action)
                runs[rank].append(Run(action, rank, start, end, start - free[rank]))
                done[action] = end
                if action.kind == "B":
                    done[Action("I", *action[1:])] = end
                elif action.kind == "I":
                    done[Action("B", *action[1:])] = end
                free[rank], moved = end, True
    if any(len(done_) < len(row) for done_, row in zip(runs, order, strict=True)):
        raise ValueError("ranks wait for one another")
    return Timeline(tuple(map(tuple, runs)), costs)


def step(schedule: str, p: int, m: int, v: int, costs: Costs) -> Timeline:
    """The timeline of one of the schedules."""
    return timeline(orders(schedule, p, m, v), costs)
