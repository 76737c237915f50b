"""Check the lab exercise `clip-sharded`: shards of gradients on every rank, clipped by the norm of all of them.

A rank's shards are cut from gradients that every rank makes; some of them are empty. The bytes sent are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, wrong
from scaleout.exercises.ranks.count import counted
from scaleout.exercises.ranks.sure import Fault, Seen, by_mistakes

CLOSE = 1e-4  # relative; clip_grad_norm_ adds 1e-6 to the norm, and a norm is added up in another order
OVERHEAD = 1000  # bytes that a rank may send to each other one: a number or two, be they wrapped as objects


@dataclass(frozen=True)
class Case:
    """Gradients of tensors of `sizes`, each rank's about `scales[rank]` in size, clipped to `max_norm`."""

    name: str
    sizes: tuple[int, ...]
    scales: tuple[float, ...]
    max_norm: float


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
    generator = torch.Generator().manual_seed(11)
    parts: list[list[torch.Tensor]] = [[] for _ in range(world)]
    for size in case.sizes:
        full, length = torch.randn(size, generator=generator), -(-size // world)
        for rank in range(world):
            parts[rank].append(full[rank * length : (rank + 1) * length] * case.scales[rank])
    return parts


def norm(parts: list[torch.Tensor]) -> float:
    """The norm of tensors as one long vector."""
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts))


def rank_report(function, rank: int, world: int) -> Verdict | list[Seen]:
    """What was seen of every case on this rank, or what is wrong in any case. All cases run, because the other ranks
    call too."""
    seen = [_case(function, case, rank, world) for case in CASES]
    verdicts = [report for report in seen if isinstance(report, Verdict)]
    reports = [report for report in seen if isinstance(report, Seen)]
    place, fault = next(((report.place, report.fault) for report in reports if report.fault), ("", None))
    if not verdicts and fault and fault[0] == "owns-nothing":  # the others wait for this rank, and have no report
        verdicts = [wrong(f"{place}: {fault[1]}", "owns-nothing")]
    return verdicts[0] if verdicts else reports


def _case(function, case: Case, rank: int, world: int) -> Verdict | Seen:
    shards_by_rank, place = shards(case, world), f"rank {rank} of {world}, {case.name}"
    mine = [shard.clone() for shard in shards_by_rank[rank]]
    with counted() as calls:
        returned = function(mine, case.max_norm)
    if returned is ...:
        return wrong(f"{place}: the function returns its ... at once: put your clipping in its place", "stub")
    try:
        value = float(returned)
    except (TypeError, ValueError, RuntimeError):
        return wrong(
            f"{place}: the function returned a {type(returned).__name__}: return the norm before clipping, one number",
            "no-norm",
        )
    right = norm([shard for parts in shards_by_rank for shard in parts])
    if not _close(value, right):
        agree = {slip for slip, number in _norms(case, shards_by_rank, rank).items() if _close(value, number)}
        return Seen(place, _returned(value, right, norm(shards_by_rank[rank])), frozenset(agree))
    fault = _scaled(mine, shards_by_rank[rank], case, right)
    agree = {slip for slip, parts in _scalings(case, shards_by_rank[rank], right) if _all_close(mine, parts)}
    if not fault:
        agree |= {slip for slip, number in _norms(case, shards_by_rank, rank).items() if _close(right, number)}
    return Seen(place, fault or _sent(calls, world), frozenset(agree))


def _norms(case: Case, shards_by_rank: list[list[torch.Tensor]], rank: int) -> dict[str, float]:
    """The norms that mistakes lead to."""
    right = norm([shard for parts in shards_by_rank for shard in parts])
    norms = [norm(parts) for parts in shards_by_rank]
    return {
        "own-norm": norms[rank],
        "sum-of-norms": sum(norms),
        "mean-of-norms": sum(norms) / len(shards_by_rank),
        "largest-norm": max(norms),
        "no-root": right**2,
        "mean-of-squares": right / math.sqrt(len(shards_by_rank)),
        "sum-over-tensors": math.sqrt(sum(sum(norm([shard]) for shard in parts) ** 2 for parts in shards_by_rank)),
        "clipped-norm": min(right, case.max_norm),
        "no-gradient": 0.0,
    }


def _scalings(case: Case, original: list[torch.Tensor], right: float) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """The shards that mistakes lead to, where the norm is right."""

    def factor(size: float) -> float:
        return min(1.0, case.max_norm / size) if size else 1.0

    yield "own-factor", [shard * factor(norm(original)) for shard in original]
    yield "scaled-twice", [shard * factor(right) ** 2 for shard in original]
    yield "each-tensor", [shard * factor(norm([shard])) for shard in original]


WORDS = {
    "own-norm": "the returned norm is that of this rank's shards alone: sum over the ranks",
    "sum-of-norms": "the returned norm is the sum of the ranks' norms. Sum squares instead, and take the root",
    "mean-of-norms": "the returned norm is the mean of the ranks' norms. Sum squares instead, and take the root",
    "largest-norm": "the returned norm is the largest of the ranks' norms",
    "no-root": "the returned value is the square of the norm: take the root after the sum",
    "mean-of-squares": "the returned norm has the sum of squares divided by the number of ranks. The shards are parts "
                       "of one vector: do not average",
    "sum-over-tensors": "the returned norm sums the norms of a rank's tensors. Sum squares instead, and take the root",
    "clipped-norm": "the returned norm is the one after clipping: return the one before",
    "no-gradient": "the returned norm is 0. clip_grad_norm_ reads the .grad of its tensors, and these tensors are the "
                   "gradients themselves",
    "own-factor": "the shards were scaled by this rank's own norm: all ranks scale by the same factor",
    "scaled-twice": "the shards were scaled twice",
    "each-tensor": "each shard was clipped separately: there is one norm, of all gradients",
}  # fmt: skip


def _returned(value: float, right: float, own_norm: float) -> Fault:
    """What a wrong norm shows."""
    if not value and not own_norm:
        return "owns-nothing", (
            "the returned norm is 0. A rank that owns nothing also takes part in the all-reduce, "
            "and gets the norm of all gradients"
        )
    return "wrong-norm", f"the returned norm is {value:.4g}, and the norm of all gradients is {right:.4g}"


def _scaled(mine: list[torch.Tensor], original: list[torch.Tensor], case: Case, right: float) -> Fault:
    """What the shards show, if the norm is right."""
    if any(shard.isnan().any() for shard in mine):
        return "not-a-number", "there is NaN in the shards: if the norm is zero, do not scale"
    factor = min(1.0, case.max_norm / right) if right else 1.0
    if _all_close(mine, [shard * factor for shard in original]):
        return None
    if right <= case.max_norm:
        return "scaled-up", "the norm is below the limit, and the shards were changed: the factor is at most 1"
    if _all_close(mine, original):
        return "not-scaled", "the shards are unchanged: scale them in place, because only the norm is returned"
    return "wrong-scale", f"the shards were not scaled by {factor:.4g}, which brings the norm to {case.max_norm:g}"


def _sent(calls: counted, world: int) -> Fault:
    if not calls.calls:
        return "unseen", "norm and shards are right, but your function called no collective"
    if calls.sent > OVERHEAD * (world - 1):
        return "sent-too-much", (
            f"norm and shards are right, but this rank sent {calls.sent:,.0f} bytes: send a sum "
            "of squares, and do not send the gradients"
        )
    return None


def _close(value: float, right: float) -> bool:
    return math.isclose(value, right, rel_tol=CLOSE, abs_tol=1e-7)


def _all_close(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(
        torch.allclose(shard, expected_shard, rtol=CLOSE, atol=1e-8)
        for shard, expected_shard in zip(actual, expected, strict=True)
    )


CHECK = Check(
    "scaleout.exercises.zero.ranks",
    "clip_sharded",
    (2, 3),
    rank_report,
    by_mistakes(WORDS),
    wait_seconds=5,
    right="right on 2 and 3 processes: one norm, and the same factor on every rank",
)
