"""A reader's own run of labs/fsdp.py in the view `fsdp`: its peak beside the predicted one."""

from __future__ import annotations

from scaleout.spec.transformer import PRESETS, total_parameters
from scaleout.views import own
from scaleout.words.amounts import amount

LAB = "labs/fsdp.py"


def measured(record: dict) -> dict:
    """{"ranks", "device", "parameters", "peak_bytes", "predicted_bytes"} of a Record; ValueError, in one line, for any
    other file."""
    run = own.run(record, "fsdp", LAB)
    seen, predicted = (own.table(record, name, LAB) for name in ("measurement", "prediction"))
    return run | {
        "parameters": own.parameters(record, LAB),
        "peak_bytes": own.amount(seen, "peak bytes", LAB),
        "predicted_bytes": own.amount(predicted, "peak bytes", LAB),
    }


def words(run: dict, same_setting: bool) -> list[str]:
    """The peak of the run and its prediction; same_setting: whether it ran what is set here."""
    seen, predicted = (amount(run[name], 2**30) for name in ("peak_bytes", "predicted_bytes"))
    ran = own.machine(run) if same_setting else f"{own.machine(run)}, another model"
    return [f"your run: {seen} at its peak, {predicted} predicted", ran]


def belongs(run: dict, model: str, ranks: int) -> bool:
    """Whether it is of the model and the ranks that are set, so that its peak lies on the same axis."""
    return run["parameters"] == total_parameters(PRESETS[model]) and run["ranks"] == ranks
