"""Seconds of each lab at smoke size, wall clock from the command to its end: python tools/bench_lab.py [--smallest]

`--smallest` runs the two that need one process and no lab before them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
RUNS = {
    "preflight": ["labs/preflight.py"],
    "calibrate, 1 process": ["labs/calibrate.py"],
    "calibrate, 2 processes": [*TORCHRUN, "2", "labs/calibrate.py"],
    "memory, 1 process": ["labs/memory.py"],
    "memory, 2 processes": [*TORCHRUN, "2", "labs/memory.py"],
    "memory, 4 processes": [*TORCHRUN, "4", "labs/memory.py"],
    "memory, 2 by Accelerate": ["-m", "accelerate.commands.accelerate_cli", "launch", "--config_file",
                                "labs/launch/accelerate.yaml", "labs/memory.py", "--via", "accelerate"],
    "collectives, 2 processes": [*TORCHRUN, "2", "labs/collectives.py"],
    "collectives, 4 processes": [*TORCHRUN, "4", "labs/collectives.py"],
    "ddp, 2 processes": [*TORCHRUN, "2", "labs/ddp.py"],
    "ddp, 4 processes": [*TORCHRUN, "4", "labs/ddp.py"],
    "hang": ["labs/hang.py", "--seed", "7", "--out"],
    "memory, 7B on fake tensors": ["labs/memory.py", "--fake", "7b"],
    "memory, 70B on fake tensors": ["labs/memory.py", "--fake", "70b"],
}


def seconds(words, cache):
    """Wall-clock seconds of one run; None where it failed."""
    environment = os.environ | {"XDG_CACHE_HOME": cache, "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, timeout=300)
    return time.perf_counter() - start if done.returncode == 0 else None


def main():
    """Print the table; exit code 1 where a lab failed."""
    parser = argparse.ArgumentParser(description="Seconds of each lab at smoke size.")
    parser.add_argument("--smallest", action="store_true", help="two labs on one process")
    runs = dict(list(RUNS.items())[:2]) if parser.parse_args().smallest else RUNS
    failed = False
    with tempfile.TemporaryDirectory() as cache:
        for name, words in runs.items():
            spent = seconds([*words, f"{cache}/dumps"] if words[-1] == "--out" else words, cache)
            failed = failed or spent is None
            print(f"{name:<44}" + ("   failed" if spent is None else f"{spent:9.1f} s"), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
