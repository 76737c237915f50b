"""Check the lab exercise `train-step` on two processes.

    python -m scaleout.exercises.ddp.ranks mine.py

The step is compared with those that other gradients would have led to, so that it says which one it was. The reductions
are counted.
"""

from __future__ import annotations

import copy
import warnings

import torch
from torch import nn
from torch.nn.functional import mse_loss

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, main, wrong
from scaleout.exercises.ranks.count import counted

PASSES, BATCH, STEPS = 3, 4, 2
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
    make = torch.Generator().manual_seed(100 * step + rank + 1)
    return [(torch.randn(BATCH, 6, generator=make), torch.randn(BATCH, 3, generator=make)) for _ in range(PASSES)]


def weights(model: nn.Module) -> torch.Tensor:
    """All trained weights in one row."""
    return torch.cat([weight.detach().flatten() for weight in trained(model)])


def gradient(model: nn.Module, passes: list) -> torch.Tensor:
    """Of the mean loss over all the passes given, in one row; nothing is left on the model."""
    loss = sum(mse_loss(model(inputs), targets) for inputs, targets in passes) / len(passes)
    return torch.cat([one.flatten() for one in torch.autograd.grad(loss, trained(model))])


def stepped(before: tuple[nn.Module, torch.optim.Optimizer], row: torch.Tensor) -> torch.Tensor:
    """The weights that a step with the gradient `row` leads to from there; `before` stays as it is."""
    model, optimizer = copy.deepcopy(before)
    for weight, one in zip(trained(model), row.split([weight.numel() for weight in trained(model)]), strict=True):
        weight.grad = one.view_as(weight).clone()
    optimizer.step()
    return weights(model)


def own(function, rank: int, world: int) -> Verdict | list[float]:
    """Some steps on this rank: what is wrong with them, or else the weights that it ends with."""
    warnings.simplefilter("ignore", FutureWarning)  # torch renames its collectives; any name is right here
    model, optimizer = job()
    for step in range(STEPS):
        before, passes = copy.deepcopy((model, optimizer)), data(step, rank)
        left = torch.cat([torch.zeros_like(one).flatten() if one.grad is None else one.grad.detach().flatten().clone()
                          for one in trained(model)])  # fmt: skip
        with counted() as calls:
            given = function(model, optimizer, passes)
        if given is ...:
            return wrong("the function returns its ... at once: put your step in its place", "stub")
        found = _slip(before, left, weights(model), step, rank, world)
        if found:
            return wrong(f"rank {rank}, step {step}: {found[1]}", found[0])
        found = _talk(calls, len(left))
        if found:
            return wrong(f"rank {rank}, step {step}: the weights are right, but {found[1]}", found[0])
    return weights(model).tolist()


def _slip(before: tuple, left: torch.Tensor, given: torch.Tensor, step: int, rank: int,
          world: int) -> tuple[str, str] | None:  # fmt: skip
    """Which step it was that led to the weights given, when it was not that of the mean over everything."""
    start, every = weights(before[0]), [data(step, other) for other in range(world)]

    def near(value: torch.Tensor) -> bool:
        return bool((given - value).abs().max() <= CLOSE * (stepped(before, right) - start).abs().max())

    right = gradient(before[0], [one for passes in every for one in passes])
    if near(stepped(before, right)):
        return None
    if near(start):
        return "no-step", "the weights are as they were: call optimizer.step()"
    alone = [stepped(before, gradient(before[0], one)) for one in every]
    if near(sum(alone) / world):
        return "weights-averaged", ("each rank stepped with its own gradient, and the weights were averaged: with an "
                                    "optimizer that has a state that is another step. Average the gradients, then step")
    for slip, (row, words) in _known(before[0], right, every, rank).items():
        if near(stepped(before, row)):
            return slip.removesuffix("-whole"), words
    if step and left.any() and near(stepped(before, right + left)):
        return "not-cleared", ("the first step was right and this one is not: the gradients of the step before are "
                               "still there. Call optimizer.zero_grad()")
    return "wrong-gradient", ("the weights are not where a step with the mean gradient over all passes of all ranks "
                              "leads to. Accumulate, average over the ranks, then call optimizer.step() once")


def _known(model: nn.Module, right: torch.Tensor, every: list, rank: int) -> dict[str, tuple[torch.Tensor, str]]:
    """The gradient that a slip steps with, and what is to be said of it."""
    world, mine = len(every), gradient(model, every[rank])
    last = sum(gradient(model, one[-1:]) for one in every) / world
    only = "only the last pass counts: the gradients are cleared before each pass, or the others never ran"
    return {
        "not-averaged": (world * right, f"the gradient is {world} times too large. all_reduce adds: divide by the "
                                        "world size"),
        "passes-added": (PASSES * right, f"the gradient is {PASSES} times too large: those of {PASSES} passes were "
                         "added. Divide each loss by the number of passes"),
        "nothing-divided": (world * PASSES * right, f"the gradient is {world * PASSES} times too large: divide by the "
                            "passes and by the ranks"),
        "divided-twice": (right / world, f"the gradient is {world} times too small: something was divided by the "
                          "ranks twice"),
        "own-gradient": (mine, "that is the step of this rank's own gradient: it was not averaged with the other "
                         "rank's"),
        "own-sum": (PASSES * mine, "that is the step of this rank's own gradients, added over the passes: neither "
                    "averaged with the other rank nor divided"),
        "last-pass": (last / PASSES, only),
        "last-pass-whole": (last, only),
    }  # fmt: skip


def _talk(calls, numbers: int) -> tuple[str, str] | None:
    """What is wrong with how a right step communicated."""
    if not calls.collectives and not calls.sent:
        return "unseen", "no collective of yours was seen. Write the all-reduce yourself instead of wrapping the model"
    if calls.reduced() > 1.5 * numbers:
        times = calls.reduced() / numbers
        return "every-pass", (f"you reduced {calls.reduced():,} numbers for {numbers:,} gradients, {times:.3g} times "
                              "what is needed: reduce the gradients once, after the last pass, and nothing else")
    return None


def judge(reports: list, world: int) -> Verdict:
    """All ranks took the right steps; they also have to have ended in the same place."""
    if any(one != reports[0] for one in reports):
        return Verdict(False, "the ranks do not hold the same weights to the last bit, and will drift apart: every "
                              "rank has to step with the same numbers", "apart")
    return Verdict(True, f"right: {world} ranks took the step of one process on all the data, twice, and reduced once "
                         "a step")


def explain(error: Exception) -> Verdict | None:
    """The exception that a frozen weight leads to."""
    words = " ".join(str(error).split()).rstrip(".")
    if "NoneType" in words:
        return wrong(f"{type(error).__name__}: {words}. A frozen weight has no gradient: its grad is "
                     "None", "no-gradient")
    return None


CHECK = Check("scaleout.exercises.ddp.ranks", "train_step", (2,), own, judge, wait_seconds=10, explain=explain)

if __name__ == "__main__":
    main(CHECK)
