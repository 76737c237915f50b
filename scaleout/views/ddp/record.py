"""A reader's own run of labs/ddp.py in the view `ddp`: how much of its step was exposed."""

from __future__ import annotations

from scaleout.views import own

LAB = "labs/ddp.py"
WAYS = ("torch DDP", "Accelerate", "buckets by hand", "naive")  # the first that the Record has


def measured(record: dict) -> dict:
    """{"ranks", "device", "way", "seconds", "exposed"} of a Record; ValueError, in one line, for any other file."""
    run = own.group(record, "ddp", LAB)
    seen = own.table(record, "measurement", LAB)
    way = next((way for way in WAYS if f"exposed seconds per step, {way}" in seen), WAYS[0])
    seconds, waits = own.exposed(seen, way, LAB)
    return run | {"way": way, "seconds": seconds, "exposed": waits}


def point(run: dict) -> tuple[int, float, str]:
    """(ranks, weak-scaling efficiency, words), where a rank alone would save only the exposed communication."""
    share = 1 - run["exposed"] / run["seconds"]
    return run["ranks"], share, f"your run: {share:.0%}, {own.machine(run)}"
