"""A job of empty steps under a Watch, one rank of which goes wrong: python specimen_watch.py HOW [LOG].

HOW: "frozen": rank 1 stops its own process; "between": rank 1 is slow over a checkpoint, slower than a step may be, and
then hangs between two collectives of a step; "deaf": hangs with endless patience, so that only a signal ends it.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from scaleout.lab import session
from scaleout.train import watch as train_watch

STEPS, AT, PATIENCE_S = 6, 3, 2.0


def dawdle():
    """Where rank 1 is found."""
    while True:
        time.sleep(0.05)


def main(s):
    how, log = sys.argv[1], (sys.argv[2:] or [None])[0]
    train_watch.STUCK_S = train_watch.LAST_WORD_S = 1.0
    with train_watch.Watch(s, patience_s=1000.0 if how == "deaf" else PATIENCE_S, log=log) as watch:
        for step in range(1, STEPS + 1):
            watch.begin(step)
            dist.all_reduce(torch.ones(4))
            wrong = step == AT and s.rank == 1
            if wrong and how == "frozen":
                os.kill(os.getpid(), signal.SIGSTOP)
            if wrong and how in ("between", "deaf"):
                print("hangs", flush=True)
                dawdle()
            if step == AT - 1 and how == "between":
                watch.pulse("checkpoint")
                time.sleep(1.5 * PATIENCE_S * s.rank)
            dist.all_reduce(torch.ones(4))
    s.say("done")


train_watch.remember_collectives()
session.run(main)
