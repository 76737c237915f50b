"""Saves of a small training job by torch.distributed.checkpoint: synchronous, asynchronous, and too often.

The disk is emulated: a sleep before a rank's file is written. What is saved is real, and is read back.
"""

import statistics
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp

STEP = 0.04  # seconds of a step on the emulated device
DISK = 0.15  # seconds that a rank's file takes to write
STEPS = 12
WAYS = {"no save": 0, "synchronous": 6, "asynchronous": 6, "asynchronous, too often": 2}  # steps between saves
SIDE = 512  # of the matrix that is trained: 1 MiB in fp32


class SlowDisk(dcp.FileSystemWriter):
    """Writes files, each after so many seconds."""

    def __init__(self, path, seconds):
        super().__init__(path)
        self.seconds = seconds

    def write_data(self, plan, planner):
        """What torch asks each rank to write."""
        time.sleep(self.seconds)
        return super().write_data(plan, planner)


class Saver:
    """The job of a session `s`, and its checkpoints in a folder that goes with it."""

    def __init__(self, s):
        self.s, self.pending, self.number = s, None, 0
        # one process needs no group, which torch thinks worth a warning each time
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninit")
        self.group = dist.new_group(backend="gloo") if s.world > 1 else None  # NCCL moves no objects of the host
        torch.manual_seed(0)
        self.weight = torch.randn(SIDE, SIDE, device=s.device) / SIDE**0.5

    def work(self):
        """One step: it changes every weight."""
        self.weight.add_(self.weight @ self.weight, alpha=1e-3)
        time.sleep(STEP)

    def where(self):
        """The keywords of torch's save and load for these ranks."""
        return {"process_group": self.group, "no_dist": self.group is None}

    def save(self, asynchronous, disk=DISK):
        """Seconds that training is blocked by a save. As torch's documentation asks, it waits for the one before."""
        start = self.s.clock()
        self.finish()
        self.number += 1
        self.path = self.folder / f"step-{self.number}"
        state, writer = {"weight": self.weight}, SlowDisk(self.path, disk)
        if asynchronous:
            self.pending = dcp.async_save(state, storage_writer=writer, **self.where())
        else:
            dcp.save(state, storage_writer=writer, **self.where())
        return self.s.clock() - start

    def finish(self):
        """Wait until the save on its way is written."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()

    def loaded(self):
        """The weights of the last checkpoint."""
        state = {"weight": torch.empty_like(self.weight)}
        dcp.load(state, storage_reader=dcp.FileSystemReader(self.path), **self.where())
        return state["weight"]

    def run(self, way):
        """(step times, seconds blocked by each save), the slowest rank's. A step time is without the save."""
        every, seconds, blocked = WAYS[way], [], []
        for step in range(STEPS):
            self.s.barrier()
            start = self.s.clock()
            self.work()
            seconds.append(self.s.clock() - start)
            if every and step % every == every - 1:
                blocked.append(self.save(way != "synchronous"))
        self.finish()
        return [self.s.largest(each) for each in seconds], [self.s.largest(each) for each in blocked]

    def calibrate(self):
        """Seconds of saves on a disk that takes none: {"synchronous", "asynchronous": blocked, "written": until it is
        written}. The second of each counts: the first starts threads."""
        found = {}
        for _ in range(2):
            found["synchronous"] = self.s.largest(self.save(False, 0.0))
            start = self.s.clock()
            found["asynchronous"] = self.s.largest(self.save(True, 0.0))
            self.finish()
            found["written"] = self.s.largest(self.s.clock() - start)
        return found

    def measure(self):
        """(calibration, {way: (step seconds, blocked seconds)}, {copied or live: error of a checkpoint})."""
        with tempfile.TemporaryDirectory(prefix="architecture-") as name:
            self.folder = Path(self.s.gathered(name)[0])  # rank 0's: all ranks write into one
            idle = self.calibrate()
            runs = {way: self.run(way) for way in WAYS}
            errors = {"copied": self.error(True), "live": self.error(False)}
            self.s.barrier()  # nobody removes the folder while others read
        return idle, runs, errors

    def error(self, copied):
        """How far a checkpoint is from the weights when it was asked for, if a step runs before they are written.
        copied: torch's asynchronous save, which copies first; else a thread that writes the live tensors."""
        wanted = self.weight.clone()
        if copied:
            self.save(True)
            self.work()
            self.finish()
        else:
            with ThreadPoolExecutor(1) as thread:
                written = thread.submit(self.save, False)
                self.work()
                written.result()
        return self.s.largest(float((self.loaded() - wanted).abs().max()))


def blocked(way, idle):
    """Predicted seconds that a save blocks training. idle: `Saver.calibrate`'s; a save waits for the rest of the one
    before, which the steps between them have overlapped."""
    if way == "synchronous":
        return idle["synchronous"] + DISK
    writing = idle["written"] + DISK
    return idle["asynchronous"] + max(0.0, writing - WAYS[way] * STEP - idle["asynchronous"])


def waits(way, idle):
    """Predicted seconds per save of a run: the first has none before it to wait for."""
    count = STEPS // WAYS[way]
    first = idle["asynchronous"] if way != "synchronous" else blocked(way, idle)
    return (first + (count - 1) * blocked(way, idle)) / count


def after(way, seconds):
    """Median seconds of the steps right after a save, and of all others."""
    every = WAYS[way]
    next_ones = [spent for step, spent in enumerate(seconds) if step and step % every == 0]
    others = [spent for step, spent in enumerate(seconds) if step % every]
    return statistics.median(next_ones), statistics.median(others)
