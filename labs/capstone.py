"""Rung 11: the training job. A language model on real text, sharded over as many processes as there are.

    torchrun --nproc-per-node 2 labs/capstone.py --folder run
    torchrun --nproc-per-node 2 labs/capstone.py --tier cpu --folder run --minutes 5
    torchrun --nproc-per-node 2 labs/capstone.py --strategy ddp --save
    torchrun --nproc-per-node gpu labs/capstone.py --tier gpu --folder run --save
"""

import statistics
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

from scaleout import lab, lab_capstone, lab_job, lab_report, lab_text, results, torch_input, torch_peak
from scaleout.lab_capstone import Metrics, Progress
from scaleout.lab_job import TIERS
from scaleout.order import Order
from scaleout.rates import Rates, planned_steps
from scaleout.torch_step import seconds_between, stamp
from scaleout.torch_train import Setup, Trainer, sample
from scaleout.transformer import flops, total_parameters

WARMUP = 3              # steps that no rate counts: memory is allocated, kernels are chosen, units learn their order
PROBED = 12             # steps before --minutes is turned into a number of them


class Job:
    """A run on this rank: model, text, order, schedule, and what was measured."""

    def __init__(self, s, o):
        self.s, self.o = s, o
        self.text = torch_input.read(o.dataset, o.held_out)
        self.order = Order(len(self.text.train), o.seq, o.seed)
        strategy = o.strategy_on(s.world)
        sharding = {"sharding": o.sharding(s.world)} if strategy == "fsdp" else {}
        self.trainer = Trainer(s, Setup(
            o.shape, strategy, precision=o.precision, attention=o.attention, checkpointing=o.checkpointing,
            compiled=o.compile, sync_every_pass=o.sync_every_pass, clip=o.clip, weight_decay=o.weight_decay,
            seed=o.seed, **sharding))
        self.passes = o.passes(s.world)
        self.held_out = [pair for window in torch_input.held_out(self.text, o.batch, o.seq, o.validation_batches,
                                                                 s.rank, s.world)
                         for pair in torch_input.inputs(window, s.device, self.passes)]
        self.metrics, self.done, self.steps, self.pending = Metrics(o.folder, s.main), 0, o.steps, []

    @property
    def tokens(self):
        """Tokens of a step, over all ranks."""
        return self.o.batch * self.o.seq

    def train(self):
        """Train to the end."""
        self.metrics.begin(self.done)
        progress = Progress(self.s, self.steps, self.tokens)
        with torch_input.Batches(self.s, self.text.train, self.order, self.o.batch, self.done) as batches:
            while self.done < self.steps:
                self.step(batches)
                if self.o.minutes and self.done == PROBED:
                    self.plan(progress)
                validates = self.done % self.o.validate_every == 0 or self.done == self.steps
                if self.done % self.o.log_every == 0 or validates:
                    self.look()
                    progress.show(self.metrics, force=self.done == self.steps)
                if validates:
                    self.metrics.add([{"step": self.done, "validation": self.trainer.evaluate(self.held_out)}])

    def step(self, batches):
        """One step. What it gave stays on the device until `look`."""
        start = stamp(self.s)
        window, wait = batches.take()
        rate = Rates(self.o.lr, self.steps, self.o.warmup).rate(self.done)
        loss, norm = self.trainer.step(torch_input.inputs(window, self.s.device, self.passes), rate)
        self.done += 1
        self.pending.append((self.done, rate, loss, norm, start, stamp(self.s), wait))

    def look(self):
        """Bring the steps since the last look to the host, and agree on them with the other ranks.

        The only place where the host waits for the device. ValueError where a loss is no number.
        """
        if not self.pending:
            return
        self.s.synchronize()
        numbers, rates, losses, norms, starts, ends, waits = zip(*self.pending, strict=True)
        self.pending = []
        seconds = [seconds_between(a, b) for a, b in zip(starts, ends, strict=True)]
        mean = torch.stack(losses).double()
        slowest = torch.tensor([seconds, waits], dtype=torch.float64, device=self.s.device)
        if self.s.world > 1:
            dist.all_reduce(mean)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
        columns = numbers, (mean / self.s.world).tolist(), rates, torch.stack(norms).tolist(), *slowest.tolist()
        rows = [dict(zip(("step", *lab_capstone.FIELDS), row, strict=True)) for row in zip(*columns, strict=True)]
        self.metrics.add(rows)

    def plan(self, progress):
        """Turn --minutes into a number of steps, the same on every rank, from the median of those made."""
        self.look()
        spent = self.metrics.column("seconds")
        self.steps = planned_steps(self.o.minutes, self.done, sum(spent), statistics.median(spent[WARMUP:]), self.done)
        progress.steps = self.steps
        self.s.say(f"{self.o.minutes:g} minutes are {self.steps:,} steps")


# --- what is said and kept --------------------------------------------------------------------------------

class Effort:
    """How long the peak is looked for, and how far."""

    seconds, largest_matrix = 0.3, 8192


def peak(s, o):
    """(FLOP/s of all ranks together, where it comes from): matrix products of this run's dtype, timed in this run."""
    dtype = torch.bfloat16 if o.precision == "bf16" else torch.float32
    rate, side = torch_peak.matmul_rate(s, dtype, Effort)
    return rate * s.world, f"{o.precision} matrix products of side {side} on {s.world} process(es), timed in this run"


def record(s, tier, o, job, peak_):
    """The Record of this run; the same on every rank but for the facts of its own device."""
    facts, metrics = lab.facts(s), job.metrics
    spent = metrics.column("seconds")
    rate = results.tokens_per_second(spent, WARMUP, o.batch, o.seq)
    work = flops(o.shape, o.batch, o.seq)
    mfu = (work["forward"] + work["backward"]) * rate / job.tokens / peak_[0]
    names = {"norm": "gradient norm", "wait": "data wait seconds", "rate": "learning rate"}
    series = {name: metrics.column(field) for field, name in names.items()}
    series |= {"validation nats a byte": [row["validation"] for row in metrics.validations],
               "validation step": [row["step"] for row in metrics.validations]}
    passes = {"strategy": o.strategy_on(s.world), "accumulation": job.passes, "optimizer": "fused AdamW"}
    sharding = asdict(job.trainer.setup.sharding) if passes["strategy"] == "fsdp" else {}
    return results.Record(
        stem="capstone", tier=tier, **facts | {"notes": [*facts["notes"], job.trainer.built]}, model=asdict(o.shape),
        recipe=passes | sharding | {"checkpointing": o.checkpointing, "attention": o.attention, "compile": o.compile},
        effective_batch=o.batch, sequence_length=o.seq, precision=o.precision, checkpoint_cadence="none",
        step_seconds=spent, warmup_steps=WARMUP, tokens_per_second=rate, losses=metrics.column("loss"),
        peak_memory=lab.allocator(s), prediction={}, measurement={}, mfu=mfu,
        mfu_peak={"flops_per_second": peak_[0], "source": peak_[1]}, series=series)


def close(s, tier, o, job):
    """The sample, the plot, the Record."""
    folder = Path(o.folder) if o.folder else None
    wrote = lab_capstone.readable(sample(job.trainer, o.prompt.encode(), o.sample, o.temperature, o.seed)) \
        if o.sample else ""
    r = record(s, tier, o, job, peak(s, o))
    if s.main and folder:
        (folder / lab_capstone.SAMPLE).write_text(wrote, encoding="utf-8")
        lab_capstone.plot(job.metrics, folder / lab_capstone.PLOT,
                          f"{total_parameters(o.shape) / 1e6:,.1f} M parameters on {s.world} process(es)")
    if wrote:
        s.say(f"\n--- {o.sample} bytes at temperature {o.temperature:g} ---\n{wrote}\n---")
    s.say("\n".join([lab_report.summary(r), f"validation {job.metrics.validations[-1]['validation']:.3f} nats a byte "
                     f"on {len(job.text.held_out)} file(s) held out",
                     f"data wait {sum(r.series['data wait seconds']) / sum(r.step_seconds):.2%} of the step"]))
    if o.save and s.main:
        s.say(f"record saved: {results.save(r, lab_job.record_path(s, tier, o)).name}")


def main(s, argv=None):
    """Train, write, record."""
    tier, o = lab_text.parse(TIERS, __doc__, argv)
    lab_job.check(o, s)
    job = Job(s, o)
    s.say(f"{lab.device_name(s.device)}, {s.world} process(es), backend {s.backend}: "
          f"{total_parameters(o.shape) / 1e6:,.2f} M parameters, {o.precision}, {o.batch} x {o.seq} tokens a step in "
          f"{job.passes} pass(es); {len(job.text.train) / 1e6:,.2f} MB of text, {job.order.windows:,} windows an epoch")
    s.say(job.trainer.built)
    job.train()
    close(s, tier, o, job)


if __name__ == "__main__":
    lab.run(main)
