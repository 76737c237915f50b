"""Seconds of a step on a mesh: tensor, context, pipeline and data parallelism together, from the models of each.

Inside: a block under tensor and sequence parallelism (`timing.tensor`), with attention beside what travels among the cp
ranks. Around it the pipeline's order over stages that need not be alike (`timing.pipeline`), recomputation in its
backward. Around that what replicas send, bucket by bucket beside the last backward and the next forward
(`mesh_replicas`), and the optimizer's update. `parts` adds up to the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum, log, sqrt

from scaleout.memory.mesh import CONTEXTS, blocks_of, parameters, rank_blocks
from scaleout.spec import checks, mesh
from scaleout.spec.hardware import Device
from scaleout.spec.layout import Layout, within
from scaleout.spec.pipeline import stages_of
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import Cluster
from scaleout.spec.transformer import Shape, flops
from scaleout.timing import mesh_replicas
from scaleout.timing.ddp_seconds import ADAMW_BYTES, utilization
from scaleout.timing.mesh_machine import MeshMachine, machine
from scaleout.timing.mesh_work import Work, block_work, end_work, hop_seconds, tied_seconds
from scaleout.timing.pipeline import Costs, Summary, summary

# Parts of a step, in the order in which they are told.
PARTS = ("compute", "recompute", "exposed tensor", "exposed context", "imbalance", "bubble", "hops", "exposed data",
         "update", "stragglers")  # fmt: skip

# By what share the seconds of a step vary from rank to rank. All wait for the slowest, and of N normal numbers the
# greatest is expected at most sqrt(2 ln N) deviations above their mean. Fitted once, with the H100's product share: see
# `hardware.PRODUCT_SHARES`.
STRAGGLE = 0.0141

# How far steps are from what is told here: nine of ten published ones from which no constant was made are nearer
# (tests/timing/test_mesh_published.py). A search cannot tell layouts apart that differ by less.
BAND = 0.06


@dataclass(frozen=True)
class MeshTime:
    """One step. `parts` (PARTS) are seconds and add up to `seconds`. compute, recompute and what is exposed of tensor
    and context parallelism are the mean over the pipeline's ranks; imbalance is what the busiest has more, bubble and
    hops what it waits, a tied table's sum among the hops; stragglers is what all wait for the slowest (STRAGGLE).
    pipeline: the step up to the update; costs: of its stages; blocks: of each.

    mfu: model FLOPs, forward and backward, by seconds and the peak of all ranks; hfu with recomputation.
    """

    seconds: float
    parts: dict[str, float]
    pipeline: Summary
    costs: Costs
    blocks: tuple[int, ...]
    crossing: tuple[str, ...]
    tokens_per_second: float
    mfu: float
    hfu: float


def step(
    shape: Shape, batch: int, seq: int, layout: Layout, device: Device, cluster: Cluster,
    recipe: Recipe | None = None, *, order: tuple[str, ...] = mesh.ORDER, each: Sequence[int] | None = None,
    overlap: str | None = None, context: str = "ring", hide_data: bool = True, on: MeshMachine | None = None,
) -> MeshTime:  # fmt: skip
    """A step of layout.m micro-batches of `batch` sequences of `seq` tokens for each of the dp replicas.

    order: the axes of the grid of ranks, outermost first. each: the blocks of each stage (`memory.mesh.blocks_of`).
    overlap: of tensor parallelism's messages, one of `tensor.OVERLAPS`; None: `usual_overlap`. context: "ring" passes
    keys and values round the cp ranks while they attend to those that are there (arXiv 2310.01889), "gather" gathers
    them before (arXiv 2407.21783, section 3.3.2). hide_data: what replicas send goes beside compute. on: what a rank
    runs on, `mesh_machine.machine`'s where None. ValueError, in one line, for what does not divide or does not fit the
    cluster.
    """
    recipe = recipe or Recipe("bf16-master")
    checks.one_of("context", context, CONTEXTS)
    on = on or machine(device, cluster, layout, order)
    overlap = usual_overlap(layout) if overlap is None else overlap
    each = blocks_of(shape, layout, each)
    _, tokens = within(layout, seq)
    work = (block_work(shape, batch, tokens, layout, on, recipe, overlap, context),
            *end_work(shape, batch, tokens, layout, on, recipe))  # fmt: skip
    hop = hop_seconds(shape, batch, tokens, layout, recipe, on.hop)
    costs = stage_costs(work, each, hop)
    done = pipelined(layout, costs)
    parts = _parts(layout, work, each, costs, done)
    parts["hops"] += tied_seconds(shape, layout, recipe, on.hop)
    held = [parameters(shape, layout, rank, sum(rank_blocks(layout, rank, each))) for rank in range(layout.pp)]
    there, back = (fsum(some[stage] for stage in stages_of(layout.schedule, 0, layout.pp, layout.chunks))
                   for some in (costs.forward, costs.backward))  # fmt: skip
    parts["exposed data"] = mesh_replicas.exposed(
        held[0], layout, recipe, on.rank.across, there, back, max(each), hide_data
    )
    parts["update"] = max(held) * ADAMW_BYTES / (layout.replicas if layout.zero else 1) / on.rank.memory_bytes_per_s
    return _time(shape, batch, seq, layout, recipe, on, parts, done, costs, each)


def usual_overlap(layout: Layout) -> str:
    """How Megatron-LM overlaps tensor parallelism's messages where it can: in chunks with sequence parallelism
    (tp_comm_overlap), else beside the weights' gradients."""
    return "chunked" if layout.sequence_parallel else "backward"


def straggling(ranks: int) -> float:
    """Seconds that a step waits for the slowest of so many ranks, by its seconds without."""
    return STRAGGLE * sqrt(2 * log(ranks))


def _time(shape, batch, seq, layout, recipe, on, parts, done, costs, each) -> MeshTime:
    parts["stragglers"] = straggling(layout.ranks) * fsum(parts.values())
    seconds, sequences = fsum(parts.values()), batch * layout.m * layout.dp
    work = flops(shape, sequences, seq, recipe.checkpointing)
    model, peak = work["forward"] + work["backward"], on.rank.peak * layout.ranks
    return MeshTime(
        seconds, {name: parts[name] for name in PARTS}, done, costs, each, on.crossing, sequences * seq / seconds,
        utilization(model, seconds, peak), utilization(model + work["recompute"], seconds, peak),
    )  # fmt: skip


# --- the pipeline ---------------------------------------------------------------------------------------------------


def stage_costs(work: tuple[Work, Work, Work], each: Sequence[int], hop: float) -> Costs:
    """Seconds by stage of a micro-batch. work: of a block, of the first end and of the last."""
    one, first, last = work
    there, back, weights = ([n * value for n in each] for value in (one.there, one.back, one.weights))
    for stage, end in ((0, first), (-1, last)):
        there[stage] += end.there
        back[stage] += end.back
        weights[stage] += end.weights
    return Costs(tuple(there), tuple(b - w for b, w in zip(back, weights, strict=True)), tuple(weights), hop)


def pipelined(layout: Layout, costs: Costs) -> Summary:
    """The step up to the update; without a pipeline one micro-batch after the other."""
    if layout.pp > 1:
        return summary(layout.schedule, layout.pp, layout.m, layout.chunks, costs)
    seconds = layout.m * fsum((*costs.forward, *costs.backward))
    return Summary(seconds, (seconds,), (1,))


def _parts(
    layout: Layout, work: tuple[Work, Work, Work], each: Sequence[int], costs: Costs, done: Summary
) -> dict[str, float]:
    """Of the step up to what replicas send."""
    bare = done.seconds
    if layout.pp > 1:
        bare = pipelined(layout, replace(costs, hop=0.0)).seconds
    mean, busiest = fsum(done.work) / layout.pp, max(done.work)
    of = {name: layout.m / layout.pp * seconds for name, seconds in beside(work, sum(each)).items()}
    return {"compute": mean - fsum(of.values()), **of, "imbalance": busiest - mean, "bubble": bare - busiest,
            "hops": done.seconds - bare}  # fmt: skip


def beside(work: tuple[Work, Work, Work], blocks: int) -> dict[str, float]:
    """Seconds of a micro-batch through the whole model that are no compute done for the first time, by part."""
    whole = list(zip((blocks, 1, 1), work, strict=True))
    return {
        "recompute": fsum(n * one.again for n, one in whole),
        "exposed tensor": fsum(n * one.exposed for n, one in whole),
        "exposed context": fsum(n * fsum(one.context) for n, one in whole),
    }  # fmt: skip
