"""The folder of a run: one job writes in it at a time, and the next one is told which. Standard library only."""

import errno
import json
import os
import socket
import time
from pathlib import Path

from scaleout.records import provenance

LOCK = "lock"  # who writes here, as JSON; locked as long as they do
SHOWN = 300  # characters, at most, of what somebody left in the lock
FACTS = ("host", "pid", "started", "command")
LAUNCHER = "launcher"  # beside FACTS: the process of torchrun's agent, where one started this process


def claim(folder, files=(), patience_s=5.0):
    """An open file whose lock says that this process's job writes in `folder`; the end of the process frees it.

    The folder is made. files: names in it that the job will write. ValueError, one line: another job has the folder for
    longer than patience_s, which a killed one may take to end (the line names its process); or nothing can be written.
    Where a machine or a file system knows no locks nobody is kept out, and the file comes back all the same.
    """
    path, end = Path(folder) / LOCK, time.monotonic() + patience_s
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for name in (LOCK, *files):
            if (path.parent / name).exists() and not (path.parent / name).is_file():
                raise ValueError(f"{path.parent / name} is no file: remove it, or use another --folder")
        handle = path.open("a+", encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValueError(
            f"--folder {folder}: cannot be written ({error.strerror}: {error.filename}): choose a folder "
            "you may write to"
        ) from None
    while not _locked(handle):
        if time.monotonic() > end:
            with handle:
                raise ValueError(f"another job writes in {folder}{_holder(handle)}, or use another --folder")
        time.sleep(0.1)
    try:
        _sign(handle)
    except OSError as error:
        handle.close()
        raise ValueError(
            f"--folder {folder}: cannot be written ({error.strerror}): make room, or choose another"
        ) from None
    return handle


def _locked(handle):
    """False where another process has the lock."""
    try:
        import fcntl  # not on Windows

        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        return True
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True


def _sign(handle):
    """Write who has the lock; on other machines too it can be read from now on."""
    time_words = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    handle.truncate(0)
    facts = dict(zip(FACTS, (socket.gethostname(), os.getpid(), time_words, provenance.command_line()), strict=True))
    launcher = {LAUNCHER: os.getppid()} if "TORCHELASTIC_RUN_ID" in os.environ else {}
    handle.write(json.dumps(facts | launcher) + "\n")
    handle.flush()
    os.fsync(handle.fileno())


def _holder(handle):
    """Words on who has the lock, as far as the file tells, and on what to do about it:
    " (process 7 on host a since ...: python labs/x.py): wait for its end"."""
    try:
        handle.seek(0)
        facts = json.loads(handle.read(1 << 16))
        host, pid, started, command = (str(facts[name]) for name in FACTS)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return f" ({handle.name} does not say which): wait for its end"
    words = provenance.printable(f"process {pid} on {host} since {started}: {command}")
    words = f" ({words if len(words) <= SHOWN else words[:SHOWN] + '...'})"
    if host == socket.gethostname() and _orphan(facts["pid"], facts.get(LAUNCHER)):
        return f"{words}, and its launcher, process {facts[LAUNCHER]}, is gone: kill {pid} lets it save and end"
    return f"{words}: wait for its end"


def _orphan(pid, launcher):
    """Whether a process of this machine has lost the launcher that it began with: the system gave it another parent."""
    if type(pid) is not int or type(launcher) is not int:
        return False
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) != launcher
    except (OSError, ValueError, IndexError):  # gone, or no Linux
        return False


def signed(handle):
    """What `claim` wrote (str), read by its own handle: another one, when this process closes it, frees the lock."""
    handle.seek(0)
    return handle.read()


def shared(folder, written, patience_s=60.0):
    """Whether this machine has rank 0's folder: the `signature` in it becomes the `written` one, that is `signed`.

    Not for rank 0 itself, whose lock that would free. A network file system may take half a minute to see what another
    machine has made.
    """
    end = time.monotonic() + patience_s
    while signature(folder) != written:
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def signature(folder):
    """What rank 0 wrote as it claimed the folder (str), as this machine sees it; "" where it sees none."""
    try:
        return (Path(folder) / LOCK).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
