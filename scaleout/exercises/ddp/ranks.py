"""Check the lab exercise `train-step` on two processes.

    python -m scaleout.exercises.ddp.ranks mine.py

The steps are compared with those that wrong gradients would lead to, so that the message can name the mistake.
Communicated bytes are counted, and so are the samples that go through the model.
"""

from __future__ import annotations

import copy
from itertools import chain
from traceback import walk_stack

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, main, wrong
from scaleout.exercises.ranks.count import counted
from scaleout.exercises.ranks.sure import Fault, Seen, judged

PASSES, BATCH, STEPS = 3, 4, 3
WRAPPER = nn.parallel.DistributedDataParallel.__module__
# Of a weight, relative to the longest step: sums in another order differ by about 1e-6.
CLOSE = 1e-4


def job() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same small model on every rank, its middle layer frozen, and AdamW.

    With plain SGD, or momentum, the mean of the ranks' weights is what the mean gradient leads to; with AdamW it is
    not. But its step hardly depends on the size of a gradient, so that a sum would pass for a mean: unless eps is as
    large as gradients are.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    model[2].requires_grad_(False)
    return model, torch.optim.AdamW(trained(model), lr=0.05, eps=0.1)


def trained(model: nn.Module) -> list[torch.Tensor]:
    """The weights that are not frozen."""
    return [weight for weight in model.parameters() if weight.requires_grad]


def data(step: int, rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The passes of one rank in one step, different on each."""
    generator = torch.Generator().manual_seed(100 * step + rank + 1)
    return [
        (torch.randn(BATCH, 6, generator=generator), torch.randn(BATCH, 3, generator=generator)) for _ in range(PASSES)
    ]


def weights(model: nn.Module) -> torch.Tensor:
    """All trained weights in one row."""
    return torch.cat([weight.detach().flatten() for weight in trained(model)])


def gradient(model: nn.Module, passes: list) -> torch.Tensor:
    """Of the mean loss over all the passes given, in one row; nothing is left on the model."""
    loss = sum(mse_loss(model(inputs), targets) for inputs, targets in passes) / len(passes)
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, trained(model))])


def stepped(state: tuple[nn.Module, torch.optim.Optimizer], row: torch.Tensor) -> torch.Tensor:
    """The weights that a step with the gradient `row` leads to from there; `before` stays as it is."""
    model, optimizer = copy.deepcopy(state)
    step_with(model, optimizer, row)
    return weights(model)


def step_with(model: nn.Module, optimizer: torch.optim.Optimizer, row: torch.Tensor) -> None:
    """A step with the gradient `row`."""
    for weight, part in zip(trained(model), row.split([weight.numel() for weight in trained(model)]), strict=True):
        weight.grad = part.view_as(weight).clone()
    optimizer.step()


def rank_report(function, rank: int, world: int) -> Verdict | list[Seen]:
    """Some steps on this rank: what was seen in each, or what is wrong whatever else it does."""
    model, optimizer = job()
    alone, seen, rows = [job() for _ in range(world)], [], []
    wrapped: list = []

    def look(layer, inputs, output) -> None:
        rows.append(len(inputs[0]))
        wrapped.extend(frame for frame, _ in walk_stack(None) if frame.f_globals.get("__name__") == WRAPPER)

    model[0].register_forward_hook(look)
    for step in range(STEPS):
        rows.clear()
        state, passes = copy.deepcopy((model, optimizer)), data(step, rank)
        leftover = torch.cat(
            [
                torch.zeros_like(weight).flatten() if weight.grad is None else weight.grad.detach().flatten().clone()
                for weight in trained(model)
            ]
        )
        with counted() as calls:
            returned = function(model, optimizer, passes)
        if returned is ...:
            return wrong("the function returns its ... at once: write your step in its place", "stub")
        if wrapped:
            return wrong(
                "you used DDP, which reduces for you: write the all-reduce yourself, and do not wrap the model",
                "wrapped",
            )
        rows_used = sum(rows)
        fault, agree = _seen(state, leftover, weights(model), averaged(alone, step), step, rank)
        fault = fault or _talk(calls, rows_used, 4 * len(leftover))
        seen.append(Seen(f"rank {rank}, step {step}", fault, agree))
    return [*seen, Seen(f"rank {rank}", None, frozenset(WORDS), weights(model).tolist())]


def averaged(alone: list[tuple], step: int) -> torch.Tensor:
    """The weights where each rank steps on its own passes, with a state of its own, and weights are averaged."""
    for rank, (model, optimizer) in enumerate(alone):
        step_with(model, optimizer, gradient(model, data(step, rank)))
    with torch.no_grad():
        for copies in zip(*(trained(model) for model, _ in alone), strict=True):
            mean = sum(copies) / len(alone)
            for weight in copies:
                weight.copy_(mean)
    return weights(alone[0][0])


def _seen(
    state: tuple, leftover: torch.Tensor, result: torch.Tensor, separate: torch.Tensor, step: int, rank: int
) -> tuple[Fault, frozenset[str]]:
    """What is to be seen in the weights that result, and the mistakes that lead to them; separate: from `averaged`."""
    world = dist.get_world_size()
    start, data_by_rank = weights(state[0]), [data(step, peer) for peer in range(world)]
    right = gradient(state[0], list(chain(*data_by_rank)))
    expected = stepped(state, right)

    def matches(value: torch.Tensor) -> bool:
        return bool((result - value).abs().max() <= CLOSE * (expected - start).abs().max())

    if matches(start):
        return ("no-step", "the weights are as they were: call optimizer.step()"), frozenset()
    alone = [stepped(state, gradient(state[0], passes)) for passes in data_by_rank]
    values = {slip: stepped(state, row) for slip, row in _known(state[0], right, data_by_rank, rank).items()}
    values |= {
        "weights-averaged": separate,
        "weights-averaged-whole": sum(alone) / world,
        "not-cleared": stepped(state, right + leftover) if step and leftover.any() else expected,
    }
    agree = frozenset(slip for slip, value in values.items() if matches(value))
    error = (result - expected).abs().max() / (expected - start).abs().max()
    return None if matches(expected) else (
        "wrong-gradient",
        f"the weights are wrong by {error:.0%} of the largest change that a step with the mean gradient over all "
        "passes of all ranks makes. Accumulate, average over the ranks, then call optimizer.step() once",
    ), agree


WORDS = {
    "weights-averaged": "each rank stepped with its own gradient, and the weights were averaged: with an optimizer "
                        "that has states, this gives a different step. Average the gradients, then step",
    "weights-averaged-whole": "each rank stepped with its own gradient, and weights and states were averaged: this "
                              "gives a different step. Average the gradients, then step",
    "not-averaged": "the gradient is too large by a factor of the number of ranks. all_reduce adds: divide by the "
                    "world size",
    "passes-added": f"the gradient is {PASSES} times too large: those of {PASSES} passes were added. Divide each loss "
                    "by the number of passes",
    "nothing-divided": "the gradient is too large by the number of passes times the number of ranks: divide by both",
    "divided-twice": "the gradient is too small by a factor of the number of ranks: it was divided by the ranks twice",
    "own-gradient": "the step used this rank's own gradient, which was not averaged with the other rank's",
    "rank-0": "both ranks stepped with the gradient of rank 0's passes only: the other rank's passes count as well",
    "own-sum": f"the step used this rank's own gradients, added over {PASSES} passes: they were neither divided nor "
               "averaged with the other rank's",
    "last-pass": "only the last pass counts: the gradients are cleared before each pass, or the others never ran",
    "last-pass-whole": "only the last pass counts: the gradients are cleared before each pass, or the others never ran",
    "not-cleared": "the first step is right, and the later ones are not: the gradients of the previous step are still "
                   "there. Call optimizer.zero_grad()",
}  # fmt: skip


def _known(model: nn.Module, right: torch.Tensor, data_by_rank: list, rank: int) -> dict[str, torch.Tensor]:
    """The gradients that mistakes step with."""
    world, mine = len(data_by_rank), gradient(model, data_by_rank[rank])
    last = sum(gradient(model, passes[-1:]) for passes in data_by_rank) / world
    return {
        "not-averaged": world * right,
        "passes-added": PASSES * right,
        "nothing-divided": world * PASSES * right,
        "divided-twice": right / world,
        "own-gradient": mine,
        "rank-0": gradient(model, data_by_rank[0]),
        "own-sum": PASSES * mine,
        "last-pass": last / PASSES,
        "last-pass-whole": last,
    }


def _talk(calls: counted, rows: int, size: int) -> Fault:
    """What is wrong with how a right step communicated. rows: that went through this rank's model; size: bytes of the
    gradients."""
    if not calls.calls:
        return "unseen", "the weights are right, but no collective of yours was seen: all-reduce the gradients"
    if rows > PASSES * BATCH:
        return "data-gathered", (
            f"the weights are right, but {rows} samples went through this rank's model, and its own passes have "
            f"{PASSES * BATCH}: do not send data, only gradients"
        )
    if calls.sent > 1.5 * size:
        return "every-pass", (
            f"the weights are right, but this rank sent {calls.sent:,.0f} bytes, "
            f"{calls.sent / size:.3g} times the {size:,} that a ring sends for its gradients: all-reduce the gradients "
            "once, after the last pass, and nothing else"
        )
    return None


def judge(reports: list[list[Seen]], world: int) -> Verdict:
    """Which steps the ranks took; they also have to have ended in the same place."""
    ends = [report[-1].value for report in reports]
    verdict = judged(
        reports,
        WORDS,
        f"right: {world} ranks took the step of one process on all data, {STEPS} times, and sent the gradients once "
        "per step",
    )
    if verdict.ok and any(end != ends[0] for end in ends):
        return Verdict(
            False,
            "the ranks' weights are not equal to the last bit, and will drift apart: every rank must step with the "
            "same gradients",
            "apart",
        )
    return verdict


def explain(error: Exception) -> Verdict | None:
    """The exception that a frozen weight leads to."""
    words = " ".join(str(error).split()).rstrip(".")
    if "NoneType" in words:
        return wrong(
            f"{type(error).__name__}: {words}. A frozen weight has no gradient: its grad is None", "no-gradient"
        )
    return None


CHECK = Check("scaleout.exercises.ddp.ranks", "train_step", (2,), rank_report, judge, wait_seconds=10, explain=explain)

if __name__ == "__main__":
    main(CHECK)
