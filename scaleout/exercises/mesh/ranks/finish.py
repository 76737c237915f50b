"""Check the lab exercise `finish-gradients`: sums and means along each axis, for several meshes of four ranks.

Every rank knows what every other rank began with, so it knows the right gradients, and those that result from another
choice for an axis: nothing, a sum or a mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import product

import torch
import torch.distributed as dist

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, wrong
from scaleout.exercises.ranks.sure import Seen, judged
from scaleout.spec.mesh import Grid

AXES = ("pp", "dp", "tp")
SIZES = ((1, 2, 2), (2, 2, 1), (2, 1, 2))  # groups cost a tenth of a second each to make
RIGHT = {"cut": ("none", "mean", "none"), "whole": ("none", "mean", "sum"), "tied": ("sum", "mean", "none")}
LONG = {"cut": 5, "whole": 3, "tied": 4}
CLOSE = 1e-5
WAIT = 5  # seconds, of a collective for the other ranks
WORDS = {"none": "is not reduced", "sum": "is summed", "mean": "is averaged"}


def began(kind: str, rank: int) -> torch.Tensor:
    """A rank's gradient after its backward."""
    seed = 10 * rank + list(RIGHT).index(kind)
    return torch.randn(LONG[kind], generator=torch.Generator().manual_seed(seed))


def finished(
    kind: str, rank: int, sizes: tuple[int, ...], choices: tuple[str, ...], turned: bool = False
) -> torch.Tensor:
    """The gradient of a rank after a choice ("none", "sum" or "mean") along each axis; with `turned` along axes
    whose first counts fastest."""
    axes = tuple(zip(AXES, sizes, strict=True))
    grid = Grid(axes[::-1] if turned else axes)
    summed_axes = [axis for axis, choice in zip(AXES, choices, strict=True) if choice != "none"]
    group = grid.group(rank, *summed_axes) if summed_axes else (rank,)
    divisor = 1
    for axis, choice in zip(AXES, choices, strict=True):
        divisor *= grid.size(axis) if choice == "mean" else 1
    return sum(began(kind, peer) for peer in group) / divisor


class Disagree(Exception):
    """Ranks make different groups at the same time."""


@contextmanager
def agreed() -> Iterator[None]:
    """Every `new_group` inside, also by a name that a file imports there, is first compared over all ranks: different
    groups would take each other's connections, with results that vary from run to run. They wait as long as the
    check's own."""
    plain, places = dist.new_group, (dist, dist.distributed_c10d)

    def new_group(ranks=None, *args, **kwargs):
        world = dist.get_world_size()
        mine = torch.zeros(world)
        mine[list(range(world) if ranks is None else ranks)] = 1
        masks = [torch.zeros(world) for _ in range(world)]
        dist.all_gather(masks, mine)
        groups = [mask.nonzero().flatten().tolist() for mask in masks]
        if any(mask != groups[0] for mask in groups):
            differing = next(rank for rank, mask in enumerate(groups) if mask != groups[0])
            raise Disagree(
                f"new_group was called with {groups[0]} on rank 0 and with {groups[differing]} on rank {differing}"
            )
        return plain(ranks, *args, **{"timeout": timedelta(seconds=WAIT), **kwargs})

    for place in places:
        place.new_group = new_group
    try:
        yield
    finally:
        for place in places:
            place.new_group = plain


def explain(error: Exception) -> Verdict | None:
    """Groups that not all ranks have made."""
    if not isinstance(error, Disagree):
        return None
    return wrong(
        f"{error}: every rank must create every group, in the same order, also those that it is not in", "own-groups"
    )


def rank_report(function, rank: int, world: int) -> Verdict | list[Seen]:
    """All meshes on this rank: what was seen of each gradient, or what is wrong whatever else it does."""
    seen = []
    for sizes in SIZES:
        gradients = {kind: began(kind, rank) for kind in RIGHT}
        originals = dict(gradients)
        returned = function(gradients, sizes)
        if returned is ...:
            return wrong("the function still returns ...: put your reductions there", "stub")
        mesh = " x ".join(f"{axis} {size}" for axis, size in zip(AXES, sizes, strict=True))
        if all(torch.equal(tensor, began(kind, rank)) for kind, tensor in originals.items()):
            return wrong(
                f"rank {rank}, {mesh}: the gradients are unchanged. Change them in place, as dist.all_reduce does",
                "not-in-place",
            )
        seen += [_seen(f"rank {rank}, {mesh}", kind, tensor, rank, sizes) for kind, tensor in originals.items()]
    return seen


def _seen(place: str, kind: str, actual: torch.Tensor, rank: int, sizes: tuple[int, ...]) -> Seen:
    """One gradient of one mesh, and the choices for its axes that lead to it."""
    right = finished(kind, rank, sizes, RIGHT[kind])
    fault = (
        None
        if close(actual, right)
        else ("wrong-gradient", f"{kind!r} is {_shown(actual)}, and should be {_shown(right)}")
    )
    agree = {
        _name(kind, choices)
        for choices in product(WORDS, repeat=len(AXES))
        if close(actual, finished(kind, rank, sizes, choices))
    }
    turned = close(actual, finished(kind, rank, sizes, RIGHT[kind], turned=True))
    return Seen(place, fault, frozenset(agree | ({TURNED} if turned else set())), kind)


TURNED = "order-of-axes"


def _name(kind: str, choices: tuple[str, ...]) -> str:
    return " ".join((kind, *choices))


def _known(kind: str) -> dict[str, tuple[str, str]]:
    """What is to be said of each choice for the axes of a gradient, by its name."""
    names = {
        ("none", "mean"): "not-averaged",
        ("sum", "mean"): "summed",
        ("none", "sum"): "not-added",
        ("mean", "sum"): "averaged",
        ("sum", "none"): "added",
        ("mean", "none"): "added",
    }
    reasons = {
        "mean": "each replica has the mean of its own samples",
        "sum": "each rank has a part of the sum",
        "none": "ranks along this axis have other weights",
    }
    faults = {}
    for choices in product(WORDS, repeat=len(AXES)):
        pairs = zip(AXES, choices, RIGHT[kind], strict=True)
        errors = [(axis, choice, right) for axis, choice, right in pairs if choice != right]
        if errors:
            axis, choice, right = errors[0]
            addition = f"; {errors[1][0]} is wrong too" if len(errors) > 1 else ""
            faults[_name(kind, choices)] = (
                names[choice, right],
                f"{kind!r} {WORDS[choice]} along {axis}, where {reasons[right]}{addition}",
            )
    return faults


def _shown(tensor: torch.Tensor) -> str:
    return "[" + ", ".join(f"{float(value):.3g}" for value in tensor[:3]) + ", ...]"


def close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    return actual.shape == expected.shape and bool((actual - expected).abs().max() <= CLOSE)


def judge(reports: list[list[Seen]], world: int) -> Verdict:
    """What was done to the first gradient that is wrong, where it is the same in all meshes on all ranks."""
    right = f"right on {world} processes"
    turned = judged(
        reports,
        {
            TURNED: "you reduced over the wrong groups: the tp coordinate varies fastest, so tp's "
            "groups are ranks in a row"
        },
        right,
    )
    if turned.ok or turned.slip == TURNED:
        return turned
    kind = next(case.value for report in reports for case in report if case.fault)
    known = _known(str(kind))
    verdict = judged(
        [[case for case in report if case.value == kind] for report in reports],
        {name: words for name, (_, words) in known.items()},
        right,
    )
    return Verdict(False, verdict.message, known[verdict.slip][0] if verdict.slip in known else verdict.slip)


CHECK = Check(
    "scaleout.exercises.mesh.ranks",
    "finish",
    (4,),
    rank_report,
    judge,
    wait_seconds=WAIT,
    explain=explain,
    around=agreed,
    right=f"right on 4 processes, as {len(SIZES)} meshes: means along dp, sums along tp and pp",
)
