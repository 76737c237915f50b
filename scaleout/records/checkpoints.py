"""Checkpoints in a folder: complete or absent, checked byte by byte; the last few and the best are kept.

    FOLDER/step-00000040/           one checkpoint, published by one rename
        manifest.json               written last: step, extra facts, size and SHA-256 of every other file
        ...                         what scaleout/train/checkpoint.py writes
    FOLDER/.writing-00000050-0/     a checkpoint on its way; the next start removes what a kill left of it

A rename within a file system happens wholly or not at all, also when the machine stops in the middle of it
(POSIX rename; the folder is synced before and after). An object store promises no such thing, mounted as a disk or not:
the folder has to be on a file system.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

from scaleout.records import provenance
from scaleout.records.files import is_count, no_constant
from scaleout.spec.checks import is_number

SCHEMA = 1
MANIFEST = "manifest.json"
LARGEST = 2**26  # bytes of a manifest: thousands of ranks need a hundredth of it
DONE, WRITING, LEAVING = "step-", ".writing-", ".removing-"


# --- writing ------------------------------------------------------------------------------------------------


def name(step):
    """The folder of a checkpoint after `step` steps: sorted by name is sorted by step."""
    return f"{DONE}{step:08d}"


def temporary(folder, step, attempt=0):
    """Where a checkpoint is written (Path). attempt: how often the job was restarted, so that nobody who is left over
    from an earlier attempt writes into this one's folder."""
    return Path(folder) / f"{WRITING}{step:08d}-{attempt}"


def checksum(path):
    """{"bytes", "sha256"} of a file, read back from the file system."""
    with Path(path).open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return {"bytes": stream.tell(), "sha256": digest}


def write_text(path, text):
    """Write a file and wait until the device has it."""
    with Path(path).open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def publish(written, folder, body):
    """Make the checkpoint in folder `written` appear under its name in `folder`, manifest and all. Returns the Path.

    body (dict, JSON): "step" (int), "loss" (float or None), "files" {name: checksum}, and whatever belongs to it.
    "number" is added: one more than the largest in the folder, which orders checkpoints by when they were made.
    OSError where the disk refuses, ValueError where a file is not as listed (storage that not all nodes share).
    """
    written, target = Path(written), Path(folder) / name(body["step"])
    for file, facts in body["files"].items():
        if not (written / file).is_file() or (written / file).stat().st_size != facts["bytes"]:
            raise ValueError(f"{file} is not what its rank wrote: all nodes must share the folder of the checkpoints")
    body = body | {"schema": SCHEMA, "number": 1 + max((number(path) for path in listing(folder)), default=0)}
    write_text(written / MANIFEST, json.dumps({"sha256": _digest(body), "body": body}, allow_nan=False))
    _sync(written)
    if target.exists():  # an abandoned future: the job went back behind it and came here again
        remove(target)
    written.rename(target)
    _sync(folder)
    return target


def _digest(body):
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _sync(folder):
    """Wait until the device has the entries of a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- reading ------------------------------------------------------------------------------------------------


def manifest(path):
    """The body (dict) of a checkpoint's manifest. ValueError, one line, that says what is wrong with it."""
    path = Path(path)
    try:
        if (path / MANIFEST).stat().st_size > LARGEST or not (path / MANIFEST).is_file():
            raise OSError
        data = json.loads((path / MANIFEST).read_text(encoding="utf-8"), parse_constant=no_constant)
        fits = isinstance(data, dict) and set(data) == {"sha256", "body"} and data["sha256"] == _digest(data["body"])
    except FileNotFoundError:
        raise ValueError(f"has no {MANIFEST}") from None
    except (OSError, ValueError, RecursionError):  # ValueError: no text, no JSON, a number of 5,000 digits
        raise ValueError(f"{MANIFEST} cannot be read") from None
    if not fits:
        raise ValueError(f"{MANIFEST} differs from what was written")
    _check_body(data["body"], step_of(path))
    return data["body"]


def _check_body(body, step):
    """ValueError, one line, where a manifest with a right checksum lacks a field, or one is of another kind."""
    if not isinstance(body, dict) or "schema" not in body:
        raise ValueError(f"{MANIFEST} has no schema")
    if body["schema"] != SCHEMA:
        raise ValueError(f"{MANIFEST} has schema {str(body['schema'])[:20]}: this version of the book reads {SCHEMA}")
    for field, holds in FIELDS.items():
        if field not in body:
            raise ValueError(f"{MANIFEST} has no {field}")
        if not holds(body[field]):
            raise ValueError(f"{MANIFEST} has no sound {field}")
    if body["step"] != step:
        raise ValueError(f"{MANIFEST} is of step {body['step']}")
    for file in body["files"]:
        if Path(file).name != file:
            raise ValueError(f"{MANIFEST} lists {file!r}, which is not in the folder")


def _checksums(value):
    return isinstance(value, dict) and all(
        isinstance(facts, dict) and is_count(facts.get("bytes")) and isinstance(facts.get("sha256"), str)
        for facts in value.values()
    )


FIELDS = {
    "step": is_count,
    "number": is_count,
    "loss": lambda value: value is None or is_number(value),
    "files": _checksums,
}


def problem(path, files):
    """What is wrong (str) with the first bad one of a checkpoint's `files` {name: checksum}; None: all are good."""
    for file, facts in files.items():
        try:
            if (Path(path) / file).exists() and not (Path(path) / file).is_file():  # a pipe has no end
                return f"{file} is no file"
            actual = checksum(Path(path) / file)
        except FileNotFoundError:
            return f"{file} is missing"
        except OSError as error:
            return f"{file} cannot be read: {error.strerror}"
        if actual["bytes"] != facts["bytes"]:
            return f"{file} has {actual['bytes']:,} bytes of {facts['bytes']:,}"
        if actual["sha256"] != facts["sha256"]:
            return f"{file} differs from what was written"
    return None


def step_of(path):
    """The step (int) in a checkpoint's name; None where it is no checkpoint."""
    digits = Path(path).name.removeprefix(DONE)
    return int(digits) if Path(path).name.startswith(DONE) and digits.isascii() and digits.isdigit() else None


def number(path):
    """When it was made, counted in checkpoints of its folder (int); 0 where the manifest does not say."""
    try:
        return manifest(path)["number"]
    except ValueError:
        return 0


def listing(folder):
    """The checkpoints (list of Path) in a folder, newest first; those without a sound manifest before all others."""
    if not Path(folder).is_dir():
        return []
    paths = [path for path in Path(folder).iterdir() if step_of(path) is not None and path.is_dir()]
    return sorted(paths, key=lambda path: (number(path) or float("inf"), step_of(path)), reverse=True)


def damage(damaged, used):
    """Lines for the screen: what is wrong with each newer checkpoint, [(step, problem)], and the step used instead."""
    lines = [f"checkpoint step {step} is damaged ({reason}): using step {used}" for step, reason in damaged]
    return [provenance.printable(line) for line in lines]  # a file's name may hold anything


# --- tidying ------------------------------------------------------------------------------------------------


def keepers(candidates, keep):
    """The steps (set) to keep of `candidates`, [(step, loss or None)] newest first: the last `keep`, and the best."""
    if keep < 1:
        raise ValueError(f"keep {keep}: keep at least one checkpoint")
    steps = {step for step, _ in candidates[:keep]}
    rated = [(loss, step) for step, loss in candidates if loss is not None]
    return steps | ({min(rated)[1]} if rated else set())


def prune(folder, keep, damaged=()):
    """Remove all but the last `keep` checkpoints and the best, and those known to be damaged. Returns the steps (list).

    damaged: steps that failed `problem`; a checkpoint without a sound manifest is known to be.
    """
    sound, doomed = [], []
    for path in listing(folder):
        try:
            body = manifest(path)
        except ValueError:
            body = None
        if body is None or body["step"] in damaged:
            doomed.append(path)
        else:
            sound.append((path, body))
    steps = keepers([(body["step"], body["loss"]) for _, body in sound], keep)
    doomed += [path for path, body in sound if body["step"] not in steps]
    for path in doomed:
        remove(path)
    return sorted(step_of(path) for path in doomed)


def remove(path):
    """Remove a checkpoint: renamed first, so that a kill leaves no half of it under its name.

    What cannot be removed (a network file system keeps files that are open) is left to the next `sweep`.
    """
    leaving = Path(path).with_name(f"{LEAVING}{Path(path).name}")
    shutil.rmtree(leaving, ignore_errors=True)
    Path(path).rename(leaving)
    shutil.rmtree(leaving, ignore_errors=True)


def sweep(folder):
    """Remove what a killed job left unfinished. Returns the names (list). Only while no job writes to the folder."""
    if not Path(folder).is_dir():
        return []
    leftovers = sorted(path for path in Path(folder).iterdir() if path.name.startswith((WRITING, LEAVING)))
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in leftovers if not path.exists()]
