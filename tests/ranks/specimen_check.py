"""A checker with short time limits: the reader's `two()` has to return 2, on two processes."""

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, main, wrong


def rank_report(function, rank, world):
    given = function()
    return given if given == 2 else wrong(f"rank {rank} gave {given}", "not-two")


def judge(reports, world):
    return Verdict(True, f"right: {reports}")


CHECK = Check("specimen_check", "two", (2,), rank_report, judge, wait_seconds=1, file_seconds=2)

if __name__ == "__main__":
    main(CHECK)
