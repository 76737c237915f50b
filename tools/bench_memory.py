"""Print how far the memory model is from what torch allocates, beside accelerate's estimate-memory.

    .venv/bin/python tools/bench_memory.py [--cases 64] [--seed 2026] [--smallest]

The truth is a training step on fake tensors (`scaleout.measure.memory`). The cases are random with a fixed seed;
tests/memory/test_truth.py holds the model to 2% on the same ones.
"""

from __future__ import annotations

import random
import statistics
import sys
from dataclasses import dataclass

import launching

from scaleout.measure.memory import measure
from scaleout.memory.accounts import KINDS, Account, Recipe, account
from scaleout.spec.recipe import CHOICES
from scaleout.spec.transformer import Shape

CASES, SEED, TOLERANCE = 64, 2026, 0.02
# What the book's own training loop has on a CPU, by field of a recipe.
HERE = {name: CHOICES[name] for name in ("precision", "checkpointing")}
HERE |= {"attention": ("sdpa", "naive"), "gradients": ("fresh", "kept")}


@dataclass(frozen=True)
class Case:
    """One step to measure."""

    shape: Shape
    batch: int
    seq: int
    recipe: Recipe

    @property
    def name(self) -> str:
        """What makes the case, in short."""
        s, r = self.shape, self.recipe
        style = ("llama" if s.norm == "rmsnorm" else "gpt") + ("-tied" if s.tied_head else "")
        words = [
            style,
            f"L{s.layers}h{s.hidden}a{s.heads}k{s.kv}V{s.vocab}",
            f"b{self.batch}s{self.seq}",
            r.precision,
            r.optimizer + ("" if r.foreach else "-loop"),
            r.attention,
            r.checkpointing,
            r.gradients,
        ]
        return " ".join(words + ([f"dropout {r.dropout}"] if r.dropout else []))


def random_shape(dice: random.Random) -> Shape:
    """GPT- or Llama-style, with any MLP width, grouped heads, tied or untied head."""
    heads, width = dice.choice((2, 4, 8)), dice.choice((16, 32, 64))
    hidden, llama = heads * width, dice.random() < 0.5
    return Shape(
        dice.choice((1, 2, 3, 6)),
        hidden,
        heads,
        dice.choice((256, 1000, 5003)),
        kv_heads=dice.choice([n for n in (1, 2, 4, 8) if heads % n == 0]),
        ff=dice.choice((None, 3 * hidden + 32)),
        gated_mlp=llama,
        bias=not llama,
        norm="rmsnorm" if llama else "layernorm",
        positions="rotary" if llama else "learned",
        max_seq=512,
        tied_head=dice.random() < 0.5,
    )


def random_recipe(dice: random.Random) -> Recipe:
    """Every choice that torch alone can run, adapters apart."""
    names = ("precision", "attention", "checkpointing", "gradients")
    chosen = {name: dice.choice(HERE[name]) for name in names}
    return Recipe(
        **chosen,
        optimizer=dice.choice(("sgd", "momentum", "adamw", "adamw")),
        foreach=dice.random() < 0.5,
        dropout=dice.choice((0.0, 0.1)),
    )


def cases(count: int = CASES, seed: int = SEED) -> list[Case]:
    """The same cases for the same seed. No tensor of theirs but the logits has the logits' number of elements."""
    dice, out = random.Random(seed), []
    while len(out) < count:
        case = Case(random_shape(dice), dice.choice((1, 2, 4)), dice.choice((48, 96, 160, 320)), random_recipe(dice))
        if case.shape.vocab not in (case.shape.hidden, case.shape.h_ff):
            out.append(case)
    return out


def worst_kind(model: Account, truth: Account) -> tuple[str, float]:
    """The kind that is furthest off at the peak, in its own bytes where it is more than 1% of the peak, else in
    shares of the peak: (kind, error)."""
    off = {}
    for kind in KINDS:
        size = truth.peak[kind] if truth.peak[kind] > 0.01 * truth.peak_bytes else truth.peak_bytes
        off[kind] = (model.peak[kind] - truth.peak[kind]) / size
    return max(off.items(), key=lambda item: abs(item[1]))


def accelerate_estimate(case: Case) -> int:
    """Bytes that `accelerate estimate-memory` prints as "Training using Adam" for this model and dtype.

    Its own two functions, on the model without contents; the command itself takes names on a hub only.
    """
    import torch
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils.modeling import calculate_maximum_sizes

    from scaleout.parallel.transformer import Transformer

    with torch.device("meta"):
        total, _ = calculate_maximum_sizes(Transformer(case.shape))
    usage = estimate_training_usage(total, "float32" if case.recipe.precision == "fp32" else "bfloat16")
    return max(usage.values())


def line(name: str, errors: list[float]) -> str:
    """Median, worst and count over 2% of relative errors, as a row."""
    sizes = [abs(error) for error in errors]
    over = sum(size > TOLERANCE for size in sizes)
    return f"{name:<46}{statistics.median(sizes):>9.3%}{max(sizes):>9.3%}{over:>6} of {len(sizes)}"


def main() -> int:
    """Measure, and print the table; the exit code."""
    parser = launching.options(__doc__, cases=CASES, seed=SEED)
    options = parser.parse_args()
    if options.smallest:
        options.cases = 3  # of which one is of AdamW
    if options.cases < 1:
        parser.error(f"--cases must be at least 1, not {options.cases}")
    ours, kinds, theirs, adam = [], [], [], []
    for case in cases(options.cases, options.seed):
        truth = measure(case.shape, case.batch, case.seq, case.recipe)
        model = account(case.shape, case.batch, case.seq, case.recipe)
        ours.append(model.peak_bytes / truth.peak_bytes - 1)
        kinds.append(worst_kind(model, truth)[1])
        theirs.append(accelerate_estimate(case) / truth.peak_bytes - 1)
        if case.recipe.optimizer == "adamw":
            adam.append(theirs[-1])
        if max(abs(ours[-1]), abs(kinds[-1])) > TOLERANCE:
            print(f"over 2%: {case.name}: peak {ours[-1]:+.2%}, {worst_kind(model, truth)}")
    print(f"{'error of the peak, against torch':<46}{'median':>9}{'worst':>9}   over 2%")
    print(line("scaleout.memory.accounts", ours))
    print(line("scaleout.memory.accounts, worst kind at the peak", kinds))
    print(line("accelerate estimate-memory", theirs))
    if adam:
        print(line("accelerate estimate-memory, AdamW only", adam))
    return 0


if __name__ == "__main__":
    sys.exit(main())
