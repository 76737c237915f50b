"""Check the lab exercise `clip-sharded`: shards of gradients on every rank, clipped by the norm of all of them.

A rank's shards are cut from gradients that every rank makes; some of them are empty. What was sent is counted.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, wrong
from scaleout.exercises.ranks.count import counted

CLOSE = 1e-4  # relative; clip_grad_norm_ adds 1e-6 to the norm, and a norm is added up in another order
BESIDE = 1000  # bytes that a rank may send to each other one: a number or two, be they wrapped as objects

Fault = tuple[str, str] | None  # (slip, words)


@dataclass(frozen=True)
class Case:
    """Gradients of tensors of `sizes`, each rank's about `scales[rank]` in size, clipped to `most`."""

    name: str
    sizes: tuple[int, ...]
    scales: tuple[float, ...]
    most: float


CASES = (
    Case("a large norm", (1200, 700, 500), (1.0, 3.0, 2.0), 1.0),
    Case("a norm above the limit that no rank has alone", (12, 7, 5), (0.2, 0.2, 0.2), 0.7),
    Case("a norm below the limit", (12, 7, 5), (0.5, 0.3, 0.4), 50.0),
    Case("one rank's gradients above the limit", (9, 9), (0.001, 4.0, 0.001), 0.5),
    Case("shards that are empty", (2, 1, 4), (1.0, 2.0, 3.0), 0.25),
    Case("ranks that own nothing", (1,), (3.0, 3.0, 3.0), 1.0),
    Case("gradients that are zero", (6, 3), (0.0, 0.0, 0.0), 1.0),
)


def shards(case: Case, world: int) -> list[list[torch.Tensor]]:
    """The shards of each rank: flat tensors in equal parts, the last ones shorter, or empty."""
    make = torch.Generator().manual_seed(11)
    found: list[list[torch.Tensor]] = [[] for _ in range(world)]
    for size in case.sizes:
        whole, each = torch.randn(size, generator=make), -(-size // world)
        for rank in range(world):
            found[rank].append(whole[rank * each : (rank + 1) * each] * case.scales[rank])
    return found


def norm(parts: list[torch.Tensor]) -> float:
    """The norm of tensors as one long vector."""
    return math.sqrt(sum(float(one.double().square().sum()) for one in parts))


def own(function, rank: int, world: int) -> Verdict | None:
    """Every case on this rank: what is wrong with it, or None. All are run, for the other ranks call too."""
    warnings.simplefilter("ignore", FutureWarning)  # torch renames its collectives; any name is right here
    faults = [_case(function, case, rank, world) for case in CASES]
    found = next(filter(None, faults), None)
    return wrong(f"rank {rank} of {world}, {found[1]}", found[0]) if found else None


def _case(function, case: Case, rank: int, world: int) -> Fault:
    every = shards(case, world)
    mine = [one.clone() for one in every[rank]]
    with counted() as calls:
        given = function(mine, case.most)
    if given is ...:
        return "stub", "the function returns its ... at once: put your clipping in its place"
    fault = _returned(given, case, every, rank) or _scaled(mine, case, every, rank) or _sent(calls, world)
    return (fault[0], f"{case.name}: {fault[1]}") if fault else None


def _returned(given: object, case: Case, every: list[list[torch.Tensor]], rank: int) -> Fault:
    """What is wrong with the norm that was returned."""
    try:
        value = float(given)
    except (TypeError, ValueError, RuntimeError):
        return "no-norm", f"the function gave a {type(given).__name__}: return the norm before clipping, one number"
    right = norm([one for parts in every for one in parts])
    if _near(value, right):
        return None
    by_rank = [norm(parts) for parts in every]
    if not value and not by_rank[rank]:
        return "owns-nothing", ("the norm that was returned is 0. A rank that owns nothing takes part in the sum as "
                                "well, and gets the norm of all")  # fmt: skip
    if not value:
        return "no-gradient", ("the norm that was returned is 0. clip_grad_norm_ looks at the .grad of what it is "
                               "given, and these are the gradients themselves")  # fmt: skip
    by_tensor = [[norm([one]) for one in parts] for parts in every]
    known = {
        "own-norm": (by_rank[rank], "is that of this rank's shards alone: add up over the ranks"),
        "sum-of-norms": (sum(by_rank), "is the sum of the ranks' norms. Squares add up, norms do not"),
        "mean-of-norms": (sum(by_rank) / len(every), "is the mean of the ranks' norms. Squares add up, norms do not"),
        "largest-norm": (max(by_rank), "is the largest of the ranks' norms"),
        "no-root": (right**2, "is its square: take the root after the sum"),
        "mean-of-squares": (right / math.sqrt(len(every)), "has the sum of squares divided by the number of ranks. It "
                            "is one vector, in parts: nothing is averaged"),
        "sum-over-tensors": (math.sqrt(sum(sum(parts) ** 2 for parts in by_tensor)),
                             "adds up the norms of a rank's tensors. Squares add up, norms do not"),
        "clipped-norm": (min(right, case.most), "is that after clipping: return the one before"),
    }  # fmt: skip
    for slip, (wrong_value, words) in known.items():
        if _near(value, wrong_value):
            return slip, f"the norm that was returned {words}"
    return "wrong-norm", f"the norm that was returned is {value:.4g}, and that of all gradients is {right:.4g}"


def _scaled(mine: list[torch.Tensor], case: Case, every: list[list[torch.Tensor]], rank: int) -> Fault:
    """What is wrong with the shards that were left, where the norm is right."""
    before = every[rank]
    if any(one.isnan().any() for one in mine):
        return "not-a-number", "there is NaN in the shards: where the norm is zero nothing is to be scaled"
    right = norm([one for parts in every for one in parts])
    factor, own_norm = min(1.0, case.most / right) if right else 1.0, norm(before)
    if _all_near(mine, before, factor):
        return None
    if right <= case.most:
        return "scaled-up", "its norm is below the limit, and its shards were changed: the factor is at most 1"
    if _all_near(mine, before, 1.0):
        return "not-scaled", "the shards are as they were: scale them in place, for what is returned is the norm alone"
    if own_norm and _all_near(mine, before, case.most / own_norm):
        return "own-factor", "the shards were scaled by this rank's own norm: all ranks scale by the same factor"
    if _all_near(mine, before, factor**2):
        return "scaled-twice", "the shards were scaled twice"
    if all(_near(norm([one]), min(case.most, norm([old]))) for one, old in zip(mine, before, strict=True)):
        return "each-tensor", "each shard was clipped for itself: there is one norm, of all gradients"
    return "wrong-scale", f"the shards were not scaled by {factor:.4g}, which brings all gradients to {case.most:g}"


def _sent(calls: counted, world: int) -> Fault:
    if not calls.calls:
        return "unseen", "norm and shards are right, but no collective of yours was seen"
    if calls.sent > BESIDE * (world - 1):
        return "sent-too-much", (f"norm and shards are right, but this rank sent {calls.sent:,.0f} bytes: send a sum "
                                 "of squares, and leave the gradients where they are")  # fmt: skip
    return None


def _near(value: float, right: float) -> bool:
    return math.isclose(value, right, rel_tol=CLOSE, abs_tol=1e-7)


def _all_near(given: list[torch.Tensor], before: list[torch.Tensor], factor: float) -> bool:
    return all(torch.allclose(one, old * factor, rtol=CLOSE, atol=1e-8) for one, old in
               zip(given, before, strict=True))  # fmt: skip


def judge(reports: list, world: int) -> Verdict:
    """Every rank clipped as one process would."""
    return Verdict(True, f"right on {world} processes")


CHECK = Check("scaleout.exercises.zero.ranks", "clip_sharded", (2, 3), own, judge, wait_seconds=5,
              right="right on 2 and 3 processes: one norm, and the same factor on every rank")  # fmt: skip
