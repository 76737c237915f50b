"""Ranks and labs that begin in hundredths of a second: forks of a Python that has torch already (ready.py).

A rank is a process of its own: what a test kills, hangs or breaks in it is gone with it. They meet without a launcher;
for what a launcher does, tests start torchrun (lab_runs.py).
"""

import importlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path

import launching
import ready

FIXED = launching.FIXED | {"CUDA_VISIBLE_DEVICES": ""}
LIMIT_S = 280  # for one run: a test that hangs is ended by it, and shows where each rank stood
GRACE_S = 30  # for the others, once a rank has failed and they have been asked to end


def ranks(function, world, *args, limit=LIMIT_S, **environment):
    """What `function(session, *args)` returned on each of `world` processes in one group (list, by rank).

    function is found by its module and name; args and results pass through pickle. AssertionError with the tracebacks
    of the ranks that failed, or with where each stood after `limit` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="work-") as folder:
        work = Path(folder)
        (work / "args").write_bytes(pickle.dumps(args))
        name = f"{function.__module__}:{function.__qualname__}"
        with Job(["-m", "pool", name, work], world, limit, **{"PYTHONPATH": ":".join(sys.path)} | environment) as job:
            codes = job.wait()
            assert not any(codes), f"exit codes {codes} of {world} ranks\n{job.read('out')}\n{job.read('err')}"
        return [pickle.loads((work / str(rank)).read_bytes()) for rank in range(world)]


def lab(words, world=1, limit=LIMIT_S, **environment):
    """A script to its end, as `python` starts it on one process and torchrun on several: a CompletedProcess.

    words: its path in the repository, or "-m" and a module, then its arguments. The exit code is that of a rank that
    failed, where one did.
    """
    with Job(words, world, limit, **environment) as job:
        failed = sorted((code for code in job.wait() if code), key=lambda code: code == -signal.SIGTERM)
        code = failed[0] if failed else 0  # of the first that failed by itself: the others were asked to end
        return subprocess.CompletedProcess(words, code, job.read("out"), job.read("err"))


def output(words, world=1, **environment):
    """What a script that comes to a good end has printed (str)."""
    done = lab(words, world, **environment)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    return done.stdout


class Job:
    """Ranks that have been started: a context, at whose end none of them is left."""

    def __init__(self, words, world, limit=LIMIT_S, **environment):
        self.folder, self.end = Path(tempfile.mkdtemp(prefix="ranks-")), time.monotonic() + limit
        given = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        given |= FIXED | self._meeting(world) | {"READY_LIMIT_S": str(0.8 * limit)} | environment
        self.processes = [
            ready.Process(
                words,
                given | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if world > 1 else {}),
                self.folder / str(rank),
            )
            for rank in range(world)
        ]

    def _meeting(self, world):
        """The variables of torchrun for ranks that meet in a store of this process, as they do in torchrun's."""
        if world == 1:
            return {}
        from torch import distributed as dist

        self.store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=LIMIT_S)
        )
        return {
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": self.folder.name,
        }

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder)

    def read(self, stream, rank="*"):
        """What a rank has printed so far to "out" or "err"; all ranks, one after the other, where none is named."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob(f"{rank}.{stream}")))

    def until(self, words, ranks=1):
        """Wait until so many ranks have printed these words, whatever else they print. AssertionError, with all that
        was said, where rank 0 ends before or the time is over."""
        while sum(words in path.read_text(errors="replace") for path in self.folder.glob("*.out")) < ranks:
            ended = self.processes[0].poll() is not None or time.monotonic() > self.end
            assert not ended, f"{words!r} was not said:\n{self.read('out')}\n{self.read('err')}"
            time.sleep(0.05)

    def wait(self, together=True):
        """Exit codes by rank once all have ended, or at the time limit: 999 of one that still runs.

        together: as torchrun does, the others are asked to end (SIGTERM) once a rank has failed.
        """
        asked = not together
        while left := [process for process in self.processes if process.poll() is None]:
            if not asked and any(process.poll() for process in self.processes):
                time.sleep(0.1)  # for those that end by themselves
                for process in left:
                    process.terminate()
                asked, self.end = True, min(self.end, time.monotonic() + GRACE_S)
            if not connection.wait(left, max(0.0, self.end - time.monotonic())):
                break
        return [999 if process.poll() is None else process.poll() for process in self.processes]


# --- in the fork ------------------------------------------------------------------------------------------


def main(name, folder):
    """Run a function on this rank, and leave what it returns."""
    from scaleout.lab.session import session

    module, name = name.split(":")
    with session() as s:
        try:
            args = pickle.loads((Path(folder) / "args").read_bytes())
            found = getattr(importlib.import_module(module), name)(s, *args)
        except BaseException:  # a session makes one line of it
            traceback.print_exc()
            os._exit(1)
        (Path(folder) / str(s.rank)).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
