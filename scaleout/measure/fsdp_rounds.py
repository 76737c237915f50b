"""Ways to train with FSDP, timed in alternation, beside a calibration made in the same rounds; and what follows.

Nothing here times per step that is predicted: the prediction is made of gathers, reduce-scatters, and forward and
backward with nothing sent. The update, which no schedule changes, is timed where it is made.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import torch
import torch.distributed as dist

from scaleout.measure.peak import timed
from scaleout.measure.rounds import Alternation
from scaleout.memory.fsdp import collectives
from scaleout.parallel import shard
from scaleout.parallel.flat import FlatUnit, all_gather
from scaleout.parallel.fsdp_ways import HAND
from scaleout.parallel.step import seconds_between
from scaleout.records import trace
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import MEASURED
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import units
from scaleout.spec.topology import cluster
from scaleout.timing import compute, exchange, fsdp, machine
from scaleout.timing.intervals import length
from scaleout.timing.profile import fit, line_seconds


class Calibration:
    """Seconds of each unit's all-gather and reduce-scatter, of compute, of both at once; a sample of each a round.

    The slowest rank's figure counts. `alone` is a Way that sends nothing, on this rank's share of the batch, in the
    dtype that the units are gathered in.
    """

    def __init__(self, s, alone, mesh) -> None:
        """mesh: that of parallel.shard. Units of equal size are timed once."""
        self.s, self.alone, self.sharding, self.mesh = s, alone, alone.sharding, mesh
        alone.model.to(shard.DTYPES[self.sharding.parameter])
        self.gathered, self.reduced = {}, {}
        for unit in units(alone.shape, self.sharding) if s.world > 1 else ():
            for flats, dtype in ((self.gathered, self.sharding.parameter), (self.reduced, self.sharding.reduce)):
                parameters = [
                    torch.nn.Parameter(torch.zeros(size, device=s.device, dtype=shard.DTYPES[dtype]))
                    for _, size in unit.tensors
                ]
                flat = FlatUnit(unit.name, parameters, mesh.get_group("shard"))
                flats.setdefault(flat.whole.numel() * flat.whole.element_size(), flat)
        self.gather, self.unsharded = ({n: [] for n in self.gathered} for _ in range(2))
        self.scatter, self.across = ({n: [] for n in self.reduced} for _ in range(2))
        self.forward, self.backward, self.speed = [], [], []

    def sample(self, batch, sharded=None) -> None:
        """One round. sharded: a model under `fully_shard`; its own gathers, with all they copy, are timed too."""
        self._compute(batch)
        for n, flat in self.gathered.items() if sharded is not None else ():
            module = sharded.get_submodule(flat.name)
            self.unsharded[n].append(timed(self.s, module.unshard)[0])
            module.reshard()
        for n, flat in self.gathered.items():
            self.gather[n].append(timed(self.s, lambda flat=flat: (flat.start(), flat.work.wait()))[0])
            flat.free()
        for n, flat in self.reduced.items():
            for p in flat.parameters:
                p.grad = torch.zeros(p.shape, device=self.s.device, dtype=p.dtype)
            self.scatter[n].append(timed(self.s, lambda flat=flat: (flat.send(), flat.receive()))[0])
            flat.shard.grad = None
            if self.sharding.replicas > 1:
                group = self.mesh.get_group("replicate")
                add = lambda flat=flat, group=group: dist.all_reduce(flat.shard.data, group=group)  # noqa: E731
                self.across[n].append(timed(self.s, add)[0])
        if self.gathered:
            self._overlapped(batch)

    def _compute(self, batch) -> None:
        self.s.barrier()
        start = self.s.clock()
        loss = self.alone.call(*batch)
        middle = self.s.clock()
        loss.backward()
        end = self.s.clock()
        self.alone.optimizer.zero_grad(set_to_none=True)
        for samples, spent in ((self.forward, middle - start), (self.backward, end - middle)):
            samples.append(self.s.largest(spent))

    def _overlapped(self, batch) -> None:
        """A backward with about as long a row of all-gathers of the largest unit beside it. Were neither in the way of
        the other, the two would take as long as one: the share of its speed that each keeps."""
        n, flat = max(self.gathered.items())
        single, backward = statistics.median(self.gather[n]), statistics.median(self.backward)
        count = max(1, min(200, round(backward / single)))
        buffers = [torch.empty(flat.whole.shape, dtype=flat.whole.dtype, device=self.s.device) for _ in range(2)]
        loss = self.alone.call(*batch)
        self.s.barrier()
        start = self.s.clock()
        works = [all_gather(buffers[i % 2], flat.shard.data, flat.group, async_op=True) for i in range(count)]
        loss.backward()
        for work in works:
            work.wait()
        spent = self.s.largest(self.s.clock() - start)
        self.alone.optimizer.zero_grad(set_to_none=True)
        self.speed.append(min(1.0, max(0.5, (backward + count * single) / 2 / spent)))

    # --- what follows from it ---------------------------------------------------------------------------------

    def line(self, samples, warmup):
        """Seconds of a message by its bytes: as measured where this size was, else by a line through what was."""
        middle = {n: statistics.median(spent[warmup:]) for n, spent in samples.items()}
        fitted = fit(list(middle.items())) if len(middle) > 1 else None

        def seconds(size):
            if size in middle:
                return middle[size]
            return line_seconds(fitted, size) if fitted else size * next(iter(middle.values())) / next(iter(middle))

        return seconds

    def work(self, checkpointing, batch, seq, warmup):
        """timing.fsdp_plan.Piece of every unit: the measured forward and backward, dealt out by FLOPs."""
        shape = self.alone.shape
        pieces = fsdp.pieces(by_flops(shape, batch, seq, checkpointing), units(shape, self.sharding), self.sharding)
        spent = [statistics.median(samples[warmup:]) for samples in (self.forward, self.backward)]
        share = [
            t / sum(getattr(piece, name) for piece in pieces)
            for t, name in zip(spent, ("forward_seconds", "backward_seconds"), strict=True)
        ]
        return [
            replace(
                piece,
                forward_seconds=piece.forward_seconds * share[0],
                backward_seconds=piece.backward_seconds * share[1],
            )
            for piece in pieces
        ]

    def predict(self, overlap, gathers, work, warmup, update_seconds, accumulation=1, every_pass=True):
        """(step time, exposed seconds) with an update of so many seconds; gathers: `gather` or `unsharded`.

        overlap: "waits" (naive), "streams" (all overlaps), or "gathers" (they overlap, and who reduces waits, as
        `fully_shard` does on a CPU). A gather beside compute slows both.
        """
        cut, speed, blocked = self.sharding, 1.0, 0.0
        gather, scatter = self.line(gathers, warmup), self.line(self.scatter, warmup)
        replica_seconds = (
            self.line({n / cut.ranks: t for n, t in self.across.items()}, warmup) if cut.replicas > 1 else None
        )
        if overlap != "waits" and cut.prefetch and self.speed:
            speed = statistics.median(self.speed[warmup:])
        if overlap == "gathers":  # the reduce-scatter is then part of what the backward does
            times = [
                scatter(p.reduce_bytes) + (replica_seconds(p.reduce_bytes / cut.ranks) if replica_seconds else 0.0)
                for p in work
                if p.reduce_bytes
            ]
            blocked = sum(times) * (accumulation if every_pass else 1)
            work = [replace(p, reduce_bytes=0.0) for p in work]
        step = fsdp.fsdp_step(
            work,
            lambda n: gather(n) / speed,
            lambda n: scatter(n) / speed,
            reshard=cut.reshard,
            prefetch=0 if overlap == "waits" else cut.prefetch,
            overlap=overlap != "waits",
            accumulation=accumulation,
            sync_every_pass=every_pass,
            reduce_across=replica_seconds if overlap != "gathers" else None,
            regather_seconds=None if isinstance(cut.reshard, bool) else gather,
            contention=1 - speed,
            update_seconds=update_seconds,
        )
        return step.seconds + blocked, step.exposed_seconds + blocked


class Rounds(Alternation):
    """The ways of FSDP."""

    def __init__(self, s, o, ways, calibration, batches) -> None:
        """ways: {name: parallel.fsdp_ways.FSDPWay}. o: the lab's options. batches(step): the passes of a step."""
        super().__init__(s, o, ways, list(ways), batches)
        self.calibration, self.updates, self.counts = calibration, {via: [] for via in ways}, {}

    def run(self, steps) -> None:
        """Time `steps` rounds, then count the collectives of a step of each way, then trace each."""
        self.alternate(steps)
        for via, way in self.ways.items():
            self.counts[via] = way.counted(self.batches(steps), self.o.sync_every_pass)
            way.update()
            if self.s.world > 1:
                self.trace(via, steps + 1)

    def sample(self, batch, step) -> None:
        """One round of the calibration; `fully_shard` is set up by its first step."""
        self.calibration.sample(batch, self.ways["torch"].model if step else None)

    def take(self, via, share, step) -> None:
        """One step of a way, timed, and its update."""
        super().take(via, share, step)
        self.updates[via].append(self.s.largest(seconds_between(*self.ways[via].updated)))

    def rows(self, warmup) -> dict:
        """{way: {"measured", "predicted": {figure: number}, "loss": the last}}; figures as in lab.fsdp.FIGURES."""
        o, c = self.o, self.calibration
        work = c.work(o.checkpointing, o.micro_batch, o.seq, warmup)
        passes = o.accumulation if o.sync_every_pass else 1
        by_hand, by_torch = collectives(c.alone.shape, c.sharding), collectives(c.alone.shape, c.sharding, o.recipe)
        rows = {}
        for via in self.ways:
            timed = sorted(self.seconds[via][warmup:])
            rows[via] = {
                "measured": {"seconds": statistics.median(timed), "spread": _spread(timed)},
                "predicted": {},
                "loss": self.losses[via][-1],
            }
            update = statistics.median(self.updates[via][warmup:])
            if self.s.world == 1:
                predicted = c.predict("waits", c.gather, work, warmup, update, o.accumulation)
                rows[via]["predicted"]["seconds"] = predicted[0]
                continue
            rows[via]["measured"] |= {**self.counts[via], **_sent(self.traces[via], c)}
            if via == "ddp" or via == "accelerate-naive":
                continue
            gathers = c.gather if via in HAND else c.unsharded
            seconds, exposed = c.predict(
                self._overlap(via), gathers, work, warmup, update, o.accumulation, o.sync_every_pass
            )
            wanted = by_hand if via in HAND else by_torch
            extra = via.startswith("accelerate")  # it makes the last norm a unit of its own, and keeps it
            rows[via]["predicted"] |= {
                "seconds": seconds,
                "exposed": exposed,
                "gathers": (wanted["all_gather"]["count"] + extra) * o.accumulation,
                "scatters": (wanted["reduce_scatter"]["count"] + extra) * passes,
            }
        return rows

    def _overlap(self, via):
        """How a way overlaps on this device, see Calibration.predict."""
        if via in ("naive", "accelerate-forced"):  # on a CPU torch gathers beside compute only where it is told to
            return "waits"
        return "streams" if via == "prefetching" or self.s.device.type == "cuda" else "gathers"


def by_flops(shape, batch, seq, checkpointing):
    """`timing.exchange.layers` of a machine that multiplies one number a second, and moves them in no time."""
    bare = {"world": 1, "matmul_flops_per_second": {"fp32": 1.0}, "copy_bytes_per_second": math.inf, "collectives": {}}
    job = Job(
        shape,
        seq,
        machine.device_of(bare),
        cluster(1, 1),
        batch,
        Layout(),
        Recipe("fp32", checkpointing=checkpointing),
        MEASURED,
    )
    rates = machine.from_profiles(job, {1: bare})
    return exchange.layers(job, (compute.block(job, rates), *compute.ends(job, rates)))


def _spread(timed) -> float:
    """From the lower quartile to the upper, seconds: half of the steps lie in it."""
    if len(timed) < 2:
        return 0.0
    low, _, high = statistics.quantiles(timed, n=4, method="inclusive")
    return high - low


def _sent(traced, calibration) -> dict:
    """Seconds per step and rank, from a Trace: exposed, in all-gathers, and in reductions of gradients.

    gloo's reduce-scatter is an all-reduce inside, and the profiler shows it as one.
    """
    sums, steps = {"exposed": 0.0, "gather_seconds": 0.0, "scatter_seconds": 0.0}, len(traced.steps(traced.ranks[0]))
    steps_of_all = steps * len(traced.ranks)
    sums["exposed"] = statistics.mean(trace.summary(traced)["exposed_seconds"].values())
    for rank in traced.ranks:
        for span in traced.spans(rank, "communication"):
            name = "gather_seconds" if "gather" in span.name.lower() else "scatter_seconds"
            sums[name] += length([(span.start, span.end)]) / steps_of_all
    return sums
