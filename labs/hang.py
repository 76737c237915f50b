"""Rung 02, find the hang: a job in which one rank has a bug, and dumps that show which rank and which line.

python labs/hang.py                                  a bug of any kind; the dumps go to ./hang-dumps
python labs/hang.py --inject skip --seed 7 --out d   mismatch: another collective; skip: one left out; stop: none
python labs/hang.py --read d                         the flight recorder's calls, one column per rank; also those of
                                                     a job of your own, as torch writes them (nccl_trace_rank_0)
python labs/hang.py --check 1:83 d                   checks your answer: the rank, and the bug's line in hang_job.py
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import hang_job

from scaleout.lab import hang, launch, table
from scaleout.lab import options as lab_options
from scaleout.records import flight

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 60.0  # seconds for a whole run, start-up included
PATH = re.compile(r"""(?<![:\w./-])[\w.~-]*/[^\s"'():,]+""")  # a word with a slash; no address of a web page
LAST = re.compile(r'hang_job\.py", line \d+ in <module>\n')  # of a stack by faulthandler: its main thread's
RING = 16  # calls that the flight recorder keeps; without it, 2,000


def options(argv):
    """The parsed command line; ValueError on bad input."""
    parser = lab_options.Parser(__doc__, prog="labs/hang.py")
    parser.add_argument("--inject", choices=hang_job.KINDS, help="kind of bug (default: drawn at random)")
    parser.add_argument("--seed", type=int, help="seed of the bug (default: drawn at random)", metavar="N")
    parser.add_argument(
        "--processes", type=int, default=3, help="ranks, from 3 to 8: two have no majority", metavar="N"
    )
    parser.add_argument(
        "--timeout", type=float, default=6.0, help="timeout of a collective, in seconds", metavar="SECONDS"
    )
    parser.add_argument("--out", default="hang-dumps", help="new folder for the dumps", metavar="FOLDER")
    parser.add_argument("--read", help="print the dumps in a folder side by side", metavar="FOLDER")
    parser.add_argument("--check", nargs=2, help="check an answer", metavar=("RANK:LINE", "FOLDER"))
    o, usual = parser.parse_args(argv), parser.parse_args([])
    for flag in (name for name in ("check", "read") if getattr(o, name)):
        lab_options.check_idle(f"--{flag}", o, usual, [name for name in vars(usual) if name != flag])
    if not 3 <= o.processes <= 8:
        raise ValueError(f"--processes is {o.processes}: it must be from 3 to 8 (two ranks have no majority)")
    if not 3 <= o.timeout <= 30:
        raise ValueError(f"--timeout is {o.timeout:g}: it must be from 3 to 30 seconds, to leave time for the dumps")
    return o


# --- make the dumps ----------------------------------------------------------------------------------------


def new_folder(path):
    """The Path of a folder that is made for the dumps. ValueError where something is there already."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ValueError(f"{path} exists already: give another --out, or remove it") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be made ({error.strerror}): give another --out") from None
    return folder


def started(o, seed, folder, output):
    """The context of torchrun with the job (a Popen), what it says in the file `output`."""
    environment = {
        "TORCH_FR_BUFFER_SIZE": str(RING),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    words = ["labs/hang_job.py", str(seed), o.inject or "any", str(o.timeout), str(folder.resolve())]
    return launch.ranks(o.processes, words, environment, cwd=ROOT, stdout=output, stderr=output)


def until(condition, job, end):
    """Wait until `done()`; False when the job has ended before, or `end` (monotonic seconds) has come."""
    while not condition():
        if job.poll() is not None or time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def stack(rank, folder, job, end):
    """Write stack-RANK.txt: py-spy's, or where it may not look into a process, the rank's own faulthandler's, which
    ends with the first frame of the script."""
    pid = int((folder / f".pid-{rank}").read_text())
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    dumped = spy and subprocess.run([spy, "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, text=True)
    if dumped and dumped.returncode == 0:
        text = dumped.stdout
    else:
        own_stack = folder / f".stack-{rank}"
        os.kill(pid, signal.SIGUSR1)
        until(lambda: LAST.search(own_stack.read_text()), job, end)
        text = "from faulthandler: py-spy is not there, or may not look into a process here\n" + own_stack.read_text()
    (folder / f"stack-{rank}.txt").write_text(clean(text, folder))


def clean(text, folder):
    """Text without the paths of this machine."""
    text = text.replace(str(folder.resolve()), "FOLDER")
    return PATH.sub(lambda match: flight.shorten(match.group(), str(ROOT)), text)


def dumped(o, seed, folder, end):
    """Run the job in `folder` until it has failed, or `end` (monotonic seconds) has come; its log without paths."""
    with (folder / ".raw").open("w") as output, started(o, seed, folder, output) as job:
        if until(lambda: len(list(folder.glob(".quiet-*"))) == o.processes, job, end):
            for rank in range(o.processes):
                stack(rank, folder, job, end)
            (folder / ".stacks").touch()
            until(lambda: False, job, end)
    return clean((folder / ".raw").read_text(), folder)


def run(o):
    """Run the job and leave its dumps in a new folder; leave nothing if it is stopped before its end."""
    seed = random.SystemRandom().randrange(10**6) if o.seed is None else o.seed
    facts = {"sealed": hang.seal(seed), "inject": o.inject, "processes": o.processes, "timeout_seconds": o.timeout}
    begun, folder = time.monotonic(), None
    try:
        with launch.later():  # a folder that nobody knows of would be left
            folder = new_folder(o.out)
        print(f"{o.processes} ranks, one of them has a bug; a collective times out after {o.timeout:g} s", flush=True)
        log = dumped(o, seed, folder, begun + LIMIT)
    except (KeyboardInterrupt, SystemExit):
        if folder:
            shutil.rmtree(folder)
        raise
    for path in folder.glob(".*"):
        path.unlink()
    (folder / "log.txt").write_text(log)
    (folder / "job.json").write_text(json.dumps(facts) + "\n")
    if len(list(folder.glob("flight-*"))) < o.processes or len(list(folder.glob("stack-*"))) < o.processes:
        raise ValueError(f"the job ended before its dumps were written: {o.out}/log.txt says why")
    print(
        f"the job hung, and ended {time.monotonic() - begun:.0f} s after its start. In {o.out}:\n"
        f"  log.txt          the output of the ranks and of torchrun\n"
        f"  stack-RANK.txt   the stack of each rank while the job hung\n"
        f"  flight-RANK.json the collectives that each rank called (python labs/hang.py --read {o.out})\n"
        f"  fr_trace_RANK    the same for torch's own reader "
        f"(python -m torch.distributed.flight_recorder.fr_trace {o.out} -p fr_trace_)\n"
        f"Which rank, and which line of labs/hang_job.py? python labs/hang.py --check RANK:LINE {o.out}"
    )


# --- read and judge ----------------------------------------------------------------------------------------


def show(folder):
    """Print the table of `scaleout.records.flight`."""
    flights = flight.load(folder)
    header, rows = flight.side_by_side(flights)
    print(table(header, rows))
    print(
        "\nnumber: of the call in the process group. :N is the line of the script. '>' marks a call that differs from "
        "the others', '-' a call that the rank has not made."
    )
    for rank in flight.absent(flights):
        print(f"rank {rank} left no dump")


def main(argv=None):
    """Run, read or check."""
    o = options(argv)
    if o.check:
        verdict = hang.judge(*o.check)
        print(verdict.message)
        if not verdict.ok:
            sys.exit(1)
    elif o.read:
        show(o.read)
    else:
        run(o)


if __name__ == "__main__":
    launch.command(main, "labs/hang.py")
