"""Check the lab exercises `on-ranks-mlp` and `on-ranks-sequence` on 2 processes.

    python -m scaleout.exercises.tensor.ranks mlp.py
    python -m scaleout.exercises.tensor.ranks tokens.py

Which one it is follows from the function in the file. Output and gradients are compared with one process, and bytes
that a rank sends are counted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.functional import gelu

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, main, wrong
from scaleout.exercises.ranks.count import counted
from scaleout.exercises.ranks.sure import TELLING, Fault, all_right

TOKENS, HIDDEN, MIDDLE = 6, 20, 80  # tokens and widths: no two are equal, and weights are larger than activations
SEEDS = range(7, 7 + TELLING)  # of the inputs: a mistake is named where all of them show it
CLOSE = 1e-4  # of numbers of about 1 to 30 in fp32, summed in another order

Known = dict[str, tuple[torch.Tensor, str]]  # what a mistake gives, and what to say of it


def tensors(seed: int, *names: str) -> dict[str, torch.Tensor]:
    """Whole inputs, the same on every rank; `probe` is the gradient of the output."""
    shapes = {
        "x": (TOKENS, HIDDEN),
        "up": (HIDDEN, MIDDLE),
        "down": (MIDDLE, HIDDEN),
        "bias": (HIDDEN,),
        "probe": (TOKENS, HIDDEN),
    }
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: drawn[name] for name in names or shapes}


def part(name: str, full: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """A rank's columns of up, and rows of anything else."""
    return full.chunk(world, dim=1 if name == "up" else 0)[rank].clone()


def reference(
    seed: int,
    rank: int,
    world: int,
) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """(whole output without bias, its gradients by name, this rank's part of that output, and of x's gradient)."""
    full = {name: tensor.requires_grad_() for name, tensor in tensors(seed, "x", "up", "down").items()}
    y = gelu(full["x"] @ full["up"]) @ full["down"]
    probe = tensors(seed, "probe")["probe"]
    (y * probe).sum().backward()
    gradients = {name: tensor.grad for name, tensor in full.items()} | {"bias": probe.sum(0)}
    x, up_weight, down_weight = (tensor.detach() for tensor in full.values())
    x.requires_grad_()
    mine = gelu(x @ part("up", up_weight, rank, world)) @ part("down", down_weight, rank, world)
    (mine * probe).sum().backward()
    return y.detach(), gradients, mine.detach(), x.grad


def close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    return actual.shape == expected.shape and bool(
        (actual - expected).abs().max() <= CLOSE * (1 + expected.abs().max())
    )


def compared(label: str, actual: Any, right: torch.Tensor, known: Known) -> Fault:
    """None where `given` is right; else the one of `known` that it is, or by how much it is off."""
    if actual is None:
        return "no-gradient", f"{label} is None: the backward pass does not reach it. Does your function detach it?"
    if not isinstance(actual, torch.Tensor):
        return "no-tensor", f"{label} is a {type(actual).__name__}, not a tensor"
    actual = actual.detach()
    if close(actual, right):
        return None
    for slip, (value, words) in known.items():
        if close(actual, value):
            return slip, f"{label} {words}"
    if actual.shape != right.shape:
        return "wrong-shape", f"{label} has the shape {tuple(actual.shape)}, not {tuple(right.shape)}"
    name = "wrong-output" if label == "the output" else "wrong-gradient"
    return name, f"{label} is off by up to {(actual - right).abs().max().item():.2g}"


class Compared:
    """The first tensor that is wrong, as `compared` has it: with its cause, and what is to be seen of it."""

    def __init__(self, fault: Fault) -> None:
        self.cause = self.seen = fault

    def __call__(self, label: str, actual: object, right: torch.Tensor, known: Known) -> None:
        if not self.cause:
            self.cause, self.seen = (compared(label, actual, right, table) for table in (known, {}))

    def faults(self, last: Fault) -> tuple[Fault, Fault]:
        """Both; `last` where all tensors are right."""
        return self.cause or last, self.seen or last


def run(function, inputs: dict[str, torch.Tensor], probe: torch.Tensor) -> tuple[object, counted, Fault]:
    """(the output of the reader's function, its collectives, what stopped it before its backward pass)."""
    warnings.simplefilter("ignore")  # torch renames its collectives, and warns of those that autograd does not see
    with counted() as calls:
        output = function(*(tensor.requires_grad_() for tensor in inputs.values()))
        if output is ...:
            return output, calls, ("stub", "the function returns its ... : replace it by your MLP")
        if not isinstance(output, torch.Tensor) or output.shape != probe.shape:
            return output, calls, None
        if not output.requires_grad:
            return (
                output,
                calls,
                (
                    "no-graph",
                    "the output has no autograd graph, so there is no backward pass: was it detached, or computed "
                    "under no_grad?",
                ),
            )
        (output * probe).sum().backward()
    return output, calls, None


def talked(calls: counted, least: int) -> Fault:
    """What is wrong with how a right result was sent. least: bytes that a ring sends for it."""
    if not calls.calls:
        return "unseen", "all numbers are right, but your function called no collective"
    if calls.sent > 1.5 * least:
        return "sent-too-much", (
            f"all numbers are right, but this rank sent {calls.sent:,.0f} bytes, and {least:,} are enough: send "
            "activations, not weights, as plain tensors, and each only once forward and once backward"
        )
    return None


def shown(check: Callable, function, rank: int, world: int) -> Verdict | None:
    """What is wrong with the reader's function on this rank, or None, by check(seed, function, rank, world): it gives a
    Fault whose cause is named, and one of what is to be seen. All inputs are run, for the other rank calls too."""
    faults = [check(seed, function, rank, world) for seed in SEEDS]
    bad = [(cause, seen) for cause, seen in faults if cause]
    if not bad:
        return None
    cause, seen = bad[0]
    slip, words = cause if {fault and fault[0] for fault, _ in faults} == {cause[0]} else seen
    return wrong(f"rank {rank}: {words}", slip)


def mlp_of(seed: int, function, rank: int, world: int) -> tuple[Fault, Fault]:
    """What is wrong with the MLP of some inputs, its cause and what is to be seen of it."""
    y, gradients, mine, partial_gradient = reference(seed, rank, world)
    full = tensors(seed)
    bias, probe = full.pop("bias"), full.pop("probe")
    inputs = {name: tensor if name == "x" else part(name, tensor, rank, world) for name, tensor in full.items()}
    inputs["bias"] = bias.clone()
    output, calls, fault = run(function, inputs, probe)
    compare = Compared(fault)
    compare(
        "the output",
        output,
        y + bias,
        {
            "no-forward-sum": (
                mine + bias,
                "is this rank's part of the sum: the other ranks' parts were not added (g)",
            ),
            "no-forward-sum-no-bias": (mine, "is this rank's part of the sum, and has no bias"),
            "bias-twice": (
                y + world * bias,
                f"has the bias {world} times: every rank added it before the sum. Add it once, afterwards",
            ),
            "no-bias": (y, "has no bias"),
            "mean": (y / world + bias, "is the mean over the ranks: it has to be the sum"),
            "mean-of-all": (y / world + bias / world, "is only a part of it: you divided by the number of ranks"),
        },
    )
    for name in ("down", "up", "bias", "x"):
        right = gradients[name] if name in ("x", "bias") else part(name, gradients[name], rank, world)
        compare(
            f"the gradient of {name}", inputs[name].grad, right, _known(name, right, gradients, partial_gradient, world)
        )
    return compare.faults(talked(calls, 2 * 4 * TOKENS * HIDDEN))


def _known(name: str, right: torch.Tensor, gradients: dict, partial_gradient: torch.Tensor, world: int) -> Known:
    """Gradients of an MLP that mistakes lead to."""
    twice = (world * right, f"is {world} times too large: ")
    if name in ("up", "down"):
        added = sum(part(name, gradients[name], rank, world) for rank in range(world))
        return {
            "both-ways": (
                twice[0],
                twice[1] + "the backward pass of your sum adds again. Every rank already has the whole gradient of the "
                "output: pass it on (g)",
            ),
            "weights-added": (
                added,
                "is the sum over the ranks. But ranks have different parts of it, and each rank's gradient is its own",
            ),
        }
    if name == "bias":
        return {"bias-added": (twice[0], twice[1] + "every rank has computed all of it, so there is nothing to add")}
    return {
        "no-backward-sum": (
            partial_gradient,
            "is this rank's part of it, from its own columns: the ranks' parts were not added (f)",
        ),
        "added-twice": (twice[0], twice[1] + "it was added more than once"),
        "mean-gradient": (right / world, "is the mean over the ranks: it has to be the sum"),
    }


def tokens_of(seed: int, function, rank: int, world: int) -> tuple[Fault, Fault]:
    """What is wrong with the MLP of split tokens and some inputs, its cause and what is to be seen of it."""
    y, gradients, mine, partial_gradient = reference(seed, rank, world)
    full = tensors(seed)
    probe = part("probe", full["probe"], rank, world)
    inputs = {name: part(name, full[name], rank, world) for name in ("x", "up", "down")}
    output, calls, fault = run(function, inputs, probe)
    compare = Compared(fault)
    compare(
        "the output",
        output,
        part("y", y, rank, world),
        {
            "not-scattered": (y, "has all tokens: return only this rank's own tokens (reduce-scatter)"),
            "no-forward-sum": (
                part("y", mine, rank, world),
                "has this rank's tokens, but only a partial sum from its own columns: gather all tokens before up, and "
                "add over the ranks after down",
            ),
            "neither": (mine, "has all tokens, but only this rank's partial sum: reduce-scatter it"),
            "other-tokens": (part("y", y, 1 - rank, world), "has the tokens of the other rank"),
            "mean": (part("y", y, rank, world) / world, "is the mean over the ranks: it has to be the sum"),
        },
    )
    known = own_gradients(full, rank, world)
    for name in ("down", "up", "x"):
        right = part(name, gradients[name], rank, world)
        table: Known = {
            "too-large": (world * right, f"is {world} times too large: it was added once too often"),
            "mean-gradient": (right / world, "is the mean over the ranks: it has to be the sum"),
        }
        if name == "x":
            table["no-backward-sum"] = (
                part("x", partial_gradient, rank, world),
                "is this rank's part of it, from its own columns: the backward pass of the gather has to add the parts "
                "of all ranks",
            )
        else:
            table["own-tokens"] = (
                known[name],
                "counts this rank's tokens only: the backward pass of the scatter has to gather the gradients of all "
                "tokens",
            )
        compare(f"the gradient of {name}", inputs[name].grad, right, table)
    reduced = (
        "all-reduce",
        (
            "all numbers are right, but you used an all-reduce: a rank then also gets the sums of other ranks' tokens, "
            "for twice the bytes. Use a reduce-scatter"
        ),
    )
    return compare.faults(reduced if "all_reduce" in calls.names else talked(calls, 2 * 4 * TOKENS * HIDDEN))


def own_gradients(full: dict[str, torch.Tensor], rank: int, world: int) -> dict[str, torch.Tensor]:
    """The gradients of this rank's up and down from the loss of its own tokens alone."""
    x, up_weight, down_weight = (part(name, full[name], rank, world) for name in ("x", "up", "down"))
    up_weight.requires_grad_()
    down_weight.requires_grad_()
    ((gelu(x @ up_weight) @ down_weight) * part("probe", full["probe"], rank, world)).sum().backward()
    return {"up": up_weight.grad, "down": down_weight.grad}


_MODULE = "scaleout.exercises.tensor.ranks"
RIGHT = all_right("right: {} ranks give the output and every gradient of one process")
CHECK = Check(_MODULE, "split_mlp", (2,), partial(shown, mlp_of), RIGHT, wait_seconds=10)
SEQUENCE = Check(_MODULE, "split_tokens", (2,), partial(shown, tokens_of), RIGHT, wait_seconds=10)


if __name__ == "__main__":
    main(CHECK, SEQUENCE)
