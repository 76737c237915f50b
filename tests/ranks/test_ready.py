"""A Python that has torch already is a Python like any other: words, files, environment, signals, ends."""

import os
import signal
import subprocess
import time

import pytest
import ready
from lab_runs import ENVIRONMENT, ROOT, alive

WAITS = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
print("here", flush=True)
while True:
    time.sleep(0.05)  # a signal between the last look and a long sleep would not end that
"""


def ran(*words, **more):
    return subprocess.run([ready.python(), *words], text=True, capture_output=True, env=ENVIRONMENT, **more)


@pytest.mark.parametrize(
    "words",
    [
        ("-c", "import sys; print(sys.argv, __name__, sys.modules['__main__'].__name__, sys.path[0])", "a", "-b"),
        ("-c", "import sys; sys.exit('the end')"),
        ("-c", "import sys; sys.exit(3)"),
        ("-c", "import sys; sys.exit()"),
        ("-c", "raise KeyboardInterrupt"),
        ("-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"),
        ("-c", "import sys; print(sys.stdin.read().upper(), end='')"),
        ("-c", "print(1); 1 / 0"),
        ("-c", "import os; print(os.getcwd(), os.environ['OMP_NUM_THREADS'])"),
        ("-c", "import atexit, threading; atexit.register(print, 2); threading.Timer(0.1, print, [1]).start()"),
        ("-u", "-c", "import os; print('said'); os._exit(5)"),
        ("-c", "import torch; print(torch.get_num_threads())"),
        ("-m", "scaleout.timing.price", "--help"),
        ("labs/hang.py", "--nothing"),
        ("-V",),
        ("-",),
    ],
    ids=str,
)
def test_it_does_what_python_does(words, tmp_path):
    where = {"cwd": tmp_path if words[0] == "-c" else ROOT, "input": "print('typed')\n"}
    found, wanted = (
        ran(*words, **where),
        subprocess.run([ready.REAL, *words], text=True, capture_output=True, env=ENVIRONMENT, **where),
    )
    assert (found.returncode, found.stdout) == (wanted.returncode, wanted.stdout)
    assert found.stderr.splitlines()[-1:] == wanted.stderr.splitlines()[-1:]


@pytest.mark.parametrize(
    ("sign", "code"), [(signal.SIGUSR1, 7), (signal.SIGTERM, -15), (signal.SIGINT, -2), (signal.SIGKILL, -9)]
)
def test_a_signal_reaches_the_fork(sign, code):
    process = subprocess.Popen(
        [ready.python(), "-c", WAITS], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout.readline() == "here\n"
    fork = ready.process_of(process.pid)
    assert alive(fork) and fork != process.pid
    process.send_signal(sign)
    assert process.wait(60) == code
    end = time.monotonic() + 60
    while alive(fork) and time.monotonic() < end:
        time.sleep(0.01)
    assert not alive(fork)


def test_its_processors_are_those_of_who_starts_it():
    one = min(os.sched_getaffinity(0))
    found = ran("-c", "import os; print(os.sched_getaffinity(0))", preexec_fn=lambda: os.sched_setaffinity(0, {one}))
    assert found.stdout == f"{{{one}}}\n"


def test_torchrun_starts_ranks_again(tmp_path):
    (tmp_path / "job.py").write_text(
        "import os, sys\nturn = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print(os.environ['RANK'], turn, sys.executable, flush=True)\nsys.exit(turn == '0')\n"
    )
    done = subprocess.run(
        [
            ready.folder() / "torchrun",
            "--standalone",
            "--nproc-per-node",
            "2",
            "--max-restarts",
            "1",
            "--monitor-interval",
            "0.1",
            tmp_path / "job.py",
        ],
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    said = set(done.stdout.splitlines())
    assert {f"{rank} 1 {ready.python()}" for rank in (0, 1)} <= said
    assert said & {f"{rank} 0 {ready.python()}" for rank in (0, 1)}
