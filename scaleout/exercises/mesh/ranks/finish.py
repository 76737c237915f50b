"""Check the lab exercise `finish-gradients`: sums and means along each axis, for several meshes of four ranks.

Every rank knows what every other one began with, so that each has the right gradients, and those that come of another
choice for an axis: nothing, a sum or a mean.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import product

import torch
import torch.distributed as dist

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, wrong
from scaleout.spec.mesh import Grid

AXES = ("pp", "dp", "tp")
SIZES = ((1, 2, 2), (2, 2, 1), (2, 1, 2))  # groups cost a tenth of a second each to make
RIGHT = {"cut": ("none", "mean", "none"), "whole": ("none", "mean", "sum"), "tied": ("sum", "mean", "none")}
LONG = {"cut": 5, "whole": 3, "tied": 4}
CLOSE = 1e-5
WAIT = 5  # seconds, of a collective for the other ranks
WORDS = {"none": "is not added up", "sum": "is added up", "mean": "is averaged"}

Fault = tuple[str, str] | None  # (slip, words)


def began(kind: str, rank: int) -> torch.Tensor:
    """A rank's gradient after its backward."""
    seed = 10 * rank + list(RIGHT).index(kind)
    return torch.randn(LONG[kind], generator=torch.Generator().manual_seed(seed))


def finished(kind: str, rank: int, sizes: tuple[int, ...], done: tuple[str, ...], turned: bool = False) -> torch.Tensor:
    """The gradient of a rank after the same has been `done` along each axis; with `turned` along axes whose first
    counts fastest."""
    axes = tuple(zip(AXES, sizes, strict=True))
    grid = Grid(axes[::-1] if turned else axes)
    along = [axis for axis, what in zip(AXES, done, strict=True) if what != "none"]
    group = grid.group(rank, *along) if along else (rank,)
    by = 1
    for axis, what in zip(AXES, done, strict=True):
        by *= grid.size(axis) if what == "mean" else 1
    return sum(began(kind, one) for one in group) / by


class Disagree(Exception):
    """Ranks make different groups at the same time."""


@contextmanager
def agreed(world: int) -> Iterator[None]:
    """Every `new_group` inside is first compared over all ranks: groups that are not the same ones get hold of each
    other's connections, and what comes of it differs from run to run. They wait as long as the check's own."""
    plain = dist.new_group

    def made(ranks=None, *args, **kwargs):
        mine = torch.zeros(world)
        mine[list(range(world) if ranks is None else ranks)] = 1
        every = [torch.zeros(world) for _ in range(world)]
        dist.all_gather(every, mine)
        groups = [one.nonzero().flatten().tolist() for one in every]
        if any(one != groups[0] for one in groups):
            other = next(rank for rank, one in enumerate(groups) if one != groups[0])
            raise Disagree(f"new_group was called with {groups[0]} on rank 0 and with {groups[other]} on rank {other}")
        return plain(ranks, *args, **{"timeout": timedelta(seconds=WAIT), **kwargs})

    dist.new_group = made
    try:
        yield
    finally:
        dist.new_group = plain


def explain(error: Exception) -> Verdict | None:
    """Groups that not all ranks have made."""
    if not isinstance(error, Disagree):
        return None
    return wrong(f"{error}: every rank makes every group, in the same order, also those that it is not in",
                 "own-groups")  # fmt: skip


def own(function, rank: int, world: int) -> Verdict | None:
    """All meshes on this rank: what is wrong with the first that is, or None."""
    warnings.simplefilter("ignore", FutureWarning)  # torch renames its collectives; any name is right here
    for sizes in SIZES:
        gradients = {kind: began(kind, rank) for kind in RIGHT}
        held = dict(gradients)
        with agreed(world):
            returned = function(gradients, sizes)
        if returned is ...:
            return wrong("the function returns its ... at once: put your sums in its place", "stub")
        mesh = " x ".join(f"{axis} {size}" for axis, size in zip(AXES, sizes, strict=True))
        found = _fault(held, rank, sizes)
        if found:
            return wrong(f"rank {rank}, {mesh}: {found[1]}", found[0])
    return None


def _fault(given: dict[str, torch.Tensor], rank: int, sizes: tuple[int, ...]) -> Fault:
    """What is wrong with the gradients of one mesh."""
    wrongs = {kind: one for kind, one in given.items() if not near(one, finished(kind, rank, sizes, RIGHT[kind]))}
    if not wrongs:
        return None
    if all(torch.equal(one, began(kind, rank)) for kind, one in given.items()):
        return "not-in-place", "the gradients are as they were. Change them in place, as dist.all_reduce does"
    if all(near(one, finished(kind, rank, sizes, RIGHT[kind], turned=True)) for kind, one in given.items()):
        return "order-of-axes", ("the sums are along other groups: ranks count along tp fastest, so that tp's groups "
                                 "are ranks in a row")  # fmt: skip
    kind, one = next(iter(wrongs.items()))
    for done in _choices(kind, sizes):
        if near(one, finished(kind, rank, sizes, done)):
            return _named(kind, done, sizes)
    right = finished(kind, rank, sizes, RIGHT[kind])
    return "wrong-gradient", f"{kind!r} is {_shown(one)}, and should be {_shown(right)}"


def _choices(kind: str, sizes: tuple[int, ...]) -> list[tuple[str, ...]]:
    """What can be done along axes, the nearest to right first; along an axis of one there is nothing to do."""
    some = product(*(tuple(WORDS) if size > 1 else ("none",) for size in sizes))
    return sorted(some, key=lambda done: sum(was != should for was, should in zip(done, RIGHT[kind], strict=True)))


def _named(kind: str, done: tuple[str, ...], sizes: tuple[int, ...]) -> Fault:
    """Which axis was handled otherwise than it should be."""
    rows = zip(AXES, sizes, done, RIGHT[kind], strict=True)
    off = [(axis, was, should) for axis, size, was, should in rows if size > 1 and was != should]
    axis, was, should = off[0]
    names = {("none", "mean"): "not-averaged", ("sum", "mean"): "summed", ("none", "sum"): "not-added",
             ("mean", "sum"): "averaged", ("sum", "none"): "added", ("mean", "none"): "added"}  # fmt: skip
    why = {"mean": "each replica has the mean of its own samples", "sum": "each rank has a part of the sum",
           "none": "ranks along this axis have other weights"}[should]  # fmt: skip
    more = f"; along {off[1][0]} there is something wrong too" if len(off) > 1 else ""
    return names[was, should], f"{kind!r} {WORDS[was]} along {axis}, where {why}{more}"


def _shown(one: torch.Tensor) -> str:
    return "[" + ", ".join(f"{float(value):.3g}" for value in one[:3]) + ", ...]"


def near(given: torch.Tensor, right: torch.Tensor) -> bool:
    return given.shape == right.shape and bool((given - right).abs().max() <= CLOSE)


def judge(reports: list, world: int) -> Verdict:
    """Every rank's gradients were right."""
    return Verdict(True, f"right on {world} processes")


CHECK = Check("scaleout.exercises.mesh.ranks", "finish", (4,), own, judge, wait_seconds=WAIT, explain=explain,
              right=f"right on 4 processes, as {len(SIZES)} meshes: means along dp, sums along tp and pp")  # fmt: skip
