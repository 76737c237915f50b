"""What starts processes of its own ends them with itself, whatever ends it, and leaves no folder behind."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from lab_runs import ENVIRONMENT, ROOT, alive

from scaleout.lab import launch

LONG = ["--layers", "1", "--hidden", "32", "--heads", "2", "--seq", "16", "--steps", "1000000"]
SCALING = ["labs/scaling.py", "--worlds", "1,2", "--mode", "weak", "--strategies", "ddp", "--seconds", "0", *LONG]
ENDLESS = "the path of a file without an end"


@pytest.fixture
def endless(tmp_path_factory):
    """A reader's file that does not come to its end."""
    path = tmp_path_factory.mktemp("reader") / "mine.py"
    path.write_text("def train_step(*_, **__):\n    while True:\n        pass\n")
    return str(path)


def marked(folder, rank=b""):
    """The processes (list of int) that have this temporary folder in their environment; with `rank`, ranks only. Of a
    fork it is the one that stands for it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if f"TMPDIR={folder}".encode() in words and (not rank or any(word.startswith(rank) for word in words)):
                found.append(int(path.parent.name))
    return [pid for pid in found if alive(pid)]


def until(done):
    """Wait for an event; what `done()` gave."""
    end = time.monotonic() + 120
    while not (found := done()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


FORGETFUL = """
import subprocess, sys, time
rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(rank.pid, flush=True)
if sys.argv[1] == "stays":
    import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
"""


@pytest.mark.parametrize("way", ["ends", "stays"])
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes through /proc")
def test_a_rank_that_torchrun_forgets_while_it_still_imports_is_ended(way, monkeypatch):
    """As where the signal comes while torchrun starts it, or where torchrun is too slow and is killed."""
    monkeypatch.setattr(launch, "torchrun", lambda *_: [sys.executable, "-c", FORGETFUL, way])
    monkeypatch.setattr(launch, "PATIENCE_S", 0.1)
    with launch.ranks(2, [], stdout=subprocess.PIPE, text=True) as job:
        rank = int(job.stdout.readline())
        assert alive(rank)
        if way == "ends":
            job.wait()
    assert not alive(rank)


@pytest.mark.parametrize(
    ("words", "sign", "code", "said"),
    [
        (SCALING, signal.SIGTERM, 143, ""),
        (SCALING, signal.SIGKILL, -signal.SIGKILL, ""),
        (["labs/ddp.py", "--scaling", "2", *LONG], signal.SIGTERM, 143, ""),
        (["labs/preflight.py", "--processes", "2"], signal.SIGINT, 130, "labs/preflight.py: stopped\n"),
        (["-m", "scaleout.exercises.ddp.ranks", ENDLESS], signal.SIGTERM, 143, ""),
    ],
    ids=["scaling, asked", "scaling, killed", "ddp", "preflight", "checker"],
)
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes through /proc")
def test_a_launcher_that_is_ended_leaves_no_rank_and_no_folder(words, sign, code, said, tmp_path, endless):
    words = [endless if word == ENDLESS else word for word in words]
    job = subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env=ENVIRONMENT | {"TMPDIR": str(tmp_path)},
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert until(lambda: marked(tmp_path, b"RANK=")), "its ranks start"
        job.send_signal(sign)
        assert job.wait(60) == code
        if sign == signal.SIGKILL:  # nobody is left who could wait for them
            until(lambda: not marked(tmp_path))
        assert marked(tmp_path) == []
        assert job.stderr.read() == said
        assert sign == signal.SIGKILL or list(tmp_path.iterdir()) == []
    finally:
        for pid in marked(tmp_path):
            os.kill(pid, signal.SIGKILL)
        job.communicate()
