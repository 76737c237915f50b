"""Check the lab exercise `bytes-held` on two processes.

    python -m scaleout.exercises.torch_memory bytes_held.py

Starts two processes, unless torchrun has. Takes one file or several and prints one line for each. Exit code 0
when all are right, 1 when one is not, 2 when it could not be checked.
"""

from __future__ import annotations

from numbers import Real

import torch
from torch import nn

from scaleout.exercises.engine import Verdict
from scaleout.exercises.torch_check import Check, main, wrong

KINDS = ("weights", "gradients", "optimizer")
PART = {"weights": "the weights", "gradients": "the gradients", "optimizer": "the optimizer's states"}


def job(rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small model after one AdamW step: tied head, one layer in bf16, and on each rank one frozen."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"tokens": nn.Embedding(64, 16), "up": nn.Linear(16, 48), "down": nn.Linear(48, 16),
                           "head": nn.Linear(16, 64, bias=False)})  # fmt: skip
    model["down"].to(torch.bfloat16)
    model["head"].weight = model["tokens"].weight
    model["up" if rank else "head"].requires_grad_(False)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in trained:
        weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW(trained, lr=1e-3, foreach=False)
    optimizer.step()
    return model, optimizer


def truth(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, set[int]]:
    """Bytes by kind that count as right: the optimizer's with or without its step counters, 4 bytes each."""
    weights = list(model.parameters())
    states = [tensor for state in optimizer.state.values() for tensor in state.values()]
    return {
        "weights": {_bytes(weights)},
        "gradients": {_bytes([weight.grad for weight in weights if weight.grad is not None])},
        "optimizer": {_bytes(states), _bytes([tensor for tensor in states if tensor.dim()])},
    }


def own(function, rank: int, world: int) -> Verdict | tuple[int, object]:
    """Run a reader's function on this rank: what is wrong with its own part, or else (its total, largest)."""
    model, optimizer = job(rank)
    given = function(model, optimizer)
    if given is ... or given is None:
        return wrong("the function returns nothing yet: return (mine, largest)", "stub")
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], dict)):
        return wrong(f"return a pair (mine, largest), with mine a dict, not {type(given).__name__}", "shape")
    mine, largest = given
    if set(mine) != set(KINDS):
        return wrong(f"mine has the keys {sorted(map(str, mine))}: it needs {', '.join(KINDS)}", "shape")
    mine, right = {kind: _plain(size) for kind, size in mine.items()}, truth(model, optimizer)
    largest = _plain(largest)
    for name, size in (*mine.items(), ("largest", largest)):
        if isinstance(size, bool) or not isinstance(size, Real):
            return wrong(f"{name} is a {type(size).__name__}: it should be one number", "shape")
    for kind, size in mine.items():
        if size not in right[kind]:
            slip, words = _slip(kind, size, model, optimizer)
            expected = f"{size:,} bytes, expected {max(right[kind]):,}. {words}"
            return wrong(f"rank {rank}, {kind}: {expected}", slip)
    return sum(mine.values()), largest


def _plain(size) -> float:
    """A size as Python's own number, where it was given as a tensor of one."""
    return size.item() if isinstance(size, torch.Tensor) and size.numel() == 1 else size


def _slip(kind: str, given: float, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[str, str]:
    """The misconception behind a wrong size, and what to do about it."""
    weights = list(model.parameters())
    trained = [weight for weight in weights if weight.grad is not None]
    copies = 2 if kind == "optimizer" else 1
    held = weights if kind == "weights" else trained
    states = [tensor for state in optimizer.state.values() for tensor in state.values()]
    known = {
        "nothing": (0, f"{PART[kind][:1].upper()}{PART[kind][1:]} are missing."),
        "counted-numbers": (copies * sum(weight.numel() for weight in held),
                            "That is the count of numbers: multiply by element_size()."),
        "four-bytes": (copies * 4 * sum(weight.numel() for weight in held),
                       "You gave every number 4 bytes. One layer is in bf16: ask element_size()."),
        "tied-twice": (_bytes(model.state_dict().values()),
                       "The head and the token table are one tensor, and you counted it twice."),
        "frozen": (copies * _bytes(weights), "You counted the frozen weights too. They have no gradient and "
        "no state."),
        "one-moment": (_bytes(states) / 2, "AdamW keeps two moments for each weight."),
    }  # fmt: skip
    if kind == "optimizer":
        numbers = sum(tensor.numel() for tensor in states)
        known["counted-numbers-with-steps"] = (numbers, known["counted-numbers"][1])
    for slip, (value, words) in known.items():
        if given == value:
            return slip.removesuffix("-with-steps"), words
    return "wrong-size", f"Add up numel() * element_size() over the tensors of {PART[kind]}."


def judge(reports: list[tuple[int, object]], world: int) -> Verdict:
    """The verdict on (total, largest) of every rank: the first that is wrong."""
    totals = [total for total, _ in reports]
    return min((_judge_largest(largest, totals) for _, largest in reports), key=lambda one: one.ok)


def _judge_largest(largest: float, totals: list[int]) -> Verdict:
    if largest == max(totals):
        return Verdict(True, f"right: the ranks hold {' and '.join(f'{one:,}' for one in totals)} bytes")
    if largest == sum(totals):
        return Verdict(False, "largest is the sum over the ranks. Each rank has its own memory: take the "
                              "MAX", "sum")
    if largest == sum(totals) / len(totals):
        return Verdict(False, "largest is the mean over the ranks. The fullest one runs out first: take the "
                              "MAX", "mean")
    if largest in totals:
        return Verdict(False, "largest is right on one rank only: an all_reduce brings it to all of "
                              "them", "own-total")
    return Verdict(False, f"largest is {largest}, expected {max(totals):,}: the largest total of any "
                          f"rank", "wrong-largest")


def _bytes(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def explain(error: Exception) -> Verdict | None:
    """The exception that a frozen weight leads to."""
    if "NoneType" not in str(error):
        return None
    words = " ".join(str(error).split())
    return wrong(f"{type(error).__name__}: {words}. A frozen weight has no gradient: its grad is None", "no-gradient")


CHECK = Check("scaleout.exercises.torch_memory", "bytes_held", (2,), own, judge, explain=explain)

if __name__ == "__main__":
    main(CHECK)
