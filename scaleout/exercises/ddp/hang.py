"""Exercises of `ddp` on a job that hangs: the recorded dumps of labs/results/hang, and which rank has the bug."""

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
    prompt="A job of four ranks hung until its timeouts. Each step averages the gradients (`all_reduce`, line 81), "
    "collects the losses (`all_gather`, line 91), and gets the learning rate from rank 0 (`broadcast`, line 100). The "
    f"ranks' log, in order of time:\n\n```\n{LOG}```\n\nTheir stacks while the job hung, from py-spy:\n\n"
    f"```\n{STACKS}```\n\nTheir calls in the flight recorder, by number in the process group:\n\n"
    f"```\n{TABLE}```\n\nThe last call of each rank never finished. Which rank has the bug?",
    hints=(
        "Log and stacks say which ranks waited, and where. They do not say which rank is wrong.",
        "Call number n must be the same on every rank. Read the table row by row. Which is the first row with a "
        "difference?",
    ),
    solution="Up to number 21 all four ranks agree. At **22** ranks 0, 1 and 3 call `broadcast`, and **rank 2** calls "
    "`all_reduce`, where no other rank joins it. Ranks 1 and 3 got their learning rate and went on to the `all_reduce` "
    "of the next step, where they wait for rank 2. Rank 0 still waits for rank 2 to receive its broadcast.\n\n"
    "The stacks alone mislead: three ranks are on line 81, and only one of them is the culprit. The numbers show that "
    "its `all_reduce` is one call too early.",
    options=(
        Option(
            "rank-0",
            "Rank 0: it timed out first, and its stack is unlike all the others",
            "Rank 0 made the same calls as ranks 1 and 3 up to number 22. It waits because another rank has not joined "
            "its broadcast. The first to report is the one whose timeout ended first. A stack that is unlike the "
            "others shows where a rank waits, not that it is wrong.",
        ),
        Option(
            "rank-1",
            "Rank 1: it went on to number 23 while rank 0 was still at 22",
            "In a broadcast a receiver goes on as soon as it has the data. Rank 1 made the same calls as rank 3, and "
            "up to 22 the same as rank 0. Look for the row in which one rank differs.",
        ),
        Option(
            "rank-2",
            "Rank 2: its call number 22 is not the one that the others made",
            "Right. The first row in which the calls differ shows the culprit: at number 22 it is one call ahead.",
            True,
        ),
        Option(
            "rank-3",
            "Rank 3: it was the last of the ranks to report its timeout",
            "All four timeouts were within a few hundredths of a second, so their order is chance. Rank 3 made the "
            "same calls as rank 1.",
        ),
        Option(
            "nobody",
            "No rank: the network between all of them has failed",
            "21 calls went well, and then the ranks made different calls under the same number. With a broken link "
            "every rank would wait in the same call.",
        ),
    ),
)

HANG_CALL = Choice(
    key="hang-call",
    level=3,
    minutes=3,
    title="What did it do wrong?",
    prompt="In the same job rank 2's calls differ from number 22 on. What happened in its code?",
    hints=(
        "In every earlier step, which call follows the `all_gather` of line 91, and which call follows that?",
        "Compare rank 2's number 22 with number 23 of ranks 1 and 3.",
    ),
    solution="Rank 2's number 22 is number 23 on ranks 1 and 3: the same call, size and line. So rank 2 is one call "
    "ahead. It **left out** the `broadcast` of line 100 and went on to the next step, and from there on all its "
    "numbers are one too low. In the code there is an early `return` before line 100, under a condition that only rank "
    "2 met.\n\n"
    "A longer timeout does not help. Every rank must make the same decision to call a collective. Decide on data that "
    "all ranks share, or call the collective anyway with an empty contribution.",
    options=(
        Option(
            "wrong-call",
            "It called all_reduce by mistake, on line 81",
            "Line 81 is correct: every rank runs it in every step, and 4,096 elements are its usual size. Rank 2 came "
            "to it too early. A wrong call in place of the broadcast would be on a line near 100.",
        ),
        Option(
            "left-out",
            "It left out the broadcast on line 100",
            "Right: its number 22 is the others' number 23. One call is missing, and all calls after it have a number "
            "that is one too low.",
            True,
        ),
        Option(
            "left-out-gather",
            "It left out the all_gather on line 91",
            "Number 21 is that all_gather, on all four ranks. The missing call comes after it.",
        ),
        Option(
            "stopped",
            "It stopped working: no call after number 22",
            "A rank that stops has no call where the others have one. Rank 2 has a number 22, and py-spy found it "
            "waiting in that call.",
        ),
        Option(
            "too-slow",
            "It was too slow for a timeout of 6 s",
            "A slow rank makes the same calls, but later. Rank 2 made a different call under number 22, so the job "
            "would hang with any timeout.",
        ),
    ),
)

EXERCISES = (HANG_RANK, HANG_CALL)
