"""Pipeline schedules: what each rank does, in which order. Forward, backward, or backward in two halves.

A model of p x v stages runs on p ranks, v stages ("chunks") on each. A step has m micro-batches, and each needs every
stage's forward and backward once. A schedule only says in which order a rank takes them. Seven are here, as the
library has them (torch.distributed.pipelining, whose own tables the tests compare): GPipe (arXiv 1811.06965), 1F1B
(arXiv 1806.03377), interleaved (arXiv 2104.04473), breadth-first (arXiv 2211.05953), the zero-bubble ZB1 and ZBV
(arXiv 2401.10241) and DualPipeV (arXiv 2412.19437). When each action starts is told in `timing.pipeline`.

A rank's order is woven from few threads. Each letter of a pattern takes the next micro-batch of one thread: F, B, I
and W of the first chunk (or of all chunks in turn), f, b, i and w of the second where a schedule has two and bends
back; Q is the oldest input gradient's weight gradient that is still to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import NamedTuple

from scaleout.spec import checks

KINDS = "FBIW"


class Action(NamedTuple):
    """One piece of work. kind: F forward, B whole backward, I input gradient, W weight gradient."""

    kind: str
    stage: int  # 0 to p * v - 1, in the order of the model
    micro: int  # 0 to m - 1

    def __str__(self) -> str:
        return f"{self.kind}{self.micro} of stage {self.stage}"


Orders = tuple[tuple[Action, ...], ...]  # of each rank
Phases = list[tuple[str, int]]  # a pattern of letters, and how often it comes


@dataclass(frozen=True)
class Schedule:
    """What a schedule is called and what it asks for.

    chunks: the fewest and the most stages a rank may have. v_shaped: the second chunk runs from the last rank back
    to the first. splits: backward comes as input gradient and weight gradient.
    """

    label: str
    torch: str  # its name in torch.distributed.pipelining, less "Schedule"
    chunks: tuple[int, int | None] = (1, 1)
    v_shaped: bool = False
    splits: bool = False


SCHEDULES = {
    "gpipe": Schedule("GPipe", "GPipe"),
    "1f1b": Schedule("1F1B", "1F1B"),
    "interleaved": Schedule("interleaved 1F1B", "Interleaved1F1B", (2, None)),
    "bfs": Schedule("looped breadth-first", "LoopedBFS", (2, None)),
    "zb1": Schedule("zero-bubble ZB1", "InterleavedZeroBubble", (1, None), splits=True),
    "zbv": Schedule("zero-bubble ZBV", "ZBVZeroBubble", (2, 2), v_shaped=True, splits=True),
    "dualpipev": Schedule("DualPipeV", "DualPipeV", (2, 2), v_shaped=True, splits=True),
}


def rank_of(schedule: str, stage: int, p: int) -> int:
    """The rank that has a stage: stages go round the ranks, or there and back again."""
    lap, place = divmod(stage, p)
    return p - 1 - place if SCHEDULES[schedule].v_shaped and lap % 2 else place


def stages_of(schedule: str, rank: int, p: int, v: int) -> tuple[int, ...]:
    """The stages of a rank, in the order of the model."""
    return tuple(s for s in range(p * v) if rank_of(schedule, s, p) == rank)


def round_size(p: int, m: int) -> int:
    """Micro-batches that pass through one chunk of a rank before its next chunk is taken up (torch's own rule)."""
    return m // max(1, m // p)


def allowed(schedule: str, p: int, m: int) -> bool:
    """Whether a schedule of p ranks can have m micro-batches."""
    if schedule in ("interleaved", "zb1"):
        return m % max(1, m // p) == 0
    return m >= {"1f1b": p, "dualpipev": 2 * p}.get(schedule, 1)


def refuse(schedule: str, p: int, m: int, v: int = 1) -> None:
    """Raise ValueError, with the nearest that works, for what the schedule cannot be."""
    facts = checks.known("schedule", schedule, SCHEDULES)
    for name, value in (("p", p), ("m", m), ("v", v)):
        checks.whole(name, value, of=" (ranks, micro-batches, chunks a rank)")
    least, most = facts.chunks
    if v < least or (most and v > most):
        bound = str(least) if most == least else f"at least {least}"
        raise ValueError(f"{schedule} has {bound} chunks a rank, not {v}: use v = {least if v < least else most}")
    if not allowed(schedule, p, m):
        near = min((n for n in range(1, m + 2 * p + 1) if allowed(schedule, p, n)), key=lambda n: (abs(n - m), -n))
        why = {"1f1b": f"at least one for each of {p} ranks", "dualpipev": f"two for each of {p} ranks"}.get(
            schedule, f"rounds of equal size, of {p} or a few more"
        )
        raise ValueError(f"{schedule} needs micro-batches for {why}, not {m}: use m = {near}")


def enough(schedule: str, p: int) -> int:
    """The fewest micro-batches that fill the pipeline: with fewer some ranks have nothing to do at any moment."""
    return {"dualpipev": 2 * p, "zbv": 2 * p - 1}.get(schedule, p)


@lru_cache(maxsize=8)
def orders(schedule: str, p: int, m: int, v: int = 1) -> Orders:
    """What each rank does, in order. Raises ValueError as `refuse` does."""
    stages, out = p * v, []
    for codes in coded(schedule, p, m, v):
        out.append(tuple(Action(KINDS[c // (stages * m)], c // m % stages, c % m) for c in codes))
    return tuple(out)


def coded(schedule: str, p: int, m: int, v: int = 1) -> list[list[int]]:
    """`orders` in numbers, which take a tenth of the time: (kind * stages + stage) * m + micro. ValueError as there."""
    refuse(schedule, p, m, v)
    weavers = {"gpipe": _flat, "1f1b": _flat, "bfs": _breadth_first, "zbv": _zbv, "dualpipev": _dualpipev}
    return [weavers.get(schedule, _in_rounds)(schedule, p, m, v, rank) for rank in range(p)]


def _flat(schedule: str, p: int, m: int, v: int, rank: int) -> list[int]:
    """One stage a rank: all forwards first, or, once the last rank could begin, forward and backward in turn."""
    warm = m if schedule == "gpipe" else p - 1 - rank
    threads = {kind: iter(_row(kind, rank, p, m)) for kind in "FB"}
    return weave([("F", warm), ("FB", m - warm), ("B", warm)], threads)


def _breadth_first(schedule: str, p: int, m: int, v: int, rank: int) -> list[int]:
    """All micro-batches through a chunk before its next chunk; back in the reverse of it."""
    rows = {kind: [_row(kind, s, p * v, m) for s in range(rank, p * v, p)] for kind in "FB"}
    return [*chain(*rows["F"]), *chain(*(reversed(row) for row in reversed(rows["B"])))]


def _in_rounds(schedule: str, p: int, m: int, v: int, rank: int) -> list[int]:
    """Interleaved 1F1B and ZB1: a round of micro-batches through each chunk in turn, then the next round."""
    size, total = round_size(p, m), m * v
    back = "I" if schedule == "zb1" else "B"
    threads = {
        kind: _by_rounds([_row(kind, s, p * v, m) for s in range(rank, p * v, p)][:: 1 if kind == "F" else -1], size)
        for kind in ("F", back)
    }
    warm = min(total, (v - 1) * size + (1 if schedule == "zb1" else 2) * (p - 1 - rank))
    if back == "B":
        return weave([("F", warm), ("FB", total - warm), ("B", warm)], threads)
    # as many weight gradients as the rank's number are put off, to be done where it would else wait
    alone = min(rank, total - warm)
    late = min(rank - alone, warm)
    return weave([
        ("F", warm), ("FI", alone), ("FIQ", total - warm - alone), ("I", late), ("IQ", warm - late),
        ("Q", alone + late),
    ], threads, p * v * m)  # fmt: skip


def _row(kind: str, stage: int, stages: int, m: int) -> range:
    """The codes of one kind on one stage, micro-batch by micro-batch."""
    first = (KINDS.index(kind) * stages + stage) * m
    return range(first, first + m)


def _by_rounds(rows: list[range], size: int) -> Iterator[int]:
    """`size` of each row, then the next `size` of each."""
    return chain.from_iterable(row[i : i + size] for i in range(0, len(rows[0]), size) for row in rows)


def weave(phases: Phases, threads: dict[str, Iterator[int]], kind_size: int = 0) -> list[int]:
    """A rank's order. Q stands for the weight gradients, one for each input gradient, in the same order.

    kind_size: codes of one kind; needed with Q."""
    out: list[int] = []
    for pattern, times in phases:
        woven = [-1] * (times * len(pattern))
        for place, letter in enumerate(pattern):
            if letter != "Q":
                woven[place :: len(pattern)] = islice(threads[letter], times)
        out += woven
    if kind_size:
        first = KINDS.index("I") * kind_size
        inputs = (code for code in out if first <= code < first + kind_size)
        out = [next(inputs) + kind_size if code < 0 else code for code in out]
    return out


def _zbv(schedule: str, p: int, m: int, v: int, rank: int) -> list[int]:
    """ZB-V: the second chunk comes back to the first rank, so that its backwards begin while others still fill.

    The order is made for 2p - 1 micro-batches at least; with fewer, those that are not there are left out."""
    n, back = max(m, 2 * p - 1), p - rank
    threads = {
        letter: chain(_row(letter.upper(), rank if letter.isupper() else 2 * p - 1 - rank, 2 * p, m), [-1] * (n - m))
        for letter in "FIWfiw"
    }
    order = weave([
        ("F", 2 * back - 1), ("fF", rank), ("fiw", back),
        ("FIWfiw", n - p - back + 1), ("IWfiw", back - 1),
        ("Ii", rank), ("IW", back), ("w", rank), ("W", rank),
    ], threads)  # fmt: skip
    return [code for code in order if code >= 0]


def _dualpipev(schedule: str, p: int, m: int, v: int, rank: int) -> list[int]:
    """DualPipeV: forwards of one chunk in turn with backwards of the other, in halves only at the ends.

    The library runs a pair "Fb" or "fB" as one action, the forward first."""
    back, whole = p - rank - 1, (rank + 1) // 2
    first, second = ({kind: _row(kind, s, 2 * p, m) for kind in "FBI"} for s in (rank, 2 * p - 1 - rank))
    # of each chunk's backwards, some come whole and the rest in halves
    halves = rank // 2 + 1 + back if rank % 2 == 0 else rank - whole + 1 + back
    threads = {
        "F": iter(first["F"]), "f": iter(second["F"]),
        "B": iter(first["B"]), "I": iter(first["I"][m - halves :]),
        "b": iter(second["B"][back:]), "i": chain(second["I"][:back], second["I"][m - (rank + 1 - whole) + (rank + 1) % 2 :]),
    }  # fmt: skip
    bend = [("bI", 1)] if rank % 2 == 0 else []
    return weave([
        ("F", 2 * back), ("Ff", rank + 1), ("iQf", back),
        ("FbfB", m - 2 * p + rank + 1), ("bfB", back),
        ("bB", whole), *bend, ("iI", rank + 1 - whole - len(bend)),
        ("QI", back), ("Q", rank + 1),
    ], threads, 2 * p * m)  # fmt: skip
