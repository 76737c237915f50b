"""The exercise of `tensor` on the loss: cross-entropy of logits that no rank has whole."""

from __future__ import annotations

from math import exp, inf, log

from scaleout.exercises.engine import Function, Mistake

_STUB = '''\
from math import exp, log


def loss(parts):
    """Cross-entropy of one token, whose logits lie on several ranks.

    parts: of each rank [largest, total, wanted]
      largest: its largest logit
      total: its sum of exp(logit - largest)
      wanted: the logit of the right word, where the rank has it,
          and 0.0 where it has not
    """
    return ...
'''

_SOLUTION = """\
from math import exp, log


def loss(parts):
    top = max(largest for largest, _, _ in parts)
    total = sum(z * exp(largest - top) for largest, z, _ in parts)
    return top + log(total) - sum(wanted for _, _, wanted in parts)
"""


def _raised(power: float) -> float:
    return exp(power) if power < 700 else inf


def _loss(parts, scale=lambda largest, top: largest - top, pick=sum, tops=1) -> float:
    """With something wrong in it: the power by which a rank's total is scaled, how the wanted logit is picked, how
    often the largest logit comes back."""
    top = max(largest for largest, _, _ in parts)
    total = sum(part[1] * _raised(scale(part[0], top)) for part in parts)
    return tops * top + log(total) - pick([wanted for _, _, wanted in parts])


def _losses(parts) -> list[float]:
    return [_loss([part]) for part in parts]


SPLIT = Function(
    key="split-loss",
    level=3,
    minutes=8,
    title="A loss in four parts",
    prompt="The output head is cut by columns: each rank has the logits of its own words. The loss of one token is the "
    "logarithm of the sum of all exp(logit), less the logit of the right word. Nobody gathers the logits. Each rank "
    "has worked out three numbers:\n\n"
    "- `largest`, the largest of its logits;\n"
    "- `total`, the sum of exp(logit − largest) over its words;\n"
    "- `wanted`, the logit of the right word if it is one of its own, else 0.\n\n"
    "Write `loss(parts)`, with one such triple for each rank. Logits may be 1,000 or −1,000, where exp() overflows or "
    "vanishes.",
    hints=(
        "The totals cannot be added as they are: each rank has taken off a largest logit of its own.",
        "total · exp(largest − top) is what the rank would have summed if it had taken off `top`. Which top makes "
        "all those powers zero or less?",
        "The logarithm of the whole sum is top + log(the scaled totals).",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "A max, a sum and another sum: three all-reduces of one number a token, where gathering would send a whole "
    "vocabulary of them. In practice the max comes first, and each rank takes off the common one at once. Done as here "
    "the three can travel together, and attention over keys that lie on several ranks is put together in the same way.",
    function="loss",
    stub=_STUB,
    reference=_loss,
    cases=(
        ([[2.0, 1.5, 1.0], [3.0, 2.0, 0.0]],),
        ([[1.0, 1.25, 0.0], [0.5, 3.0, 0.0], [2.5, 1.5, 0.0], [2.0, 1.0, -1.5]],),
        ([[4.0, 2.5, 3.5]],),
        ([[-1.0, 2.0, -3.0], [-2.0, 1.5, 0.0], [-0.5, 1.75, 0.0]],),
        ([[1000.0, 1.5, 0.0], [1002.0, 2.0, 1001.0]],),
        ([[-1000.0, 1.5, -1001.0], [-1003.0, 2.0, 0.0]],),
        ([[600.0, 2.0, 599.0], [10.0, 3.0, 0.0], [5.0, 1.25, 0.0]],),
        ([[0.0, 7.0, 0.0], [0.0, 7.0, -0.25], [0.0, 7.0, 0.0], [0.0, 7.0, 0.0]],),
        ([[0.5, 2.0, 0.0], [0.25, 1.5, 0.0]],),
        ([[3.0, 1.0, 0.0], [-2.0, 6.5, -4.0], [7.0, 1.0, 0.0]],),
        # Spread so far that only the largest of all may be taken off: at the end, for here the wrong way overflows.
        ([[-1000.0, 1.5, 0.0], [900.0, 2.0, 899.0]],),
        ([[800.0, 1.25, 0.0], [20.0, 3.0, 0.0], [-900.0, 2.0, -901.0]],),
        ([[-950.0, 2.0, 0.0], [750.0, 1.5, 0.0], [-800.0, 1.75, -801.0]],),
    ),
    mistakes=(
        Mistake(
            "not-scaled",
            lambda parts: _loss(parts, scale=lambda largest, top: 0),
            "You added the totals as they are. Each rank has taken off its own largest logit: bring them to one first.",
        ),
        Mistake(
            "wrong-way",
            lambda parts: _loss(parts, scale=lambda largest, top: top - largest),
            "You scaled the wrong way: a rank whose largest logit is below the top has less in the sum, not more.",
        ),
        Mistake(
            "largest-wanted",
            lambda parts: _loss(parts, pick=max),
            "You took the largest of the wanted logits. A logit may be negative, and the ranks that have none say "
            "0: add them.",
        ),
        Mistake("forgot-the-top", lambda parts: _loss(parts, tops=0), "The top that was taken off is not put back."),
        Mistake("negative", lambda parts: -_loss(parts), "The sign is turned: a loss is the logarithm less the logit."),
        Mistake(
            "mean-of-ranks",
            lambda parts: sum(_losses(parts)) / len(parts),
            "You took the mean of losses that each rank has of its own words. A softmax has one sum over all words.",
        ),
        Mistake(
            "sum-of-ranks",
            lambda parts: sum(_losses(parts)),
            "You added logarithms, one for each rank. The logarithm is of the sum over all words.",
        ),
        Mistake(
            "first-wanted",
            lambda parts: _loss(parts, pick=lambda logits: logits[0]),
            "You took the wanted logit of rank 0. Any rank may have the right word.",
        ),
        Mistake(
            "probability",
            lambda parts: exp(-_loss(parts)),
            "That is the probability of the right word. The loss is its logarithm, with the sign turned.",
        ),
        Mistake(
            "no-target",
            lambda parts: _loss(parts, pick=lambda logits: 0),
            "The logit of the right word is missing: take it off.",
        ),
    ),
    right="Three numbers per token cross the wire, whatever the vocabulary.",
)

EXERCISES = (SPLIT,)
