"""Check the lab exercise `again-by-hand`: outputs, gradients, what is kept and what is drawn, against a plain run.

Each case is run plainly first, then through the reader's function, from the same random state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, wrong

ROWS, WIDTH = 6, 8
CLOSE = 1e-5  # of numbers of about 1, in fp32
NAMES = ("x", "y", "the first weight", "the second weight")

Fault = tuple[str, str] | None  # (slip, words)


@dataclass(frozen=True)
class Case:
    """Blocks one behind the other; with `beside`, each adds what it gives to its input."""

    name: str
    depth: int = 1
    drop: float = 0.0
    beside: bool = False


CASES = (
    Case("a block"), Case("an input that is used elsewhere too", beside=True), Case("two blocks in a row", 2),
    Case("a block with dropout", 1, 0.5), Case("two blocks with dropout", 2, 0.5, True),
)  # fmt: skip


@dataclass
class Watch:
    """What a case's runs did: how often they ran, and the memory of what they made inside."""

    runs: int = 0
    inside: list[StorageWeakRef] = field(default_factory=list)


@dataclass
class Result:
    """A case: its output, its gradients by NAMES, the number drawn after it; what was kept until the backward, and the
    runs before and after it."""

    out: torch.Tensor
    gradients: list[torch.Tensor | None]
    drawn: float = 0.0
    kept: int = 0
    runs: tuple[int, int] = (0, 0)


class Sum(torch.autograd.Function):
    """The sum over the ranks; its gradient goes to each as it is."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def block(weights: list[torch.Tensor], drop: float, world: int, watch: Watch):
    """run(x, y, mask), a small network that drops elements and sends one message if there is somebody to send to."""
    def run(x, y, mask):
        watch.runs += 1
        made = torch.relu(x @ weights[0] + y)
        watch.inside.append(StorageWeakRef(made.untyped_storage()))
        made = torch.nn.functional.dropout(made, drop).masked_fill(mask, 0.0) @ weights[1]
        return Sum.apply(made) if world > 1 else made

    return run


def played(case: Case, layer, rank: int, world: int, ones: bool = False) -> Result | object:
    """A case through layer(run, x, y, mask); with `ones`, a gradient of ones begins the backward."""
    make, watch = torch.Generator().manual_seed(7), Watch()
    x, y, first, second, up = (torch.randn(*size, generator=make) for size in (
        (ROWS, WIDTH), (ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (ROWS, WIDTH)))  # fmt: skip
    mask = torch.rand(ROWS, WIDTH, generator=make) < 0.2
    leaves = [one.requires_grad_() for one in (x, y, first / WIDTH**0.5, second / WIDTH**0.5)]
    run = block(leaves[2:], case.drop, world, watch)
    torch.manual_seed(100 + rank)
    out = leaves[0]
    for _ in range(case.depth):
        given = layer(run, out, leaves[1], mask)
        if not isinstance(given, torch.Tensor):
            return given
        out = out + given if case.beside else given
        del given
    kept, before = sum(not one.expired() for one in watch.inside), watch.runs
    out.backward(torch.ones_like(up) if ones else up)
    return Result(out.detach(), [one.grad for one in leaves], float(torch.rand(())), kept, (before, watch.runs))


def own(function, rank: int, world: int) -> Verdict | None:
    """Every case on this rank: what is wrong with the first that is, or None."""
    if "checkpoint" in getattr(getattr(function, "__code__", None), "co_names", ()):
        return wrong("that calls torch's checkpoint: write your own", "of-torch")
    for case in CASES:
        found = _case(function, case, rank, world)
        if found:
            return wrong(f"rank {rank} of {world}, {case.name}: {found[1]}", found[0])
    return None


def _case(function, case: Case, rank: int, world: int) -> Fault:
    right = played(case, lambda run, *inputs: run(*inputs), rank, world)
    mine = played(case, function, rank, world)
    if mine is ...:
        return "stub", "the function returns its ... at once: put your two runs in its place"
    if not isinstance(mine, Result):
        return "no-tensor", f"the function gave a {type(mine).__name__}: return what run gave"
    if not near(mine.out, right.out):
        return "other-output", "the output is not that of run: forward gives what run(*inputs) gives, run once"
    return _kept(mine, case) or _gradients(mine, right, case, rank, world) or _random(mine, right)


def _kept(mine: Result, case: Case) -> Fault:
    """What is wrong with what was kept, and with how often run was called."""
    if mine.kept:
        return "kept", ("what run made inside is still there before the backward: keep the inputs alone, and let "
                        "nothing be recorded in forward")  # fmt: skip
    if mine.runs != (case.depth, 2 * case.depth):
        before, after = (number / case.depth for number in mine.runs)
        return "runs", (f"run was called {before:g} times in the forward and {after - before:g} times in the backward: "
                        "once each")  # fmt: skip
    return None


def _gradients(mine: Result, right: Result, case: Case, rank: int, world: int) -> Fault:
    """What is wrong with the gradients."""
    given = list(zip(NAMES, mine.gradients, right.gradients, strict=True))
    missing = [name for name, gradient, _ in given if gradient is None]
    if missing:
        whose = "input" if missing[0] in NAMES[:2] else "weight"
        return f"no-{whose}", (f"{missing[0]} has no gradient: " + (
            "return those of the inputs, in their order" if whose == "input" else
            "torch.autograd.backward(out, gradient) fills .grad of whatever run used"))  # fmt: skip
    off = [(name, gradient, wanted) for name, gradient, wanted in given if not near(gradient, wanted)]
    if not off:
        return None
    ones = played(case, lambda run, *inputs: run(*inputs), rank, world, ones=True)
    if all(near(gradient, wanted) for gradient, wanted in zip(mine.gradients, ones.gradients, strict=True)):
        return "gradient-ignored", "the backward began at ones: begin it at the gradient that backward is given"
    if all(near(gradient, 2 * wanted) for _, gradient, wanted in off):
        return "not-detached", (f"{off[0][0]} has twice its gradient: it got it in the second run, and again from what "
                                "backward returns. Begin the second run at copies, one.detach()")  # fmt: skip
    if near(mine.gradients[0], right.gradients[1]) and near(mine.gradients[1], right.gradients[0]):
        return "order", "the inputs have each other's gradients: return them in the order of forward's arguments"
    if case.drop:
        return "other-elements", ("without dropout the gradients are right, with it they are not: the second run "
                                  "dropped other elements than the first. Begin it at the random state of the first")
    distance = max(float((gradient - wanted).abs().max()) for _, gradient, wanted in off)
    return "wrong-gradient", f"the gradient of {off[0][0]} is off by up to {distance:.2g}"


def _random(mine: Result, right: Result) -> Fault:
    if mine.drawn == right.drawn:
        return None
    return "trace", ("gradients are right, but the numbers that are drawn after the backward are others than without "
                     "a second run: put the random state back as you found it")  # fmt: skip


def near(given: torch.Tensor, wanted: torch.Tensor) -> bool:
    return given.shape == wanted.shape and torch.allclose(given, wanted, rtol=CLOSE, atol=CLOSE)


_KNOWN = (
    ("does not require grad", "not-recorded", "there is no way back through the second run: in backward it has to be "
     "recorded, and so has whatever you make of its output. Put them under torch.enable_grad()"),
    ("incorrect number of gradients", "number-of-gradients", "backward returns another number of gradients than "
     "forward has arguments: one for each, None for run"),
    ("through the graph a second time", "not-detached", "the second run hangs on the graph that led to its inputs: "
     "begin it at copies, one.detach()"),
    ("Tensors of floating point", "mask-gradient", "a mask of bools cannot have a gradient: ask for one only where the "
     "input had it"),
)  # fmt: skip


def explain(error: Exception) -> Verdict | None:
    """What torch says of mistakes that it finds itself."""
    return next((wrong(words, slip) for mark, slip, words in _KNOWN if mark in str(error)), None)


def judge(reports: list, world: int) -> Verdict:
    """Every rank had the gradients of a plain run."""
    return Verdict(True, f"right on {world} processes")


CHECK = Check("scaleout.exercises.recompute.ranks", "again", (1, 2), own, judge, wait_seconds=5, explain=explain,
              right="right on 1 and 2 processes: the gradients of a plain run, to the elements dropped, and nothing "
                    "kept inside")  # fmt: skip
