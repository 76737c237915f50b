"""Run tests as other processors would: with fewer instructions, with fewer and with more threads.

    .venv/bin/python tools/another_cpu.py [pytest's arguments ...]

Without arguments: the tests of memory against torch, then the first chapter's stored outputs. torch and oneDNN take
from the environment which instructions they may use (ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA); a processor cannot be
made to have more than it has. On an ARM processor only the numbers of threads differ.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = {
    "one thread, SSE 4.1": {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "two threads, AVX2": {"OMP_NUM_THREADS": "2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "four threads, AVX-512 without bf16": {"OMP_NUM_THREADS": "4", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "sixteen threads, all there is": {"OMP_NUM_THREADS": "16"},
}
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
