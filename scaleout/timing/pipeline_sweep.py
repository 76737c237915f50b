"""The step time of a pipeline without its single actions: a diagonal sweep over the ranks, with a few numbers for each.

For schedules whose ranks all take up the same actions in the same order, shifted: the forward that rank r makes at
turn t is the one that rank r - 1 made at turn t - 1. So nothing is remembered but the last message; what goes from
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
    """The step time of a schedule that does not bend back."""
    hop, notes = hop if p > 1 else 0.0, {} if notes is None else notes
    if schedule == "zb1":
        return _diagonal(schedule, p, m, v, {"F": forward, "B": input, "W": weight}, hop, blocking, notes)
    backward = [a + b for a, b in zip(input, weight, strict=True)]
    if schedule == "gpipe" and not notes and not blocking:
        return _one_way(m, forward, hop) + _one_way(m, backward, hop)
    if schedule in ("gpipe", "bfs"):
        return _breadth_first(p, m, forward, backward, hop, blocking, notes)
    return _diagonal(schedule, p, m, v, {"F": forward, "B": backward}, hop, blocking, notes)


def _one_way(m: int, lengths: Stages, hop: float) -> float:
    """Equal pieces through all stages, one after another: the first through each, the others at the slowest's pace."""
    return fsum(lengths) + (m - 1) * max(lengths) + (len(lengths) - 1) * hop


def _breadth_first(
    p: int, m: int, forward: Stages, backward: Stages, hop: float, blocking: bool, notes: Notes
) -> float:
    """Each stage takes all micro-batches, one after another: in the order of the stages, then in the reverse."""
    free = [0.0] * p
    stages = len(forward)
    for in_backward, lengths in ((False, forward), (True, tuple(reversed(backward)))):
        runs: list[Run] = [(0.0, 0.0, m)]  # of the backward too: the last rank has all its forwards behind it
        for place, length in enumerate(lengths):
            rank = p - 1 - place % p if in_backward else place % p
            lag = hop if place < stages - 1 else 0.0
            runs = _queue(runs, free[rank], length + lag if blocking else length)
            first, gap, count = runs[-1]
            free[rank] = first + (count - 1) * gap + length + (lag if blocking else 0.0)
            if rank in notes:
                begun = notes[rank].setdefault("B" if in_backward else "F", [])
                begun.extend(first + k * gap for first, gap, count in runs for k in range(count))
            runs = [(first + length + lag, gap, count) for first, gap, count in runs]
    return max(free)


def _queue(runs: list[Run], time: float, length: float) -> list[Run]:
    """When a rank that is free at `time` and takes `length` for each action begins what arrives in these runs."""
    queued: list[Run] = []
    for first, gap, count in runs:
        if first < time:  # it is behind, and catches up where they come at longer intervals
            late_count = count if gap <= length else min(count, ceil((time - first) / (gap - length)))
            queued.append((time, length, late_count))
            time, first, count = time + late_count * length, first + late_count * gap, count - late_count
        if count:
            first, gap = max(first, time), max(gap, length)
            queued.append((first, gap, count))
            time = first + (count - 1) * gap + length
    return queued


def _diagonal(
    schedule: str, p: int, m: int, v: int, costs: dict[str, Stages], hop: float, blocking: bool, notes: Notes
) -> float:
    """1F1B, interleaved and ZB1. At turn t rank r makes its forward t - r, then its backward t - turns[r]; then, in
    ZB1, the weight gradient of the backward r before."""
    size, total, splits = (m if v == 1 else round_size(p, m)), m * v, schedule == "zb1"
    turns = [rank + warm_up(schedule, p, m, v, rank) for rank in range(p)]
    lagged = schedule == "interleaved"  # a rank takes what the one behind it made a turn ago
    ranks = Ranks(p, lagged, splits, 0.0 if blocking else hop, [*notes])
    changes = _changes(p, v, total // size, size, turns, costs, hop if blocking else 0.0)
    alike = sum(map(len, changes.values())) == p * len(costs)  # a rank's chunks take as long as each other
    pattern = Pattern(ranks, max(turns) + p * splits, {1, p} if v == 1 else {1, v * size}, alike)
    wrapped, unwrapped = [0.0] * size, [0.0] * size  # what goes from the last rank to the first, and back
    turn = 0
    while turn < total + max(turns):
        for kind, rank, busy in changes.get(turn, ()):
            ranks.busy[kind][rank] = busy
        backs = turn - turns[0]  # those that the first rank has made
        backwards = (
            (max(0, -backs), min(p - 1, total - 1 - backs)) if lagged else (0, p - 1 if 0 <= backs < total else -1)
        )
        if turn < total:
            ranks.forward_inputs[0] = wrapped[turn]
        if backwards[0] <= p - 1 == backwards[1]:
            ranks.backward_inputs[p] = unwrapped[turn - turns[-1]]
        ranks.turn((max(0, turn - total + 1), min(p - 1, turn)), backwards)
        if p - 1 <= turn < total + p - 1:
            wrapped.append(0.0 if (turn - p + 1) // size % v == v - 1 else ranks.forward_inputs[p])
        if backwards[0] == 0 <= backwards[1]:
            unwrapped.append(0.0 if backs // size % v == v - 1 else ranks.backward_inputs[0])
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
    for place, (rank, noted) in enumerate(notes.items()):
        for kind, first in (("F", rank), ("B", turns[rank]), *[("W", turns[rank])] * ranks.splits):
            starts = pattern.stretched([began[place] for began in ranks.began[kind][first : first + total]], first)
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

    def __init__(self, p: int, lagged: bool, splits: bool, lag: float, noted: Sequence[int]) -> None:
        self.p, self.lagged, self.splits = p, lagged, splits
        self.lag = lag  # from when a rank is free until its result is where it is needed
        self.pick = itemgetter(*noted, 0) if noted else None
        self.free = [0.0] * p
        # from rank r: forward_inputs[r + 1], backward_inputs[r]
        self.forward_inputs, self.backward_inputs = [0.0] * (p + 1), [0.0] * (p + 1)
        self.busy, self.starts = ({kind: [0.0] * p for kind in "FBW"} for _ in range(2))
        self.began: dict[str, list[tuple[float, ...]]] = {"F": [], "B": [], "W": []}

    def turn(self, forwards: tuple[int, int], backwards: tuple[int, int]) -> None:
        """One forward of each rank from the first to the last of `forwards`, one backward of each of `backwards`."""
        for make, (low, high) in ((self._forward, forwards), (self._backward, backwards)):
            if low <= high:
                make(slice(low, high + 1))
        if self.pick:
            for kind, began in self.began.items():
                began.append(self.pick(self.starts[kind]))

    def _forward(self, ranks: slice) -> None:
        began = [a if a > b else b for a, b in zip(self.free[ranks], self.forward_inputs[ranks], strict=True)]
        self.forward_inputs[ranks.start + 1 : ranks.stop + 1] = self._results("F", ranks, began)

    def _backward(self, ranks: slice) -> None:
        if self.lagged:
            arrivals = self.backward_inputs[ranks.start + 1 : ranks.stop + 1]
            began = [a if a > b else b for a, b in zip(self.free[ranks], arrivals, strict=True)]
            self.backward_inputs[ranks] = self._results("B", ranks, began)
            return
        # each takes what the one behind it makes in this turn
        free, starts, busy, weight, lag = self.free, self.starts["B"], self.busy["B"], self.busy["W"], self.lag
        ends, came = self.starts["W"], self.backward_inputs[ranks.stop]
        for rank in range(ranks.stop - 1, ranks.start - 1, -1):
            time = free[rank]
            if came > time:
                time = came
            starts[rank] = time
            time += busy[rank]
            came = time + lag
            ends[rank] = time
            free[rank] = time + weight[rank]
        self.backward_inputs[0] = came

    def _results(self, kind: str, ranks: slice, began: list[float]) -> list[float]:
        """When the results of what began are where they are needed."""
        ends = [*map(add, began, self.busy[kind][ranks])]
        self.starts[kind][ranks], self.free[ranks] = began, ends
        return [end + self.lag for end in ends] if self.lag else ends


class Pattern:
    """Turns that come again. Once all ranks stand as they did some turns before, only later by one and the same time,
    the turns since will come again until the forwards are at their end: those are left out, and put in at the end."""

    def __init__(self, ranks: Ranks, first: int, periods: set[int], alike: bool) -> None:
        self.ranks, self.first, self.periods = ranks, first, periods if alike else {max(periods)}
        self.states: dict[int, list[float]] = {}
        self.cut: tuple[int, float, int, int] | None = None

    def looks(self, turn: int) -> bool:
        """Whether `skip` is to be asked."""
        return turn >= self.first and not self.cut

    def skip(self, turn: int, total: int, waiting: Sequence[list[float]]) -> int:
        """How many turns need not be made. waiting: what is on its way from the last rank to the first, and back; what
        comes again after one turn may be left out in whole rounds, where nobody has to wait for that."""
        ranks, longest = self.ranks, max(self.periods)
        for period in self.periods:
            least = longest if waiting else period
            if (turn - self.first) % period or total - turn < least:
                continue
            earlier, in_transit = self.states.get(period), chain.from_iterable(waiting if period == longest else ())
            backwards = ranks.backward_inputs[1:-1] if ranks.lagged else ()
            state = [*ranks.free, *ranks.forward_inputs[1:-1], *backwards, *in_transit]
            later = state[0] - earlier[0] if earlier else 0.0
            in_time = (
                period == longest
                or not waiting
                or (
                    _in_time(ranks.free[0], waiting[0], ranks.forward_inputs[-1], later)
                    and _in_time(ranks.free[-1], waiting[1], ranks.backward_inputs[0], later)
                )
            )
            if earlier and in_time and len(state) == len(earlier) and _as_late(earlier, state, later):
                times = (total - turn) // least * least // period
                self.cut = times, later, turn - period, turn
                return times * period
            self.states[period] = state
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
    repeats = [start + k * later for k in range(1, times + 1) for start in starts[low:high]]
    return [*starts[:high], *repeats, *(start + times * later for start in starts[high:])]


def _as_late(earlier: list[float], state: list[float], later: float) -> bool:
    """Whether all is so much later; what is there from the beginning stays 0."""
    tolerance = 1e-12 * state[0]
    return all(abs(b - a - later) <= tolerance or a == b == 0.0 for a, b in zip(earlier, state, strict=True))


def _in_time(free: float, waiting: list[float], last: float, later: float) -> bool:
    """Whether what is on its way is there before its rank is free, and comes as evenly as the turns. last: what was
    made last, whether it is taken or not."""
    tolerance = 1e-12 * free
    return all(came <= free + n * later + tolerance for n, came in enumerate([*waiting[:-1], last])) and all(
        abs(b - a - later) <= tolerance for a, b in pairwise(waiting) if a and b
    )


def _changes(
    p: int, v: int, rounds: int, size: int, turns: list[int], costs: dict[str, Stages], blocks: float
) -> dict[int, list[tuple[str, int, float]]]:
    """When a rank takes up a chunk with another length: (kind, rank, busy) by turn. What its stage makes goes on, and
    blocks the rank for so long, but from the last stage and back to the first. rounds: chunks that a rank takes up."""
    changes: dict[int, list] = {}
    for kind, lengths in costs.items():
        busy = [*lengths]
        if blocks and kind != "W":
            busy = [length + blocks for length in lengths]
            last = -1 if kind == "F" else 0
            busy[last] = lengths[last]
        for rank, begins in enumerate(turns):
            first = {"F": rank, "B": begins, "W": begins + rank}[kind]
            lengths_of_rank, length = busy[rank::p][:: 1 if kind == "F" else -1], None
            for i in range(1 if len({*lengths_of_rank}) == 1 else rounds):
                if lengths_of_rank[i % v] != length:
                    length = lengths_of_rank[i % v]
                    changes.setdefault(first + i * size, []).append((kind, rank, length))
    return changes
