"""Labs that start processes of their own: how such a command runs and ends, and how it starts torchrun. No torch."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from scaleout.lab import leash, start
from scaleout.records import results

# Ways to ask a process to end, beside Ctrl-C; SIGHUP: its terminal is gone.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
PATIENCE_S = 5.0  # from asking torchrun to end its ranks to ending it


def command(main, name):
    """Run `main()` as a command that is no torch session: a ValueError is one line and exit code 2, Ctrl-C is 130.

    Such a command starts its own processes, and refuses a launcher that starts it several times. SIGTERM ends it with
    143, through every `finally`.
    """
    start.begin()
    try:
        with ending():
            _refuse_launcher()
            main()
    except ValueError as error:
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr, flush=True)
        sys.exit(130)


def _refuse_launcher():
    """ValueError on rank 0 of a launcher; other ranks wait for it to speak, and end."""
    if "TORCHELASTIC_RUN_ID" in os.environ or os.environ.get("WORLD_SIZE", "1") != "1":
        if os.environ.get("RANK", "0") != "0":
            time.sleep(5)  # torchrun ends the others with the first: rank 0, that speaks
            sys.exit(2)
        raise ValueError("starts its own processes: start it with python, not with torchrun")


# --- signals ----------------------------------------------------------------------------------------------------


@contextmanager
def ending():
    """Inside, a signal that asks this process to end is SystemExit (128 + its number), so that every `finally` runs."""
    with _handling(lambda number, _: sys.exit(128 + number), STOP_SIGNALS):
        yield


@contextmanager
def later():
    """Delay Ctrl-C and other stop signals until the end of the block, where the first of them takes effect."""
    came = []
    try:
        with _handling(lambda number, _: came.append(number), (signal.SIGINT, *STOP_SIGNALS)):
            yield
    finally:
        for number in came[:1]:
            signal.raise_signal(number)


@contextmanager
def _handling(handler, signals):
    """`handler` for those signals that are not ignored (nohup ignores SIGHUP)."""
    handlers = {
        number: signal.signal(number, handler) for number in signals if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, old in handlers.items():
            signal.signal(number, old)


# --- torchrun ---------------------------------------------------------------------------------------------------


@contextmanager
def ranks(processes, words, environment=(), **options):
    """torchrun with so many processes of a script on this machine, as a Popen: a context at whose end no process is
    left, and no file of torchrun's. Where this process is killed the ranks end by themselves.

    words: the script and its own. environment: variables beside this process's. options: for Popen.
    """
    job, variables = None, os.environ | dict(environment)
    with ending(), tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        leash_ = leash.Leash(Path(folder) / "alive")
        try:
            with later():  # a process that nobody knows of would be left
                job = subprocess.Popen(
                    torchrun(processes, "--log-dir", folder, *words),
                    start_new_session=True,
                    env=variables | {leash.NAME: str(leash_.path)},
                    **options,
                )
            yield job
        finally:
            with later():
                _stop(job)
                leash_.end()
                leash.leave_none(leash_.path)  # torchrun forgets a rank where it is asked while it starts it


def _stop(job):
    """End torchrun (a Popen), which ends its ranks; those of one that does not come to it are left to the leash,
    and to `leash.leave_none`."""
    if job is None or job.poll() is not None:
        return
    job.terminate()
    try:
        job.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()


def torchrun(processes, *words):
    """The command (list) that starts so many processes of a script on this machine. words: the script and its own.

    They meet at localhost: on a laptop without network, the host's own name may have no address.
    """
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr",
        "localhost",
        "--nproc-per-node",
        str(processes),
        *words,
    ]


def started(script, words, world, path=None):
    """Run a lab on `world` processes and read what it saves: the Record at `path`, or None without one.

    One thread a process unless OMP_NUM_THREADS says otherwise, as torchrun sets for more than one process, so that
    1 and N compare. RuntimeError, one line, with the lab's last words where it fails.
    """
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with ranks(world, [script, *words], threads, **pipes) as job:
        output, errors = job.communicate()
    if job.returncode:
        lines = [line for line in errors.splitlines() if line.startswith("labs/")] or output.splitlines()
        raise RuntimeError(
            f"the run on {world} process(es) ended with code {job.returncode}: "
            f"{lines[-1] if lines else 'it said nothing'}"
        )
    return None if path is None else results.load(path)
