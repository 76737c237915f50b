"""Which control to move in the view `recompute`: each is tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator

from scaleout.views import lever
from scaleout.views.lever import Change, Lever
from scaleout.words.amounts import amount, count, took

WORTH = 0.01  # of the time for a token that a lever must save to be named
ENDS = {"tp": 8, "dp": 64}  # of the view's controls


def sentence(setting) -> str:
    """The one lever worth trying now, and its result."""
    if not setting.fits:
        otherwise = "Nothing here makes it fit."
    elif setting.dropped == setting.least > 0:
        otherwise = "That is the least that fits."
    else:
        otherwise = f"No lever here saves {WORTH:.0%} of the time."
    return lever.sentence(advice(setting), otherwise)


def advice(setting) -> Lever | None:
    """What makes the step fit, the cheapest first; if it fits, what saves time. None where nothing does."""
    return _faster(setting) if setting.fits else _fitting(setting)


def pace(setting) -> float:
    """Seconds of a GPU for a token."""
    case = setting.case
    return setting.seconds * case.tp / (case.batch * case.tokens)


# --- memory ------------------------------------------------------------------------------------------------------


def _fitting(setting) -> Lever | None:
    """The least that fits; then other levers, each with the least that then fits."""
    return lever.first(
        lever.tried(setting, _with_least(setting)),
        lambda trial: True,
        lambda trial: f"it needs {amount(trial.peak, 10**9)}, fits, and is {longer(trial)}",
    )


def _with_least(setting) -> Iterator[Change]:
    """Levers that make it fit, each with the least that has to be freed with it."""
    for words, change in _for_memory(setting):
        least = setting.other(**change).least
        if least is not None and least != setting.dropped:
            part = f"{least}% freed" if least else "nothing freed"
            yield " and ".join(filter(None, (words, part))), change | {"dropped": least}
        elif least is not None:
            yield words, change


def _for_memory(setting) -> Iterator[Change]:
    case = setting.case
    cheap = setting.other(way="rebuild", order="cheapest")
    variants = [setting, setting.other(way="rebuild"), cheap]
    if case.attention == "naive":
        yield "fused attention", {"attention": "sdpa"}
    costs = [variant.other(dropped=variant.least).share if variant.least is not None else None for variant in variants]
    if costs[0] is not None:
        if setting.way == "offload" and costs[1] < costs[0] - WORTH:
            yield "recomputing", {"way": "rebuild"}
        elif setting.order != "cheapest" and setting.way == "rebuild" and costs[2] < costs[0] - WORTH:
            yield "cheapest first", {"order": "cheapest"}
        yield "", {}
    yield from ((count(n, "sequence"), {"batch": n}) for n in (8, 4, 2, 1) if n < case.batch)
    if case.dp < ENDS["dp"]:
        yield from ((f"states sharded over {n * case.tp} GPUs", {"dp": n}) for n in (8, 64) if n > case.dp)
    yield from ((f"{n} tensor-parallel ranks", {"tp": n}) for n in (2, 4, 8) if n > case.tp)
    if case.dp < ENDS["dp"]:
        widest = {"dp": ENDS["dp"], "tp": ENDS["tp"], "batch": 1}
        yield "1 sequence, 8-way TP, FSDP over 64", widest


# --- time --------------------------------------------------------------------------------------------------------


def _faster(setting) -> Lever | None:
    """The first lever that saves time for a token, and fits."""
    best = lever.first(
        lever.tried(setting, _for_time(setting)),
        lambda trial: trial.fits and pace(trial) < (1 - WORTH) * pace(setting),
        lambda trial: f"it takes {took(trial.seconds)} instead of {took(setting.seconds)}",
    )
    if best and "dropped" in best.change:
        takes = best.gives.removeprefix("it ")
        return best.giving(f"it needs {amount(best.after.peak, 10**9)}, fits too, and {takes}")
    return best


def _for_time(setting) -> Iterator[Change]:
    """The mildest first."""
    least = setting.least
    if setting.way == "offload":
        yield "recomputing", {"way": "rebuild"}
    elif setting.order != "cheapest":
        yield "cheapest first", {"order": "cheapest"}
    if least is not None and least < setting.dropped:
        yield f"freeing {least}%" if least else "freeing nothing", {"dropped": least}
    if setting.case.attention == "naive":
        yield "fused attention", {"attention": "sdpa"}
    if setting.way == "rebuild":
        yield "offloading to CPU", {"way": "offload"}


def longer(setting) -> str:
    """By how much a step is longer."""
    return f"{setting.percent}% longer" if setting.longer else "no longer"
