"""The actions for which an action of a pipeline waits, and the ranks that wait for one another in a deadlock."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from scaleout.spec.checks import is_whole
from scaleout.spec.pipeline import Action

Order = Sequence[Sequence[Action]]
WHOLE = ({"F", "B"}, {"F", "I", "W"})


class Wait(NamedTuple):
    """A rank that stands still. sends: it has done `action`, and nobody takes the result; else it would do it next."""

    rank: int
    action: Action
    for_action: Action
    of_rank: int
    sends: bool

    def __str__(self) -> str:
        if self.sends:
            return (
                f"rank {self.rank} sends the result of {self.action}, which rank {self.of_rank} will take "
                f"for {self.for_action}"
            )
        place = "which comes later in its own order" if self.of_rank == self.rank else f"of rank {self.of_rank}"
        return f"rank {self.rank} waits at {self.action} for {self.for_action}, {place}"


def needs(action: Action, stages: int) -> Action | None:
    """The action whose result this one needs; None for a forward of the first stage. A backward may be there whole
    or as input gradient."""
    kind, stage, micro = action
    if kind == "F":
        return Action("F", stage - 1, micro) if stage else None
    if kind == "W":
        return Action("I", stage, micro)
    return Action(kind, stage + 1, micro) if stage + 1 < stages else Action("F", stage, micro)


def check(order: Order, stages: int) -> int:
    """The micro-batches of an order. ValueError, one line, for an action that is missing, there twice or not
    allowed, and for a stage on two ranks."""
    home: dict[Action, int] = {}
    for rank, row in enumerate(_rows(order)):
        for action in row:
            if not _possible(action, stages):
                raise ValueError(
                    f"there is no {action}: kinds are F, B, I and W, stages 0 to {stages - 1}, "
                    "micro-batches whole numbers from 0"
                )
            if action in home:
                raise ValueError(f"{action} is there twice, on ranks {home[action]} and {rank}: leave one")
            home[action] = rank
    m = 1 + max((action.micro for action in home), default=-1)
    for stage in range(stages):
        ranks = {rank for action, rank in home.items() if action.stage == stage}
        if len(ranks) > 1:
            raise ValueError(f"stage {stage} is on ranks {' and '.join(map(str, sorted(ranks)))}: give it to one")
        for micro in range(m):
            kinds = {kind for kind in "FBIW" if Action(kind, stage, micro) in home}
            if kinds not in WHOLE:
                listed = ", ".join(sorted(kinds)) or "nothing"
                raise ValueError(f"micro-batch {micro} on stage {stage} has {listed}: give it F and B, or F, I and W")
    return m


def _rows(order: Order) -> Order:
    """The order. ValueError where it has no list for each rank."""
    if not isinstance(order, Sequence) or not all(isinstance(row, Sequence) for row in order):
        raise ValueError("an order has a list of actions for each rank: give one such list a rank")
    return order


def _possible(action: object, stages: float) -> bool:
    if not isinstance(action, Action) or not all(map(is_whole, action[1:])):
        return False
    return action.kind in [*"FBIW"] and 0 <= action.stage < stages and action.micro >= 0


def blocked(order: Order, rendezvous: bool = False) -> tuple[Wait, ...]:
    """The ring of ranks that wait for one another, each with what it waits for; () for an order that can end.

    rendezvous: a send lasts until its receiver has come to the action that needs it, and a rank does nothing else
    meanwhile (a synchronous send): two ranks that both send first wait for ever. ValueError as `check`.
    """
    stages = 1 + max((action.stage for row in _rows(order) for action in row if _possible(action, inf)), default=-1)
    check(order, stages)
    home = {action: rank for rank, row in enumerate(order) for action in row}
    takers = {_listed(needs(action, stages), home): action for action in home if action.kind != "W"}
    position, sending, finished = [0] * len(order), [False] * len(order), set()

    def waits(rank: int) -> Wait | None:
        """What keeps a rank from its next action, if anything does."""
        if sending[rank]:
            sent = order[rank][position[rank] - 1]
            receiver = home[takers[sent]]
            ready = (
                not sending[receiver] and order[receiver][position[receiver]] == takers[sent]
            )  # the taker cannot have run
            return None if ready else Wait(rank, sent, takers[sent], receiver, True)
        action = order[rank][position[rank]]
        need = _listed(needs(action, stages), home)
        return None if need is None or need in finished else Wait(rank, action, need, home[need], False)

    progress = True
    while progress:
        progress = False
        for rank, row in enumerate(order):
            while (sending[rank] or position[rank] < len(row)) and waits(rank) is None:
                progress = True
                position[rank] += not sending[rank]
                action = row[position[rank] - 1]
                taker = takers.get(action)
                leaves = taker is not None and home[taker] != rank
                sending[rank] = rendezvous and leaves and not sending[rank]
                if not sending[rank]:
                    finished.add(action)
    unfinished = [rank for rank, row in enumerate(order) if sending[rank] or position[rank] < len(row)]
    stuck = {rank: wait for rank in unfinished if (wait := waits(rank))}
    return _ring(stuck) if stuck else ()


def _renamed(action: Action) -> Action:
    """A backward under its other name: whole, or its input gradient."""
    return action._replace(kind="I" if action.kind == "B" else "B")


def _listed(action: Action | None, home: dict[Action, int]) -> Action | None:
    """The action as it is in the order."""
    return action if action is None or action in home else _renamed(action)


def _ring(stuck: dict[int, Wait]) -> tuple[Wait, ...]:
    """From any rank that stands still along those that it waits for, until one comes again."""
    rank, path = min(stuck), []
    while rank not in path:
        path.append(rank)
        rank = stuck[rank].of_rank
    return tuple(stuck[waiting_rank] for waiting_rank in path[path.index(rank) :])
