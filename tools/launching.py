"""What the benches share: where the book is, and how labs are started for a figure: one thread each, on the CPUs."""

import argparse
import contextlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIXED = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
ENVIRONMENT = os.environ | FIXED


def launcher(processes: int, *words: str) -> list[str]:
    """The command that starts what follows it on some processes of this machine. words: more for torchrun."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), *words]
    return [sys.executable, *(torchrun if processes > 1 else [])]


def children(pid: int) -> dict[int, int]:
    """{rank: pid} of the processes that a launcher has started and that work now. Needs Linux (/proc)."""
    found = {}
    with contextlib.suppress(OSError):  # one of them ended meanwhile
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            found |= {int(one[5:]): int(child) for one in variables if one.startswith(b"RANK=")}
    return found


def options(doc: str, **settings: int) -> argparse.ArgumentParser:
    """The parser of a bench: `--smallest`, and a whole number by each name, with its default. doc: of its module."""
    parser = argparse.ArgumentParser(description=doc.split("\n\n")[0])
    parser.add_argument("--smallest", action="store_true", help="as little as gives every figure")
    for name, default in settings.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    return parser


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess:
    """A command to its end. ValueError with its last line where it failed."""
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT | environment, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"{' '.join(command[1:])}: {(done.stderr.strip() or 'failed').splitlines()[-1]}")
    return done
