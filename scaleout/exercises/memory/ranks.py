"""Check the lab exercise `bytes-held` on two processes.

    python -m scaleout.exercises.memory.ranks bytes_held.py

What each rank says is compared with the bytes that are really there, and where it is off, with what a misconception
gives.
"""

from __future__ import annotations

from numbers import Real
from typing import NamedTuple

import torch
from torch import nn

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, main, wrong

KINDS = ("weights", "gradients", "optimizer")
PART = {"weights": "the weights", "gradients": "the gradients", "optimizer": "the optimizer's states"}
WIDTHS = (16, 24, 40)  # of the jobs: numbers copied from what is said of one are wrong in the others


def job(rank: int, width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small model after one AdamW step: tied head, one layer in bf16, on each rank one frozen.

    One rank has freed two gradients since, so that it has fewer of them while its optimizer holds more: the largest
    kinds lie on different ranks. In the second job it is the other rank, so that neither is always the fullest.
    """
    rank = 1 - rank if width == WIDTHS[1] else rank
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "tokens": nn.Embedding(64, width),
            "up": nn.Linear(width, 48),
            "down": nn.Linear(48, width),
            "head": nn.Linear(width, 64, bias=False),
        }
    )
    model["down"].to(torch.bfloat16)
    model["head"].weight = model["tokens"].weight
    model["up" if rank else "head"].requires_grad_(False)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in trained:
        weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW(trained, lr=1e-3, foreach=False)
    optimizer.step()
    if rank:
        model["down"].zero_grad()
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


def rank_report(function, rank: int, world: int) -> Verdict | list[tuple[dict, object]]:
    """Run a reader's function on this rank's jobs: what is wrong with its own part, or else [(mine, largest), ...].

    All jobs run before any is judged, so that no rank waits in a collective for one that has given up.
    """
    jobs = [job(rank, width) for width in WIDTHS]
    rights = [truth(*arguments) for arguments in jobs]  # before the reader's code can change what is weighed
    answers = [
        _answer(function(*arguments), right, rank, width)
        for arguments, right, width in zip(jobs, rights, WIDTHS, strict=True)
    ]
    verdict = next((answer for answer in answers if isinstance(answer, Verdict)), None)
    return verdict or [answer for answer in answers if not isinstance(answer, Verdict)]


def _answer(returned: object, right: dict[str, set[int]], rank: int, width: int) -> Verdict | tuple[dict, object]:
    """What is wrong with what the function gave for one job, or else its (mine, largest) in plain numbers."""
    if returned is ... or returned is None:
        return wrong("the function returns nothing yet: return (mine, largest)", "stub")
    if not (isinstance(returned, (tuple, list)) and len(returned) == 2 and isinstance(returned[0], dict)):
        return wrong(f"return a pair (mine, largest), with mine a dict, not {type(returned).__name__}", "shape")
    mine, largest = returned
    if set(mine) != set(KINDS):
        return wrong(f"mine has the keys {sorted(map(str, mine))}: it needs {', '.join(KINDS)}", "shape")
    mine, largest = {kind: _plain(size) for kind, size in mine.items()}, _plain(largest)
    for name, size in (*mine.items(), ("largest", largest)):
        if isinstance(size, bool) or not isinstance(size, Real):
            return wrong(f"{name} is a {type(size).__name__}: it should be one number", "shape")
    for kind, size in mine.items():
        if size not in right[kind]:
            slip, words = _slip(kind, size, *job(rank, width))
            expected = f"{size:,} bytes, expected {max(right[kind]):,}. {words}"
            return wrong(f"rank {rank}, {kind}: {expected}", slip)
    return mine, largest


def _plain(size) -> float:
    """A size as Python's own number, where it was given as a tensor of one."""
    return size.item() if isinstance(size, torch.Tensor) and size.numel() == 1 else size


def _slip(kind: str, size: float, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[str, str]:
    """The misconception behind a wrong size, and what to do about it."""
    weights = list(model.parameters())
    trained = [weight for weight in weights if weight.requires_grad]
    copies = 2 if kind == "optimizer" else 1
    tensors = {
        "weights": weights,
        "gradients": [weight for weight in weights if weight.grad is not None],
        "optimizer": trained,
    }[kind]
    states = [tensor for state in optimizer.state.values() for tensor in state.values()]
    known = {
        "nothing": (0, f"{PART[kind][:1].upper()}{PART[kind][1:]} are missing."),
        "counted-numbers": (
            copies * sum(weight.numel() for weight in tensors),
            "That is the count of numbers: multiply by element_size().",
        ),
        "four-bytes": (
            copies * 4 * sum(weight.numel() for weight in tensors),
            "You gave every number 4 bytes. One layer is in bf16: use element_size().",
        ),
        "tied-twice": (
            _bytes(model.state_dict().values()),
            "The head and the embedding are one tensor, and you counted it twice.",
        ),
        "frozen": (copies * _bytes(weights), "You counted the frozen weights too. They have no gradient and no state."),
        "trained-only": (
            copies * _bytes(trained),
            "Those are the weights that train. Frozen weights are in memory too."
            if kind == "weights"
            else "You counted a gradient for every weight that trains. Some have been freed: look at grad.",
        ),
        "one-moment": (_bytes(states) / 2, "AdamW has two moments for each weight."),
    }
    if kind == "optimizer":
        numbers = sum(tensor.numel() for tensor in states)
        known["counted-numbers-with-steps"] = (numbers, known["counted-numbers"][1])
    for slip, (value, words) in known.items():
        if size == value:
            return slip.removesuffix("-with-steps"), words
    return "wrong-size", f"Add up numel() * element_size() over the tensors of {PART[kind]}."


class Answers(NamedTuple):
    """The answers of all ranks for one job: their sizes by kind, and what each takes for the largest total."""

    sizes: tuple[dict, ...]
    largest: tuple[object, ...]

    @property
    def totals(self) -> list[float]:
        return [sum(mine.values()) for mine in self.sizes]

    def all_say(self, total: float) -> bool:
        return set(self.largest) == {total}


def judge(reports: list[list[tuple[dict, object]]], world: int) -> Verdict:
    """The verdict on the (mine, largest) of every rank's jobs: a mistake is named where all jobs show it."""
    jobs = [Answers(*zip(*pairs, strict=True)) for pairs in zip(*reports, strict=True)]
    bad = [answers for answers in jobs if not answers.all_say(max(answers.totals))]
    if not bad:
        return Verdict(True, f"right: the ranks hold {' and '.join(f'{total:,}' for total in jobs[0].totals)} bytes")
    known = [_known(answers.sizes) for answers in jobs]
    for slip, (_, words) in known[0].items():
        if all(answers.all_say(mistakes[slip][0]) for mistakes, answers in zip(known, jobs, strict=True)):
            return Verdict(False, f"largest is {words}", slip)
    if all(max(answers.totals) in answers.largest for answers in jobs):
        return Verdict(False, "largest is right on one rank only: an all_reduce gives it to both", "own-total")
    return Verdict(
        False,
        f"largest is {' and '.join(f'{total:,}' for total in bad[0].largest)} on the two ranks, expected "
        f"{max(bad[0].totals):,} on both: the largest total of any rank",
        "wrong-largest",
    )


def _known(sizes: tuple[dict, ...]) -> dict[str, tuple[float, str]]:
    """What mistakes take for the largest total, and what to say of them. sizes: by each rank."""
    totals = [sum(mine.values()) for mine in sizes]
    return {
        "sum": (sum(totals), "the sum over the ranks. Each rank has its own memory: take the MAX"),
        "mean": (sum(totals) / len(totals), "the mean over the ranks. The fullest one runs out first: take the MAX"),
        "smallest": (min(totals), "the smallest total. The fullest rank runs out first: take the MAX"),
        "rank-0": (totals[0], "always rank 0's total. Which rank is the fullest differs from job to job: take the MAX"),
        "rank-1": (totals[1], "always rank 1's total. Which rank is the fullest differs from job to job: take the MAX"),
        "kinds": (
            sum(max(mine[kind] for mine in sizes) for kind in KINDS),
            "the sum of the largest of each kind, which no rank has: first sum on each rank, then take the MAX",
        ),
        "one-kind": (max(max(mine.values()) for mine in sizes), "the largest kind, not the largest total"),
    }


def _bytes(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def explain(error: Exception) -> Verdict | None:
    """The exception that a frozen weight leads to."""
    if "NoneType" not in str(error):
        return None
    words = " ".join(str(error).split())
    return wrong(f"{type(error).__name__}: {words}. A frozen weight has no gradient: its grad is None", "no-gradient")


CHECK = Check("scaleout.exercises.memory.ranks", "bytes_held", (2,), rank_report, judge, explain=explain)

if __name__ == "__main__":
    main(CHECK)
