"""Seconds of a layer's matrix multiplications on one rank, by matrix: dense, of experts, beside low-rank adapters.

Matrices that read the same input are one multiplication where the program has them as one. Experts are one grouped
kernel, in which each expert multiplies its tokens: a router without imbalance gives each as many, tokens x active /
experts. Under an adapter a matrix has no weight gradient, and the adapter's own small multiplications stand beside it,
which take the time of reading the layer's input more than that of their arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

from scaleout.collectives.tensor import Block
from scaleout.spec.adapters import adapted
from scaleout.spec.blocks import Kind, Matrix, matrices
from scaleout.spec.job import Job
from scaleout.timing.machine import Machine
from scaleout.timing.rates import Rates

NAMES = {"attention": ("q", "k", "v", "out"), "mlp": ("gate", "up", "down")}


class Group(NamedTuple):
    """Matrices that are one multiplication. rows: of each of `count` experts. reads: what they multiply."""

    names: tuple[str, ...]
    columns: tuple[int, ...]
    rows: float
    depth: int
    count: int
    reads: str


def products(
    job: Job, rank: Machine, cut: Block, half: str, kind: Kind, first: bool = False
) -> dict[str, tuple[float, float, float]]:
    """Seconds (forward, backward, of it the weights' gradients) of each matrix of a half. Matrices of one
    multiplication each have their share of its columns. first: the layer's input needs no gradient, as nothing before
    it is trained."""
    seconds, width = {}, job.recipe.width("compute")
    small = {m.name: m for m in adapted(job.shape, job.recipe, kind.experts, job.layout.tp)}
    for group in _groups(job, cut, half, kind):
        size = group.rows, sum(group.columns), group.depth, width, group.count
        forward, (backward, weights) = rank.rates.matmul(*size), rank.rates.backward(*size)
        free = first and group.reads == "attention input"
        for name, columns in zip(group.names, group.columns, strict=True):
            share = columns / sum(group.columns)
            times = share * forward, share * backward, share * weights
            if job.recipe.adapter != "none":
                times = share * forward, 0.0 if free else share * (backward - weights), 0.0
            if name in small:
                added = _adapter(rank.rates, job, small[name], free)
                times = times[0] + added[0], times[1] + added[1], added[2]
            seconds[name] = times
    return seconds


def _adapter(rates: Rates, job: Job, matrix: Matrix, free: bool) -> tuple[float, float, float]:
    """The same of an adapter: tokens x inputs x rank, tokens x rank x outputs. free: without the inputs' gradient."""
    tokens, r, width = job.tokens, job.recipe.adapter_rank, job.recipe.width("compute")
    a, b = matrix.depth, matrix.columns
    down, up = rates.backward(tokens, r, a, width), rates.backward(tokens, b, r, width)
    weights = down[1] + up[1]
    forward = rates.matmul(tokens, r, a, width) + rates.matmul(tokens, b, r, width)
    return forward, up[0] + (down[1] if free else down[0]), weights


def _groups(job: Job, cut: Block, half: str, kind: Kind) -> list[Group]:
    """A half's multiplications, in the order of the forward."""
    features = job.shape.features
    if (half == "attention" and features.latent) or (half == "mlp" and features.experts):
        rank = [m for m in matrices(job.shape, kind.experts, job.layout.tp) if m.half == half]
        each = [
            Group((m.name,), (m.columns,), job.tokens * m.active / m.count, m.depth, m.count, m.reads) for m in rank
        ]
    else:
        weights = {weight.name: weight for weight in cut.weights if weight.name in NAMES[half]}
        last = list(weights)[-1]
        each = [
            Group(
                (name,),
                (weight.local[1],),
                weight.flops / (2 * weight.local[0] * weight.local[1]),
                weight.local[0],
                1,
                "last" if name == last else f"{half} input",
            )
            for name, weight in weights.items()
        ]
    return _joined(each, job.program.projections)


def _joined(each: list[Group], projections: bool) -> list[Group]:
    """Neighbours that read the same, as one; experts' always, whose matrices every program stores as one."""
    groups: list[Group] = []
    for one in each:
        before = groups[-1] if groups else None
        if before and before.reads == one.reads and before.count == one.count and (projections or one.count > 1):
            groups[-1] = before._replace(names=before.names + one.names, columns=before.columns + one.columns)
        else:
            groups.append(one)
    return groups
