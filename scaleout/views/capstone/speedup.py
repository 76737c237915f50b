"""Scaling curves of a run from 1 GPU to thousands, cheap enough to redraw while a slider moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, fsum

from scaleout.collectives import nccl
from scaleout.memory import allocator
from scaleout.memory.accounts import account
from scaleout.memory.fsdp import fsdp_account
from scaleout.spec import topology
from scaleout.spec.hardware import DEVICES, Device
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding, alike
from scaleout.spec.transformer import PRESETS, Shape, flops, total_parameters
from scaleout.timing import ddp_seconds, fsdp_seconds
from scaleout.timing.ddp import Timeline, ddp_step, queued
from scaleout.timing.fsdp_machine import Machine, machine, replica_group, shard_group

WORLDS = (1, 2, 8, 32, 128, 512, 1024, 2048, 4096)  # priced for every curve, beside the chosen one

# A step grows by the same seconds with each block once the first few are under way, so that two short models tell the
# seconds of a long one. Against the whole schedule of models of 32 to 126 blocks this is off by 8% at most, where what
# replicas all-reduce takes little longer than a block's backward and falls behind from the seventh block on; elsewhere
# by less than a hundred-thousandth (tests/).
SHORT = (2, 3)


@dataclass(frozen=True)
class Setting:
    """What is scaled. link: (GPUs in a node at most, link between nodes, its adapters for each node, RDMA, words).

    sharding: "full" (FSDP over all GPUs), "hybrid" (FSDP in each node, copies across) or "ddp". batch: sequences of
    all GPUs together; each: at most so many a GPU and pass. reached: percent of the device's peak in 16 bits.
    """

    model: str
    device: str
    world: int
    link: tuple
    sharding: str
    batch: int
    each: int
    seq: int
    checkpointing: str
    reached: float

    @property
    def shape(self) -> Shape:
        return PRESETS[self.model]

    @property
    def tokens(self) -> int:
        """Tokens a sequence: no more than the model has learned positions."""
        return self.shape.tokens(self.seq)

    def passes(self, world: int) -> tuple[int, int]:
        """(sequences a pass, passes) of one GPU when `world` of them share the global batch, rounded up."""
        share = ceil(self.batch / world)
        count = ceil(share / self.each)
        return ceil(share / count), count


@dataclass(frozen=True)
class Size:
    """One number of GPUs. exposed: share of the step; compute, wire: seconds that a GPU computes and that its messages
    take; busy: share of the places for sequences that are filled, each GPU having as many as the fullest; efficiency:
    tokens a second of a GPU over those of one alone."""

    seconds: float
    tokens_per_second: float
    exposed: float
    mfu: float
    compute: float = 0.0
    wire: float = 0.0
    busy: float = 1.0
    efficiency: float = 1.0

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Of a GPU's time: it works as one alone would, copies and updates, waits for messages, is idle."""
        waits = self.exposed * self.busy
        works = min(self.efficiency, self.busy - waits)
        return works, self.busy - waits - works, waits, 1 - self.busy


@dataclass(frozen=True)
class Curves:
    """strong: the global batch is shared; weak: each GPU has what it has at the chosen number.

    By number of GPUs. Both are measured by one GPU that makes the whole global batch in passes of `each`, as if its
    memory were large enough. weak_batch: by number, its global batch.
    """

    strong: dict[int, Size]
    weak: dict[int, Size]
    weak_batch: dict[int, int]


@lru_cache(maxsize=16)  # for both widths
def curves(setting: Setting) -> Curves:
    """The curves at WORLDS and the chosen number."""
    worlds = sorted({*WORLDS, setting.world})
    batch, count = setting.passes(setting.world)
    own = _own(setting)
    strong = {n: strong_at(setting, n) for n in worlds}
    weak = {n: _size(own, n, batch, count) for n in worlds}
    alone = strong[1].tokens_per_second
    return Curves(_shares(strong, alone), _shares(weak, alone), {n: n * batch * count for n in worlds})


def strong_at(setting: Setting, world: int) -> Size:
    """`world` GPUs share the global batch; more GPUs than sequences leave the rest idle, and in the last round those
    that get none. efficiency is left at 1."""
    busy = min(world, setting.batch)
    each, count = setting.passes(busy)
    found = _size(_own(setting), busy, each, count)
    real = setting.batch / (each * count * busy)  # of the sequences that the rounds have room for
    filled = real * busy / world
    return replace(
        found, tokens_per_second=found.tokens_per_second * real, mfu=found.mfu * filled, busy=filled
    )


def _own(setting: Setting) -> Setting:
    """What a price depends on: neither the chosen number of GPUs nor the global batch."""
    return replace(setting, world=1, batch=1, each=1)


def _shares(sizes: dict[int, Size], alone: float) -> dict[int, Size]:
    return {n: replace(one, efficiency=one.tokens_per_second / n / alone) for n, one in sizes.items()}


def nodes_of(world: int, most: int) -> tuple[int, int]:
    """(nodes, GPUs in each): as few nodes as hold `world` GPUs evenly, each of at most `most`."""
    gpus = next(g for g in range(min(most, world), 0, -1) if world % g == 0)
    return world // gpus, gpus


@lru_cache(maxsize=4096)
def _size(own: Setting, world: int, batch: int, count: int) -> Size:
    last, compute, wire, update = _pass(own, world, batch)
    # FSDP reduces after every pass, so that all passes are alike; DDP (no_sync) only after the last.
    before = compute if own.sharding == "ddp" else last
    seconds = before * (count - 1) + last + update
    waits = seconds - compute * count - update
    peak = DEVICES[own.device].matmul_flop_per_s(DEVICES[own.device].half)
    rate = batch * count * own.tokens * world / seconds
    return Size(seconds, rate, max(0.0, waits) / seconds,
                ddp_seconds.utilization(_flops(own.shape, own.tokens) * batch * count, seconds, peak),
                compute * count, wire * (1 if own.sharding == "ddp" else count))  # fmt: skip


@lru_cache(maxsize=64)
def _flops(shape: Shape, tokens: int) -> int:
    """Of forward and backward on one sequence."""
    work = flops(shape, 1, tokens)
    return work["forward"] + work["backward"]


@lru_cache(maxsize=4096)
def _pass(own: Setting, world: int, batch: int) -> tuple[float, float, float, float]:
    """Seconds of a pass that communicates, of its compute, of its messages, of the update; from two short models."""
    shape, device = own.shape, DEVICES[own.device]
    cluster = _cluster(own, world)
    if own.sharding == "ddp":
        long = _ddp(own, shape, batch, device, cluster)
    else:
        low, high = SHORT
        a, b = (_fsdp(own, _short(shape, n), batch, device, cluster) for n in SHORT)
        long = tuple(x + (shape.layers - low) * (y - x) / (high - low) for x, y in zip(a, b, strict=True))
    shards = {"full": world, "hybrid": cluster.gpus_per_node, "ddp": 1}[own.sharding]
    return *long, total_parameters(shape) / shards * ddp_seconds.ADAMW_BYTES / device.memory_bytes_per_s


@lru_cache(maxsize=64)
def _short(shape: Shape, layers: int) -> Shape:
    return replace(shape, layers=layers)


@lru_cache(maxsize=512)
def _cluster(own: Setting, world: int) -> topology.Cluster:
    most, across, adapters, rdma, _ = own.link
    return topology.cluster(*nodes_of(world, most), DEVICES[own.device].link, across, adapters, rdma)


def starts(setting: Setting) -> float:
    """Seconds of a step of the chosen number that messages take however few bytes they have: rings hand a first byte
    from GPU to GPU."""
    n, own = setting.world, _own(setting)
    return 0.0 if n == 1 else _starts(own, n) * (1 if own.sharding == "ddp" else setting.passes(n)[1])


@lru_cache(maxsize=64)
def _starts(own: Setting, world: int) -> float:
    """Of a pass. FSDP gathers each unit twice, but the root once, and reduces it once."""
    cluster = _cluster(own, world)
    if own.sharding == "ddp":
        return _latency(
            "all_reduce", _ddp_alone(own.shape, own.tokens, own.checkpointing).message_bytes, cluster
        )
    sharding = _sharding(own, cluster)
    group = shard_group(cluster, sharding.ranks)
    found = 0.0
    for unit, times in alike(own.shape, sharding):
        whole = unit.shard(sharding.ranks) * sharding.ranks
        if sharding.ranks > 1:
            found += times * (1 + bool(unit.name)) * _latency("all_gather", (2.0 * whole,), group)
            found += times * _latency("reduce_scatter", (4.0 * whole,), group)
        if sharding.replicas > 1:
            across = replica_group(cluster, sharding.ranks)
            found += times * _latency("all_reduce", (4.0 * whole / sharding.ranks,), across)
    return found


def _latency(collective: str, sizes: tuple[float, ...], on: topology.Cluster) -> float:
    return sum(
        times * nccl.price(collective, size, on).cost.latency_seconds
        for size, times in Counter(sizes).items()
    )


def _sharding(own: Setting, cluster: topology.Cluster) -> Sharding:
    ranks = cluster.ranks if own.sharding == "full" else cluster.gpus_per_node
    return Sharding(ranks=ranks, replicas=cluster.ranks // ranks, parameter="bf16")


Seconds = tuple[float, float, float]  # of a pass, of its compute, of its messages


def _fsdp(own: Setting, shape: Shape, batch: int, device: Device, cluster: topology.Cluster) -> Seconds:
    sharding = _sharding(own, cluster)
    on = _machine(device, cluster, sharding, own.reached)
    found = fsdp_seconds.schedule(on, shape, batch, own.tokens, sharding, own.checkpointing)
    return found.seconds - found.update_seconds, found.compute_seconds, found.communication_seconds


@lru_cache(maxsize=512)
def _machine(device: Device, cluster: topology.Cluster, sharding: Sharding, reached: float) -> Machine:
    """Kept, because it remembers what messages cost."""
    return machine(device, cluster, sharding, dtype=device.half, efficiency=reached / 100)


def _ddp(own: Setting, shape: Shape, batch: int, device: Device, cluster: topology.Cluster) -> Seconds:
    """Whatever computes takes as many times longer as there are sequences, on a faster device as many times shorter."""
    factor = batch / (device.matmul_flop_per_s(device.half) * own.reached / 100)
    alone = _ddp_alone(shape, own.tokens, own.checkpointing)
    compute = factor * alone.compute_seconds
    messages = queued([factor * at for at in alone.ready], _messages(cluster, alone.message_bytes))
    return max(compute, messages[-1][1]), compute, fsum(end - start for start, end in messages)


@lru_cache(maxsize=64)
def _ddp_alone(shape: Shape, seq: int, checkpointing: str) -> Timeline:
    """One sequence at 1 FLOP/s."""
    return ddp_step(ddp_seconds.layers(shape, 1, seq, 1.0, 4, checkpointing), lambda size: 0.0)


@lru_cache(maxsize=512)
def _messages(cluster: topology.Cluster, sizes: tuple[float, ...]) -> list[float]:
    """Seconds of each all-reduce."""
    return [*map(nccl.seconds("all_reduce", cluster), sizes)]


def groups(setting: Setting, kind: str) -> tuple[int, int]:
    """(ranks that share a copy of the model, copies) at the chosen number of GPUs."""
    ranks = {"full": setting.world, "hybrid": nodes_of(setting.world, setting.link[0])[1], "ddp": 1}[kind]
    return ranks, setting.world // ranks


def fits(setting: Setting, kind: str) -> bool:
    """Whether one GPU holds its share of a step, and what the driver and the allocator take beside it."""
    room = allocator.room(DEVICES[setting.device].memory_bytes)
    states = (
        16 * total_parameters(setting.shape) / groups(setting, kind)[0]
    )  # fp32 weights, gradients, two moments
    return states <= room and held(setting, kind) <= room


def held(setting: Setting, kind: str) -> int:
    """Bytes of one GPU at the peak of a pass, by the memory model: bf16 gathered and computed in, fp32 stored."""
    return _held(
        _own(setting), kind, groups(setting, kind), setting.passes(min(setting.world, setting.batch))[0]
    )


@lru_cache(maxsize=256)
def _held(own: Setting, kind: str, group: tuple[int, int], batch: int) -> int:
    if kind == "ddp":
        recipe = Recipe(precision="autocast-bf16", checkpointing=own.checkpointing, buckets="views")
        return account(own.shape, batch, own.tokens, recipe).peak_bytes
    recipe = Recipe(precision="fp32", checkpointing=own.checkpointing)
    return fsdp_account(own.shape, batch, own.tokens, recipe, Sharding(*group, parameter="bf16")).peak_bytes
