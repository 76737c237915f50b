"""A job that ends when its starter ends, for whatever reason, so that no process is left. Standard library only.

The starter holds one end of a named pipe, each process of the job the other. The system closes the starter's end when
it is gone, after SIGKILL too, and each process ends. Names of processes, of which some are not yet born, do not count.
`launch.ranks` holds one for every job that a lab starts, and each lab follows it once its imports are done.
"""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

NAME = "LAB_LEASH"  # the environment variable with the path of the pipe


class Leash:
    """The starter's end: `Leash(path)` before the job starts, `end()` to end it."""

    def __init__(self, path):
        """Makes the named pipe `path`."""
        self.path = Path(path)
        os.mkfifo(self.path)
        reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)  # else opening the other end waits for one
        self.held = os.open(self.path, os.O_WRONLY)
        os.close(reader)

    def end(self, seconds=10.0):
        """Let go, and wait until no process holds the other end; True then, False after so many seconds."""
        os.close(self.held)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                os.close(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:  # nobody reads
                return True
            time.sleep(0.02)
        return False


def leave_none(path, seconds=10.0):
    """End by SIGKILL whatever was started with the pipe `path` in its environment, and wait until it is gone, so long
    at most: a process that stands still in a kernel or a driver follows nothing, nor does one that still imports torch.
    Linux only."""
    end = time.monotonic() + seconds
    while (pids := _followers(path)) and time.monotonic() < end:
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _followers(path):
    """Processes (list of int) that have the pipe in the environment which they were started with."""
    pids = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{NAME}={path}".encode() in environment.read_bytes().split(b"\0"):
                pids.append(int(environment.parent.name))
    return pids


def follow():
    """End this process (exit code 1) when the starter that made the pipe in NAME is gone, or when it is gone already.

    Nothing where nobody made one. Processes that this one starts are not told of the pipe.
    """
    path = os.environ.pop(NAME, None)
    if path is None:
        return
    try:
        mine = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        os._exit(1)
    os.set_blocking(mine, True)
    threading.Thread(target=_wait, args=(mine,), daemon=True).start()


def _wait(mine):
    with suppress(OSError):
        while os.read(mine, 1):
            pass
    os._exit(1)
