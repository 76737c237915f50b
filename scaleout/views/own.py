"""A reader's own Record in a view: the fields of every lab, read with checks, because a reader can drop any file."""

from __future__ import annotations

from dataclasses import fields

from scaleout.spec import checks
from scaleout.spec.transformer import Shape, total_parameters

LONGEST_NAME = 60  # of a device
LARGEST = 1e18


def run(record: dict, stem: str, lab: str) -> dict:
    """{"ranks", "device"} of a Record of this stem; ValueError, in one line, for another lab's or a damaged one."""
    if record.get("stem") != stem:
        raise ValueError(f"this is no Record of {lab}: its stem is {str(record.get('stem'))[:40]!r}, not {stem!r}")
    ranks, device = record.get("device_count"), record.get("device")
    if not (checks.is_whole(ranks) and 1 <= ranks <= 10**6) or not isinstance(device, str) or not device.strip():
        raise ValueError(f"this Record of {lab} says no device_count or device: run the lab again with --save")
    return {"ranks": ranks, "device": device.strip()[:LONGEST_NAME]}


def group(record: dict, stem: str, lab: str) -> dict:
    """The same of a run of several ranks."""
    found = run(record, stem, lab)
    if found["ranks"] == 1:
        raise ValueError("this Record is of one process, which communicates nothing: use one of two or more")
    return found


def table(record: dict, name: str, lab: str) -> dict:
    """One of a Record's tables."""
    entries = record.get(name)
    if not isinstance(entries, dict):
        raise ValueError(f"this Record of {lab} has no {name}: run the lab again with --save")
    return entries


def amount(entries: dict, name: str, lab: str) -> float:
    """A number above 0 of a table."""
    value = entries.get(name)
    if not (checks.is_number(value) and 0 < value < LARGEST):
        raise ValueError(f"this Record of {lab} has no {name!r} above 0: run the lab again with --save")
    return value


def parameters(record: dict, lab: str) -> int:
    """Of the model of a Record; fields of its shape that this book does not know are left out."""
    known = {field.name for field in fields(Shape)}
    model = {name: value for name, value in table(record, "model", lab).items() if name in known}
    try:
        count = total_parameters(Shape(**model))
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0][:80]
        raise ValueError(f"this Record of {lab} has no sound model, {reason}: run the lab again with --save") from None
    return int(amount({"parameters": count}, "parameters", lab))


def exposed(seen: dict, way: str, lab: str) -> tuple[float, float]:
    """(seconds of a step, those in which it waits for communication) of a way."""
    seconds, waits = (amount(seen, f"{name}seconds per step, {way}", lab) for name in ("", "exposed "))
    if waits >= seconds:
        raise ValueError("this Record has more exposed communication than step time: run the lab again with --save")
    return seconds, waits


def machine(record: dict) -> str:
    """What a run ran on."""
    return f"{record['ranks']:,} rank{'s' if record['ranks'] > 1 else ''} on {record['device']}"
