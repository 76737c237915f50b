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
from scaleout.spec.hardware import DEVICES
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing.mesh_search import Job, plans

JOBS = (("llama-3-405b", 16_384, 2048), ("llama-3-70b", 512, 1024), ("llama-3-8b", 64, 1024))


def seconds(search: Callable[[], object], times: int) -> float:
    """The quickest of so many."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        search()
        found.append(time.perf_counter() - start)
    return min(found)


def cold(job: Job) -> object:
    """A search that knows nothing yet."""
    mesh_peaks.peaks.cache_clear()
    return plans(job)


def main() -> int:
    times = 1 if "--smallest" in sys.argv[1:] else 5
    for model, gpus, sequences in JOBS:
        first, second = (
            Job(PRESETS[model], 8192, n, DEVICES["h100-sxm"], cluster(gpus // 8, 8)) for n in (sequences, 2 * sequences)
        )
        name = f"search, {model} on {gpus} GPUs"
        print(f"{name + ', cold':<44}{seconds(lambda job=first: cold(job), times):9.3f} s")
        print(f"{name + ', again':<44}{seconds(lambda job=second: plans(job), times):9.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
