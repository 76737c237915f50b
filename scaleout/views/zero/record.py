"""A reader's own run of labs/zero.py in the view `zero`: what each stage communicated and stored on its ranks."""

from __future__ import annotations

from scaleout.views import own

LAB = "labs/zero.py"
FP32 = 4  # bytes of a number in the lab
NAMES = {"0": "DDP", "1": "stage 1 by hand", "2": "stage 2 by hand", "3": "stage 3 by hand",
         "keep": "fully_shard, kept"}  # fmt: skip
SENT, HELD_KINDS = "bytes sent per step", ("weights", "gradients", "momentum", "variance")


def measured(record: dict) -> dict:
    """{"ranks", "device", "passes", "stages": {a key of NAMES: [pieces sent in a step, bytes held of a parameter]}} of
    a Record; ValueError, in one line, for any other file."""
    run = own.group(record, "zero", LAB)
    seen, recipe = own.table(record, "measurement", LAB), own.table(record, "recipe", LAB)
    if recipe.get("optimizer") != "adamw":
        raise ValueError(f"this Record of {LAB} is of another optimizer: use one with AdamW")
    parameters = own.parameters(record, LAB)
    piece = FP32 * parameters * (run["ranks"] - 1) / run["ranks"]
    stages = {}
    for key, name in NAMES.items():
        if f"{SENT}, {name}" in seen:
            sizes = [own.amount(seen, f"bytes of {kind}, {name}", LAB) for kind in HELD_KINDS]
            stages[key] = [own.amount(seen, f"{SENT}, {name}", LAB) / piece, sum(sizes) / parameters]
    if not stages:
        raise ValueError(f"this Record of {LAB} has no bytes sent by any stage: run the lab again with --save")
    return run | {"passes": own.amount(recipe, "accumulation", LAB), "stages": stages}


def matching_stage(run: dict | None, setting) -> list | None:
    """[pieces, bytes of a parameter] of the stage that is set, if the run had it, in as many passes."""
    if run is None or run["passes"] != setting.passes:
        return None
    return run["stages"].get("keep" if setting.keeps else str(setting.stage))


def words(run: dict, setting) -> tuple[str, str]:
    """What the run communicated and stored, and on what; or what would have to be set; and in fewer words."""
    stage = matching_stage(run, setting)
    if stage:
        text = f"your run: volume {stage[0]:.2f}N, {stage[1]:.3g} B per parameter"
        return f"{text}, {own.machine(run)}", text
    passes = f"{run['passes']:g} micro-batch{'es' if run['passes'] > 1 else ''}"
    return f"your run: {own.machine(run)}, {passes}", f"your run: {run['ranks']} ranks, {passes}"
