"""Write scaleout/numerics/recorded.py from the Record of a run of labs/precision.py, so that the page, which reads no
files, has the gradients of a real model.

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
HEAD = '''"""Gradients of the book's model, by part and octave: what labs/precision.py found (size cpu) in fp32, before
its first step and after its last. tools/recorded_gradients.py writes this from labs/results/precision/cpu-cpu-1.json.

Kinds: "activations", what comes back to the outputs of linear layers and is kept in 16 bits where products are; and
"weights", what the optimizer gets.
"""

from __future__ import annotations

from scaleout.numerics.octaves import Histogram

# Moment, kind, part; then the first octave, numbers that are zero, the largest, and the numbers of each octave.
_TABLE = """
'''
TAIL = '''"""


def _read() -> dict[str, dict[str, dict[str, Histogram]]]:
    found = {}
    for line in _TABLE.replace("\\n  ", " ").strip().splitlines():
        names, numbers = line.split(": ")
        moment, kind, part = names.split(", ", 2)
        first, zeros, largest, *counts = numbers.split()
        found.setdefault(moment, {}).setdefault(kind, {})[part] = Histogram(
            int(first), tuple(map(int, counts)), int(zeros), float(largest))
    return found


GRADIENTS = _read()
'''


def text(moments: dict) -> str:
    """The module as text."""
    rows = []
    for moment, kinds in moments.items():
        for kind, parts in kinds.items():
            for part, h in parts.items():
                line = f"{moment}, {kind}, {part}: {h.first} {h.zeros} {h.largest!r} {' '.join(map(str, h.counts))}"
                rows += textwrap.wrap(line, 118, subsequent_indent="  ")
    return HEAD + "\n".join(rows) + "\n" + TAIL


def main() -> int:
    """Write it; the exit code."""
    TARGET.write_text(text(lab_precision.moments_of(results.load(RECORD).series)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
