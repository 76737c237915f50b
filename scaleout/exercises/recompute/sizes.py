"""The model that the exercises of `recompute` share: what a block keeps, and what it takes to make it again."""

from __future__ import annotations

from dataclasses import replace

from scaleout.memory.activations import Sizes
from scaleout.memory.recompute import Policy, Tile, none, tiles
from scaleout.spec.devices import DEVICES, GB
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing import compute, machine
from scaleout.timing import recompute as timing

SHAPE, SEQ = PRESETS["llama-3-8b"], 8192
NAME = "Llama 3 8B"
RECIPE, LAYOUT = Recipe("bf16-master"), Layout()
H100 = DEVICES["h100-sxm"]
CHEAP = ("norm 1", "copy", "norm 2", "SiLU", "product")  # kernels that are bound by memory: no product among them


def job(attention: str = "sdpa", seq: int = SEQ) -> Job:
    """One sequence on one GPU, by Megatron-LM."""
    shape = replace(SHAPE, max_seq=max(seq, SHAPE.max_seq))
    return Job(shape, seq, H100, cluster(1, 1), 1, LAYOUT, replace(RECIPE, attention=attention))


def sizes(attention: str = "sdpa", seq: int = SEQ) -> Sizes:
    """Its activations."""
    return timing.sizes(job(attention, seq))


def named(attention: str = "sdpa") -> dict[str, Tile]:
    """A block's tiles."""
    return {tile.name: tile for tile in tiles(sizes(attention))}


def cost(attention: str = "sdpa", *names: str) -> tuple[float, float]:
    """(bytes, seconds on an H100) of some tiles of a block."""
    block_job = job(attention)
    block_tiles, phases = named(attention), timing.phases(block_job, machine.from_datasheet(block_job))
    return sum(block_tiles[name].bytes for name in names), sum(phases[name].seconds for name in names)


def forward_seconds(seq: int = SEQ) -> float:
    """Seconds of a block's forward."""
    block_job = job(seq=seq)
    return compute.block(block_job, machine.from_datasheet(block_job)).forward.seconds


def leaves(seq: int) -> float:
    """Bytes per second at which a block's tiles would have to leave to be gone when its forward is over."""
    return sum(tile.bytes for tile in tiles(sizes(seq=seq))) / forward_seconds(seq)


def longer(policy: Policy) -> float:
    """How much longer a whole step is with FSDP on a node of 8 H100, head and all."""
    sharded = job().other(cluster=cluster(1, 8), zero=3)
    return timing.step(sharded, policy).seconds / timing.step(sharded, none(sizes())).seconds - 1


X = named()["block input"].bytes
BLOCK = sum(tile.bytes for tile in named().values())
FORWARD = forward_seconds()


def gb(size: float, digits: int = 2) -> str:
    return f"{size / GB:.{digits}f} GB"
