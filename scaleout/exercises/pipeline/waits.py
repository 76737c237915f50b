"""The exercise of `pipeline` on a schedule that hangs: which rank waits for which."""

from __future__ import annotations

from scaleout.exercises.engine import Function, Mistake

_WAITS_STUB = '''\
def waits_for(orders):
    """For each rank, the rank that its next action waits for.

    -1 for a rank that reaches the end of its list.
    orders: for each rank a list such as [("F", 0), ("B", 0)]
    """
    return ...
'''

_WAITS_SOLUTION = """\
def waits_for(orders):
    ranks, at, done = len(orders), [0] * len(orders), {None}

    def needs(rank):
        kind, i = orders[rank][at[rank]]
        if kind == "F":
            return ("F", rank - 1, i) if rank > 0 else None
        if rank == ranks - 1:
            return "F", rank, i
        return "B", rank + 1, i

    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while at[rank] < len(order) and needs(rank) in done:
                kind, i = order[at[rank]]
                done.add((kind, rank, i))
                at[rank] += 1
                moved = True
    return [needs(rank)[1] if at[rank] < len(order) else -1
            for rank, order in enumerate(orders)]
"""


def _waits(upstream=-1, rounds=None, last_rank=True, micro=True):
    """Plays orders: `upstream` is where a forward's input comes from, `rounds` how often each rank is looked at,
    `last_rank` whether the last rank's backward needs its forward, `micro` whether micro-batches are told apart."""

    def needs(rank: int, action: tuple, ranks: int, finished: list) -> int:
        """The rank that an action of this one waits for, or -1."""
        kind, i = action
        source = rank + (upstream if kind == "F" else -upstream)
        if not 0 <= source < ranks:
            if kind == "F" or not last_rank:
                return -1
            source, needed = rank, "F"
        else:
            needed = kind
        if micro:
            ready = (needed, source, i) in finished
        else:
            ready = _count(finished, needed, source) > _count(finished, kind, rank)
        return -1 if ready else source

    def waits_for(orders: list) -> list[int]:
        ranks, positions = len(orders), [0] * len(orders)
        finished: list = []
        for _ in range(rounds or sum(map(len, orders)) + 1):
            for rank, order in enumerate(orders):
                while positions[rank] < len(order) and needs(rank, order[positions[rank]], ranks, finished) == -1:
                    kind, i = order[positions[rank]]
                    finished.append((kind, rank, i))
                    positions[rank] += 1
        return [
            needs(rank, order[positions[rank]], ranks, []) if positions[rank] < len(order) else -1
            for rank, order in enumerate(orders)
        ]

    return waits_for


def _count(finished: list, kind: str, rank: int) -> int:
    return sum((done_kind, done_rank) == (kind, rank) for done_kind, done_rank, _ in finished)


_waits_for = _waits()


def _row(words: str) -> list[tuple[str, int]]:
    """ "F0 B0" as actions."""
    return [(word[0], int(word[1:])) for word in words.split()]


def _rows(*words: str) -> tuple[list]:
    return ([_row(text) for text in words],)


def _culprits_only(orders: list) -> list[int]:
    """Only the ranks of a ring: those behind it counted as done."""
    waits = _waits_for(orders)

    def comes_back(rank: int) -> bool:
        current = waits[rank]
        for _ in orders:
            if current in (-1, rank):
                return current == rank
            current = waits[current]
        return False

    return [waited if waited != -1 and comes_back(rank) else -1 for rank, waited in enumerate(waits)]


SIMULATE = Function(
    key="simulate",
    level=3,
    title="Which rank waits for which",
    lists=True,
    index=True,
    minutes=20,
    prompt="A schedule written by hand hangs. Write `waits_for(orders)`: for each rank, the number of the rank that "
    "its next action waits for, or **−1** if the rank reaches the end of its list. Rank r has stage r and does its "
    "list in order:\n\n"
    '- `("F", i)` needs `("F", i)` of rank r − 1; on the first rank it needs nothing.\n'
    '- `("B", i)` needs `("B", i)` of rank r + 1; on the last rank it needs its **own** `("F", i)`.\n\n'
    'Messages take no time and sends do not block. `[[("F", 0), ("B", 0)], [("B", 0), ("F", 0)]]` gives '
    "`[1, 1]`: rank 1 waits for itself.",
    hints=(
        "Store a set of the actions that are done, and for each rank its position in its list.",
        "Go through all ranks, each as far as it can get, until a round changes nothing. Then look at what the next "
        "action of each rank needs.",
    ),
    solution="```python\n"
    f"{_WAITS_SOLUTION}```\n\n"
    "Follow the numbers from any rank that waits: they lead to a cycle, and the cycle is the fault. The other ranks "
    "wait behind it. You can read a hang in a real job the same way, from the last operation of each rank.",
    function="waits_for",
    stub=_WAITS_STUB,
    reference=_waits_for,
    cases=(
        _rows("F0 B0", "B0 F0"),
        _rows("B0 F0", "F0 B0"),
        _rows("F0 F1 B0 B1", "F0 B0 F1 B1"),
        _rows("F0 B0 F1 B1", "F0 F1 B0 B1"),
        _rows("F0 F1 F2 B0 B1 B2", "F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"),
        _rows("F0 F1 B0 B1", "F0 F1 B0 B1", "F1 F0 B0 B1"),
        _rows("F0 F1 B1 B0", "F0 F1 B1 B0", "F0 B0 F1 B1"),
        _rows("F0 F1 B0 F2 B1 B2", "F0 F1 B0 F2 B1 B2", "F0 F1 F2 B0 B1 B2", "F0 B0 F1 B1 F2 B2"),
        _rows("B0 F0"),
        _rows("F0 F1 B0 B1"),
        _rows("F0 F1 F2 B0 B1 B2", "F0 F1 B0 B1 F2 B2", "F0 F1 B1 B0 F2 B2"),
        _rows("F0 F1 B0 B1", "F1 F0 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"),
        _rows("F0 F1 F2 B2 B1 B0", "F0 F1 F2 B2 B1 B0", "F0 F1 F2 B2 B1 B0"),
        _rows("F0 B0", "F0 B0", "F0 B0", "B0 F0"),
        _rows("F0 B0 F1 B1", "F1 B1 F0 B0"),
        _rows("F0 F1 B1 F2 B0 B2", "F0 B0 F1 F2 B2 B1"),
        _rows("F0 F1 B0 B1 F2 B2", "F0 F1 B0 B1 F2 B2", "F2 B2 F0 B0 F1 B1"),
    ),
    mistakes=(
        Mistake(
            "other-way",
            _waits(upstream=1),
            "Your forwards need the next rank and your backwards the previous one. It is the other way.",
        ),
        Mistake(
            "one-round",
            _waits(rounds=1),
            "You go through the ranks once. Gradients come from later ranks: repeat until nothing changes.",
        ),
        Mistake(
            "free-backward",
            _waits(last_rank=False),
            "On your last rank a backward needs nothing. It needs its own forward of the same micro-batch.",
        ),
        Mistake(
            "any-micro-batch",
            _waits(micro=False),
            "You count how many actions are done, not which. F1 does not help a rank that waits for F0.",
        ),
        Mistake(
            "ring-only",
            _culprits_only,
            "You give -1 to ranks that wait behind the cycle. They do not reach the end of their lists either.",
        ),
        Mistake(
            "whether",
            lambda orders: [-1 if source == -1 else rank for rank, source in enumerate(_waits_for(orders))],
            "You give the number of the waiting rank. Give the number of the rank that it waits for.",
        ),
        Mistake(
            "one-for-zero",
            lambda orders: [max(source, 0) for source in _waits_for(orders)],
            "You give 0 where a rank reaches the end of its list. 0 is a rank: give -1.",
        ),
        Mistake(
            "from-one",
            lambda orders: [source if source == -1 else source + 1 for source in _waits_for(orders)],
            "You number the ranks from 1. The first is rank 0.",
        ),
    ),
    right="The ranks that wait for each other in a cycle are the fault. The others wait behind them.",
)

EXERCISES = (SIMULATE,)
