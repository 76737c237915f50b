"""A reader's own run of labs/memory.py in the view `memory`: what of its Record belongs into the picture."""

from __future__ import annotations

from scaleout.draw.amounts import amount
from scaleout.draw.tank import Own, Ruler
from scaleout.spec.transformer import Shape, total_parameters


def measured(record: dict) -> dict:
    """Of a Record of labs/memory.py: bytes of each parameter at its update, its peak beside what was predicted, and
    words on model, recipe and device."""
    if record.get("stem") != "memory":
        raise ValueError(f"this is a Record of {record.get('stem')!r}: use one of labs/memory.py")
    try:
        parameters = total_parameters(Shape(**record["model"]))
        update, seen = (_bytes(record["measurement"][name]) for name in ("bytes at optimizer", "peak bytes"))
        return {
            "bytes_each": update / parameters, "peak_bytes": seen, "parameters": parameters,
            "predicted_bytes": _bytes(record["prediction"]["peak bytes"]),
            "device": _text(record["device"]), "ranks": _bytes(record["device_count"]),
            "precision": _text(record["recipe"]["precision"]), "optimizer": _text(record["recipe"]["optimizer"]),
        }  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this Record of memory is damaged ({error}): run labs/memory.py --save again") from None


def _bytes(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e18:
        raise ValueError(f"{value!r} is no number above 0")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 60:
        raise ValueError(f"{value!r:.60} is no name")
    return value


def own_run(own: dict, ruler: Ruler, most: float) -> Own:
    """Only bytes of a parameter carry over from a small model to a large one; the rest is said in words. most: bytes
    that the scale shows anyway; what is far beyond them is not drawn."""
    here, ranks = sum(ruler.whole.values()), f"{own['ranks']} ranks" if own["ranks"] > 1 else "one rank"
    seen, wanted = (amount(own[name], 10**9) for name in ("peak_bytes", "predicted_bytes"))
    same, drawn = abs(own["bytes_each"] / here - 1) < 0.02, own["bytes_each"] * ruler.each < 2 * most
    return Own(own["bytes_each"], (
        f"your run: {own['bytes_each']:.3g} bytes a parameter at its update",
        "as in this setting" if same else f"here {here:.3g}: another recipe", *(() if drawn else ("off this scale",)),
        f"{own['parameters'] / 10**6:.3g} million parameters", f"{own['precision']}, {own['optimizer']}",
        f"{ranks} on {own['device']}", f"peak {seen} measured, {wanted} predicted",
    ), drawn)  # fmt: skip
