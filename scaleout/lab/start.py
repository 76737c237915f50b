"""The start of a lab, before torch is imported: Ctrl-C prints one line, and a failed print cannot end a run.

Standard library only. A lab imports this module before all else.
"""

import ctypes
import gc
import io
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from scaleout.lab import leash

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of mallopt, in glibc's malloc.h


def name():
    """The script as its messages call it: "labs/capstone.py"."""
    script = Path(sys.argv[0])
    return f"{script.parent.name or '.'}/{script.name}"


class _Screen(io.FileIO):
    """Standard output whose reader may go away (`| head`), or whose disk may fill up: the run goes on without it."""

    def write(self, data):
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)
        except OSError as error:
            if not self.closed:
                say(f"what it prints is lost ({error.strerror.lower()}); the run goes on")
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def say(line):
    """One line on standard error, where there is one."""
    with suppress(OSError):
        os.write(2, f"{name()}: {line}\n".encode(errors="replace"))


def begin():
    """The imports are done: Ctrl-C is a KeyboardInterrupt from here on, no screen and no display end the run, and a
    lab that another lab has started ends with that one."""
    leash.follow()
    if signal.getsignal(signal.SIGINT) is stopped:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if SCRIPT:  # and no notebook, which shows figures by it
        os.environ.pop("MPLBACKEND", None)  # figures are files; a name unknown here would end the run
        if not os.environ.get("SOURCE_DATE_EPOCH", "0").isdecimal():
            del os.environ["SOURCE_DATE_EPOCH"]  # matplotlib reads it as a figure is saved, and ends the run
        gc.freeze()  # modules stay: no collection has to walk them
        gc.enable()
    screen()


def screen():
    """Let standard output take every text: what its encoding lacks becomes "?", and its end is not the run's."""
    stream = sys.stdout
    if stream is None or stream is not sys.__stdout__ or not hasattr(stream, "reconfigure"):
        return  # a test's, or a notebook's
    if isinstance(getattr(stream.buffer, "raw", None), _Screen):
        return
    stream.flush()
    raw = _Screen(stream.fileno(), "w", closefd=False)
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=stream.encoding, errors="replace", line_buffering=stream.line_buffering
    )
    sys.stderr.reconfigure(errors="replace")


def keep_memory():
    """Let the C library keep what is freed, as torch's allocator does on a GPU. glibc would give large blocks back to
    the system, which fills the next ones with zeros page by page: up to a third of a small step on a CPU, none of it
    arithmetic. Another C library does as it always does."""
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, -1)  # the end of the heap is never given back
        mallopt(M_MMAP_MAX, 0)  # and no block lies outside it


def stopped(*_):
    """Ctrl-C before the lab has begun: one line, on one rank."""
    if os.environ.get("RANK", "0") == "0":
        say("stopped")
    os._exit(130)


def streams():
    """Open a stream that the shell has closed (`2>&-`) on /dev/null; else the next file that is opened gets its number,
    and its lines."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
            setattr(sys, f"__{name}__", getattr(sys, name))


SCRIPT = Path(getattr(sys.modules["__main__"], "__file__", None) or "").parent.name == "labs"
if SCRIPT:
    streams()
    keep_memory()
    gc.disable()  # while modules come nothing goes: a fifth of their time
if SCRIPT and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, stopped)  # imports of torch take seconds
