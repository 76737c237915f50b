"""Labs that start processes of their own: how such a command runs and ends, and how it starts torchrun. No torch."""

import os
import signal
import subprocess
import sys
import time

from scaleout.lab import start
from scaleout.records import results


def command(main, name):
    """Run `main()` as a command that is no torch session: a ValueError is one line and exit code 2, Ctrl-C is 130.

    Such a command starts its own processes, and refuses a launcher that starts it several times. SIGTERM ends it with
    143, through every `finally`.
    """
    start.begin()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        if "TORCHELASTIC_RUN_ID" in os.environ or os.environ.get("WORLD_SIZE", "1") != "1":
            if os.environ.get("RANK", "0") != "0":
                time.sleep(5)                           # torchrun ends the others with the first: rank 0, that speaks
                sys.exit(2)
            raise ValueError("starts its own processes: start it with python, not with torchrun")
        main()
    except ValueError as error:
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr, flush=True)
        sys.exit(130)


def torchrun(processes, *words):
    """The command (list) that starts so many processes of a script on this machine. words: the script and its own.

    They meet at localhost: on a laptop off its network, the host's own name may lead nowhere.
    """
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "localhost",
            "--nproc-per-node", str(processes), *words]


def started(script, words, world, path=None):
    """Run a lab on `world` processes and read what it saves: the Record at `path`, or None without one.

    One thread a process unless OMP_NUM_THREADS says otherwise, as torchrun sets for more than one process, so that
    1 and N compare. RuntimeError, one line, with the lab's last words where it fails.
    """
    done = subprocess.run(torchrun(world, script, *words), capture_output=True, text=True,
                          env=os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")})
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("labs/")] or done.stdout.splitlines()
        raise RuntimeError(f"the run on {world} process(es) ended with code {done.returncode}: "
                           f"{said[-1] if said else 'it said nothing'}")
    return None if path is None else results.load(path)
