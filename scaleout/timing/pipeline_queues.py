"""Seconds of a pipelined step by queues: quick where few actions are between two that wait for each other.

When the results of a stage will be where they are needed goes into the queue of the next one, and each rank runs until
a queue is empty. For the schedules that bend back, ZBV and DualPipeV, and for rounds that are over before the last rank
has begun; the others are quicker in `pipeline_sweep`. In the middle of a step that bends back all ranks repeat one
pattern: what a turn of it does depends on that turn and the one before, of its own rank and of its neighbours. So once
a turn comes on all ranks as much later than one before as on any, so will all that follow, and they are left out. The
tests hold it against `pipeline_clock`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from operator import add

from scaleout.spec.pipeline_weave import Phases, phases, round_size, weave
from scaleout.timing.pipeline_sweep import Notes, Stages, stretched

SOME = 8  # turns after which it is looked whether they repeat
MIDDLE = 3  # the phase of a schedule that bends back that all ranks repeat
# where a stage's inputs come from, where its results go, what notes a start, seconds until the rank is free again, and
# until the results are there
Step = tuple[deque[float] | None, deque[float] | None, object, float, float]


def bent(
    schedule: str, p: int, m: int, lengths: Sequence[Stages], hop: float, blocking: bool, notes: Notes | None = None
) -> float:
    """Seconds of the step of a schedule that bends back. lengths: of forwards, input and weight gradients by stage;
    notes: as in `pipeline_sweep`."""
    homes = [*range(p), *reversed(range(p))]
    ranks = Queues(homes, m, lengths, hop, blocking)
    plans = [phases(schedule, p, m, 2, rank) for rank in range(p)]
    if m <= 2 * p:
        ranks.run(map(ranks.bent, range(p), plans))
        return ranks.told(notes)
    ranks.run(map(ranks.bent, range(p), [plan[:MIDDLE] for plan in plans]))
    pattern, left, made, found = plans[0][MIDDLE][0], m - 2 * p, 0, None
    while left and not found:
        some = min(left, SOME)
        ranks.run(map(ranks.bent, range(p), [[(pattern, some)]] * p))
        left, made = left - some, made + some
        found = next((one for period in {1, p} if made > period and (one := ranks.settled(period, pattern))), None)
    period, later = found or (1, 0.0)
    marks = [
        {kind: (len(starts) - period * pattern.upper().count(kind), len(starts)) for kind, starts in began.items()}
        for began in ranks.began
    ]
    rest = [[(pattern, left % period + rank + 1), *plan[MIDDLE + 1 :]] for rank, plan in enumerate(plans)]
    ranks.run(map(ranks.bent, range(p), rest))
    return ranks.told(notes, marks, left // period, later)


def rounds(
    schedule: str,
    p: int,
    m: int,
    v: int,
    lengths: Sequence[Stages],
    hop: float,
    blocking: bool,
    notes: Notes | None = None,
) -> float:
    """The same of one that takes its chunks in rounds."""
    ranks = Queues([*range(p)] * v, m, lengths, hop, blocking)
    ranks.run([ranks.rounds(phases(schedule, p, m, v, rank), rank, round_size(p, m), m) for rank in range(p)])
    return ranks.told(notes)


class Queues:
    """The ranks, each with when it is free and what it began when, and the queues of their stages."""

    def __init__(self, homes: Sequence[int], m: int, lengths: Sequence[Stages], hop: float, blocking: bool) -> None:
        p, stages, (forward, input, weight) = 1 + max(homes), len(homes), lengths
        self.homes, self.free = homes, [0.0] * p
        self.began: list[dict[str, list[float]]] = [{kind: [] for kind in "FIBW"} for _ in range(p)]
        ahead: list[deque[float]] = [deque([0.0] * m), *(deque() for _ in homes)]
        behind: list[deque[float]] = [*(deque() for _ in homes), ahead[-1]]
        there = [hop if a != b else 0.0 for a, b in pairwise(homes)]
        self.steps: dict[tuple[str, int], Step] = {}
        for kind, took in (("F", forward), ("I", input), ("B", [*map(add, input, weight)])):
            lags = [*there, 0.0] if kind == "F" else [0.0, *there]
            for stage, home, busy, lag in zip(range(stages), homes, took, lags, strict=True):
                queues = (ahead[stage], ahead[stage + 1]) if kind == "F" else (behind[stage + 1], behind[stage])
                note = self.began[home][kind].append
                self.steps[kind, stage] = (*queues, note, busy + lag if blocking else busy, busy + lag)
        for stage, home in enumerate(homes):
            self.steps["W", stage] = (None, None, self.began[home]["W"].append, weight[stage], 0.0)

    def bent(self, rank: int, plan: Phases) -> list[Step]:
        """What a rank does in these phases, its second chunk in small letters."""
        letters = "".join(pattern * times for pattern, times in plan)
        if "Q" in letters:
            owed = iter([letter for letter in letters if letter in "Ii"])
            letters = "".join("Ww"[next(owed) == "i"] if letter == "Q" else letter for letter in letters)
        stages = ((rank, "FIBW"), (len(self.homes) - 1 - rank, "fibw"))
        known = {letter: self.steps[letter.upper(), stage] for stage, some in stages for letter in some}
        return [*map(known.__getitem__, letters)]

    def rounds(self, plan: Phases, rank: int, size: int, m: int) -> list[Step]:
        """The same of one that has its chunks in rounds of so many micro-batches."""
        mine = [stage for stage, home in enumerate(self.homes) if home == rank]
        threads = {}
        for kind in "FIBW":
            turn = [[self.steps[kind, stage]] * size for stage in (mine if kind == "F" else reversed(mine))]
            threads[kind] = chain.from_iterable(turn * (m // size))
        return weave([(pattern.replace("Q", "W"), times) for pattern, times in plan], threads, 0)

    def run(self, plans: Iterable[Sequence[Step]]) -> None:
        """Let all ranks come to the end of what they do."""
        ranks = [self._run(rank, plan) for rank, plan in enumerate(plans)][::-1]
        while ranks:
            ranks = [rank for rank in ranks if next(rank, None) is not None]

    def _run(self, rank: int, plan: Sequence[Step]) -> Iterator[int]:
        now = self.free[rank]
        for source, sink, note, busy, sent in plan:
            if source is None:  # a weight gradient waits for nothing
                note(now)
                now += busy
                continue
            while not source:
                yield rank
            came = source.popleft()
            if came > now:
                now = came
            note(now)
            sink.append(now + sent)
            now += busy
        self.free[rank] = now

    def settled(self, period: int, pattern: str) -> tuple[int, float] | None:
        """(period, its seconds) if on all ranks the last turn comes as much later than the one so many before."""
        gaps = [
            b - a
            for began in self.began
            for starts in map(began.get, {*pattern.upper()})
            for a, b in zip(starts[-2 * period - 2 : -2 * period], starts[-2:], strict=True)
        ]
        return (period, max(gaps)) if max(gaps) - min(gaps) <= 1e-12 * max(self.free) else None

    def told(
        self, notes: Notes | None, marks: Sequence[dict[str, tuple[int, int]]] = (), times: int = 0, later: float = 0.0
    ) -> float:
        """Seconds of the step. What lies between the marks came so many times more, each time so much later."""
        for rank in notes or ():
            for kind, starts in self.began[rank].items():
                if starts:
                    notes[rank][kind] = stretched(starts, *marks[rank][kind], times, later) if times else starts
        return max(self.free) + times * later
