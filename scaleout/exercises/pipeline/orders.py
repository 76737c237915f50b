"""Exercises of `pipeline` on what a rank holds: in 1F1B, and with a limit."""

from __future__ import annotations

from scaleout.exercises.engine import Function, Mistake, Number, Slip
from scaleout.exercises.pipeline.steps import step
from scaleout.spec.devices import GB
from scaleout.spec.pipeline import Action
from scaleout.timing import pipeline

_P, _RANK, _M, _MICRO_BYTES = 8, 2, 32, 2.5 * GB
_IN_FLIGHT = step("1f1b", _P, _M).in_flight[_RANK]

HELD_BY_RANK = Number(
    key="held-by-rank",
    level=1,
    title="Held by one rank",
    minutes=2,
    prompt=f"**{_P} ranks**, numbered from 0, **{_M} micro-batches**, 1F1B. Of each micro-batch a stage keeps "
    f"**{_MICRO_BYTES / GB:.1f} GB** for its backward. How much does **rank {_RANK}** hold at most?",
    hints=(
        "How many forwards does it do before its first backward?",
        "As many as there are ranks below it, and one more.",
    ),
    solution=f"{_P - 1 - _RANK} ranks are below it. It does a forward for each of them and one of its own, and then "
    f"waits for the first gradient: {_P} − {_RANK} = {_IN_FLIGHT} micro-batches, "
    f"**{_IN_FLIGHT * _MICRO_BYTES / GB:.1f} GB**. From then on it gives one back for each that it takes. It would be "
    f"the same with a thousand; under GPipe it is all {_M}, {_M * _MICRO_BYTES / GB:.0f} GB.",
    value=_IN_FLIGHT * _MICRO_BYTES,
    unit="GB",
    units=("MB", "GB", "GiB"),
    slips=(
        Slip(
            "gpipe",
            _M * _MICRO_BYTES,
            "That is all micro-batches, as under GPipe. In 1F1B a rank begins with backwards as soon as one is there.",
        ),
        Slip("first-rank", _P * _MICRO_BYTES, "That is what the first rank holds, the fullest."),
        Slip(
            "one-short",
            (_P - 1 - _RANK) * _MICRO_BYTES,
            "That is one for each rank below it. What does it do until its first gradient comes?",
        ),
        Slip("from-one", (_P - _RANK + 1) * _MICRO_BYTES, "That is rank 1, or rank 2 where they are counted from 1."),
        Slip(
            "ranks-above",
            (_RANK + 1) * _MICRO_BYTES,
            "That counts the ranks above. Those have their forwards behind them; it waits for the ones below.",
        ),
        Slip("one", _MICRO_BYTES, "That is one micro-batch, as on the last rank."),
        Slip(
            "shared",
            _M * _MICRO_BYTES / _P,
            "Either you divided the micro-batches among the ranks, and each goes through all of them; or that is "
            "another rank's.",
        ),
    ),
    right="p − r micro-batches, however many there are.",
)

_LIMIT_STUB = '''\
def order(rank, p, m, limit):
    """1F1B that never holds more than `limit`: a list of numbers.

    i: the forward of micro-batch i; -i: its backward
    Micro-batches are numbered from 1 to m, ranks from 0 to p - 1.
    """
    return ...
'''

_LIMIT_SOLUTION = """\
def order(rank, p, m, limit):
    ahead = min(p - rank, limit, m)
    actions = list(range(1, ahead + 1))
    for i in range(1, m + 1):
        actions.append(-i)
        if ahead + i <= m:
            actions.append(ahead + i)
    return actions
"""


def _windowed(window):
    """An order of `window(rank, p, m, limit)` forwards before the first backward, and by turns from then on."""

    def order(rank: int, p: int, m: int, limit: int) -> list[int]:
        warmup = max(0, min(window(rank, p, m, limit), m))
        remaining = [action for i in range(1, m + 1) for action in (-i, warmup + i) if action <= m]
        return [*range(1, warmup + 1), *remaining]

    return order


_limited = _windowed(lambda rank, p, m, limit: min(p - rank, limit))


def _unfinished(rank: int, p: int, m: int, limit: int) -> list[int]:
    """Turns while there are forwards, and the last backwards left out."""
    actions = _limited(rank, p, m, limit)
    return actions[: actions.index(m) + 1]


def _last_first(rank: int, p: int, m: int, limit: int) -> list[int]:
    """Each backward that of the newest micro-batch held."""
    in_flight, order = [], []
    for action in _limited(rank, p, m, limit):
        if action > 0:
            in_flight.append(action)
        order.append(action if action > 0 else -in_flight.pop())
    return order


def _past_the_end(rank: int, p: int, m: int, limit: int) -> list[int]:
    """The first forwards not ended at m."""
    warmup = min(p - rank, limit)
    return [*range(1, warmup + 1), *(action for i in range(1, m + 1) for action in (-i, warmup + i) if action <= m)]


def limited_seconds(p: int, m: int, limit: int) -> float:
    """Slots of a step in which every rank keeps to this order."""
    orders = [
        [Action("F" if number > 0 else "B", rank, abs(number) - 1) for number in _limited(rank, p, m, limit)]
        for rank in range(p)
    ]
    return pipeline.timeline(orders, pipeline.even(p)).seconds


ORDER_1F1B = Function(
    key="order-1f1b",
    level=2,
    title="A schedule with a limit",
    lists=True,
    index=True,
    minutes=10,
    prompt="Memory is short: a rank may hold at most `limit` micro-batches. Write `order(rank, p, m, limit)`, the list "
    "of what a rank does. The number i is the forward of micro-batch i, −i its backward; they are numbered **from 1** "
    "to m.\n\n"
    "- It opens with forwards, as many as 1F1B would hold on this rank, but never more than `limit`, nor than there "
    "are.\n"
    "- From then on it takes turns, **a backward, a forward**, until the forwards are done; then the backwards that "
    "are left.\n\n"
    "Backwards come in the order of the micro-batches. `order(1, 3, 4, 5)` is `[1, 2, -1, 3, -2, 4, -3, -4]`.",
    hints=(
        "How many does 1F1B hold on this rank? The least of that, `limit` and `m` is the number of forwards at the "
        "beginning.",
        "After backward i comes forward ahead + i, if there is one.",
    ),
    solution="```python\n"
    f"{_LIMIT_SOLUTION}```\n\n"
    "With `limit` at p or more this is 1F1B; with less the first ranks are held back, and the ranks below wait for "
    f"them. On 6 ranks, with 12 micro-batches, a limit of 6 takes {limited_seconds(6, 12, 6):.0f} slots, of 4 "
    f"{limited_seconds(6, 12, 4):.0f}, of 2 {limited_seconds(6, 12, 2):.0f}, and of 1 "
    f"{limited_seconds(6, 12, 1):.0f}: one batch at a time. **As long as hops are free, p − r is the least that costs "
    "no time.**",
    function="order",
    stub=_LIMIT_STUB,
    reference=_limited,
    cases=(
        (1, 3, 4, 5),
        (0, 4, 8, 9),
        (0, 4, 6, 2),
        (2, 7, 9, 3),
        (6, 7, 4, 5),
        (3, 7, 3, 9),
        (1, 6, 7, 1),
        (5, 8, 10, 6),
        (0, 1, 3, 2),
        (0, 5, 2, 3),
        (4, 8, 11, 4),
        (0, 9, 5, 7),
    ),
    mistakes=(
        Mistake(
            "no-limit",
            _windowed(lambda rank, p, m, limit: p - rank),
            "Your order is plain 1F1B: it holds more than the limit on the first ranks.",
        ),
        Mistake(
            "limit-for-all",
            _windowed(lambda rank, p, m, limit: limit),
            "Your rank fills its limit whatever rank it is. 1F1B holds fewer on ranks further down.",
        ),
        Mistake("all-forwards", _windowed(lambda rank, p, m, limit: m), "That is GPipe: all forwards come first."),
        Mistake(
            "one-short",
            _windowed(lambda rank, p, m, limit: min(p - rank, limit) - 1),
            "Your rank opens with one forward too few. The one that goes before the first backward counts too.",
        ),
        Mistake(
            "only-below",
            _windowed(lambda rank, p, m, limit: min(p - 1 - rank, limit)),
            "Your rank opens with as many forwards as there are ranks below it. It holds one more before its "
            "first backward.",
        ),
        Mistake(
            "past-the-limit",
            _windowed(lambda rank, p, m, limit: min(p - rank, limit + 1)),
            "Where the limit holds, your rank holds one more. The forward that goes before the first backward "
            "counts too.",
        ),
        Mistake(
            "one-too-many",
            _windowed(lambda rank, p, m, limit: min(p - rank, limit) + 1),
            "Your rank holds one micro-batch too many: after the opening the backward comes first.",
        ),
        Mistake(
            "ranks-above",
            _windowed(lambda rank, p, m, limit: min(rank + 1, limit)),
            "Your ranks are turned around: the first one holds most, the last one holds one.",
        ),
        Mistake(
            "first-rank",
            _windowed(lambda rank, p, m, limit: min(p, limit)),
            "Your rank holds what the first rank holds. It has fewer ranks below it.",
        ),
        Mistake(
            "last-first",
            _last_first,
            "Your backwards take the newest micro-batch. The gradient that comes first is the oldest one's.",
        ),
        Mistake("unfinished", _unfinished, "Your list ends with the forwards: the last backwards are missing."),
        Mistake(
            "past-the-end", _past_the_end, "Your opening has forwards of micro-batches that do not exist: there are m."
        ),
        Mistake(
            "from-zero",
            lambda *case: [action - 1 if action > 0 else action + 1 for action in _limited(*case)],
            "Your micro-batches are numbered from 0. They go from 1 to m: −0 would be 0.",
        ),
    ),
    right="This family has GPipe at one end and one batch at a time at the other.",
)

EXERCISES = (HELD_BY_RANK, ORDER_1F1B)
