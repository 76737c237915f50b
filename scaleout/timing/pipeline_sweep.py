"""Seconds of a pipelined step without its actions: the ranks are swept in a diagonal, with a few numbers for each.

For schedules whose ranks all take up the same actions in the same order, shifted: the forward that rank r makes at
turn t is the one that rank r - 1 made at turn t - 1. So nothing is remembered but what was sent last; what goes from
the last rank back to the first waits in a queue. The tests hold it against `pipeline_clock`, which knows any order.
Who wants to know when the actions of some ranks start gives `notes`: by rank a list that takes each start, or None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil, fsum

from scaleout.spec.pipeline_weave import phases, round_size, warm_up

Stages = Sequence[float]
Notes = Sequence[list[float] | None]
Run = tuple[float, float, int]  # what comes one after another: when the first does, seconds to the next, how many


def seconds(
    schedule: str, p: int, m: int, v: int, forward: Stages, input: Stages, weight: Stages, hop: float, blocking: bool,
    notes: Notes | None = None,
) -> float | None:  # fmt: skip
    """Seconds of the step, or None where there is no such diagonal: of schedules that bend back, and of a round that is
    over before the last rank has begun."""
    hop = hop if p > 1 else 0.0
    if schedule in ("zbv", "dualpipev") or (v > 1 and m < p):
        return None
    if schedule == "zb1" and notes and not all(weight):
        return None  # what takes no time is not told from what is not there
    plain, notes = not notes, notes or [None] * p
    if schedule == "zb1":
        return _diagonal(schedule, p, m, v, {"F": forward, "B": input, "W": weight}, hop, blocking, notes)
    whole = [a + b for a, b in zip(input, weight, strict=True)]
    if schedule == "gpipe" and plain and not blocking:
        return _one_way(m, forward, hop) + _one_way(m, whole, hop)
    if schedule in ("gpipe", "bfs"):
        return _breadth_first(p, m, forward, whole, hop, blocking, notes)
    return _diagonal(schedule, p, m, v, {"F": forward, "B": whole}, hop, blocking, notes)


def _one_way(m: int, lengths: Stages, hop: float) -> float:
    """Equal pieces through all stages, one after another: the first through each, the others at the slowest's pace."""
    return fsum(lengths) + (m - 1) * max(lengths) + (len(lengths) - 1) * hop


def _breadth_first(
    p: int, m: int, forward: Stages, whole: Stages, hop: float, blocking: bool, notes: Notes
) -> float:
    """Each stage takes all micro-batches, one after another: in the order of the stages, then in the reverse."""
    free = [0.0] * p
    stages = len(forward)
    for back, lengths in ((False, forward), (True, tuple(reversed(whole)))):
        runs: list[Run] = [(0.0, 0.0, m)]  # of the backward too: the last rank has all its forwards behind it
        for place, length in enumerate(lengths):
            rank = p - 1 - place % p if back else place % p
            lag = hop if place < stages - 1 else 0.0
            runs = _queue(runs, free[rank], length + lag if blocking else length)
            first, gap, count = runs[-1]
            free[rank] = first + (count - 1) * gap + length + (lag if blocking else 0.0)
            if notes[rank] is not None:
                notes[rank].extend(first + k * gap for first, gap, count in runs for k in range(count))
            runs = [(first + length + lag, gap, count) for first, gap, count in runs]
    return max(free)


def _queue(runs: list[Run], now: float, each: float) -> list[Run]:
    """When a rank that is free at `now` and takes so long for `each` begins what comes in these runs."""
    out: list[Run] = []
    for first, gap, count in runs:
        if first < now:  # it is behind, and catches up where they come at longer intervals
            behind = count if gap <= each else min(count, ceil((now - first) / (gap - each)))
            out.append((now, each, behind))
            now, first, count = now + behind * each, first + behind * gap, count - behind
        if count:
            first, gap = max(first, now), max(gap, each)
            out.append((first, gap, count))
            now = first + (count - 1) * gap + each
    return out


def _diagonal(
    schedule: str, p: int, m: int, v: int, costs: dict[str, Stages], hop: float, blocking: bool, notes: Notes
) -> float:
    """1F1B, interleaved and ZB1. At turn t rank r makes its forward t - r, then its backward t - turns[r]; then, in
    ZB1, the weight gradient of the backward r before."""
    size, total, splits = (m if v == 1 else round_size(p, m)), m * v, schedule == "zb1"
    turns = [rank + warm_up(schedule, p, m, v, rank) for rank in range(p)]
    changes = _changes(p, m, v, size, turns, splits)
    ranks = Ranks(p, v, hop, blocking, notes, splits)
    pattern = Pattern(ranks, max(turns) + p * splits, {1, p} if v == 1 else {v * size})
    wrapped, unwrapped = [0.0] * size, [0.0] * size  # what goes from the last rank to the first, and back
    late = schedule == "interleaved"  # a rank takes what the one behind it made a turn ago
    turn = 0
    while turn < total + max(turns):
        for kind, rank, stage in changes.get(turn, ()):
            ranks.take_up(kind, rank, stage, costs[kind][stage])
        backs = turn - turns[0]  # those that the first rank has made
        forwards = max(0, turn - total + 1), min(p - 1, turn)
        both = (max(0, -backs), min(p - 1, total - 1 - backs)) if late else (0, p - 1 if 0 <= backs < total else -1)
        if turn < total:
            ranks.ahead[0] = wrapped[turn]
        if both[0] <= p - 1 == both[1]:
            ranks.behind[p - 1] = unwrapped[turn - turns[-1]]
        ranks.turn(forwards, both, ranks.behind[:] if late else ranks.behind)
        if p - 1 <= turn < total + p - 1:
            wrapped.append(0.0 if (turn - p + 1) // size % v == v - 1 else ranks.ahead[p])
        if both[0] == 0 <= both[1]:
            unwrapped.append(0.0 if backs // size % v == v - 1 else ranks.behind[-1])
        turn += 1
        total -= pattern.skip(turn, total, wrapped[turn:] + unwrapped[turn - turns[-1] :] if v > 1 else [])
    if splits:
        for rank in range(p):
            for i in range(max(0, total - rank), total):
                ranks.note(rank, ranks.free[rank])
                ranks.free[rank] += costs["W"][(v - 1 - i // size % v) * p + rank]
    return max(ranks.free) + pattern.stretch()


class Ranks:
    """What is known of the ranks in a diagonal: when each is free, when the next input is there, and how long the
    actions of the chunks are that they have taken up."""

    def __init__(self, p: int, v: int, hop: float, blocking: bool, notes: Notes, splits: bool) -> None:
        self.notes, self.p, self.last_stage, self.hop, self.blocking = notes, p, p * v - 1, hop, blocking
        self.ways: tuple[tuple[int, int], ...] = ()
        self.plan: list[tuple[range, bool, bool]] = []
        self.noted = [rank for rank in range(p) if notes[rank] is not None]
        self.free = [0.0] * p
        self.ahead, self.behind = [0.0] * (p + 1), [0.0] * (p + 1)  # by the rank that takes it
        self.splits = splits
        # until the rank is free again, until the result is where it is needed, and when the last one began
        self.busy, self.sent, self.began = ({kind: [0.0] * p for kind in "FBW"} for _ in range(3))

    def take_up(self, kind: str, rank: int, stage: int, length: float) -> None:
        """A chunk is begun. What its stage makes goes on, but from the last stage and back to the first."""
        lag = 0.0 if kind == "W" or stage == (self.last_stage if kind == "F" else 0) else self.hop
        self.busy[kind][rank] = length + lag if self.blocking else length
        self.sent[kind][rank] = length + lag

    def note(self, rank: int, start: float) -> None:
        if self.notes[rank] is not None:
            self.notes[rank].append(start)

    def turn(self, forwards: tuple[int, int], backwards: tuple[int, int], behind: list[float]) -> None:
        """One forward of each rank from the first to the last of `forwards`, one backward of each of `backwards`."""
        if (forwards, backwards) != self.ways:
            self.ways, self.plan = (forwards, backwards), [*_plan(forwards, backwards)]
        for some, ahead, back in self.plan:
            if ahead and back:
                self._both(some, behind)
            elif ahead or back:
                self._one("F" if ahead else "B", some, self.ahead if ahead else behind)
        (f_low, f_high), (b_low, b_high) = forwards, backwards
        f_at, b_at, w_at = self.began.values()
        for rank in self.noted:
            if f_low <= rank <= f_high:
                self.notes[rank].append(f_at[rank])
            if b_low <= rank <= b_high:
                self.notes[rank].append(b_at[rank])
                if self.busy["W"][rank]:
                    self.notes[rank].append(w_at[rank])

    def _both(self, some: range, behind: list[float]) -> None:
        """A forward, then a backward."""
        free, ahead, sent, (f, b, w) = self.free, self.ahead, self.behind, self.busy.values()
        (f_sent, b_sent, _), (f_at, b_at, w_at), splits = self.sent.values(), self.began.values(), self.splits
        for rank in some:
            now, came = free[rank], ahead[rank]
            if came > now:
                now = came
            f_at[rank] = now
            ahead[rank + 1] = now + f_sent[rank]
            now += f[rank]
            came = behind[rank]
            if came > now:
                now = came
            b_at[rank] = now
            sent[rank - 1] = now + b_sent[rank]
            now += b[rank]
            if splits:
                w_at[rank] = now
                now += w[rank]
            free[rank] = now

    def _one(self, kind: str, some: range, given: list[float]) -> None:
        """A forward, or a backward."""
        free, busy, sent, began, w, w_at = (
            self.free, self.busy[kind], self.sent[kind], self.began[kind], self.busy["W"], self.began["W"]
        )
        onward, step, splits = (self.ahead, 1, False) if kind == "F" else (self.behind, -1, self.splits)
        for rank in some:
            now, came = free[rank], given[rank]
            if came > now:
                now = came
            began[rank] = now
            onward[rank + step] = now + sent[rank]
            now += busy[rank]
            if splits:
                w_at[rank] = now
                now += w[rank]
            free[rank] = now


def _plan(forwards: tuple[int, int], backwards: tuple[int, int]) -> Iterator[tuple[range, bool, bool]]:
    """Ranks that do the same, the last first: whether they make a forward, whether a backward."""
    (a, b), (c, d) = forwards, backwards
    ends = sorted({a, b + 1} if c > d else {c, d + 1} if a > b else {a, b + 1, c, d + 1}, reverse=True)
    for above, low in pairwise(ends):
        yield range(above - 1, low - 1, -1), a <= low <= b, c <= low <= d


class Pattern:
    """Turns that come again. Once all ranks stand as they did some turns before, only later by one and the same time,
    the turns since will come again until the forwards are at their end: those are left out, and put in at the end."""

    def __init__(self, ranks: Ranks, first: int, periods: set[int]) -> None:
        self.ranks, self.first, self.periods = ranks, first, periods
        self.before: dict[int, list[float]] = {}
        self.marks: dict[int, list[int]] = {}
        self.cut: tuple[int, float, list[int], list[int]] | None = None

    def skip(self, turn: int, total: int, waiting: list[float]) -> int:
        """How many turns need not be made. waiting: what else is on its way."""
        if self.cut or turn < self.first:
            return 0
        for period in self.periods:
            if (turn - self.first) % period or total - turn < period:
                continue
            ranks, before = self.ranks, self.before.get(period)
            now = [*ranks.free, *ranks.ahead[1:-1], *ranks.behind[:-2], *waiting]
            marks = [len(ranks.notes[rank]) for rank in ranks.noted]
            later = now[0] - before[0] if before else 0.0
            if before and len(now) == len(before) and _as_late(before, now, later):
                self.cut = (total - turn) // period, later, self.marks[period], marks
                return self.cut[0] * period
            self.before[period], self.marks[period] = now, marks
        return 0

    def stretch(self) -> float:
        """Put in the starts that were left out; the seconds of all that was."""
        if not self.cut:
            return 0.0
        times, later, since, until = self.cut
        for rank, low, high in zip(self.ranks.noted, since, until, strict=True):
            starts = self.ranks.notes[rank]
            starts[:] = stretched(starts, low, high, times, later)
        return times * later


def stretched(starts: list[float], low: int, high: int, times: int, later: float) -> list[float]:
    """The same with those from number `low` to before `high` once more so many times, each time so much later."""
    again = [start + k * later for k in range(1, times + 1) for start in starts[low:high]]
    return [*starts[:high], *again, *(start + times * later for start in starts[high:])]


def settled(
    schedule: str, p: int, few: int, v: int, starts: Sequence[list[float]], near: float
) -> tuple[list[int], int, float] | None:
    """Of a schedule that bends back, all starts of a step of few micro-batches. Once every rank repeats one pattern (in
    the third of its phases), what a turn of it does depends on this turn and the one before, of its own rank and of its
    neighbours. So if on all ranks a turn comes as much later than the one before as on any, so will all that follow:
    then this step tells of one with more. (by rank its actions up to the end of a turn, actions of a turn, its
    seconds), or None."""
    turn, periods, lasts = 4 if schedule == "dualpipev" else 6, set(), []
    for rank, began in enumerate(starts):
        before = phases(schedule, p, few, v, rank)[:3]
        last = sum(len(pattern) * times for pattern, times in before) + turn * (few - 2 * p)
        periods |= {b - a for a, b in zip(began[last - turn : last], began[last : last + turn], strict=True)}
        lasts.append(last)
    return (lasts, turn, max(periods)) if max(periods) - min(periods) <= near else None


def _as_late(before: list[float], now: list[float], later: float) -> bool:
    """Whether all is so much later; what is there from the beginning stays 0."""
    near = 1e-12 * now[0]
    return all(abs(b - a - later) <= near or a == b == 0.0 for a, b in zip(before, now, strict=True))


def _changes(p: int, m: int, v: int, size: int, turns: list[int], splits: bool) -> dict[int, list]:
    """When a rank takes up another chunk: (kind, rank, stage) by turn."""
    out: dict[int, list] = {}
    for rank, first in enumerate(turns):
        for i in range(m * v // size):
            ahead, back = i % v * p + rank, (v - 1 - i % v) * p + rank
            out.setdefault(rank + i * size, []).append(("F", rank, ahead))
            out.setdefault(first + i * size, []).append(("B", rank, back))
            if splits:
                out.setdefault(first + rank + i * size, []).append(("W", rank, back))
    return out
