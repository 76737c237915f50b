"""A collective step by step, for drawing: whose data each rank has, and the parcels that are being sent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby

from scaleout.collectives import messages
from scaleout.collectives.routes import Message

BLOCKS = 2  # of each half of the tree


@dataclass(frozen=True)
class Parcel:
    """What one rank sends another in one step: chunks that travel as one. name: the same while they travel on."""

    name: str
    source: int
    target: int
    chunks: tuple[int, ...]
    adds: bool


@dataclass(frozen=True)
class Frames:
    """An all-reduce to be shown, after each of its steps, the state before the first included.

    held[s][rank][chunk]: bit q is set where rank q's numbers are in it. passed[s][rank]: bit c is set where chunk c
    is a part of a sum that has been passed on, so that what is left of it is out of date. parcels[s] are under way
    from state s to the next. With switches that add, the last rank is the switch.
    """

    algorithm: str
    ranks: int
    held: tuple[tuple[tuple[int, ...], ...], ...]
    passed: tuple[tuple[int, ...], ...]
    parcels: tuple[tuple[Parcel, ...], ...]

    @property
    def steps(self) -> int:
        return len(self.parcels)

    @property
    def chunks(self) -> int:
        return len(self.held[0][0])

    @property
    def full(self) -> int:
        """The value of a cell once every rank's numbers are in it."""
        return 2**self.ranks - 1

    def contributors(self, step: int, rank: int) -> list[int]:
        """Of how many ranks there are numbers in each chunk of a rank."""
        return [cell.bit_count() for cell in self.held[step][rank]]

    @cached_property
    def sent(self) -> list[float]:
        """Share of the message that the busiest rank sends, by step."""
        by_rank = [[0.0] * self.steps for _ in range(self.ranks + 1)]
        for step, parcels in enumerate(self.parcels):
            for parcel in parcels:
                by_rank[parcel.source][step] += len(parcel.chunks) / self.chunks
        return max(by_rank[: self.ranks], key=sum)

    @cached_property
    def owners(self) -> list[int]:
        """The rank, or switch, that has the whole sum of each chunk first."""
        full = self.full
        return [
            next(rank for state in self.held for rank, cells in enumerate(state) if cells[chunk] == full)
            for chunk in range(self.chunks)
        ]


@lru_cache(maxsize=128)
def frames(algorithm: str, ranks: int) -> Frames:
    """The frames of an all-reduce, simulated from its messages. ValueError where a rank would be added twice."""
    switch = algorithm == "in-network"
    moves = messages.messages("all_reduce", algorithm, ranks, BLOCKS)
    chunks = messages.chunk_count("all_reduce", algorithm, ranks, BLOCKS)
    state = [[1 << rank] * chunks for rank in range(ranks)] + [[0] * chunks] * switch
    history, passed = [_frozen(state)], [(0,) * len(state)]
    parcels: list[tuple[Parcel, ...]] = []
    for step, group in groupby(moves, key=lambda message: message.step):
        parcels.append(_parcels(step, list(group), parcels[-1] if parcels else ()))
        state, left = _advance(history[-1], passed[-1], parcels[-1])
        history.append(_frozen(state))
        passed.append(tuple(left))
    return Frames(algorithm, ranks, tuple(history), tuple(passed), tuple(parcels))


def _frozen(state: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, state))


def _parcels(step: int, moves: list[Message], previous: tuple[Parcel, ...]) -> tuple[Parcel, ...]:
    """One parcel for each pair of ranks. Chunks that have just arrived travel on under the name of their parcel."""
    pairs: dict[tuple[int, int, bool], list[int]] = {}
    for message in moves:
        pairs.setdefault((message.source, message.target, message.adds), []).append(message.chunk)
    free, parcels = list(previous), []
    for (source, target, adds), chunks in pairs.items():
        arrived = next((p for p in free if p.target == source and {*p.chunks} & {*chunks}), None)
        if arrived:
            free.remove(arrived)
        name = arrived.name if arrived else f"{step}-{source}-{target}"
        parcels.append(Parcel(name, source, target, tuple(chunks), adds))
    return tuple(parcels)


def _advance(cells_before, passed, parcels: tuple[Parcel, ...]) -> tuple[list[list[int]], list[int]]:
    """The state after a step, all parcels leaving at its beginning."""
    state, left = [list(cells) for cells in cells_before], list(passed)
    for parcel in parcels:
        for chunk in parcel.chunks:
            if parcel.adds:
                left[parcel.source] |= 1 << chunk
    for parcel in parcels:
        for chunk in parcel.chunks:
            moved = cells_before[parcel.source][chunk]
            if parcel.adds and state[parcel.target][chunk] & moved:
                raise ValueError(f"rank {parcel.target} would add a part of chunk {chunk} twice")
            state[parcel.target][chunk] = state[parcel.target][chunk] | moved if parcel.adds else moved
            left[parcel.target] &= ~(1 << chunk)
    return state, left
