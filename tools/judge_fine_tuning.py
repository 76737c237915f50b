"""Write tests/published/fine_tuning_judged.json: each published fine-tuning run beside what is predicted of it.

    python tools/judge_fine_tuning.py

Seconds and memory are those of the model and the account as they stand, and `of_2024_gib` the account's with what
IBM's programs kept in 2024 (tools/fine_tuning.py). The last columns are what public calculators say
(tools/calculators.py), in GiB, null where one has no answer. A row that is refused has null.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial

import calculators
import fine_tuning
import measured

from scaleout.spec.transformer import total_parameters
from scaleout.timing.job import step

OUT = measured.PUBLISHED / "fine_tuning_judged.json"
COLUMNS = ("series", "model", "parameters", "device", "gpus", "program", "method", "kernels", "loss", "checkpointing",
           "batch", "tokens", "memory", "measured_seconds", "predicted_seconds", "measured_gib", "predicted_gib",
           "of_2024_gib", *calculators.CALCULATORS)  # fmt: skip


def judged(run: fine_tuning.Run) -> list:
    """The line of a run."""
    values = run.values
    asked = calculators.Asked(
        run.shape,
        values["seq"],
        values["batch"],
        values["gpus"],
        values["method"],
        values["checkpointing"] == "full",
        values["precision"] != "bf16",
        values["zero"] == 3,
        values["optimizer"] == "adamw-8bit",
    )
    memory = (fine_tuning.peak, values["gib"]), (fine_tuning.peak_of_2024, values["series"].startswith("fms"))
    answers = [calculate(asked) if values["gib"] else None for calculate in calculators.CALCULATORS.values()]
    return [
        *(values[name] for name in ("series", "model")),
        total_parameters(run.shape),
        *(
            values[name]
            for name in ("device", "gpus", "program", "method", "kernels", "loss", "checkpointing", "batch")
        ),
        values["seq"],
        values["memory"],
        run.seconds,
        _three(priced(lambda: step(run.job).seconds) if run.seconds else None),
        values["gib"],
        *(_three(_gib(priced(partial(ask, run)) if asked_of else None)) for ask, asked_of in memory),
        *(_three(_gib(answer)) for answer in answers),
    ]


def priced(price: Callable[[], float]) -> float | None:
    """What is predicted, or None where the book refuses to."""
    try:
        return price()
    except ValueError:
        return None


def _gib(size: float | None) -> float | None:
    return None if size is None else size / fine_tuning.GIB


def _three(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def main() -> int:
    lines = ",\n".join(f"  {json.dumps(judged(run))}" for run in [*fine_tuning.runs(), *fine_tuning.memory_alone()])
    note = json.dumps("written by tools/judge_fine_tuning.py; sources and columns: fine_tuning_runs.json")
    OUT.write_text(f'{{\n "note": {note},\n "columns": {json.dumps(COLUMNS)},\n "rows": [\n{lines}\n ]\n}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
