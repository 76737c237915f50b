"""The seconds of a job's step, in parts that add up to it: the one model that every page, lab and search asks.

A micro-batch in a block and in the ends (`compute`) on one rank (`machine`); blocks in a row, or in the order of a
pipeline (`pipeline`); what replicas send beside it (`exchange`, `pipeline_exchange`); the update, what the host takes
for itself, and what all wait for the slowest rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import fsum, log2

from scaleout.collectives.job import hop_bytes, tied_bytes
from scaleout.memory.states import optimizer_width
from scaleout.spec import checks
from scaleout.spec.job import Job
from scaleout.spec.pipeline import stages_of
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import tensors
from scaleout.spec.transformer import flops
from scaleout.timing import compute, exchange, machine, pipeline, pipeline_exchange
from scaleout.timing.compute import Work
from scaleout.timing.ddp import Timeline
from scaleout.timing.fsdp_short import ShortTimeline
from scaleout.timing.machine import Machine
from scaleout.timing.pipeline import Costs, Summary

# Parts of a step, in the order in which they are told.
PARTS = ("compute", "recompute", "launches", "exposed tensor", "exposed context", "imbalance", "bubble", "hops",
         "exposed data", "update", "exposed host", "host", "stragglers")  # fmt: skip

# Share of the host memory's rate that an AdamW on its cores reaches: fitted once, to 1e9 parameters in 0.22 s on two
# sockets of six channels of DDR4-2666 (ZeRO-Offload, arXiv 2101.06840, table 4, CPU-Adam).
HOST_REACHES = 0.5


@dataclass(frozen=True)
class Step:
    """One step of a job. `parts` (PARTS) are seconds and add up to `seconds`. compute, recompute, launches and what is
    exposed of tensor and context parallelism are the mean over a pipeline's ranks, and launches those of what is
    computed for the first time; imbalance is what its busiest rank
    has more, bubble and hops what that one waits; exposed host is copies of offloaded states that neither backward nor
    update hides (offloaded weights travel with the gathers, in exposed data); host is what a step takes whatever its
    size; stragglers is what all ranks wait for the slowest.

    mfu: model FLOPs, forward and backward, by seconds and the datasheet's peak of all ranks (PaLM, arXiv 2204.02311,
    appendix B); hfu with recomputation. work: a micro-batch in a block, in the first end and in the last. timeline:
    the lanes of a step without a pipeline; pipeline, costs: of one with it.
    """

    job: Job
    seconds: float
    parts: dict[str, float]
    work: tuple[Work, Work, Work]
    communication: float
    timeline: Timeline | ShortTimeline | None = None
    pipeline: Summary | None = None
    costs: Costs | None = None

    @property
    def tokens_per_second(self) -> float:
        """Of all ranks."""
        return self.job.tokens_per_step / self.seconds

    @property
    def crowded(self) -> float:
        """Seconds where ranks share a CPU's cores, on a machine measured with all of them at work: one that waits for
        another leaves its core to it, and neither bubble nor imbalance shows."""
        return self.seconds - self.parts["bubble"] - self.parts["imbalance"]

    @property
    def mfu(self) -> float:
        return self._share("forward", "backward")

    @property
    def hfu(self) -> float:
        return self._share("forward", "backward", "recompute")

    def _share(self, *kinds: str) -> float:
        job = self.job
        done = flops(job.shape, job.sequences, job.seq, job.recipe.checkpointing)
        return sum(done[kind] for kind in kinds) / self.seconds / job.peak_flop_per_s / job.layout.ranks


@lru_cache(maxsize=64)
def step(job: Job) -> Step:
    """A step of the job by datasheets. ValueError, in one line, for groups of ranks that nodes cannot hold."""
    checks.instance("job", job, Job)
    return step_on(job, machine.from_datasheet(job))


def step_on(job: Job, rank: Machine, block: Work | None = None) -> Step:
    """A step of the job on a machine of one's own, such as a calibrated one. block: of a micro-batch, where it is not
    as the job's recipe has it (`recompute`)."""
    work = (block or compute.block(job, rank), *compute.ends(job, rank))
    made = _without_pipeline(job, rank, work) if job.layout.pp == 1 else _pipelined(job, rank, work)
    parts = made.parts | {"host": job.program.step_seconds}
    parts["stragglers"] = straggling(job) * fsum(parts.values())
    parts = {name: parts[name] for name in PARTS}
    seconds, line = fsum(parts.values()), made.timeline
    if isinstance(line, Timeline):
        line = line.ended(parts["update"], seconds)
    return replace(made, parts=parts, seconds=seconds, timeline=line)


def straggling(job: Job) -> float:
    """By what share of a step all ranks wait for the slowest."""
    return job.program.jitter * log2(job.cluster.nodes)


def _without_pipeline(job: Job, rank: Machine, work: tuple[Work, Work, Work]) -> Step:
    """Without a pipeline."""
    found, m = exchange.schedule(job, rank, work), job.layout.m
    block, first, last = work
    whole = m * (job.shape.layers * block.seconds + first.seconds + last.seconds)
    rest = {name: m * seconds for name, seconds in beside(work, job.shape.layers).items()}
    parts = {"compute": whole - fsum(rest.values()), **rest, "imbalance": 0.0, "bubble": 0.0, "hops": 0.0,
             "exposed data": found.exposed}  # fmt: skip
    parts["update"] = update_seconds(job, rank, job.rank_parameters())
    backward = job.shape.layers * block.backward_seconds + first.backward_seconds + last.backward_seconds
    parts["exposed host"] = offloaded(job, rank, backward, parts["update"])
    return Step(job, 0.0, parts, work, found.communication, found.timeline)


def _pipelined(job: Job, rank: Machine, work: tuple[Work, Work, Work]) -> Step:
    layout, stages = job.layout, job.stages
    hop = rank.hop(hop_bytes(job))
    costs = stage_costs(job, work, stages, hop)
    how = layout.schedule, layout.pp, layout.m, layout.chunks
    done, bare = pipeline.summary(*how, costs), pipeline.seconds(*how, replace(costs, hop=0.0))
    mean, busiest = fsum(done.work) / layout.pp, max(done.work)
    rest = {name: layout.m / layout.pp * seconds for name, seconds in beside(work, job.shape.layers).items()}
    actions = layout.m * action_seconds(job)
    held = [job.rank_parameters(one) for one in range(layout.pp)]
    forward, backward = (fsum(some[stage] for stage in stages_of(layout.schedule, 0, layout.pp, layout.chunks))
                         for some in (costs.forward, costs.backward))  # fmt: skip
    data, sent = pipeline_exchange.seconds(job, rank, held[0], forward, backward)
    parts = {"compute": mean - fsum(rest.values()) - actions, **rest, "imbalance": busiest - mean,
             "bubble": bare - busiest, "hops": done.seconds - bare + actions + tied_seconds(job, rank),
             "exposed data": data, "update": update_seconds(job, rank, max(held)), "exposed host": 0.0}  # fmt: skip
    return Step(job, 0.0, parts, work, sent, None, done, costs)


def beside(work: tuple[Work, Work, Work], blocks: int) -> dict[str, float]:
    """Seconds of a micro-batch through the whole model that are no compute done for the first time, by part."""
    whole = list(zip((blocks, 1, 1), work, strict=True))
    return {
        "recompute": fsum(n * one.recompute for n, one in whole),
        "launches": fsum(n * one.launches for n, one in whole),
        "exposed tensor": fsum(n * one.exposed for n, one in whole),
        "exposed context": fsum(n * fsum(one.context) for n, one in whole),
    }  # fmt: skip


def action_seconds(job: Job) -> float:
    """Of a rank's forwards and backwards of one micro-batch, beside what they compute."""
    return 2 * job.layout.chunks * job.program.action_seconds if job.layout.pp > 1 else 0.0


def stage_costs(job: Job, work: tuple[Work, Work, Work], stages: tuple[int, ...], hop: float) -> Costs:
    """Seconds by stage of a micro-batch. work: of a block, of the first end and of the last."""
    one, first, last = work
    action = job.program.action_seconds
    forward, backward, weights = (
        [n * value for n in stages] for value in (one.forward_seconds, one.backward_seconds, one.weights)
    )
    for stage, end in ((0, first), (-1, last)):
        forward[stage] += end.forward_seconds
        backward[stage] += end.backward_seconds
        weights[stage] += end.weights
    return Costs(
        tuple(value + action for value in forward),
        tuple(b - w + action for b, w in zip(backward, weights, strict=True)), tuple(weights), hop,
    )  # fmt: skip


def balanced_blocks(job: Job) -> tuple[int, ...]:
    """Blocks of each stage of a pipeline so that its slowest is as fast as can be, by datasheets: the last stage begins
    with the head, and each block goes to the stage that has least to do. The embedding's few copies do not count."""
    rank, stages = machine.from_datasheet(job), job.layout.stages
    block, (_, head) = compute.block(job, rank), compute.ends(job, rank)
    found, load = [1] * stages, [block.seconds] * stages
    load[-1] += head.seconds
    for _ in range(job.shape.layers - stages):
        least = load.index(min(load))
        found[least] += 1
        load[least] += block.seconds
    return tuple(found)


def tied_seconds(job: Job, rank: Machine) -> float:
    """Seconds in which the pipeline's first and last rank add up the gradients of a tied embedding: half of it there,
    and half of the sum back, after the last backward."""
    size = tied_bytes(job)
    return 2 * rank.hop(size / 2) if size else 0.0


def update_bytes(recipe: Recipe) -> float:
    """Bytes that an update reads and writes for each parameter, in one kernel: gradient and weight (written only where
    there is a master copy), master copy and optimizer's states there and back. AdamW: 28."""
    master, weight = recipe.width("master"), recipe.width("weight")
    return recipe.gradient_bytes + (weight if master else 2 * weight) + 2 * (master + optimizer_width(recipe))


def owned(job: Job, held: int) -> float:
    """Parameters that a rank steps, of so many that it holds before ZeRO."""
    return held / (job.shards if job.layout.zero else 1)


def update_seconds(job: Job, rank: Machine, held: int) -> float:
    """The optimizer's step on a rank that holds so many parameters before ZeRO."""
    own = owned(job, held)
    if job.replicas.offload != "none":
        return own * update_bytes(job.recipe) / (rank.host_bytes_per_s * HOST_REACHES)
    found = job.program.update_passes * rank.rates.updated(own * update_bytes(job.recipe))
    if rank.rates.tensor_seconds:  # of a calibrated machine
        found += rank.rates.tensor_seconds * stepped(job)
    return found


def stepped(job: Job) -> float:
    """Tensors that a rank's optimizer steps: under ZeRO 1 and 2 each rank has some, under ZeRO 3 a part of each."""
    return len(tensors(job.shape)) / job.layout.pp / (job.shards if job.layout.zero in {1, 2} else 1)


def offloaded(job: Job, rank: Machine, backward: float, update: float) -> float:
    """Seconds of offload's copies that nothing hides: gradients that are still on their way to the host when a backward
    is done, of every micro-batch; new weights on their way back when the update is, and states to and from a disk."""
    how, recipe, own = job.replicas, job.recipe, owned(job, job.rank_parameters())
    if how.offload == "none":
        return 0.0
    late = after = 0.0
    if how.offload == "optimizer":  # copies of offloaded parameters, and of their gradients, are on the timeline
        late = job.layout.m * max(0.0, rank.host(own * recipe.gradient_bytes) - backward)
        after = rank.host(own * recipe.width("weight"))
    if how.offload_to == "nvme":  # what the update needs is read and written, gradients too
        master = recipe.width("master")
        read = recipe.gradient_bytes + (master or recipe.width("weight")) + optimizer_width(recipe)
        written = read + (recipe.width("weight") if master and how.offload == "parameters" else 0)
        reads, writes = rank.nvme_bytes_per_s
        after = max(after, own * (read / reads + written / writes))
    return late + max(0.0, after - update)
