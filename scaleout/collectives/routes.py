"""The messages of each algorithm of each collective: functions from (ranks, blocks) to lists of messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaleout.collectives.algorithms import fold, height


@dataclass(frozen=True)
class Message:
    """One chunk on its way. adds: the target adds it to what it holds there, else it takes its place."""

    step: int
    source: int
    target: int
    chunk: int
    adds: bool


def _ring_rounds(members: Sequence[int], chunk_of, rounds: Sequence[bool], first: int, shift: int) -> list[Message]:
    """Once round for each of `rounds` (adds or not): in step s member i passes on chunk i - s + shift to the next.

    chunk_of(number) gives the chunks that travel as one; numbers are modulo the ring's length.
    """
    p, messages = len(members), []
    for turn, adds in enumerate(rounds):
        for step in range(p - 1):
            for i, rank in enumerate(members):
                number = (i - step + shift + turn) % p
                step_number = first + turn * (p - 1) + step
                messages += [
                    Message(step_number, rank, members[(i + 1) % p], chunk, adds) for chunk in chunk_of(number)
                ]
    return messages


def _ring(rounds: Sequence[bool], shift: int):
    """A ring over all ranks; shift -1: member i ends its first round with chunk i."""
    return lambda ranks, blocks: _ring_rounds(range(ranks), lambda number: [number], rounds, 0, shift)


def _naive(ways: int):
    """Rank 0 and one other at a time."""

    def star(ranks: int, blocks: int) -> list[Message]:
        gather = [Message(r - 1, r, 0, 0, True) for r in range(1, ranks)] if ways == 2 else []
        first = len(gather)
        return gather + [Message(first + r - 1, 0, r, 0, False) for r in range(1, ranks)]

    return star


def parent(rank: int, ranks: int) -> int | None:
    """The rank above in NCCL's binary tree: rank 0 is the root, odd ranks are leaves (Jeaugey 2019).

    A rank whose lowest set bit is b hangs from the rank with b cleared and 2b set, or, where that is beyond the last,
    with b cleared only.
    """
    if rank == 0:
        return None
    low = rank & -rank
    upper = (rank & ~low) | (low << 1)
    return upper if upper < ranks else rank & ~low


def trees(ranks: int) -> list[dict[int, int | None]]:
    """Two trees, {rank: rank above}: the second is the first mirrored, or moved on by one where ranks are odd.

    So an inner rank of one is a leaf of the other; only rank 0 of an odd number may be inside both.
    """
    first = {rank: parent(rank, ranks) for rank in range(ranks)}

    def moved(rank: int) -> int:
        return ranks - 1 - rank if ranks % 2 == 0 else (rank + 1) % ranks

    second = {moved(rank): None if upper is None else moved(upper) for rank, upper in first.items()}
    return [first, second]


def _depth(rank: int, tree: dict[int, int | None]) -> int:
    upper = tree[rank]
    return 0 if upper is None else 1 + _depth(upper, tree)


def _tree(ranks: int, blocks: int) -> list[Message]:
    """Up both trees at once, block by block, then down: a rank at depth d sends block b up in step h - d + b."""
    h, messages = height(ranks), []
    for half, tree in enumerate(trees(ranks)):
        for rank, upper in tree.items():
            if upper is None:
                continue
            depth = _depth(rank, tree)
            for b in range(blocks):
                chunk = half * blocks + b
                messages.append(Message(h - depth + b, rank, upper, chunk, True))
                messages.append(Message(h + blocks - 1 + depth - 1 + b, upper, rank, chunk, False))
    return messages


def _halving_doubling(ranks: int, blocks: int) -> list[Message]:
    """Fold to a power of two; exchange halves at distance 1, 2, 4, ...; the same backwards; unfold."""
    out_of, part = fold(ranks)
    power, messages, step = len(part), [], 0
    everything = range(power)
    if out_of:
        messages += [Message(0, 2 * i, 2 * i + 1, c, True) for i in range(out_of) for c in everything]
        step = 1
    keeps = [list(everything) for _ in part]  # chunks that a participant is still responsible for
    rounds: list[tuple[int, list[list[int]]]] = []
    for k in range(height(power)):
        half = len(keeps[0]) // 2
        split = [
            (chunks[half:], chunks[:half]) if i >> k & 1 else (chunks[:half], chunks[half:])
            for i, chunks in enumerate(keeps)
        ]
        messages += [Message(step, part[i], part[i ^ 2**k], c, True) for i in everything for c in split[i][1]]
        keeps = [first_half for first_half, _ in split]
        rounds.append((k, keeps))
        step += 1
    for k, owned in reversed(rounds):
        messages += [Message(step, part[i], part[i ^ 2**k], c, False) for i in everything for c in owned[i]]
        step += 1
    return messages + [Message(step, 2 * i + 1, 2 * i, c, False) for i in range(out_of) for c in everything]


def hierarchical(ranks: int, g: int) -> list[Message]:
    """Reduce-scatter in each node; all-reduce between nodes, GPU i with GPU i; all-gather in each node."""
    n, messages = ranks // g, []

    def group(number: int) -> range:
        return range(number * n, number * n + n)  # the chunks of GPU `number` of each node

    for node in range(n):
        members = range(node * g, node * g + g)
        messages += _ring_rounds(members, group, (True,), 0, -1)
        messages += _ring_rounds(members, group, (False,), (g - 1) + 2 * (n - 1), 0)
    for gpu in range(g):
        part = group(gpu)
        messages += _ring_rounds(
            range(gpu, ranks, g), lambda number, part=part: [part[number]], (True, False), g - 1, 0
        )
    return messages


def _in_network(ranks: int, blocks: int) -> list[Message]:
    """Load a part that the switch adds up, store the sum, which it copies to all. Rank `ranks` is the switch."""
    return [
        message
        for r in range(ranks)
        for c in range(ranks)
        for message in (
            Message(0, r, ranks, c, True),
            *((Message(1, ranks, r, c, False), Message(2, r, ranks, c, False)) if r == c else ()),
            Message(3, ranks, r, c, False),
        )
    ]


def _binomial(ranks: int, blocks: int) -> list[Message]:
    """The distance halves, so that every rank that holds the message passes it on."""
    steps = height(ranks)
    return [
        Message(step, a, a + 2 ** (steps - 1 - step), 0, False)
        for step in range(steps)
        for a in range(0, ranks - 2 ** (steps - 1 - step), 2 ** (steps - step))
    ]


ROUTES = {
    ("all_reduce", "naive"): _naive(2), ("all_reduce", "ring"): _ring((True, False), 0),
    ("all_reduce", "tree"): _tree, ("all_reduce", "halving-doubling"): _halving_doubling,
    ("all_reduce", "in-network"): _in_network, ("reduce_scatter", "ring"): _ring((True,), -1),
    ("all_gather", "ring"): _ring((False,), 0), ("broadcast", "naive"): _naive(1), ("broadcast", "tree"): _binomial,
    ("broadcast", "ring"): lambda ranks, blocks: [
        Message(r + b, r, r + 1, b, False) for r in range(ranks - 1) for b in range(blocks)],
    ("all_to_all", "pairwise"): lambda ranks, blocks: [
        Message(s - 1, r, (r + s) % ranks, r * ranks + (r + s) % ranks, False)
        for s in range(1, ranks) for r in range(ranks)],
    ("send", "direct"): lambda ranks, blocks: [Message(0, 0, ranks - 1, 0, False)],
}  # fmt: skip
