"""Exercises of `budget` on FLOPs: of training, of answers, and the model that is best for both."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip

TOKENS, QUESTIONS, SAMPLES, LENGTH = 15e12, 1e9, 12, 2000
TRAINING, ANSWERS = 6 * TOKENS, 2 * QUESTIONS * SAMPLES * LENGTH  # FLOPs per parameter
ANSWERS_SHARE = Number(
    key="answers-share",
    level=1,
    minutes=2,
    short=True,
    title="The bill after a billion questions",
    prompt="A model of 8 billion parameters was trained on 15 trillion tokens. It then answers **one billion "
    f"questions**. For each question it writes **{SAMPLES} samples of {LENGTH:,} tokens**. Take 6 FLOPs per parameter "
    "for each training token, and 2 for each token that is written. What share of all these FLOPs goes into the "
    "answers, in percent?",
    hints=(
        "How many tokens are written for all questions together?",
        "The size of the model is a factor of both parts, so you do not need it.",
    ),
    solution=f"The answers have 10^9 × {SAMPLES} × {LENGTH:,} = 2.4 × 10^13 tokens, which cost 4.8 × 10^13 FLOPs per "
    "parameter. Training costs 6 × 1.5 × 10^13 = 9 × 10^13 FLOPs per parameter. The share of the answers is "
    f"4.8 / (4.8 + 9.0) = **{ANSWERS / (ANSWERS + TRAINING):.1%}**, and it grows with every question.",
    value=ANSWERS / (ANSWERS + TRAINING),
    unit="%",
    units=("%",),
    dimension="share",
    unit_given=True,
    slips=(
        Slip(
            "ratio",
            ANSWERS / TRAINING,
            "You compared the answers with the training. Their share of both together is asked for.",
        ),
        Slip(
            "same-cost",
            ANSWERS / 2 / (ANSWERS / 2 + TOKENS),
            "That is the share of the tokens. A written token costs fewer FLOPs than one that is trained on.",
        ),
        Slip(
            "one-sample",
            ANSWERS / SAMPLES / (ANSWERS / SAMPLES + TRAINING),
            "That is the share with one sample per question. Here a question is sampled more often.",
        ),
        Slip("training", TRAINING / (ANSWERS + TRAINING), "That is the share of the training."),
    ),
    right="The size of the model is in both parts, so it does not change the share.",
)

OVERTRAINED = Choice(
    key="waste-of-tokens",
    level=1,
    minutes=2,
    title="Far beyond the rule",
    prompt="Llama 3 8B was trained on 15 trillion tokens, 1,900 for each parameter. The rule for a compute-optimal "
    'model is about 20. A colleague says: *"That was a waste. For the same training FLOPs, a model of about 77 '
    'billion parameters, trained on 1.5 trillion tokens, would have had a lower loss."* Which reply is right?',
    hints=(
        "Is the colleague's statement about the loss true?",
        "What does a token of an answer cost with 77 billion parameters, and what with 8?",
    ),
    solution="By the scaling law the statement about the loss is true, though both models lie far beyond its runs: "
    "the rule is the split of a training budget with the lowest loss. But a token of the larger model's answers costs "
    "77 / 8, almost ten times, as many FLOPs, for as long as the model is in use. With enough answers, the small model "
    "with many tokens is the better use of all FLOPs. Its weights also take a tenth of the memory.",
    options=(
        Option(
            "per-sample",
            "Better for each sample, and each sample costs ten times as much",
            "Right. The rule knows the cost of training only. Answers cost FLOPs in proportion to the parameters.",
            True,
        ),
        Option(
            "higher-loss",
            "Not so: the larger model would have had the higher loss",
            "For a given number of training FLOPs the rule gives the lowest loss. That part is true.",
        ),
        Option(
            "saturated",
            "Yes: beyond 20 tokens per parameter a model learns nothing",
            "The loss goes on falling with more tokens. It falls more slowly than with more parameters.",
        ),
        Option(
            "old-rule",
            "The rule is wrong: newer laws ask for 1,900 tokens each",
            "Newer fits confirm about 20 where the training is all that is paid for. What else is paid for here?",
        ),
    ),
)

_STUB = '''\
def best_model(sizes, flops, answers, samples, law):
    """Place of the best size in the list, or -1.

    sizes: parameters of each candidate; flops: of the whole budget
    answers: tokens of one sample of every question
    law: [E, A, alpha, B, beta]
    """
    return ...
'''
_SOLUTION = """\
def best_model(sizes, flops, answers, samples, law):
    E, A, alpha, B, beta = law
    best, lowest = -1, float("inf")
    for place, n in enumerate(sizes):
        left = flops - 2 * n * answers * samples
        if left <= 0:
            continue
        d = left / (6 * n)
        loss = E + A / n**alpha + B / d**beta
        if loss < lowest:
            best, lowest = place, loss
    return best
"""


def _search(sizes, law, tokens) -> int:
    """The place of the size with the lowest loss, of those that tokens(n) lets train."""
    e, a, alpha, b, beta = law
    losses = {place: e + a / n**alpha + b / tokens(n) ** beta for place, n in enumerate(sizes) if tokens(n) > 0}
    return min(losses, key=lambda place: losses[place]) if losses else -1


def best_model(sizes, flops, answers, samples, law) -> int:
    """The place of the best size, or -1."""
    return _search(sizes, law, lambda n: (flops - 2 * n * answers * samples) / (6 * n))


def _same_cost(sizes, flops, answers, samples, law) -> int:
    return _search(sizes, law, lambda n: flops / (6 * n) - answers * samples)


def _largest(sizes, flops, answers, samples, law) -> int:
    fitting = [place for place, n in enumerate(sizes) if 2 * n * answers * samples < flops]
    return max(fitting, key=lambda place: sizes[place]) if fitting else -1


def _most_tokens(sizes, flops, answers, samples, law) -> int:
    fitting = [place for place, n in enumerate(sizes) if 2 * n * answers * samples < flops]
    return min(fitting, key=lambda place: sizes[place]) if fitting else -1


_SIZES = [7e7, 1.6e8, 4.1e8, 1e9, 1.4e9, 2.8e9, 6.9e9, 1.2e10]
_SHUFFLED = [2.8e9, 1.2e10, 7e7, 1.4e9, 4.1e8, 6.9e9, 1e9, 1.6e8]
_FIT, _PRINTED = [1.8172, 482.01, 0.3478, 2085.43, 0.3658], [1.69, 406.4, 0.34, 410.7, 0.28]
BEST_MODEL = Function(
    key="best-model",
    level=3,
    minutes=10,
    title="One budget, and a list of sizes",
    prompt="Write `best_model(sizes, flops, answers, samples, law)`. A budget of `flops` pays for the training of one "
    "model and for all its answers. The candidates have `sizes[0]`, `sizes[1]`, ... parameters. One sample of every "
    "question is `answers` tokens in total, and every question is sampled `samples` times. Each candidate trains on "
    "as many tokens as the rest of the budget pays for.\n\n"
    "- A training token costs 6 FLOPs per parameter, a written token 2.\n"
    "- `law` is `[E, A, alpha, B, beta]`, and the loss after training on D tokens is E + A / N^alpha + B / D^beta.\n"
    "- Return the place (counted from 0) of the candidate with the lowest loss.\n"
    "- A candidate for which nothing is left to train on is out. If all are out, return -1.",
    hints=(
        "For one candidate: what do its answers cost, and what is left?",
        "How many tokens can a model of this size train on with what is left?",
        "The list need not be in order of size, and the largest candidate is seldom the best.",
    ),
    solution=f"```python\n{_SOLUTION}```\n\nA search over all sizes gives the curve of the chapter's picture, and its "
    "lowest point. With more samples the place moves to smaller models, until answers take about half of the "
    "budget, and more.",
    function="best_model",
    stub=_STUB,
    reference=best_model,
    index=True,
    cases=(
        (_SIZES, 3e21, 0, 1, _FIT),
        (_SIZES, 3e21, 1e10, 1, _FIT),
        (_SIZES, 3e21, 1e10, 16, _FIT),
        (_SIZES, 3e21, 1e10, 64, _FIT),
        (_SIZES, 3e21, 1e10, 256, _FIT),
        (_SHUFFLED, 3e21, 1e10, 64, _FIT),
        (_SHUFFLED, 3e21, 1e10, 256, _PRINTED),
        (_SHUFFLED, 1e21, 2e9, 100, _PRINTED),
        (_SIZES, 1e20, 1e9, 40, _FIT),
        (_SIZES, 1e22, 3e10, 32, _PRINTED),
        (_SHUFFLED, 1e22, 3e10, 8, _FIT),
        ([6.9e9, 1.2e10], 3e21, 1e10, 64, _FIT),
        ([1.2e10, 2.8e9, 6.9e9], 1e21, 2e10, 16, _FIT),
        ([1e9, 4.1e8], 1e21, 1e10, 64, _FIT),
        ([1e9], 1e20, 1e12, 1, _FIT),
        ([], 1e21, 1e9, 4, _FIT),
        (_SIZES, 2e21, 5e9, 128, _FIT),
        (_SHUFFLED, 6e20, 4e9, 30, _FIT),
    ),
    mistakes=(
        Mistake(
            "training-alone",
            lambda sizes, flops, answers, samples, law: _search(sizes, law, lambda n: flops / (6 * n)),
            "You find the best model for training alone. What do its answers cost?",
        ),
        Mistake(
            "one-sample",
            lambda sizes, flops, answers, samples, law: best_model(sizes, flops, answers, 1, law),
            "You count one sample of each question. There are more of them.",
        ),
        Mistake(
            "same-cost",
            _same_cost,
            "You let a written token cost as much as a training token. It takes a forward pass only.",
        ),
        Mistake(
            "largest",
            _largest,
            "You take the largest model that can pay for its answers. Is anything left to train it?",
        ),
        Mistake(
            "most-tokens",
            _most_tokens,
            "You take the smallest model. It trains on most tokens, and is too small for them.",
        ),
    ),
    right="With this function you can draw the picture of the chapter for a budget of your own.",
)

EXERCISES = (ANSWERS_SHARE, OVERTRAINED, BEST_MODEL)
