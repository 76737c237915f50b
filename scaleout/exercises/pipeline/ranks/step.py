"""Check the lab exercise `on-ranks-1f1b`: gradients against one process, and how many micro-batches a rank held.

The stage notes its forwards; a hook on what it gave notes the backwards. What was sent is counted.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import LOST, Check, wrong
from scaleout.exercises.ranks.count import Calls, counted
from scaleout.exercises.ranks.guard import line
from scaleout.spec.pipeline import orders

WIDTH, ROWS = 6, 4
MICRO_BATCHES = (5, 4)  # of the steps that a file is tried with
CLOSE = 1e-5  # of the largest gradient: micro-batches are added in another order than one process adds
UNCOUNTED = {"send", "isend", "batch_isend_irecv"}  # names of a file that were bound before sends are counted

DEADLOCK = ("deadlock", "it waited for a neighbour that never came. Where two neighbours each wait for their own send, "
                        "neither receives: start the sends with isend, and wait for them at the end")


class Wrong(Exception):
    """Raised inside the reader's step, out of its stage: (slip, words)."""


class Stage(nn.Module):
    """A rank's layers. Notes ("F", i) and ("B", i) of each micro-batch that goes through, in `seen`."""

    def __init__(self, layers: nn.Module, rank: int, ranks: int) -> None:
        super().__init__()
        self.layers, self.rank, self.most = layers, rank, ranks - rank
        self.seen: list[tuple[str, int]] = []

    def forward(self, x: object) -> torch.Tensor:
        i = sum(kind == "F" for kind, _ in self.seen)
        if not isinstance(x, torch.Tensor) or x.shape != (ROWS, WIDTH):
            raise Wrong("bad-input", f"the stage was given {_words(x)} in its forward {i}, not a micro-batch of "
                                     f"{(ROWS, WIDTH)}")  # fmt: skip
        if self.rank and not x.requires_grad:
            raise Wrong("no-input-gradient", "the stage's input does not ask for a gradient, and the rank above waits "
                                             "for it: x.requires_grad_() before the stage runs")  # fmt: skip
        self.seen.append(("F", i))
        if self.held > self.most:
            so_far = "" if ("B", 0) in self.seen else ", and no backward has come through it"
            raise Wrong("held-too-many", f"the stage ran forward {i} while it held {self.held - 1} micro-batches"
                        f"{so_far}: in 1F1B this rank holds at most {self.most}. Do the actions in the order given")
        y = self.layers(x)
        y.register_hook(lambda gradient: self._backward(i))
        return y

    def _backward(self, i: int) -> None:
        self.seen.append(("B", i))

    @property
    def held(self) -> int:
        return sum(1 if kind == "F" else -1 for kind, _ in self.seen)


def _words(x: object) -> str:
    return f"a tensor of {tuple(x.shape)}" if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"


def model(ranks: int) -> list[nn.Module]:
    """The layers of each rank, the same on all of them."""
    torch.manual_seed(ranks)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(ranks)]


def data(m: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """m micro-batches and what should come of them, each m tensors (ROWS, WIDTH)."""
    made = torch.randn(2, m, ROWS, WIDTH, generator=torch.Generator().manual_seed(m))
    return made[0].unbind(), made[1].unbind()


def flat(layers: nn.Module) -> torch.Tensor:
    """A rank's gradients in one row; zeros where there are none."""
    return torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in layers.parameters()])


def alone(rank: int, ranks: int, m: int) -> list[torch.Tensor]:
    """What one process adds to this rank's gradients for each micro-batch: that of its loss, divided by m."""
    layers, found = model(ranks), []
    for x, target in zip(*data(m), strict=True):
        for one in layers:
            one.zero_grad()
        (mse_loss(nn.Sequential(*layers)(x), target) / m).backward()
        found.append(flat(layers[rank]))
    return found


def own(function, rank: int, world: int) -> Verdict | None:
    """A step of each length on this rank: what is wrong with it, or None."""
    for m in MICRO_BATCHES:
        found = _step(function, rank, world, m)
        if found:
            return wrong(f"rank {rank} of {world}, {m} micro-batches: {found[1]}", found[0])
    return None


def _step(function, rank: int, world: int, m: int) -> tuple[str, str] | None:
    order = [(action.kind, action.micro) for action in orders("1f1b", world, m)[rank]]
    inputs, targets = data(m)
    layers = model(world)[rank]
    stage, nothing = Stage(layers, rank, world), (None,) * m
    calls = Calls()
    try:
        with counted() as calls:
            given = function(list(order), stage, inputs if rank == 0 else nothing,
                             targets if rank == world - 1 else nothing, mse_loss, torch.zeros(ROWS, WIDTH))  # fmt: skip
    except Wrong as found:
        dist.destroy_process_group()  # so that the other ranks need not wait for this one
        return found.args
    except RuntimeError as error:
        if not any(mark in line(error, 10**6) for mark in LOST):
            raise
        return (None if UNCOUNTED & set(function.__globals__) else _unsent(stage, calls)) or DEADLOCK
    if given is ...:
        return "stub", "the function returns its ... at once: put your step in its place"
    return _order(stage, order) or _gradient(flat(layers), alone(rank, world, m), rank == world - 1)


def _unsent(stage: Stage, calls: Calls) -> tuple[str, str] | None:
    """What this rank has computed and never began to send, where it stands and waits."""
    gone = {to: numbers // (ROWS * WIDTH) for to, numbers in calls.sent.items()}
    below, above = gone.get(stage.rank + 1, 0), gone.get(stage.rank - 1, 0)
    backwards = sum(kind == "B" for kind, _ in stage.seen)
    forwards = len(stage.seen) - backwards
    if stage.rank and backwards > above:
        return "gradient-not-sent", (f"it stood and waited after {backwards} backwards and had sent {above} gradients "
                                     f"to rank {stage.rank - 1}: send x.grad up after each backward")
    if stage.most > 1 and forwards > below:
        return "activations-not-sent", (f"it stood and waited after {forwards} forwards and had sent {below} of their "
                                        f"results to rank {stage.rank + 1}")
    return None


def _order(stage: Stage, order: list) -> tuple[str, str] | None:
    if not stage.seen:
        return "no-forward", "the stage never ran: do the actions of the order"
    if stage.seen != order:
        at = next((i for i, pair in enumerate(zip(stage.seen, order, strict=False)) if pair[0] != pair[1]),
                  min(len(stage.seen), len(order)))  # fmt: skip
        names = ["".join(map(str, row[at])) if at < len(row) else "nothing" for row in (order, stage.seen)]
        return "order", f"action {at} of its list is {names[0]}, and {names[1]} ran"
    return None


def _gradient(given: torch.Tensor, parts: list[torch.Tensor], last: bool) -> tuple[str, str] | None:
    """What is wrong with the gradients that were left; `parts` of one process add up to the right ones."""
    right, m = sum(parts), len(parts)

    def near(value: torch.Tensor) -> bool:
        return bool((given - value).abs().max() <= CLOSE * value.abs().max())

    if near(right):
        return None
    if near(m * right):
        where = "Divide each loss by" if last else "The last rank divides each loss by"
        return "not-divided", (f"the gradients are {m} times too large: those of {m} micro-batches were added. {where} "
                               "the number of micro-batches")
    if near(right / m):
        return "divided-twice", f"the gradients are {m} times too small: something was divided by {m} twice"
    if near(parts[-1]) or near(m * parts[-1]):
        return "last-only", "the gradients are those of the last micro-batch: add them up"
    if not given.any():
        return "none-left", "the weights of the stage have no gradient after the step"
    return "wrong-gradient", ("the gradients are not those of one process on all micro-batches. Does each backward go "
                              "on from the gradient that the rank below sent for the same micro-batch?")


def judge(reports: list, world: int) -> Verdict:
    """Every rank's step was right."""
    return Verdict(True, f"right on {world} processes")


CHECK = Check("scaleout.exercises.pipeline.ranks", "pipeline_step", (2, 3), own, judge, wait_seconds=5,
              right="right on 2 and 3 processes: the gradients of one process, and rank r never held more than p - r "
                    "micro-batches")  # fmt: skip

