"""Check the lab exercises `on-ranks-mlp` and `on-ranks-sequence` on 2 processes.

    python -m scaleout.exercises.tensor.ranks mlp.py
    python -m scaleout.exercises.tensor.ranks tokens.py

The function that the first file holds says which. Output and gradients are compared with one process, and what was
sent is counted.
"""

from __future__ import annotations

import sys
import tokenize
import warnings
from collections.abc import Callable

import torch
from torch.nn.functional import gelu

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, main, wrong
from scaleout.exercises.ranks.count import counted
from scaleout.exercises.ranks.sure import TELLING

TOKENS, HIDDEN, MIDDLE = 6, 20, 80  # tokens and widths: no two are equal, and weights are larger than activations
SEEDS = range(7, 7 + TELLING)  # of the inputs: a mistake is named where all of them show it
CLOSE = 1e-4  # of numbers of about 1 to 30 in fp32, summed in another order

Known = dict[str, tuple[torch.Tensor, str]]  # what a mistake gives, and what to say of it
Fault = tuple[str, str] | None  # (slip, words)


def tensors(seed: int, *names: str) -> dict[str, torch.Tensor]:
    """Whole inputs, the same on every rank; `probe` is the gradient of the output."""
    shapes = {
        "x": (TOKENS, HIDDEN),
        "up": (HIDDEN, MIDDLE),
        "down": (MIDDLE, HIDDEN),
        "bias": (HIDDEN,),
        "probe": (TOKENS, HIDDEN),
    }
    make = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(shape, generator=make) for name, shape in shapes.items()}
    return {name: made[name] for name in names or shapes}


def part(name: str, whole: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """A rank's columns of up, and rows of anything else."""
    return whole.chunk(world, dim=1 if name == "up" else 0)[rank].clone()


def reference(
    seed: int,
    rank: int,
    world: int,
) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """(whole output without bias, its gradients by name, this rank's part of that output, and of x's gradient)."""
    whole = {name: one.requires_grad_() for name, one in tensors(seed, "x", "up", "down").items()}
    y = gelu(whole["x"] @ whole["up"]) @ whole["down"]
    probe = tensors(seed, "probe")["probe"]
    (y * probe).sum().backward()
    gradients = {name: one.grad for name, one in whole.items()} | {"bias": probe.sum(0)}
    x, up, down = (one.detach() for one in whole.values())
    x.requires_grad_()
    mine = gelu(x @ part("up", up, rank, world)) @ part("down", down, rank, world)
    (mine * probe).sum().backward()
    return y.detach(), gradients, mine.detach(), x.grad


def near(given: torch.Tensor, value: torch.Tensor) -> bool:
    return given.shape == value.shape and bool((given - value).abs().max() <= CLOSE * (1 + value.abs().max()))


def compared(what: str, given: object, right: torch.Tensor, known: Known) -> Fault:
    """None where `given` is right; else the one of `known` that it is, or by how much it is off."""
    if given is None:
        return "no-gradient", f"{what} is None: nothing of the loss comes back to it. Does your function detach it?"
    if not isinstance(given, torch.Tensor):
        return "no-tensor", f"{what} is a {type(given).__name__}, not a tensor"
    given = given.detach()
    if near(given, right):
        return None
    for slip, (value, words) in known.items():
        if near(given, value):
            return slip, f"{what} {words}"
    if given.shape != right.shape:
        return "wrong-shape", f"{what} has the shape {tuple(given.shape)}, not {tuple(right.shape)}"
    name = "wrong-output" if what == "the output" else "wrong-gradient"
    return name, f"{what} is off by up to {(given - right).abs().max().item():.2g}"


class Compared:
    """The first tensor that is wrong, as `compared` has it: with its cause, and what is to be seen of it."""

    def __init__(self, fault: Fault) -> None:
        self.cause = self.seen = fault

    def __call__(self, what: str, given: object, right: torch.Tensor, known: Known) -> None:
        if not self.cause:
            self.cause, self.seen = (compared(what, given, right, table) for table in (known, {}))

    def faults(self, last: Fault) -> tuple[Fault, Fault]:
        """Both; `last` where all tensors are right."""
        return self.cause or last, self.seen or last


def run(function, inputs: dict[str, torch.Tensor], probe: torch.Tensor) -> tuple[object, counted, Fault]:
    """(what the reader's function gave, what was sent forward and backward, what stopped it before its backward)."""
    warnings.simplefilter("ignore")  # torch renames its collectives, and warns of those that autograd does not see
    with counted() as calls:
        given = function(*(one.requires_grad_() for one in inputs.values()))
        if given is ...:
            return given, calls, ("stub", "the function returns its ... : put your MLP in its place")
        if not isinstance(given, torch.Tensor) or given.shape != probe.shape:
            return given, calls, None
        if not given.requires_grad:
            return (
                given,
                calls,
                (
                    "no-graph",
                    "the output has no graph behind it, so that nothing can come back: was "
                    "it detached, or made under no_grad?",
                ),
            )
        (given * probe).sum().backward()
    return given, calls, None


def talked(calls: counted, least: int) -> Fault:
    """What is wrong with how a right result was sent. least: bytes that a ring sends for it."""
    if not calls.calls:
        return "unseen", "all numbers are right, but no collective of yours was seen"
    if calls.sent > 1.5 * least:
        return "sent-too-much", (
            f"all numbers are right, but this rank sent {calls.sent:,.0f} bytes, where {least:,} "
            "are enough: send activations, not weights, as plain tensors, and each once a "
            "direction"
        )
    return None


def shown(one: Callable, function, rank: int, world: int) -> Verdict | None:
    """What is wrong with the reader's function on this rank, or None, by one(seed, function, rank, world): it gives a
    Fault whose cause is named, and one of what is to be seen. All inputs are run, for the other rank calls too."""
    faults = [one(seed, function, rank, world) for seed in SEEDS]
    bad = [(cause, seen) for cause, seen in faults if cause]
    if not bad:
        return None
    cause, seen = bad[0]
    slip, words = cause if {fault and fault[0] for fault, _ in faults} == {cause[0]} else seen
    return wrong(f"rank {rank}: {words}", slip)


def own_mlp(function, rank: int, world: int) -> Verdict | None:
    """The MLP on this rank: what is wrong with it, or None."""
    return shown(mlp_of, function, rank, world)


def mlp_of(seed: int, function, rank: int, world: int) -> tuple[Fault, Fault]:
    """What is wrong with the MLP of some inputs, its cause and what is to be seen of it."""
    y, gradients, mine, back = reference(seed, rank, world)
    whole = tensors(seed)
    bias, probe = whole.pop("bias"), whole.pop("probe")
    inputs = {name: one if name == "x" else part(name, one, rank, world) for name, one in whole.items()}
    inputs["bias"] = bias.clone()
    given, calls, fault = run(function, inputs, probe)
    compare = Compared(fault)
    compare(
        "the output",
        given,
        y + bias,
        {
            "no-forward-sum": (mine + bias, "is this rank's part of the sum: the other ranks' were not added (g)"),
            "no-forward-sum-no-bias": (mine, "is this rank's part of the sum, and has no bias"),
            "bias-twice": (
                y + world * bias,
                f"has the bias {world} times: every rank added it before the sum. Add it once, afterwards",
            ),
            "no-bias": (y, "has no bias"),
            "mean": (y / world + bias, "is the mean over the ranks: the parts add up"),
            "mean-of-all": (y / world + bias / world, "is a part of it: you divided by the number of ranks"),
        },
    )
    for name in ("down", "up", "bias", "x"):
        right = gradients[name] if name in ("x", "bias") else part(name, gradients[name], rank, world)
        compare(f"the gradient of {name}", inputs[name].grad, right, _known(name, right, gradients, back, world))
    return compare.faults(talked(calls, 2 * 4 * TOKENS * HIDDEN))


def _known(name: str, right: torch.Tensor, gradients: dict, back: torch.Tensor, world: int) -> Known:
    """Gradients of an MLP that mistakes lead to."""
    twice = (world * right, f"is {world} times too large: ")
    if name in ("up", "down"):
        added = sum(part(name, gradients[name], rank, world) for rank in range(world))
        return {
            "both-ways": (
                twice[0],
                twice[1] + "the backward of your sum adds again. Every rank has all of the "
                "output's gradient already: pass it on (g)",
            ),
            "weights-added": (
                added,
                "is the sum over the ranks. They have other columns of it: each one's gradient is its own",
            ),
        }
    if name == "bias":
        return {"bias-added": (twice[0], twice[1] + "every rank has worked out all of it, so there is nothing to add")}
    return {
        "no-backward-sum": (back, "is this rank's part of it, by its own columns: the ranks' parts were not added (f)"),
        "added-twice": (twice[0], twice[1] + "it was added up more than once"),
        "mean-gradient": (right / world, "is the mean over the ranks: the parts add up"),
    }


def own_tokens(function, rank: int, world: int) -> Verdict | None:
    """The MLP of split tokens on this rank: what is wrong with it, or None."""
    return shown(tokens_of, function, rank, world)


def tokens_of(seed: int, function, rank: int, world: int) -> tuple[Fault, Fault]:
    """What is wrong with the MLP of split tokens and some inputs, its cause and what is to be seen of it."""
    y, gradients, mine, back = reference(seed, rank, world)
    whole = tensors(seed)
    probe = part("probe", whole["probe"], rank, world)
    inputs = {name: part(name, whole[name], rank, world) for name in ("x", "up", "down")}
    given, calls, fault = run(function, inputs, probe)
    compare = Compared(fault)
    compare(
        "the output",
        given,
        part("y", y, rank, world),
        {
            "not-scattered": (y, "has all tokens: keep the sums of this rank's own (reduce-scatter)"),
            "no-forward-sum": (
                part("y", mine, rank, world),
                "has this rank's tokens, but only its own columns' part of "
                "their sums: gather all tokens before up, and add up after down",
            ),
            "neither": (mine, "has all tokens, and this rank's part of the sum: reduce-scatter it"),
            "other-tokens": (part("y", y, 1 - rank, world), "has the tokens of the other rank"),
            "mean": (part("y", y, rank, world) / world, "is the mean over the ranks: the parts add up"),
        },
    )
    known = own_gradients(whole, rank, world)
    for name in ("down", "up", "x"):
        right = part(name, gradients[name], rank, world)
        table: Known = {
            "too-large": (world * right, f"is {world} times too large: it was added up once more than it should"),
            "mean-gradient": (right / world, "is the mean over the ranks: the parts add up"),
        }
        if name == "x":
            table["no-backward-sum"] = (
                part("x", back, rank, world),
                "is this rank's part of it, by its own columns: the backward of the gather has to add the ranks' parts",
            )
        else:
            table["own-tokens"] = (
                known[name],
                "counts this rank's tokens only: the backward of the scatter has to gather the gradients of all tokens",
            )
        compare(f"the gradient of {name}", inputs[name].grad, right, table)
    reduced = (
        "all-reduce",
        (
            "all numbers are right, but you all-reduced: a rank then gets sums of tokens that are not "
            "its own, for twice the bytes. Reduce-scatter"
        ),
    )
    return compare.faults(reduced if "all_reduce" in calls.names else talked(calls, 2 * 4 * TOKENS * HIDDEN))


def own_gradients(whole: dict[str, torch.Tensor], rank: int, world: int) -> dict[str, torch.Tensor]:
    """The gradients of this rank's up and down from the loss of its own tokens alone."""
    x, up, down = (part(name, whole[name], rank, world) for name in ("x", "up", "down"))
    up.requires_grad_()
    down.requires_grad_()
    ((gelu(x @ up) @ down) * part("probe", whole["probe"], rank, world)).sum().backward()
    return {"up": up.grad, "down": down.grad}


def judge(reports: list, world: int) -> Verdict:
    """Every rank's MLP was right."""
    return Verdict(True, f"right: {world} ranks, and the output and every gradient are those of one process")


_MODULE = "scaleout.exercises.tensor.ranks"
CHECK = Check(_MODULE, "split_mlp", (2,), own_mlp, judge, wait_seconds=10)
SEQUENCE = Check(_MODULE, "split_tokens", (2,), own_tokens, judge, wait_seconds=10)


def chosen(files: list[str]) -> Check:
    """The check of the function that the first file holds."""
    try:
        with tokenize.open(files[0]) as file:
            return SEQUENCE if f"def {SEQUENCE.function}" in file.read() else CHECK
    except (IndexError, OSError, SyntaxError, ValueError):  # which `main` puts into words
        return CHECK


if __name__ == "__main__":
    main(chosen(sys.argv[1:]))
