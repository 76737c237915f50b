"""Exercises of `ddp` on a job that hangs: the recorded dumps of labs/results/hang, and who is to blame."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Option

# What labs/hang.py wrote; a test compares both with the recorded files.
LOG = """\
rank 0: Timed out waiting 6000ms for send operation to complete
rank 1: Timed out waiting 6000ms for recv operation to complete
rank 2: Timed out waiting 6000ms for recv operation to complete
rank 3: Timed out waiting 6000ms for recv operation to complete
"""
STACKS = """\
rank 0: broadcast  from new_rate  (hang_job.py:100)
rank 1: all_reduce from gradients (hang_job.py:81)
rank 2: all_reduce from gradients (hang_job.py:81)
rank 3: all_reduce from gradients (hang_job.py:81)
"""
TABLE = """\
number          rank 0          rank 1          rank 2          rank 3
------  --------------  --------------  --------------  --------------
19      broadcast :100  broadcast :100  broadcast :100  broadcast :100
20      all_reduce :81  all_reduce :81  all_reduce :81  all_reduce :81
21      all_gather :91  all_gather :91  all_gather :91  all_gather :91
22      broadcast :100  broadcast :100  all_reduce :81  broadcast :100
23                   -  all_reduce :81               -  all_reduce :81
"""

HANG_RANK = Choice(
    key="hang-rank",
    level=2,
    minutes=5,
    title="Which rank broke the job?",
    prompt="A job of four ranks stood still, then ended by its time-outs. Each step averages the gradients "
    "(`all_reduce`, line 81), collects the losses (`all_gather`, line 91), and takes the learning rate from rank 0 "
    "(`broadcast`, line 100). It left three things. What the ranks said, in the order in which they said it:\n\n"
    f"```\n{LOG}```\n\nWhere each one stood while it hung, by py-spy:\n\n```\n{STACKS}```\n\n"
    "And the flight recorder's calls of each rank, by their number in the process group (`:81` is the line):\n\n"
    f"```\n{TABLE}```\n\nThe last call of each column never finished, or the job would have gone on. Which rank has "
    "the bug?",
    hints=(
        "Log and stacks say who waited, and where. Who is wrong is another question.",
        "Call number n must be the same on every rank. Read the table row by row: which is the first that is not?",
    ),
    solution="Down to number 21 all four agree. At **22** ranks 0, 1 and 3 call `broadcast`, and **rank 2** calls "
    "`all_reduce`. Nobody joins it there, so it waits. Ranks 1 and 3 got their learning rate and went on to the "
    "`all_reduce` of the next step, where they wait for rank 2; rank 0 still waits to hand its broadcast to rank 2.\n\n"
    "The stacks alone would have misled you: three ranks stand on line 81, and one of those three is the culprit. Only "
    "the numbers show that its `all_reduce` is one too early.",
    options=(
        Option(
            "rank-0",
            "Rank 0: it timed out first, and it stands where nobody else stands",
            "Rank 0 has the same calls as ranks 1 and 3 down to number 22. It waits: somebody is not in its "
            "broadcast. The first to report is only the one whose clock ran out first, and a stack that is unlike "
            "the others shows where a rank waits, not who is wrong.",
        ),
        Option(
            "rank-1",
            "Rank 1: it went on to number 23 while rank 0 was still at 22",
            "In a broadcast a receiver goes on as soon as it has the data; it waits for nobody else. Its calls are "
            "the ones of rank 3, and up to 22 those of rank 0. Look for the row in which one rank differs.",
        ),
        Option(
            "rank-2",
            "Rank 2: its call number 22 is not the one of the others",
            "Right. The first row that is not the same all along names the culprit: number 22, where it is one call "
            "ahead.",
            True,
        ),
        Option(
            "rank-3",
            "Rank 3: it was the last to report its time-out",
            "All four time-outs lie within a few hundredths of a second: the order is chance. Rank 3 made the calls "
            "of rank 1, one for one.",
        ),
        Option(
            "nobody",
            "No rank: the network between all of them is down",
            "21 calls went well, and the table shows two ranks at different calls under one number. A broken link "
            "would leave every rank at the same call.",
        ),
    ),
)

HANG_CALL = Choice(
    key="hang-call",
    level=3,
    minutes=3,
    title="What did it do wrong?",
    prompt="The same job: in the flight recorder's table rank 2 is out of step from number 22 on. What happened in "
    "its code?",
    hints=(
        "In every earlier step, which call comes after the `all_gather` of line 91, and which one after that?",
        "Compare rank 2's number 22 with number 23 of ranks 1 and 3.",
    ),
    solution="Rank 2's number 22 is what ranks 1 and 3 have as number 23: the same call, size and line. So rank 2 is "
    "one call ahead. It **left out** the `broadcast` of line 100, went on to the next step, and from there on all "
    "its numbers are one too low. In the code that is an early `return` in front of line 100, under a condition that "
    "only rank 2 met.\n\n"
    "The cure is a rule, not a time-out: the decision to call a collective must be the same on every rank. Decide on "
    "data that all ranks share, or call it anyway with an empty contribution.",
    options=(
        Option(
            "wrong-call",
            "It called all_reduce by mistake on line 81",
            "Line 81 is sound: every rank runs it in every step, and 4,096 numbers are its usual size. Rank 2 came "
            "to it too early. A wrong call in place of the broadcast would stand on a line near 100.",
        ),
        Option(
            "left-out",
            "It left out the broadcast on line 100",
            "Right: its number 22 is the others' number 23. One call is missing, and everything after it moves up "
            "by one.",
            True,
        ),
        Option(
            "left-out-gather",
            "It left out the all_gather on line 91",
            "Number 21 is that all_gather, on all four ranks. What is missing comes after it.",
        ),
        Option(
            "stopped",
            "It stopped working: no call after number 22",
            "A rank that stops has no call where the others have one. Rank 2 has a number 22, and py-spy found it "
            "waiting inside it.",
        ),
        Option(
            "too-slow",
            "It was slow: 6 seconds were too short",
            "A slow rank makes the same calls, later. Rank 2 made another call under number 22: with any time-out "
            "the job would have hung.",
        ),
    ),
)

EXERCISES = (HANG_RANK, HANG_CALL)
