"""Stages and sends that sleep for a given time: a schedule measured without its arithmetic.

Ranks that compute on the same cores slow each other down, and so hide what a schedule does. Ranks that sleep do not.
Messages, autograd and the runtime are the real ones.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from scaleout.lab import pipeline as lab_pipeline
from scaleout.lab.pipeline import SHORT_MS
from scaleout.measure.pipeline import Span, Watched, timed
from scaleout.parallel.pipeline import Wire
from scaleout.parallel.pipeline_ways import Pipeline
from scaleout.spec.pipeline import SCHEDULES
from scaleout.timing import pipeline as timing_pipeline
from scaleout.timing.pipeline import Costs

LIKE = 2, 4, 8  # what sleeping stages hand on


class Nap(torch.autograd.Function):
    """Hands its input on. Sleeps `ahead` seconds in the forward, `back` seconds in the backward."""

    @staticmethod
    def forward(ctx, x: Tensor, forward: float, backward: float) -> Tensor:
        ctx.back = backward
        nap(x, forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        nap(gradient, ctx.back)
        return gradient, None, None


def nap(x: Tensor, seconds: float) -> None:
    """Sleep, once x is there: on a GPU a message may still be on its way."""
    if x.is_cuda:
        torch.cuda.current_stream(x.device).synchronize()
    time.sleep(seconds)


class Sleeper(nn.Module):
    """A stage of one weight: its forward, its input gradient and its weight gradient each take the seconds they are
    given. The first one's input gradient is no message, but it takes its time as that of a stage of layers does,
    which goes on to the token table."""

    tied = awake = False

    def __init__(self, stage: int, costs: Costs) -> None:
        super().__init__()
        self.first, self.last, self.edges = stage == 0, stage == len(costs.forward) - 1, []
        self.times = costs.forward[stage], costs.input[stage], costs.weight[stage]
        self.weight = nn.Parameter(torch.ones(()))
        self.table = nn.Parameter(torch.zeros(())) if self.first else None

    @staticmethod
    def loss(x: Tensor, targets: Tensor) -> Tensor:
        """Something to go back from."""
        return x.mean()

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """(b, s, h) in and out; of the last stage, with targets, its `loss`."""
        self.edges = []
        if self.first:
            x = self.noted(x + self.table, self.table)
        forward, backward, weight = (0.0, 0.0, 0.0) if self.awake else self.times
        x = self.noted(Nap.apply(x, forward, backward) * Nap.apply(self.weight, 0.0, weight), self.weight)
        return x if targets is None else self.loss(x, targets)

    def noted(self, x: Tensor, weight: nn.Parameter) -> Tensor:
        """x, where the graph leaves a weight; torch 2.11 asks for shapes by a forward without a graph."""
        if x.requires_grad:
            self.edges.append((get_gradient_edge(x), [weight]))
        return x


def sleepers(costs: Costs, device):
    """A function that makes a rank's sleeping stages, for a Pipeline."""
    return lambda mine: {i: Sleeper(i, costs).to(device) for i in mine}


def batch(m: int, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Micro-batches for stages that sleep: (inputs, targets)."""
    return [torch.ones_like(like) for _ in range(m)], [torch.zeros(len(like), device=like.device) for _ in range(m)]


class SlowWire(Wire):
    """A wire whose messages take `hop` seconds, as a slow link's latency does: the sender goes on at once, and what is
    sent cannot be received sooner. Each message carries its time as its first number; ranks share a host's clock."""

    hop = 0.0

    def __init__(self, *args) -> None:
        super().__init__(*args)
        zero = torch.tensor([time.perf_counter()], dtype=torch.float64)
        dist.broadcast(zero, self.source, self.group)
        self.zero = zero.item()

    def send(self, message: Tensor) -> None:
        message = message.clone()
        message.view(-1)[0] = time.perf_counter() - self.zero
        super().send(message)

    def receive(self) -> Tensor:
        message = super().receive()
        time.sleep(max(0.0, self.zero + message.view(-1)[0].item() + self.hop - time.perf_counter()))
        return message


def slow(hop: float) -> type[Wire]:
    """A kind of wire with hops of so many seconds."""
    return type("SlowWire", (SlowWire,), {"hop": hop}) if hop else Wire


def even(p: int, v: int, milliseconds: float, hop_ms: float = 0.0) -> Costs:
    """Of stages that are all alike: a rank's forwards take so long, and so do gradients of its inputs and weights."""
    return timing_pipeline.even(p * v, *[milliseconds / 1e3 / v] * 3, hop=hop_ms / 1e3)


def run(s, via: str, name: str, m: int, v: int, costs: Costs, repeats: int = 1, work=None, wire=None, timeout=None):
    """(predicted Timeline, seconds of the fastest step, spans of all ranks in the last) of a schedule on stages that
    sleep. The fastest, for whatever else the machine does can only add to it. work: what stands in the place of the
    schedule's own; wire: of its wires."""
    like = torch.zeros(LIKE, device=s.device)
    options = {"pipeline_type": Watched, "wire": wire or slow(costs.hop), "timeout": timeout} if via == "hand" else {}
    way = Pipeline(s, via, name, m, sleepers(costs, s.device), like, v, **options)
    way.work = work or getattr(way, "work", None)
    for awake in (True, False):  # a step without sleep first, to warm up
        for stage in way.stages.values():
            stage.awake = awake
        seconds, spans = timed(way, *batch(m, like), 1 if awake else repeats)
    way.close()
    return timing_pipeline.step(name, s.world, m, v, costs), min(seconds), spans


def schedules(s, plan, ways):
    """(rows of lab.pipeline.bubbles, what lab.pipeline.both_lanes shows: 1F1B or the first schedule). plan: the lab's.
    ways: [(via, schedule, v)]."""
    rows, shown, o = [], {}, plan.o
    # a slow hop lies in the wires by hand: torch's messages know of none
    cases = [(via, name, v, o.stage_ms) for via, name, v in ways if via == "hand" or not o.hop_ms]
    cases += [
        ("hand", name, v, SHORT_MS)
        for via, name, v in ways
        if (via, name) == ("hand", "1f1b") and o.stage_ms > SHORT_MS
    ]
    # and those with the most pieces once more, each piece as long as those of a schedule that cuts nothing
    cases += [
        ("hand", name, v, v * o.stage_ms) for via, name, v in ways if via == "hand" and v > 1 and SCHEDULES[name].splits
    ]
    for via, name, v, milliseconds in cases:
        wanted, seconds, spans = plan.sleep(s, via, name, v, even(plan.p, v, milliseconds, o.hop_ms))
        label = lab_pipeline.title(name, v)
        rows.append(
            {
                "name": label,
                "via": via,
                "ms": milliseconds,
                "predicted": wanted.seconds,
                "measured": seconds,
                "bubble": wanted.bubble,
                "found": lab_pipeline.bubble(wanted.work, seconds),
            }
        )
        if via == "hand" and milliseconds == o.stage_ms and (not shown or name == "1f1b"):
            shown = {"name": label, "predicted": predicted(wanted), "measured": spans}
    return rows, shown


def predicted(wanted) -> list[list[Span]]:
    """A Timeline as spans of all ranks."""
    return [[Span(*run.action, run.start - run.wait, run.start, run.end) for run in row] for row in wanted.runs]
