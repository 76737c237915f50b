"""When the training job makes a checkpoint, and from which one it goes on."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

from scaleout.lab import join
from scaleout.records import checkpoints
from scaleout.records.files import is_count
from scaleout.timing import reliability
from scaleout.train import options
from scaleout.train.checkpoint import Checkpoints
from scaleout.train.metrics import CHECKPOINTS

FIRST = 12  # step of the first checkpoint with "auto": its cost decides when the others come


class Cadence:
    """The checkpoints of a run. `kept` is None where it has none: no --folder, or --checkpoint-every none.

    With "auto" the time between two is Young's: sqrt(2 * seconds that one costs * mean seconds between failures).
    """

    def __init__(self, s, o, faults) -> None:
        """s: a lab.session.Session. o: a train.options.Options. faults: a faults.Faults."""
        self.s, self.o, self.kept, self.told = s, o, None, 0
        self.every = options.checkpoint_steps(o)
        self.next = FIRST if self.every is None else self.every
        self.blocked: list[float] = []
        if o.folder is not None and self.every != 0:
            self.kept = Checkpoints(s, Path(o.folder) / CHECKPOINTS, o.keep, faults=faults)

    @property
    def last(self) -> int | None:
        """Step of the last good checkpoint."""
        return self.kept.last if self.kept else None

    def due(self, step: int) -> bool:
        """A checkpoint belongs after step `step`."""
        return self.kept is not None and step >= self.next

    def load(self, trainer, run: dict) -> dict | None:
        """Load what --resume asks for. What was saved with it, or None to begin at step 0.

        run: what the job has in common with a checkpoint it may go on from, {option: value}. ValueError where they
        differ, and where --resume none meets checkpoints of an earlier run.
        """
        resume = self.o.resume
        if self.kept is None:
            if resume not in ("auto", "none"):
                raise ValueError(
                    f"--resume {resume}: this job has no checkpoints: give the --folder of the run, and "
                    "leave out --checkpoint-every none"
                )
            return None
        if resume == "none":
            if join.attempt() == 0:
                self._refuse_old()
            resume = "auto"  # the launcher's restart of a run that began without any
        elif resume != "auto" and join.attempt() and self._saved_since():
            resume = "auto"  # the launcher's restart of a run that went on from a step
        extra = self.kept.load(trainer.model, trainer.optimizer, resume, wrong_with, lambda extra: refuse(extra, run))
        if extra is None:
            return None
        self.next = extra["step"] + (self.every or extra.get("every", FIRST))
        return extra

    def _saved_since(self) -> bool:
        """The newest checkpoint is of this launch: what lies there from before may be a future that was given up."""
        newest = next(iter(checkpoints.listing(self.kept.folder)), None) if self.s.main else None
        try:
            mine = newest is not None and checkpoints.manifest(newest)["extra"].get("launch") == _launch()
        except ValueError:  # damaged: `load` names it
            mine = False
        return self.s.agree(mine or not self.s.main)

    def _refuse_old(self) -> None:
        old = checkpoints.listing(self.kept.folder)
        if not self.s.agree(not old):
            raise ValueError(
                f"--resume none: {self.o.folder} holds checkpoints of an earlier run: use --resume auto "
                "to go on from them, or another --folder"
            )

    def save(self, step: int, trainer, extra: dict, loss, step_seconds: float, finish: bool) -> float | None:
        """A checkpoint after step `step`, unless that is there; the seconds that the slowest rank was blocked, or None.

        step_seconds: of a usual step, the same on all ranks. finish: wait until it is whole.
        """
        spent = None
        if self.last != step:
            extra = extra | {"launch": _launch()} | ({"every": self.spacing(step_seconds)} if self.blocked else {})
            spent = self.s.largest(self.kept.save(step, trainer.model, trainer.optimizer, extra, loss))
            self.blocked.append(spent)
            self.next = step + (self.every or self.spacing(step_seconds))
            if self.every is None and len(self.blocked) == 1:
                self.s.say(
                    f"the next checkpoint after step {self.next:,}, in about "
                    f"{step_seconds * (self.next - step):,.0f} s ({self.words}); --checkpoint-every sets steps"
                )
        if finish:
            self.finish()
        return spent

    def finish(self) -> None:
        """Wait until the checkpoint on its way is whole. ValueError where it cannot be."""
        if self.kept:
            self.kept.finish()

    def spacing(self, step_seconds: float) -> int:
        """Steps from one checkpoint to the next by Young's formula."""
        interval = reliability.young(statistics.median(self.blocked), self.o.mtbf_hours * 3600)
        return max(1, round(interval / step_seconds))

    def said(self) -> list[str]:
        """What the checkpoints have to say, since this was asked last."""
        lines = self.kept.said[self.told :] if self.kept else []
        self.told += len(lines)
        return lines

    def standing(self, steps: int) -> str:
        """The last good checkpoint of a run of so many steps and the next one, for the screen; "" without any."""
        if self.kept is None:
            return ""
        next_words = f"next after step {self.next:,}" if self.next < steps else "next at the end"
        newest = self.kept.newest
        return f"not saved yet, {next_words}" if newest is None else f"saved after step {newest:,}, {next_words}"

    @property
    def words(self) -> str:
        """The cadence, for the Record."""
        if self.kept is None:
            return "none"
        if self.every:
            return f"every {self.every} steps"
        cost = f"{statistics.median(self.blocked):.3f} s" if self.blocked else "not measured"
        return f"Young's formula: {cost} a checkpoint, {self.o.mtbf_hours:g} hours between failures"


def wrong_with(extra) -> str | None:
    """What (str) keeps the extra facts of a checkpoint from being those of this job, or None."""
    holds = {
        "step": is_count,
        "steps": is_count,
        "run": lambda value: isinstance(value, dict) and {"model", "text"} <= value.keys(),
    }
    optional = {"every": lambda value: is_count(value) and value > 0, "spans": _spans}  # not in every checkpoint
    if not isinstance(extra, dict):
        return "has no sound extra"
    bad = [name for name in holds if not holds[name](extra.get(name))]
    bad += [name for name in optional if name in extra and not optional[name](extra[name])]
    if bad:
        return f"has no sound {bad[0]}"
    starts = [span["after"] for span in extra.get("spans", [])]
    if starts != sorted(starts) or starts[-1:] > [extra["step"]]:
        return f"has spans of steps that are not those to step {extra['step']}"
    return None


def refuse(extra, run) -> None:
    """ValueError, one line that names the option, where a checkpoint's extra facts are of another run. Older ones have
    fewer options, and in their "model" all of its sizes."""
    recorded = extra["run"]
    wrong = [
        f"{name} {recorded[name]}, this job {value}"
        for name, value in run.items()
        if recorded.get(name, value) != value
    ]
    if wrong:
        mend = "use the same options, or another --folder"
        if wrong[0].startswith("text "):
            mend = (
                "the text or its split has changed (Python, torch, --dataset, --held-out or the book's "
                "version): use another --folder"
            )
        raise ValueError(f"the checkpoint of step {extra['step']} is of another run: it has {wrong[0]}: {mend}")


def _spans(value):
    return isinstance(value, list) and all(
        isinstance(span, dict)
        and is_count(span.get("after"))
        and isinstance(span.get("options"), dict)
        and all(isinstance(word, str) and word.isprintable() for pair in span["options"].items() for word in pair)
        for span in value
    )


def _launch():
    """What torchrun calls this launch, the same after its restarts; None without torchrun."""
    return os.environ.get("TORCHELASTIC_RUN_ID")
