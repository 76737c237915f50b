"""What optimizers store of each trained tensor, and what they allocate while they step.

adamw, momentum and sgd are torch's. adamw-8bit, lion and lion-8bit are bitsandbytes' (0.50, optim/optimizer.py): states
in fp32, or in one byte with an fp32 scale for each 256 of a tensor's numbers; tensors of fewer than 4,096 numbers stay
in fp32. adafactor is transformers' (5.24, `Adafactor`) without momentum: of a matrix one fp32 number for each row
and one for each column, of a vector one for each number. muon is torch.optim.Muon for the blocks' matrices: their
momentum; AdamW for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import NamedTuple

from scaleout.spec.recipe import Recipe

EIGHT_BIT_BLOCK = 256  # bitsandbytes, `blocksize` in init_state
EIGHT_BIT_FROM = 4096  # bitsandbytes, min_8bit_size
PAGED_FROM = 100_000  # bitsandbytes, get_state_buffer
EIGHT_BIT_BYTES = 1 + 4 / EIGHT_BIT_BLOCK

BY_TENSOR = ("adamw-8bit", "lion", "lion-8bit", "adafactor", "muon")  # whose bytes depend on more than how many weights
_MOMENTS = {"adamw-8bit": 2, "lion": 1, "lion-8bit": 1}


def stepped_width(recipe: Recipe) -> int:
    """Bytes of a number of the weights that the optimizer steps: of the fp32 copy, or of the weights."""
    if recipe.adapter != "none" and not recipe.width("master"):
        return recipe.adapter_bytes
    return recipe.width("master") or recipe.width("weight")


def optimizer_width(recipe: Recipe) -> float:
    """Bytes of optimizer state for one trained parameter of a large matrix."""
    width = stepped_width(recipe)
    if recipe.paged and recipe.optimizer == "adamw":  # bitsandbytes' states are fp32 whatever the weights are
        return 8
    return {
        "sgd": 0,
        "momentum": width,
        "adamw": 2 * width,
        "adamw-8bit": 2 * EIGHT_BIT_BYTES,
        "lion": 4,
        "lion-8bit": EIGHT_BIT_BYTES,
        "adafactor": 0,
        "muon": width,
    }[recipe.optimizer]


Sizes = Sequence[tuple[int, ...]]


class Trained(NamedTuple):
    """Dimensions of the trained tensors on one rank, in the order of the model's parameters: before the blocks, in
    them and after them."""

    before: Sizes
    blocks: Sizes
    after: Sizes

    @property
    def elements(self) -> list[int]:
        """Of each tensor."""
        return [prod(size) for part in self for size in part]

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """Of the blocks."""
        return [size for size in self.blocks if len(size) == 2]

    def from_elements(self, least: int) -> Trained:
        """The tensors of at least so many numbers."""
        return Trained(*([size for size in part if prod(size) >= least] for part in self))


def stored(trained: Trained, recipe: Recipe) -> int:
    """Bytes of optimizer state for these tensors."""
    if recipe.optimizer == "adafactor":
        return 4 * sum(sum(size) for part in trained for size in part)
    if recipe.optimizer == "muon":
        return stepped_width(recipe) * (2 * sum(trained.elements) - sum(map(prod, trained.matrices)))
    if recipe.optimizer.endswith("-8bit"):
        return _MOMENTS[recipe.optimizer] * sum(map(_eight_bit, trained.elements))
    return ceil(optimizer_width(recipe) * sum(trained.elements))


def _eight_bit(n: int) -> int:
    return 4 * n if n < EIGHT_BIT_FROM else n + 4 * ceil(n / EIGHT_BIT_BLOCK)


def temporaries(trained: Trained, recipe: Recipe, state_bytes: int) -> int:
    """Bytes that one step allocates beside the states, of which this rank has `state_bytes`.

    AdamW's denominator, of all tensors at once (foreach), or of one with a copy beside the one before; none in one
    kernel, as Megatron-LM's is. Adafactor: for each tensor in turn three fp32 tensors as large, and copies of its
    weights and gradient where these have 16 bits. Muon: a matrix's update, two of its copies in bf16 and two squares of
    its shorter side.
    """
    width = stepped_width(recipe)
    one_kernel = recipe.fused_update or recipe.paged or recipe.operations == "megatron"
    if recipe.optimizer == "adamw" and not one_kernel:
        denominator = state_bytes // 2  # as large as one of the two averages, and split with them
        return denominator if recipe.foreach else min(width * one_by_one(trained.elements), 2 * denominator)
    if recipe.optimizer == "adafactor":
        return 4 * (3 if width == 4 else 5) * max(trained.elements)
    if recipe.optimizer == "muon":
        rest = trained._replace(blocks=[size for size in trained.blocks if len(size) == 1]).elements
        steps = max((width + 4) * a * b + 4 * min(a, b) ** 2 for a, b in trained.matrices)
        return max(steps, width * (sum(rest) if recipe.foreach else one_by_one(rest)))
    return 0


def one_by_one(sizes: list[int]) -> int:
    """Elements that AdamW has at most without foreach: of a tensor's denominator, a copy of it, and the one before."""
    return max((previous + 2 * n for previous, n in zip([0, *sizes], sizes, strict=False)), default=0)
