"""The clock of a pipeline: when each action of any order starts.

Actions are numbers here, as in `spec.pipeline_weave`: what a forward or an input gradient makes is needed m further on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf


def starts(
    rows: Sequence[Sequence[int]],
    homes: Sequence[int],
    m: int,
    durations: Sequence[Sequence[float]],
    hop: float,
    blocking: bool,
) -> tuple[list[list[float]], list[float]]:
    """(when each action of each rank starts, when each rank is done), of an order that can end.

    homes: the rank of each stage. durations: seconds by stage of F, I, B and W. Each rank runs until something is not
    there yet, and then the next rank does: whose turn it is does not change what comes out.
    """
    size = len(homes) * m
    last_input, last_result = 2 * size, 3 * size
    ready = [0.0] * m + [inf] * last_input  # when what an action needs is on its rank
    lengths = [
        seconds
        for kind, by_stage in zip("FIBW", durations, strict=True)
        for duration in (by_stage if kind == "F" else reversed(by_stage))
        for seconds in [duration] * m
    ]
    lag = [seconds for seconds in _lags(homes, hop) for _ in range(m)]
    began: list[list[float]] = [[] for _ in rows]
    ends = [0.0] * len(rows)

    def run(rank: int) -> Iterator[int]:
        time, note = 0.0, began[rank].append
        for number in rows[rank]:
            if number < last_result:
                place = number if number < last_input else number - size
                came = ready[place]
                if came > time:
                    while came == inf:
                        yield number
                        came = ready[place]
                    if came > time:
                        time = came
                note(time)
                time += lengths[number]
                ready[place + m] = time + lag[place]
                time += lag[place] if blocking else 0.0
            else:
                note(time)
                time += lengths[number]
        ends[rank] = time

    _take_turns([run(rank) for rank in reversed(range(len(rows)))])
    return began, ends


def _lags(homes: Sequence[int], hop: float) -> list[float]:
    """Seconds from each action's end until its result is where it is needed: there, and back in the reverse."""
    hops = [hop if a != b else 0.0 for a, b in pairwise(homes)]
    return [*hops, 0.0, *reversed(hops), 0.0]


def _take_turns(ranks: list[Iterator[int]]) -> None:
    """Until all are done."""
    while ranks:
        ranks = [rank for rank in ranks if next(rank, None) is not None]
