"""Exercises of `budget` on temperature, truncation, and training on what they write."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Option
from scaleout.numerics.decoding import decoded

LOCK_FORK = Choice(
    key="sure-at-two",
    level=1,
    minutes=2,
    short=True,
    title="Temperature 2, and no slip",
    prompt="The toy answers at temperature 2 with top-p 0.8. Before training, a lock is right in 45% of cases. After "
    "training on text that was written at temperature 0.9 with top-p 0.85, it is right in **100%**, with the same "
    "sampler. What has changed?",
    hints=(
        "Which tokens of a lock could be written in the training text at all?",
        "How many of the trained model's tokens does top-p 0.8 keep at temperature 2?",
    ),
    solution="The training text has only two tokens at a lock, because top-p 0.85 cut off the other 14. The trained "
    "model "
    "gives these 14 a probability of zero. Even at temperature 2 the right one of two has more than 80%, and top-p 0.8 "
    "keeps it alone. Before training, temperature 2 spread the probability over a tail of 15 wrong tokens, and top-p "
    "kept five of them. Nothing was checked: the right token was the likely one before.",
    options=(
        Option(
            "no-tail",
            "The tail is gone, so the cut keeps one token",
            "Right. Truncation removed the tail from the training text, and training removed it from the model.",
            True,
        ),
        Option(
            "checked",
            "Wrong answers were left out of the training",
            "Nothing was left out, and nothing was checked. Wrong tokens that passed the cut were trained on too.",
        ),
        Option(
            "colder",
            "The model was trained to be at temperature 0.9",
            "The sampler's temperature is applied to the trained model again. At 2 it flattens that one, too.",
        ),
        Option(
            "learned",
            "It has learned which of the tokens is right",
            "It has seen no right answer that it did not write by itself. The likely token was right before, too.",
        ),
    ),
)

_STUB = '''\
def decoded(p, temperature, top_p):
    """The distribution from which a sampler draws, as a list."""
    return ...
'''
_SOLUTION = """\
def decoded(p, temperature, top_p):
    q = [x ** (1 / temperature) for x in p]
    total = sum(q)
    q = [x / total for x in q]
    kept, mass = [0] * len(q), 0
    for i in sorted(range(len(q)), key=lambda i: -q[i]):
        if mass >= top_p:
            break
        kept[i] = q[i]
        mass += q[i]
    return [x / mass for x in kept]
"""


def _softened(p, temperature) -> list:
    return decoded(p, temperature, 1.0)


def _not_scaled(p, temperature, top_p) -> list:
    kept = decoded(p, temperature, top_p)
    return [q if x else 0.0 for q, x in zip(_softened(p, temperature), kept, strict=True)]


def _below(p, temperature, top_p) -> list:
    """Stops before the token that would pass top_p; the likeliest one stays."""
    q = _softened(p, temperature)
    kept, mass = [0.0] * len(q), 0.0
    for i in sorted(range(len(q)), key=lambda i: -q[i]):
        if mass and mass + q[i] > top_p:
            break
        kept[i], mass = q[i], mass + q[i]
    return [x / mass for x in kept]


def _in_order(p, temperature, top_p) -> list:
    q = _softened(p, temperature)
    kept, mass = [0.0] * len(q), 0.0
    for i, x in enumerate(q):
        if mass >= top_p:
            break
        kept[i], mass = x, mass + x
    return [x / mass for x in kept]


_LOCK, _FORK = [0.75, 0.055, 0.05, 0.037, 0.06, 0.048], [0.148, 0.28, 0.14, 0.144, 0.188, 0.1]
DECODED = Function(
    key="sampler",
    level=2,
    minutes=6,
    title="The sampler, as code",
    prompt="Write `decoded(p, temperature, top_p)`, the distribution from which a sampler draws the next token.\n\n"
    "- A temperature T raises each probability to the power of 1/T. The results are scaled so that they sum to 1.\n"
    "- **After that**, top-p keeps the fewest tokens, from the likeliest on, that together have a probability of at "
    "least `top_p`. The others get 0, and the rest is scaled so that it sums to 1.\n"
    "- Return the probabilities in the order of `p`, as a list. The likeliest tokens need not stand first. No two "
    "probabilities are equal.",
    hints=(
        "Sort the places of the tokens, not the tokens, so that you can put results back.",
        "The token with which the sum reaches top_p is kept.",
    ),
    solution=f"```python\n{_SOLUTION}```\n\nWith logits z, the first step is softmax(z / T). The order of the steps "
    "matters: a high temperature flattens the distribution before the cut, so more tokens are needed to reach top_p, "
    "and "
    "mistakes come through.",
    function="decoded",
    stub=_STUB,
    reference=decoded,
    lists=True,
    cases=(
        ([0.5, 0.3, 0.2], 1, 0.75),
        ([0.2, 0.5, 0.3], 1, 0.75),
        ([0.5, 0.3, 0.2], 2, 0.6),
        ([0.5, 0.3, 0.2], 0.5, 0.9),
        ([0.1, 0.6, 0.3], 1.5, 0.8),
        (_LOCK, 0.9, 0.85),
        (_LOCK, 2.0, 0.8),
        (_FORK, 0.9, 0.85),
        (_FORK, 0.4, 0.8),
        (_FORK, 2.0, 0.8),
        ([0.97, 0.02, 0.01], 1, 0.5),
        ([0.02, 0.97, 0.01], 3, 0.7),
        ([0.4, 0.35, 0.25], 1, 1.0),
        ([1.0], 0.7, 0.9),
        ([0.25, 0.3, 0.45], 0.2, 0.85),
    ),
    mistakes=(
        Mistake(
            "upside-down",
            lambda p, temperature, top_p: decoded(p, 1 / temperature, top_p),
            "Your probabilities become sharper where the temperature rises. Look at the power again.",
        ),
        Mistake(
            "cut-first",
            lambda p, temperature, top_p: decoded(decoded(p, 1.0, top_p), temperature, 1.0),
            "You cut before you apply the temperature. The prompt has the other order.",
        ),
        Mistake("not-scaled", _not_scaled, "What you keep does not sum to 1."),
        Mistake("one-too-few", _below, "The token with which the sum reaches top_p is kept, too."),
        Mistake("in-order", _in_order, "You go through the tokens as they stand. Begin with the likeliest."),
        Mistake(
            "uncut",
            lambda p, temperature, top_p: _softened(p, temperature),
            "You keep all tokens. What does top_p leave out?",
        ),
    ),
    right="Libraries do the same with logits, and call the second step nucleus sampling.",
)

FIXED_POINT = Choice(
    key="own-text-uncut",
    level=2,
    minutes=3,
    title="Temperature 1, and no cut",
    prompt="A model writes a very large amount of text at temperature 1 **without any truncation**, and is then "
    "trained "
    "on that text by cross-entropy, from where it is. Assume that there is so much text that chance plays no role. "
    "What "
    "happens to the model?",
    hints=(
        "Which distribution minimizes the cross-entropy on a text?",
        "Which distribution wrote this text?",
    ),
    solution="**Nothing.** Cross-entropy is lowest for the distribution that the text was drawn from, and that is the "
    "model's own. The expected gradient is zero. What changes a model that trains on its own text is the "
    "difference between how it writes and what it is: temperature and truncation. With a finite amount of text there "
    "is "
    "also noise, which makes the model a little worse.",
    options=(
        Option(
            "stays",
            "It stays as it is: the expected gradient is zero",
            "Right. It already has the distribution that the text was drawn from.",
            True,
        ),
        Option(
            "sharper",
            "It becomes surer of itself with every single step",
            "Likely tokens are written often, but exactly as often as the model already says.",
        ),
        Option(
            "better",
            "It becomes better, because it practices its task",
            "Practice without a judge repeats right and wrong as they are. What would push it anywhere?",
        ),
        Option(
            "collapses",
            "It collapses: it forgets all tokens that are rare",
            "Rare tokens are lost by truncation, or by chance where there is little text. Neither is given here.",
        ),
    ),
)

CLAIM = Choice(
    key="no-code-at-all",
    level=2,
    minutes=3,
    title="What nonsense can show",
    prompt="Qwen3-30B-Instruct solves 42.4% of a benchmark's programming tasks. In an experiment of Zhang et al. "
    "(2026) it "
    "wrote its training text at temperature 2 **without truncation**. In 62% of these texts there was no program that "
    "could be extracted. After training on all of them it solved **48.1%**. Which explanation of self-distillation "
    "does this rule out?",
    hints=(
        "Which of the explanations needs programs that are right, or at least programs?",
        "What does training on text at temperature 2 do to the temperature at which the model is best?",
    ),
    solution="**That right programs are selected.** There was no program to select in most of the texts, and "
    "nothing was "
    "selected. The model still improved. So what it learned is a different shape of its distribution, which the "
    "authors "
    "show position by position. The result does not rule out that truncation helps: with it, the same model reached "
    "55.3%. It also says nothing about other kinds of task.",
    options=(
        Option(
            "selection",
            "That it learns from right programs, which are selected",
            "Right. Most of the texts contained no program at all, and nothing was checked.",
            True,
        ),
        Option(
            "shape",
            "That training changes the shape of its distribution",
            "This explanation needs no right program. It agrees with the experiment.",
        ),
        Option(
            "truncation",
            "That truncating the tail of the text adds to the gain",
            "Without truncation the gain was smaller. The experiment agrees with this.",
        ),
        Option(
            "decoding",
            "That it then is best at another decoding temperature",
            "The authors choose the temperature after training anew, and it does change.",
        ),
    ),
)

EXERCISES = (LOCK_FORK, DECODED, FIXED_POINT, CLAIM)
