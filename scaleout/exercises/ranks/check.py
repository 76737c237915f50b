"""What the checkers of lab exercises share: they run a reader's file on several real processes, and judge it.

A `Check` says which function a file has to hold, on how many processes it runs, what each of them reports, and
what is to be said of the reports. `main(check)` is the command of its module. It starts the processes, unless
torchrun has; takes one file or several and prints one line for each. Exit code 0 when all are right, 1 when one
is not, 2 when it could not be checked. The reader's file runs on the ranks alone, anew for every number of processes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist

from scaleout.exercises.engine import Verdict
from scaleout.exercises.engine.clock import Clock
from scaleout.exercises.ranks.guard import Kept, inspect, line, load
from scaleout.exercises.ranks.launch import TOKEN, UNREAD, end, launch, say, tell

LOST = ("Timed out waiting", "timed out", "Connection closed", "Connection reset", "Broken pipe", "Application timeout")
PATIENCE = (1, 4, 16)  # times as long the ranks wait for one another where one of them was only late
STORE_SECONDS = 300  # a rank waits this long for the store itself; the launcher ends it long before


@dataclass(frozen=True)
class Check:
    """One lab exercise.

    own(function, rank, world): runs the reader's function on one rank, and returns what pickle can carry.
    judge(reports, world): the verdict on the reports of all ranks. A report may be a Verdict already, when the rank
    knows what is wrong; those are judged here.
    """

    module: str
    function: str
    worlds: tuple[int, ...]
    own: Callable[[Callable, int, int], object]
    judge: Callable[[list, int], Verdict]
    right: str = ""  # said in place of the last verdict when all worlds are right
    wait_seconds: float = 15  # that a collective of the reader waits for the other ranks
    file_seconds: float = 40  # for one file on one number of processes, by the rank's own clock
    explain: Callable[[Exception], Verdict | None] = lambda error: None  # what an exception of the reader's code means
    around: Callable[[], AbstractContextManager] = contextlib.nullcontext  # entered before the reader's file loads


def wrong(words: str, slip: str) -> Verdict:
    """What a rank reports when it knows what is wrong."""
    return Verdict(False, words, slip)


def main(check: Check) -> None:
    """The command: files are the arguments."""
    files = sys.argv[1:]
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
    place, port, token = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), os.environ.pop(TOKEN, "")
    plain = dist.TCPStore(place, port, is_master=False, timeout=timedelta(seconds=STORE_SECONDS))
    store, kept, out = dist.PrefixStore(token, plain), Kept(), os.fdopen(os.dup(1), "w")
    code = 0
    for number, path in enumerate(files):
        for world in check.worlds:
            for times in PATIENCE:
                tried = replace(check, wait_seconds=times * check.wait_seconds)
                key = f"{number}/{world}/{tried.wait_seconds}"
                one = _Place(
                    tried,
                    path,
                    rank,
                    world,
                    kept,
                    dist.PrefixStore(key, store),
                    dist.PrefixStore(f"group/{key}", plain),
                )
                verdict = _verdict(one, _watched(one, store, number))
                if verdict.slip != "late":
                    break
                verdict = replace(verdict, slip="deadlock")
            if not verdict.ok:
                break
        if rank == 0 and token:
            say(store, number, verdict)
        elif rank == 0:
            code = max(code, tell(path, verdict, out))
        if verdict.slip == "no-end":  # the rank that is still in there cannot take part in the next file
            break
    end(store, rank, code)


@dataclass(frozen=True)
class _Place:
    """One file on one rank of `world`. The reader's process group has its own store, without the launcher's key."""

    check: Check
    path: str
    rank: int
    world: int
    kept: Kept
    store: dist.Store
    group: dist.Store


@contextmanager
def _watched(one: _Place, store: dist.Store, number: int):
    """A clock beside rank 0, which could not speak of itself from inside a loop without end."""
    over, own = threading.Event(), Clock(os.getpid())

    def watch() -> None:
        # Later than it takes to notice another rank's, and what rank 0 may wait for one that is late.
        left = most = 1.5 * one.check.file_seconds + one.check.wait_seconds
        while not over.wait(left):
            left = most - own.seconds()
            if left <= 0:
                say(store, number, _no_end(one.check, 0, one.world))
                end(store, 0, 1)

    if one.rank == 0:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _hush() -> None:
    """What gloo writes on its way to an abort is no line for a reader; what Python writes still is."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _meet(one: _Place, where: str) -> None:
    """Wait until all ranks have come here."""
    one.store.set(f"{where}/{one.rank}", str(os.getpid()))
    one.store.wait([f"{where}/{rank}" for rank in range(one.world)], timedelta(seconds=STORE_SECONDS))


def _verdict(one: _Place, watched: AbstractContextManager) -> Verdict:
    """The verdict on a function with `world` ranks, the same on every rank; those above `world` only wait for it.

    Reports go through the store: it works whatever the reader's collectives have left behind.
    """
    if one.rank < one.world:
        _meet(one, "here")  # a rank that is late to start is none that the reader's code has lost
        dist.init_process_group(
            "gloo",
            store=one.group,
            rank=one.rank,
            world_size=one.world,
            timeout=timedelta(seconds=one.check.wait_seconds),
        )
        _meet(one, "joined")  # nor is one that the reader's code ends while another still connects to it
        with watched:
            report = _report(one)
        changed = one.kept.put_back()
        if changed:
            report = wrong(
                f"rank {one.rank}: your code replaces {', '.join(changed[:3])}: leave the libraries as they are",
                "replaced",
            )
        one.store.set(f"report/{one.rank}", _packed(report))
    verdict = _gather(one) if one.rank == 0 else None
    if verdict:
        one.store.set("verdict", pickle.dumps(verdict))
    else:
        one.store.wait(["verdict"], timedelta(seconds=STORE_SECONDS))
        verdict = pickle.loads(one.store.get("verdict"))
    if one.rank < one.world and verdict.slip != "no-end":
        with contextlib.suppress(Exception):  # the reader's code may have ended the group
            dist.destroy_process_group()
    return verdict


def _report(one: _Place) -> object:
    """What `own` says of the reader's function, or what its code raised."""
    mine, own = os.getpid(), Clock()
    try:
        with one.check.around():
            try:
                function = load(one.path, one.check.function)
            except ValueError as error:
                return wrong(str(error), UNREAD)
            return one.check.own(function, one.rank, one.world)
    except BaseException as error:  # the reader's code: one line says what happened
        known = one.check.explain(error)
        if known:
            return Verdict(False, f"rank {one.rank}: {known.message}", known.slip)
        if any(mark in line(error, 10**6) for mark in LOST):
            return wrong(
                f"rank {one.rank} of {one.world} waited for another rank that never came, for "
                f"{one.check.wait_seconds:g} s: a deadlock, or a busy machine. Does every rank make the same "
                "calls in the same order, and start its receive before it waits for its send?",
                "late" if own.busy() > one.check.wait_seconds / 2 else "deadlock",
            )
        return wrong(f"rank {one.rank}: {line(error)}", "exception")
    finally:
        if os.getpid() != mine:  # a copy that the reader's code has forked
            os._exit(0)


def _packed(report: object) -> bytes:
    try:
        return pickle.dumps(report)
    except Exception as error:  # a reader's object among what was returned
        return pickle.dumps(wrong(f"what your function returns cannot be sent to rank 0: {line(error)}", "exception"))


def _gather(one: _Place) -> Verdict:
    """What is to be said of all ranks' reports. Those without an end have none to give: each of them has had its time,
    which one that waits for a late one has not."""
    clocks = [Clock(int(one.store.get(f"here/{rank}"))) for rank in range(one.world)]
    while left := [rank for rank in range(one.world) if not one.store.check([f"report/{rank}"])]:
        if min(clocks[rank].seconds() for rank in left) > one.check.file_seconds:
            return _no_end(one.check, left[0], one.world)
        time.sleep(0.01)
    reports = [pickle.loads(one.store.get(f"report/{rank}")) for rank in range(one.world)]
    found = [report for report in reports if isinstance(report, Verdict) and not report.ok]
    if not found:
        verdict = one.check.judge(reports, one.world)
        last = verdict.ok and one.world == one.check.worlds[-1]
        return Verdict(True, one.check.right) if last and one.check.right else verdict
    # A deadlock or an exception last: what fails on one rank often follows from what is wrong on another. A rank that
    # was lost while it still computed may only have been late.
    last = ("exception", "late", "deadlock")
    return min(found, key=lambda one: last.index(one.slip) + 1 if one.slip in last else 0)
