"""Tokens per second of the training job against a bare loop of the same model.

    .venv/bin/python tools/bench_train.py [--smallest] [TIER ...]

Two comparisons, each in one run whose turns alternate: on 2 processes the job (labs/capstone.py, with its input
thread, clipping, schedule, looks and metrics) against a loop of nothing but fully_shard, forward, backward and update;
on one process the job with FSDP against the job without. A ratio is of the tokens per second of neighbouring turns;
what is given is its median with the middle half of the turns, and the same of tokens per second of CPU time, which
other programs on the machine move less.
"""

import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

import launching

TURNS, STEPS = 20, 4
TIERS = ("smoke", "cpu")


class TheJob:
    """Turns of the job's own loop."""

    def __init__(self, s, o, lab, folder):
        self.job = lab.Job(s, replace(o, folder=folder, checkpoint_every="none", validate_every=10**8, steps=10**6))
        self.progress = lab.Progress(s, 10**6, o.batch * o.seq, pause=1e9)
        self.watch = lab.Watch(s)
        self.batches = lab.batches.Batches(s, self.job.text.train, self.job.order, o.batch)

    def step(self):
        """One step, as in Job.train."""
        self.watch.begin(self.job.done + 1)
        self.job.step(self.batches)
        self.job.between(self.watch, self.progress)

    def close(self):
        """End the input's thread."""
        self.batches.close()


class Bare:
    """Turns of a loop that does nothing else."""

    def __init__(self, s, o, text):
        import torch
        from torch.distributed.fsdp import fully_shard

        from scaleout.parallel.transformer import Transformer

        torch.manual_seed(o.seed)
        with s.device:
            self.model = Transformer(o.shape)
        for block in self.model.blocks:
            fully_shard(block)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=o.lr, fused=True)
        self.s, self.o, self.text, self.done = s, o, text, 0

    def step(self):
        """Cut a batch, forward, backward, update."""
        from scaleout.lab import session

        batch = session.batch(
            self.text,
            self.done,
            self.o.batch // self.s.world,
            self.o.seq,
            self.s.rank,
            self.s.world,
            device=self.s.device,
        )
        self.model(*batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1

    def close(self):
        """Nothing to end."""


def turns(s, first, second, count):
    """[(seconds, CPU seconds)] of every turn, of both; who begins changes from turn to turn."""
    spent = {first: [], second: []}
    for turn in range(count + 1):
        for one in (first, second) if turn % 2 else (second, first):
            s.barrier()
            start, busy = s.clock(), time.process_time()
            for _ in range(STEPS):
                one.step()
            busy = time.process_time() - busy
            spent[one].append((s.largest(s.clock() - start), s.mean(busy)))
    return spent[first][1:], spent[second][1:]  # the first turn allocates and connects


def ratio(mine, other, kind):
    """(median, lower, upper quartile) of how many times as fast the first is. kind: 0 seconds, 1 CPU seconds."""
    found = sorted(b[kind] / a[kind] for a, b in zip(mine, other, strict=True))
    return statistics.median(found), found[len(found) // 4], found[-1 - len(found) // 4]


def tell(s, what, tokens, mine, other):
    """Two lines: tokens per second of both, and how the first compares."""
    rates = [tokens * STEPS / statistics.median(seconds for seconds, _ in x) for x in (mine, other)]
    s.say(f"{what}: {rates[0]:,.0f} against {rates[1]:,.0f} tokens/s")
    for kind, name in enumerate(("seconds", "CPU seconds")):
        s.say("  ratio by {:<12} {:.3f} ({:.3f} to {:.3f})".format(name, *ratio(mine, other, kind)))


def compare(s, tier, count):
    """Both sides of one comparison on this number of processes."""
    sys.path.insert(0, str(launching.ROOT / "labs"))
    lab = importlib.import_module("capstone")
    o = lab.TIERS[tier]
    with tempfile.TemporaryDirectory() as folder:
        job = TheJob(s, replace(o, strategy="fsdp"), lab, folder)
        if s.world > 1:
            other, what = Bare(s, o, job.job.text.train), "the job against a bare fully_shard loop"
        else:
            other, what = TheJob(s, replace(o, strategy="one"), lab, folder), "FSDP against plain, both in the job"
        mine, others = turns(s, job, other, count)
        job.close()
        other.close()
    tell(s, f"{tier}, {s.world} process(es), {what}", o.batch * o.seq, mine, others)


def main():
    """Start torchrun for the first comparison, or be one of its processes; the second is made here."""
    parser = launching.options(__doc__)
    parser.add_argument("tier", nargs="*", help="sizes to compare at (default: smoke and cpu)")
    o = parser.parse_args()
    tiers, count = (TIERS[:1], 1) if o.smallest else (o.tier or TIERS, TURNS)
    if "RANK" not in os.environ:
        subprocess.run(
            [*launching.launcher(2), __file__, *sys.argv[1:]], cwd=launching.ROOT, env=launching.ENVIRONMENT, check=True
        )
        os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is loaded
    from scaleout.lab.session import session

    with session() as s:
        for tier in tiers:
            compare(s, tier, count)


if __name__ == "__main__":
    main()
