"""A reader's own Record in a view: the fields of every lab, read with checks, because a reader can drop any file."""

from __future__ import annotations

from scaleout.spec import checks

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


def machine(record: dict) -> str:
    """What a run ran on."""
    return f"{record['ranks']:,} rank{'s' if record['ranks'] > 1 else ''} on {record['device']}"
