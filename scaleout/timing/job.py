"""The step time of a job, as a sum of parts: the one model that every page, lab and search uses.

A micro-batch in a block and in the ends (`compute`) on one rank (`machine`); blocks in a row, or in the order of a
pipeline (`pipeline`); what replicas send beside it (`exchange`, `pipeline_exchange`); the update, what the host takes
for itself, and what all wait for the slowest rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import fsum, log2

from scaleout.collectives.job import hop_bytes, tied_bytes
from scaleout.memory.job import rank_account
from scaleout.memory.optimizers import optimizer_width
from scaleout.spec import checks
from scaleout.spec.adapters import gradient_bytes
from scaleout.spec.devices import Device
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.pipeline import stages_of
from scaleout.spec.program import Program
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import tensors
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import Shape, flops
from scaleout.timing import compute, exchange, machine, muon, pipeline, pipeline_exchange
from scaleout.timing.compute import Work
from scaleout.timing.ddp import Timeline
from scaleout.timing.fsdp_short import ShortTimeline
from scaleout.timing.machine import Machine
from scaleout.timing.pipeline import Costs, Summary

# Parts of a step, in the order in which they are listed.
PARTS = ("compute", "recompute", "launches", "exposed tensor", "exposed context", "imbalance", "bubble", "hops",
         "exposed data", "update", "exposed host", "host", "stragglers")  # fmt: skip

# Share of the host memory's rate that an AdamW on its cores reaches: fitted once, to 1e9 parameters in 0.22 s on two
# sockets of six channels of DDR4-2666 (ZeRO-Offload, arXiv 2101.06840, table 4, CPU-Adam).
HOST_REACHES = 0.5


ALONE = cluster(1, 1, "nvlink4")  # a GPU that sends nothing


@dataclass(frozen=True)
class Step:
    """One step of a job. `parts` (PARTS) are seconds and add up to `seconds`. compute, recompute, launches and what is
    exposed of tensor and context parallelism are the mean over a pipeline's ranks, and launches those of what is
    computed for the first time; imbalance is what its busiest rank has more, bubble and hops what that one waits;
    exposed host is copies of offloaded states that neither backward nor update hides (offloaded weights travel with the
    gathers, in exposed data); host is what a step takes whatever its size; stragglers is what all ranks wait for the
    slowest.

    mfu: model FLOPs, forward and backward, by seconds and the datasheet's peak of all ranks (PaLM, arXiv 2204.02311,
    appendix B), of experts those that a token passes through; hfu with recomputation. Both count all scores of
    attention, of which causal kernels compute half and windows fewer: of long sequences they may come near 1, or pass
    it. work: a micro-batch in a block, in the first end and in the last. timeline: the lanes of a step without a
    pipeline; pipeline, costs: of one with it.
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
        """Tokens per second of all ranks."""
        return self.job.tokens_per_step / self.seconds

    @property
    def crowded(self) -> float:
        """Seconds where ranks share a CPU's cores, on a machine measured with all of them at work: one that waits for
        another leaves its core to it, and neither bubble nor imbalance shows."""
        return self.seconds - self.parts["bubble"] - self.parts["imbalance"]

    @property
    def mfu(self) -> float:
        return utilization(self.job, self.seconds, "forward", "backward")

    @property
    def hfu(self) -> float:
        return utilization(self.job, self.seconds, "forward", "backward", "recompute")


def utilization(job: Job, seconds: float, *kinds: str) -> float:
    """FLOPs of these kinds in a step of so many seconds, by the datasheet's peak of all ranks.

    Under adapters the weights have no gradients, and the backward has no more of their matrix multiplications than the
    forward; the adapters' own are not counted.
    """
    counts = flops(job.shape, job.sequences, job.seq, job.recipe.checkpointing)
    if job.recipe.adapter != "none":
        counts["backward"] -= counts["forward"] - flops(job.shape, job.sequences, job.seq, "selective")["recompute"]
    return sum(counts[kind] for kind in kinds) / seconds / job.peak_flop_per_s / job.layout.ranks


@lru_cache(maxsize=64)
def step(job: Job) -> Step:
    """A step of the job by datasheets. ValueError, in one line, for groups of ranks that nodes cannot hold."""
    checks.instance("job", job, Job)
    rank, layout = machine.from_datasheet(job), job.layout
    if layout.tp > 1 or layout.cp > 1:
        return _step(job, rank, (compute.block(job, rank), *compute.ends(job, rank)))
    micro_batch = job.shape, job.seq, job.device, job.batch, job.recipe, job.program, job.tf32, job.sharded
    return _step(job, rank, _whole(*micro_batch))


@lru_cache(maxsize=64)  # a curve over numbers of GPUs asks for it at each
def _whole(
    shape: Shape, seq: int, device: Device, batch: int, recipe: Recipe, program: Program, tf32: bool, sharded: bool
) -> tuple[Work, Work, Work]:
    """A micro-batch in a block and in both ends, on a GPU that has them whole: the same in any cluster."""
    layout = Layout(zero=3 if sharded else 0)
    job = Job(shape, seq, device, ALONE, batch, layout, recipe, program, tf32=tf32)
    rank = machine.from_datasheet(job)
    return compute.block(job, rank), *compute.ends(job, rank)


def step_on(job: Job, rank: Machine, block: Work | None = None) -> Step:
    """A step of the job on a machine of one's own, such as a calibrated one. block: of a micro-batch, where it is not
    as the job's recipe has it (`recompute`)."""
    return _step(job, rank, (block or compute.block(job, rank), *compute.ends(job, rank)))


def _step(job: Job, rank: Machine, work: tuple[Work, Work, Work]) -> Step:
    partial = _without_pipeline(job, rank, work) if job.layout.pp == 1 else _pipelined(job, rank, work)
    parts = partial.parts | {"host": job.program.step_seconds}
    parts["stragglers"] = straggling(job) * fsum(parts.values())
    parts = {name: parts[name] for name in PARTS}
    seconds, timeline = fsum(parts.values()), partial.timeline
    if isinstance(timeline, Timeline):
        timeline = timeline.ended(parts["update"], seconds)
    return replace(partial, parts=parts, seconds=seconds, timeline=timeline)


def straggling(job: Job) -> float:
    """By what share of a step all ranks wait for the slowest."""
    return job.program.jitter * log2(job.cluster.nodes)


def _without_pipeline(job: Job, rank: Machine, work: tuple[Work, Work, Work]) -> Step:
    """Without a pipeline."""
    data, m = exchange.schedule(job, rank, work), job.layout.m
    block, first, last = work
    busy = m * (job.shape.layers * block.seconds + first.seconds + last.seconds)
    shares = {name: m * seconds for name, seconds in overheads(work, job.shape.layers).items()}
    parts = {
        "compute": busy - fsum(shares.values()),
        **shares,
        "imbalance": 0.0,
        "bubble": 0.0,
        "hops": 0.0,
        "exposed data": data.exposed,
    }
    parts["update"] = update_seconds(job, rank, job.trained_parameters())
    backward = m * (job.shape.layers * block.backward_seconds + first.backward_seconds + last.backward_seconds)
    parts["exposed host"] = offloaded(job, rank, backward + data.exposed - data.gathered, parts["update"])
    if job.recipe.activation_offload:
        parts["exposed host"] += activations_offloaded(job, rank, busy - backward, backward)
    return Step(job, 0.0, parts, work, data.communication, data.timeline)


def _pipelined(job: Job, rank: Machine, work: tuple[Work, Work, Work]) -> Step:
    layout, stages = job.layout, job.stages
    hop = rank.hop(hop_bytes(job))
    costs = stage_costs(job, work, stages, hop)
    schedule = layout.schedule, layout.pp, layout.m, layout.chunks
    run, bare = pipeline.summary(*schedule, costs), pipeline.seconds(*schedule, replace(costs, hop=0.0))
    mean, busiest = fsum(run.work) / layout.pp, max(run.work)
    shares = {name: layout.m / layout.pp * seconds for name, seconds in overheads(work, job.shape.layers).items()}
    actions = layout.m * action_seconds(job)
    parameters = [job.rank_parameters(stage) for stage in range(layout.pp)]
    forward, backward = (
        fsum(by_stage[stage] for stage in stages_of(layout.schedule, 0, layout.pp, layout.chunks))
        for by_stage in (costs.forward, costs.backward)
    )
    data, sent = pipeline_exchange.seconds(job, rank, parameters[0], forward, backward)
    parts = {
        "compute": mean - fsum(shares.values()) - actions,
        **shares,
        "imbalance": busiest - mean,
        "bubble": bare - busiest,
        "hops": run.seconds - bare + actions + tied_seconds(job, rank),
        "exposed data": data,
        "update": update_seconds(job, rank, max(job.trained_parameters(stage) for stage in range(layout.pp))),
        "exposed host": 0.0,
    }
    return Step(job, 0.0, parts, work, sent, None, run, costs)


def overheads(work: tuple[Work, Work, Work], blocks: int) -> dict[str, float]:
    """Seconds of a micro-batch through the whole model that are no compute done for the first time, by part."""
    parts = list(zip((blocks, 1, 1), work, strict=True))
    return {
        "recompute": fsum(n * part.recompute for n, part in parts),
        "launches": fsum(n * part.launches for n, part in parts),
        "exposed tensor": fsum(n * part.exposed for n, part in parts),
        "exposed context": fsum(n * fsum(part.context) for n, part in parts),
    }


def action_seconds(job: Job) -> float:
    """Seconds that a rank's forwards and backwards of one micro-batch take beside what they compute."""
    return 2 * job.layout.chunks * job.program.action_seconds if job.layout.pp > 1 else 0.0


def stage_costs(job: Job, work: tuple[Work, Work, Work], stages: tuple[int, ...], hop: float) -> Costs:
    """Seconds by stage of a micro-batch. work: of a block, of the first end and of the last."""
    block, first, last = work
    action = job.program.action_seconds
    forward, backward, weights = (
        [n * value for n in stages] for value in (block.forward_seconds, block.backward_seconds, block.weights)
    )
    for stage, end in ((0, first), (-1, last)):
        forward[stage] += end.forward_seconds
        backward[stage] += end.backward_seconds
        weights[stage] += end.weights
    return Costs(
        tuple(value + action for value in forward),
        tuple(b - w + action for b, w in zip(backward, weights, strict=True)),
        tuple(weights),
        hop,
    )


def balanced_blocks(job: Job) -> tuple[int, ...]:
    """Blocks of each stage of a pipeline so that its slowest is as fast as can be, by datasheets: the last stage begins
    with the head, and each block goes to the stage that has least to do. The embedding's few copies do not count."""
    rank, stages = machine.from_datasheet(job), job.layout.stages
    block, (_, head) = compute.block(job, rank), compute.ends(job, rank)
    blocks, load = [1] * stages, [block.seconds] * stages
    load[-1] += head.seconds
    for _ in range(job.shape.layers - stages):
        least = load.index(min(load))
        blocks[least] += 1
        load[least] += block.seconds
    return tuple(blocks)


def tied_seconds(job: Job, rank: Machine) -> float:
    """Seconds in which the pipeline's first and last rank reduce the gradients of a tied embedding: half of it there,
    and half of the sum back, after the last backward."""
    size = tied_bytes(job)
    return 2 * rank.hop(size / 2) if size else 0.0


# Bytes that transformers' Adafactor moves for each number of a matrix beside gradient and weight, in operations of its
# own in fp32: the gradient is widened and squared, its means by row and by column are taken and multiplied out, and the
# update is scaled by its own root mean square (transformers 5.24, optimization.py, Adafactor.step).
ADAFACTOR_BYTES = 4 * (1 + 2 + 2 + 2 + 1 + 3 + 3 + 2 + 2 + 3)

# Optimizers that are one kernel for a tensor whatever the program: bitsandbytes' (0.50, optim/optimizer.py).
ONE_KERNEL = ("adamw-8bit", "lion", "lion-8bit")


def update_bytes(recipe: Recipe) -> float:
    """Bytes that an update reads and writes for each parameter, in one kernel: gradient and weight (written only where
    there is a master copy), master copy and optimizer's states there and back. AdamW: 28."""
    master, weight = recipe.width("master"), recipe.width("weight")
    if recipe.adapter != "none":
        weight = recipe.adapter_bytes
    beside = ADAFACTOR_BYTES if recipe.optimizer == "adafactor" else 0
    return gradient_bytes(recipe) + (weight if master else 2 * weight) + 2 * (master + optimizer_width(recipe)) + beside


def update_passes(job: Job) -> float:
    """Times that an update moves those bytes: as the program has it, or in one kernel for each tensor."""
    recipe = job.recipe
    one = recipe.fused_update or recipe.paged or recipe.optimizer in (*ONE_KERNEL, "adafactor")
    return 1.0 if one else job.program.update_passes


def owned(job: Job, parameters: int) -> float:
    """Parameters that a rank steps, of so many that it holds before ZeRO."""
    return parameters / (job.shards if job.layout.zero else 1)


def update_seconds(job: Job, rank: Machine, parameters: int) -> float:
    """The optimizer's step on a rank that holds so many parameters before ZeRO."""
    count = owned(job, parameters)
    if job.replicas.offload != "none":
        return count * update_bytes(job.recipe) / (rank.host_bytes_per_s * HOST_REACHES)
    seconds = update_passes(job) * rank.rates.updated(count * update_bytes(job.recipe))
    if job.recipe.optimizer == "muon" and job.recipe.adapter == "none":
        seconds += fsum(muon.seconds(job).values()) / job.layout.pp  # each stage has its own matrices
    if rank.exchange and job.recipe.optimizer == "adamw" and job.recipe.foreach:
        tensor, parameter = rank.exchange.update
        return len(tensors(job.shape)) * tensor + count * parameter
    if rank.rates.tensor_seconds:  # of a calibrated machine
        seconds += rank.rates.tensor_seconds * stepped(job)
    return seconds


def stepped(job: Job) -> float:
    """Tensors that a rank's optimizer steps: under ZeRO 1 and 2 each rank has some, under ZeRO 3 a part of each."""
    return len(tensors(job.shape)) / job.layout.pp / (job.shards if job.layout.zero in {1, 2} else 1)


def activations_offloaded(job: Job, rank: Machine, forward: float, backward: float) -> float:
    """Seconds of the copies of saved activations to the host and back that neither direction of a step hides, all
    micro-batches together: what is saved at the end of a forward, as the account of memory has it."""
    saved = rank_account(job.other(activation_offload=False)).moments["forward"]["activations"]
    copies = job.layout.m * rank.host(saved)
    return max(0.0, copies - forward) + max(0.0, copies - backward)


def offloaded(job: Job, rank: Machine, backward: float, update: float) -> float:
    """Seconds of offload's copies that nothing hides: gradients that are still on their way to the host when all
    backwards of a step are done, which take `backward` seconds with what they wait for; new weights on their way back
    when the update is, and states to and from a disk."""
    replicas, recipe = job.replicas, job.recipe
    if replicas.offload == "none":
        return 0.0
    parameters = owned(job, job.trained_parameters())
    gradients = weights = 0.0
    if replicas.offload == "optimizer":  # copies of offloaded parameters, and of their gradients, are on the timeline
        gradients = max(0.0, job.layout.m * rank.host(parameters * recipe.gradient_bytes) - backward)
        weights = rank.host(parameters * recipe.width("weight"))
    if replicas.offload_to == "nvme":  # what the update needs is read and written, gradients too
        master = recipe.width("master")
        read = recipe.gradient_bytes + (master or recipe.width("weight")) + optimizer_width(recipe)
        written = read + (recipe.width("weight") if master and replicas.offload == "parameters" else 0)
        reads, writes = rank.nvme_bytes_per_s
        weights = max(weights, parameters * (read / reads + written / writes))
    return gradients + max(0.0, weights - update)
