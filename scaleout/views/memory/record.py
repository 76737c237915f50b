"""A reader's own run of labs/memory.py in the view `memory`: what of its Record belongs into the picture."""

from __future__ import annotations

from scaleout.draw.tank import Own, Ruler
from scaleout.views import own
from scaleout.words.amounts import amount

LAB = "labs/memory.py"


def measured(record: dict) -> dict:
    """Of a Record of labs/memory.py: bytes of each parameter at its update, its peak beside what was predicted, and
    words on model, recipe and device. ValueError, in one line, for any other file."""
    run = own.run(record, "memory", LAB)
    seen, predicted, recipe = (own.table(record, name, LAB) for name in ("measurement", "prediction", "recipe"))
    parameters = own.parameters(record, LAB)
    return run | {
        "bytes_each": own.amount(seen, "bytes at optimizer", LAB) / parameters,
        "peak_bytes": own.amount(seen, "peak bytes", LAB),
        "parameters": parameters,
        "predicted_bytes": own.amount(predicted, "peak bytes", LAB),
        "precision": _name(recipe, "precision"),
        "optimizer": _name(recipe, "optimizer"),
    }


def _name(recipe: dict, key: str) -> str:
    value = recipe.get(key)
    if not isinstance(value, str) or len(value) > own.LONGEST_NAME:
        raise ValueError(f"this Record of {LAB} has no {key}: run the lab again with --save")
    return value


def own_run(run: dict, ruler: Ruler, longest: float) -> Own:
    """Only bytes of a parameter carry over from a small model to a large one; the rest is said in words. longest: bytes
    that the scale shows anyway; what is far beyond them is not drawn."""
    setting_bytes, ranks = sum(ruler.whole.values()), f"{run['ranks']} ranks" if run["ranks"] > 1 else "one rank"
    seen, wanted = (amount(run[name], 10**9) for name in ("peak_bytes", "predicted_bytes"))
    alike, drawn = abs(run["bytes_each"] / setting_bytes - 1) < 0.02, run["bytes_each"] * ruler.each < 2 * longest
    return Own(
        run["bytes_each"],
        (
            f"your run: {run['bytes_each']:.3g} bytes per parameter at its update",
            "as in this setting" if alike else f"here {setting_bytes:.3g}: another recipe",
            *(() if drawn else ("off this scale",)),
            f"{run['parameters'] / 10**6:.3g} million parameters",
            f"{run['precision']}, {run['optimizer']}",
            f"{ranks} on {run['device']}",
            f"peak {seen} measured, {wanted} predicted",
        ),
        drawn,
    )
