"""Write tests/published/steps_judged.json: each published step beside what is predicted of it.

    python tools/fit_seconds.py --cross --out FILE    about twenty minutes
    python tools/judge.py FILE

`predicted` is by the constants as they stand, which all rows made; `apart` by constants that the row's own series did
not make.
"""

from __future__ import annotations

import json
import sys
from math import exp
from pathlib import Path

import measured

from scaleout.spec.transformer import total_parameters
from scaleout.timing.rates import family

COLUMNS = ("series", "program", "family", "device", "parameters", "gpus", "tokens", "layout", "measured", "predicted",
           "apart")  # fmt: skip
OUT = measured.PUBLISHED / "steps_judged.json"


def judged(errors: list) -> list[list]:
    """A line for each row. errors: [series, name, log of predicted by measured], as --cross writes them."""
    left_out: dict[tuple[str, str], list[float]] = {}
    for series, name, error in errors:
        left_out.setdefault((series, name), []).append(error)
    out = []
    for row in measured.rows():
        job, error = row.job, left_out[row.series, row.name].pop(0)
        out.append(
            [
                row.series.rsplit(" ", 1)[0],
                job.program.name,
                family(job.device),
                row.series.rsplit(" ", 1)[1],
                total_parameters(job.shape),
                job.layout.ranks,
                job.seq,
                layout(job),
                row.seconds,
                _three(measured.seconds(row)),
                _three(row.seconds * exp(error)),
            ]
        )
    return out


def layout(job) -> str:
    """The degrees above 1, ZeRO's stage, what is recomputed."""
    at = job.layout
    return ", ".join([*at.degrees, f"ZeRO {at.zero}", f"{job.recipe.checkpointing} recomputation"])


def _three(value: float) -> float:
    return float(f"{value:.4g}")


def main(argv: list[str] | None = None) -> int:
    (name,) = sys.argv[1:] if argv is None else argv
    lines = ",\n".join(f"  {json.dumps(line)}" for line in judged(json.loads(Path(name).read_text())))
    note = json.dumps(__doc__.splitlines()[-2] + " " + __doc__.splitlines()[-1])
    OUT.write_text(f'{{\n "note": {note},\n "columns": {json.dumps(COLUMNS)},\n "rows": [\n{lines}\n ]\n}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
