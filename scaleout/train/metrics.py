"""What the training job keeps of its steps, as JSON lines, and what the files in its folder are called."""

import json
import os
import shutil
from pathlib import Path

from scaleout.records.files import is_count
from scaleout.records.results import LONGEST as LONGEST_S

METRICS, PLOT, SAMPLE, CHECKPOINTS = "metrics.jsonl", "plot.svg", "sample.txt", "checkpoints"
CHANGED = "changed"  # in the row of an event that is no failure: somebody changed an option
FAILURES = "failures.jsonl"  # what a watch that ends the job had to say; {"time", "failure"} a line
FILES = (METRICS, PLOT, SAMPLE, FAILURES)
FIELDS = ("loss", "rate", "norm", "seconds", "wait")  # of every step, after its number
SERIES = {"rate": "learning rate", "norm": "gradient norm", "wait": "data wait seconds"}  # in a Record
LONGEST = 2**16  # bytes of a line of metrics: what is longer was not written by this job


class Metrics:
    """Every step of a run and its validations, in order: on all ranks in memory, on rank 0 also as JSON lines.

    `steps`: {"step", "loss", "rate", "norm", "seconds", "wait"}, loss and norm over all ranks, seconds of the slowest
    one; with fp16 also "scale", by which the loss was multiplied, and norm None where the step was left out.
    `validations`: {"step", "validation"}. `checkpoints`: {"step", "checkpoint"}, the seconds that training was blocked.
    `events`: {"step", "event"}, in words, with CHANGED where an option changed. Steps count from 1.
    """

    def __init__(self, folder, keeps):
        """folder: of the run, or None to keep nothing. keeps: True on the rank that writes."""
        self.path = Path(folder) / METRICS if folder and keeps else None
        self.steps, self.validations, self.checkpoints, self.events = [], [], [], []

    def begin(self, step, fresh=False):
        """Go on after step `step`: lines of later steps, which a killed run made and nobody kept, are taken out.

        fresh: a new run, from whose folder nothing is taken out: what a run before it left is kept in other files.
        Returns (steps that are taken out, lines for the screen and the Record about what was found). ValueError where
        a fresh run would begin beside a run that came to a checkpoint.
        """
        if self.path is None:
            return 0, []
        rows, lines = _rows(self.path, _sound)
        count, remaining, found_too = sum("loss" in row for row in rows), [], []
        if fresh:
            self._refuse_beside(rows)
            if rows:
                lines.append(f"the folder holds {count:,} step(s) of an earlier run that came to no checkpoint")
            found_too = [path for path in map(self.path.with_name, (FAILURES, SAMPLE, PLOT)) if path.exists()]
        else:
            remaining = [row for row in rows + self._failures(rows) if row["step"] <= step or "event" in row]
        aside = ([self.path] if lines else []) + found_too
        if aside:
            lines.append("kept as found: " + ", ".join(f"{path.name} as {_put_aside(path).name}" for path in aside))
        for path in found_too:
            path.unlink()
        new = self.path.with_suffix(".new")  # a kill now must not take the run's history with it
        with new.open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in remaining)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(self.path)
        for row in remaining:
            self._file(row)
        return count - sum("loss" in row for row in remaining) if not fresh else 0, lines

    def _refuse_beside(self, rows):
        """ValueError where the folder's run came to a checkpoint: nobody could tell two runs apart afterwards."""
        folder, steps = self.path.parent, sum("loss" in row for row in rows)
        begun = sum("checkpoint" in row for row in rows)
        if any((folder / CHECKPOINTS).glob("step-*")):
            raise ValueError(
                f"{folder} holds a run with checkpoints, and --checkpoint-every none does not go on from "
                "them: leave it out, or use another --folder"
            )
        if begun > 1:  # the first is whole before the second begins
            raise ValueError(
                f"{folder} holds {steps:,} steps of a run that made checkpoints, and "
                f"{folder / CHECKPOINTS} has none: bring them back, or use another --folder"
            )

    def _failures(self, rows):
        """What a watch said as it ended an earlier attempt, as events that are not yet among the rows."""
        known, step = {row.get("event") for row in rows}, max((row["step"] for row in rows), default=0)
        lines, _ = _rows(self.path.with_name(FAILURES), lambda row: _text(row.get("failure")))
        failures = [row["failure"] for row in lines]
        return [{"step": step, "event": line} for line in dict.fromkeys(failures) if line not in known]

    def add(self, rows):
        """Keep rows of any kind, and write them."""
        for row in rows:
            self._file(row)
        if self.path is not None:
            try:
                with self.path.open("a", encoding="utf-8") as stream:
                    stream.write("".join(json.dumps(row) + "\n" for row in rows))
            except OSError as error:
                error.filename = str(self.path)  # a full disk does not say of which file
                raise

    def _file(self, row):
        kinds = {"event": self.events, "validation": self.validations, "checkpoint": self.checkpoints}
        kinds.get(next((name for name in kinds if name in row), None), self.steps).append(row)

    @property
    def told(self):
        """(what failed or ended an attempt and how the run went on, what somebody changed in between), in words."""
        return tuple([row["event"] for row in self.events if (CHANGED in row) is changed] for changed in (False, True))

    def column(self, name):
        """One field of every step that has it (list)."""
        return [row[name] for row in self.steps if name in row]

    def series(self):
        """The series of a Record: what was measured at every step, validation and checkpoint. The gradient of a step
        left out has norm 0: nothing was applied."""
        scales = self.column("scale")
        return {
            **{name: [value or 0.0 for value in self.column(field)] for field, name in SERIES.items()},
            **({"loss scale": scales} if scales else {}),
            "validation nats a byte": [row["validation"] for row in self.validations],
            "validation step": [row["step"] for row in self.validations],
            "checkpoint blocked seconds": [row["checkpoint"] for row in self.checkpoints],
            "checkpoint step": [row["step"] for row in self.checkpoints],
        }


def _rows(path, sound):
    """(dicts of a file of JSON lines for which `sound` holds, [] or [a line for the screen on all other lines]).

    A power cut leaves zeros where a line was about to be, a kill half a line: the lines after it still count.
    """
    rows, bad = [], []
    with (path if path.exists() else Path(os.devnull)).open("rb") as stream:
        number = 0
        while line := stream.readline(LONGEST):
            number += 1
            row = _row(line)
            while len(line) == LONGEST and line[-1:] != b"\n":  # the rest of one that is too long
                row, line = None, stream.readline(LONGEST)
            if row is not None and sound(row):
                rows.append(row)
            else:
                bad.append(number)
    if not bad:
        return rows, []
    steps = {row["step"] for row in rows if "loss" in row}
    gap = max(steps) - min(steps) + 1 - len(steps) if steps else 0
    return rows, [
        f"{path.name}: {len(bad):,} of {number:,} line(s) cannot be read, the first is line {bad[0]:,}; "
        f"{gap:,} step(s) are missing between those that can"
    ]


def _row(line):
    try:
        row = json.loads(line.strip(b"\0").decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _sound(row):
    """A dict is a row of metrics: a step, and with it an event, a finite number, or all the FIELDS of a step.

    A step that loss scaling left out has the norm None."""
    if not is_count(row.get("step")):
        return False
    if "event" in row:
        return _text(row["event"])
    if "scale" in row and row.get("norm", 0) is None:
        row = row | {"norm": 0}
    usual = (*FIELDS, "scale") if "scale" in row else FIELDS
    names = next(((name,) for name in ("validation", "checkpoint") if name in row), usual)
    return (
        all(type(row.get(name)) in (int, float) and abs(row[name]) < 1e300 for name in names)
        and 0 < row.get("seconds", 1) <= LONGEST_S
        and row.get("wait", 0) >= 0
    )


def _text(value):
    """One line of words, fit for a screen and a Record."""
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def _put_aside(path):
    """Copy a file such as metrics.jsonl to metrics.1.jsonl, or the first number that is free; the Path."""
    number = 1
    while path.with_name(f"{path.stem}.{number}{path.suffix}").exists():
        number += 1
    aside = path.with_name(f"{path.stem}.{number}{path.suffix}")
    with path.open("rb") as source, aside.open("xb") as copy:
        shutil.copyfileobj(source, copy)
        copy.flush()
        os.fsync(copy.fileno())
    return aside


def failures_file(folder):
    """Where a watch leaves its last words, or None."""
    return Path(folder) / FAILURES if folder else None
