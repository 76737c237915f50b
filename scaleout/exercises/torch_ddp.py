"""Check the lab exercise `train-step` on two processes.

    python -m scaleout.exercises.torch_ddp mine.py

Plain SGD with a known learning rate, so that the step taken says which gradient it was. The reductions are counted.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import mse_loss

from scaleout.exercises.engine import Verdict
from scaleout.exercises.torch_check import Check, main, wrong
from scaleout.exercises.torch_count import counted

PASSES, BATCH, RATE = 3, 4, 0.05
# Of a weight, relative to the longest step: sums in another order differ by about 1e-7.
CLOSE = 1e-4


def job() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same small model on every rank; its middle layer is frozen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    model[2].requires_grad_(False)
    return model, torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=RATE)


def data(step: int, rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The passes of one rank in one step, different on each."""
    make = torch.Generator().manual_seed(100 * step + rank + 1)
    return [(torch.randn(BATCH, 6, generator=make, dtype=torch.float64),
             torch.randn(BATCH, 3, generator=make, dtype=torch.float64)) for _ in range(PASSES)]  # fmt: skip


def weights(model: nn.Module) -> torch.Tensor:
    """All trained weights in one row."""
    return torch.cat([weight.detach().flatten() for weight in model.parameters() if weight.requires_grad])


def gradient(model: nn.Module, passes: list) -> torch.Tensor:
    """Of the mean loss over all the passes given, in one row; nothing is left on the model."""
    loss = sum(mse_loss(model(inputs), targets) for inputs, targets in passes) / len(passes)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.cat([one.flatten() for one in torch.autograd.grad(loss, trained)])


def own(function, rank: int, world: int) -> Verdict | list[float]:
    """Two steps on this rank: what is wrong with them, or else the weights that it ends with."""
    model, optimizer = job()
    for step in range(2):
        start, passes = weights(model), data(step, rank)
        with counted() as calls:
            given = function(model, optimizer, passes)
        if given is ...:
            return wrong("the function returns its ... at once: put your step in its place", "stub")
        taken = (start - weights(model)) / RATE
        with torch.no_grad():
            nn.utils.vector_to_parameters(start, [weight for weight in model.parameters() if weight.requires_grad])
        found = _slip(model, taken, step, rank, world)
        if found:
            return wrong(f"rank {rank}, step {step}: {found[1]}", found[0])
        with torch.no_grad():
            nn.utils.vector_to_parameters(
                start - RATE * taken, [weight for weight in model.parameters() if weight.requires_grad])  # fmt: skip
        found = _talk(calls, len(start))
        if found:
            return wrong(f"rank {rank}, step {step}: the weights are right, but {found[1]}", found[0])
    return weights(model).tolist()


def _slip(model: nn.Module, taken: torch.Tensor, step: int, rank: int, world: int) -> tuple[str, str] | None:
    """Which gradient it was that the weights moved by, when it was not the mean over everything."""
    every = [one for other in range(world) for one in data(step, other)]
    right = gradient(model, every)
    last = sum(gradient(model, data(step, other)[-1:]) for other in range(world)) / world
    known = {
        "no-step": (0 * right, "the weights are as they were: call optimizer.step()"),
        "not-averaged": (world * right, f"the step is {world} times too long. all_reduce adds: divide by the world "
                                        "size"),
        "passes-added": (PASSES * right, f"the step is {PASSES} times too long: the gradients of {PASSES} passes were "
                         "added. Divide each loss by the number of passes"),
        "nothing-divided": (world * PASSES * right, f"the step is {world * PASSES} times too long: divide by the "
                            "passes and by the ranks"),
        "divided-twice": (right / world, f"the step is {world} times too short: you divided by the world size twice"),
        "own-gradient": (gradient(model, data(step, rank)), "that is the gradient of this rank's own data: it was not "
                         "averaged with the other rank"),
        "own-sum": (PASSES * gradient(model, data(step, rank)), "that is the gradient of this rank's own data, added "
                    "over the passes: neither averaged with the other rank nor divided"),
        "last-pass": (last / PASSES, "only the last pass counts: the gradients are cleared before each pass, or the "
                      "others never ran"),
        "last-pass-whole": (last, "only the last pass counts: the gradients are cleared before each pass, or the "
                            "others never ran"),
    }  # fmt: skip
    if _near(taken, right):
        return None
    for slip, (value, words) in known.items():
        if _near(taken, value):
            return slip.removesuffix("-whole"), words
    if step:
        return "not-cleared", ("the first step was right and this one is not: the gradients of the step before are "
                               "still there. Call optimizer.zero_grad()")
    return "wrong-gradient", ("the weights moved by another gradient than the mean over all passes of all ranks. "
                              "Accumulate, average over the ranks, then step once")


def _near(given: torch.Tensor, value: torch.Tensor) -> bool:
    return bool((given - value).abs().max() <= CLOSE * max(1e-3, value.abs().max()))


def _talk(calls, numbers: int) -> tuple[str, str] | None:
    """What is wrong with how a right step communicated."""
    if not calls.collectives and not calls.sent:
        return "unseen", "no collective of yours was seen. Write the all-reduce yourself instead of wrapping the model"
    if calls.reduced() > 1.5 * numbers:
        times = calls.reduced() / numbers
        return "every-pass", (f"you reduced {calls.reduced():,} numbers for {numbers:,} gradients, {times:.3g} times "
                              "what is needed: reduce once, after the last pass")
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
    words = " ".join(str(error).split())
    if "NoneType" in words:
        return wrong(f"{type(error).__name__}: {words}. A frozen weight has no gradient: its grad is "
                     "None", "no-gradient")
    return None


CHECK = Check("scaleout.exercises.torch_ddp", "train_step", (2,), own, judge, wait_seconds=10, explain=explain)

if __name__ == "__main__":
    main(CHECK)
