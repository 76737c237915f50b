"""Run tests as other processors would: with fewer instructions, with fewer and with more threads.

    .venv/bin/python tools/another_cpu.py [pytest's arguments ...]

Without arguments: the tests of memory against torch, then the first chapter's stored outputs. Here all that runs is
one processor; `make test` gives each file another one of the same table (tests/processors.py). A processor cannot be
made to have more than it has. On an ARM processor only the numbers of threads differ.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from processors import PROCESSORS  # noqa: E402

SETTINGS = {
    f"{threads} thread(s), {name}": {"OMP_NUM_THREADS": str(threads)} | PROCESSORS[name]
    for threads, name in zip((1, 2, 4), PROCESSORS, strict=True)
}
SETTINGS["4 thread(s), AVX-512 without bf16"] = {"OMP_NUM_THREADS": "4", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
SETTINGS["16 thread(s), this one"] = {"OMP_NUM_THREADS": "16"}
NBVAL = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with", "tests/nbval.cfg"]
DEFAULT = (["tests/memory/test_truth.py"], [*NBVAL, "notebooks/01_memory.ipynb"])


def main() -> int:
    """Run pytest once for each setting; exit code 1 where one failed."""
    failed = []
    for name, environment in SETTINGS.items():
        for words in [sys.argv[1:]] if sys.argv[1:] else DEFAULT:
            print(f"\n== {name}: pytest {' '.join(words)}", flush=True)
            command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *words]
            if subprocess.run(command, cwd=ROOT, env=os.environ | environment).returncode:
                failed.append(name)
    print("\n" + ("failed: " + ", ".join(dict.fromkeys(failed)) if failed else "passed on all"))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
