"""Several ways to train, timed in alternation: every round is a step of each and a sample of the calibration."""

import statistics

import torch

from scaleout.lab import ddp as lab_ddp
from scaleout.lab.limits import cores
from scaleout.lab.text import progress
from scaleout.measure.ddp_calibration import Calibration
from scaleout.measure.peak import timed
from scaleout.measure.traces import phase, traced
from scaleout.parallel import ddp as parallel_ddp
from scaleout.records import trace

TRACED = 3  # steps of each way under the profiler, after the timed ones
SIZES = 5  # messages whose all-reduce is timed, from the smallest tensor to four buckets


class Alternation:
    """All ways at once, each with its own model from the same seed; every round is a step of each and a sample of the
    calibration, so that whatever else the machine does hits them alike."""

    def __init__(self, s, o, ways, names, batches):
        """o: options of the lab. ways: {name: parallel.step.Way}, of which `names` are timed. batches(step): those of a
        step."""
        self.s, self.o, self.ways, self.names, self.batches = s, o, ways, names, batches
        self.seconds, self.losses = ({via: [] for via in names} for _ in range(2))
        self.traces = {}
        self.options = [o.sync_every_pass] if hasattr(o, "sync_every_pass") else []  # of a step

    def alternate(self, steps):
        """Make and time `steps` rounds."""
        for step in progress(range(steps), "train", self.s.main):
            share = self.batches(step)
            self.sample(share[0], step)
            turn = step % len(self.names)  # nobody always comes after the same
            for via in self.names[turn:] + self.names[:turn]:
                self.take(via, share, step)

    def sample(self, batch, step):
        """One round of the calibration, where there is one. batch: the step's first."""

    def take(self, via, share, step):
        """One step of a way, timed."""
        seconds, loss = timed(self.s, lambda: self.ways[via].step(share, *self.options))
        self.seconds[via].append(seconds)
        self.losses[via].append(self.s.mean(loss))

    def trace(self, via, first):
        """Trace steps of a way, from step `first` on."""

        def step(i):
            with phase("data"):
                share = self.batches(first + i)
            self.ways[via].step(share, *self.options)

        written = self.o.trace and via == self.o.via
        self.traces[via] = traced(self.s, step, TRACED, detailed=bool(written))


class Rounds(Alternation):
    """The ways of data parallelism.

    "one" is one process on the batches of all ranks, on as many threads as all ranks have together (on rank 0, while
    the others wait); "alone" sends nothing and is only calibrated. The rest are replicas.WAYS.
    """

    def __init__(self, s, o, names, make, batches):
        """o: options of the lab. make(via) returns a parallel.ddp_ways.DDPWay; batches(step) a step's batches of this
        rank, or with alone=True those of all ranks."""
        ways = {via: make(via) for via in (*names, "alone") if via != "one" or s.main}
        super().__init__(s, o, ways, names, batches)
        self.threads = torch.get_num_threads()
        self.one_threads = max(self.threads, min(s.world * self.threads, cores()) if s.world > 1 else cores())
        self.calibration = self._calibration()

    def _calibration(self):
        sizes = [p.numel() * p.element_size() for p in self.ways["alone"].model.parameters()]
        usual = max(4, int(min(self.o.settings.caps[0], sum(sizes))))
        small = max(4, min(sizes))
        messages = [int(small * (max(4 * usual, sum(sizes)) / small) ** (i / (SIZES - 1))) for i in range(SIZES)]
        hook = "bf16" if self.o.hook == "bf16" else "none"
        return Calibration(self.s, parallel_ddp.hook_named(hook), messages, usual)

    def run(self, steps):
        """Make and time `steps` rounds, then trace each way."""
        self.alternate(steps)
        for via in (name for name in self.names if name != "one" and self.s.world > 1):
            self.trace(via, steps)

    def sample(self, batch, step):
        """One round of the calibration."""
        c = self.calibration
        c.compute(self.ways["alone"], batch, update=True)
        if self.s.world == 1:
            return
        c.all_reduce()
        for via in (name for name in self.names if name not in ("one", "hand")):
            c.compute(self.ways[via], batch)
            c.overlapped(self.ways[via], batch)

    def take(self, via, share, step):
        """One process does the work of all in "one"; the other ranks wait in a barrier, which takes no core."""
        if via != "one":
            super().take(via, share, step)
            return
        loss = spent = 0.0
        self.s.barrier()
        if self.s.main:
            batch = self.batches(step, alone=True)
            torch.set_num_threads(self.one_threads)
            start = self.s.clock()
            loss = self.ways["one"].step(batch)
            spent = self.s.clock() - start
            torch.set_num_threads(self.threads)
        self.seconds["one"].append(self.s.largest(spent))
        self.losses["one"].append(self.s.mean(loss) * self.s.world)

    # --- what was found -----------------------------------------------------------------------------------

    def rows(self, warmup):
        """{way: {"measured", "predicted": {figure: number}, "loss": the last}}; figures as in lab.ddp.FIGURES."""
        alone = self.calibration.predict("hand", (1, 1), warmup, self.o.accumulation, send=False)[0]
        rows = {
            via: {
                "measured": {"seconds": statistics.median(self.seconds[via][warmup:])},
                "predicted": {},
                "loss": self.losses[via][-1],
            }
            for via in self.names
        }
        for via, row in rows.items():
            if via == "one":
                row["predicted"]["seconds"] = alone  # were threads as good as processes
            elif self.s.world == 1:
                row["predicted"]["seconds"] = alone
            else:
                self._row(row, via, warmup)
        return rows | {"alone": {"measured": {"seconds": alone}, "predicted": {}}}

    def series(self):
        """{name: step times} of all implementations, for a Record; "nothing sent" is one pass and its update."""
        spent = {lab_ddp.NAMES[via]: seconds for via, seconds in self.seconds.items() if seconds}
        silent = self.calibration.silent["hand"]
        spent[lab_ddp.NAMES["alone"]] = [
            forward + sum(t for _, _, t in ready) + rest_seconds + update
            for (forward, ready, rest_seconds), update in zip(silent, self.calibration.update, strict=True)
        ]
        return {f"seconds per step, {name}": seconds for name, seconds in spent.items()}

    def _row(self, row, via, warmup):
        reduced = sum(size for _, size, _ in self.calibration.silent["hand"][0][1])
        if self.o.hook == "powersgd" and via != "hand":  # its later all-reduces start on threads of gloo's,
            _, state = self.ways[via].replicas.look.hook  # where no profiler looks; its cost is arithmetic,
            row["measured"]["bytes"] = reduced / state.compression_stats()[0]  # which nothing here models
            return
        summary = trace.summary(self.traces[via])
        row["measured"] |= {
            "exposed": statistics.mean(summary["exposed_seconds"].values()),
            "collectives": summary["collectives"],
            "bytes": summary["bytes"],
        }
        seconds, exposed, buckets = self.calibration.predict(
            via, self.o.settings.caps, warmup, self.o.accumulation, self.o.sync_every_pass
        )
        passes = self.o.accumulation if self.o.sync_every_pass else 1
        width = 2 if self.o.hook == "bf16" and via != "hand" else 1
        row["predicted"] |= {
            "seconds": seconds,
            "exposed": exposed,
            "collectives": buckets * passes,
            "bytes": reduced * passes / width,
        }
