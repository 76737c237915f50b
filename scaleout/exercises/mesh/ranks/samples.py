"""Check the lab exercise `own-samples`: what each of four ranks reads, for several meshes and two epochs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch

from scaleout.exercises.engine import Verdict
from scaleout.exercises.ranks.check import Check, wrong
from scaleout.exercises.ranks.sure import TELLING, Fault
from scaleout.spec.mesh import Grid

AXES = ("pp", "dp", "tp")
SIZES = ((1, 2, 2), (2, 2, 1), (1, 4, 1), (2, 1, 2))
COUNT, EPOCHS = 24, 3
# The cause of what is to be seen.
REASONS = {
    "order-apart": ": their permutations differ, because each rank shuffles with its own seed",
    "every-rank": ": all four ranks share out the data set, but these two work on the same samples. Only ranks along "
                  "dp read different ones",
    "wrong-axis": ". Which coordinate did you use? The tp coordinate varies fastest",
    "own-seed": ": does the permutation depend on the seed that each rank set for itself?",
    "overlap": ": all replicas must take their parts of the same permutation",
}  # fmt: skip


class Reading(NamedTuple):
    """What a rank read in an epoch, and the numbers that torch and `random` gave it afterwards."""

    samples: list[int]
    torch: float
    random: float


def rank_report(function, rank: int, world: int) -> Verdict | list[Reading]:
    """The lists that this rank reads, by mesh and epoch, each with what it draws at random afterwards; or what is wrong
    with one of them."""
    readings = []
    for sizes in SIZES:
        for epoch in range(EPOCHS):
            random.seed(rank)
            torch.manual_seed(rank)
            returned = function(COUNT, epoch, sizes)
            if returned is ...:
                return wrong("the function still returns ...: put your list there", "stub")
            returned = returned.tolist() if isinstance(returned, torch.Tensor) else returned
            if not isinstance(returned, (list, tuple, range)):
                return wrong(f"the function returned a {type(returned).__name__}: return a list of samples", "no-list")
            samples = [int(sample) if isinstance(sample, (int, torch.Tensor)) else -1 for sample in returned]
            if any(not 0 <= sample < COUNT for sample in samples):
                return wrong(
                    f"rank {rank} reads something else: samples are whole numbers from 0 to {COUNT - 1}",
                    "no-sample",
                )
            readings.append(Reading(samples, float(torch.rand(())), random.random()))
    return readings


def judge(reports: list, world: int) -> Verdict:
    """What all ranks read together. A cause is named where three epochs at least show it, and none another."""
    seen = []
    for number, sizes in enumerate(SIZES):
        # By epoch, then by rank.
        readings = list(zip(*(report[EPOCHS * number :][:EPOCHS] for report in reports), strict=True))
        epochs = [[reading.samples for reading in ranks] for ranks in readings]
        mesh = " x ".join(f"{axis} {size}" for axis, size in zip(AXES, sizes, strict=True))
        seen.append(
            (
                mesh,
                [fault for lists in epochs if (fault := _shared(lists, sizes))],
                _shuffled(epochs) or next(filter(None, map(_reseeded, readings)), None),
            )
        )
    slips = [slip for _, shared, _ in seen for slip, _ in shared]
    sure = slips[0] if len(slips) >= TELLING and len(set(slips)) == 1 else ""
    if "own-seed" in slips and set(slips) <= set(REASONS):  # in an epoch it may look like any
        sure = "own-seed" if len(slips) >= TELLING else ""
    for mesh, shared, order_fault in seen:
        for slip, words in shared:
            if sure:
                return wrong(f"{mesh}: {words}{REASONS.get(sure, '')}", sure)
            return wrong(f"{mesh}: {words}", "other-samples" if slip in REASONS else slip)
        if order_fault:
            return wrong(f"{mesh}: {order_fault[1]}", order_fault[0])
    return Verdict(True, f"right on {world} processes")


def _shared(lists: list[list[int]], sizes: tuple[int, ...]) -> Fault:
    """What is wrong with who reads what in one epoch."""
    grid = Grid(tuple(zip(AXES, sizes, strict=True)))
    for axis in ("tp", "pp"):
        for group in grid.groups(axis):
            if any(lists[rank] != lists[group[0]] for rank in group):
                return _differing(lists, grid, axis, group)
    replicas = [lists[rank] for rank in grid.group(0, "dp")]
    samples = [sample for replica in replicas for sample in replica]
    if len(set(map(tuple, replicas))) == 1 < len(replicas):
        return "all-the-same", "all replicas read the same samples: ranks along dp must share out the data set"
    if len(samples) != len(set(samples)):
        twice = next(sample for sample in samples if samples.count(sample) > 1)
        return "overlap", f"sample {twice} is read twice"
    if len(samples) < COUNT:
        return "lost", f"{COUNT - len(samples)} of {COUNT} samples are read by nobody"
    if len({len(replica) for replica in replicas}) > 1:
        return "uneven", "the replicas' lists have different lengths, so at the end one would wait for the others"
    return None


def _differing(lists: list[list[int]], grid: Grid, axis: str, group: tuple[int, ...]) -> Fault:
    """What ranks that work on the same samples have instead."""
    a, b = (sorted(lists[rank]) for rank in group[:2])
    neighbours = f"ranks {group[0]} and {group[1]}, neighbors along {axis}, read"
    if a == b:
        return "order-apart", f"{neighbours} the same samples in another order"
    samples = [sample for part in lists for sample in part]
    if len(samples) == len(set(samples)):
        return "every-rank", f"{neighbours} different samples"
    if not set(a) & set(b) and grid.size("dp") > 1:
        return "wrong-axis", f"{neighbours} different samples"
    return "own-seed", f"{neighbours} different samples"


def _shuffled(epochs: list[list[list[int]]]) -> Fault:
    """What is wrong with the order, where each epoch is shared out well."""
    if all(lists == epochs[0] for lists in epochs):
        ordered = any(samples == sorted(samples) for samples in epochs[0])
        return (
            ("not-shuffled", "each list is in the order of the data set: shuffle it")
            if ordered
            else ("same-epochs", "each epoch has the same order: let it depend on `epoch`")
        )
    if any(samples == sorted(samples) for lists in epochs for samples in lists):
        return "not-shuffled", "a list is in the order of the data set: shuffle it"
    if any(epochs[i] == epochs[j] for i in range(EPOCHS) for j in range(i)):
        return "same-epochs", "two epochs have the same order: let it depend on `epoch`"
    return None


def _reseeded(ranks: Sequence[Reading]) -> Fault:
    """Ranks that had seeds of their own and draw the same afterwards."""
    for library in ("torch", "random"):
        if len({getattr(reading, library) for reading in ranks}) < len(ranks):
            return "reseeded", (
                f"the lists are right, but afterwards ranks draw the same numbers from {library}, so "
                "their dropout would be the same: shuffle with a separate generator"
            )
    return None


CHECK = Check(
    "scaleout.exercises.mesh.ranks",
    "my_samples",
    (4,),
    rank_report,
    judge,
    wait_seconds=5,
    right=f"right on 4 processes, as {len(SIZES)} meshes: the same samples along tp and pp, each once along "
    "dp, and another order in each epoch",
)
