"""A function of the package in a process of its own, where a reader's code can loop, exit or fill memory.

Only what the function gives comes back, as JSON; it is judged in the process that asked, where the code never ran. This
guards a notebook against accidents, not against an attacker: the code is the reader's own, on their own machine. A
signal or a trace in the reader's own process would not do: code that catches everything, or that is in a loop of C,
does not end by them. In the published page, which has no processes, the same part is played by a Web Worker that the
page can end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from scaleout.exercises.engine.clock import Clock
from scaleout.spec import checks

MEMORY_BYTES = 2**30  # of address space, where the system can limit it (Linux)
ANSWER_BYTES = 2**24  # of what the process may write to any file, its answer too
POSSIBLE = sys.platform not in ("emscripten", "wasi")  # whether there are processes here

# -I: nothing of the reader's folder, environment or site is imported by accident.
_CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from scaleout.exercises.engine.apart import main; main()"
_ROOT = str(Path(__file__).resolve().parents[3])


class Ended(Exception):
    """The process did not come to its end. slip: "endless-loop", "memory", "exit" or "crash"; message: one line."""

    def __init__(self, slip: str, message: str) -> None:
        super().__init__(message)
        self.slip, self.message = slip, message


def call(door: str, args: dict, seconds: float) -> dict:
    """What a function that gives a dict, named "module:function", gives for these arguments within `seconds`, by the
    process's own clock, and MEMORY_BYTES. Raises Ended. On the way there and back it is JSON."""
    checks.above_0("seconds", seconds)
    with tempfile.TemporaryFile() as answer:  # not a pipe: what is written without end stays out of this process
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _CHILD, _ROOT],
            stdin=subprocess.PIPE,
            stdout=answer,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _wait(process, json.dumps([door, args]).encode(), seconds)
        except BaseException:  # also Ctrl-C in a notebook, of which the process knows nothing
            _end(process)
            raise
        answer.seek(0)
        try:
            reply = json.loads(answer.read(ANSWER_BYTES))
        except (ValueError, RecursionError):
            reply = None
    if not isinstance(reply, dict):
        raise Ended(*_reason(process.returncode))
    if isinstance(reply.get("ended"), str):
        raise Ended("exit", reply["ended"])
    return reply


def _wait(process: subprocess.Popen, request: bytes | None, seconds: float) -> None:
    """Give the process what is asked and wait until it has ended. Raises Ended once it has had `seconds`."""
    clock, remaining = Clock(process.pid), seconds
    while remaining > 0:
        try:
            process.communicate(request, timeout=remaining)
            return
        except subprocess.TimeoutExpired:
            request, remaining = None, seconds - clock.seconds()
    raise Ended(
        "endless-loop",
        f"Your code did not end within {seconds:g} s, and was stopped. Look for a loop whose "
        "condition never becomes false, or for a busy machine.",
    )


def _end(process: subprocess.Popen) -> None:
    """End the process and whatever it started, and wait until it is gone."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)  # its own group; not yet waited for, so the id is its own
    else:
        process.kill()
    process.communicate()


def _reason(code: int) -> tuple[str, str]:
    if code == -9:  # SIGKILL, by its number because Windows has no such name
        return "memory", "The system ended your code: most likely it filled the memory."
    if code < 0:
        return "crash", f"Python itself crashed (signal {-code}). Very deep recursion can do that."
    return "exit", "Your code ended Python before the function gave a value: return the value instead."


def main() -> None:
    """The child: one call from standard input, its answer on standard output, and nothing else there."""
    door, args = json.load(sys.stdin)
    module, _, name = door.partition(":")
    answers = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    function = getattr(import_module(module), name)
    _limit()
    try:
        answer = function(**args)
    except BaseException as error:  # KeyboardInterrupt, raised by the reader's own code
        answer = {"ended": f"{type(error).__name__}: your code ended Python. Return the value instead."}
    with os.fdopen(answers, "w", encoding="utf-8") as stream:
        json.dump(answer, stream)
    os._exit(0)  # threads that the reader's code left behind do not keep the answer waiting


def _limit() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (ANSWER_BYTES, ANSWER_BYTES))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):
        pass  # Windows has no such limit and macOS refuses this one: the time limit remains
