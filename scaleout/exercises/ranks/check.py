"""What the checkers of lab exercises share: they run a reader's file on several real processes, and judge it.

A `Check` says which function a file has to hold, on how many processes it runs, what each of them reports, and
what is to be said of the reports. `main(check)`, with several checks of a module if it has them, is its command. It
starts the processes, unless torchrun has; takes one file or several and prints one line for each. Exit code 0 when all
are right, 1 when one is not, 2 when it could not be checked. The reader's file runs on the ranks alone, anew for every
number of processes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist

from scaleout.exercises.engine import Verdict
from scaleout.exercises.engine.clock import Clock
from scaleout.exercises.ranks.guard import Originals, inspect, line, load
from scaleout.exercises.ranks.launch import TOKEN, UNREAD, end, launch, say, tell

LOST = ("Timed out waiting", "timed out", "Connection closed", "Connection reset", "Broken pipe", "Application timeout")
PATIENCE = (1, 4, 16)  # times as long the ranks wait for one another where one of them was only late
STORE_SECONDS = 300  # a rank waits this long for the store itself; the launcher ends it long before


@dataclass(frozen=True)
class Check:
    """One lab exercise.

    rank_report(function, rank, world): runs the reader's function on one rank, and returns what pickle can carry.
    judge(reports, world): the verdict on the reports of all ranks. A report may be a Verdict already, when the rank
    knows what is wrong; those are judged here.
    """

    module: str
    function: str
    worlds: tuple[int, ...]
    rank_report: Callable[[Callable, int, int], object]
    judge: Callable[[list, int], Verdict]
    right: str = ""  # said in place of the last verdict when all worlds are right
    wait_seconds: float = 15  # that a collective of the reader waits for the other ranks
    file_seconds: float = 40  # for one file on one number of processes, by the rank's own clock
    explain: Callable[[Exception], Verdict | None] = lambda error: None  # what an exception of the reader's code means
    around: Callable[[], AbstractContextManager] = contextlib.nullcontext  # entered before the reader's file loads


def wrong(words: str, slip: str) -> Verdict:
    """What a rank reports when it knows what is wrong."""
    return Verdict(False, words, slip)


def main(*checks: Check) -> None:
    """The command: files are the arguments. Of several checks, the last whose function the first file has, else the
    first."""
    files = sys.argv[1:]
    check = next((check for check in reversed(checks) if files and _has(files[0], check.function)), checks[0])
    if not files:
        print(
            f"say which file holds your {check.function}: python -m {check.module} {check.function}.py", file=sys.stderr
        )
        sys.exit(2)
    try:
        for path in files:
            inspect(path, check.function)
        if "RANK" in os.environ:
            _rank(replace(check), files)
    except ValueError as error:
        if os.environ.get("RANK", "0") == "0":
            print(error, file=sys.stderr)
        sys.exit(2)
    try:
        sys.exit(launch(check.module, max(check.worlds), files, 2 * check.file_seconds * len(check.worlds)))
    except KeyboardInterrupt:
        sys.exit(130)


def _has(path: str, function: str) -> bool:
    """Whether a file can hold that function."""
    try:
        inspect(path, function)
    except ValueError:
        return False
    return True


def _no_end(check: Check, rank: int, world: int) -> Verdict:
    return wrong(
        f"rank {rank} of {world} did not come to its end within {check.file_seconds:g} s: look for a loop "
        "without end, or for a busy machine",
        "no-end",
    )


def _rank(check: Check, files: list[str]) -> NoReturn:
    """One of the processes: every file, on every number of processes until one is wrong."""
    rank, started = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if started < max(check.worlds):
        raise ValueError(f"this exercise is for {max(check.worlds)} processes, not {started}")
    torch.set_num_threads(1)
    _hush()
    warnings.simplefilter("ignore", FutureWarning)  # torch renames its collectives; any name is right here
    place, port, token = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), os.environ.pop(TOKEN, "")
    root_store = dist.TCPStore(place, port, is_master=False, timeout=timedelta(seconds=STORE_SECONDS))
    store, originals, stream = dist.PrefixStore(token, root_store), Originals(), os.fdopen(os.dup(1), "w")
    code = 0
    for number, path in enumerate(files):
        for world in check.worlds:
            for factor in PATIENCE:
                attempt = replace(check, wait_seconds=factor * check.wait_seconds)
                key = f"{number}/{world}/{attempt.wait_seconds}"
                job = _Run(
                    attempt,
                    path,
                    rank,
                    world,
                    originals,
                    dist.PrefixStore(key, store),
                    dist.PrefixStore(f"group/{key}", root_store),
                )
                verdict = _verdict(job, _watched(job, store, number))
                if verdict.slip != "late":
                    break
                verdict = replace(verdict, slip="deadlock")
            if not verdict.ok:
                break
        if rank == 0 and token:
            say(store, number, verdict)
        elif rank == 0:
            code = max(code, tell(path, verdict, stream))
        if verdict.slip == "no-end":  # the rank that is still in there cannot take part in the next file
            break
    end(store, rank, code)


@dataclass(frozen=True)
class _Run:
    """One file on one rank of `world`. The reader's process group has its own store, without the launcher's key."""

    check: Check
    path: str
    rank: int
    world: int
    originals: Originals
    store: dist.Store
    group: dist.Store


@contextmanager
def _watched(job: _Run, store: dist.Store, number: int):
    """A clock beside rank 0, which could not speak of itself from inside a loop without end."""
    finished, clock = threading.Event(), Clock(os.getpid())

    def watch() -> None:
        # Later than it takes to notice another rank's, and what rank 0 may wait for one that is late.
        remaining = limit = 1.5 * job.check.file_seconds + job.check.wait_seconds
        while not finished.wait(remaining):
            remaining = limit - clock.seconds()
            if remaining <= 0:
                say(store, number, _no_end(job.check, 0, job.world))
                end(store, 0, 1)

    if job.rank == 0:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        finished.set()


def _hush() -> None:
    """What gloo writes on its way to an abort is no line for a reader; what Python writes still is."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _meet(job: _Run, stage: str) -> None:
    """Wait until all ranks have come here."""
    job.store.set(f"{stage}/{job.rank}", str(os.getpid()))
    job.store.wait([f"{stage}/{rank}" for rank in range(job.world)], timedelta(seconds=STORE_SECONDS))


def _verdict(job: _Run, watched: AbstractContextManager) -> Verdict:
    """The verdict on a function with `world` ranks, the same on every rank; those above `world` only wait for it.

    Reports go through the store: it works whatever the reader's collectives have left behind.
    """
    if job.rank < job.world:
        _meet(job, "here")  # a rank that is late to start is none that the reader's code has lost
        dist.init_process_group(
            "gloo",
            store=job.group,
            rank=job.rank,
            world_size=job.world,
            timeout=timedelta(seconds=job.check.wait_seconds),
        )
        _meet(job, "joined")  # nor is one that the reader's code ends while another still connects to it
        with watched:
            report = _report(job)
        changed = job.originals.put_back()
        if changed:
            report = wrong(
                f"rank {job.rank}: your code replaces {', '.join(changed[:3])}: leave the libraries as they are",
                "replaced",
            )
        job.store.set(f"report/{job.rank}", _packed(report))
    verdict = _gather(job) if job.rank == 0 else None
    if verdict:
        job.store.set("verdict", pickle.dumps(verdict))
    else:
        job.store.wait(["verdict"], timedelta(seconds=STORE_SECONDS))
        verdict = pickle.loads(job.store.get("verdict"))
    if job.rank < job.world and verdict.slip != "no-end":
        with contextlib.suppress(Exception):  # the reader's code may have ended the group
            dist.destroy_process_group()
    return verdict


def _report(job: _Run) -> object:
    """What `rank_report` says of the reader's function, or what its code raised."""
    process, clock = os.getpid(), Clock()
    try:
        with job.check.around():
            try:
                function = load(job.path, job.check.function)
            except ValueError as error:
                return wrong(str(error), UNREAD)
            return job.check.rank_report(function, job.rank, job.world)
    except BaseException as error:  # the reader's code: one line says what happened
        known = job.check.explain(error) if isinstance(error, Exception) else None
        if known:
            return Verdict(False, f"rank {job.rank}: {known.message}", known.slip)
        if any(mark in line(error, 10**6) for mark in LOST):
            return wrong(
                f"rank {job.rank} of {job.world} waited for another rank that never came, for "
                f"{job.check.wait_seconds:g} s: a deadlock, or a busy machine. Does every rank make the same "
                "calls in the same order, and start its receive before it waits for its send?",
                "late" if clock.busy() > job.check.wait_seconds / 2 else "deadlock",
            )
        return wrong(f"rank {job.rank}: {line(error)}", "exception")
    finally:
        if os.getpid() != process:  # a copy that the reader's code has forked
            os._exit(0)


def _packed(report: object) -> bytes:
    try:
        return pickle.dumps(report)
    except Exception as error:  # a reader's object among what was returned
        return pickle.dumps(wrong(f"what your function returns cannot be sent to rank 0: {line(error)}", "exception"))


def _gather(job: _Run) -> Verdict:
    """What is to be said of all ranks' reports. Those without an end have none to give: each of them has had its time,
    which one that waits for a late one has not."""
    clocks = [Clock(int(job.store.get(f"here/{rank}"))) for rank in range(job.world)]
    while missing := [rank for rank in range(job.world) if not job.store.check([f"report/{rank}"])]:
        if min(clocks[rank].seconds() for rank in missing) > job.check.file_seconds:
            return _no_end(job.check, missing[0], job.world)
        time.sleep(0.01)
    reports = [pickle.loads(job.store.get(f"report/{rank}")) for rank in range(job.world)]
    failures = [report for report in reports if isinstance(report, Verdict) and not report.ok]
    if not failures:
        verdict = job.check.judge(reports, job.world)
        final = verdict.ok and job.world == job.check.worlds[-1]
        return Verdict(True, job.check.right) if final and job.check.right else verdict
    # A deadlock or an exception last: what fails on one rank often follows from what is wrong on another. A rank that
    # was lost while it still computed may only have been late.
    consequences = ("exception", "late", "deadlock")
    return min(
        failures, key=lambda failure: consequences.index(failure.slip) + 1 if failure.slip in consequences else 0
    )
