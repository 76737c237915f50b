"""Seconds of a pipelined step without its actions: the ranks are swept in a diagonal, with a few numbers for each.

For schedules whose ranks all take up the same actions in the same order, shifted: the forward that rank r makes at
turn t is the one that rank r - 1 made at turn t - 1. So nothing is remembered but what was sent last; what goes from
the last rank back to the first waits in a queue. The tests hold it against `pipeline_clock`, which knows any order.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaleout.spec.pipeline_weave import round_size, warm_up

Stages = Sequence[float]


def seconds(
    schedule: str, p: int, m: int, v: int, forward: Stages, input: Stages, weight: Stages, hop: float, blocking: bool
) -> float | None:  # fmt: skip
    """Seconds of the step, or None where there is no such diagonal: of schedules that bend back, and of a round that is
    over before the last rank has begun."""
    hop = hop if p > 1 else 0.0
    if schedule in ("zbv", "dualpipev") or (v > 1 and m < p):
        return None
    if schedule == "zb1":
        return _diagonal(schedule, p, m, v, {"F": forward, "B": input, "W": weight}, hop, blocking)
    whole = [a + b for a, b in zip(input, weight, strict=True)]
    if schedule in ("gpipe", "bfs"):
        return _breadth_first(p, m, forward, whole, hop, blocking)
    return _diagonal(schedule, p, m, v, {"F": forward, "B": whole}, hop, blocking)


def _breadth_first(p: int, m: int, forward: Stages, whole: Stages, hop: float, blocking: bool) -> float:
    """Each stage takes all micro-batches, one after another: in the order of the stages, then in the reverse."""
    free = [0.0] * p
    arrivals: Sequence[float] = [0.0] * m
    stages = len(forward)
    for back, lengths in ((False, forward), (True, tuple(reversed(whole)))):
        for place, length in enumerate(lengths):
            rank = p - 1 - place % p if back else place % p
            lag = hop if place < stages - 1 else 0.0
            now, sent = free[rank], []
            for came in arrivals:
                if came > now:
                    now = came
                now += length
                sent.append(now + lag)
                if blocking:
                    now += lag
            free[rank], arrivals = now, sent
        arrivals = [0.0] * m  # the last rank has all its forwards behind it
    return max(free)


def _diagonal(schedule: str, p: int, m: int, v: int, costs: dict[str, Stages], hop: float, blocking: bool) -> float:
    """1F1B, interleaved and ZB1. At turn t rank r makes its forward t - r, then its backward t - turns[r]; then, in
    ZB1, the weight gradient of the backward r before."""
    size, total, splits = (m if v == 1 else round_size(p, m)), m * v, schedule == "zb1"
    turns = [rank + warm_up(schedule, p, m, v, rank) for rank in range(p)]
    changes = _changes(p, m, v, size, turns, splits)
    ranks = Ranks(p, v, hop, blocking)
    wrapped, unwrapped = [0.0] * size, [0.0] * size  # what goes from the last rank to the first, and back
    late = schedule == "interleaved"  # a rank takes what the one behind it made a turn ago
    for turn in range(total + max(turns)):
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
    if splits:
        for rank in range(p):
            for i in range(max(0, total - rank), total):
                ranks.free[rank] += costs["W"][(v - 1 - i // size % v) * p + rank]
    return max(ranks.free)


class Ranks:
    """What is known of the ranks in a diagonal: when each is free, when the next input is there, and how long the
    actions of the chunks are that they have taken up."""

    def __init__(self, p: int, v: int, hop: float, blocking: bool) -> None:
        self.p, self.last_stage, self.hop, self.blocking = p, p * v - 1, hop, blocking
        self.free = [0.0] * p
        self.ahead, self.behind = [0.0] * (p + 1), [0.0] * (p + 1)  # by the rank that takes it
        self.lengths = {kind: [0.0] * p for kind in "FBW"}
        self.lags = {kind: [hop] * p for kind in "FBW"}

    def take_up(self, kind: str, rank: int, stage: int, length: float) -> None:
        """A chunk is begun. What its stage makes goes on, but from the last stage and back to the first."""
        self.lengths[kind][rank] = length
        self.lags[kind][rank] = 0.0 if stage == (self.last_stage if kind == "F" else 0) else self.hop

    def turn(self, forwards: tuple[int, int], backwards: tuple[int, int], behind: list[float]) -> None:
        """One forward of each rank from the first to the last of `forwards`, one backward of each of `backwards`."""
        f, b, w, f_lag, b_lag = *self.lengths.values(), self.lags["F"], self.lags["B"]
        free, ahead, sent, blocking = self.free, self.ahead, self.behind, self.blocking
        (f_low, f_high), (b_low, b_high) = forwards, backwards
        for rank in range(max(f_high, b_high), min(f_low, b_low) - 1, -1):
            now = free[rank]
            if f_low <= rank <= f_high:
                came = ahead[rank]
                if came > now:
                    now = came
                now += f[rank]
                ahead[rank + 1] = now + f_lag[rank]
                if blocking:
                    now += f_lag[rank]
            if b_low <= rank <= b_high:
                came = behind[rank]
                if came > now:
                    now = came
                now += b[rank]
                sent[rank - 1] = now + b_lag[rank]
                if blocking:
                    now += b_lag[rank]
                now += w[rank]
            free[rank] = now


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
