"""Faults that a training job does to itself on request, so that a reader sees what each one looks like, and tests.

    --inject kill:1:7           rank 1 kills itself as step 7 begins (SIGKILL: no handler, no clean end)
    --inject kill:1:saving:6    rank 1 kills itself when it has written its part of checkpoint 6
    --inject hang:1:7           rank 1 stops in step 7 and holds still
    --inject nan:7              the loss of step 7 is not a number
    --inject full:6             the disk is full while checkpoint 6 is written

Several are joined by commas. Kills and hangs happen in the first attempt only: the restarted job comes by there again.
"""

import errno
import os
import signal
import time
from dataclasses import dataclass

from scaleout.lab.options import digits

FORMS = {
    "kill": "kill:RANK:STEP or kill:RANK:saving:STEP (kill:1:7)",
    "hang": "hang:RANK:STEP (hang:1:7)",
    "nan": "nan:STEP (nan:7)",
    "full": "full:STEP or full:RANK:STEP (full:6)",
}


@dataclass(frozen=True)
class Fault:
    """One fault. `rank` None: all ranks."""

    kind: str
    step: int
    rank: int | None = None
    saving: bool = False


class Faults:
    """The faults of this process; each method is called where its fault would strike."""

    def __init__(self, faults, rank, first=True):
        self.every = faults
        self.mine = [
            fault for fault in faults if fault.rank in (None, rank) and (first or fault.kind not in ("kill", "hang"))
        ]

    def _now(self, kind, step, saving=False):
        return any((fault.kind, fault.step, fault.saving) == (kind, step, saving) for fault in self.mine)

    def begin(self, step):
        """A step begins."""
        if self._now("kill", step):
            kill()
        if self._now("hang", step):
            hang()

    def loss(self, step, loss):
        """The step's loss, or what the fault makes of it."""
        return loss * float("nan") if self._now("nan", step) else loss

    def writing(self, step):
        """A file of a checkpoint is about to be written. OSError where the disk is said to be full."""
        if self._now("full", step):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def saving(self, step):
        """This rank's files of a checkpoint are written, and it is not yet published."""
        if self._now("kill", step, saving=True):
            kill()


def kill():
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    """Hold still until somebody ends the process."""
    while True:
        time.sleep(0.1)


def parse(text, rank, world, attempt=0):
    """The Faults that `--inject` asks of this rank; None or "" for none. ValueError, one line, for anything else."""
    return Faults([_one(word, world) for word in (text or "").split(",") if word], rank, attempt == 0)


def _one(word, world):
    kind, *fields = word.split(":")
    if kind not in FORMS:
        raise ValueError(f"--inject {word}: use one of {', '.join(FORMS)}")
    saving = kind == "kill" and len(fields) == 3 and fields[1] == "saving"
    numbers = [fields[0], fields[2]] if saving else fields
    least, highest = {"kill": (2, 2), "hang": (2, 2), "nan": (1, 1), "full": (1, 2)}[kind]
    if not least <= len(numbers) <= highest or not all(map(digits, numbers)):
        raise ValueError(f"--inject {word}: write it as {FORMS[kind]}")
    *ranks, step = map(int, numbers)
    if ranks and ranks[0] >= world:
        raise ValueError(f"--inject {word}: there is no rank {ranks[0]} among {world}, which are 0 to {world - 1}")
    if kind == "hang" and world == 1:
        raise ValueError(f"--inject {word}: needs ranks that wait for each other: torchrun --nproc-per-node 2")
    return Fault(kind, step, ranks[0] if ranks else None, saving)
