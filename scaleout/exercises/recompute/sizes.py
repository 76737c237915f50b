"""The model that the exercises of `recompute` share: what a block keeps, and what it takes to make it again."""

from __future__ import annotations

from dataclasses import replace

from scaleout.memory.activations import Sizes
from scaleout.memory.recompute import Policy, Tile, tiles
from scaleout.spec.hardware import DEVICES, GB
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing.recompute import seconds, step
from scaleout.timing.tensor_machine import machine

SHAPE, SEQ = PRESETS["llama-3-8b"], 8192
NAME = "Llama 3 8B"
RECIPE, LAYOUT = Recipe("bf16-master"), Layout()
H100 = machine(DEVICES["h100-sxm"], cluster(1, 1), LAYOUT)
CHEAP = ("norm 1", "copy", "norm 2", "SiLU", "product")  # kernels that are bound by memory: no product among them


def sizes(attention: str = "sdpa", seq: int = SEQ) -> Sizes:
    """One sequence on one GPU."""
    shape = replace(SHAPE, max_seq=max(seq, SHAPE.max_seq))
    return Sizes(shape, 1, seq, replace(RECIPE, attention=attention), LAYOUT)


def named(attention: str = "sdpa") -> dict[str, Tile]:
    """A block's tiles."""
    return {tile.name: tile for tile in tiles(sizes(attention))}


def took(attention: str = "sdpa", *names: str) -> tuple[float, float]:
    """(bytes, seconds on an H100) of some tiles of a block."""
    z, found = sizes(attention), named(attention)
    return (sum(found[name].bytes for name in names), sum(seconds(z, found[name], H100) for name in names))


def forward_seconds(seq: int = SEQ) -> float:
    """Seconds of a block's forward: all tiles, and the last product, which leaves none."""
    z = sizes(seq=seq)
    rows, columns = z.matrices["down"]
    return sum(seconds(z, tile, H100) for tile in tiles(z)) + 2 * z.tokens * rows * columns / H100.flop_per_s


def leaves(seq: int) -> float:
    """Bytes a second at which a block's tiles would have to leave to be gone when its forward is over."""
    return sum(tile.bytes for tile in tiles(sizes(seq=seq))) / forward_seconds(seq)


def longer(policy: Policy) -> float:
    """How much longer a whole step is on an H100, head and all."""
    return step(SHAPE, 1, SEQ, RECIPE, LAYOUT, H100, policy).share


X = named()["block input"].bytes
BLOCK = sum(tile.bytes for tile in named().values())
FORWARD = forward_seconds()


def gb(size: float, digits: int = 2) -> str:
    return f"{size / GB:.{digits}f} GB"
