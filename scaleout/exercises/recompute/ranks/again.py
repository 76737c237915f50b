"""Check the lab exercise `again-by-hand`: outputs, gradients, bytes saved and random numbers, against a plain run.

Each case is run plainly first, then through the reader's function, from the same random state.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, wrong
from scaleout.exercises.ranks.count import counted
from scaleout.exercises.ranks.sure import Fault, Seen, by_mistakes

ROWS, WIDTH = 48, 64
CLOSE = 1e-5  # of numbers of about 1, in fp32
NAMES = ("x", "y", "the first weight", "the second weight")
TENSOR_BYTES = 4 * ROWS * WIDTH  # bytes of an input, and of each tensor that is made inside
KEPT_LIMIT = 4 * TENSOR_BYTES  # bytes that a layer may keep: what it gives, copies of its inputs, a random state


@dataclass(frozen=True)
class Case:
    """Blocks one behind the other; with `residual`, each adds what it gives to its input."""

    name: str
    depth: int = 1
    drop: float = 0.0
    residual: bool = False


CASES = (
    Case("a block"), Case("an input that is used elsewhere too", residual=True), Case("two blocks in a row", 2),
    Case("a block with dropout", 1, 0.5), Case("two blocks with dropout", 2, 0.5, True),
)  # fmt: skip


@dataclass
class Watch:
    """What a case's runs did: how often they ran, the memory of what they made inside, and what each has dropped."""

    runs: int = 0
    inside: list[StorageWeakRef] = field(default_factory=list)
    dropped: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Result:
    """A case: its output, its gradients by NAMES, the number drawn after it; how many of the tensors made inside were
    kept until the backward, and how many bytes of any; the runs before and after it, and what each has dropped."""

    output: torch.Tensor
    gradients: list[torch.Tensor | None]
    drawn: float = 0.0
    kept_inside: int = 0
    bytes: int = 0
    runs: tuple[int, int] = (0, 0)
    dropped: list[torch.Tensor] = field(default_factory=list)


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
        hidden = torch.relu(x @ weights[0] + y)
        watch.inside.append(StorageWeakRef(hidden.untyped_storage()))
        remaining = torch.nn.functional.dropout(hidden, drop)
        if drop:
            watch.dropped.append(((remaining == 0) & (hidden != 0)).detach())
        hidden = remaining.masked_fill(mask, 0.0) @ weights[1]
        return Sum.apply(hidden) if world > 1 else hidden

    return run


def played(case: Case, layer, rank: int, world: int) -> Any:
    """A case through layer(run, x, y, mask): its Result, or what the layer gave in place of a tensor."""
    generator, watch = torch.Generator().manual_seed(7), Watch()
    x, y, first, second, upstream = (
        torch.randn(*size, generator=generator)
        for size in ((ROWS, WIDTH), (ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (ROWS, WIDTH))
    )
    mask = torch.rand(ROWS, WIDTH, generator=generator) < 0.2
    leaves = [leaf.requires_grad_() for leaf in (x, y, first / WIDTH**0.5, second / WIDTH**0.5)]
    run = block(leaves[2:], case.drop, world, watch)
    torch.manual_seed(100 + rank)
    output, seen = leaves[0], counted()
    for _ in range(case.depth):
        with seen:
            result = layer(run, output, leaves[1], mask)
        if not isinstance(result, torch.Tensor):
            return result
        output = output + result if case.residual else result
        del result
    kept_inside, forward_runs = sum(not storage.expired() for storage in watch.inside), watch.runs
    new_bytes = sum(storage.nbytes() for storage in seen.alive([*leaves, *watch.dropped, mask]))
    output.backward(upstream)
    return Result(
        output.detach(),
        [leaf.grad for leaf in leaves],
        float(torch.rand(())),
        kept_inside,
        new_bytes,
        (forward_runs, watch.runs),
        watch.dropped,
    )


class Mistaken(torch.autograd.Function):
    """The answer with something wrong in it: `slip` says what."""

    @staticmethod
    def forward(ctx, slip, run, *inputs):
        ctx.slip, ctx.run, ctx.random = slip, run, torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return run(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [
            saved if ctx.slip == "not-detached" else saved.detach().requires_grad_(saved.requires_grad)
            for saved in ctx.saved_tensors
        ]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.random)
            output = ctx.run(*inputs)
        torch.autograd.backward(output, torch.ones_like(gradient) if ctx.slip == "gradient-ignored" else gradient)
        x, y, *remaining = (saved.grad for saved in inputs)
        return None, None, *((y, x) if ctx.slip == "order" else (x, y)), *remaining


WORDS = {
    "gradient-ignored": "the backward pass started from ones: start it from the gradient that backward receives",
    "not-detached": "inputs have too large a gradient: they got it in the second run, and again from what backward "
                    "returns. Start the second run from copies, one.detach()",
    "order": "the inputs have each other's gradients: return them in the order of forward's arguments",
}  # fmt: skip


def rank_report(function, rank: int, world: int) -> Verdict | list[Seen]:
    """Every case on this rank: what was seen in each, or what is wrong whatever else it does."""
    if "checkpoint" in getattr(getattr(function, "__code__", None), "co_names", ()):
        return wrong("that calls torch's checkpoint: write your own", "of-torch")
    seen = []
    warnings.simplefilter("ignore")  # torch warns of a .grad that is looked at where none comes
    for case in CASES:
        place = f"rank {rank} of {world}, {case.name}"
        outcome = _case(function, case, rank, world, place)
        if not isinstance(outcome, Seen):
            return wrong(f"{place}: {outcome[1]}", outcome[0])
        seen.append(outcome)
    return seen


def _case(function, case: Case, rank: int, world: int, place: str) -> tuple[str, str] | Seen:
    right = played(case, lambda run, *inputs: run(*inputs), rank, world)
    mine = played(case, function, rank, world)
    if mine is ...:
        return "stub", "the function returns its ... at once: put your two runs in its place"
    if not isinstance(mine, Result):
        return "no-tensor", f"the function gave a {type(mine).__name__}: return what run gave"
    if not close(mine.output, right.output):
        return "other-output", "the output is not that of run: forward gives what run(*inputs) gives, run once"
    fault = _memory_or_runs(mine, case) or _missing(mine) or _dropped(mine, case)
    if fault:
        return fault
    agree = []
    for slip in WORDS:
        try:
            wrong_one = played(case, lambda *arguments, slip=slip: Mistaken.apply(slip, *arguments), rank, world)
        except RuntimeError:  # that torch itself refuses
            continue
        agree += [slip] if _same_gradients(mine, wrong_one) else []
    return Seen(place, _gradients(mine, right) or _random(mine, right), frozenset(agree))


def _same_gradients(a: Result, b: Result) -> bool:
    return all(None not in pair and close(*pair) for pair in zip(a.gradients, b.gradients, strict=True))


def _memory_or_runs(mine: Result, case: Case) -> Fault:
    """Faults in what was saved, and in how often run was called."""
    if mine.kept_inside:
        return "kept", (
            "tensors computed inside run are still in memory before the backward pass: save only the inputs, and "
            "record no graph in forward"
        )
    if mine.bytes > KEPT_LIMIT * case.depth:
        return "kept", (
            f"{mine.bytes:,} new bytes are in memory before the backward pass, and an input has {TENSOR_BYTES:,}: "
            "save only the inputs, and no copies of tensors computed inside run"
        )
    if mine.runs != (case.depth, 2 * case.depth):
        forward_runs, total_runs = (number / case.depth for number in mine.runs)
        return "runs", (
            f"run was called {forward_runs:g} times in the forward and {total_runs - forward_runs:g} times in the "
            "backward pass: call it once in each"
        )
    return None


def _missing(mine: Result) -> Fault:
    missing = [name for name, gradient in zip(NAMES, mine.gradients, strict=True) if gradient is None]
    if not missing:
        return None
    owner = "input" if missing[0] in NAMES[:2] else "weight"
    return f"no-{owner}", (
        f"{missing[0]} has no gradient: "
        + (
            "return the gradients of the inputs, in their order"
            if owner == "input"
            else "torch.autograd.backward(out, gradient) fills .grad of whatever run used"
        )
    )


def _dropped(mine: Result, case: Case) -> Fault:
    """Whether the second runs dropped what the first have; the last block's comes first."""
    first, second = mine.dropped[: case.depth], mine.dropped[case.depth :][::-1]
    if all(torch.equal(*pair) for pair in zip(first, second, strict=True)):
        return None
    return "other-elements", (
        "the second run dropped other elements than the first. Start it from the random state of the first"
    )


def _gradients(mine: Result, right: Result) -> Fault:
    """What is to be seen of the gradients."""
    errors = {
        name: math.nan
        if gradient is None or expected is None or gradient.shape != expected.shape
        else float((gradient - expected).abs().max())
        for name, gradient, expected in zip(NAMES, mine.gradients, right.gradients, strict=True)
        if not close(gradient, expected)
    }
    if not errors:
        return None
    name, distance = next(iter(errors.items()))
    return "wrong-gradient", f"the gradient of {name} is off by up to {distance:.2g}"


def _random(mine: Result, right: Result) -> Fault:
    if mine.drawn == right.drawn:
        return None
    return "trace", (
        "gradients are right, but random numbers drawn after the backward pass differ from those without "
        "a second run: restore the random state that you found"
    )


def close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    return actual.shape == expected.shape and torch.allclose(actual, expected, rtol=CLOSE, atol=CLOSE)


_KNOWN = (
    ("does not require grad", "not-recorded", "no graph was recorded in the second run: in backward, run it and "
     "everything that uses "
     "its output under torch.enable_grad()"),
    ("incorrect number of gradients", "number-of-gradients", "backward returns another number of gradients than "
     "forward has arguments: one for each, None for run"),
    ("through the graph a second time", "second-time", "the backward pass went through a graph that was freed after "
     "the "
     "first time. Is the second run connected to the graph of its inputs (start it from copies, one.detach()), or is "
     "there more than one backward?"),
    ("Tensors of floating point", "mask-gradient", "a mask of bools cannot have a gradient: call requires_grad_() "
     "only where the "
     "input had it"),
)  # fmt: skip


def explain(error: Exception) -> Verdict | None:
    """What torch says of mistakes that it finds itself."""
    return next((wrong(words, slip) for mark, slip, words in _KNOWN if mark in str(error)), None)


CHECK = Check(
    "scaleout.exercises.recompute.ranks",
    "again",
    (1, 2),
    rank_report,
    by_mistakes(WORDS),
    wait_seconds=5,
    explain=explain,
    right="right on 1 and 2 processes: the gradients of a plain run, the same elements dropped, and nothing saved "
    "inside",
)
