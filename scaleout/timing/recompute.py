"""The time of recomputation: of each tile of a block, of the tiles that a budget drops, and of the whole step.

Recomputing a tile takes the time of its operation in the forward of `compute`: a matrix multiplication by its shape,
fused attention by its own rates, other kernels by the bytes that they move, communication by its exposed part. A block
that drops some tiles recomputes only those. A block that saves only its input is recomputed as a whole, as in
Megatron-LM, including its last matrix multiplication, whose output is not needed; that is `checkpointing="full"`.

`knapsack` finds the tiles to drop for a budget of bytes and the least time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from math import ceil, fsum
from operator import add

from scaleout.collectives.job import block_of
from scaleout.memory import accounts
from scaleout.memory.activations import Sizes
from scaleout.memory.recompute import INPUT, Policy, Tile, names, none, refuse, tiles
from scaleout.spec import checks
from scaleout.spec.job import Job
from scaleout.timing import compute, machine
from scaleout.timing.compute import Phase, Work
from scaleout.timing.job import Step, step_on, straggling
from scaleout.timing.knapsack import Choice, Priced, exact
from scaleout.timing.machine import Machine
from scaleout.timing.passes import ROTARY, ROTARY_UNFUSED, SCORES, SCORES_DROPPED
from scaleout.timing.pipeline import Costs

# The matrix of a tile's multiplication, where it has another name, and the join of its communication.
MATRIX = {"middle": "out", "mask": "down"}
JOIN = {"q": ("attention", "into"), "middle": ("attention", "out of"), "gate": ("mlp", "into"), "up": ("mlp", "into"),
        "norm 1": ("attention", "into"), "norm 2": ("mlp", "into"), "mask": ("mlp", "out of")}  # fmt: skip


def sizes(job: Job) -> Sizes:
    """The job's activations on a rank, as `memory` counts them. ValueError under context parallelism."""
    if job.layout.cp > 1:
        raise ValueError(f"tiles are priced without context parallelism: use cp 1, not {job.layout.cp}")
    return Sizes(job.shape, job.batch, job.seq, job.recipe, job.layout)


def phases(job: Job, rank: Machine) -> dict[str, Phase]:
    """What making each tile of a block again takes, by name, in the order of its forward."""
    parts, rates = compute.operations(job, rank), rank.rates
    return {tile.name: _phase(job, tile, parts, rates) for tile in tiles(sizes(job)) if tile.name != INPUT}


def _phase(job: Job, tile: Tile, parts: compute.Operations, rates) -> Phase:
    matmul = attention = 0.0
    if tile.kind == "attention":  # a naive one's two products are two tiles
        attention = parts.attention[0] / (2 if job.recipe.attention == "naive" else 1)
    elif tile.flops:
        matmul = parts.products[MATRIX.get(tile.name, tile.name)]
    moved = passes(job, tile)
    gaps = rates.kernel_seconds if moved else 0.0
    exposed = parts.exposed.get(JOIN.get(tile.name, ("", "")), 0.0) if tile.sends else 0.0
    return Phase(matmul, attention, rates.moved(moved), gaps, exposed, 0.0)


def passes(job: Job, tile: Tile) -> float:
    """Bytes that a tile's kernels move in the job's program. `memory` has each operation's inputs and outputs once; of
    kernels that read and write otherwise `compute` knows how often: of a naive core's scores, of rotary positions."""
    width = job.recipe.width("compute")
    if tile.name in ("scores", "dropped scores"):
        count = {"scores": SCORES, "dropped scores": SCORES_DROPPED}[tile.name][0]
        return count * block_of(job).scores * width
    moved = tile.moved
    if tile.name in ("q", "k") and job.program.fused and job.shape.positions == "rotary":
        size = next(activation.bytes for activation in block_of(job).tensors if activation.name == tile.name)
        moved -= (ROTARY_UNFUSED[0] - ROTARY[0]) * size
    return job.program.moves * moved


def priced(job: Job, rank: Machine) -> tuple[Priced, ...]:
    """The tiles that a block can drop, in the order of its forward."""
    z, costs = sizes(job), phases(job, rank)
    size = {tile.name: tile.bytes for tile in tiles(z)}
    return tuple(Priced(name, size[name], phase.seconds, z.chunk_layers) for name, phase in costs.items())


def rest_seconds(job: Job, rank: Machine) -> float:
    """What a block that is run again as a whole takes beside its tiles: its last matrix multiplication above all."""
    block = compute.block(job, rank).forward.seconds
    return block - fsum(phase.seconds for phase in phases(job, rank).values())


# --- what to drop ---------------------------------------------------------------------------------------------------


def policy(z: Sizes, choice: Choice) -> Policy:
    """The choice in blocks, the first ones first: what the last block drops is made again at once, and frees nothing
    of a peak in the backward."""
    return Policy(tuple(frozenset(name for name, n in choice.counts.items() if i < n) for i in range(z.chunk_layers)))


def budgets(job: Job, rank: Machine, shares: Sequence[float], best=exact) -> tuple[Policy, ...]:
    """For each share, 0 to 1, the policy of fewest seconds that keeps at most that share of what can be dropped."""
    items = priced(job, rank)
    total = sum(item.count * item.bytes for item in items)
    for share in shares:
        checks.number("share", share, 0, 1)
    return tuple(policy(sizes(job), best(items, ceil((1 - share) * total))) for share in shares)


def for_memory(job: Job, rank: Machine, memory: int, best=exact) -> Policy:
    """The policy of fewest seconds whose whole step (`accounts.account`) takes at most `memory` bytes of tensors.

    best: `exact` or `greedy`. Each try frees what the one before lacked. ValueError, with what the least takes, where
    not even full recomputation fits.
    """
    checks.number("memory", memory, 0)
    z = sizes(job)
    items, chosen, free = priced(job, rank), none(z), 0
    total = sum(item.count * item.bytes for item in items)
    setting = job.shape, job.batch, job.seq, job.recipe, job.layout
    while (peak := accounts.account(*setting, chosen).peak_bytes) > memory:
        if free == total:
            raise ValueError(
                f"even with full recomputation a step takes {peak / 1e9:.2f} GB, and {memory / 1e9:.2f} "
                "GB are there: use a smaller batch, or split the states"
            )
        free = min(total, free + max(1, ceil((peak - memory) / z.in_flight)))
        chosen = policy(z, best(items, free))
    return chosen


# --- the step -------------------------------------------------------------------------------------------------------


def repeated(job: Job, rank: Machine, policy: Policy) -> Phase:
    """What a policy makes again of one micro-batch, of all blocks together."""
    z = sizes(job)
    refuse(z, policy)
    costs, everything = phases(job, rank), names(z)
    full = compute.block(job, rank).forward
    repeats = [
        full if drop >= everything else reduce(add, (costs[name] for name in costs if name in drop), Phase())
        for drop in policy.drops
    ]
    return repeats[0].times(len(repeats)) if len(set(policy.drops)) == 1 else reduce(add, repeats, Phase())


def again_seconds(job: Job, rank: Machine, policy: Policy) -> float:
    """Seconds that a policy makes again of one micro-batch."""
    return repeated(job, rank, policy).seconds


def longer(work: Work, extra: Phase) -> Work:
    """A block that makes so much again before its backward."""
    last = work.matrices[-1][0]
    matrices = tuple((name, f, b + extra.seconds * (name == last)) for name, f, b in work.matrices)
    return replace(work, backward=work.backward + extra, repeated=extra, matrices=matrices)


def step(job: Job, policy: Policy, rank: Machine | None = None) -> Step:
    """The job's step under a policy. What some of its blocks make again is spread evenly over all; its HFU counts none
    of that. rank: None for one by datasheets."""
    rank, everything = rank or machine.from_datasheet(job), names(sizes(job))
    if all(drop >= everything for drop in policy.drops):
        return step_on(job.other(checkpointing="full"), rank)
    extra = repeated(job, rank, policy).times(1 / len(policy.drops))
    return step_on(job, rank, longer(compute.block(job, rank), extra))


KNOTS = 4  # parts of a line that bends


def lengthened(step: Step, rank: Machine) -> Callable[[float], float]:
    """Step time as a function of the seconds of recomputation per micro-batch, of all blocks, up to full recomputation.
    step: of the job that saves everything.

    A second of recomputation makes a step at most a second longer. If full recomputation makes it longer by all of its
    seconds, the line is straight; else communication hides a part, and the line has KNOTS straight parts.
    """
    job, plain = step.job, step.work[0]
    full = plain.forward.seconds
    knots = [full * i / KNOTS for i in range(KNOTS + 1)]
    step_seconds = {0.0: step.seconds, full: step_on(job, rank, longer(plain, plain.forward)).seconds}
    straight = step_seconds[full] - step_seconds[0.0]
    if abs(straight - job.layout.m * job.shape.layers * full * (1 + straggling(job))) < 1e-9 * step_seconds[0.0]:
        knots = [0.0, full]
    for knot in knots[1:-1]:
        step_seconds[knot] = step_on(job, rank, longer(plain, Phase(moves=knot))).seconds

    def seconds(seconds_repeated: float) -> float:
        per_block = seconds_repeated / job.shape.layers
        i = min(max(bisect_right(knots, per_block), 1), len(knots) - 1)
        low, high = knots[i - 1], knots[i]
        return step_seconds[low] + (step_seconds[high] - step_seconds[low]) * (per_block - low) / (high - low)

    return seconds


# --- beside the other techniques ------------------------------------------------------------------------------------


def pipelined(costs: Costs, repeated_seconds: Sequence[float]) -> Costs:
    """A pipeline's costs with so many seconds made again before the input gradient of each stage: 1F1B's order gives
    them to every micro-batch, so they lengthen the bubble as they lengthen the work."""
    return replace(costs, input=tuple(map(add, costs.input, repeated_seconds)))


def gathers(policy: Policy, reshard: bool = True) -> tuple[int, int]:
    """(all-gathers of a block's weights in a step, blocks that are whole before the first of the backward is reduced)
    under FSDP2, which gathers one block ahead.

    The gather that the backward needs anyway serves what is made again, so recomputation repeats none. A segment's
    blocks are all gathered before the last of them begins its backward.
    """
    blocks = len(policy.drops)
    return (2, min(blocks, max(2, policy.segment))) if reshard else (1, blocks)


def offload(size: float, link_bytes_per_s: float, forward: float, backward: float) -> tuple[float, float]:
    """Exposed seconds (on the way out, on the way back) where `size` bytes go to the host's memory beside so many
    seconds of forward, and come back beside so many of backward, instead of being made again."""
    checks.above_0("link_bytes_per_s", link_bytes_per_s)
    for name, value in {"size": size, "forward": forward, "backward": backward}.items():
        checks.number(name, value, 0)
    way = size / link_bytes_per_s
    return max(0.0, way - forward), max(0.0, way - backward)
