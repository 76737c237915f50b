"""What the checkers of lab exercises share: they run a reader's file on several real processes, and judge it.

A `Check` says which function a file has to hold, on how many processes it runs, what each of them reports, and
what is to be said of the reports. `main(check)` is the command of its module. It starts the processes, unless
torchrun has; takes one file or several and prints one line for each. Exit code 0 when all are right, 1 when one
is not, 2 when it could not be checked.
"""

from __future__ import annotations

import os
import pickle
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from scaleout.exercises.engine import Verdict

LOST = ("Timed out waiting", "timed out", "Connection closed", "Connection reset", "Broken pipe", "Application timeout")
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
    file_seconds: float = 40  # for one file on one number of processes
    explain: Callable[[Exception], Verdict | None] = lambda error: None  # what an exception of the reader's code means


def wrong(words: str, slip: str) -> Verdict:
    """What a rank reports when it knows what is wrong."""
    return Verdict(False, words, slip)


def load(path: str, name: str) -> Callable:
    """The function `name` of a reader's file. Raises ValueError, in one line, where there is none."""
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}: save your {name} in it")
    try:
        function = runpy.run_path(path).get(name)
    except SyntaxError as error:
        raise ValueError(f"{path}, line {error.lineno}: {error.msg}") from None
    except Exception as error:  # a reader's import that fails, or whatever else stands in the file
        raise ValueError(f"{path}: {type(error).__name__}: {' '.join(str(error).split())}") from None
    if not callable(function):
        raise ValueError(f"{path} has no function {name}")
    return function


def main(check: Check) -> None:
    """The command: files are the arguments."""
    files = sys.argv[1:]
    if not files:
        print(f"say which file holds your {check.function}: python -m {check.module} {check.function}.py",
              file=sys.stderr)  # fmt: skip
        sys.exit(2)
    try:
        if "RANK" in os.environ:
            _rank(check, files)
        for path in files:
            load(path, check.function)
    except ValueError as error:
        if os.environ.get("RANK", "0") == "0":
            print(error, file=sys.stderr)
        sys.exit(2)
    sys.exit(_launch(check, files))


def _launch(check: Check, files: list[str]) -> int:
    """Check all files; the highest exit code. Where a rank is lost, new ones go on with the files that are left."""
    code = 0
    while files:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        ranks = _start(check, files, store.port)
        try:
            ended = _wait(ranks, 20 + 2 * check.file_seconds * len(check.worlds) * len(files))
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        told = store.add("told", 0)
        if not told:  # whatever ended it, it was this file
            ended = ended or _lost(0, ranks[0].returncode)
        if ended and told < len(files):
            _tell(store, files[told], ended)
        files, code = files[store.add("told", 0):], max(code, store.add("wrong", 0) and 1)
    return code


def _start(check: Check, files: list[str], port: int) -> list[subprocess.Popen]:
    world = max(check.worlds)
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1",
           "TORCH_CPP_LOG_LEVEL": "FATAL"}  # fmt: skip
    command = [sys.executable, "-m", check.module, *files]
    return [subprocess.Popen(command, env={**os.environ, **job, "RANK": str(rank)})
            for rank in range(world)]  # fmt: skip


def _wait(ranks: list[subprocess.Popen], seconds: float) -> Verdict | None:
    """Until rank 0, which speaks for all, has ended; a verdict when a rank was lost before."""
    end = time.monotonic() + seconds
    while ranks[0].poll() is None:
        for rank, process in enumerate(ranks):
            if process.poll() not in (None, 0, 1):
                return _lost(rank, process.returncode)
        if time.monotonic() > end:
            return wrong(f"stopped after {seconds:.0f} s: rank 0 did not come to its end", "no-end")
        time.sleep(0.02)
    return None if ranks[0].returncode in (0, 1) else _lost(0, ranks[0].returncode)


def _tell(store, path: str, verdict: Verdict) -> None:
    """The line on one file; the launcher reads off the store how many have been told, and how many were wrong."""
    print(f"{Path(path).name}: {'' if verdict.ok else f'not yet ({verdict.slip}): '}{verdict.message}", flush=True)
    store.add("told", 1)
    if not verdict.ok:
        store.add("wrong", 1)


def _no_end(check: Check, rank: int, world: int) -> Verdict:
    return wrong(f"rank {rank} of {world} did not come to its end within {check.file_seconds:g} s: look for a loop "
                 "without end", "no-end")  # fmt: skip


def _lost(rank: int, code: int) -> Verdict:
    """What ended a process. gloo ends its own with SIGABRT when a message is longer than its receiver expects."""
    if code == -signal.SIGABRT:
        return wrong(f"rank {rank} was ended by gloo: a message was longer than what its receiver had ready. Does "
                     "every rank receive the part that its neighbour sends, and is the neighbour taken modulo the "
                     "number of ranks?", "mismatch")  # fmt: skip
    how = f"was ended by signal {-code}" if code < 0 else f"ended Python (exit code {code}): return instead"
    return wrong(f"rank {rank} {how}", "died")


def _rank(check: Check, files: list[str]) -> NoReturn:
    """One of the processes: every file, on every number of processes until one is wrong."""
    rank, started = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if started < max(check.worlds):
        raise ValueError(f"this exercise is for {max(check.worlds)} processes, not {started}")
    torch.set_num_threads(1)
    _hush()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                          timeout=timedelta(seconds=STORE_SECONDS))  # fmt: skip
    wrongs = 0
    for number, path in enumerate(files):
        function = load(path, check.function)
        for world in check.worlds:
            place = dist.PrefixStore(f"{number}/{world}", store)
            with _watched(check, rank, world, store, path):
                verdict = _verdict(check, function, rank, world, place)
            if not verdict.ok:
                break
        if rank == 0:
            _tell(store, path, verdict)
        wrongs += not verdict.ok
        if verdict.slip == "no-end":  # the rank that is still in there cannot take part in the next file
            break
    sys.stderr.flush()
    os._exit(min(wrongs, 1))  # threads that the reader's code left behind do not keep anybody waiting


@contextmanager
def _watched(check: Check, rank: int, world: int, store, path: str):
    """A clock beside rank 0, which could not speak of itself from inside a loop without end."""
    def stuck() -> None:
        _tell(store, path, _no_end(check, 0, world))
        os._exit(1)

    # Later than it takes to notice another rank's.
    clock = threading.Timer(1.5 * check.file_seconds, stuck)
    clock.daemon = True
    if rank == 0:
        clock.start()
    try:
        yield
    finally:
        clock.cancel()


def _hush() -> None:
    """What gloo writes on its way to an abort is no line for a reader; what Python writes still is."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _verdict(check: Check, function: Callable, rank: int, world: int, store) -> Verdict:
    """The verdict on a function with `world` ranks, the same on every rank; those above `world` only wait for it.

    Reports go through the store: it works whatever the reader's collectives have left behind.
    """
    if rank < world:
        dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=world,
                                timeout=timedelta(seconds=check.wait_seconds))  # fmt: skip
        store.set(f"report/{rank}", pickle.dumps(_report(check, function, rank, world)))
    if rank == 0:
        store.set("verdict", pickle.dumps(_gather(check, world, store)))
    store.wait(["verdict"], timedelta(seconds=STORE_SECONDS))
    verdict = pickle.loads(store.get("verdict"))
    if rank < world and verdict.slip != "no-end":
        dist.destroy_process_group()
    return verdict


def _report(check: Check, function: Callable, rank: int, world: int) -> object:
    try:
        return check.own(function, rank, world)
    except (Exception, SystemExit) as error:  # the reader's code: one line says what happened
        words = " ".join(str(error).split())
        known = check.explain(error)
        if known:
            return Verdict(False, f"rank {rank}: {known.message}", known.slip)
        if any(mark in words for mark in LOST):
            return wrong(f"rank {rank} of {world} waited for another rank that never came, for "
                         f"{check.wait_seconds:g} s: "
                         "a deadlock. Does every rank make the same calls in the same order, and start its receive "
                         "before it waits for its send?", "deadlock")  # fmt: skip
        return wrong(f"rank {rank}: {type(error).__name__}: {words}", "exception")


def _gather(check: Check, world: int, store) -> Verdict:
    """What is to be said of all ranks' reports. Every rank has the same time; one without an end has none to give."""
    end, reports = time.monotonic() + check.file_seconds, []
    for rank in range(world):
        try:
            store.wait([f"report/{rank}"], timedelta(seconds=max(0.1, end - time.monotonic())))
        except Exception:  # the store's own kind of time-out
            return _no_end(check, rank, world)
        reports.append(pickle.loads(store.get(f"report/{rank}")))
    found = [one for one in reports if isinstance(one, Verdict) and not one.ok]
    if not found:
        verdict = check.judge(reports, world)
        last = verdict.ok and world == check.worlds[-1]
        return Verdict(True, check.right) if last and check.right else verdict
    # A deadlock or an exception last: what fails on one rank often follows from what is wrong on another.
    return min(found, key=lambda one: ("exception", "deadlock").index(one.slip) + 1
               if one.slip in ("exception", "deadlock") else 0)  # fmt: skip
