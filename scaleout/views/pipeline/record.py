"""A reader's own run of labs/pipeline.py in the view `pipeline`: when its steps ended, beside the predicted ends."""

from __future__ import annotations

import re

from scaleout.spec.pipeline import SCHEDULES
from scaleout.views import own
from scaleout.views.pipeline.words import number

LAB = "labs/pipeline.py"
STEP = re.compile(r"seconds per step, (.+?)(?:, v = (\d))?, (by hand|torch), ([\d.]+) ms stages")
NAMES = {schedule.label: name for name, schedule in SCHEDULES.items()}


def measured(record: dict) -> dict:
    """{"ranks", "device", "micro_batches", "steps": [[schedule, v, way, hop, slots, predicted slots], ...]} of a
    Record; ValueError, in one line, for any other file."""
    run = own.group(record, "pipeline", LAB)
    seen, predicted, recipe = (own.table(record, name, LAB) for name in ("measurement", "prediction", "recipe"))
    micro_batches = own.amount(recipe, "micro_batches", LAB)
    hop = own.amount(recipe, "hop ms", LAB) if recipe.get("hop ms") else 0.0
    steps = []
    for name in seen:
        read = STEP.fullmatch(name)
        if read and read[1] in NAMES and float(read[4]) > 0:
            slot = float(read[4]) / 1e3
            slots = [own.amount(table, name, LAB) / slot for table in (seen, predicted)]
            steps.append([NAMES[read[1]], int(read[2] or 1), read[3], hop / float(read[4]), *slots])
    if not steps:
        raise ValueError(f"this Record of {LAB} has no seconds per step of a schedule: run the lab again with --save")
    return run | {"micro_batches": micro_batches, "steps": steps}


def matching_step(run: dict | None, setting) -> list | None:
    """The step of a run that is what is set: by hand, if it is there, and of the longest stages."""
    if run is None or (run["ranks"], run["micro_batches"]) != (setting.ranks, setting.micro_batches):
        return None
    if setting.head or setting.backward != 2 or setting.blocking:  # the lab's stages are alike, and send beside work
        return None
    matching = [
        step
        for step in run["steps"]
        if step[:2] == [setting.schedule, setting.chunks] and abs(step[3] - setting.hop) < 1e-6
    ]
    return min(matching, key=lambda step: (step[2], step[4] / step[5]), default=None)


def words(run: dict, step: list | None, setting) -> list[str]:
    """What the run took, and on what; or what of the setting would have to be another, the schedule first."""
    if step:
        _, _, way, _, slots, wanted = step
        return [f"your run, {way}: {number(slots)} slots, {number(wanted)} predicted", own.machine(run)]
    nearest = min(run["steps"], key=lambda row: (row[0] != setting.schedule, row[1] != setting.chunks, row[2]))
    label = SCHEDULES[nearest[0]].label
    conditions = [
        (label, nearest[0] == setting.schedule),
        (f"p = {run['ranks']}", run["ranks"] == setting.ranks),
        (f"m = {run['micro_batches']:g}", run["micro_batches"] == setting.micro_batches),
        (f"v = {nearest[1]}", nearest[1] in (1, setting.chunks)),
        (f"hop {number(nearest[3])}", abs(nearest[3] - setting.hop) < 1e-6),
        ("head 0", not setting.head),
        ("backward 2", setting.backward == 2),
        ("no rank idle while it sends", not setting.blocking),
    ]
    return [
        f"your run: {run['ranks']} ranks, m = {run['micro_batches']:g}, hop {number(run['steps'][0][3])}",
        f"to see it, set {', '.join(condition for condition, fulfilled in conditions if not fulfilled)}",
    ]
