"""Check the lab exercise `on-ranks-split`: a stage on each of two ranks, input gradients first, weights' afterwards.

Hooks on the weights and on the input say which gradients were computed in which call.
"""

from __future__ import annotations

from collections import Counter

import torch
import torch.distributed as dist
from torch import nn

from scaleout.exercises.engine import Verdict
from scaleout.exercises.pipeline.ranks.step import CLOSE, alone, data, flat, model
from scaleout.exercises.ranks.check import Check, wrong
from scaleout.exercises.ranks.sure import TELLING, all_right

MICRO_BATCHES = 3
ROUNDS = range(TELLING)  # each with data of its own: a mistake is named where all of them show it


WRONG = ("wrong-weights", "the weights' gradients are not those of backward() over the three micro-batches")


class Watched:
    """A stage whose gradients are counted: `computed["input"]` and `computed["weight"]`."""

    def __init__(self, stage: nn.Module) -> None:
        self.stage = stage
        self.computed: Counter = Counter()
        for weight in stage.parameters():
            weight.register_hook(lambda gradient: self.computed.update(["weight"]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """An input of its own, and its output."""
        x = x.detach().requires_grad_()
        x.register_hook(lambda gradient: self.computed.update(["input"]))
        return x, self.stage(x)


def rank_report(function, rank: int, world: int) -> Verdict | None:
    """All rounds on this rank: what is wrong with its backwards, or None."""
    faults = [_run(function, rank, world, seed) for seed in ROUNDS]
    first = next(filter(None, faults), None)
    if first and first[0] == "replaced" and {fault and fault[0] for fault in faults} != {"replaced"}:
        first = WRONG
    return wrong(f"rank {rank}: {first[1]}", first[0]) if first else None


def _run(function, rank: int, world: int, seed: int) -> tuple[str, str] | None:
    stage = model(world)[rank]
    watched, (inputs, targets) = Watched(stage), data(MICRO_BATCHES, seed)
    outputs = []
    waiting: list = []
    faults: list = []
    for x in inputs:
        if rank:
            dist.recv(x := torch.empty_like(x), 0)
        outputs.append(watched.forward(x))
        if not rank:
            dist.send(outputs[-1][1].detach(), 1)
    for i, (x, y) in enumerate(outputs):
        gradient = torch.empty_like(y)
        if rank:
            loss = nn.functional.mse_loss(received := y.detach().requires_grad_(), targets[i]) / MICRO_BATCHES
            (gradient,) = torch.autograd.grad(loss, received)
        else:
            dist.recv(gradient, 1)
        # as one process would have it: so that a wrong answer here leaves the other rank with the right numbers
        (exact,) = torch.autograd.grad(y, x, gradient, retain_graph=True)
        watched.computed.clear()
        faults += [_first(function, stage, x, y, gradient, exact, watched, waiting)] if not any(faults) else []
        if rank:
            dist.send(exact, 0)
    return next(filter(None, faults), None) or _second(stage, waiting, watched, alone(rank, world, MICRO_BATCHES, seed))


def _first(function, stage: nn.Module, x, y, gradient, exact, watched: Watched, waiting: list) -> tuple | None:
    """What is wrong with the first call of a micro-batch; its `later` is put behind those that wait."""
    weights_before = flat(stage)
    returned = function(stage, x, y, gradient)
    if returned is ...:
        return "stub", "the function still returns ...: write your two calls in its place"
    if not isinstance(returned, (tuple, list)) or len(returned) != 2 or not callable(returned[1]):
        return "no-pair", "return two things: the gradient of x, and a function that is called later"
    if not isinstance(returned[0], torch.Tensor) or returned[0].shape != x.shape:
        return "no-input-gradient", "the first return value is no tensor of the shape of x: return the gradient of x"
    if watched.computed["weight"] or not torch.equal(weights_before, flat(stage)):
        return "weights-too-early", (
            "gradients of weights were computed in the first call, while the previous rank "
            "waits: ask autograd for the gradient of x alone"
        )
    if (returned[0] - exact).abs().max() > CLOSE * exact.abs().max():
        return "wrong-input-gradient", "the returned tensor is not the gradient of x for the given gradient of y"
    waiting.append(returned[1])
    return None


def _second(stage: nn.Module, waiting: list, watched: Watched, parts: list[torch.Tensor]) -> tuple[str, str] | None:
    """What is wrong with the weights' gradients; `parts` of one process, by micro-batch."""
    watched.computed.clear()
    for later in reversed(waiting):
        later()
    right, actual = sum(parts), flat(stage)

    def matches(value: torch.Tensor) -> bool:
        return bool((actual - value).abs().max() <= CLOSE * right.abs().max())

    if watched.computed["input"]:
        return "input-again", "later() computes the gradient of x again: ask autograd for the weights' gradients alone"
    if matches(right):
        return None
    if not actual.any():
        return "nothing-added", "the weights have no gradient after later(): add to each weight's .grad"
    if matches(parts[0]) or matches(parts[-1]):
        return "replaced", "the weights have the gradient of one micro-batch: add all three to .grad"
    return WRONG


def explain(error: Exception) -> Verdict | None:
    """A second walk through what autograd has freed."""
    if "backward through the graph a second time" not in str(error):
        return None
    return wrong("the first call freed what autograd had saved for the second: pass retain_graph=True", "freed")


CHECK = Check(
    "scaleout.exercises.pipeline.ranks",
    "split_backward",
    (2,),
    rank_report,
    all_right(
        f"right: {{}} ranks sent {MICRO_BATCHES} input gradients first and computed the weights' gradients "
        "afterwards, equal to those of backward()",
    ),
    wait_seconds=5,
    explain=explain,
)
