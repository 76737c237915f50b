"""Check the lab exercise `own-samples`: what each of four ranks reads, for several meshes and two epochs."""

from __future__ import annotations

import random

import torch

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, wrong
from scaleout.exercises.ranks.sure import TELLING
from scaleout.spec.mesh import Grid

AXES = ("pp", "dp", "tp")
SIZES = ((1, 2, 2), (2, 2, 1), (1, 4, 1), (2, 1, 2))
COUNT, EPOCHS = 24, 3

Fault = tuple[str, str] | None  # (slip, words)
# The cause of what is to be seen.
WHY = {
    "order-apart": ": their permutations differ. Each rank's own seed is its own",
    "every-rank": ": all four ranks share out the data set, and these two work on the same sample. Only dp reads other "
                  "ones",
    "wrong-axis": ". Which coordinate did you take? tp counts fastest",
    "own-seed": ": is the permutation drawn from what each rank has seeded for itself?",
    "overlap": ": all replicas need the same permutation to cut",
}  # fmt: skip


def own(function, rank: int, world: int) -> Verdict | list:
    """The lists that this rank reads, by mesh and epoch, each with what it draws at random afterwards; or what is wrong
    with one of them."""
    found = []
    for sizes in SIZES:
        for epoch in range(EPOCHS):
            random.seed(rank)
            torch.manual_seed(rank)
            given = function(COUNT, epoch, sizes)
            if given is ...:
                return wrong("the function returns its ... at once: put your list in its place", "stub")
            given = given.tolist() if isinstance(given, torch.Tensor) else given
            if not isinstance(given, (list, tuple, range)):
                return wrong(f"the function gave a {type(given).__name__}: a list of samples is asked for", "no-list")
            some = [int(one) if isinstance(one, (int, torch.Tensor)) else -1 for one in given]
            if any(not 0 <= one < COUNT for one in some):
                return wrong(
                    f"rank {rank} reads what is no sample: they are whole numbers from 0 to {COUNT - 1}", "no-sample"
                )
            found.append((some, float(torch.rand(())), random.random()))
    return found


def judge(reports: list, world: int) -> Verdict:
    """What all ranks read together. A cause is named where three epochs at least show it, and none another."""
    seen = []
    for number, sizes in enumerate(SIZES):
        given = [[one[EPOCHS * number + epoch] for one in reports] for epoch in range(EPOCHS)]
        epochs = [[lists for lists, *_ in ranks] for ranks in given]
        mesh = " x ".join(f"{axis} {size}" for axis, size in zip(AXES, sizes, strict=True))
        seen.append(
            (
                mesh,
                [found for lists in epochs if (found := _shared(lists, sizes))],
                _shuffled(epochs) or next(filter(None, map(_reseeded, given)), None),
            )
        )
    slips = [slip for _, shared, _ in seen for slip, _ in shared]
    sure = slips[0] if len(slips) >= TELLING and len(set(slips)) == 1 else ""
    if "own-seed" in slips and set(slips) <= set(WHY):  # in an epoch it may look like any
        sure = "own-seed" if len(slips) >= TELLING else ""
    for mesh, shared, other in seen:
        for slip, words in shared:
            if sure:
                return wrong(f"{mesh}: {words}{WHY.get(sure, '')}", sure)
            return wrong(f"{mesh}: {words}", "other-samples" if slip in WHY else slip)
        if other:
            return wrong(f"{mesh}: {other[1]}", other[0])
    return Verdict(True, f"right on {world} processes")


def _shared(lists: list[list[int]], sizes: tuple[int, ...]) -> Fault:
    """What is wrong with who reads what in one epoch."""
    grid = Grid(tuple(zip(AXES, sizes, strict=True)))
    for axis in ("tp", "pp"):
        for group in grid.groups(axis):
            if any(lists[one] != lists[group[0]] for one in group):
                return _apart(lists, grid, axis, group)
    replicas = [lists[rank] for rank in grid.group(0, "dp")]
    read = [one for some in replicas for one in some]
    if len(set(map(tuple, replicas))) == 1 < len(replicas):
        return "all-the-same", "all replicas read the same samples: along dp they share out the data set"
    if len(read) != len(set(read)):
        twice = next(one for one in read if read.count(one) > 1)
        return "overlap", f"sample {twice} is read twice"
    if len(read) < COUNT:
        return "lost", f"{COUNT - len(read)} of {COUNT} samples are read by nobody"
    if len({len(one) for one in replicas}) > 1:
        return "uneven", "the replicas' lists are of different lengths: one would wait for the others at the end"
    return None


def _apart(lists: list[list[int]], grid: Grid, axis: str, group: tuple[int, ...]) -> Fault:
    """What ranks that work on the same samples have instead."""
    a, b = (sorted(lists[rank]) for rank in group[:2])
    who = f"ranks {group[0]} and {group[1]}, neighbours along {axis}, read"
    if a == b:
        return "order-apart", f"{who} the same samples in another order"
    every = [one for some in lists for one in some]
    if len(every) == len(set(every)):
        return "every-rank", f"{who} different samples"
    if not set(a) & set(b) and grid.size("dp") > 1:
        return "wrong-axis", f"{who} different samples"
    return "own-seed", f"{who} different samples"


def _shuffled(epochs: list[list[list[int]]]) -> Fault:
    """What is wrong with the order, where each epoch is shared out well."""
    if all(lists == epochs[0] for lists in epochs):
        ordered = any(one == sorted(one) for one in epochs[0])
        return (
            ("not-shuffled", "each list is in the order of the data set: shuffle it")
            if ordered
            else ("same-epochs", "each epoch has the same order: let it depend on `epoch`")
        )
    if any(one == sorted(one) for lists in epochs for one in lists):
        return "not-shuffled", "a list is in the order of the data set: shuffle it"
    if any(epochs[i] == epochs[j] for i in range(EPOCHS) for j in range(i)):
        return "same-epochs", "two epochs have the same order: let it depend on `epoch`"
    return None


def _reseeded(ranks: list[tuple[list[int], float, float]]) -> Fault:
    """Ranks that had seeds of their own and draw the same afterwards."""
    for drawn, whose in (([one[1] for one in ranks], "torch"), ([one[2] for one in ranks], "random")):
        if len(set(drawn)) < len(drawn):
            return "reseeded", (
                f"the lists are right, and afterwards ranks draw the same from {whose}, so that "
                "their dropout would be the same: shuffle with a generator of its own"
            )
    return None


CHECK = Check(
    "scaleout.exercises.mesh.ranks",
    "my_samples",
    (4,),
    own,
    judge,
    wait_seconds=5,
    right=f"right on 4 processes, as {len(SIZES)} meshes: the same samples along tp and pp, each once along "
    "dp, and another order in each epoch",
)
