"""A reader's own run of labs/pipeline.py in the view `pipeline`: when its steps ended, beside the predicted ends."""

from __future__ import annotations

import re

from scaleout.spec.pipeline import SCHEDULES
from scaleout.views import own
from scaleout.views.pipeline.words import number

LAB = "labs/pipeline.py"
STEP = re.compile(r"seconds a step, (.+?)(?:, v = (\d))?, (by hand|torch), ([\d.]+) ms stages")
NAMES = {one.label: name for name, one in SCHEDULES.items()}


def measured(record: dict) -> dict:
    """{"ranks", "device", "micro_batches", "steps": [[schedule, v, way, hop, slots, predicted slots], ...]} of a
    Record; ValueError, in one line, for any other file."""
    found = own.run(record, "pipeline", LAB)
    if found["ranks"] == 1:
        raise ValueError("this Record is of one process, which is no pipeline: use one of two or more")
    seen, said, recipe = (own.table(record, name, LAB) for name in ("measurement", "prediction", "recipe"))
    many = own.amount(recipe, "micro_batches", LAB)
    hop = own.amount(recipe, "hop ms", LAB) if recipe.get("hop ms") else 0.0
    steps = []
    for name in seen:
        read = STEP.fullmatch(name)
        if read and read[1] in NAMES and float(read[4]) > 0:
            slot = float(read[4]) / 1e3
            took = [own.amount(table, name, LAB) / slot for table in (seen, said)]
            steps.append([NAMES[read[1]], int(read[2] or 1), read[3], hop / float(read[4]), *took])
    if not steps:
        raise ValueError(f"this Record of {LAB} has no seconds a step of a schedule: run the lab again with --save")
    return found | {"micro_batches": many, "steps": steps}


def of(run: dict | None, setting) -> list | None:
    """The step of a run that is what is set: by hand, if it is there, and of the longest stages."""
    if run is None or (run["ranks"], run["micro_batches"]) != (setting.ranks, setting.micro_batches):
        return None
    if setting.head or setting.backward != 2 or setting.blocking:  # the lab's stages are alike, and send beside work
        return None
    same = [
        one
        for one in run["steps"]
        if one[:2] == [setting.schedule, setting.chunks] and abs(one[3] - setting.hop) < 1e-6
    ]
    return min(same, key=lambda one: (one[2], one[4] / one[5]), default=None)


def words(run: dict, step: list | None, setting) -> list[str]:
    """What the run took, and on what; or what of the setting would have to be another, the schedule first."""
    if step:
        _, _, way, _, took, wanted = step
        return [f"your run, {way}: {number(took)} slots, {number(wanted)} predicted", own.where(run)]
    had = min(run["steps"], key=lambda one: (one[0] != setting.schedule, one[1] != setting.chunks, one[2]))
    label = SCHEDULES[had[0]].label
    found = [
        (label, had[0] == setting.schedule),
        (f"p = {run['ranks']}", run["ranks"] == setting.ranks),
        (f"m = {run['micro_batches']:g}", run["micro_batches"] == setting.micro_batches),
        (f"v = {had[1]}", had[1] in (1, setting.chunks)),
        (f"hop {number(had[3])}", abs(had[3] - setting.hop) < 1e-6),
        ("head 0", not setting.head),
        ("backward 2", setting.backward == 2),
        ("no rank idle while it sends", not setting.blocking),
    ]
    return [
        f"your run: {run['ranks']} ranks, m = {run['micro_batches']:g}, hop {number(run['steps'][0][3])}",
        f"to see it set {', '.join(said for said, same in found if not same)}",
    ]
