"""The server behind ready.py: it imports torch once, and each fork of it becomes the process that was asked for.

ready_server.py FOLDER [MODULE ...]: what it imports, in place of all that labs need.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import importlib.util
import io
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
import types
import weakref
from pathlib import Path

# Torch, and what it would import at the first step, checkpoint or profile of every rank, and for a launcher.
PRELOAD = [
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.tensor.debug",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed._tools",
    "torch.profiler",
    "torch.utils.flop_counter",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    "torch.distributed.launcher.api",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "torch._functorch.partitioners",
    "functorch.compile",
    "matplotlib.figure",
]
# Of the package the rooms beneath the labs: what those import reads, as it is loaded, what kind of script it serves.
ROOMS = (
    "collectives",
    "draw",
    "exercises",
    "memory",
    "numerics",
    "parallel",
    "records",
    "spec",
    "timing",
    "views",
    "writeup",
)
INLINE = "module://matplotlib_inline.backend_inline"
NET = 0x40000000  # CLONE_NEWNET of setns(2)


class Server:
    """Forks for whoever asks, until this process's stdin is closed."""

    def __init__(self, place, *names):
        for name in names or [*PRELOAD, *rooms()]:
            importlib.import_module(name)
        leave_the_ends_to_the_server()
        name_methods_by_their_frames()
        wake_in_turn()
        gc.collect()
        gc.freeze()  # what is there now is shared by all forks
        self.place, self.jobs, self.selector = place, {}, selectors.DefaultSelector()
        self.asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.asked.bind(str(place / "server"))
        self.asked.listen(64)
        ended, wake = socket.socketpair()
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for file, work in ((self.asked, self.fork), (ended, self.reap), (sys.stdin, sys.exit)):
            self.selector.register(file, selectors.EVENT_READ, work)
        self.ended, self.wake = ended, wake

    def run(self):
        print("ready", flush=True)
        while True:
            for key, _ in self.selector.select():
                key.data()

    def fork(self):
        """One process more."""
        line, _ = self.asked.accept()
        words, files, *_ = socket.recv_fds(line, 1 << 20, 3)
        if not words:  # it was killed before it could ask
            return
        request = json.loads(words)
        pid = os.fork()
        if pid == 0:
            begin(self.place, files, **request)
        for file in files:
            os.close(file)
        self.jobs[pid] = line
        self.selector.register(line, selectors.EVENT_READ, functools.partial(self.kill, pid))
        tell(line, pid)

    def kill(self, pid):
        """Whoever asked for it is gone."""
        if pid in self.jobs:
            self.selector.unregister(self.jobs[pid])
            os.kill(pid, signal.SIGKILL)

    def reap(self):
        """Tell those who asked how their forks have ended."""
        self.ended.recv(4096)
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                line = self.jobs.pop(found[0])
                with contextlib.suppress(KeyError):
                    self.selector.unregister(line)
                tell(line, found[1])
                line.close()


def rooms():
    """Names of all modules of ROOMS but those that are commands, and checkers that ranks run."""
    package = Path(importlib.util.find_spec("scaleout").origin).parent
    for path in sorted(file for room in ROOMS for file in (package / room).rglob("*.py")):
        if path.stem not in ("__init__", "__main__", "ranks") and path.parent.name != "ranks":
            yield ".".join(path.relative_to(package.parent).with_suffix("").parts)


def leave_the_ends_to_the_server():
    """What torch registered to be done as this process ends is of no use to a fork, and takes it 70 ms."""
    if "torch._dynamo.utils" in sys.modules:
        atexit.unregister(sys.modules["torch._dynamo.utils"].dump_compile_times)
    for one in weakref.finalize._registry.values():
        one.atexit = False


def name_methods_by_their_frames():
    """A launcher's log names the method that writes it, for which torch reads the source around every frame: a
    fourteenth of all that a launch computes."""
    if (module := sys.modules.get("torch.distributed.elastic.rendezvous.dynamic_rendezvous")) is not None:
        module.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name


def wake_in_turn():
    """A message wakes the thread of gloo that receives it, which by itself takes the processor from the rank that
    sends the next, and often enough only to wait for it. As a batch they take turns: half the time of a small sum."""
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def tell(line, number):
    with contextlib.suppress(OSError):
        line.send(str(number).encode())


# --- the fork -----------------------------------------------------------------------------------------------


def begin(place, files, words, environment, folder, client, stands):
    """Become the process that was asked for, from its first line to its end."""
    if stands:  # the one who asks is there for nothing else
        (place / str(client)).write_text(str(os.getpid()))
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the server's: its clients, and what others write to, whose
    # readers wait until the last process has closed it
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # else the server's
    backend = INLINE if "ipykernel_launcher" in words else environment.get("MPLBACKEND")
    if backend:  # else read as matplotlib is loaded
        sys.modules["matplotlib"].rcParams["backend"] = backend
    try:
        settle(client)
    except (ProcessLookupError, FileNotFoundError):  # whoever asked was killed meanwhile: nobody to say it to
        os._exit(1)
    os.chdir(folder)
    through = words[0] == "-u" or bool(environment.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = stream(1, write_through=through)
    sys.stderr = sys.__stderr__ = stream(2, write_through=through, line_buffering=True, errors="backslashreplace")
    sys.executable = str(place / "python")
    if environment.get("READY_LIMIT_S"):
        faulthandler.dump_traceback_later(float(environment["READY_LIMIT_S"]))
    end(ran(words[1:] if words[0] == "-u" else words))


def stream(number, write_through, **how):
    """write_through: nothing waits in a buffer, so that a process that breaks off has said all."""
    file = os.fdopen(number, "wb", buffering=0 if write_through else -1, closefd=False)
    return io.TextIOWrapper(file, encoding="utf-8", write_through=write_through, **how)


def settle(client):
    """What else a process has from the one that started it: its processors, its network and its threads."""
    import torch

    os.sched_setaffinity(0, os.sched_getaffinity(client))
    here, there = Path("/proc/self/ns/net"), Path(f"/proc/{client}/ns/net")
    if here.readlink() != there.readlink():
        with there.open() as network:
            assert ctypes.CDLL(None).setns(network.fileno(), NET) == 0, "no way into the network of the one who asks"
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))


def ran(words):
    """Do what Python does with these words; its exit code, or minus SIGINT."""
    name, rest = words[0], words[1:]
    first = {"-c": "", "-m": str(Path.cwd())}.get(name, str(Path(name).resolve().parent))
    sys.path[0:1] = [first, *(path for path in os.environ.get("PYTHONPATH", "").split(":") if path)]
    try:
        if name == "-c":
            sys.argv = ["-c", *rest[1:]]
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(compile(rest[0], "<string>", "exec"), main.__dict__)
        elif name == "-m":
            sys.argv = rest
            sys.modules.pop(rest[0], None)
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            runpy.run_path(str(Path(name).absolute()), run_name="__main__")
    except SystemExit as stop:
        if isinstance(stop.code, int | None):
            return stop.code or 0
        print(stop.code, file=sys.stderr)  # words are printed, and end with 1
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def end(code):
    """What Python does before it ends."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code & 255)


if __name__ == "__main__":
    Server(Path(sys.argv[1]), *sys.argv[2:]).run()
