"""A Python that has torch already: what it is given to run begins in hundredths of a second.

Nearly all that a launcher costs before its ranks work is torch being imported, by torchrun and by every rank. So a run
of the tests has a server that imports torch once, and `folder()` has a python, a torchrun and an accelerate that
ask it for a fork. The fork is as clean as a new Python: environment, arguments, files, signals and processors are its
own. Who started it sees a process like any other, which passes signals on, ends as the fork ends, and takes it along
when it is killed. So torchrun is torchrun, with its restarts and reports; only its imports were made before.

What such a fork cannot show, a lab that forgets an import, a bare one shows: its server has imported `torch` alone.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import repo

OPTIONS = ("-m", "-c", "-u")  # of Python, that a fork understands; with any other a new Python is started

CLIENT = """#!{python} -ISs
import contextlib, json, os, select, signal, socket, sys

words = {before!r} + sys.argv[1:]
if not words or words[0].startswith("-") and words[0] not in {options!r}:
    os.execv({python!r}, [{python!r}, *words])
passed = [number for number in {signals!r} if signal.getsignal(number) is not signal.SIG_IGN]
signal.pthread_sigmask(signal.SIG_BLOCK, passed)
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
request = dict(words=words, environment=dict(os.environ), folder=os.getcwd(), client=os.getpid(), stands=True)
socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
pid = int(server.recv(99))
heard, wake = socket.socketpair()
wake.setblocking(False)
signal.set_wakeup_fd(wake.fileno())     # a handler of Python's own would not run while recv waits
for number in passed:
    signal.signal(number, lambda *_: None)
signal.pthread_sigmask(signal.SIG_UNBLOCK, passed)
while server not in select.select([server, heard], [], [])[0]:
    with contextlib.suppress(ProcessLookupError):
        for number in heard.recv(99):
            os.kill(pid, number)
code = os.waitstatus_to_exitcode(int(server.recv(99)))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
REAL = os.environ.setdefault("READY_REAL", sys.executable)  # in a fork that is the one below
SERVER = Path(__file__).with_name("ready_server.py")
SIGNALS = [
    int(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
]


@functools.cache
def folder(bare=False):
    """The folder of python, python3, torchrun and accelerate (Path); their server has been started.

    READY names that of another process, as pytest's workers have it from the one that started them.
    """
    if os.environ.get("READY") and not bare:
        return Path(os.environ["READY"])
    made = Path(tempfile.mkdtemp(prefix="ready-"))
    for name, before in {
        "python": [],
        "python3": [],
        "torchrun": ["-m", "torch.distributed.run"],
        "accelerate": ["-m", "accelerate.commands.accelerate_cli"],
    }.items():
        (made / name).write_text(
            CLIENT.format(python=REAL, before=before, options=OPTIONS, signals=SIGNALS, address=str(made / "server"))
        )
        (made / name).chmod(stat.S_IRWXU)
    given = os.environ | {"PYTHONPATH": str(SERVER.parents[2])}  # this tree's package, whichever is installed
    given |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # torch reads these when it is loaded
    names = ["torch"] if bare else []
    server = subprocess.Popen(
        [REAL, SERVER, made, *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=given, cwd="/"
    )
    assert server.stdout.readline() == "ready\n"

    @atexit.register
    def end():
        server.stdin.close()
        server.wait()
        shutil.rmtree(made)

    return made


def python():
    """The path of the python (str)."""
    return str(folder() / "python")


def process_of(pid):
    """The fork (its number) for which the process `pid` stands; `pid` itself where that is no such process."""
    found = folder() / str(pid)
    return int(found.read_text()) if found.exists() else pid


class Process:
    """One fork that this process asks for itself: its standard output goes to PATH.out, its standard error to PATH.err.

    words: as Python takes them. It is run in the repository's folder.
    """

    def __init__(self, words, environment, path):
        request = {
            "words": [str(word) for word in words],
            "environment": environment,
            "folder": str(repo.ROOT),
            "client": os.getpid(),
            "stands": False,
        }
        self.line, self.code = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), None
        self.line.connect(str(folder() / "server"))
        with contextlib.ExitStack() as stack:
            files = [
                stack.enter_context(Path(name).open(how))
                for name, how in ((os.devnull, "rb"), (f"{path}.out", "wb"), (f"{path}.err", "wb"))
            ]
            socket.send_fds(self.line, [json.dumps(request).encode()], [file.fileno() for file in files])
        self.pid = int(self.line.recv(99))

    def fileno(self):
        """Something can be read from it once the process has ended."""
        return self.line.fileno()

    def wait(self):
        """Its exit code, as subprocess.Popen has it, once it has ended."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(int(self.line.recv(99)))
        return self.code

    def poll(self):
        """Its exit code, or None while it runs."""
        return self.wait() if self.code is not None or select.select([self], [], [], 0)[0] else None

    returncode = property(poll)

    def send(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and the server has not said so yet
                os.kill(self.pid, number)

    def terminate(self):
        self.send(signal.SIGTERM)

    def kill(self):
        self.send(signal.SIGKILL)
