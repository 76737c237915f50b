"""Print how long the search for the layouts of a model takes.

    .venv/bin/python tools/bench_mesh.py [--smallest]

Cold is the first search of a model in a process that has imported the package; again is the next one, of twice the
tokens, for which the account of its blocks is there. `--smallest` searches each once, else the quickest of five counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from scaleout.memory import mesh_peaks
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing import job as timing
from scaleout.timing import machine
from scaleout.timing.search import search

JOBS = (("llama-3-405b", 16_384, 2048), ("llama-3-70b", 512, 1024), ("llama-3-8b", 64, 1024))


def seconds(run: Callable[[], object], times: int) -> float:
    """The quickest of so many."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def cold(job: Job, sequences: int) -> object:
    """A search that knows nothing yet."""
    for known in (mesh_peaks.peaks, timing.step, machine.with_rates):
        known.cache_clear()
    return search(job, sequences)


def main() -> int:
    times = 1 if "--smallest" in sys.argv[1:] else 5
    for model, gpus, sequences in JOBS:
        job = Job(PRESETS[model], 8192, DEVICES["h100-sxm"], cluster(gpus // 8, 8), 1, Layout(dp=gpus))
        name = f"search, {model} on {gpus} GPUs"
        print(f"{name + ', cold':<44}{seconds(lambda job=job, n=sequences: cold(job, n), times):9.3f} s")
        print(f"{name + ', again':<44}{seconds(lambda job=job, n=2 * sequences: search(job, n), times):9.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
