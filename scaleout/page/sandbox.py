"""Run `live.call` in a process of its own, where the reader's code can loop, exit or fill memory.

Only what the code gives comes back, as JSON; it is judged here, where the code never ran. This guards the notebook
against accidents, not against an attacker: the code is the reader's own, on their own machine. In the published page
the same part is played by a Web Worker that the page can end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from scaleout.page import live

MEMORY_BYTES = 2**30  # of address space, where the system can limit it (Linux)
ANSWER_BYTES = 2**24  # of what the process may write to any file, its answer too

# -I: nothing of the reader's folder, environment or site is imported by accident.
_CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from scaleout.page.sandbox import main; main()"
_ROOT = str(Path(__file__).resolve().parents[2])


def call(method: str, args: dict, seconds: float) -> dict:
    """`live.call(method, args)` within `seconds` of wall clock and MEMORY_BYTES.

    Returns what it returns. When the process does not come to its end: for "check" a verdict whose slip is
    "endless-loop", "memory", "exit" or "crash", for other methods {"error": one line}.
    """
    if method != "check":
        return _run(method, args, seconds)
    outcome = _run("run", args, seconds)
    if "error" in outcome:
        return {"error": str(outcome["error"])}
    named = {name: args[name] for name in ("stem", "key")}
    return live.call("judge", {**named, "outcome": outcome})


def _run(method: str, args: dict, seconds: float) -> dict:
    with tempfile.TemporaryFile() as answer:  # not a pipe: what is written without end stays out of this process
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _CHILD, _ROOT], stdin=subprocess.PIPE, stdout=answer,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            process.communicate(json.dumps([method, args]).encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            # The page's own words, with the limit that held here.
            words = live.STOPPED.replace(f"{live.LEARNER_SECONDS} seconds", f"{seconds:g} seconds")
            return _stopped(method, "endless-loop", words)
        answer.seek(0)
        try:
            given = json.loads(answer.read(ANSWER_BYTES))
        except (ValueError, RecursionError):
            given = None
    return given if isinstance(given, dict) else _stopped(method, *_why(process.returncode))


def _end(process: subprocess.Popen) -> None:
    """End the process and whatever it started, and wait until it is gone."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)  # its own group; not yet waited for, so the id is its own
    else:
        process.kill()
    process.communicate()


def _why(code: int) -> tuple[str, str]:
    if code == -9:  # SIGKILL, by its number because Windows has no such name
        return "memory", "The system ended your code: most likely it filled the memory."
    if code < 0:
        return "crash", f"Python itself crashed (signal {-code}). Very deep recursion can do that."
    return "exit", "Your code ended Python before the function gave a value: return the value instead."


def _stopped(method: str, slip: str, message: str) -> dict:
    return {"stopped": message, "slip": slip} if method == "run" else {"error": message}


def main() -> None:
    """The child: one call from standard input, its answer on standard output, and nothing else there."""
    method, args = json.load(sys.stdin)
    answers = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    _limit()
    try:
        answer = live.call(method, args)
    except BaseException as error:  # KeyboardInterrupt, raised by the reader's own code
        answer = _stopped(method, "exit", f"{type(error).__name__}: your code ended Python. Return the "
                                          f"value instead.")
    with os.fdopen(answers, "w", encoding="utf-8") as out:
        json.dump(answer, out)
    os._exit(0)  # threads that the reader's code left behind do not keep the answer waiting


def _limit() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (ANSWER_BYTES, ANSWER_BYTES))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):
        pass  # Windows has no such limit and macOS refuses this one: the time limit remains
