"""Processes that have torch already: a rank or a lab begins in hundredths of a second, in a process of its own.

One server for each worker of pytest imports torch once, and every process is a fork of it. It imports nothing of this
book, so that a fork is as clean as a new Python: its environment and its arguments are its own, and what a test kills,
hangs or breaks in it is gone with it. A fork does not show what a launcher does: for that tests start torchrun itself.
"""

import faulthandler
import importlib
import multiprocessing
import os
import pickle
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from multiprocessing import connection, forkserver
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
# Torch, and what it would import at the first step, checkpoint or profile of every rank.
PRELOAD = ["torch", "torch._dynamo", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp",
           "torch.distributed.tensor", "torch.distributed._tools", "torch.profiler", "torch.utils.flop_counter",
           "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook"]
FIXED = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
LIMIT_S = 280           # for one run: a test that hangs is ended by it, and shows where each rank stood
GRACE_S = 30            # for the others, once a rank has failed and they have been asked to end


def ranks(function, world, *args, limit=LIMIT_S, **environment):
    """What `function(session, *args)` returned on each of `world` processes in one group (list, by rank).

    function is found by its module and name; args and results pass through pickle. AssertionError with the tracebacks
    of the ranks that failed, or with where each stood after `limit` seconds.
    """
    work = f"{function.__module__}:{function.__qualname__}", pickle.dumps(args)
    with Job(work, world, limit, **environment) as job:
        codes, folder = job.wait(), job.folder
        assert not any(codes), f"exit codes {codes} of {world} ranks\n{job.read('out')}\n{job.read('err')}"
        return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(world)]


def lab(words, world=1, limit=LIMIT_S, **environment):
    """A script to its end, as `python` starts it on one process and torchrun on several: a CompletedProcess.

    words: its path in the repository, or "-m" and a module, then its arguments. The exit code is that of a rank that
    failed, where one did.
    """
    with Job(words, world, limit, **environment) as job:
        failed = sorted((code for code in job.wait() if code), key=(-signal.SIGTERM).__eq__)
        code = failed[0] if failed else 0
        return subprocess.CompletedProcess(words, code, job.read("out"), job.read("err"))


class Job:
    """Ranks that have been started: a context, at whose end none of them is left."""

    def __init__(self, work, world, limit=LIMIT_S, **environment):
        """work: the words of a script, or (module:function, its pickled arguments)."""
        self.folder, self.end = Path(tempfile.mkdtemp(prefix="ranks-")), time.monotonic() + limit
        work = work if isinstance(work, tuple) else [str(word) for word in work]
        given = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        given |= FIXED | self._meeting(world) | environment
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        with mock.patch.dict(os.environ, FIXED):                # torch counts its threads when it is loaded
            forkserver.ensure_running()
        self.processes = [context.Process(target=_begin, args=(work, rank, self.folder, limit, given | (
            {"RANK": str(rank), "LOCAL_RANK": str(rank)} if world > 1 else {}))) for rank in range(world)]
        for process in self.processes:
            process.start()

    def _meeting(self, world):
        """The variables of torchrun for ranks that meet in a store of this process, as they do in torchrun's."""
        if world == 1:
            return {}
        from torch import distributed as dist
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False,
                                   timeout=timedelta(seconds=LIMIT_S))
        return {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self.store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RUN_ID": self.folder.name}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.join()
        shutil.rmtree(self.folder)

    def read(self, stream, rank="*"):
        """What a rank has printed so far to "out" or "err"; all ranks, one after the other, where none is named."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob(f"{rank}.{stream}")))

    def wait(self, together=True):
        """Exit codes by rank once all have ended, or at the time limit: 999 of one that still runs.

        together: as torchrun does, the others are asked to end (SIGTERM) once a rank has failed.
        """
        asked = not together
        while left := [process for process in self.processes if process.exitcode is None]:
            if not asked and any(process.exitcode for process in self.processes):
                time.sleep(0.1)                                 # for those that end by themselves
                for process in left:
                    process.terminate()
                asked, self.end = True, min(self.end, time.monotonic() + GRACE_S)
            if not connection.wait([process.sentinel for process in left], max(0.0, self.end - time.monotonic())):
                break
        return [999 if process.exitcode is None else process.exitcode for process in self.processes]


# --- in the fork ------------------------------------------------------------------------------------------

def _begin(work, rank, folder, limit, environment):
    """One process, from its fork to its end."""
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None                                     # else the server's
    os.chdir(ROOT)
    for number, stream in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{rank}.{stream}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.dump_traceback_later(0.8 * limit)
    code = 1
    try:
        if isinstance(work, tuple):
            _function(*work, folder / f"{rank}.pickle")
        else:
            _script(work)
        code = 0
    except SystemExit as end:
        code = end.code
        if not isinstance(code, int | None):                    # words are printed, and end with 1
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


def _function(name, args, result):
    from scaleout.lab.session import session

    module, name = name.split(":")
    with session() as s:
        try:
            found = getattr(importlib.import_module(module), name)(s, *pickle.loads(args))
        except BaseException:                                   # a session makes one line of it
            traceback.print_exc()
            os._exit(1)
        result.write_bytes(pickle.dumps(found))


def _script(words):
    """What Python does with a script."""
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str((ROOT / words[0]).parent))
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")
