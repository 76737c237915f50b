"""One rank of labs/slow_link.py: calibrates at full speed, then times DDP's step case by case on links of other rates.

The links are shaped from outside, where the hosts are made: before each case rank 0 asks for its link and waits. The
cases are timed in rounds, each with a calibration of its own, so that all have the same luck with a shared machine.
"""

import sys
import time
from pathlib import Path

import torch

from scaleout.lab import corpus, recording, session
from scaleout.measure.ddp_calibration import Calibration
from scaleout.measure.peak import timed
from scaleout.parallel import ddp
from scaleout.parallel.ddp_ways import DDPWay
from scaleout.parallel.replicas import Settings
from scaleout.records import files
from scaleout.spec.transformer import Shape, total_parameters

WARMUP = 3  # steps of each model at full speed: DDP rebuilds its buckets, PowerSGD begins
PATIENCE = 60.0  # seconds to wait for a link


class Linked:
    """One rank of session `s`, whose links are shaped from outside as it asks in a folder (Path)."""

    def __init__(self, s, folder):
        self.s, self.folder, self.asked = s, folder, 0

    def link(self, rate):
        """Have the links shaped to `rate` (bit/s, or None for no limit); returns on all ranks when that is done."""
        if self.s.main:
            files.write_json({"number": self.asked, "rate": rate}, self.folder / "ask.json")
            end = time.monotonic() + PATIENCE
            while not (self.folder / f"shaped-{self.asked}").exists():
                if time.monotonic() > end:
                    raise RuntimeError("nobody shapes the links: start the lab with python labs/slow_link.py")
                time.sleep(0.01)
        self.s.barrier()
        self.asked += 1


class Plan:
    """What a lab with --link wrote, as options: its fields are attributes, and `shape` is a Shape."""

    def __init__(self, plan):
        vars(self).update(plan)
        self.shape = Shape(**plan["model"])


class Worker(Linked):
    """The models of one rank, one for each hook, and what is timed with them."""

    def __init__(self, s, plan, folder):
        """plan: what labs/slow_link.py wrote: the model's fields, `cases`, rounds, steps, seed."""
        super().__init__(s, folder)
        self.plan, self.drawn = plan, -1
        self.shape = Shape(plan["layers"], plan["hidden"], plan["heads"], corpus.VOCABULARY, max_seq=plan["seq"])
        self.text = session.dataset(plan["dataset"])
        hooks = dict.fromkeys(case["hook"] for case in plan["cases"])
        self.ways = {hook: self.way(hook) for hook in hooks}
        self.probe = self.way("none")  # takes steps with nothing sent, so that its ranks drift apart
        size = 4 * total_parameters(self.shape)
        bucket = min(size, int(plan["bucket_mb"] * 2**20))
        self.calibration = Calibration(s, (ddp.average, None), [size // 16, size // 4, size], bucket)
        self.seen = [{"step_seconds": [], "losses": []} for _ in plan["cases"]]
        self.full = {hook: [] for hook in hooks}

    def way(self, hook):
        """A model in DDP; the same weights each time."""
        settings = Settings(bucket_mb=self.plan["bucket_mb"], hook=hook, hook_rank=self.plan["hook_rank"])
        return DDPWay(self.s, self.shape, "torch", settings, seed=self.plan["seed"])

    def batches(self, count, sequences):
        """`count` batches of this rank, always other ones."""
        self.drawn += 1
        return [
            session.batch(
                self.text,
                1000 * self.drawn + i,
                sequences,
                self.plan["seq"],
                self.s.rank,
                self.s.world,
                self.plan["seed"],
                self.s.device,
            )
            for i in range(count)
        ]

    def step(self, hook, accumulation, sequences):
        """(step time in seconds of the slowest rank, mean loss)."""
        batches = self.batches(accumulation, sequences)
        seconds, loss = timed(self.s, lambda: self.ways[hook].step(batches))
        return seconds, self.s.mean(loss)

    def calibrate(self):
        """One sample of all that the predictions rest on, at full speed."""
        way, (batch,) = self.probe, self.batches(1, self.plan["micro_batch"])
        self.calibration.all_reduce()
        self.calibration.compute(way, batch, update=True)
        self.calibration.overlapped(way, batch)
        for hook, spent in self.full.items():
            spent.append(self.step(hook, 1, self.plan["micro_batch"])[0])

    def run(self):
        """All rounds; what was seen, as labs/slow_link.py reads it."""
        self.link(None)
        for hook in self.ways:
            for _ in range(WARMUP):
                self.step(hook, 1, self.plan["micro_batch"])
        for _ in range(self.plan["rounds"]):
            self.link(None)
            for _ in range(self.plan["steps"]):
                self.calibrate()
            for case, seen in zip(self.plan["cases"], self.seen, strict=True):
                self.link(case["rate"])
                for step in range(self.plan["steps"] + 1):  # the first finds the link's burst full
                    seconds, loss = self.step(case["hook"], case["accumulation"], case["sequences"])
                    if step:
                        seen["step_seconds"].append(seconds)
                        seen["losses"].append(loss)
        self.link(None)
        return self.found()

    def found(self):
        """Calibration and measurements (dict, JSON)."""
        layers, rest_seconds = self.calibration.layers("torch", 0)
        lost, speed = self.calibration.sharing("torch", 0)
        state = self.ways["powersgd"].replicas.look.hook[1] if "powersgd" in self.ways else None
        return {
            "facts": recording.facts(self.s, self.plan["dataset"]),
            "cases": self.seen,
            "full_seconds": self.full,
            "layers": [[x.name, x.forward_seconds, x.backward_seconds, x.gradient_bytes] for x in layers],
            "rest_seconds": rest_seconds,
            "update_seconds": sorted(self.calibration.update)[len(self.calibration.update) // 2],
            "all_reduce": self.calibration.line(0),
            "lost": lost,
            "kept": speed,
            "spread": {hook: way.replicas.spread() for hook, way in self.ways.items()},
            "powersgd_compression": state.compression_stats()[0] if state else None,
        }


def start(worker):
    """The command of one rank, with a folder as its argument: run the plan there, and write found.json.

    worker: of this lab, or of another one's --link.
    """

    def main(s):
        folder = Path(sys.argv[1])
        plan = files.read_json(folder / "plan.json")
        torch.set_num_threads(int(plan["threads"]))
        report = worker(s, plan, folder).run()
        if s.main:
            files.write_json(report, folder / "found.json")

    session.run(main)


if __name__ == "__main__":
    start(Worker)
