"""The exercise of `tensor` on two runs whose first step has the right loss."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.exercises.engine import Choice, Option

WRONG = 1e-3  # of a gradient's largest error: what is right is off by rounding


@dataclass(frozen=True)
class Run:
    """Losses of the first steps and of one process's; the largest error of each gradient of step 1 over its largest
    value, from the loss back."""

    losses: tuple[float, ...]
    alone: tuple[float, ...]
    errors: dict[str, float]


# labs/tensor.py on two processes: --fault no-backward-reduce, and --fault kv-copies --kv-heads 1. The last of
# four blocks, and the first matrix behind it.
SILENT = Run(
    (5.540831, 5.181663, 4.925706),
    (5.540831, 5.075078, 4.868655),
    {
        "3.mlp.down": 2.8e-07,
        "3.mlp.up": 1.5e-07,
        "3.norm2": 9.3e-01,
        "3.attention.out": 3.3e-01,
        "3.attention.v": 3.0e-01,
        "3.attention.k": 2.5e-01,
        "3.attention.q": 1.9e-01,
        "3.norm1": 8.4e-01,
        "2.mlp.down": 4.1e-01,
    },
)
COPIES = Run(
    (5.514890, 5.029303, 4.788368),
    (5.514890, 5.032286, 4.792508),
    {
        "3.mlp.down": 2.0e-07,
        "3.mlp.up": 2.3e-07,
        "3.norm2": 3.2e-07,
        "3.attention.out": 2.5e-07,
        "3.attention.v": 7.7e-01,
        "3.attention.k": 8.3e-01,
        "3.attention.q": 7.4e-07,
        "3.norm1": 1.7e-07,
        "2.mlp.down": 2.3e-07,
    },
)


def _table() -> str:
    """Both runs, narrow enough for a phone."""
    runs = (SILENT, COPIES)
    rows = [f"{'A':>10}{'B':>17}", "step   run   alone      run   alone"]
    for step in range(len(SILENT.losses)):
        rows.append(f"{step + 1} " + " ".join(f" {run.losses[step]:.5f} {run.alone[step]:.5f}" for run in runs))
    rows += ["", f"gradient of step 1{'A':>9}{'B':>9}"]
    for name in SILENT.errors:
        rows.append(f"{name:18}" + "".join(f"{run.errors[name]:9.1e}" for run in runs))
    return "\n".join(rows)


TWO_RUNS = Choice(
    key="right-at-step-one",
    level=3,
    minutes=5,
    title="Right at step one",
    prompt="Two runs of four blocks on two processes, A and B, each leave out one sum. B has a single key-value head. "
    "Here are their losses, next to those of one process alone, and the relative error of each gradient of step 1, "
    "from the loss backward (1e-7 is rounding):\n\n"
    f"```\n{_table()}\n```\n\nWhat is missing in A, and what in B?",
    hints=(
        "The loss of step 1 is right, so the whole forward pass is right.",
        "A wrong gradient of an *activation* makes the gradients of everything before it wrong. A wrong gradient of a "
        "*weight* has no effect on others.",
        "In A the first wrong gradient belongs to the norm in front of the MLP's two matrices. What has to be added "
        "there?",
    ),
    solution="**A lacks f's all-reduce; B lacks the sum over the ranks that copy a head.** Both forward passes are "
    "right, so the loss of step 1 is right. In A the MLP's own gradients are right and everything before them is "
    "wrong: each rank continues backward with its own part of the gradient, and the error reaches even the embedding. "
    "In B only the weights of K and V are wrong, in every block, and all others are right up to rounding. There the "
    "gradient of the *residual stream* was added. The missing sum is that of a weight's gradient, which nothing "
    "further back reads.\n\nB's losses are off by less than a tenth of a percent in these steps, and they are lower. "
    "The losses alone would tell you nothing.",
    options=(
        Option(
            "f-copies",
            "A: f's all-reduce. B: the sum of a copied head's gradients",
            "Right: an error in an activation's gradient travels back; an error in a weight's gradient stays there.",
            True,
        ),
        Option(
            "copies-f",
            "A: the sum of a copied head's gradients. B: f's all-reduce",
            "A weight's gradient is read by no other gradient, so how could an error in one spread as A's does?",
        ),
        Option(
            "g-f",
            "A: the forward's all-reduce, g. B: the all-reduce of f",
            "Without g the loss of step 1 would already be wrong. And without f, errors spread, as in A.",
        ),
        Option(
            "f-norms",
            "A: f's all-reduce. B: the sum of the norms' own gradients",
            "A is right. In B the norms are right, and K and V are not. Norms need a sum only if tokens are split.",
        ),
        Option(
            "f-heads",
            "A: f's all-reduce. B: one of g's, after the attention",
            "A is right. But without that g the loss of B's first step would be off, and so would the gradient of "
            "attention.out.",
        ),
        Option(
            "seeds",
            "A: equal weights at the start. B: equal seeds of the data",
            "Then the losses of step 1 would not agree to six digits in either run.",
        ),
    ),
)

EXERCISES = (TWO_RUNS,)
