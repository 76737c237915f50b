"""Judges an answer to labs/hang.py: which rank has the bug, and on which line of labs/hang_job.py.

The bug is drawn again from the seed, which is stored in disguise with the dumps; its lines are looked up in the job's
source.
Standard library only.
"""

import ast
import base64
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from scaleout.exercises.engine import Verdict
from scaleout.lab import options
from scaleout.records import flight
from scaleout.records.files import read_json

JOB = Path(__file__).resolve().parents[2] / "labs" / "hang_job.py"
ANSWER = re.compile(r"(\d+):(?:labs/)?(?:hang_job\.py:)?(\d+)")


@dataclass(frozen=True)
class Truth:
    """Where the bug is. Lines are of labs/hang_job.py."""

    kind: str  # "mismatch", "stop" or "skip"
    rank: int
    lines: frozenset  # every line that counts as the bug's
    usual: int | None  # the line of the collective that the other ranks call there; None for "stop"


def seal(seed):
    """The seed as the dumps' job.json has it (str): a reader who opens the folder does not see it at a glance. No
    secret from somebody who wants to know: the judge runs on the reader's machine and opens it."""
    return base64.b64encode(str(seed).encode()).decode()


def opened(sealed):
    """The seed (int) of such a word. ValueError for any other."""
    return int(base64.b64decode(sealed, validate=True))


def job_module():
    """labs/hang_job.py as a module; it does not import torch until it runs."""
    spec = importlib.util.spec_from_file_location("hang_job", JOB)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def truth(seed, world, kind=None):
    """The Truth of a job that was started with this seed, number of ranks and kind of bug."""
    bug = job_module().draw(seed, world, kind)
    function = next(
        node
        for node in ast.walk(ast.parse(JOB.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == bug.place
    )
    node = next(
        node
        for node in function.body
        if isinstance(node, (ast.If, ast.While))
        and ast.unparse(node.test) == f"self.bites({bug.kind!r}, {bug.place!r})"
    )
    usual = [
        call.lineno
        for call in function.body
        if isinstance(call, ast.Expr) and ast.unparse(call).startswith("self.dist.")
    ]
    lines = set(range(node.lineno, node.end_lineno + 1))
    if bug.kind == "skip":
        lines.update(usual)  # the call that was left out says it as well
    return Truth(bug.kind, bug.rank, frozenset(lines), usual[0] if usual else None)


def blamed(folder):
    """(rank that reported an error first, rank that torchrun names as the root cause); None where the log has none."""
    path = Path(folder) / "log.txt"
    if path.exists() and not path.is_file():  # a pipe has no end
        raise ValueError("log.txt is no file")
    log = path.read_text(errors="replace")
    errors = sorted((float(moment), int(rank)) for moment, rank in re.findall(r"^(\d+\.\d+) rank (\d+):", log, re.M))
    cause = re.search(r"Root Cause.*?rank +: (\d+) ", log, re.S)
    return (errors[0][1] if errors else None), (int(cause.group(1)) if cause else None)


def judge(answer, folder):
    """The Verdict on "RANK:LINE". ValueError where the folder or the answer cannot be read."""
    match = ANSWER.fullmatch(answer.strip())
    if not match:
        raise ValueError(f"--check {answer}: give RANK:LINE, for example 1:83")
    facts = Path(folder) / "job.json"
    try:
        job = read_json(facts)
        if not 2 <= job["processes"] <= 64 or job["inject"] not in (None, *job_module().KINDS):
            raise ValueError("holds another number of processes, or another bug, than labs/hang.py makes")
        right = truth(opened(job["sealed"]), job["processes"], job["inject"])
        first, cause = blamed(folder)
    except (ValueError, KeyError, TypeError, OSError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{facts}: {reason} (python labs/hang.py writes such a folder)") from None
    rank, line = int(match[1]), int(match[2])
    if rank >= job["processes"]:
        raise ValueError(f"--check {answer}: this job has the ranks 0 to {job['processes'] - 1}")
    flights = flight.load(folder)
    if rank != right.rank:
        return _wrong_rank(rank, line, right, first, cause, alone(flights))
    if line in right.lines:
        return Verdict(True, f"Right: rank {rank}, line {line}. {_explained(right)}")
    if rank not in flights:
        raise ValueError(f"{folder}: holds no flight-{rank}.json: python labs/hang.py writes such a folder")
    return _wrong_line(rank, line, right, flights[rank])


def _explained(right):
    return {
        "mismatch": "Its call differs from the others' call under the same number, so all of them wait for a match.",
        "skip": "It left out a call, so from there on its numbers are one too low. The others wait for a call that it "
        "never makes, and it waits in a call that they have not reached.",
        "stop": "It is not in a collective: its stack shows where it is instead, and the others wait for it.",
    }[right.kind]


def alone(flights):
    """The ranks (set) whose last call is on a line of its own."""
    stands = {rank: seen.calls[-1].where for rank, seen in flights.items() if seen.calls}
    return {rank for rank, place in stands.items() if list(stands.values()).count(place) == 1}


def _wrong_rank(rank, line, right, first, cause, lonely):
    """The likely reason for the wrong rank, the surest first."""
    if line in right.lines:
        return Verdict(
            False,
            f"The line is right, but rank {rank} is not the culprit. Compare the ranks' calls number by number (--read "
            "FOLDER): which rank differs first?",
            "line-only",
        )
    if rank == first:
        return Verdict(
            False,
            f"Rank {rank} reported its timeout first. That only says that it waited, and that its timeout ended first, "
            "which is chance. The ranks that wait are the healthy ones.",
            "first-report",
        )
    if rank == cause:
        return Verdict(
            False,
            f"torchrun names rank {rank} because its process ended first. In a hang the ranks that wait end first, by "
            "their timeout, and the root cause need not be one of them.",
            "root-cause",
        )
    if rank in lonely:
        return Verdict(
            False,
            f"Rank {rank} is in a call where no other rank is, and it is healthy. A stack shows where a rank waits, "
            "not which rank is wrong: a rank that has its data goes on to the next call.",
            "odd-stack",
        )
    return Verdict(
        False,
        f"Rank {rank} waits, as most ranks do. Look for the rank that made a different call under the same number, or "
        "none.",
        "waiting",
    )


def _wrong_line(rank, line, right, seen):
    text = seen.calls[-1].where.rpartition(":")[2] if seen.calls else ""
    stands = int(text) if options.digits(text) else 0
    if right.kind == "skip" and line == stands:
        return Verdict(
            False,
            f"The rank is right. It now waits at line {line}, and that call is correct, but too early. Which call did "
            "the others make before it that this rank did not?",
            "where-it-waits",
        )
    if right.kind == "mismatch" and line == right.usual:
        return Verdict(
            False,
            f"The rank is right. Line {line} is the call that the others made; rank {rank} made a different one under "
            "that number.",
            "usual-call",
        )
    if right.kind == "stop" and line == stands:
        return Verdict(
            False,
            f"The rank is right. Line {line} is the last collective that it called, and that one finished. Its stack "
            "shows where it is now.",
            "last-call",
        )
    return Verdict(False, f"The rank is right, the line is not. {_look(right)}", "line")


def _look(right):
    if right.kind == "stop":
        return "Find the frame of hang_job.py in its stack. The rank is there, and not in a collective."
    return "Find the first number in the table at which it differs, and compare its call with the others' call."
