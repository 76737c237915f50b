"""Seconds of each lab at smoke size, wall clock from the command to its end: python tools/bench_lab.py [--smallest]

`--smallest` runs the one that needs one process and no lab before it.
"""

import sys
import tempfile
import time

import launching

ACCELERATE = ["-m", "accelerate.commands.accelerate_cli", "launch", "--config_file", "labs/launch/accelerate.yaml"]
RUNS = [  # what it is, processes, words
    ("calibrate, 1 process", 1, ["labs/calibrate.py"]),
    ("preflight", 1, ["labs/preflight.py"]),
    ("calibrate, 2 processes", 2, ["labs/calibrate.py"]),
    ("memory, 1 process", 1, ["labs/memory.py"]),
    ("memory, 2 processes", 2, ["labs/memory.py"]),
    ("memory, 4 processes", 4, ["labs/memory.py"]),
    ("memory, 2 by Accelerate", 1, [*ACCELERATE, "labs/memory.py", "--via", "accelerate"]),
    ("collectives, 2 processes", 2, ["labs/collectives.py"]),
    ("collectives, 4 processes", 4, ["labs/collectives.py"]),
    ("ddp, 2 processes", 2, ["labs/ddp.py"]),
    ("ddp, 4 processes", 4, ["labs/ddp.py"]),
    ("hang", 1, ["labs/hang.py", "--seed", "7", "--out", "{folder}/dumps"]),
    ("memory, 7B on fake tensors", 1, ["labs/memory.py", "--fake", "7b"]),
    ("memory, 70B on fake tensors", 1, ["labs/memory.py", "--fake", "70b"]),
]


def main():
    """Print the table; exit code 1 where a lab failed."""
    runs = RUNS[:1] if launching.options(__doc__).parse_args().smallest else RUNS
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, processes, words in runs:
            start = time.perf_counter()
            try:
                launching.run(
                    [*launching.launcher(processes), *(word.format(folder=folder) for word in words)],
                    XDG_CACHE_HOME=folder,
                )
                print(f"{name:<44}{time.perf_counter() - start:9.1f} s", flush=True)
            except ValueError as error:
                print(f"{name:<44}   failed: {error}", flush=True)
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
