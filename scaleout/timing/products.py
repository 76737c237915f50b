"""Seconds of a layer's matrix multiplications on one rank, by matrix, and of the attention between them.

Matrices that read the same input are one multiplication where the program has them as one. Experts are one grouped
kernel, in which each expert multiplies its tokens: a router without imbalance gives each as many, tokens x active /
experts. Under an adapter a matrix has no weight gradient, and the adapter's own small multiplications stand beside it,
which take the time of reading the layer's input more than that of their arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

from scaleout.collectives.tensor import Block
from scaleout.spec.adapters import adapted
from scaleout.spec.blocks import Kind, matrices
from scaleout.spec.job import Job
from scaleout.timing.machine import Machine
from scaleout.timing.passes import scores
from scaleout.timing.rates import Rates

NAMES = {"attention": ("q", "k", "v", "out"), "mlp": ("gate", "up", "down")}


class Group(NamedTuple):
    """Matrices that are one multiplication. rows: of each of the experts, of which a dense matrix is one. reads: what
    they multiply."""

    names: tuple[str, ...]
    columns: tuple[int, ...]
    rows: float
    depth: int
    experts: int
    reads: str


def products(
    job: Job, rank: Machine, cut: Block, half: str, kind: Kind, first: bool = False
) -> dict[str, tuple[float, float, float]]:
    """Seconds (forward, backward, of it the weights' gradients) of each matrix of a half. Matrices of one
    multiplication each have their share of its columns. first: the layer's input needs no gradient, as nothing before
    it is trained."""
    seconds, width = {}, job.recipe.width("compute")
    adapts = job.recipe.adapter != "none"
    small = {m.name for m in adapted(job.shape, job.recipe, kind.experts, job.layout.tp)} if adapts else set()
    for group in _groups(job, cut, half, kind):
        size = group.rows, sum(group.columns), group.depth, width, group.experts
        forward, (backward, weights) = rank.rates.matmul(*size), rank.rates.backward(*size)
        free = first and group.reads == "attention input"
        if adapts:
            forward, backward, weights = forward, 0.0 if free else backward - weights, 0.0
        columns = sum(n for name, n in zip(group.names, group.columns, strict=True) if name in small)
        if columns:
            added = _adapter(rank.rates, job, group.depth, columns, free)
            forward, backward, weights = forward + added[0], backward + added[1], added[2]
        for name, n in zip(group.names, group.columns, strict=True):
            share = n / sum(group.columns)
            seconds[name] = share * forward, share * backward, share * weights
    return seconds


def _adapter(rates: Rates, job: Job, inputs: int, outputs: int, free: bool) -> tuple[float, float, float]:
    """Seconds (forward, backward, of it the weights' gradients) of the adapter of one multiplication: tokens x inputs x
    rank, tokens x rank x outputs. free: without the inputs' gradient."""
    recipe = job.recipe
    tokens, r = job.tokens, recipe.adapter_rank
    width = recipe.width("compute") if recipe.autocast else max(recipe.width("compute"), recipe.adapter_bytes)
    # a product is as long for its result as for its gradients: the same three sizes, of which one is the rank
    down, up = (rates.thin(tokens, side, r, width) for side in (inputs, outputs))
    return down + up, (1 if free else 2) * down + 2 * up, down + up


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
        if before and before.reads == one.reads and before.experts == one.experts and (projections or one.experts > 1):
            groups[-1] = before._replace(names=before.names + one.names, columns=before.columns + one.columns)
        else:
            groups.append(one)
    return groups


# --- attention between the matrices -----------------------------------------------------------------------------------


def core_seconds(job: Job, rank: Machine, cut: Block, kind: Kind) -> tuple[tuple[float, float], tuple[float, float]]:
    """((seconds, bytes moved) forward, and backward) of attention between q, k, v and out; queries of a part of a
    sequence attend to the keys of all cp parts."""
    cp, rates, latent = job.layout.cp, rank.rates, job.shape.features.latent
    head = latent.nope + latent.rope if latent else job.shape.d
    flops = 2 * cut.scores * (head + (latent.value if latent else head))
    if job.recipe.attention != "naive":
        heads = cut.scores / (job.seq // cp) ** 2 / cp  # of whole sequences
        share = attended(job.seq, kind.window)
        masked = (share < 1 or bool(latent)) and not job.program.windows
        if masked and share < 1:  # a mask says what counts, and all scores are computed, the later tokens' too
            share = 2.0
        capped = "scores" in job.shape.features.caps
        forward, backward = rates.attention(cp * flops, job.seq, head, heads, share, masked=masked, capped=capped)
        return (forward, 0.0), (backward, 0.0)
    size = cut.scores * job.recipe.width("compute")
    forward_passes, backward_passes = scores(job)
    product = flops / rates.matmul_flop_per_s
    return (product, forward_passes * size), (2 * product, backward_passes * size)


def attended(seq: int, window: int | None) -> float:
    """Share of the scores below the diagonal that a window leaves: each of seq tokens attends to at most `window`."""
    if window is None or window >= seq:
        return 1.0
    return 1 - (1 - window / seq) ** 2
