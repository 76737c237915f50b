"""What goes wrong in a pipeline, on purpose: ranks that both send first, a receive that is waited for too early, a last
stage that has the head on top."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from functools import partial
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from scaleout.lab import pipeline as lab_pipeline
from scaleout.lab.text import ms
from scaleout.measure.pipeline import Span, clock
from scaleout.measure.pipeline_sleep import LIKE, batch, even, sleepers
from scaleout.parallel.pipeline import Wire, run
from scaleout.parallel.pipeline_ways import Pipeline
from scaleout.spec import checks
from scaleout.spec.devices import device
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.pipeline import orders
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import preset
from scaleout.timing import job as timing_job
from scaleout.timing.pipeline import Costs
from scaleout.timing.pipeline_waits import blocked

PATIENCE = 4.0  # seconds until a message of --fault both-send is given up
HEAVY = "llama-3-8b"  # whose head weighs as much as almost two of its layers


class Rendezvous(Wire):
    """A wire whose sender waits until the receiver takes the message, and whose receiver asks only when it needs it.
    `standing` has what this rank waits for: ["send" or "receive", what, its number, peer]."""

    def __init__(self, standing: list, patience: float, *args) -> None:
        super().__init__(*args)
        self.standing, self.patience, self.done = standing, timedelta(seconds=patience), 0
        self.what = "activations" if self.source < self.target else "gradient"

    def begin(self, m: int) -> None:
        self.done = 0

    def sent_one(self) -> None:
        """All has gone."""

    def send(self, message: Tensor) -> None:
        self._wait(dist.isend(message.contiguous(), self.target, self.group), "send", self.target)

    def receive(self) -> Tensor:
        buffer = torch.empty_like(self.like)
        self._wait(dist.irecv(buffer, self.source, self.group), "receive", self.source)
        return buffer

    def _wait(self, work, does: str, peer: int) -> None:
        self.standing[:] = [does, self.what, self.done, peer]
        work.wait(self.patience)
        self.standing.clear()
        self.done += 1


def both_send(s, m: int, patience: float) -> list | None:
    """1F1B on wires where nobody prepares to receive: in its middle part two ranks both send. What each rank waits for,
    by rank: ["send" | "receive", what, its number, peer]; None where the step ends.

    gloo only: a send there waits for its receiver whatever its size. torch's flight recorder notes no sends and
    receives of gloo (2.13), so each rank notes its own.
    """
    standing: list = []
    like, costs = torch.zeros(LIKE), even(s.world, 1, 1.0)
    way = Pipeline(s, "hand", "1f1b", m, sleepers(costs, s.device), like, wire=partial(Rendezvous, standing, patience))
    try:
        way.step(*batch(m, like))
    except RuntimeError:  # the time-out of a message
        if not standing:
            raise
    stuck = s.gathered(list(standing))
    return stuck if any(stuck) else None


class EarlyWire(Wire):
    """A wire that can be asked to wait for its next message before it is needed."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.ready: deque = deque()

    def fetch(self) -> None:
        """Wait for the next message, and keep it."""
        self.ready.append(super().receive())

    def receive(self) -> Tensor:
        return self.ready.popleft() if self.ready else super().receive()


def front_loaded(actions):
    """The work of a rank that waits for the first message of its next chunk as soon as it has done the first forward of
    this one, while inputs for this one lie ready: the head of the queue holds up the rest (torch's issue 188833)."""
    firsts = [action for action in actions if action.kind == "F" and action.micro == 0]
    following = dict(pairwise(firsts))

    def work(pipe, m):
        for action in actions:
            run([action])(pipe, m)
            if action in following:
                begin, (_, stage, i) = clock(pipe.s), following[action]
                pipe.inward[stage].fetch()
                end = clock(pipe.s)
                pipe.spans.append(Span("R", stage, i, begin, end, end))

    return work


# --- what the lab shows: of its session and its plan; the spans of all ranks, or None ------------------------


def show_both_send(s, plan) -> None:
    """A hang, in one line on who waits for whom; and who was to wait for whom."""
    s.say(lab_pipeline.hang(both_send(s, plan.m, PATIENCE), PATIENCE))
    ring = blocked(orders("1f1b", plan.p, plan.m), rendezvous=True)
    s.say("predicted for blocking sends: " + "; ".join(map(str, ring)))


def show_receive(s, plan):
    """Interleaved 1F1B as it should be, and with the next chunk's first message waited for too early."""
    name, v = "interleaved", 2
    mine, costs = orders(name, plan.p, plan.m, v)[s.rank], even(plan.p, v, plan.o.stage_ms)
    wanted, right, healthy = plan.sleep(s, "hand", name, v, costs)
    _, faulty, spans = plan.sleep(s, "hand", name, v, costs, work=front_loaded(mine), wire=EarlyWire)
    s.say(
        f"{lab_pipeline.title(name, v)}: {ms(right)} ms per step (predicted {ms(wanted.seconds)})\n"
        f"{lab_pipeline.lanes(healthy, faulty)}\n\nwith a receive for the next chunk too early: {ms(faulty)} ms"
        f"\n{lab_pipeline.lanes(spans, faulty)}\n{lab_pipeline.longest_receive(spans)}"
    )
    return spans


def refuse_head(ranks: int) -> None:
    """ValueError, one line, where HEAVY has no equal stages on so many ranks."""
    layers = preset(HEAVY).layers
    if layers % ranks:
        suggestion = checks.nearest(ranks, checks.divisors(layers))
        raise ValueError(f"--fault head: {ranks} ranks do not divide the {layers} layers of {HEAVY}: use {suggestion}")


def heavy_job(ranks: int, m: int) -> Job:
    """HEAVY on as many H100, run by Megatron-LM: whose proportions the sleeping stages have."""
    shape = preset(HEAVY)
    return Job(shape, shape.max_seq, device("h100-sxm"), cluster(1, ranks), layout=Layout(pp=ranks, micro_batches=m))


def slowed(costs: Costs, first: float, hop: float) -> Costs:
    """The same stages so much slower that the first one's forward takes `first` seconds, with hops of their own."""
    times = first / costs.forward[0]
    kinds = ([times * second for second in seconds] for seconds in (costs.forward, costs.input, costs.weight))
    return Costs(*map(tuple, kinds), hop)


def show_head(s, plan):
    """A last stage that has the head too, and the same with fewer layers on it."""
    even_job, rows = heavy_job(plan.p, plan.m), []
    block, _, head = timing_job.step(even_job).work
    s.say(f"{HEAVY}: {even_job.shape.layers} layers, and a head as heavy as {head.seconds / block.seconds:.1f} of them")
    for name, blocks in (("even", even_job.stages), ("balanced", timing_job.balanced_blocks(even_job))):
        costs = timing_job.step(even_job.other(blocks=blocks)).costs
        costs = slowed(costs, plan.o.stage_ms / 1e3 * blocks[0] / even_job.stages[0], plan.o.hop_ms / 1e3)
        wanted, measured, spans = plan.sleep(s, "hand", "1f1b", 1, costs)
        rows.append((name, blocks, wanted, measured, lab_pipeline.bubble(wanted.work, measured)))
        s.say(f"\n{name}, 1F1B\n{lab_pipeline.lanes(spans)}")
    s.say("\n" + lab_pipeline.compared(rows))
    return spans


FAULTS = {"both-send": show_both_send, "receive": show_receive, "head": show_head}
