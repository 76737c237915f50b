"""What the stages of a pipeline keep between a micro-batch's forward and its backward, in bytes, by rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from scaleout.memory.activations import Sizes, block_kept, norm_kept
from scaleout.spec.layout import Layout
from scaleout.spec.pipeline import Action
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import Shape


def stage_kept(shape: Shape, batch: int, seq: int, layers: Sequence[int], recipe: Recipe) -> list[dict[str, int]]:
    """Bytes that each stage keeps of a micro-batch of batch x seq tokens, `layers` blocks in each: "weights" until the
    weights' gradients are there, "input" only until the input's is.

    The blocks' come from `block_kept`; the last stage has the norm, the head and the log-softmax (fp32) too, the first
    the numbers of the positions (int64). The batch itself stays anyway.
    """
    z = Sizes(shape, batch, seq, recipe, Layout())
    block = sum(block_kept(z, recipe.checkpointing).values())
    found = [{"weights": n * block, "input": 0} for n in layers]
    found[0]["weights"] += 8 * seq if shape.positions == "learned" else 0
    found[-1]["weights"] += norm_kept(z) + z.y
    found[-1]["input"] = z.vocab32
    return found


def most_held(orders: Sequence[Sequence[Action]], kept: Sequence[dict[str, int]]) -> list[int]:
    """The most bytes that each rank keeps at a time, in a step of these orders, of stages that keep `kept`."""
    change = {"F": lambda k: k["weights"] + k["input"], "B": lambda k: -k["weights"] - k["input"],
              "I": lambda k: -k["input"], "W": lambda k: -k["weights"]}
    return [max(accumulate(change[action.kind](kept[action.stage]) for action in order)) for order in orders]
