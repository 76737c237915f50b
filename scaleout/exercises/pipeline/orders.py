"""Exercises of `pipeline` on the micro-batches that a rank has in flight: with 1F1B, and with a limit."""

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
    title="Activations on one rank",
    minutes=2,
    short=True,
    prompt=f"**{_P} ranks**, numbered from 0, run **{_M} micro-batches** with 1F1B. A stage stores "
    f"**{_MICRO_BYTES / GB:.1f} GB** of activations per micro-batch for the backward. How much does **rank {_RANK}** "
    "store at most?",
    hints=(
        "How many forwards does it do before its first backward?",
        "One forward for each rank after it, and one more.",
    ),
    solution=f"{_P - 1 - _RANK} ranks come after it. It does one warm-up forward for each of them and one more before "
    f"its first backward: {_P} − {_RANK} = {_IN_FLIGHT} micro-batches in flight, "
    f"**{_IN_FLIGHT * _MICRO_BYTES / GB:.1f} GB**. From then on each backward frees one micro-batch before the next "
    f"forward stores one. A thousand micro-batches would need the same. With GPipe it is all {_M}, "
    f"{_M * _MICRO_BYTES / GB:.0f} GB.",
    value=_IN_FLIGHT * _MICRO_BYTES,
    unit="GB",
    units=("MB", "GB", "GiB"),
    slips=(
        Slip(
            "gpipe",
            _M * _MICRO_BYTES,
            "That is all micro-batches, as with GPipe. With 1F1B a rank does backwards before all forwards are done.",
        ),
        Slip("first-rank", _P * _MICRO_BYTES, "That is what the first rank stores, the most of all ranks."),
        Slip(
            "one-short",
            (_P - 1 - _RANK) * _MICRO_BYTES,
            "That is one micro-batch for each rank after it. Which forward comes right before its first backward?",
        ),
        Slip("from-one", (_P - _RANK + 1) * _MICRO_BYTES, "That is rank 1, or rank 2 if ranks are counted from 1."),
        Slip(
            "ranks-above",
            (_RANK + 1) * _MICRO_BYTES,
            "That counts the ranks before it. Its gradients come from the ranks after it.",
        ),
        Slip("one", _MICRO_BYTES, "That is one micro-batch, as on the last rank."),
        Slip(
            "shared",
            _M * _MICRO_BYTES / _P,
            "Either you divided the micro-batches among the ranks, but each micro-batch goes through all of them; or "
            "that is another rank's value.",
        ),
    ),
    right="It has p − r micro-batches in flight, whatever m is.",
)

_LIMIT_STUB = '''\
def order(rank, p, m, limit):
    """1F1B with at most `limit` in flight: a list of numbers.

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
    prompt="Memory is short: a rank may have at most `limit` micro-batches in flight. Write "
    "`order(rank, p, m, limit)`, the list of this rank's actions. The number i is the forward of micro-batch i, and −i "
    "its backward; micro-batches are numbered **from 1** to m.\n\n"
    "- The rank starts with as many forwards as 1F1B has in flight on it, but with at most `limit` and at most m.\n"
    "- Then it alternates, **one backward, one forward**, until all forwards are done; the remaining backwards "
    "follow.\n\n"
    "Backwards run in the order of the micro-batches. `order(1, 3, 4, 5)` is `[1, 2, -1, 3, -2, 4, -3, -4]`.",
    hints=(
        "How many micro-batches does 1F1B have in flight on this rank? The smallest of that, `limit` and `m` is the "
        "number of forwards at the start.",
        "With `ahead` forwards at the start, forward ahead + i follows backward i, if there is one.",
    ),
    solution="```python\n"
    f"{_LIMIT_SOLUTION}```\n\n"
    "With a `limit` of p or more this is 1F1B. With a smaller limit the first ranks start some forwards later, and the "
    "ranks after them wait. On 6 ranks with 12 micro-batches, a limit of 6 takes "
    f"{limited_seconds(6, 12, 6):.0f} slots, 4 takes {limited_seconds(6, 12, 4):.0f}, 2 takes "
    f"{limited_seconds(6, 12, 2):.0f}, and 1, one micro-batch at a time, takes {limited_seconds(6, 12, 1):.0f}. **As "
    "long as hops are free, p − r in flight is the smallest number that costs no time.**",
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
            "Your order is plain 1F1B: the first ranks have more in flight than the limit allows.",
        ),
        Mistake(
            "limit-for-all",
            _windowed(lambda rank, p, m, limit: limit),
            "Your rank always uses its whole limit. With 1F1B later ranks have fewer micro-batches in flight.",
        ),
        Mistake("all-forwards", _windowed(lambda rank, p, m, limit: m), "That is GPipe: all forwards come first."),
        Mistake(
            "one-short",
            _windowed(lambda rank, p, m, limit: min(p - rank, limit) - 1),
            "Your rank starts with one forward too few. The one right before the first backward counts too.",
        ),
        Mistake(
            "only-below",
            _windowed(lambda rank, p, m, limit: min(p - 1 - rank, limit)),
            "Your rank starts with as many forwards as there are ranks after it. It does one more before its first "
            "backward.",
        ),
        Mistake(
            "past-the-limit",
            _windowed(lambda rank, p, m, limit: min(p - rank, limit + 1)),
            "Where the limit applies, your rank has one more in flight. The forward right before the first backward "
            "counts too.",
        ),
        Mistake(
            "one-too-many",
            _windowed(lambda rank, p, m, limit: min(p - rank, limit) + 1),
            "Your rank has one micro-batch too many in flight: after the warm-up, a backward comes first.",
        ),
        Mistake(
            "ranks-above",
            _windowed(lambda rank, p, m, limit: min(rank + 1, limit)),
            "Your ranks are reversed: the first has most in flight, and the last has one.",
        ),
        Mistake(
            "first-rank",
            _windowed(lambda rank, p, m, limit: min(p, limit)),
            "Your rank has as many in flight as the first rank. It has fewer ranks after it.",
        ),
        Mistake(
            "last-first",
            _last_first,
            "Your backwards take the newest micro-batch first. The first gradient to arrive is that of the oldest.",
        ),
        Mistake("unfinished", _unfinished, "Your list ends with the last forward: the backwards after it are missing."),
        Mistake(
            "past-the-end",
            _past_the_end,
            "Your warm-up has forwards of micro-batches that do not exist: there are only m.",
        ),
        Mistake(
            "from-zero",
            lambda *case: [action - 1 if action > 0 else action + 1 for action in _limited(*case)],
            "Your micro-batches are numbered from 0. Number them from 1 to m: −0 would be 0.",
        ),
    ),
    right="With limit 1 this is one micro-batch at a time, and with limit p or more it is 1F1B.",
)

EXERCISES = (HELD_BY_RANK, ORDER_1F1B)
