"""Exercises of `budget` on a real run: labs/budget.py on two processes, as its Record has it. A test reads it again."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Number, Option, Slip

RECORD = "labs/results/budget/smoke-cpu-2.json"
ARMS = {"base": "base", "own": "own text", "real": "real text"}
# {figure: (words, digits, factor)} of the table.
FIGURES = {
    "sure": ("entropy where surest, nats", 3, 1),
    "open": ("entropy where open, nats", 3, 1),
    "among": ("right among 16 samples, %", 2, 100),
    "loss": ("held-out loss, nats", 3, 1),
    "other_loss": ("loss on other text, nats", 3, 1),
}
# {figure: {model: (mean over seeds, half of the range)}}, rounded as they are shown.
SEEN = {
    "sure": {"base": (0.213, 0.0), "own": (0.111, 0.011), "real": (0.198, 0.015)},
    "open": {"base": (2.841, 0.0), "own": (2.612, 0.018), "real": (2.801, 0.009)},
    "among": {"base": (13.01, 0.0), "own": (11.61, 0.7), "real": (12.36, 0.43)},
    "loss": {"base": (2.048, 0.0), "own": (2.157, 0.005), "real": (2.08, 0.008)},
    "other_loss": {"base": (2.87, 0.0), "own": (2.973, 0.006), "real": (2.897, 0.014)},
}


def _cell(name: str, model: str) -> str:
    digits, (mean, half) = FIGURES[name][1], SEEN[name][model]
    return f"{mean:.{digits}f}" + (f" ± {half:.{digits}f}" if model != "base" else "")


_TABLE = "\n".join(
    [
        f"{'':27}" + "".join(f"{words:>15}" for words in ARMS.values()),
        *(
            f"{words:27}" + "".join(f"{_cell(name, model):>15}" for model in ARMS)
            for name, (words, _, _) in FIGURES.items()
        ),
    ]
)

GAINED = Choice(
    key="what-was-gained",
    level=2,
    minutes=4,
    title="A table with three models",
    prompt="The lab on two processes: a base model, a model trained on text that the base wrote with truncation, and "
    "one "
    "trained on the real continuations of the same prompts. All figures are measured on text that no model trained on, "
    f"with half of the range over three seeds:\n\n```\n{_TABLE}\n```\n\nWhich sentence does this table support?",
    hints=(
        "Compare each difference from the base with the spread over seeds.",
        "For entropies, compare what is left of the base's value in the two rows.",
    ),
    solution="**It was sharpened where it was surest.** The entropy where the base was surest falls from 0.213 to "
    "0.111 nats, by 48%, and where "
    "it was open from 2.841 to 2.612, by 8%. This is the mechanism of the paper: tails are cut where the model is "
    "sure. "
    "Training on real text does not do this. But the mechanism alone is no gain. Among 16 samples, fewer "
    "answers were right, if not by much more than the spread. The loss rose on held-out code by 0.109 nats, and on "
    "English by 0.103, ten times the spread and more. The real text did not help either: 24 steps on 96 short texts "
    "are little next to the "
    "training of the base.",
    options=(
        Option(
            "sharper",
            "Its own text sharpened it mostly where it was surest",
            "Right. Of the small entropy about half is left, and of the large one nearly all.",
            True,
        ),
        Option(
            "samples",
            "Its own text pays as soon as one draws 16 samples",
            "Fewer questions have a right answer among 16 samples than before. What would a gain look like?",
        ),
        Option(
            "free",
            "Training on its own text left the other text as it was",
            "The loss on the other text rises by far more than the spread over seeds.",
        ),
        Option(
            "real-gains",
            "On real text it became better at code it has not seen",
            "Its held-out loss is above the base's as well: these few steps on few texts add noise.",
        ),
    ),
)

PASS_4, PASS_16 = 0.0793, 0.1301  # of the base, measured
ALIKE = 1 - (1 - PASS_4) ** 4
FROM_FOUR = Number(
    key="from-four-to-sixteen",
    level=2,
    minutes=3,
    title="Four times the samples",
    prompt=f"In the same run, the base model had **pass@4 = {PASS_4:.2%}**. Suppose that all questions were equally "
    "hard, "
    "so that every sample of every question is right with the same probability. What would **pass@16** be, in "
    "percent?",
    hints=(
        "16 samples are four groups of 4. When do all of them fail?",
        "A group of 4 has no right sample with a probability of 1 − pass@4.",
    ),
    solution=f"All four groups fail with a probability of (1 − {PASS_4:.4f})^4 = {1 - ALIKE:.3f}, so pass@16 would be "
    f"**{ALIKE:.1%}**. The lab measured **{PASS_16:.1%}**. Most questions that four samples do not answer are hard "
    "ones, and twelve more samples do not answer them either. So a budget for samples that is planned with equal "
    "questions promises more than twice what it gives.",
    value=ALIKE,
    unit="%",
    units=("%",),
    dimension="share",
    unit_given=True,
    slips=(
        Slip("times-four", 4 * PASS_4, "You multiplied. A question can be answered by more than one group of samples."),
        Slip("sixteen", 1 - (1 - PASS_4) ** 16, "You took pass@4 for the accuracy of a single sample."),
        Slip("failed", 1 - ALIKE, "That is the share of questions without a right answer."),
    ),
    right="The lab measured less than half of that, because its questions are not equally hard.",
)

EXERCISES = (GAINED, FROM_FOUR)
