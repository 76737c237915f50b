"""Exercises of `architecture` on the stored trace of eight ranks: whose clock, a rank or a link, what a rank costs."""

from __future__ import annotations

from statistics import median

from scaleout.exercises.engine import Choice, Number, Option, Slip

# Figures of scaleout/timing/trace.json, in ms: a test reads them again.
CLOCK_STEPS, CLOCK_RANKS = (8, 9, 10, 11), (0, 1, 6)
OWN = {0: (257, 354, 84, 170), 1: (247, 169, 275, 145), 6: (271, 169, 272, 152)}  # a rank's own step time
IN_ALL_REDUCE = {0: (198, 107, 30, 91), 1: (195, 107, 207, 86), 6: (213, 101, 216, 94)}
_CLOCKS = "\n".join(
    [
        f"{'step':24}" + "".join(f"{step:6}" for step in CLOCK_STEPS),
        *(f"{f'rank {rank}: step':24}" + "".join(f"{ms:6}" for ms in OWN[rank]) for rank in CLOCK_RANKS),
        *(
            f"{f'rank {rank}: all-reduce':24}" + "".join(f"{ms:6}" for ms in IN_ALL_REDUCE[rank])
            for rank in CLOCK_RANKS
        ),
    ]
)
WHOSE_CLOCK = Choice(
    key="whose-clock",
    level=2,
    minutes=4,
    short=True,
    title="Two clocks for one event",
    prompt="Four steps of the recorded run, in ms, by the clocks of three of its eight ranks. The others look like "
    f"rank 1 or rank 6:\n\n```\n{_CLOCKS}\n```\n\nRank 0 logs a slow step 9, and all others log a slow step 10 with "
    "a long all-reduce. What happened?",
    hints=(
        "In which step is rank 0's all-reduce the shortest?",
        "A step of a rank includes what it does after its all-reduce.",
    ),
    solution="**Rank 0 did something for about 180 ms after the all-reduce of step 9.** Its own step 9 is long, and "
    "its all-reduce in that step is not. It then arrives last in step 10, where it waits for nobody: 30 ms, while the "
    "others wait for more than 200. It is one event with two dates. In the trace it is a checkpoint, which only rank 0 "
    "writes. A log of rank 1 alone would have pointed at the network, one step too late.",
    options=(
        Option(
            "rank-0",
            "Rank 0 was busy after the all-reduce of step 9",
            "Right. Then it came last to step 10, and the others waited for it.",
            True,
        ),
        Option(
            "network",
            "The network was slow in step 10, on all ranks",
            "Then rank 0's all-reduce would be long as well. It takes 30 ms.",
        ),
        Option(
            "two",
            "Two faults: one of rank 0, one of the network",
            "One is enough. Who does everybody wait for in step 10?",
        ),
        Option(
            "rank-1",
            "Rank 1 was slow, and delayed the rest in step 10",
            "Rank 1 waits for 207 ms in that step. A slow rank waits for nobody.",
        ),
    ),
)

LINK_STEPS = {13: (104, 94, 87, 94, 79, 35, 91, 92), 14: (167, 144, 156, 143, 149, 83, 144, 154)}
_LINK = "\n".join(
    [
        f"{'rank':8}" + "".join(f"{rank:6}" for rank in range(8)),
        *(f"{f'step {step}':8}" + "".join(f"{ms:6}" for ms in row) for step, row in LINK_STEPS.items()),
    ]
)
RANK_OR_LINK = Choice(
    key="rank-or-link",
    level=2,
    minutes=3,
    title="What came with step 14",
    prompt="Milliseconds in the all-reduce in two consecutive steps of the recorded run:\n\n"
    f"```\n{_LINK}\n```\n\nStep 14 is about 50 ms longer than step 13. What is new in it?",
    hints=(
        "Which rank arrives last, in each of the two steps?",
        "What does the rank that arrives last do in the all-reduce?",
    ),
    solution="**The link is slower.** Rank 5 arrives last in both steps, so its all-reduce contains no waiting. It "
    "takes 83 ms in place of 35: these are the transfer. On all other ranks the time grows by about as much. A rank "
    "that became slower would do the opposite: its own all-reduce stays as short as before, and only the others' "
    "become longer. So the *shortest* all-reduce of a step tells about the network.",
    options=(
        Option(
            "link",
            "The link: even rank 5 needs 48 ms more",
            "Right. The shortest all-reduce contains the transfer and nothing else.",
            True,
        ),
        Option(
            "rank-5",
            "Rank 5: it has become slower still",
            "Then the others would wait longer, and rank 5's own all-reduce would not change.",
        ),
        Option(
            "rank-0",
            "Rank 0: its all-reduce is the longest",
            "The longest all-reduce belongs to a rank that arrives early.",
        ),
        Option(
            "ranks",
            "All ranks but 5: each one is slower",
            "A slower rank arrives later, and is in the all-reduce for a shorter time.",
        ),
    ),
)

GAIN_STEPS = {
    6: (44, 44, 50, 50, 43, 109, 50, 48), 7: (55, 51, 49, 50, 55, 115, 52, 52), 8: (43, 50, 44, 56, 57, 107, 56, 236),
}  # fmt: skip
_GAIN = "\n".join(
    [
        f"{'rank':8}" + "".join(f"{rank:6}" for rank in range(8)),
        *(f"{f'step {step}':8}" + "".join(f"{ms:6}" for ms in row) for step, row in GAIN_STEPS.items()),
    ]
)
SLOW = 5


def gain(rank: int) -> float:
    """Milliseconds that the three steps save if the work of this rank takes the median."""
    saved = 0.0
    for row in GAIN_STEPS.values():
        new = [median(row) if r == rank else ms for r, ms in enumerate(row)]
        saved += max(row) - max(new)
    return saved


EXCESS = sum(row[SLOW] - median(row) for row in GAIN_STEPS.values())
WORST = sum(max(row) - sorted(row)[-2] for row in GAIN_STEPS.values())
WHAT_IT_COSTS = Number(
    key="what-it-costs",
    level=2,
    minutes=5,
    title="Three steps without a slow rank",
    prompt="Milliseconds that each rank of the recorded run works before the all-reduce, in three steps (rank 7 "
    f"collects garbage in step 8):\n\n```\n{_GAIN}\n```\n\nRank {SLOW} is replaced by a rank that takes the median "
    "of each step. How many milliseconds shorter are the three steps together?",
    hints=(
        "Each step waits for its last rank. Which one is it before, and which one after the replacement?",
        "In step 8, who is last in both cases?",
    ),
    solution="Step 6 waits for 109 ms before and for 50 after the replacement, step 7 for 115 and then 55, step 8 "
    f"for 236 in both cases: 59 + 60 + 0 = **{gain(SLOW):.0f} ms**. The excess of rank {SLOW} over the median is "
    f"{EXCESS:.0f} ms, and not all of that can be gained, because the next rank is the last one then. In step 8 a "
    "healthy rank 5 saves nothing at all. Two faults in one step cost as much as the larger one.",
    value=gain(SLOW) / 1e3,
    unit="ms",
    units=("ms",),
    dimension="seconds",
    unit_given=True,
    slips=(
        Slip("excess", EXCESS / 1e3, "You added up its excess over the median. Another rank is the last one then."),
        Slip("worst", WORST / 1e3, "You replaced the last rank of each step. In step 8 that is rank 7."),
        Slip("rank-7", gain(7) / 1e3, "That is what a replacement of rank 7 saves."),
        Slip("mean", gain(SLOW) / 3e3, "That is the mean per step. The question is about the three together."),
        Slip("whole", sum(row[SLOW] for row in GAIN_STEPS.values()) / 1e3, "That is all the time that rank 5 works."),
    ),
    right="Replay the steps. An excess that is added up counts time in which everybody waited for somebody else.",
)

EXERCISES = (WHOSE_CLOCK, RANK_OR_LINK, WHAT_IT_COSTS)
