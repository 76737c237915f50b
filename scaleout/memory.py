"""v1"""
from __future__ import annotations
from dataclasses import dataclass
from scaleout.layout import Layout
from scaleout.recipe import Recipe
from scaleout.states import STATES, check_layout, rank_parameters, states
from scaleout.transformer import Shape, check_run, linears

KINDS = ("weights", "master", "gradients", "optimizer", "activations", "logits", "temporaries")


@dataclass(frozen=True)
class Account:
    moments: dict[str, dict[str, int]]
    states: dict[str, int]

    @property
    def peak_moment(self) -> str:
        return max(self.moments, key=lambda moment: sum(self.moments[moment].values()))

    @property
    def peak(self) -> dict[str, int]:
        return self.moments[self.peak_moment]

    @property
    def peak_bytes(self) -> int:
        return sum(self.peak.values())


def account(shape: Shape, batch: int, seq: int, recipe: Recipe = Recipe(), layout: Layout = Layout()) -> Account:
    check_run(batch, seq)
    check_layout(shape, layout)
    held = states(shape, recipe, layout)
    c, r, T, h = recipe.width("compute"), recipe.width("stream"), batch * seq, shape.hidden
    wide, f = shape.heads * shape.d, shape.h_ff
    block = T * (2 * r * h + (c * 2 * h) + c * (3 * wide + (4 if shape.gated_mlp else 2) * f))
    if recipe.attention == "naive":
        block += c * batch * shape.heads * seq * seq
    kept = T * r * h * shape.layers if recipe.checkpointing == "full" else block * shape.layers
    logits = T * shape.vocab
    zero = {kind: held.get(kind, 0) for kind in KINDS}
    fresh = {**zero, "gradients": 0 if recipe.gradients == "fresh" else held["gradients"]}
    copies = held["weights"] // 2 if recipe.autocast else 0
    foreach = rank_parameters(shape, layout) * 4 if recipe.optimizer == "adamw" and recipe.foreach else 0
    return Account({
        "loss": {**fresh, "activations": kept, "weights": held["weights"] + copies, "logits": 12 * logits},
        "head": {**fresh, "activations": kept, "weights": held["weights"] + copies, "logits": c * logits},
        "block": {**zero, "activations": kept + (block if recipe.checkpointing == "full" else 0),
                  "temporaries": T * 4 * f},
        "optimizer": {**zero, "temporaries": foreach},
    }, held)
