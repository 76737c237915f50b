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
    whole = [a + b for a, b in zip(input, weight, strict=True)]
    if schedule in ("gpipe", "bfs"):
        return _breadth_first(p, m, forward, whole, hop, blocking)
    if schedule in ("zbv", "dualpipev") or (v > 1 and m < p):
        return None
    if schedule == "zb1":
        return _diagonal(schedule, p, m, v, forward, input, weight, hop, blocking)
    return _diagonal(schedule, p, m, v, forward, whole, [0.0] * (p * v), hop, blocking)


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


def _diagonal(schedule: str, p: int, m: int, v: int, forward: Stages, back: Stages, weight: Stages, hop: float,
              blocking: bool) -> float:  # fmt: skip
    """1F1B, interleaved and ZB1. At turn t rank r makes its forward t - r, then its backward t - turns[r]; then, in
    ZB1, the weight gradient of the backward r before."""
    size, total, splits = (m if v == 1 else round_size(p, m)), m * v, schedule == "zb1"
    turns = [rank + warm_up(schedule, p, m, v, rank) for rank in range(p)]
    changes = _changes(p, m, v, size, turns, splits)
    lengths = {"F": [0.0] * p, "B": [0.0] * p, "W": [0.0] * p}
    lags = {"F": [hop] * p, "B": [hop] * p}
    costs = {"F": forward, "B": back, "W": weight}
    f, b, w, f_lag, b_lag = lengths["F"], lengths["B"], lengths["W"], lags["F"], lags["B"]
    free, ahead, behind = [0.0] * p, [0.0] * (p + 1), [0.0] * (p + 1)
    wrapped, unwrapped = [0.0] * size, [0.0] * size  # from the last rank to the first, and back
    late = schedule == "interleaved"  # a rank takes what the one behind it made a turn ago
    for turn in range(total + max(turns)):
        for kind, rank, stage in changes.get(turn, ()):
            lengths[kind][rank] = costs[kind][stage]
            if kind in lags and rank == (p - 1 if kind == "F" else 0):
                lags[kind][rank] = 0.0 if stage == (p * v - 1 if kind == "F" else 0) else hop
        f_low, f_high = max(0, turn - total + 1), min(p - 1, turn)
        backs = turn - turns[0]
        if late:
            b_low, b_high = max(0, -backs), min(p - 1, total - 1 - backs)
        else:
            b_low, b_high = (0, p - 1) if 0 <= backs < total else (p, -1)
        if f_low == 0:
            ahead[0] = wrapped[turn]
        if b_low <= p - 1 == b_high:
            behind[p - 1] = unwrapped[turn - turns[-1]]
        came_back = behind[:] if late else behind
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
                came = came_back[rank]
                if came > now:
                    now = came
                now += b[rank]
                behind[rank - 1] = now + b_lag[rank]
                if blocking:
                    now += b_lag[rank]
                now += w[rank]
            free[rank] = now
        if p - 1 <= turn < total + p - 1:
            wrapped.append(0.0 if (turn - p + 1) // size % v == v - 1 else ahead[p])
        if b_low == 0 <= b_high:
            unwrapped.append(0.0 if backs // size % v == v - 1 else behind[-1])
    if splits:
        for rank in range(p):
            for i in range(max(0, total - rank), total):
                free[rank] += weight[(v - 1 - i // size % v) * p + rank]
    return max(free)


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
