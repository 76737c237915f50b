"""How good the labs on communication are here: the ring by hand beside the backend's, predictions beside measurements.

    python tools/bench_comm.py [--smallest]      2 and 4 processes, smoke size, one thread each; about two minutes

`--smallest` takes 2 processes and as few messages and rounds as give every kind of figure.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from scaleout.records import results

ROOT = Path(__file__).resolve().parents[1]
WAYS = ("naive", "buckets by hand", "torch DDP")
SMALLEST = {"collectives": ["--smallest", "1024", "--largest", "16777216", "--factor", "128", "--rounds", "3"],
            "ddp": ["--layers", "1", "--hidden", "40", "--seq", "32", "--steps", "4"]}
GOALS = {"ring": 0.8, "prediction": 0.10}


def record(lab: str, processes: int, folder: str, words: list[str]) -> results.Record:
    """The Record of a lab's smoke run. ValueError with its last line where it failed."""
    path = Path(folder) / f"{lab}-{processes}.json"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
         f"labs/{lab}.py", "--save", str(path), *words],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise ValueError(f"labs/{lab}.py on {processes} processes: {done.stderr.strip().splitlines()[-1]}")
    return results.load(path)


def show(what: str, value: str, note: str) -> None:
    print(f"{what:<58}{value:>8}  {note}", flush=True)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="The labs on communication: what they reach here.")
    parser.add_argument("--smallest", action="store_true", help="2 processes, few messages and rounds")
    smallest = parser.parse_args().smallest
    worlds, few, off = ((2,), SMALLEST, []) if smallest else ((2, 4), {"collectives": [], "ddp": []}, [])
    with tempfile.TemporaryDirectory() as folder:
        for processes in worlds:
            measured = record("collectives", processes, folder, few["collectives"]).measurement
            shares = {name: share for name, share in measured.items() if name.startswith("ring over")}
            if not shares:
                raise ValueError("no size was large enough to hold the ring against the backend")
            for name, share in shares.items():
                verdict = "met" if share >= GOALS["ring"] else "MISSED"
                show(f"{name}, {processes} processes", f"{share:.2f}", f"goal: {GOALS['ring']}, {verdict}")
        for processes in worlds:
            run = record("ddp", processes, folder, few["ddp"])
            for way in WAYS:
                p, m = (side[f"seconds a step, {way}"] for side in (run.prediction, run.measurement))
                off.append(abs(p / m - 1))
                show(f"step predicted / measured, {way}, {processes} processes", f"{p / m:.2f}", f"{m * 1e3:.0f} ms")
    middle = statistics.median(off)
    verdict = "met" if middle <= GOALS["prediction"] else "MISSED"
    show("error of the prediction at the median", f"{middle:.0%}", f"goal: {GOALS['prediction']:.0%}, {verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
