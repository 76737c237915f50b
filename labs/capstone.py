"""Rung 11: the training job. It trains a language model on real text, sharded over all processes.

    torchrun --nproc-per-node 2 labs/capstone.py --folder run
    torchrun --nproc-per-node 2 --max-restarts 3 labs/capstone.py --folder run --checkpoint-every 50
    torchrun --nproc-per-node 2 labs/capstone.py --tier cpu --folder run --minutes 5
    torchrun --nproc-per-node 2 labs/capstone.py --strategy ddp --save
    torchrun --nproc-per-node 8 labs/capstone.py --layout tp=2,pp=2 --folder run
    torchrun --nproc-per-node gpu labs/capstone.py --tier gpu --folder run --save

Started again with the same --folder, it resumes from its newest good checkpoint, on any number of processes that
divides the batch. On SIGTERM it saves and exits with code 75. Under torchrun send SIGTERM to the launcher: it passes
the signal on, and exits with its own traceback (SignalException) and code 1 after the ranks have saved. A loss that is
not a number and a full disk end the job for good: --max-restarts starts it again, and it makes no step. One job at a
time writes to a folder.
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

import math
import statistics
import sys

import torch
import torch.distributed as dist

from scaleout.lab import fits, join, recording, runner, session
from scaleout.lab import options as lab_options
from scaleout.parallel import seconds_between, stamp
from scaleout.train import (
    CHECKPOINT,
    TIERS,
    WARMUP,
    Cadence,
    Metrics,
    Order,
    Progress,
    Rates,
    Watch,
    attempts,
    batches,
    check_loss,
    check_norm,
    close,
    faults,
    folder,
    mesh_trainer,
    metrics,
    options,
    planned_steps,
    remember_collectives,
    spans,
    together,
)

PROBED = 12  # steps before --minutes is turned into a number of them
LOOK_S = 2.0  # seconds, at most, that the host goes without a look at the device
RUN = ("layers", "hidden", "heads", "style", "seq", "batch", "seed")  # options that a run keeps to its end
STOPPED = 75  # exit code after SIGTERM: EX_TEMPFAIL of sysexits.h, "try again later"


class Job:
    """A run on this rank: model, text, order, schedule, checkpoints, and what was measured."""

    def __init__(self, s, o):
        self.s, self.o, facts = s, o, recording.facts(s)
        self.claimed = self.claim()  # before anything is written, or waited for
        self.began = {name: facts[name] for name in ("started", "commit")}
        self.faults = faults.parse(o.inject, s.rank, s.world, join.attempt())
        self.passes = o.passes(s.world)
        self.text = batches.read(o.dataset, o.held_out, o.batch * o.seq + 1)  # refused before the model is made
        self.same_text()
        self.order = Order(len(self.text.train), o.seq, o.seed)
        self.share = o.share(s.rank, s.world)  # of each batch: ranks that share a model read the same
        self.held_out = [
            pair
            for window in batches.held_out(self.text, o.batch, o.seq, o.validation_batches, *self.share)
            for pair in batches.inputs(window, s.device, self.passes)
        ]
        self.trainer = mesh_trainer.trainer(s, o)
        self.metrics, self.done, self.steps, self.pending = Metrics(o.folder, s.main), 0, o.steps, []
        self.cadence, self.next_look, self.usual, self.asked = Cadence(s, o, self.faults), 0, 1.0, None
        self.seconds = []  # of the steps of this attempt, the same on every rank
        self.spans = []  # which options made which steps
        self.extra = self.cadence.load(self.trainer, self.run)  # refused before a word is said

    def claim(self):
        """The lock of the run's folder on rank 0, else None. ValueError on all ranks where it cannot be had."""
        if self.o.folder is None:
            return None
        claims = []
        written = together(
            self.s, lambda: claims.append(folder.claim(self.o.folder, metrics.FILES)) or folder.signed(claims[0])
        )
        if (
            self.s.nodes > 1
            and options.checkpoint_steps(self.o) != 0
            and not self.s.agree(claims or folder.shared(self.o.folder, written))
        ):
            raise ValueError(
                f"--folder {self.o.folder} is not the same folder on all nodes, and all of them write a checkpoint: "
                "give a folder that they share, or --checkpoint-every none"
            )
        return claims or None

    def same_text(self):
        """ValueError where ranks read different text: the standard library and torch are each node's own."""
        mark = int(self.text.digest[:12], 16)  # 48 bits: exact in the float that travels
        if self.s.largest(mark) != -self.s.largest(-mark):
            raise ValueError(
                "the ranks read different text: give all nodes the same --dataset, or the same Python and torch"
            )

    @property
    def tokens(self):
        """Tokens of a step, over all ranks."""
        return self.o.batch * self.o.seq

    @property
    def reading(self):
        """How often the text is read, in words."""
        steps = max(self.steps, self.done)  # --steps may ask for fewer than are done
        times = steps * self.o.batch / self.order.windows
        return (
            f"{steps:,} steps read the {len(self.text.train) / 1e6:,.2f} MB of training text "
            f"{times:{',.1f' if times >= 1 else '.2g'}} times"
        )

    # --- the loop ---------------------------------------------------------------------------------------------

    def train(self):
        """Train to the end, or until somebody asks to stop: `asked` is the signal then."""
        self.resume()
        if self.done >= self.steps:
            self.s.say(
                f"nothing to train: {self.done:,} steps are done, and --steps is {self.steps:,}: give a larger --steps"
            )
        if self.done or not self.o.minutes:  # else `plan` finds the number of steps, and says it
            self.s.say(self.reading)
        if self.o.compile:  # takes minutes, in which a watch would think that somebody hangs
            self.trainer.evaluate(self.held_out[:1])
        progress = Progress(self.s, self.steps, self.tokens)
        log = metrics.failures_file(self.o.folder)
        alike = self.o.strategy_on(self.s.world) != "mesh"
        with (
            Watch(self.s, self.faults, log=log, alike=alike) as watch,
            batches.Batches(self.s, self.text.train, self.order, self.o.batch, self.done, share=self.share) as feed,
        ):
            while self.done < self.steps and not self.asked:
                watch.begin(self.done + 1)
                self.step(feed)
                if self.o.minutes and self.done == PROBED:
                    self.plan(watch, progress)
                self.between(watch, progress)
            self.save(watch, finish=True)

    def between(self, watch, progress):
        """After a step: look, validate, save, where it is time."""
        last, saves = self.done == self.steps, self.cadence.due(self.done)
        # a checkpoint of --checkpoint-every auto gets a validation of its own: the best one is kept by it
        validates = last or self.done % self.o.validate_every == 0 or (saves and self.cadence.every is None)
        if not (validates or saves or self.done >= self.next_look):
            return
        self.look(watch)
        progress.show(self.metrics, last, self.cadence.standing(self.steps))
        if validates:
            loss = self.trainer.evaluate(watch.each(self.held_out, "validation"))
            self.metrics.add([{"step": self.done, "validation": loss}])
        if saves and not (last or self.asked):
            self.save(watch)

    def step(self, feed):
        """One step. What it gave stays on the device until `look`."""
        start = stamp(self.s)
        window, wait = feed.take()
        rate = Rates(self.o.lr, self.steps, self.o.warmup).rate(self.done)
        scale = self.trainer.scale
        loss, norm = self.trainer.step(batches.inputs(window, self.s.device, self.passes), rate)
        self.done += 1
        loss = self.faults.loss(self.done, loss)
        self.pending.append((self.done, rate, loss, norm, scale, start, stamp(self.s), wait))

    def look(self, watch):
        """Bring the steps since the last look to the host, and agree on them, and on a signal, with the other ranks.

        The only place where the host waits for the device. ValueError where a loss is no number.
        """
        if not self.pending:
            return
        self.s.synchronize()
        numbers, rates, losses, norms, scales, starts, ends, waits = zip(*self.pending, strict=True)
        self.pending = []
        seconds = [seconds_between(a, b) for a, b in zip(starts, ends, strict=True)]
        mean = torch.stack(losses).double()
        slowest = torch.tensor([*seconds, *waits, float(watch.asked or 0)], dtype=torch.float64, device=self.s.device)
        if self.s.world > 1:
            dist.all_reduce(mean)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
        mean, (*times, signal_number) = (mean / self.s.world).tolist(), slowest.tolist()
        norms = torch.stack(norms).tolist()
        scales = scales if scales[0] is None else torch.stack(scales).tolist()  # with fp16
        if not all(map(math.isfinite, (*mean, *norms))):
            self.cadence.finish()  # the checkpoint on its way is a good one
        for number, loss in zip(numbers, mean, strict=True):
            check_loss(loss, number, self.cadence.last)
        norms = [
            check_norm(norm, number, self.cadence.last, scale)
            for number, norm, scale in zip(numbers, norms, scales, strict=True)
        ]
        count = len(numbers)
        columns = numbers, mean, rates, norms, times[:count], times[count:]
        rows = [dict(zip(("step", *metrics.FIELDS), row, strict=True)) for row in zip(*columns, strict=True)]
        self.metrics.add(
            [row if scale is None else row | {"scale": scale} for row, scale in zip(rows, scales, strict=True)]
        )
        self.asked = int(signal_number) or None
        self.seconds += times[:count]
        self.usual = statistics.median(times[:count])
        self.next_look = self.done + max(1, min(self.o.log_every, int(LOOK_S / self.usual)))

    def plan(self, watch, progress):
        """Turn --minutes into a number of steps, the same on every rank, from the median of those made."""
        self.look(watch)
        spent = self.metrics.column("seconds")
        planned = planned_steps(self.o.minutes, self.done, sum(spent), self.usual, self.done)
        self.steps = progress.steps = int(self.s.largest(planned if self.s.main else 0))
        self.s.say(f"{self.o.minutes:g} minutes are {self.steps:,} steps; {self.reading}")

    # --- checkpoints ------------------------------------------------------------------------------------------

    def resume(self):
        """Go on from a checkpoint where there is one to go on from."""
        (extra, self.extra), attempt = (self.extra, None), join.attempt()
        if extra is not None:
            self.done = extra["step"]
            self.steps = extra["steps"] if self.o.minutes else self.steps
        lost, events_read = together(self.s, lambda: self.begin(fresh=extra is None))
        events = [*self.cadence.said(), *events_read]
        if extra is not None or attempt:
            start = f"restart {attempt}" if attempt else "started again"
            events.append(
                f"{start}: resumes after step {self.done:,} on {self.s.world} process(es); {lost:,} logged "
                "step(s) after it will be repeated"
            )
        self.spans, changed = spans.extend(
            (extra or {}).get("spans", []), self.done, spans.options(self.o, self.s.world)
        )
        if extra is not None and extra["steps"] != self.steps and self.done < self.steps:
            changed.insert(
                0, f"the learning rate now falls until step {self.steps:,}; before, until {extra['steps']:,}"
            )
        changed += self.trainer.rescale(extra.get("scaler")) if extra is not None else []
        known = {row["event"] for row in self.metrics.events}  # by an attempt that was killed since
        self.metrics.add(
            [{"step": self.done, "event": event} for event in events]
            + [{"step": self.done, "event": line, metrics.CHANGED: True} for line in changed if line not in known]
        )
        if self.metrics.events:
            self.s.say("\n".join(row["event"] for row in self.metrics.events))

    def begin(self, fresh):
        """Rank 0's part: what `Metrics.begin` gives. fresh: at step 0, and so anew but for a restart of this launch."""
        events = self.metrics.begin(self.done, fresh and not (join.attempt() and attempts.message("begun")))
        attempts.tell("begun", "yes")
        return events

    @property
    def run(self):
        """What a checkpoint must share with the job that goes on from it. "model" says it all, and stands last, so that
        an option that differs is named."""
        o = self.o
        settings = {lab_options.named(name): getattr(o, name) for name in RUN}
        return settings | {
            "--ff": o.shape.ff,
            "text": self.text.digest,
            "--held-out": o.held_out,
            "model": str(o.shape),
        }

    def save(self, watch, finish=False):
        """A checkpoint after the steps made so far; with `finish` it is whole on return."""
        if self.cadence.kept is None:
            return
        watch.pulse(CHECKPOINT)
        self.look(watch)
        newest = self.metrics.validations[-1] if self.metrics.validations else {"step": -1}
        loss = newest["validation"] if newest["step"] == self.done else None
        extra = {
            "step": self.done,
            "steps": self.steps,
            "run": self.run,
            "spans": self.spans,
            "scaler": self.trainer.scaler.state_dict(),
        }
        blocked = self.cadence.save(self.done, self.trainer, extra, loss, self.usual, finish)
        if blocked is not None:
            self.metrics.add([{"step": self.done, "checkpoint": blocked}])


def leave(s, job):
    """Say where a job that was asked to stop stands, and end with its exit code."""
    name = {2: "SIGINT", 15: "SIGTERM"}[job.asked]
    outcome = "saved; the same command resumes from there"
    if job.cadence.kept is None:
        outcome = "nothing saved, since no checkpoints were asked for (--folder)"
    job.metrics.add([{"step": job.done, "event": f"{name} after step {job.done:,}: {outcome}"}])
    s.say(f"stopped by {name} after step {job.done:,} of {job.steps:,}: {outcome}")
    sys.exit(STOPPED if name == "SIGTERM" else 130)


def main(s, argv=None):
    """Train, write, record."""
    lab = runner.Lab(s, __file__, __doc__, TIERS, argv, warmup=WARMUP)
    o = lab.o
    options.check(o, s)
    if join.attempt() == 0:  # a restart goes on from what came after that step
        options.check_resume(o)
    fits.check(s, o.shape, fits.REPLICATED if o.strategy_on(s.world) in ("one", "ddp") else fits.WEIGHTS)
    with attempts.for_good():
        job = Job(s, o)
        s.say(
            f"{recording.heading(s, o.shape)}, {o.precision}, {o.batch} x {o.seq} tokens per step in {job.passes} "
            f"micro-batch(es)\n{job.text.words}\n{job.trainer.built}"
        )
        session.reset_allocator(s)
        job.train()
        if job.asked:
            leave(s, job)
        close(lab, job)


if __name__ == "__main__":
    remember_collectives()
    session.run(main)
