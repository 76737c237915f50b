"""Collectives message by message: who sends which chunk to whom in which step, and what every rank then holds.

Nothing here knows a formula. What a rank holds, the bytes it sends and the seconds follow from the list of messages.
All messages of a step leave at its beginning, from what their senders have before it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

from scaleout.collectives.algorithms import fold
from scaleout.collectives.alpha_beta import check
from scaleout.collectives.routes import ROUTES, Message, hierarchical
from scaleout.spec import checks
from scaleout.spec.topology import Cluster, Wire

State = tuple[tuple[Counter, ...], ...]  # by rank, by chunk: how often each rank's contribution is in it


def chunk_sizes(size: int, chunks: int) -> list[int]:
    """`size` bytes in `chunks` parts, larger ones first, a byte apart at most. ValueError below 0 bytes or 1 part."""
    if not checks.is_whole(size) or size < 0:
        raise ValueError(f"size must be a whole number of bytes from 0 up, not {size!r}")
    checks.whole("chunks", chunks)
    quotient, remainder = divmod(size, chunks)
    return [quotient + (i < remainder) for i in range(chunks)]


def chunk_count(collective: str, algorithm: str, ranks: int, blocks: int = 1) -> int:
    """How many chunks the message is cut into. blocks: of each half of a tree, or of the whole of a chain."""
    check(collective, algorithm, 0, ranks)
    if collective == "all_to_all":
        return ranks * ranks  # chunk s * ranks + t goes from rank s to rank t
    if collective == "send" or algorithm == "naive":
        return 1
    if algorithm == "halving-doubling":
        return len(fold(ranks)[1])
    if algorithm == "tree":
        return 2 * blocks if collective == "all_reduce" else 1
    return blocks if collective == "broadcast" else ranks


def sizes(collective: str, algorithm: str, size: int, ranks: int, blocks: int = 1) -> list[int]:
    """Bytes of each chunk, for a collective of `size` bytes as `collectives` means it."""
    if collective == "all_to_all":
        return chunk_sizes(size, ranks) * ranks
    return chunk_sizes(size, chunk_count(collective, algorithm, ranks, blocks))


def messages(
    collective: str, algorithm: str, ranks: int, blocks: int = 1, gpus_per_node: int | None = None
) -> list[Message]:
    """Every message, by step. ValueError as in `collectives.cost`, and for nodes that the ranks do not fill.

    "hierarchical" needs gpus_per_node. "in-network" has one more rank at the end: number `ranks` is the switch.
    """
    check(collective, algorithm, 0, ranks)
    if algorithm == "hierarchical":
        if not isinstance(gpus_per_node, int) or gpus_per_node < 1 or ranks % gpus_per_node:
            raise ValueError(f"hierarchical needs gpus_per_node, a divisor of {ranks} ranks, not {gpus_per_node!r}")
        route = hierarchical(ranks, gpus_per_node)
    else:
        route = ROUTES[collective, algorithm](ranks, blocks)
    return sorted(route, key=lambda m: (m.step, m.source, m.chunk, m.target)) if ranks > 1 else []


def start(collective: str, ranks: int, chunks: int, switch: bool = False) -> State:
    """What each rank holds before: its own contribution to every chunk, or the chunks that are its own.

    switch: one more rank that holds nothing.
    """

    def has(rank: int, chunk: int) -> bool:
        return {
            "broadcast": rank == 0,
            "send": rank == 0,
            "all_gather": chunk == rank,
            "all_to_all": chunk // ranks == rank,
        }.get(collective, True)

    states = tuple(
        tuple(Counter({rank: 1} if has(rank, chunk) else {}) for chunk in range(chunks)) for rank in range(ranks)
    )
    return (*states, tuple(Counter() for _ in range(chunks))) if switch else states


def run(sent: Iterable[Message], initial: State) -> list[State]:
    """What every rank has before the first step and after each step, from what it has at the start."""
    states = [initial]
    for _, step in itertools.groupby(sent, key=lambda message: message.step):
        earlier, later = states[-1], [list(chunks) for chunks in states[-1]]
        for message in step:
            moved, target = earlier[message.source][message.chunk], later[message.target]
            target[message.chunk] = target[message.chunk] + moved if message.adds else moved
        states.append(tuple(tuple(chunks) for chunks in later))
    return states


def sent(moves: Iterable[Message], sizes: Sequence[float], ranks: int) -> list[float]:
    """Bytes that each rank sends; `sizes` are the bytes of each chunk. A switch has its own entry: count it in."""
    totals: dict[int, float] = {}
    for message in moves:
        totals[message.source] = totals.get(message.source, 0) + sizes[message.chunk]
    return [totals.get(rank, 0) for rank in range(ranks)]


def seconds(moves: Iterable[Message], sizes: Sequence[float], wire: Wire | Cluster) -> float:
    """Seconds of all steps: each as long as its slowest rank, or node, takes to send or to receive.

    What a rank sends in one step to several others starts once and shares its wire. On a cluster what leaves a node
    shares all its adapters. Not for "in-network": the ports of a switch work side by side.
    """
    total = 0.0
    inside, pool = (wire.near, wire.pool) if isinstance(wire, Cluster) else (wire, wire)
    for _, step in itertools.groupby(moves, key=lambda message: message.step):
        by_rank: dict[tuple[int, int], float] = {}
        by_node: dict[tuple[int, int], float] = {}
        for message in step:
            loads, ends = by_rank, (message.source, message.target)
            if isinstance(wire, Cluster) and wire.node(ends[0]) != wire.node(ends[1]):
                loads, ends = by_node, (wire.node(ends[0]), wire.node(ends[1]))
            for end in enumerate(ends):
                loads[end] = loads.get(end, 0) + sizes[message.chunk]
        pairs = ((inside, by_rank), (pool, by_node))
        total += max(line.seconds(max(loads.values())) for line, loads in pairs if loads)
    return total
