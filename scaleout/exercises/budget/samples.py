"""Exercises of `budget` on pass@k: what several samples are worth."""

from __future__ import annotations

from math import comb

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip

ABLE, P, K = 0.5, 0.2, 6
TWO_GROUPS = Number(
    key="two-groups",
    level=1,
    minutes=2,
    short=True,
    title="Questions that are not alike",
    prompt=f"For half of the questions each sample of a model is right with a probability of **{P:.0%}**. For the "
    "other "
    f"half it is never right. So pass@1 is {ABLE * P:.0%}. What is **pass@{K}**, the share of questions with at least "
    f"one right answer among {K} independent samples, in percent?",
    hints=(
        "Treat the two halves separately.",
        "For one question of the first half: how likely are all samples wrong?",
    ),
    solution=f"In the first half, all {K} samples are wrong with a probability of 0.8^{K} = {(1 - P) ** K:.3f}, so "
    f"{1 - (1 - P) ** K:.1%} of its questions have a right answer. In the second half there is none. "
    f"0.5 × {1 - (1 - P) ** K:.3f} = **{ABLE * (1 - (1 - P) ** K):.1%}**. If all questions were alike with "
    f"{ABLE * P:.0%} each, it would be {1 - (1 - ABLE * P) ** K:.0%}. The mean accuracy alone does not tell what more "
    "samples are worth.",
    value=ABLE * (1 - (1 - P) ** K),
    unit="%",
    units=("%",),
    dimension="share",
    unit_given=True,
    slips=(
        Slip(
            "mean",
            1 - (1 - ABLE * P) ** K,
            "You gave every question the mean accuracy. Then samples help with questions that are never answered.",
        ),
        Slip("able", 1 - (1 - P) ** K, "That is the share among questions that the model can answer at all."),
        Slip("added", K * ABLE * P, "You added probabilities. Several samples of one question can be right."),
        Slip(
            "none",
            ABLE * (1 - P) ** K,
            "In that share of questions the model could be right, and all samples are wrong.",
        ),
    ),
    right="However many samples are drawn, this model answers half of the questions at most.",
)

_STUB = '''\
def pass_at(right, n, k):
    """pass@k from n samples of each question.

    right: how many of its n samples are right, by question
    """
    return ...
'''
_SOLUTION = """\
from math import comb

def pass_at(right, n, k):
    missed = [comb(n - c, k) / comb(n, k) for c in right]
    return 1 - sum(missed) / len(missed)
"""


def pass_at(right, n, k) -> float:
    """1 minus the probability that k of the n samples, drawn without replacement, are all wrong; mean by question."""
    return 1 - sum(comb(n - c, k) / comb(n, k) for c in right) / len(right)


def _whole_mean(right, n, k) -> float:
    total = sum(right)
    return 1 - comb(len(right) * n - total, k) / comb(len(right) * n, k)


PASS_AT = Function(
    key="pass-at",
    level=2,
    minutes=6,
    title="From n samples to k of them",
    prompt="You have drawn `n` samples for each question and know how many of them are right. Write `pass_at(right, n, "
    "k)`: an estimate of pass@k for `k` up to `n`.\n\n"
    "- `right[i]` is the number of right samples of question i.\n"
    "- For one question, take the probability that at least one is right among `k` of its `n` samples, drawn **without "
    "replacement**.\n"
    "- Return the mean over the questions.",
    hints=(
        "In how many ways can k samples be chosen from n? In how many of them are all k wrong?",
        "`math.comb(n, k)` counts the ways, and is 0 where there are too few.",
    ),
    solution=f"```python\n{_SOLUTION}```\n\nThis is the estimator of Chen et al. (arXiv 2107.03374), and it is "
    "unbiased. "
    "If you put the measured accuracy c / n into 1 − (1 − c / n)^k instead, the result is too low on average: "
    "a question with no right sample among 10 may well have one among 100.",
    function="pass_at",
    stub=_STUB,
    reference=pass_at,
    cases=(
        ([1], 2, 1),
        ([1], 2, 2),
        ([0, 3, 10], 10, 1),
        ([0, 3, 10], 10, 4),
        ([0, 3, 10], 10, 10),
        ([1, 1, 1, 1], 8, 4),
        ([2, 5, 7, 0, 0, 1], 20, 5),
        ([2, 5, 7, 0, 0, 1], 20, 16),
        ([19, 0], 20, 2),
        ([0, 0, 0], 5, 3),
        ([5, 5], 5, 3),
        ([1, 0, 0, 0, 0, 0, 0], 100, 50),
        ([3, 4, 4, 9], 12, 7),
    ),
    mistakes=(
        Mistake(
            "with-replacement",
            lambda right, n, k: 1 - sum((1 - c / n) ** k for c in right) / len(right),
            "You draw with replacement, so that a sample can be drawn twice. The prompt asks for it without.",
        ),
        Mistake(
            "mean-first",
            lambda right, n, k: 1 - (1 - sum(right) / n / len(right)) ** k,
            "You average the accuracy over questions first. Questions are not alike.",
        ),
        Mistake("one-pot", _whole_mean, "You draw from the samples of all questions together."),
        Mistake(
            "proportional",
            lambda right, n, k: sum(min(1, c * k / n) for c in right) / len(right),
            "You let the probability grow in proportion to the number of samples.",
        ),
        Mistake(
            "any-of-n",
            lambda right, n, k: sum(c > 0 for c in right) / len(right),
            "You count questions with any right sample among all that were drawn.",
        ),
    ),
    right="Evaluation harnesses print this estimate when they say pass@k.",
)

CHOOSER = Choice(
    key="who-picks",
    level=2,
    minutes=3,
    title="Sixty-four drawn, one shown",
    prompt="A model reaches pass@64 = 50% on questions whose answers are short texts. pass@1 is 20%. A product writes "
    "64 "
    "samples for each question and shows **one** of them. There is no test that tells a right answer from a wrong "
    "one, so the product picks one at random. How many questions are answered correctly on the screen?",
    hints=("What does pass@k count as a success?", "What is the probability that a sample picked at random is right?"),
    solution="**20%.** A sample picked at random is as good as the only sample, whatever the number drawn. pass@k "
    "counts "
    "a question as answered if a right sample is *among* the k. Somebody has to find it: unit tests or a proof checker "
    "find it, a vote or a reward model finds some of them. Where nothing can check, samples cost FLOPs and buy less.",
    options=(
        Option(
            "fifty",
            "50% of them, because a right one is among the samples",
            "A right sample is among them. Who finds it?",
        ),
        Option(
            "twenty",
            "20% of them, as many as with a single sample each",
            "Right. Samples are worth something only if a right one can be recognized.",
            True,
        ),
        Option(
            "less-than-one",
            "0.8% of them, since one of 64 samples is shown",
            "That would be so if exactly one of 64 samples were right for every second question.",
        ),
        Option(
            "between",
            "35% of them, halfway between the two shares given",
            "Nothing averages the two. What is the probability for a sample picked at random?",
        ),
    ),
)

EXERCISES = (TWO_GROUPS, PASS_AT, CHOOSER)
