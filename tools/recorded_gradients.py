"""Write the table of scaleout/numerics/recorded.py from the Record of a run of labs/precision.py, so that the
page, which reads no files, has the gradients of a real model.

    .venv/bin/python labs/precision.py --tier cpu --save
    .venv/bin/python tools/recorded_gradients.py
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from scaleout.lab import precision as lab_precision
from scaleout.records import results

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "labs" / "results" / "precision" / "cpu-cpu-1.json"
TARGET = ROOT / "scaleout" / "numerics" / "recorded.py"
LARGEST = "largest gradient of 16-bit matmuls, fp32"  # a series of the Record
START, END = '_TABLE = """\n', '"""\n'  # of what is written in the module


def text(largest: list[float], moments: dict) -> str:
    """The module as text: its table is of the largest gradients of the steps and of these moments, all else is as it
    stands."""
    rows = textwrap.wrap(f"largest: {' '.join(map(repr, largest))}", 118, subsequent_indent="  ")
    for moment, kinds in moments.items():
        for kind, parts in kinds.items():
            for part, h in parts.items():
                line = f"{moment}, {kind}, {part}: {h.first} {h.zeros} {h.largest!r} {' '.join(map(str, h.counts))}"
                rows += textwrap.wrap(line, 118, subsequent_indent="  ")
    head, start, rest = TARGET.read_text(encoding="utf-8").partition(START)
    _, end, tail = rest.partition(END)
    return head + start + "\n".join(rows) + "\n" + end + tail


def main() -> int:
    """Write it; the exit code."""
    series = results.load(RECORD).series
    TARGET.write_text(text(series[LARGEST], lab_precision.moments_of(series)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
