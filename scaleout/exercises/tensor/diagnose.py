"""The exercise of `tensor` on two runs that are right at their first step."""

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
    prompt="Two runs of four blocks on two processes, A and B, each with one sum left out. B has a single key-value "
    "head. Their losses, beside those of the same model on one process alone; and by how much each gradient of step 1 "
    "is off, from the loss back, where 1e-7 is rounding:\n\n"
    f"```\n{_table()}\n```\n\nWhat is missing in A, and what in B?",
    hints=(
        "The loss of step 1 is right: so is the whole forward.",
        "A wrong gradient of a *tensor* makes all gradients before it wrong. A wrong gradient of a *weight* ends "
        "there.",
        "In A the first wrong one is the norm in front of the MLP's two matrices. What has to be added there?",
    ),
    solution="**A lacks f's all-reduce; B lacks the sum over the ranks that copy a head.** Both forwards are right, so "
    "the loss of step 1 is. In A the MLP's own gradients are right and everything before them is wrong: each rank goes "
    "back with its own part of the norm's gradient, and the error travels on to the token table. In B only K's and V's "
    "weights are wrong, in every block, and the rest is right to the last digit: the gradient of the *stream* was "
    "added up, and what is missing is a sum of a weight's gradient, which nothing further back reads.\n\nB's losses "
    "are off by less than a tenth of a per cent in these steps, and lower. From them alone you would see nothing.",
    options=(
        Option(
            "f-copies",
            "A: f's all-reduce. B: the sum of a copied head's gradients",
            "Right: an error that travels back is in a tensor's gradient; one that stays is in a weight's.",
            True,
        ),
        Option(
            "copies-f",
            "A: the sum of a copied head's gradients. B: f's all-reduce",
            "A weight's gradient is read by no other: how would an error in one spread as A's does?",
        ),
        Option(
            "g-f",
            "A: the forward's all-reduce, g. B: the all-reduce of f",
            "Without g the loss of step 1 would be wrong already. And without f, errors spread, as in A.",
        ),
        Option(
            "f-norms",
            "A: f's all-reduce. B: the sum of the norms' own gradients",
            "A is right. In B the norms are right, and K and V are not. Norms need a sum only where tokens are split.",
        ),
        Option(
            "f-heads",
            "A: f's all-reduce. B: one of g's, behind the attention",
            "A is right. But without that g the loss of B's first step would be off, and the gradient of "
            "attention.out too.",
        ),
        Option(
            "seeds",
            "A: equal weights at the start. B: equal seeds of the data",
            "Then the losses of step 1 would not agree to six digits, in either.",
        ),
    ),
)

EXERCISES = (TWO_RUNS,)
