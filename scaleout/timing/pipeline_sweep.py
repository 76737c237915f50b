"""Seconds of a pipelined step without its actions: the ranks are swept in a diagonal, with a few numbers for each.

For schedules whose ranks all take up the same actions in the same order, shifted: the forward that rank r makes at
turn t is the one that rank r - 1 made at turn t - 1. So nothing is remembered but what was sent last; what goes from
the last rank back to the first waits in a queue. The tests hold it against `pipeline_clock`, which knows any order.
Who wants to know when the actions of some ranks start gives `notes`: those ranks, each with a dict that takes the
starts of its forwards, backwards (input gradients in ZB1) and weight gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from math import ceil, fsum
from operator import add, itemgetter

from scaleout.spec.pipeline_weave import round_size, warm_up

Stages = Sequence[float]
Notes = dict[int, dict[str, list[float]]]  # by rank and kind: when each starts
Run = tuple[float, float, int]  # what comes one after another: when the first does, seconds to the next, how many


def seconds(
    schedule: str,
    p: int,
    m: int,
    v: int,
    forward: Stages,
    input: Stages,
    weight: Stages,
    hop: float,
    blocking: bool,
    notes: Notes | None = None,
) -> float:
    """Seconds of the step of a schedule that does not bend back."""
    hop, notes = hop if p > 1 else 0.0, {} if notes is None else notes
    if schedule == "zb1":
        return _diagonal(schedule, p, m, v, {"F": forward, "B": input, "W": weight}, hop, blocking, notes)
    whole = [a + b for a, b in zip(input, weight, strict=True)]
    if schedule == "gpipe" and not notes and not blocking:
        return _one_way(m, forward, hop) + _one_way(m, whole, hop)
    if schedule in ("gpipe", "bfs"):
        return _breadth_first(p, m, forward, whole, hop, blocking, notes)
    return _diagonal(schedule, p, m, v, {"F": forward, "B": whole}, hop, blocking, notes)


def _one_way(m: int, lengths: Stages, hop: float) -> float:
    """Equal pieces through all stages, one after another: the first through each, the others at the slowest's pace."""
    return fsum(lengths) + (m - 1) * max(lengths) + (len(lengths) - 1) * hop


def _breadth_first(p: int, m: int, forward: Stages, whole: Stages, hop: float, blocking: bool, notes: Notes) -> float:
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
            if rank in notes:
                begun = notes[rank].setdefault("B" if back else "F", [])
                begun.extend(first + k * gap for first, gap, count in runs for k in range(count))
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
    late = schedule == "interleaved"  # a rank takes what the one behind it made a turn ago
    ranks = Ranks(p, late, splits, 0.0 if blocking else hop, [*notes])
    changes = _changes(p, v, total // size, size, turns, costs, hop if blocking else 0.0)
    alike = sum(map(len, changes.values())) == p * len(costs)  # a rank's chunks take as long as each other
    pattern = Pattern(ranks, max(turns) + p * splits, {1, p} if v == 1 else {1, v * size}, alike)
    wrapped, unwrapped = [0.0] * size, [0.0] * size  # what goes from the last rank to the first, and back
    turn = 0
    while turn < total + max(turns):
        for kind, rank, busy in changes.get(turn, ()):
            ranks.busy[kind][rank] = busy
        backs = turn - turns[0]  # those that the first rank has made
        both = (max(0, -backs), min(p - 1, total - 1 - backs)) if late else (0, p - 1 if 0 <= backs < total else -1)
        if turn < total:
            ranks.ahead[0] = wrapped[turn]
        if both[0] <= p - 1 == both[1]:
            ranks.behind[p] = unwrapped[turn - turns[-1]]
        ranks.turn((max(0, turn - total + 1), min(p - 1, turn)), both)
        if p - 1 <= turn < total + p - 1:
            wrapped.append(0.0 if (turn - p + 1) // size % v == v - 1 else ranks.ahead[p])
        if both[0] == 0 <= both[1]:
            unwrapped.append(0.0 if backs // size % v == v - 1 else ranks.behind[0])
        turn += 1
        if pattern.looks(turn):
            total -= pattern.skip(turn, total, (wrapped[turn:], unwrapped[turn - turns[-1] :]) if v > 1 else ())
    _note(notes, ranks, pattern, turns, total)
    if splits:
        chunks = [(v - 1 - i // size % v) * p for i in range(max(0, total - p), total)]
        _weights_left(ranks.free, notes, costs["W"], chunks, pattern.left_out)
    return max(ranks.free) + pattern.left_out


def _note(notes: Notes, ranks: Ranks, pattern: Pattern, turns: list[int], total: int) -> None:
    """What was noted turn by turn, by rank and kind."""
    for at, (rank, noted) in enumerate(notes.items()):
        for kind, first in (("F", rank), ("B", turns[rank]), *[("W", turns[rank])] * ranks.splits):
            starts = pattern.stretched([began[at] for began in ranks.began[kind][first : first + total]], first)
            noted["I" if ranks.splits and kind == "B" else kind] = starts[rank:] if kind == "W" else starts


def _weights_left(free: list[float], notes: Notes, weight: Stages, chunks: list[int], later: float) -> None:
    """The weight gradients at the end. chunks: the stages of the last of them, on the first rank."""
    for rank in range(len(free)):
        for stage in chunks[len(chunks) - rank :] if rank < len(chunks) else chunks:
            if rank in notes:
                notes[rank]["W"].append(free[rank] + later)
            free[rank] += weight[stage + rank]


class Ranks:
    """What is known of the ranks in a diagonal, all of them at a time: when each is free, when the next input is there,
    how long the actions of the chunks are that they have taken up, and what began when on those that are noted, turn by
    turn."""

    def __init__(self, p: int, late: bool, splits: bool, lag: float, noted: Sequence[int]) -> None:
        self.p, self.late, self.splits, self.lag = p, late, splits, lag  # lag: from where a rank is free to where it is
        self.pick = itemgetter(*noted, 0) if noted else None
        self.free = [0.0] * p
        self.ahead, self.behind = [0.0] * (p + 1), [0.0] * (p + 1)  # from rank r: ahead[r + 1] and behind[r]
        self.busy, self.at = ({kind: [0.0] * p for kind in "FBW"} for _ in range(2))
        self.began: dict[str, list[tuple[float, ...]]] = {"F": [], "B": [], "W": []}

    def turn(self, forwards: tuple[int, int], backwards: tuple[int, int]) -> None:
        """One forward of each rank from the first to the last of `forwards`, one backward of each of `backwards`."""
        for make, (low, high) in ((self._forward, forwards), (self._backward, backwards)):
            if low <= high:
                make(slice(low, high + 1))
        if self.pick:
            for kind, began in self.began.items():
                began.append(self.pick(self.at[kind]))

    def _forward(self, some: slice) -> None:
        began = [a if a > b else b for a, b in zip(self.free[some], self.ahead[some], strict=True)]
        self.ahead[some.start + 1 : some.stop + 1] = self._made("F", some, began)

    def _backward(self, some: slice) -> None:
        if self.late:
            there = self.behind[some.start + 1 : some.stop + 1]
            began = [a if a > b else b for a, b in zip(self.free[some], there, strict=True)]
            self.behind[some] = self._made("B", some, began)
            return
        # each takes what the one behind it makes in this turn
        free, at, busy, weight, lag = self.free, self.at["B"], self.busy["B"], self.busy["W"], self.lag
        ends, came = self.at["W"], self.behind[some.stop]
        for rank in range(some.stop - 1, some.start - 1, -1):
            now = free[rank]
            if came > now:
                now = came
            at[rank] = now
            now += busy[rank]
            came = now + lag
            ends[rank] = now
            free[rank] = now + weight[rank]
        self.behind[0] = came

    def _made(self, kind: str, some: slice, began: list[float]) -> list[float]:
        """When the results of what began are where they are needed."""
        ends = [*map(add, began, self.busy[kind][some])]
        self.at[kind][some], self.free[some] = began, ends
        return [end + self.lag for end in ends] if self.lag else ends


class Pattern:
    """Turns that come again. Once all ranks stand as they did some turns before, only later by one and the same time,
    the turns since will come again until the forwards are at their end: those are left out, and put in at the end."""

    def __init__(self, ranks: Ranks, first: int, periods: set[int], alike: bool) -> None:
        self.ranks, self.first, self.periods = ranks, first, periods if alike else {max(periods)}
        self.before: dict[int, list[float]] = {}
        self.cut: tuple[int, float, int, int] | None = None

    def looks(self, turn: int) -> bool:
        """Whether `skip` is to be asked."""
        return turn >= self.first and not self.cut

    def skip(self, turn: int, total: int, waiting: Sequence[list[float]]) -> int:
        """How many turns need not be made. waiting: what is on its way from the last rank to the first, and back; what
        comes again after one turn may be left out in whole rounds, where nobody has to wait for that."""
        ranks, most = self.ranks, max(self.periods)
        for period in self.periods:
            least = most if waiting else period
            if (turn - self.first) % period or total - turn < least:
                continue
            before, also = self.before.get(period), chain.from_iterable(waiting if period == most else ())
            now = [*ranks.free, *ranks.ahead[1:-1], *(ranks.behind[1:-1] if ranks.late else ()), *also]
            later = now[0] - before[0] if before else 0.0
            there = (
                period == most
                or not waiting
                or (
                    _in_time(ranks.free[0], waiting[0], ranks.ahead[-1], later)
                    and _in_time(ranks.free[-1], waiting[1], ranks.behind[0], later)
                )
            )
            if before and there and len(now) == len(before) and _as_late(before, now, later):
                times = (total - turn) // least * least // period
                self.cut = times, later, turn - period, turn
                return times * period
            self.before[period] = now
        return 0

    @property
    def left_out(self) -> float:
        """The seconds of all that was left out."""
        return self.cut[0] * self.cut[1] if self.cut else 0.0

    def stretched(self, starts: list[float], first: int) -> list[float]:
        """What begins once a turn, from the turn `first` on, with the starts that were left out."""
        if not self.cut:
            return starts
        times, later, since, until = self.cut
        return stretched(starts, since - first, until - first, times, later)


def stretched(starts: list[float], low: int, high: int, times: int, later: float) -> list[float]:
    """The same with those from number `low` to before `high` once more so many times, each time so much later."""
    again = [start + k * later for k in range(1, times + 1) for start in starts[low:high]]
    return [*starts[:high], *again, *(start + times * later for start in starts[high:])]


def _as_late(before: list[float], now: list[float], later: float) -> bool:
    """Whether all is so much later; what is there from the beginning stays 0."""
    near = 1e-12 * now[0]
    return all(abs(b - a - later) <= near or a == b == 0.0 for a, b in zip(before, now, strict=True))


def _in_time(free: float, waiting: list[float], made: float, later: float) -> bool:
    """Whether what is on its way is there before its rank is free, and comes as evenly as the turns. made: what was
    made last, whether it is taken or not."""
    near = 1e-12 * free
    return all(came <= free + n * later + near for n, came in enumerate([*waiting[:-1], made])) and all(
        abs(b - a - later) <= near for a, b in pairwise(waiting) if a and b
    )


def _changes(
    p: int, v: int, rounds: int, size: int, turns: list[int], costs: dict[str, Stages], blocks: float
) -> dict[int, list[tuple[str, int, float]]]:
    """When a rank takes up a chunk with another length: (kind, rank, busy) by turn. What its stage makes goes on, and
    blocks the rank for so long, but from the last stage and back to the first. rounds: chunks that a rank takes up."""
    out: dict[int, list] = {}
    for kind, lengths in costs.items():
        busy = [*lengths]
        if blocks and kind != "W":
            busy = [length + blocks for length in lengths]
            last = -1 if kind == "F" else 0
            busy[last] = lengths[last]
        for rank, begins in enumerate(turns):
            first = {"F": rank, "B": begins, "W": begins + rank}[kind]
            mine, now = busy[rank::p][:: 1 if kind == "F" else -1], None
            for i in range(1 if len({*mine}) == 1 else rounds):
                if mine[i % v] != now:
                    now = mine[i % v]
                    out.setdefault(first + i * size, []).append((kind, rank, now))
    return out
