"""Scaling curves of a run from 1 GPU to thousands, cheap enough to redraw while a slider moves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from scaleout.collectives import nccl
from scaleout.memory import allocator
from scaleout.memory.accounts import account
from scaleout.memory.fsdp import fsdp_account
from scaleout.spec import topology
from scaleout.spec.hardware import DEVICES, Device
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import PRESETS, Shape, flops, total_parameters
from scaleout.timing import fsdp_seconds, step
from scaleout.timing.ddp import Timeline, ddp_step, queued
from scaleout.timing.fsdp_machine import Machine, machine

WORLDS = (1, 2, 8, 32, 128, 512, 1024, 2048, 4096)  # priced for every curve, beside the chosen one

# A step grows by the same seconds with each block once the first few are under way, so that two short models tell the
# seconds of a long one. Against the whole schedule of models of 32 to 126 blocks this is off by 1.3% at most, where
# gathers and reduce-scatters of a node compete with replicas; elsewhere by less than a millionth (tests/).
SHORT = (3, 4)


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
    """One number of GPUs. exposed: share of the step; efficiency: tokens a second of a GPU over those of one alone."""

    seconds: float
    tokens_per_second: float
    exposed: float
    mfu: float
    efficiency: float = 1.0


@dataclass(frozen=True)
class Curves:
    """strong: the global batch is shared; weak: each GPU has what it has at the chosen number; ddp: weak, by DDP,
    empty where a copy on each GPU does not fit.

    By number of GPUs. One GPU counts as if its memory were large enough. weak_batch: by number, its global batch.
    """

    strong: dict[int, Size]
    weak: dict[int, Size]
    ddp: dict[int, Size]
    weak_batch: dict[int, int]


@lru_cache(maxsize=16)  # for both widths
def curves(setting: Setting) -> Curves:
    """The curves at WORLDS and the chosen number."""
    worlds = sorted({*WORLDS, setting.world})
    batch, count = setting.passes(setting.world)
    own = _own(setting)
    weak = {n: _size(own, n, batch, count) for n in worlds}
    shown = setting.sharding == "ddp" or fits(setting, "ddp")
    ddp = {n: _size(replace(own, sharding="ddp"), n, batch, count) for n in worlds} if shown else {}
    strong = {n: strong_at(setting, n) for n in worlds}
    return Curves(_shares(strong), _shares(weak), _shares(ddp), {n: n * batch * count for n in worlds})


def strong_at(setting: Setting, world: int) -> Size:
    """`world` GPUs share the global batch; more GPUs than sequences leave the rest idle, and in the last round those
    that get none. efficiency is left at 1."""
    busy = min(world, setting.batch)
    each, count = setting.passes(busy)
    found = _size(_own(setting), busy, each, count)
    real = setting.batch / (each * count * busy)  # of the sequences that the rounds have room for
    return replace(found, tokens_per_second=found.tokens_per_second * real, mfu=found.mfu * real * busy / world)


def _own(setting: Setting) -> Setting:
    """What a price depends on: neither the chosen number of GPUs nor the global batch."""
    return replace(setting, world=1, batch=1, each=1)


def _shares(sizes: dict[int, Size]) -> dict[int, Size]:
    if not sizes:
        return {}
    alone = sizes[1].tokens_per_second
    return {n: replace(one, efficiency=one.tokens_per_second / n / alone) for n, one in sizes.items()}


def nodes_of(world: int, most: int) -> tuple[int, int]:
    """(nodes, GPUs in each): as few nodes as hold `world` GPUs evenly, each of at most `most`."""
    gpus = next(g for g in range(min(most, world), 0, -1) if world % g == 0)
    return world // gpus, gpus


@lru_cache(maxsize=4096)
def _size(own: Setting, world: int, batch: int, count: int) -> Size:
    last, compute, update = _pass(own, world, batch)
    # FSDP reduces after every pass, so that all passes are alike; DDP (no_sync) only after the last.
    before = compute if own.sharding == "ddp" else last
    seconds = before * (count - 1) + last + update
    waits = seconds - compute * count - update
    peak = DEVICES[own.device].matmul_flop_per_s(DEVICES[own.device].half)
    rate = batch * count * own.tokens * world / seconds
    return Size(seconds, rate, max(0.0, waits) / seconds,
                step.utilization(_flops(own.shape, own.tokens) * batch * count, seconds, peak))  # fmt: skip


@lru_cache(maxsize=64)
def _flops(shape: Shape, tokens: int) -> int:
    """Of forward and backward on one sequence."""
    work = flops(shape, 1, tokens)
    return work["forward"] + work["backward"]


@lru_cache(maxsize=4096)
def _pass(own: Setting, world: int, batch: int) -> tuple[float, float, float]:
    """(seconds of a pass that communicates, of its compute, of the update), from two short models."""
    shape, device = own.shape, DEVICES[own.device]
    most, across, adapters, rdma, _ = own.link
    nodes, gpus = nodes_of(world, most)
    cluster = topology.cluster(nodes, gpus, device.link, across, adapters, rdma)
    if own.sharding == "ddp":
        long = _ddp(own, shape, batch, device, cluster)
    else:
        low, high = SHORT
        a, b = (_fsdp(own, replace(shape, layers=n), batch, device, cluster) for n in SHORT)
        long = tuple(x + (shape.layers - low) * (y - x) / (high - low) for x, y in zip(a, b, strict=True))
    shards = {"full": world, "hybrid": gpus, "ddp": 1}[own.sharding]
    return *long, total_parameters(shape) / shards * step.ADAMW_BYTES / device.memory_bytes_per_s


def _fsdp(own: Setting, shape: Shape, batch: int, device: Device, cluster: topology.Cluster) -> tuple[float, float]:
    ranks = cluster.ranks if own.sharding == "full" else cluster.gpus_per_node
    sharding = Sharding(ranks=ranks, replicas=cluster.ranks // ranks, parameter="bf16")
    on = _machine(device, cluster, sharding, own.reached)
    found = fsdp_seconds.schedule(on, shape, batch, own.tokens, sharding, own.checkpointing)
    return found.seconds - found.update_seconds, found.compute_seconds


@lru_cache(maxsize=512)
def _machine(device: Device, cluster: topology.Cluster, sharding: Sharding, reached: float) -> Machine:
    """Kept, because it remembers what messages cost."""
    return machine(device, cluster, sharding, dtype=device.half, efficiency=reached / 100)


def _ddp(own: Setting, shape: Shape, batch: int, device: Device, cluster: topology.Cluster) -> tuple[float, float]:
    """Whatever computes takes as many times longer as there are sequences, on a faster device as many times shorter."""
    factor = batch / (device.matmul_flop_per_s(device.half) * own.reached / 100)
    alone = _ddp_alone(shape, own.tokens, own.checkpointing)
    compute = factor * alone.compute_seconds
    messages = queued([factor * at for at in alone.ready], _messages(cluster, alone.message_bytes))
    return max(compute, messages[-1][1]), compute


@lru_cache(maxsize=16)
def _ddp_alone(shape: Shape, seq: int, checkpointing: str) -> Timeline:
    """One sequence at 1 FLOP/s."""
    return ddp_step(step.layers(shape, 1, seq, 1.0, 4, checkpointing), lambda size: 0.0)


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
    states = 16 * total_parameters(setting.shape) / groups(setting, kind)[0]  # fp32 weights, gradients, two moments
    return states <= room and held(setting, kind) <= room


def held(setting: Setting, kind: str) -> int:
    """Bytes of one GPU at the peak of a pass, by the memory model: bf16 gathered and computed in, fp32 stored."""
    return _held(_own(setting), kind, groups(setting, kind), setting.passes(min(setting.world, setting.batch))[0])


@lru_cache(maxsize=256)
def _held(own: Setting, kind: str, group: tuple[int, int], batch: int) -> int:
    if kind == "ddp":
        recipe = Recipe(precision="autocast-bf16", checkpointing=own.checkpointing, buckets="views")
        return account(own.shape, batch, own.tokens, recipe).peak_bytes
    recipe = Recipe(precision="fp32", checkpointing=own.checkpointing)
    return fsdp_account(own.shape, batch, own.tokens, recipe, Sharding(*group, parameter="bf16")).peak_bytes
