"""Exercises of `architecture` that are functions on traces: who began, two scores of a rank, and a replay."""

from __future__ import annotations

from functools import partial
from statistics import fmean, median

from scaleout.exercises.engine import Function, Mistake

_STUB = '''\
def who_began(finite):
    """[step, rank] of the first bad value.

    finite: for each step a list with one entry per rank: 1 if the
            rank's own loss is a finite number, else 0
    """
    return ...
'''
_SOLUTION = """\
def who_began(finite):
    for step, ranks in enumerate(finite):
        bad = [rank for rank, good in enumerate(ranks) if not good]
        if len(bad) == 1:
            return [step, bad[0]]
        if bad:
            return [step, -1]
    return [-1, -1]
"""


def who_began(finite: list, several=lambda bad: [-1], nobody=(-1, -1), order=lambda steps: steps) -> list:
    """The first step with a bad value and its rank, -1 where several ranks have one. Other arguments make mistakes."""
    for step, ranks in order(list(enumerate(finite))):
        bad = [rank for rank, good in enumerate(ranks) if not good]
        if bad:
            return [step, *(bad if len(bad) == 1 else several(bad))]
    return list(nobody)


def _most_often(finite: list) -> list:
    """The rank with most bad values, and its first."""
    if not finite or all(all(ranks) for ranks in finite):
        return [-1, -1]
    bad = [sum(not ranks[rank] for ranks in finite) for rank in range(len(finite[0]))]
    rank = bad.index(max(bad))
    return [next(step for step, ranks in enumerate(finite) if not ranks[rank]), rank]


WHO_BEGAN = Function(
    key="who-began",
    level=2,
    minutes=7,
    title="Who began",
    prompt="In a data-parallel job every rank logs whether the loss of its own micro-batch is a finite number. One "
    "rank gets a NaN; the all-reduce of the gradients carries it to all ranks, and from the next step on every loss is "
    "NaN. Write `who_began(finite)`, which finds the rank that began.\n\n"
    "- `finite[step][rank]` is 1 for a finite loss and 0 for any other.\n"
    "- Take the first step in which any rank has a 0. Return `[step, rank]`, both counted from 0.\n"
    "- If several ranks have a 0 in that step, nobody can tell who began: return `[step, -1]`.\n"
    "- If all are finite, return `[-1, -1]`.",
    hints=("Go through the steps in order, and stop at the first with a 0.", "How many zeros does that step have?"),
    solution=f"```python\n{_SOLUTION}```\n\nThe rank that began is the *initiating* one, and the others are the "
    "*cascade*. The log must be written before the all-reduce, and on every rank: a job that logs the averaged loss on "
    "rank 0 knows that a NaN occurred, and not where. If several ranks are bad at once, the cause lies earlier, most "
    "likely in the weights.",
    function="who_began",
    stub=_STUB,
    reference=who_began,
    lists=True,
    cases=(
        ([[1, 1, 1, 1], [1, 1, 0, 1], [0, 0, 0, 0]],),
        ([[1, 1], [1, 1]],),
        ([[1, 0, 0, 1], [0, 0, 0, 0]],),
        ([[0, 0], [0, 0]],),
        ([[1, 1, 1], [0, 1, 1], [0, 0, 0], [0, 0, 0]],),
        ([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]],),
        ([[0, 1, 1, 1, 1]],),
        ([],),
        ([[1, 1, 1], [1, 1, 1], [1, 1, 1]],),
        ([[1], [0]],),
        ([[1, 1, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1], [0, 1, 1]],),
        ([[1, 1], [0, 0], [1, 0]],),
        ([[1, 0, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0]],),
        ([[1, 1, 1, 1], [0, 1, 0, 1], [0, 1, 0, 1], [0, 1, 0, 0]],),
    ),
    mistakes=(
        Mistake(
            "lowest",
            lambda finite: who_began(finite, several=lambda bad: bad[:1]),
            "Where several ranks are bad in the first bad step you name the lowest. Nobody can tell: return -1.",
        ),
        Mistake(
            "last",
            lambda finite: who_began(finite, order=lambda steps: steps[::-1]),
            "You name the last bad step. By then every rank has the NaN.",
        ),
        Mistake(
            "most",
            _most_often,
            "You name the rank with most bad values. The one that began may have recovered, or all have equally many.",
        ),
        Mistake(
            "nobody",
            lambda finite: who_began(finite, nobody=(0, 0)),
            "Where all are finite you name rank 0 in step 0. Return [-1, -1].",
        ),
        Mistake(
            "swapped",
            lambda finite: who_began(finite)[::-1],
            "Your two numbers are in the other order: first the step, then the rank.",
        ),
    ),
    right="The initiating rank is found in what each rank knew before the all-reduce.",
)

_SCORES_STUB = '''\
def scores(seconds):
    """[[relative, individual] of each rank] in the last step.

    seconds: for each step a list with the compute seconds of each rank
    """
    return ...
'''
_SCORES_SOLUTION = """\
def scores(seconds):
    last = seconds[-1]
    fastest = min(last)
    return [
        [fastest / mine, min(step[rank] for step in seconds) / mine]
        for rank, mine in enumerate(last)
    ]
"""


def scores(seconds: list, pick=min, others=lambda seconds: seconds[-1], history=min, flipped=False) -> list:
    """Both scores of each rank in the last step. The other arguments each make one mistake."""
    best = pick(others(seconds))
    found = [[best / mine, history(step[r] for step in seconds) / mine] for r, mine in enumerate(seconds[-1])]
    return [[1 / one for one in pair] for pair in found] if flipped else found


SCORES = Function(
    key="two-scores",
    level=2,
    minutes=7,
    title="Slower than the others, or than before",
    prompt="NVIDIA's resiliency extension gives each rank two scores, in which 1 is the best and 0.5 means half as "
    "fast. Write `scores(seconds)`, where `seconds[step][rank]` is the compute time of a rank in a step. Return for "
    "each rank the list `[relative, individual]`, both for the **last** step:\n\n"
    "- *relative*: the time of the fastest rank in the last step, divided by the rank's own time in that step;\n"
    "- *individual*: the rank's own shortest time in all steps, divided by its time in the last step.",
    hints=("`seconds[-1]` is the last step.", "`min(step[rank] for step in seconds)` is a rank's own shortest time."),
    solution=f"```python\n{_SCORES_SOLUTION}```\n\nThe two find different faults. A rank that has always been slow has "
    "a low relative score and an individual score near 1: a worse GPU, or more work. A rank that heats up becomes "
    "slower than it was: both fall. If all individual scores fall and the relative ones stay near 1, something that "
    "all ranks share has become slower.",
    function="scores",
    stub=_SCORES_STUB,
    reference=scores,
    lists=True,
    cases=(
        ([[1.0, 1.0, 2.0], [1.0, 1.0, 2.0]],),
        ([[1.0, 1.1, 1.0], [1.0, 1.1, 2.0]],),
        ([[0.5, 0.4, 0.8], [0.6, 0.9, 0.8], [0.7, 0.5, 1.0]],),
        ([[3.0]],),
        ([[0.2, 0.3]],),
        ([[0.9, 0.7, 0.8, 1.2], [0.6, 0.9, 0.9, 1.2], [0.8, 0.9, 1.8, 1.2]],),
        ([[2.0, 2.0], [4.0, 4.0], [5.0, 5.0]],),
        ([[1.5, 0.5, 1.0], [1.0, 1.0, 1.0]],),
        ([[0.9, 1.0], [0.6, 0.8], [0.7, 0.9]],),
    ),
    mistakes=(
        Mistake(
            "inverse",
            lambda seconds: scores(seconds, flipped=True),
            "Your scores are above 1 for slow ranks. The best time stands above the fraction line.",
        ),
        Mistake(
            "mean",
            lambda seconds: scores(seconds, pick=fmean),
            "You compare with the mean of the ranks. The fastest rank is the reference.",
        ),
        Mistake(
            "median",
            lambda seconds: scores(seconds, pick=median),
            "You compare with the median rank. The fastest rank is the reference.",
        ),
        Mistake(
            "all-steps",
            lambda seconds: scores(seconds, others=lambda steps: [one for step in steps for one in step]),
            "For the relative score you take the fastest time of all steps. Only the last step counts.",
        ),
        Mistake(
            "first-step",
            lambda seconds: scores(seconds, history=lambda own: next(iter(own))),
            "You compare a rank with its first step. Its best step is the reference.",
        ),
        Mistake(
            "swapped",
            lambda seconds: [pair[::-1] for pair in scores(seconds)],
            "Your two scores are in the other order: first the relative one, then the individual one.",
        ),
    ),
    right="Relative scores find a rank that is worse than others, individual ones a rank that has become worse.",
)

_REPLAY_STUB = '''\
def saved(work, transfer, rank):
    """Seconds that the run would save if `rank` were average.

    work: for each step a list with the seconds that each rank works
          before the all-reduce
    transfer: seconds of the all-reduce once all ranks are there
    """
    return ...
'''
_REPLAY_SOLUTION = """\
from statistics import median

def saved(work, transfer, rank):
    total = 0
    for step in work:
        other = list(step)
        other[rank] = median(step)
        total += max(step) - max(other)
    return total
"""


def _replaced(step: list, rank: int, seconds: float) -> list:
    return [*step[:rank], seconds, *step[rank + 1 :]]


def saved(work: list, transfer: float, rank: int, middle=median) -> float:
    """Seconds that a run saves with one rank's work replaced by the median. The other arguments each make a mistake."""
    return sum(max(step) - max(_replaced(step, rank, middle(step))) for step in work)


def _of_the_run(work: list, transfer: float, rank: int) -> float:
    """Replaced by the median of the whole run's sums."""
    sums = [sum(step[r] for step in work) for r in range(len(work[0]))]
    return max(sums) - max(_replaced(sums, rank, median(sums)))


SAVED = Function(
    key="replay",
    level=3,
    minutes=12,
    title="What would a healthy rank give?",
    prompt="Write `saved(work, transfer, rank)`: how many seconds shorter would a run be if one rank took the median "
    "time? `work[step][rank]` are the seconds that a rank works before the all-reduce of a step. A step ends for all "
    "ranks when the last one has arrived and `transfer` seconds have passed, and all begin the next step together.\n\n"
    "- In each step, replace the work of `rank` by the **median over all ranks of that step**, itself included."
    "\n- Add up the difference between the old and the new step times.\n\n"
    "The median of an even number of values is the mean of the two in the middle, as `statistics.median` has it.",
    hints=(
        "How long is a step? It waits for its last rank.",
        "After the replacement another rank may be the last one.",
        "Compute `max(step)` before and after the replacement, and add up the differences.",
    ),
    solution=f"```python\n{_REPLAY_SOLUTION}```\n\nThe transfer does not matter, because it is the same before and "
    "after. What matters is the *second* slowest rank: replacing the slowest one cannot save more than the distance "
    "to the next. This is why a what-if is worth more than the excess of a rank over the median, and why replacing the "
    "rank that waits longest saves nothing.",
    function="saved",
    stub=_REPLAY_STUB,
    reference=saved,
    cases=(
        ([[1.0, 1.0, 1.0, 1.5], [1.0, 1.0, 1.0, 1.5]], 0.2, 3),
        ([[1.0, 1.0, 1.0, 1.5], [1.0, 1.0, 1.0, 1.5]], 0.2, 0),
        ([[1.0, 1.1, 1.4, 1.5], [1.0, 1.6, 1.0, 1.5]], 0.1, 3),
        ([[1.0, 1.1, 1.4, 1.5], [1.0, 1.6, 1.0, 1.5]], 0.1, 1),
        ([[0.5, 0.9], [0.9, 0.5]], 0.3, 1),
        ([[0.5, 0.9], [0.8, 0.5], [0.4, 0.4]], 0.3, 0),
        ([[0.2, 1.0]], 0.1, 1),
        ([[0.5, 0.9, 0.7], [0.6, 2.0, 0.7], [0.5, 0.2, 0.7]], 0.0, 1),
        ([[2.0, 1.0, 1.0, 1.0, 1.2], [1.0, 3.0, 1.0, 1.0, 1.2], [1.3, 1.0, 1.0, 1.0, 1.2]], 0.4, 0),
        ([[1.0, 2.0, 3.0, 4.0]], 1.0, 3),
        ([[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]], 0.5, 1),
        ([[1.0, 5.0, 9.0], [9.0, 5.0, 1.0], [1.0, 5.0, 9.0]], 0.5, 2),
        ([[1.0, 1.0, 4.0, 4.0]], 0.0, 2),
        ([[0.1, 0.9, 1.0, 1.1, 2.0], [0.3, 1.2, 1.0, 1.4, 1.9]], 0.1, 4),
    ),
    mistakes=(
        Mistake(
            "mean",
            partial(saved, middle=fmean),
            "You replace by the mean, which the slow rank itself raises. Use the median.",
        ),
        Mistake(
            "removed",
            lambda work, transfer, rank: sum(max(s) - max([*s[:rank], *s[rank + 1 :]]) for s in work),
            "You take the rank out, or take the median of the others. Its own time counts for the median, too.",
        ),
        Mistake(
            "excess",
            lambda work, transfer, rank: sum(max(0.0, s[rank] - median(s)) for s in work),
            "You add up the rank's excess over the median. After it, another rank may be the last one.",
        ),
        Mistake(
            "whole-run",
            _of_the_run,
            "You add up the run first. Ranks wait for each other in every step, so replay step by step.",
        ),
    ),
    right="You have written the what-if of the OSDI paper for one collective per step.",
)

EXERCISES = (WHO_BEGAN, SCORES, SAVED)
