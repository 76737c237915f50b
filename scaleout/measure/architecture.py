"""A small data-parallel job into which one of ten faults is injected, and the trace that its ranks write.

The job trains the book's transformer on every rank and all-reduces its gradients by hand. An emulated device lengthens
the compute by a fixed sleep, so that a busy machine changes little. Every run saves, collects garbage and evaluates at
the same steps; a fault changes only how long something takes, on which rank, or what a rank computes.
"""

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from scaleout.parallel.transformer import Transformer
from scaleout.timing import diagnosis
from scaleout.timing.stragglers import COMPUTE

DEVICE = 0.02  # seconds that the emulated device computes for a rank's usual tokens
FORWARD = 1 / 3  # of them; the backward takes the others (Kaplan et al., 2020: twice the FLOPs)
LONG = 4  # times the usual tokens of a step: the longest sequences
COLLECT_EVERY, SAVE_EVERY, EVALUATE_EVERY = 4, 4, 3  # steps
AGREE = 0.02  # seconds per rank until all know when the run begins
MAIN = 0  # the rank that writes checkpoints and evaluates

Amount = Callable[[int, int], float]  # (rank, step): seconds


def nothing(rank: int, step: int) -> float:
    """No seconds on any rank in any step."""
    return 0.0


@dataclass(frozen=True)
class Amounts:
    """What is injected, by rank and step, in seconds: before the first step (start), per batch, per collection, save
    and evaluation, into compute, and into the all-reduce of all ranks (link). device: seconds of the emulated device
    for the usual tokens. length: times the usual tokens. broken: whether the loss of this rank becomes NaN here."""

    start: Amount = nothing
    input: Amount = nothing
    collect: Amount = nothing
    compute: Amount = nothing
    link: Amount = nothing
    save: Amount = nothing
    evaluate: Amount = nothing
    device: float = DEVICE
    length: Callable[[int, int], int] = lambda rank, step: 1
    broken: Callable[[int, int], bool] = lambda rank, step: False

    def before(self, rank: int, step: int) -> dict[str, float]:
        """{span: seconds} that a rank sleeps before the all-reduce of a step."""
        computing = self.device * self.length(rank, step) + self.compute(rank, step)
        collects = last_of(COLLECT_EVERY)(step) or self.collect(rank, step) > 0
        return {
            "input": self.input(rank, step),
            **({"collect": self.collect(rank, step)} if collects else {}),
            "forward": FORWARD * computing,
            "backward": (1 - FORWARD) * computing,
        }

    def after(self, rank: int, step: int) -> dict[str, float]:
        """{span: seconds} that a rank sleeps after the update: only MAIN saves and evaluates."""
        saves = rank == MAIN and (last_of(SAVE_EVERY)(step) or self.save(rank, step) > 0)
        evaluates = rank == MAIN and last_of(EVALUATE_EVERY)(step)
        return {
            **({"save": self.save(rank, step)} if saves else {}),
            **({"evaluate": self.evaluate(rank, step)} if evaluates else {}),
        }

    def seconds(self, rank: int, step: int) -> float:
        """All that a rank sleeps in a step but for the link."""
        local = (self.before(rank, step), self.after(rank, step))
        return self.start(rank, step) + sum(sum(spans.values()) for spans in local)


def on(culprit: int, seconds: float, when: Callable[[int], float] = lambda step: 1.0) -> Amount:
    """Seconds on one rank, times what `when` gives for the step."""
    return lambda rank, step: seconds * when(step) if rank == culprit else 0.0


def last_of(every: int) -> Callable[[int], bool]:
    """True in each last step of so many."""
    return lambda step: step % every == every - 1


def turn(ranks: int) -> Callable[[int, int], bool]:
    """True for one rank in each step: each in turn, and in another order in every round."""
    return lambda rank, step: (step + step // ranks) % ranks == rank


def faults(seconds: float, steps: int, ranks: int, culprits: dict[str, int]) -> dict[str, Amounts]:
    """{fault: Amounts}: each costs a run so many injected seconds per step, all at once where it strikes rarely.
    culprits: {fault: rank}."""
    takes_turn, whole = turn(ranks), seconds * steps
    saved, evaluated = whole / (steps // SAVE_EVERY), whole / (steps // EVALUATE_EVERY)
    slow, disk, save, nan, heat, late, evaluator = (culprits[name] for name in (
        diagnosis.SLOW_RANK, diagnosis.SLOW_DISK, diagnosis.CHECKPOINT, diagnosis.NAN, diagnosis.HEAT, diagnosis.LATE,
        diagnosis.EVALUATOR,
    ))  # fmt: skip
    return {
        diagnosis.SLOW_RANK: Amounts(compute=on(slow, seconds)),
        diagnosis.SLOW_DISK: Amounts(input=on(disk, seconds)),
        diagnosis.SLOW_LINK: Amounts(link=lambda rank, step: seconds),
        diagnosis.COLLECTIONS: Amounts(collect=lambda rank, step: seconds * takes_turn(rank, step)),
        diagnosis.CHECKPOINT: Amounts(save=on(save, saved, last_of(SAVE_EVERY))),
        diagnosis.LENGTHS: Amounts(
            device=seconds / (LONG - 1), length=lambda rank, step: LONG if takes_turn(rank, step) else 1
        ),
        diagnosis.NAN: Amounts(broken=lambda rank, step: (rank, step) == (nan, steps // 2)),
        diagnosis.HEAT: Amounts(compute=on(heat, 2 * seconds, lambda step: step / (steps - 1))),
        diagnosis.LATE: Amounts(start=on(late, whole, lambda step: step == 0)),
        diagnosis.EVALUATOR: Amounts(evaluate=on(evaluator, evaluated, last_of(EVALUATE_EVERY))),
    }


def mixed(seconds: float, steps: int, ranks: int) -> tuple[Amounts, str]:
    """Several faults in one run, and the same in words. What one rank does in every step costs most."""
    slow, reader, collector = 2 * ranks // 3, ranks // 4, ranks - 1
    read, collect, save, link = steps // 5, 2 * steps // 5, steps // 2 - 1, 7 * steps // 10
    amounts = Amounts(
        compute=on(slow, seconds),
        input=on(reader, 2 * seconds, lambda step: step in (read, read + 1)),
        collect=on(collector, 3 * seconds, lambda step: step == collect),
        save=on(MAIN, 3 * seconds, lambda step: step == save),
        link=lambda rank, step: seconds * (link <= step < link + 3),
        device=2 * DEVICE,
    )
    ms = round(1e3 * seconds)
    return amounts, (
        f"rank {slow} computes {ms} ms longer in every step, rank {reader} waits {2 * ms} ms longer for its batch in "
        f"steps {read} and {read + 1}, rank {collector} collects garbage for {3 * ms} ms in step {collect}, rank "
        f"{MAIN} saves for {3 * ms} ms after step {save}, and the link delays all ranks by {ms} ms in steps {link} to "
        f"{link + 2}; an emulated device computes for {2e3 * DEVICE:.0f} ms per step on every rank"
    )


class Timeline:
    """The rows of one rank, in the format of `timing.stragglers`; seconds since `zero` on the clock."""

    def __init__(self, rank, clock, zero):
        self.rank, self.clock, self.zero = rank, clock, zero
        self.rows, self.spans, self.start, self.clock_at = [], [], 0.0, 0.0

    def now(self):
        """Seconds since the start of the run."""
        return self.clock() - self.zero

    @contextmanager
    def span(self, name):
        """Note how long the block takes."""
        start = self.now()
        yield
        self.spans.append([name, start, self.now()])

    def lay(self, start, spans):
        """Note spans that are not run, one after the other; `clock_at` is their end. spans: {name: seconds}."""
        self.clock_at = start
        for name, seconds in spans.items():
            self.spans.append([name, self.clock_at, self.clock_at + seconds])
            self.clock_at += seconds

    def close(self, step, end, values):
        """End the row of a step."""
        spans = [[name, round(start, 5), round(stop, 5)] for name, start, stop in self.spans]
        self.rows.append({"rank": self.rank, "step": step, "start": round(self.start, 5), "end": round(end, 5),
                          "spans": spans, "values": values})  # fmt: skip
        self.start, self.spans = end, []


class Bench:
    """The job of a session `s` with options `o` on batches(step), a list with one: the rows of a run with any Amounts.

    One process has an emulated second rank, which sleeps what an idle machine would compute.
    """

    def __init__(self, s, o, batches):
        self.s, self.o, self.batches = s, o, lambda step: batches(step)[0]
        self.ranks = max(2, s.world)
        self.usual = o.seq // LONG
        if s.device.type == "cpu":
            torch.set_num_threads(1)

    def predict(self, healthy, amounts):
        """Seconds of a run, from the Trace of one without a fault: what is injected on the rank that sleeps longest,
        and the real compute of long sequences, which grows with their tokens."""
        ranks, usual = range(self.ranks), Amounts()
        real = statistics.fmean(row.local(COMPUTE) for rows in healthy.steps for row in rows) - usual.device
        seconds = healthy.seconds
        for step in range(self.o.steps):
            longest = [max(each.seconds(rank, step) for rank in ranks) for each in (usual, amounts)]
            seconds += longest[1] - longest[0] + amounts.link(0, step)
            seconds += real * (max(amounts.length(rank, step) for rank in ranks) - 1)
        return seconds

    def clock(self):
        """Seconds on a clock that all processes of a machine share."""
        self.s.synchronize()
        return time.monotonic()

    def run(self, amounts):
        """The rows of all ranks, as `timing.stragglers.read` takes them."""
        torch.manual_seed(self.o.seed)
        self.model = Transformer(self.o.shape).to(self.s.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=False)
        self.amounts = amounts
        gc.collect()
        gc.freeze()
        gc.disable()  # collections run where the job asks for them
        try:
            with tempfile.TemporaryDirectory(prefix="architecture-") as folder:
                self.folder = Path(folder)
                self._warm_up()
                timelines = self._timelines()
                for step in range(self.o.steps):
                    self.step(timelines, step)
        finally:
            gc.enable()
            gc.unfreeze()
        mine = [row for timeline in timelines for row in timeline.rows]
        return [row for rows in self.s.gathered(mine) for row in rows]

    def _warm_up(self):
        """One step that allocates, and changes nothing."""
        self.batch = [part[:, : self.usual] for part in self.batches(0)]
        loss = self.model(*self.batch)
        loss.backward()
        self.seen = round(loss.item(), 4)
        self.optimizer.zero_grad()

    def _timelines(self):
        """This rank's Timeline, and that of an emulated rank. On one machine all begin at a moment that they agree on;
        on several, whose clocks differ, after the same barrier."""
        self.s.barrier()
        zero = self.clock()
        if self.s.nodes == 1:
            zero = max(self.s.gathered(zero + AGREE * self.ranks))
            time.sleep(max(0.0, zero - self.clock()))
        ranks = [self.s.rank] if self.s.world > 1 else [0, 1]
        return [Timeline(rank, self.clock, zero) for rank in ranks]

    def step(self, timelines, step):
        """One step, in the order of a training loop."""
        mine, amounts, rank = timelines[0], self.amounts, self.s.rank
        time.sleep(amounts.start(rank, step))
        work = {"input": lambda: self._batch(step), "collect": gc.collect,
                "forward": lambda: self._loss(step), "backward": lambda: self.loss.backward()}  # fmt: skip
        for name, seconds in amounts.before(rank, step).items():
            with mine.span(name):
                work[name]()
                time.sleep(seconds)
        values = {"loss": round(self.loss.item(), 4), "tokens": self.batch[0].numel()}
        partners = timelines[1:]
        for partner in partners:
            partner.lay(partner.start + amounts.start(partner.rank, step), amounts.before(partner.rank, step))
        with mine.span("all_reduce"):
            self._all_reduce(step, partners)
        done = mine.now()
        with mine.span("update"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        work = {"save": self._save, "evaluate": self._evaluate}
        for name, seconds in amounts.after(rank, step).items():
            with mine.span(name):
                work[name]()
                time.sleep(seconds)
        mine.close(step, mine.now(), values)
        shared = self.seen if amounts.broken(rank, step) else values["loss"]  # a NaN is one rank's until it is reduced
        for partner in partners:
            self._close(partner, step, done, shared)
        self.seen = values["loss"]

    def _batch(self, step):
        """Read the batch; a rank with longer sequences takes more of each."""
        tokens = self.usual * self.amounts.length(self.s.rank, step)
        self.batch = [part[:, :tokens] for part in self.batches(step)]

    def _loss(self, step):
        """The forward, and the NaN of a broken rank."""
        self.loss = self.model(*self.batch)
        if self.amounts.broken(self.s.rank, step):
            self.loss = self.loss * float("nan")

    def _all_reduce(self, step, partners):
        """The mean gradients of all ranks, once the last has arrived, over a link that may be slow."""
        gradients = [p.grad for p in self.model.parameters()]
        if self.s.world > 1:
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat)
            parts = flat.div_(self.s.world).split([gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))
        for partner in partners:
            time.sleep(max(0.0, partner.clock_at - partner.now()))
            if self.amounts.broken(partner.rank, step):
                gradients[0].fill_(float("nan"))
        time.sleep(self.amounts.link(self.s.rank, step))

    def _save(self):
        torch.save(self.model.state_dict(), self.folder / "model.pt")

    def _evaluate(self):
        with torch.no_grad():
            self.model(*self.batch)

    def _close(self, partner, step, done, loss):
        """End the row of an emulated rank: it leaves the all-reduce when the real one does."""
        broken = self.amounts.broken(partner.rank, step)
        partner.spans.append(["all_reduce", partner.clock_at, done])
        partner.lay(done, self.amounts.after(partner.rank, step))
        tokens = self.o.micro_batch * self.usual * self.amounts.length(partner.rank, step)
        partner.close(step, partner.clock_at, {"loss": float("nan") if broken else loss, "tokens": tokens})
