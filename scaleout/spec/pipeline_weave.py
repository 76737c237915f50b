"""The order of actions of one rank as phases, each a pattern of letters that is repeated.

Each letter takes the next of one thread of actions: F forward, B whole backward, I input gradient and W weight
gradient of the rank's chunks in turn, or of its first chunk where the schedule bends back, whose second chunk then has
f, b, i and w. Q is the weight gradient of the oldest input gradient that has none yet. So `[("F", 3), ("FB", 5),
("B", 3)]` is 1F1B on the first of four ranks, with eight micro-batches.

Actions are numbers here, for they are many: (row * m + micro), the rows of F in the order of the stages, those of I, B
and W in the reverse of it. So what a forward or an input gradient makes is needed one row on: number + m.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice

from scaleout.spec import checks

KINDS = "FIBW"
Phases = list[tuple[str, int]]
Threads = dict[str, Iterator[int]]


def row(kind: str, stage: int, stages: int, m: int) -> range:
    """One kind of action on one stage, micro-batch by micro-batch."""
    place = stage if kind == "F" else stages - 1 - stage
    first = (KINDS.index(kind) * stages + place) * m
    return range(first, first + m)


def weave(phases: Phases, threads: Threads, size: int) -> list[int]:
    """The order. size: how many actions there are of each kind."""
    order: list[int] = []
    for pattern, times in phases:
        woven = [-1] * (times * len(pattern))
        for place, letter in enumerate(pattern):
            if letter != "Q":
                woven[place :: len(pattern)] = islice(threads[letter], times)
        order += woven
    if any("Q" in pattern for pattern, _ in phases):
        inputs = (code for code in order if size <= code < 2 * size)
        order = [next(inputs) + 2 * size if code < 0 else code for code in order]
    return order


def round_size(p: int, m: int) -> int:
    """Micro-batches that pass through one chunk of a rank before its next chunk is taken up (the library's rule)."""
    return m // max(1, m // p)


def warm_up(schedule: str, p: int, m: int, v: int, rank: int) -> int:
    """Forwards before the first backward, of a schedule that takes its chunks in rounds; 1F1B has one chunk. Never
    more than there are, m * v: that is for the caller to see."""
    return (v - 1) * round_size(p, m) + (2 if schedule == "interleaved" else 1) * (p - 1 - rank)


def phases(schedule: str, p: int, m: int, v: int, rank: int) -> Phases:
    """The phases of a rank. ValueError lists the schedules for an unknown one."""
    return checks.known("schedule", schedule, PHASES)(schedule, p, m, v, rank)


def order(schedule: str, p: int, m: int, v: int, rank: int) -> list[int]:
    """The order of a rank, in numbers."""
    return weave(phases(schedule, p, m, v, rank), _threads(schedule, p, m, v, rank), p * v * m)


def chunks(schedule: str, p: int, m: int, v: int, rank: int, kind: str) -> list[int]:
    """Which of its chunks each of a rank's actions of one kind is on, in order."""
    if schedule in ("zbv", "dualpipev"):
        letters = "".join(pattern * times for pattern, times in phases(schedule, p, m, v, rank))
        if kind == "W" and schedule == "dualpipev":
            kind = "I"  # in their order
        return [int(letter != kind) for letter in letters if letter.upper() == kind]
    size = m if schedule == "bfs" else round_size(p, m)
    turn = [chunk for chunk in range(v)[:: 1 if kind == "F" else -1] for _ in range(size)]
    return turn * (m // size)


def places(schedule: str, p: int, m: int, v: int, rank: int, chunk: int, micro: int) -> dict[str, int]:
    """How many actions of its kind a rank makes before each one of a micro-batch on one of its chunks, by kind."""
    if schedule not in ("zbv", "dualpipev"):
        size = m if schedule == "bfs" or v == 1 else round_size(p, m)
        previous, offset = micro // size * size * v, micro % size
        backward = previous + (v - 1 - chunk) * size + (m - 1 - micro if schedule == "bfs" else offset)
        return {"F": previous + chunk * size + offset} | dict.fromkeys("IW" if schedule == "zb1" else "B", backward)
    woven = phases(schedule, p, m, v, rank)
    counts = dict(_place(woven, letters, micro) for letters in (("f", "ib", "w") if chunk else ("F", "IB", "W")))
    if "I" in counts and schedule == "dualpipev":
        counts["W"] = counts["I"]  # the oldest input gradient's
    counts.pop("", None)
    return counts


def _place(woven: Phases, letters: str, micro: int) -> tuple[str, int]:
    """(kind, actions of that kind before) of the action of a micro-batch among those of one chunk that have these
    letters, of which no pattern has two; ("", 0) where there is none."""
    for n, (pattern, times) in enumerate(woven):
        index = max(map(pattern.find, letters))
        if index >= 0 and micro < times:
            kind = pattern[index].upper()
            previous = sum(text.upper().count(kind) * turns for text, turns in woven[:n])
            return kind, previous + micro * pattern.upper().count(kind) + pattern.upper().count(kind, 0, index)
        micro -= 0 if index < 0 else times
    return "", 0


def _threads(schedule: str, p: int, m: int, v: int, rank: int) -> Threads:
    threads = _bent if schedule in ("zbv", "dualpipev") else _breadth if schedule == "bfs" else _rounds
    return threads(schedule, p, m, v, rank)


def _all_first(schedule: str, p: int, m: int, v: int, rank: int) -> Phases:
    return [("F", m * v), ("B", m * v)]


def _in_turn(schedule: str, p: int, m: int, v: int, rank: int) -> Phases:
    """1F1B: forwards until the first backward can come, then one of each."""
    warm = min(m * v, warm_up(schedule, p, m, v, rank))
    return [("F", warm), ("FB", m * v - warm), ("B", warm)]


def _zb1(schedule: str, p: int, m: int, v: int, rank: int) -> Phases:
    """1F1B whose rank r puts r weight gradients off, to do them where it would else wait."""
    warm = min(m * v, warm_up(schedule, p, m, v, rank))
    alone = min(rank, m * v - warm)
    delayed = min(rank - alone, warm)
    return [
        ("F", warm),
        ("FI", alone),
        ("FIQ", m * v - warm - alone),
        ("I", delayed),
        ("IQ", warm - delayed),
        ("Q", alone + delayed),
    ]


def _zbv(schedule: str, p: int, m: int, v: int, rank: int) -> Phases:
    """The second chunk comes back to the first rank, whose backwards so begin while others still fill. The order is
    made for 2p - 1 micro-batches at least; with fewer, those that are not there are left out of it."""
    n, remaining = max(m, 2 * p - 1), p - rank
    table = [
        ("F", 2 * remaining - 1),
        ("fF", rank),
        ("fiw", remaining),
        ("FIWfiw", n - p - remaining + 1),
        ("IWfiw", remaining - 1),
        ("Ii", rank),
        ("IW", remaining),
        ("w", rank),
        ("W", rank),
    ]
    return table if n == m else [*_cut(table, m)]


def _cut(table: Phases, m: int) -> Iterator[tuple[str, int]]:
    """Phases of which each letter has m turns, and is left out after them."""
    turns = dict.fromkeys("FfIiWw", m)
    for pattern, times in table:
        while times and (pattern := "".join(letter for letter in pattern if turns[letter])):
            count = min(times, *(turns[letter] for letter in pattern))
            yield pattern, count
            times -= count
            for letter in pattern:
                turns[letter] -= count


def _dualpipev(schedule: str, p: int, m: int, v: int, rank: int) -> Phases:
    """Forwards of one chunk in turn with backwards of the other, in halves only near the ends. The library runs a pair
    "Fb" or "fB" as one action, the forward first."""
    remaining, pairs, bend = p - rank - 1, (rank + 1) // 2, (rank + 1) % 2
    return [
        ("F", 2 * remaining),
        ("Ff", rank + 1),
        ("iQf", remaining),
        ("FbfB", m - 2 * p + rank + 1),
        ("bfB", remaining),
        ("bB", pairs),
        ("bI", bend),
        ("iI", rank + 1 - pairs - bend),
        ("QI", remaining),
        ("Q", rank + 1),
    ]


def _rounds(schedule: str, p: int, m: int, v: int, rank: int) -> Threads:
    """A round of micro-batches through each chunk in turn, then the next round; backwards from the last chunk."""
    size = m if v == 1 else round_size(p, m)

    def thread(kind: str) -> Iterator[int]:
        rows = [row(kind, stage, p * v, m) for stage in range(rank, p * v, p)][:: 1 if kind == "F" else -1]
        return chain.from_iterable(micros[i : i + size] for i in range(0, m, size) for micros in rows)

    return {kind: thread(kind) for kind in "FBI"}


def _breadth(schedule: str, p: int, m: int, v: int, rank: int) -> Threads:
    """All micro-batches through a chunk before its next chunk, and back in the reverse of it."""
    forwards, backwards = ([row(kind, stage, p * v, m) for stage in range(rank, p * v, p)] for kind in "FB")
    return {"F": chain(*forwards), "B": chain(*map(reversed, reversed(backwards)))}


def _bent(schedule: str, p: int, m: int, v: int, rank: int) -> Threads:
    """Threads of the chunk on the way there and of the one on the way back. B and I of a chunk share its
    micro-batches: an iterator for both, moved into the rows of either."""
    threads: Threads = {}
    for letters, stage in (("FIWB", rank), ("fiwb", 2 * p - 1 - rank)):
        shared = iter(range(m))
        for letter in letters:
            first = row(letter.upper(), stage, 2 * p, m)[0]
            micros = shared if schedule == "dualpipev" and letter in "IBib" else iter(range(m))
            threads[letter] = map(first.__add__, micros)
    return threads


PHASES: dict[str, Callable[[str, int, int, int, int], Phases]] = {
    "gpipe": _all_first, "1f1b": _in_turn, "interleaved": _in_turn, "bfs": _all_first, "zb1": _zb1, "zbv": _zbv,
    "dualpipev": _dualpipev,
}  # fmt: skip
