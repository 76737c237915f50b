"""Exercises of `bottlenecks` on ranks that wait: in real runs of the lab, and as a rule that abstains."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, median

from scaleout.exercises.engine import Choice, Function, Mistake, Option


@dataclass(frozen=True)
class Waits:
    """A run of two ranks, in ms: its step, what each rank waits in the all-reduce until the other one arrives, and how
    long the all-reduce takes after that. compute: of each rank."""

    step: int
    waits: tuple[float, float]
    transfer: float
    compute: tuple[float, float]


# Letter -> (number of the run in labs/results/bottlenecks/smoke-cpu-2.json, its counters): a test reads them again.
RUNS = {
    "A": (3, Waits(218, (0.9, 0.4), 203.2, (5.4, 6.5))),
    "B": (2, Waits(221, (201.1, 0.5), 2.4, (7.3, 203.5))),
    "C": (1, Waits(256, (39.8, 1.0), 3.6, (184.0, 239.9))),
}
_TABLE = "\n".join(
    [
        f"{'ms':30}" + "".join(f"{letter:>8}" for letter in RUNS),
        *(
            f"{words:30}" + "".join(f"{value(run):8.{digits}f}" for _, run in RUNS.values())
            for words, value, digits in (
                ("step", lambda run: run.step, 0),
                ("all-reduce: rank 0 waits", lambda run: run.waits[0], 1),
                ("all-reduce: rank 1 waits", lambda run: run.waits[1], 1),
                ("all-reduce, when both are there", lambda run: run.transfer, 1),
            )
        ),
    ]
)
WHICH_RANK = Choice(
    key="which-rank",
    level=2,
    minutes=3,
    title="A partner to be replaced",
    prompt="Three measured runs of the lab on two ranks. Each rank enters the all-reduce when its backward is done. "
    f"It first waits until the other one arrives, and then the gradients are communicated:\n\n```\n{_TABLE}\n```\n\n"
    "In one of the runs, a healthy GPU in place of another one would make the step less than half as long. Which run, "
    "and which rank is to be replaced?",
    hints=(
        "Which rank arrives first: the one that waits, or the other one?",
        "How much of each step would be saved if nobody had to wait?",
    ),
    solution=f"**Rank 1 of run B.** Rank 0 waits {RUNS['B'][1].waits[0]:.0f} of {RUNS['B'][1].step} ms, and rank 1 "
    "half a millisecond, because everybody else is there when it arrives. Its compute time confirms it: "
    f"{RUNS['B'][1].compute[1]:.0f} ms, and rank 0 has {RUNS['B'][1].compute[0]:.0f}. In A nobody waits for a rank: "
    "both are there, and the communication itself takes 203 ms, so a faster network helps. In C rank 1 is slower too, "
    f"by {RUNS['C'][1].waits[0]:.0f} ms, but both ranks compute for most of the step "
    f"({RUNS['C'][1].compute[0]:.0f} and {RUNS['C'][1].compute[1]:.0f} ms), which no replacement changes.",
    options=(
        Option(
            "b-1",
            "B, rank 1: the other is there long before it",
            "Right. The slow rank waits least, because it arrives last.",
            True,
        ),
        Option(
            "b-0",
            "B, rank 0: it spends 201 ms in the all-reduce",
            "The run is right. Rank 0 spends this time waiting for the other rank: it has arrived first.",
        ),
        Option(
            "a-0",
            "A, rank 0: the all-reduce takes 203 ms on it",
            "It takes as long on both ranks, after both have arrived. No rank is to blame for that.",
        ),
        Option(
            "c-1",
            "C, rank 1: the other one waits 40 ms for it",
            "Rank 1 is the slower one of C. But 40 of 256 ms are not half of the step.",
        ),
    ),
)

SHARE = 0.1
_STUB = '''\
def slow_rank(waits, step):
    """The number of the slow rank, or -1 where none stands out.

    waits: seconds that each rank waits in the all-reduce until
           the last one arrives
    step: the step time in seconds
    """
    return ...
'''
_SOLUTION = """\
from statistics import median

def slow_rank(waits, step):
    if len(waits) < 2:
        return -1
    rank = min(range(len(waits)), key=lambda rank: waits[rank])
    others = waits[:rank] + waits[rank + 1:]
    if median(others) - waits[rank] > 0.1 * step:
        return rank
    return -1
"""


def slow_rank(waits, step, pick=min, middle=median, threshold=lambda least, step: SHARE * step, others_only=True):
    """The rank that waits least, where the others wait longer by enough. The other arguments each make one mistake."""
    if len(waits) < 2:
        return -1
    rank = pick(range(len(waits)), key=lambda i: waits[i])
    other_waits = waits[:rank] + waits[rank + 1 :] if others_only else waits
    return rank if abs(middle(other_waits) - waits[rank]) > threshold(waits[rank], step) else -1


WAITS_LEAST = Function(
    key="waits-least",
    level=2,
    minutes=8,
    title="Name the rank, or nobody",
    prompt="Write `slow_rank(waits, step)`. `waits` has for each rank the seconds that it waits in the all-reduce "
    "until the last rank arrives, and `step` is the step time in seconds.\n\n"
    "- The suspect is the rank with the shortest wait.\n"
    "- Name it only where the **median** wait of the **other** ranks is longer than its own by more than 10% of the "
    "step. Return its number, counted from 0.\n"
    "- Otherwise return -1: nobody stands out. A single rank cannot stand out.\n\n"
    "The median of an even number of values is the mean of the two in the middle, as `statistics.median` has it.",
    hints=(
        "`min(range(len(waits)), key=lambda i: waits[i])` is the number of the rank with the shortest wait.",
        "Why the median? Think of one rank that waits long because of something else, such as a checkpoint.",
    ),
    solution=f"```python\n{_SOLUTION}```\n\nThe rule abstains on purpose. A rank is replaced, or a node is taken out "
    "of a cluster, because of such a verdict, so it should not be given for a few milliseconds of noise. It misses two "
    "cases that matter: half of the ranks are slow (the median of the others is then short), and the slow rank changes "
    "from step to step, as with sequences of different lengths. Look at several steps before you name a GPU.",
    function="slow_rank",
    stub=_STUB,
    reference=slow_rank,
    index=True,
    cases=(
        ([0.2011, 0.0005], 0.221),
        ([0.0009, 0.0004], 0.218),
        ([0.31, 0.30, 0.01, 0.29], 0.9),
        ([0.31, 0.30, 0.29, 0.32], 0.9),
        ([0.01, 0.012, 0.009, 0.8], 1.0),
        ([0.02, 0.03, 0.025, 0.9, 0.021], 1.2),
        ([0.004, 0.7, 0.003, 0.005, 0.006], 0.8),
        ([0.05, 0.0], 1.0),
        ([0.15, 0.0], 1.0),
        ([0.0, 0.13], 0.9),
        ([0.0, 0.18], 1.0),
        ([0.04, 0.05, 0.001, 0.045], 0.2),
        ([0.04, 0.05, 0.001, 0.045], 2.0),
        ([0.03, 0.004, 0.028], 0.1),
        ([5.0, 5.2, 4.1, 5.1], 30.0),
        ([5.0, 5.2, 4.7, 5.1], 30.0),
        ([0.4], 1.0),
        ([0.2, 0.0, 0.21, 0.19, 0.2, 0.0001, 0.22, 0.2], 1.0),
        ([0.0, 0.001, 0.0, 0.3], 1.0),
        ([0.12, 0.25, 0.13], 1.0),
        ([9.0, 9.6, 8.6, 9.3], 8.0),
    ),
    mistakes=(
        Mistake(
            "longest",
            lambda waits, step: slow_rank(waits, step, pick=max),
            "You name the rank that waits longest. It has arrived first, so it is not the slow one.",
        ),
        Mistake(
            "always",
            lambda waits, step: min(range(len(waits)), key=lambda i: waits[i]),
            "You always name a rank. Some rank has the shortest wait even in a healthy run.",
        ),
        Mistake(
            "mean",
            lambda waits, step: slow_rank(waits, step, middle=mean),
            "You took the mean of the others. One rank with a very long wait then decides for all.",
        ),
        Mistake(
            "most",
            lambda waits, step: slow_rank(waits, step, middle=max),
            "You compare with the longest wait. One rank that waits long for another reason is enough then.",
        ),
        Mistake(
            "by-itself",
            lambda waits, step: slow_rank(waits, step, threshold=lambda least, step: SHARE * least),
            "You ask for 10% of the rank's own wait. The step is what has to be compared with.",
        ),
        Mistake(
            "absolute",
            lambda waits, step: slow_rank(waits, step, threshold=lambda least, step: SHARE),
            "You ask for a fixed number of seconds. Take a share of the step.",
        ),
        Mistake(
            "with-itself",
            lambda waits, step: slow_rank(waits, step, others_only=False),
            "Your median includes the suspect itself. It is compared with the other ranks.",
        ),
    ),
    right="The rank that waits least is the slow one, and a rule that accuses nobody without evidence is worth more.",
)

EXERCISES = (WHICH_RANK, WAITS_LEAST)
