"""Exercises of `bottlenecks` on levers: the tallest bar after one, which one to try first, the cheapest set."""

from __future__ import annotations

from functools import partial
from itertools import combinations

from scaleout.exercises.engine import Choice, Function, Mistake, Option

BARS = {"arithmetic": 480, "network": 260, "memory bandwidth": 150, "fixed overhead": 110}  # ms
_BARS = "\n".join(f"{name:18}{ms:4} ms" for name, ms in BARS.items())
TALLEST_NEXT = Choice(
    key="tallest-next",
    level=1,
    minutes=2,
    short=True,
    title="After the lever",
    prompt=f"The time of a training step on each GPU, part by part. The bar of the network is the exposed "
    f"communication, which does not overlap with computation:\n\n```\n{_BARS}\n```\n\n"
    "The job changes to a lower precision for its matmuls, which then run twice as fast. The bytes that are "
    "communicated stay the same. Which bar is the tallest afterwards?",
    hints=(
        "Which bar does the lever shorten, and to how many ms?",
        "Some communication overlaps with the matmuls. What happens to it when they become shorter?",
    ),
    solution="**The network.** Arithmetic falls to 240 ms, which is below the network's 260. The network's bar may "
    "even grow: communication that was hidden behind 480 ms of matmuls may not fit behind 240. So the step does not "
    "become 240 ms shorter; that is the most it can gain. The next lever should relieve the network: a larger batch, "
    "more overlap, or a faster link.",
    options=(
        Option(
            "network",
            "The network: at least 260 ms, perhaps more",
            "Right. Shorter matmuls also hide less communication, so this bar can grow.",
            True,
        ),
        Option(
            "arithmetic",
            "Arithmetic: it started much taller than all",
            "Twice as fast makes it 240 ms. Compare that with the other bars.",
        ),
        Option(
            "memory",
            "Memory bandwidth: faster matmuls need data",
            "This bar is the time of kernels that are bound by memory. A faster matmul does not lengthen it.",
        ),
        Option(
            "same",
            "None: all bars become half as tall as before",
            "The lever makes matmuls faster, and nothing else. Each of the other bars has a lever of its own.",
        ),
    ),
)

WHICH_FIRST = Choice(
    key="which-first",
    level=2,
    minutes=3,
    title="What to try on Monday",
    prompt="A model of 1.3 billion parameters trains on eight A100s in one node, with DDP. What is known:\n\n"
    "- A step takes 900 ms, and with half the sequences per GPU 470 ms.\n"
    "- Memory is 94% full. Nothing is recomputed.\n"
    "- NCCL's kernels run for 350 ms of a step, 320 of them while the backward runs.\n"
    "- `nvidia-smi` shows 60% on all GPUs. In the profile no kernel runs for the first 350 ms of a step.\n"
    "- Model FLOPs utilization is 27%.\n\nWhich lever do you try first?",
    hints=(
        "For each fact: how many ms of the step does it explain?",
        "Which parts of a step happen before its first kernel?",
    ),
    solution="**The data loader.** No kernel runs for 350 of 900 ms, at the beginning of the step, which is where the "
    "batch is fetched. It scales with the sequences, as half the batch shows (470 ms), so it is not a fixed cost. Of "
    "the communication 30 ms are exposed: a network without any delay would save these 30 ms. Memory that is 94% full "
    "costs no time as long as nothing is recomputed for it. Faster matmuls would shorten a part of the other 520 ms. "
    "More workers, or text that was tokenized before, can win up to 350 ms for almost no money. Confirm it first: let "
    "the loader run alone, without training, and count its sequences per second.",
    options=(
        Option(
            "workers",
            "More workers for the data loader, and look again",
            "Right. 350 ms without any kernel at the beginning of a step, which grow with the batch: the input.",
            True,
        ),
        Option(
            "network",
            "A faster network: NCCL runs for 350 of 900 ms",
            "320 of these 350 ms overlap with the backward. What would the step gain?",
        ),
        Option(
            "split",
            "Split the states (ZeRO): memory is nearly full",
            "Full memory costs no time by itself, and nothing is recomputed for want of it.",
        ),
        Option(
            "fp8",
            "A lower precision: utilization is 27% of peak",
            "Faster matmuls shorten the time in which kernels run. What happens in the first 350 ms?",
        ),
        Option(
            "batch",
            "A larger batch, to spread out a fixed overhead",
            "With half the batch the step takes about half the time. How much of it is fixed, then?",
        ),
    ),
)

_STUB = '''\
def cheapest(levers, gb, ms, usable_gb, target_ms):
    """Numbers of the levers to press, in ascending order.

    levers: [GB, ms, cost] of each: what it adds to memory and to
            the step time (negative: frees, saves), and its price
    gb, ms: of the run without any lever
    """
    return ...
'''
_SOLUTION = """\
from itertools import combinations

def cheapest(levers, gb, ms, usable_gb, target_ms):
    best, price = [-1], float("inf")
    for count in range(len(levers) + 1):
        for chosen in combinations(range(len(levers)), count):
            memory = gb + sum(levers[i][0] for i in chosen)
            step = ms + sum(levers[i][1] for i in chosen)
            cost = sum(levers[i][2] for i in chosen)
            if memory <= usable_gb and step <= target_ms and cost < price:
                best, price = list(chosen), cost
    return best
"""


def _sets(levers):
    for count in range(len(levers) + 1):
        yield from combinations(range(len(levers)), count)


def _total(levers, chosen, column) -> float:
    return sum(levers[i][column] for i in chosen)


def search(
    levers, gb, ms, usable_gb, target_ms, fits=True, fast=True, price=None, most_levers=None, strict=False
) -> list:
    """The cheapest set of levers after which the run fits and is fast enough, [-1] where there is none. The other
    arguments leave out a condition, or measure the price in another way."""
    best, lowest = [-1], float("inf")
    for chosen in _sets(levers):
        memory, step = gb + _total(levers, chosen, 0), ms + _total(levers, chosen, 1)
        cost = price(levers, chosen) if price else _total(levers, chosen, 2)
        allowed = (memory < usable_gb or not fits) and (step < target_ms or not fast)
        if not strict:
            allowed = (memory <= usable_gb or not fits) and (step <= target_ms or not fast)
        if allowed and cost < lowest and (most_levers is None or len(chosen) <= most_levers):
            best, lowest = list(chosen), cost
    return best


def _greedy(levers, gb, ms, usable_gb, target_ms) -> list:
    """Levers by price, one after the other, until the run fits and is fast enough."""
    chosen: list[int] = []
    for i in sorted(range(len(levers)), key=lambda i: levers[i][2]):
        if gb + _total(levers, chosen, 0) <= usable_gb and ms + _total(levers, chosen, 1) <= target_ms:
            break
        chosen.append(i)
    done = gb + _total(levers, chosen, 0) <= usable_gb and ms + _total(levers, chosen, 1) <= target_ms
    return sorted(chosen) if done else [-1]


def _nothing_found(*case) -> list:
    chosen = search(*case)
    return [] if chosen == [-1] else chosen


# split the states, recompute, half of the batch twice, a faster network, more loader workers, FP8
_REAL = [[-34, 90, 2], [-41, 160, 1], [-22, 60, 3], [0, -180, 9], [0, -120, 4], [-3, -210, 6]]
ORDER = Function(
    key="order-of-levers",
    level=3,
    minutes=12,
    title="Fit first, and then fast enough",
    prompt="A run needs `gb` GB per GPU and `ms` milliseconds per step. There are up to eight levers, and lever i is "
    "`levers[i] = [GB, ms, cost]`: what it adds to the memory, what it adds to the step time (a negative number frees "
    "or saves), and its price in days of work. Assume that effects simply add. Write `cheapest(levers, gb, ms, "
    "usable_gb, target_ms)`: the set of levers with the lowest total price after which the run needs at most "
    "`usable_gb` and takes at most `target_ms`.\n\n"
    "- Return the numbers of the levers as a list in ascending order, counted from 0.\n"
    "- Where the run is good as it is, return `[]`. Where no set of levers is enough, return `[-1]`.\n"
    "- No two sets that are good enough have the same lowest price.",
    hints=(
        "With eight levers there are 256 sets. Try all of them.",
        "`itertools.combinations(range(n), count)` gives all sets of `count` levers.",
        "A lever that frees memory may cost time, which another lever has to save again: look at whole sets.",
    ),
    solution=f"```python\n{_SOLUTION}```\n\nTaking the cheapest lever first is not the same: it may relieve a resource "
    "that is not scarce, or it frees memory for more time than the next lever can save. Real effects do not add, "
    "either. A faster network saves nothing once the communication is hidden, and splitting the states costs less time "
    "on a faster network. The planner of this book therefore computes the whole step for each "
    "combination, and so should you where a formula is at hand.",
    function="cheapest",
    stub=_STUB,
    reference=search,
    lists=True,
    cases=(
        (_REAL, 110, 900, 73, 1000),
        (_REAL, 110, 900, 73, 900),
        (_REAL, 110, 900, 73, 780),
        (_REAL, 60, 900, 73, 800),
        (_REAL, 60, 900, 73, 900),
        (_REAL, 140, 900, 73, 2000),
        (_REAL, 170, 900, 73, 700),
        (_REAL, 74, 900, 73, 690),
        (_REAL, 240, 900, 73, 700),
        ([[-25, 0, 8], [-15, 0, 2], [-12, 0, 3]], 95, 400, 70, 450),
        (_REAL, 107, 900, 73, 990),
        ([[-10, 50, 1], [-10, 0, 5]], 80, 500, 70, 500),
        ([[-10, 50, 1], [-10, 0, 5], [0, -60, 2]], 80, 500, 70, 500),
        ([[-30, 0, 9], [-10, 0, 2], [-10, 0, 3], [-10, 0, 1]], 100, 500, 70, 500),
        ([[-30, 0, 7], [-10, 0, 3], [-10, 0, 4], [-10, 0, 5]], 100, 500, 70, 500),
        ([[-5, -5, 1], [-20, 10, 4]], 100, 300, 90, 320),
        ([], 50, 100, 60, 120),
        ([], 50, 100, 40, 120),
        ([[0, -100, 3], [-20, 30, 2]], 90, 400, 60, 600),
        ([[0, -50, 1], [0, -50, 2], [0, -50, 4], [0, -100, 5]], 10, 400, 20, 250),
    ),
    mistakes=(
        Mistake(
            "memory-alone",
            partial(search, fast=False),
            "Your levers make the run fit. It also has to be fast enough.",
        ),
        Mistake(
            "seconds-alone",
            partial(search, fits=False),
            "Your levers make the run fast enough. It also has to fit.",
        ),
        Mistake(
            "cheapest-first",
            _greedy,
            "You take levers by price until it is enough. A cheap lever may relieve what is not scarce.",
        ),
        Mistake(
            "fewest",
            partial(search, price=lambda levers, chosen: len(chosen) + _total(levers, chosen, 2) / 1000),
            "You look for the fewest levers. Several cheap ones may cost less than one that is expensive.",
        ),
        Mistake(
            "one-lever",
            partial(search, most_levers=1),
            "You try each lever alone. Several may be needed together.",
        ),
        Mistake(
            "below-the-line",
            partial(search, strict=True),
            "Exactly the usable memory, and exactly the target, are good enough.",
        ),
        Mistake(
            "fastest",
            partial(search, price=lambda levers, chosen: _total(levers, chosen, 1)),
            "You look for the fastest set that fits. The cheapest one that is fast enough is asked for.",
        ),
        Mistake(
            "nothing-found",
            _nothing_found,
            "Where no set is enough you return an empty list, which says that the run is good as it is.",
        ),
    ),
    right="Capacity is a condition, time is a target, and the price decides among what satisfies both.",
)

EXERCISES = (TALLEST_NEXT, WHICH_FIRST, ORDER)
