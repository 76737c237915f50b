"""The step time of a pipeline by queues: fast if few actions are between two that wait for each other.

When the results of a stage will be where they are needed goes into the queue of the next one, and each rank runs until
a queue is empty. For the schedules that bend back, ZBV and DualPipeV, and for rounds that are over before the last rank
has begun; the others are faster in `pipeline_sweep`. In the middle of a step that bends back all ranks repeat one
pattern: what a turn of it does depends on that turn and the one before, of its own rank and of its neighbours. So once
a turn comes on all ranks as much later than one before as on any, so will all that follow, and they are left out. The
tests hold it against `pipeline_clock`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from operator import add

from scaleout.spec.pipeline_weave import Phases, phases, round_size, weave
from scaleout.timing.pipeline_sweep import Notes, Stages, stretched

CHECK_EVERY = 8  # turns after which it is looked whether they repeat
MIDDLE = 3  # the phase of a schedule that bends back that all ranks repeat
# where a stage's inputs come from, where its results go, what notes a start, seconds until the rank is free again, and
# until the results are there
Step = tuple[deque[float] | None, deque[float] | None, Callable[[float], None], float, float]


def bent(
    schedule: str, p: int, m: int, lengths: Sequence[Stages], hop: float, blocking: bool, notes: Notes | None = None
) -> float:
    """The step time of a schedule that bends back. lengths: of forwards, input and weight gradients by stage;
    notes: as in `pipeline_sweep`."""
    homes = [*range(p), *reversed(range(p))]
    ranks = Queues(homes, m, lengths, hop, blocking)
    plans = [phases(schedule, p, m, 2, rank) for rank in range(p)]
    if m <= 2 * p:
        ranks.run(map(ranks.bent, range(p), plans))
        return ranks.finish(notes)
    ranks.run(map(ranks.bent, range(p), [plan[:MIDDLE] for plan in plans]))
    pattern, remaining, turns, repeat = plans[0][MIDDLE][0], m - 2 * p, 0, None
    while remaining and not repeat:
        block = min(remaining, CHECK_EVERY)
        ranks.run(map(ranks.bent, range(p), [[(pattern, block)]] * p))
        remaining, turns = remaining - block, turns + block
        repeat = next(
            (settled for period in {1, p} if turns > period and (settled := ranks.settled(period, pattern))), None
        )
    period, later = repeat or (1, 0.0)
    marks = [
        {kind: (len(starts) - period * pattern.upper().count(kind), len(starts)) for kind, starts in began.items()}
        for began in ranks.began
    ]
    endings = [[(pattern, remaining % period + rank + 1), *plan[MIDDLE + 1 :]] for rank, plan in enumerate(plans)]
    ranks.run(map(ranks.bent, range(p), endings))
    return ranks.finish(notes, marks, remaining // period, later)


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
    return ranks.finish(notes)


class Queues:
    """The ranks, each with when it is free and what it began when, and the queues of their stages."""

    def __init__(self, homes: Sequence[int], m: int, lengths: Sequence[Stages], hop: float, blocking: bool) -> None:
        p, stages, (forward, input, weight) = 1 + max(homes), len(homes), lengths
        self.homes, self.free = homes, [0.0] * p
        self.began: list[dict[str, list[float]]] = [{kind: [] for kind in "FIBW"} for _ in range(p)]
        forward_queues: list[deque[float]] = [deque([0.0] * m), *(deque() for _ in homes)]
        backward_queues: list[deque[float]] = [*(deque() for _ in homes), forward_queues[-1]]
        hops = [hop if a != b else 0.0 for a, b in pairwise(homes)]
        self.steps: dict[tuple[str, int], Step] = {}
        for kind, durations in (("F", forward), ("I", input), ("B", [*map(add, input, weight)])):
            lags = [*hops, 0.0] if kind == "F" else [0.0, *hops]
            for stage, home, busy, lag in zip(range(stages), homes, durations, lags, strict=True):
                queues = (
                    (forward_queues[stage], forward_queues[stage + 1])
                    if kind == "F"
                    else (backward_queues[stage + 1], backward_queues[stage])
                )
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
        known = {letter: self.steps[letter.upper(), stage] for stage, names in stages for letter in names}
        return [*map(known.__getitem__, letters)]

    def rounds(self, plan: Phases, rank: int, size: int, m: int) -> list[Step]:
        """The same of one that has its chunks in rounds of so many micro-batches."""
        stages = [stage for stage, home in enumerate(self.homes) if home == rank]
        steps: list[Step] = []
        threads: dict[str, Iterator[int]] = {}  # numbers of steps
        for kind in "FIBW":
            numbers = range(len(steps), len(steps) + len(stages))
            steps += [self.steps[kind, stage] for stage in (stages if kind == "F" else reversed(stages))]
            threads[kind] = chain.from_iterable([[number] * size for number in numbers] * (m // size))
        woven = weave([(pattern.replace("Q", "W"), times) for pattern, times in plan], threads, 0)
        return [steps[number] for number in woven]

    def run(self, plans: Iterable[Sequence[Step]]) -> None:
        """Let all ranks come to the end of what they do."""
        ranks = [self._run(rank, plan) for rank, plan in enumerate(plans)][::-1]
        while ranks:
            ranks = [rank for rank in ranks if next(rank, None) is not None]

    def _run(self, rank: int, plan: Sequence[Step]) -> Iterator[int]:
        time = self.free[rank]
        for source, sink, note, busy, sent in plan:
            if source is None or sink is None:  # a weight gradient waits for nothing
                note(time)
                time += busy
                continue
            while not source:
                yield rank
            came = source.popleft()
            if came > time:
                time = came
            note(time)
            sink.append(time + sent)
            time += busy
        self.free[rank] = time

    def settled(self, period: int, pattern: str) -> tuple[int, float] | None:
        """(period, its seconds) if on all ranks the last turn comes as much later than the one so many before."""
        gaps = [
            b - a
            for began in self.began
            for starts in (began[kind] for kind in {*pattern.upper()})
            for a, b in zip(starts[-2 * period - 2 : -2 * period], starts[-2:], strict=True)
        ]
        return (period, max(gaps)) if max(gaps) - min(gaps) <= 1e-12 * max(self.free) else None

    def finish(
        self, notes: Notes | None, marks: Sequence[dict[str, tuple[int, int]]] = (), times: int = 0, later: float = 0.0
    ) -> float:
        """The step time. What lies between the marks came so many times more, each time so much later."""
        for rank, noted in (notes or {}).items():
            for kind, starts in self.began[rank].items():
                if starts:
                    noted[kind] = stretched(starts, *marks[rank][kind], times, later) if times else starts
        return max(self.free) + times * later
