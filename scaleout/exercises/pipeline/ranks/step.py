"""Check the lab exercise `on-ranks-1f1b`: gradients against one process, and how many micro-batches per rank held.

The stage notes its forwards, and of which micro-batches what it made is still there; a hook on what it gave notes the
backwards. The sends are counted.
"""

from __future__ import annotations

import time
from traceback import walk_tb

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import mse_loss

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import LOST, Check, wrong
from scaleout.exercises.ranks.count import counted
from scaleout.exercises.ranks.guard import line
from scaleout.exercises.ranks.sure import Fault, Seen, by_mistakes
from scaleout.spec.pipeline import orders

WIDTH, ROWS = 6, 4
MICRO_BATCHES = (5, 4)  # of the steps that a file is tried with
CLOSE = 1e-5  # of the largest gradient: micro-batches are added in another order than one process adds
PATIENCE_SECONDS = 2.0  # for a tensor that gloo's thread holds a moment longer than its receive


class Wrong(Exception):
    """Raised inside the reader's step, out of its stage: (slip, words)."""


class Stage(nn.Module):
    """A rank's layers. Notes ("F", i) and ("B", i) of each micro-batch that goes through, in `seen`."""

    def __init__(self, layers: nn.Module, rank: int, ranks: int) -> None:
        super().__init__()
        self.layers, self.rank, self.most = layers, rank, ranks - rank
        self.seen: list[tuple[str, int]] = []
        self.inside: list[StorageWeakRef] = []
        self.inputs: list[StorageWeakRef] = []

    def forward(self, x: object) -> torch.Tensor:
        i = sum(kind == "F" for kind, _ in self.seen)
        if not isinstance(x, torch.Tensor) or x.shape != (ROWS, WIDTH):
            raise Wrong(
                "bad-input", f"the stage was given {_words(x)} in its forward {i}, not a micro-batch of {(ROWS, WIDTH)}"
            )
        if self.rank and not x.requires_grad:
            raise Wrong(
                "no-input-gradient",
                "the stage's input does not require a gradient, and the previous rank waits "
                "for it: call x.requires_grad_() before the stage runs",
            )
        self.seen.append(("F", i))
        if self.in_flight > self.most:
            so_far = "" if ("B", 0) in self.seen else ", and no backward has come through it"
            raise Wrong(
                "held-too-many",
                f"the stage ran forward {i} with {self.in_flight - 1} micro-batches in flight"
                f"{so_far}: with 1F1B this rank has at most {self.most}. Do the actions in the order given",
            )
        self._freed(i)
        if self.rank:  # the first rank's inputs are not its own
            self.inputs.append(StorageWeakRef(x.untyped_storage()))
        middle = self.layers[:2](x)
        self.inside.append(StorageWeakRef(middle.untyped_storage()))
        y = self.layers[2](middle)
        y.register_hook(lambda gradient: self._backward(i))
        return y

    def _freed(self, i: int) -> None:
        """Nothing of a micro-batch is there after its backward; but the input taken out last may still have a name, and
        outputs may wait in sends."""
        waiting, end = self.in_flight - 1, time.monotonic() + PATIENCE_SECONDS
        while (alive := max(_alive(self.inside), _alive(self.inputs) - 1)) > waiting:
            if time.monotonic() > end:
                raise Wrong(
                    "kept",
                    f"in forward {i} the tensors of {alive} earlier micro-batches are still in memory, but only "
                    f"{waiting} of them wait for their backward: drop the others, for example with pop, and "
                    "let backward free its graph",
                )
            time.sleep(0.005)

    def _backward(self, i: int) -> None:
        self.seen.append(("B", i))

    @property
    def in_flight(self) -> int:
        return sum(1 if kind == "F" else -1 for kind, _ in self.seen)


def _alive(storages: list[StorageWeakRef]) -> int:
    return sum(not storage.expired() for storage in storages)


def _words(x: object) -> str:
    return f"a tensor of {tuple(x.shape)}" if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"


def model(ranks: int) -> list[nn.Module]:
    """The layers of each rank, the same on all of them."""
    torch.manual_seed(ranks)
    return [nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(ranks)]


def data(m: int, seed: int = 0) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """m micro-batches and their targets, each m tensors (ROWS, WIDTH)."""
    values = torch.randn(2, m, ROWS, WIDTH, generator=torch.Generator().manual_seed(m + 10 * seed))
    return values[0].unbind(), values[1].unbind()


def flat(layers: nn.Module) -> torch.Tensor:
    """A rank's gradients in one row; zeros where there are none."""
    return torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in layers.parameters()])


def alone(rank: int, ranks: int, m: int, seed: int = 0) -> list[torch.Tensor]:
    """What one process adds to this rank's gradients for each micro-batch: that of its loss, divided by m."""
    layers, gradients = model(ranks), []
    for x, target in zip(*data(m, seed), strict=True):
        for layer in layers:
            layer.zero_grad()
        (mse_loss(nn.Sequential(*layers)(x), target) / m).backward()
        gradients.append(flat(layers[rank]))
    return gradients


def rank_report(function, rank: int, world: int) -> Verdict | list[Seen]:
    """A step of each length on this rank: what was seen in each, or what is wrong whatever else it does."""
    seen = []
    for m in MICRO_BATCHES:
        place = f"rank {rank} of {world}, {m} micro-batches"
        outcome = _step(function, rank, world, m, place)
        if not isinstance(outcome, Seen):
            return wrong(f"{place}: {outcome[1]}", outcome[0])
        seen.append(outcome)
    return seen


def _step(function, rank: int, world: int, m: int, place: str) -> tuple[str, str] | Seen:
    order = [(action.kind, action.micro) for action in orders("1f1b", world, m)[rank]]
    inputs, targets = data(m)
    layers = model(world)[rank]
    stage, nothing, calls = Stage(layers, rank, world), (None,) * m, counted()
    try:
        with calls:
            returned = function(
                list(order),
                stage,
                inputs if rank == 0 else nothing,
                targets if rank == world - 1 else nothing,
                mse_loss,
                torch.zeros(ROWS, WIDTH),
            )
    except Wrong as fault:
        dist.destroy_process_group()  # so that the other ranks need not wait for this one
        return fault.args
    except RuntimeError as error:
        if not any(mark in line(error, 10**6) for mark in LOST):
            raise
        return _unsent(stage, calls) or ("deadlock", _stood(error))
    if returned is ...:
        return "stub", "the function still returns ...: write your step in its place"
    return _order(stage, order) or _gradient(flat(layers), alone(rank, world, m), place)


def _stood(error: RuntimeError) -> str:
    """Where this rank waited for one that never came."""
    frames = [frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)]
    inside = next((name for name in reversed(frames) if name in ("send", "recv", "wait")), "")
    words = f"it waited in {inside}(), " if inside else "it waited "
    if inside == "send":
        return words + (
            "which blocks until the neighbor receives. If the neighbor is in a send too, neither "
            "receives: start the sends with isend, and wait for them at the end"
        )
    return words + "for a neighbor that never came. Does each action send what the other rank's next action needs?"


def _unsent(stage: Stage, calls: counted) -> Fault:
    """What this rank has computed and never began to send, where it stands and waits."""
    sent = {destination: size // (4 * ROWS * WIDTH) for destination, size in calls.sent_to().items()}
    sent_down, sent_up = sent.get(stage.rank + 1, 0), sent.get(stage.rank - 1, 0)
    backwards = sum(kind == "B" for kind, _ in stage.seen)
    forwards = len(stage.seen) - backwards
    if stage.rank and backwards > sent_up:
        return "gradient-not-sent", (
            f"it hung after {backwards} backwards and had sent {sent_up} gradients "
            f"to rank {stage.rank - 1}: send x.grad to the previous rank after each backward"
        )
    if stage.most > 1 and forwards > sent_down:
        return "activations-not-sent", (
            f"it hung after {forwards} forwards and had sent {sent_down} of their outputs to rank {stage.rank + 1}"
        )
    return None


def _order(stage: Stage, order: list) -> Fault:
    if not stage.seen:
        return "no-forward", "the stage never ran: do the actions of the order"
    if stage.seen != order:
        index = next(
            (i for i, pair in enumerate(zip(stage.seen, order, strict=False)) if pair[0] != pair[1]),
            min(len(stage.seen), len(order)),
        )
        names = ["".join(map(str, row[index])) if index < len(row) else "nothing" for row in (order, stage.seen)]
        return "order", f"action {index} of its list is {names[0]}, and {names[1]} ran"
    return None


WORDS = {
    "not-divided": "the gradients are too large by a factor of the number of micro-batches: the last rank has to "
                   "divide each loss by that number",
    "divided-twice": "the gradients are too small by a factor of the number of micro-batches: something was divided by "
                     "it twice",
    "last-only": "the gradients are those of the last micro-batch only: accumulate them",
    "last-only-whole": "the gradients are those of the last micro-batch only: accumulate them",
}  # fmt: skip


def _gradient(actual: torch.Tensor, parts: list[torch.Tensor], place: str) -> tuple[str, str] | Seen:
    """What is to be seen of the gradients that were left; `parts` of one process add up to the right ones."""
    right, m = sum(parts), len(parts)

    def matches(value: torch.Tensor) -> bool:
        return bool((actual - value).abs().max() <= CLOSE * value.abs().max())

    if not actual.any():
        return "none-left", "the weights of the stage have no gradient after the step"
    values = {
        "not-divided": m * right,
        "divided-twice": right / m,
        "last-only": parts[-1],
        "last-only-whole": m * parts[-1],
    }
    fault = (
        None
        if matches(right)
        else (
            "wrong-gradient",
            "the gradients are not those of one process on all micro-batches. Does each backward start "
            "from the gradient that the next rank sent for the same micro-batch?",
        )
    )
    return Seen(place, fault, frozenset(slip for slip, value in values.items() if matches(value)))


CHECK = Check(
    "scaleout.exercises.pipeline.ranks",
    "pipeline_step",
    (2, 3),
    rank_report,
    by_mistakes(WORDS),
    wait_seconds=5,
    right="right on 2 and 3 processes: the gradients are those of one process, and rank r never had more than p - r "
    "micro-batches in flight",
)
