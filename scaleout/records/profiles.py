"""The profile of a machine in a file: where it is stored, and what it must contain. Measured by `labs/calibrate.py`."""

import os
from pathlib import Path

from scaleout.records.files import read_json, write_json
from scaleout.spec.checks import is_number

SCHEMA = 1
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
TEXTS = ("device", "device_kind", "backend", "interconnect", "measured", "commit")
TABLES = ("matmul_flops_per_second", "collectives")
NUMBERS = {"world": 1, "threads": 1, "copy_bytes_per_second": 0}  # name -> lowest sound value


def default_path(device_kind, world):
    """Where a profile is kept unless told otherwise: one file for each kind of device and world size."""
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        raise ValueError("this user has no home folder: set XDG_CACHE_HOME, or give a file by name") from None
    return Path(cache) / "scaleout" / f"machine-{device_kind}-{world}.json"


def save(profile, path):
    """Validate a profile (dict) and write it to `path`, all or nothing. Returns the Path."""
    validate(profile)
    return write_json(profile, path)


def load(path):
    """Read a profile (dict). ValueError, one line, where it is missing, broken or not a profile."""
    try:
        profile = read_json(path)
        validate(profile)
    except ValueError as error:
        raise ValueError(f"machine profile {path}: {error} (python labs/calibrate.py makes one)") from None
    return profile


def find(path, device_kind, world):
    """The profile at `path`; without one, the profile at its default path, or None where there is none.

    ValueError where it was measured on another kind of device or number of processes.
    """
    if path is None:
        try:
            if not default_path(device_kind, world).exists():
                return None
        except (OSError, ValueError):  # a home that one may not enter, or none
            return None
    profile = load(path or default_path(device_kind, world))
    if (profile["device_kind"], profile["world"]) != (device_kind, world):
        raise ValueError(
            f"machine profile is of {profile['world']} process(es) on {profile['device_kind']}: "
            f"run labs/calibrate.py with {world} on {device_kind}"
        )
    return profile


def several(path, device_kind, worlds, world):
    """{processes: profile or None} of each of `worlds`: of `world` at `path`, or at the default one; of fewer as groups
    of it, where it was measured in such, or at their default path."""
    full = find(path, device_kind, world)
    return {n: full if n == world else among(full, n) or find(None, device_kind, n) for n in worlds}


def lacking(known, world):
    """In words, what `several` has not found; "" where all is there. The profile of all ranks has those of groups."""
    missing = [n for n, profile in known.items() if profile is None]
    if not missing:
        return ""
    if known[world] is None:
        return f"no profile of {world} process{'es' * (world > 1)} (labs/calibrate.py)"
    return f"the profile of {world} processes has no groups of {missing[0]} (run labs/calibrate.py again)"


def among(profile, n):
    """The profile of n of its ranks, measured while the others did the same in groups of their own; None where it
    has none."""
    lines = (profile or {}).get("groups", {}).get(str(n))
    return profile | {"world": n, "collectives": lines, "groups": {}} if lines else None


def validate(profile):
    """Raise ValueError, one line, unless `profile` holds what `labs/calibrate.py` writes."""
    if profile.get("schema") != SCHEMA:
        raise ValueError(f"schema is {profile.get('schema')!r}, this version reads {SCHEMA}")
    for name in (n for n in TEXTS if not isinstance(profile.get(n), str)):
        raise ValueError(f"{name} must be a text")
    for name, lowest in NUMBERS.items():
        if not is_number(profile.get(name)) or profile[name] < lowest:
            raise ValueError(f"{name} must be a number from {lowest}")
    for name in (n for n in TABLES if not isinstance(profile.get(n), dict)):
        raise ValueError(f"{name} must be a table")
    if not all(is_number(v) and v > 0 for v in profile["matmul_flops_per_second"].values()):
        raise ValueError("matmul_flops_per_second must hold rates above 0")
    _kernels(profile.get("kernels", {}))
    for lines in (profile["collectives"], *_groups(profile).values()):
        for name, line in lines.items():
            if name not in COLLECTIVES or not _line(line):
                raise ValueError(f"collectives: {name!r} needs alpha_seconds and seconds_per_byte, from 0")


def _kernels(kernels):
    """ValueError unless every number in what was timed kernel by kernel is above 0; an older profile has none of it."""
    if is_number(kernels):
        if kernels <= 0:
            raise ValueError("kernels must hold numbers above 0")
    elif isinstance(kernels, dict | list):
        for entry in kernels.values() if isinstance(kernels, dict) else kernels:
            _kernels(entry)
    else:
        raise ValueError(f"kernels: {kernels!r} is no number")


def _groups(profile):
    """{number of ranks, as text: collectives} of a profile; an older one has none."""
    groups = profile.get("groups", {})
    if not isinstance(groups, dict) or not all(n.isdigit() and isinstance(lines, dict) for n, lines in groups.items()):
        raise ValueError("groups must be a table of collectives by number of ranks")
    return groups


def _line(value):
    return isinstance(value, dict) and all(
        is_number(value.get(name)) and value[name] >= 0 for name in ("alpha_seconds", "seconds_per_byte")
    )
