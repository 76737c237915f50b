"""Kill the training job at random moments, many times, and see whether it ends as the run that was never killed.

    .venv/bin/python tools/bench_faults.py [--kills 12] [--seed 0] [--smallest]

A kill is SIGKILL of one rank, drawn: which rank, and the moment, half of the time any, half while a checkpoint is being
written. torchrun starts the job again, up to three times per run. A run counts as equal when its losses and its
weights are those of the quiet run, bit for bit. Needs Linux (/proc).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import launching

TINY = [
    "--layers",
    "1",
    "--hidden",
    "32",
    "--heads",
    "2",
    "--ff",
    "64",
    "--seq",
    "32",
    "--batch",
    "4",
    "--warmup",
    "2",
    "--validation-batches",
    "1",
    "--log-every",
    "1",
    "--sample",
    "0",
]
RESTARTS = 3
SOON = 2  # a seed whose first kill falls while a checkpoint is written


class Run:
    """One launch of the training job: started at once, watched through its folder and /proc."""

    read: tuple = (None, [])  # metrics.jsonl as it was when it was read last, and its rows

    def __init__(self, folder: Path, ranks: int, words: list[str], restarts: int = 0, **environment: str) -> None:
        """words: options of the lab beside TINY. environment: added to this process's."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log.txt"
        launcher = launching.launcher(ranks, "--max-restarts", str(restarts), "--monitor-interval", "0.1")
        with self.log.open("a") as out:
            self.process = subprocess.Popen(
                [*launcher, "labs/capstone.py", *TINY, *words, "--folder", str(folder)],
                cwd=launching.ROOT,
                stdout=out,
                stderr=out,
                env=launching.ENVIRONMENT
                | {"CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": str(folder / "cache"), **environment},
            )

    def workers(self) -> dict[int, int]:
        """{rank: pid} of the processes that work now."""
        return launching.children(self.process.pid)

    def rows(self) -> list[dict]:
        """What the job has written to metrics.jsonl; a line that is not yet whole is left out. It is read anew only
        once it has changed: who waits for a step looks 500 times per second, and would take a core from the ranks."""
        path = self.folder / "metrics.jsonl"
        found = path.stat() if path.exists() else None
        if found and (state := (found.st_ino, found.st_size, found.st_mtime_ns)) != self.read[0]:
            self.read = state, [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        return self.read[1] if found else []

    def step(self) -> int:
        """The last step that is in the metrics."""
        return max((row["step"] for row in self.rows() if "loss" in row), default=0)

    def losses(self) -> dict[int, float]:
        """{step: loss}; of a step that was made again, the last."""
        return {row["step"]: row["loss"] for row in self.rows() if "loss" in row}

    def said(self) -> list[str]:
        """The job's own lines on stderr."""
        return [
            line.removeprefix("labs/capstone.py: ")
            for line in self.log.read_text().splitlines()
            if line.startswith("labs/capstone.py: ")
        ]

    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def writing(self) -> bool:
        """A checkpoint is on its way."""
        return any(self.checkpoints().glob(".writing-*/*"))

    def weights(self) -> dict[str, str]:
        """{file of tensors in the newest checkpoint: its checksum}."""
        body = json.loads((max(self.checkpoints().glob("step-*")) / "manifest.json").read_text())["body"]
        return {name: facts["sha256"] for name, facts in body["files"].items() if name.endswith(".distcp")}

    def until(self, true, seconds: float = 120.0) -> bool:
        """Wait until `true()`; False when the job has ended before. TimeoutError after `seconds`."""
        end = time.monotonic() + seconds
        while not true():
            if self.process.poll() is not None:
                return False
            if time.monotonic() > end:
                raise TimeoutError(f"not within {seconds:g} s:\n" + self.log.read_text()[-3000:])
            time.sleep(0.002)
        return True

    def kill(self, rank: int) -> bool:
        """SIGKILL one rank; False when it is gone already."""
        pid = self.workers().get(rank)
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return self.until(lambda: self.workers().get(rank) != pid)

    def end(self, seconds: float = 240.0) -> int:
        """Wait for the end; the exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.stop()
            raise

    def stop(self) -> None:
        """End what is left of the run."""
        for pid in [*self.workers().values(), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def strike(run: Run, chance: random.Random, ranks: int, steps: int) -> str:
    """Kill a drawn rank at a drawn moment. What was done, in words; "" when the job had ended before."""
    rank, seen = chance.randrange(ranks), run.step()
    if chance.random() < 0.5:
        moment = "while a checkpoint was written"
        ready = run.until(lambda: run.step() > seen and run.writing())
    else:
        moment = f"{chance.uniform(0, 2):.3f} s after a step"
        ready = run.until(lambda: run.step() > seen)
        time.sleep(float(moment.split()[0]))
    at = run.step()
    if not ready or at >= steps or not run.kill(rank):
        return ""
    return f"rank {rank} at step {at}, {moment}"


def campaign(kills: int, seed: int, ranks: int = 2, steps: int = 300, restarts: int = RESTARTS) -> tuple[int, int, int]:
    """(kills made, runs, runs that ended bit-equal). Prints each run."""
    chance, words = random.Random(seed), ["--steps", str(steps), "--checkpoint-every", "7", "--validate-every", "100"]
    with tempfile.TemporaryDirectory() as folder:
        quiet = Run(Path(folder) / "quiet", ranks, words)
        if quiet.end():
            raise ValueError("the quiet run failed:\n" + quiet.log.read_text()[-3000:])
        made = runs = equal = 0
        while made < kills:
            run = Run(Path(folder) / str(runs), ranks, words, restarts)
            strikes = [done for _ in range(restarts) if (done := strike(run, chance, ranks, steps))]
            code = run.end()
            same = code == 0 and run.losses() == quiet.losses() and run.weights() == quiet.weights()
            made, runs, equal = made + len(strikes), runs + 1, equal + same
            print(f"  {'equal' if same else f'NOT equal (exit {code})'}: {'; '.join(strikes) or 'no kill'}", flush=True)
    return made, runs, equal


def main() -> None:
    o = launching.options(__doc__, kills=12, seed=0).parse_args()
    made, runs, equal = campaign(1, SOON, steps=21, restarts=1) if o.smallest else campaign(o.kills, o.seed)
    print(f"{'runs that ended bit-equal after kills':<44}{equal:6} of {runs}, {made} kills")
    if equal < runs:
        sys.exit(1)


if __name__ == "__main__":
    main()
