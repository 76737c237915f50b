"""The exercise of `capstone` on a prediction: fit measured step times, and predict twice the ranks."""

from __future__ import annotations

from collections.abc import Mapping

from scaleout.exercises.engine import Function, Mistake

_STUB = '''\
def predict_double(measured):
    """Milliseconds per step on twice the largest number of ranks.

    measured: milliseconds per step by number of ranks, for the
        same work, such as {1: 2000, 2: 1200, 4: 800}
    """
    return ...
'''

_SOLUTION = """\
def predict_double(measured):
    x = [1 / ranks for ranks in measured]             # t = a / ranks + b is a line in x
    t = list(measured.values())
    mean_x, mean_t = sum(x) / len(x), sum(t) / len(t)
    a = (sum((p - mean_x) * (q - mean_t) for p, q in zip(x, t))
         / sum((p - mean_x) ** 2 for p in x))
    b = mean_t - a * mean_x
    return round(a / (2 * max(measured)) + b)
"""


def fit(measured: Mapping[int, float], shape=lambda ranks: 1 / ranks) -> tuple[float, float]:
    """(a, b) of t = a by(ranks) + b, by least squares. ValueError for fewer than two sizes."""
    if len(measured) < 2:
        raise ValueError("a line needs the times of two sizes or more")
    x, t = [shape(ranks) for ranks in measured], list(measured.values())
    mean_x, mean_t = sum(x) / len(x), sum(t) / len(t)
    a = sum((p - mean_x) * (q - mean_t) for p, q in zip(x, t, strict=True)) / sum((p - mean_x) ** 2 for p in x)
    return a, mean_t - a * mean_x


def double(measured: Mapping[int, float]) -> float:
    """Of t = a / ranks + b, fitted, on twice the most ranks."""
    a, b = fit(measured)
    return a / (2 * max(measured)) + b


def _as(name: str, wrong, message: str) -> Mistake:
    """A mistake in the fit, whose result is rounded as the prompt asks."""
    return Mistake(name, lambda measured: round(wrong(measured)), message)


def _along_ranks(measured: dict[int, float]) -> float:
    a, b = fit(measured, shape=float)
    return a * 2 * max(measured) + b


def _last_ratio(measured: dict[int, float]) -> float:
    previous, last = sorted(measured)[-2:]
    return measured[last] ** 2 / measured[previous]


_SHOWN = {1: 2000, 2: 1200, 4: 800}

DOUBLE = Function(
    key="predict-double",
    level=3,
    minutes=12,
    title="Twice the GPUs",
    prompt="You measured the same work on several numbers of ranks. Write `predict_double(measured)`: the milliseconds "
    "per step on **twice the largest number of ranks**, rounded, by a least-squares fit of t(W) = a/W + b to **all** "
    "points.\n\nThen predict your own run. Measure 1 and 2 processes with `python labs/scaling.py --worlds 1,2 --mode "
    "strong --strategies fsdp --folder my-runs`. Predict the step time on 4, divide the tokens per step by it, and "
    "let the lab measure:\n\n"
    "`python labs/scaling.py --mode strong --strategies fsdp --folder my-runs --predict 4:TOKENS_PER_SECOND`",
    hints=(
        "With x = 1/W the model is a straight line, t = a x + b.",
        "Slope a: the sum of (x − mean x)(t − mean t), divided by the sum of (x − mean x)². Then b = mean t − a × mean "
        "x.",
        "Twice the largest number of ranks: `2 * max(measured)`.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    f"{{1: 2000, 2: 1200, 4: 800}} gives {double(_SHOWN):.0f} ms on 8 ranks. No number of ranks goes below b. The fit "
    "assumes that the part that is not divided is constant. So it is too optimistic beyond a knee, where communication "
    "stops hiding, and for processes that share the cores of one machine. Say why you expect yours to hold.",
    function="predict_double",
    stub=_STUB,
    reference=lambda measured: round(double(measured)),
    # With noise that a fit averages out, so that the answers are whole numbers whether rounded or not. Some scale
    # better than ideal (b below 0), one gets slower with more ranks (a below 0).
    cases=(
        (_SHOWN,),
        ({4: 10_400, 8: 5600},),
        ({1: 1960, 2: 1320, 4: 720},),
        ({8: 4060, 16: 2340, 32: 1340},),
        ({2: 3000, 1: 5200},),
        ({2: 3470, 3: 2560, 6: 1470},),
        ({5: 2300, 1: 9580, 3: 3720},),
        ({1: 4080, 2: 2060, 4: 910},),
        ({3: 1980, 6: 1000, 12: 370},),
        ({7: 3500, 14: 1650},),
        ({1: 890, 2: 1130, 4: 1180},),
    ),
    mistakes=(
        _as(
            "linear",
            lambda measured: measured[max(measured)] / 2,
            "You halved the last time, which is linear scaling. The part that is not divided stays.",
        ),
        _as(
            "last-ratio",
            _last_ratio,
            "You applied the last ratio once more. A doubling halves only the part a/W, so the ratio gets worse.",
        ),
        _as(
            "along-ranks",
            _along_ranks,
            "You fitted a straight line over the number of ranks. The model a/W + b is a line over 1/W.",
        ),
        _as(
            "last-two",
            lambda measured: double({p: measured[p] for p in sorted(measured)[-2:]}),
            "You used the last two points. Use all of them, or one noisy run decides.",
        ),
        _as(
            "first-last",
            lambda measured: double({p: measured[p] for p in (min(measured), max(measured))}),
            "You used the first and the last point. Use all of them, or one noisy run decides.",
        ),
        _as(
            "divided-alone",
            lambda measured: fit(measured)[0] / 2 / max(measured),
            "That is the part that is divided. The other part is needed at every size too.",
        ),
        _as(
            "not-below-linear",
            lambda measured: fit(measured)[0] / 2 / max(measured) + max(0, fit(measured)[1]),
            "You did not let b go below 0. The fit may: the speed-up can be larger than the number of ranks, where "
            "smaller parts fit a cache.",
        ),
        _as(
            "not-doubled",
            lambda measured: fit(measured)[0] / max(measured) + fit(measured)[1],
            "That is the fit at the largest number of ranks measured. The question is twice as many.",
        ),
        _as(
            "limit",
            lambda measured: fit(measured)[1],
            "That is b, the limit for very many ranks. Twice as many ranks are not that many.",
        ),
    ),
    right="Now compare with a real run: python labs/scaling.py --predict.",
)

EXERCISES = (DOUBLE,)
