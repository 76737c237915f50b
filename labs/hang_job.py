"""The job that hangs: a small training loop in which one rank has a bug. labs/hang.py starts it and keeps its dumps.

A `bites` marks where a bug can be. Which of them bites, on which rank and in which step, is drawn from the seed that
the job was started with, so these lines do not give it away: the dumps do.
"""

import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from scaleout.lab import leash
from scaleout.records import flight

KINDS = ("mismatch", "stop", "skip")
CALLS = ("gradients", "losses", "new_rate")
PLACES = {"mismatch": CALLS, "skip": CALLS, "stop": ("load", "forward", "save")}
QUIET_SECONDS = 1.5  # without a step done: the job hangs, time to dump
START_SECONDS, STACK_SECONDS, DUMP_SECONDS = 60.0, 3.0, 20.0
STEPS = 40


@dataclass(frozen=True)
class Bug:
    """What is wrong: its kind, the place in the loop, the culprit's rank, and the step in which it bites."""

    kind: str
    place: str
    rank: int
    step: int


def draw(seed, world, kind=None):
    """The Bug of a seed (int) in a job of `world` ranks; `kind` fixes what sort it is."""
    chance = random.Random(f"hang {seed}")
    kind = kind or chance.choice(KINDS)
    return Bug(kind, chance.choice(PLACES[kind]), chance.randrange(world), chance.randrange(3, 7))


class Job:
    """One rank's training loop: a mean of gradients, everybody's loss, and a learning rate that rank 0 sets."""

    def __init__(self, rank, world, bug):
        import torch  # here, so that labs/hang.py can read this file without it
        import torch.distributed as dist

        self.rank, self.world, self.bug, self.step = rank, world, bug, 0
        self.torch, self.dist = torch, dist
        self.bucket, self.rate = torch.zeros(4096), torch.zeros(1)

    def bites(self, kind, place):
        """True where this rank has this bug in this step."""
        return (kind, place, self.rank, self.step) == (self.bug.kind, self.bug.place, self.bug.rank, self.bug.step)

    def load(self):
        """The next batch."""
        while self.bites("stop", "load"):
            time.sleep(0.01)  # a disk that answers no more
        return self.torch.full_like(self.bucket, float(self.step + self.rank))

    def forward(self, batch):
        """The loss, and gradients in the bucket."""
        while self.bites("stop", "forward"):
            sum(range(1000))  # a loop without an end
        self.bucket.copy_(batch)
        return batch.mean().reshape(1)

    def gradients(self):
        """The mean of the gradients over ranks."""
        if self.bites("skip", "gradients"):
            return  # "my batch was empty, nothing to add"
        if self.bites("mismatch", "gradients"):
            self.dist.broadcast(self.bucket, 0)  # an older version of the code on one host
            return
        self.dist.all_reduce(self.bucket)
        self.bucket /= self.world

    def losses(self, loss):
        """Everybody's loss, for the log."""
        if self.bites("skip", "losses"):
            return  # "my loss is not finite, I do not log it"
        if self.bites("mismatch", "losses"):
            self.dist.all_reduce(loss)  # "the mean is enough for the log"
            return
        self.dist.all_gather([self.torch.empty(1) for _ in range(self.world)], loss)

    def new_rate(self):
        """The learning rate, from rank 0."""
        if self.bites("skip", "new_rate"):
            return  # "I know the schedule, I need no message"
        if self.bites("mismatch", "new_rate"):
            self.dist.all_reduce(self.rate)  # "then all of us agree"
            return
        self.dist.broadcast(self.rate, 0)

    def save(self):
        """A checkpoint of this rank."""
        while self.bites("stop", "save"):
            time.sleep(0.01)  # a full file system

    def run(self):
        """All steps."""
        for self.step in range(STEPS):
            loss = self.forward(self.load())
            self.gradients()
            self.losses(loss)
            self.new_rate()
            self.save()
            time.sleep(0.01)


def dump(rank, world, folder):
    """Write the flight recorder's ring as flight-RANK.json, and fr_trace_RANK for torch's own analyser.

    torch's pickle has the stack of each call, its JSON has not. On gloo the recorder leaves the group's entry without
    a name; without it torch's analyser knows no group and names no culprit, so it is filled in.
    """
    import pickle

    from scaleout.parallel import private

    record = pickle.loads(private.flight_pickle(True, True, False))
    for frame in (frame for entry in record["entries"] for frame in entry["frames"]):
        frame["filename"] = flight.shorten(frame["filename"], str(Path(__file__).resolve().parents[1]))
    record["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}}
    (folder / f"fr_trace_{rank}").write_bytes(pickle.dumps(record))
    temporary = folder / f".flight-{rank}"
    lines = ",\n ".join(json.dumps(entry) for entry in record.pop("entries"))
    head = json.dumps({"rank": rank, **record})
    temporary.write_text(f'{head[:-1]}, "entries": [\n {lines}]}}\n')  # one call a line
    temporary.rename(folder / f"flight-{rank}.json")


def until(condition, seconds):
    """Wait until `condition()`, so long at most."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)


def watch(job, folder):
    """Dump once when no step has been done for QUIET_SECONDS; runs beside the loop, in a thread of its own.

    labs/hang.py reads the stacks first, while this thread sleeps: symbols for the dump take a second of a core.
    """
    seen, since = job.step, time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        time.sleep(0.05)
        if job.step != seen:
            seen, since = job.step, time.monotonic()
    (folder / f".quiet-{job.rank}").touch()
    until((folder / ".stacks").exists, STACK_SECONDS)
    dump(job.rank, job.world, folder)


def main():
    """One rank: SEED KIND TIMEOUT_SECONDS FOLDER."""
    seed, kind, timeout, folder = *sys.argv[1:4], Path(sys.argv[4])
    leash.follow()  # ends with labs/hang.py, whatever ends that; importing torch takes seconds
    import datetime

    import torch.distributed as dist

    store, rank, world = next(dist.rendezvous("env://"))
    store.set(f"here/{rank}", "yes")  # patience for slow starts, before time-outs get short
    store.wait([f"here/{peer}" for peer in range(world)], datetime.timedelta(seconds=START_SECONDS))
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore("group", store),
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=float(timeout)),
    )
    stacks = (folder / f".stack-{rank}").open("w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    (folder / f".pid-{rank}").write_text(str(os.getpid()))
    job = Job(rank, world, draw(int(seed), world, None if kind == "any" else kind))
    dist.barrier()
    threading.Thread(target=watch, args=(job, folder), daemon=True).start()
    try:
        job.run()
    except RuntimeError as error:
        message = str(error).split("] ")[-1]
        sys.stdout.write(f"{time.time():.3f} rank {rank}: {message}\n")  # one write: all ranks share the file
        until(lambda: len(list(folder.glob("flight-*"))) == world, DUMP_SECONDS)  # who ends first ends the others
        os._exit(1)  # as a crash: the group cannot be shut down
    print(f"{time.time():.3f} rank {rank}: done")


if __name__ == "__main__":
    main()
