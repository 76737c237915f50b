"""The training job on two ranks, one of which stops its own process: python specimen_frozen.py WHERE FOLDER.

WHERE: "validation": rank 1 in the second batch of a validation; "checkpoint": rank 1 once its part is written. "slow":
rank 1 takes longer over a checkpoint than a step may, and the job goes on to its end. "torch": rank 1 in a validation,
with a watch that asks nobody before a collective has timed out.
"""

import os
import signal
import sys
import time
from pathlib import Path

from scaleout.lab import session
from scaleout.train import checkpoint as train_checkpoint
from scaleout.train import trainer, watch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "labs"))

import capstone

WORDS = [
    "--layers",
    "1",
    "--hidden",
    "32",
    "--heads",
    "1",
    "--ff",
    "32",
    "--seq",
    "16",
    "--steps",
    "8",
    "--warmup",
    "0",
    "--validate-every",
    "3",
    "--checkpoint-every",
    "5",
    "--sample",
    "0",
]


def freeze(rank):
    """Rank 1 stops; the line tells the test that it has."""
    if rank == 1:
        print("frozen", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)


def validation(self, *batch, loss=trainer.Trainer.loss):
    self.seen = 0 if self.model.training else getattr(self, "seen", 0) + 1
    if self.seen == 2:
        freeze(self.s.rank)
    return loss(self, *batch)


def checkpoint(self, *words, complete=train_checkpoint.Checkpoints._complete):
    freeze(self.s.rank)
    return complete(self, *words)


def slow(self, *words, save=train_checkpoint.Checkpoints.save):
    if self.s.rank == 1:
        time.sleep(1.5 * watch.PATIENCE_S)
    return save(self, *words)


where, folder = sys.argv[1:]
if where in ("validation", "torch"):
    trainer.Trainer.loss = validation
elif where == "checkpoint":
    train_checkpoint.Checkpoints._complete = checkpoint
else:
    train_checkpoint.Checkpoints.save = slow
if where == "torch":
    watch.Watch.__init__.__defaults__ = (None, 1000.0, None, True)
watch.remember_collectives()
session.run(lambda s: capstone.main(s, [*WORDS, "--folder", folder]))
