"""Which lever to move in the view `recompute`: each is tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scaleout.draw.amounts import amount
from scaleout.draw.labels import took

WORTH = 0.01  # of the time for a token that a lever must save to be named
ENDS = {"tp": 8, "dp": 64}  # of the view's controls

Change = tuple[str, dict]  # words, and the parameters that they change


@dataclass(frozen=True)
class Advice:
    """A lever: the parameters that it changes, words for it, and what it gives."""

    change: dict
    words: str
    gives: str


def advice(setting) -> Advice | None:
    """What makes the step fit, the cheapest first; where it fits, what saves time. None where nothing does."""
    return _faster(setting) if setting.fits else _fitting(setting)


def pace(setting) -> float:
    """Seconds of a GPU for a token."""
    case = setting.case
    return setting.seconds * case.tp / (case.batch * case.tokens)


# --- memory ------------------------------------------------------------------------------------------------------


def _fitting(setting) -> Advice | None:
    """The least that fits; then other levers with the least that fits beside them."""
    for words, change in _for_memory(setting):
        changed = setting.changed(**change)
        if changed.least is None:
            continue
        change = change | ({"dropped": changed.least} if changed.least != setting.dropped else {})
        changed = setting.changed(**change)
        part = f"{changed.dropped}% dropped" if changed.dropped else "nothing dropped"
        phrases = [words, part if "dropped" in change else ""]
        return Advice(
            change, " and ".join(filter(None, phrases)), f"{amount(changed.peak, 10**9)}, which fits, {longer(changed)}"
        )
    return None


def _for_memory(setting) -> Iterator[Change]:
    case = setting.case
    cheap = setting.changed(way="rebuild", order="cheapest")
    variants = [setting, setting.changed(way="rebuild"), cheap]
    if case.attention == "naive":
        yield "fused attention", {"attention": "sdpa"}
    costs = [
        variant.changed(dropped=variant.least).share if variant.least is not None else None for variant in variants
    ]
    if costs[0] is not None:
        if setting.way == "offload" and costs[1] < costs[0] - WORTH:
            yield "making again", {"way": "rebuild"}
        elif setting.order != "cheapest" and setting.way == "rebuild" and costs[2] < costs[0] - WORTH:
            yield "the cheapest first", {"order": "cheapest"}
        yield "", {}
    yield from ((_sequences(n), {"batch": n}) for n in (8, 4, 2, 1) if n < case.batch)
    if case.dp < ENDS["dp"]:
        yield from ((f"states on {n * case.tp} GPUs", {"dp": n}) for n in (8, 64) if n > case.dp)
    yield from ((f"{n} tensor-parallel ranks", {"tp": n}) for n in (2, 4, 8) if n > case.tp)
    if case.dp < ENDS["dp"]:
        widest = {"dp": ENDS["dp"], "tp": ENDS["tp"], "batch": 1}
        yield "one sequence, 8 ranks a group, 64 groups", widest


def _sequences(count: int) -> str:
    return f"{count} sequence{'s' if count > 1 else ''}"


# --- time --------------------------------------------------------------------------------------------------------


def _faster(setting) -> Advice | None:
    """The first lever that saves time for a token, and fits."""
    for words, change in _for_time(setting):
        changed = setting.changed(**change)
        if changed.fits and pace(changed) < (1 - WORTH) * pace(setting):
            fits = f"{amount(changed.peak, 10**9)} fits too, "
            return Advice(
                change,
                words,
                f"{fits if 'dropped' in change else ''}{took(changed.seconds)} a step, not {took(setting.seconds)}",
            )
    return None


def _for_time(setting) -> Iterator[Change]:
    """The mildest first."""
    least = setting.least
    if setting.way == "offload":
        yield "making again", {"way": "rebuild"}
    elif setting.order != "cheapest":
        yield "the cheapest first", {"order": "cheapest"}
    if least is not None and least < setting.dropped:
        yield f"dropping {least}%" if least else "dropping nothing", {"dropped": least}
    if setting.case.attention == "naive":
        yield "fused attention", {"attention": "sdpa"}
    if setting.way == "rebuild":
        yield "moving it to the host's memory", {"way": "offload"}


def longer(setting) -> str:
    """By how much a step is longer."""
    return f"{setting.percent}% longer" if setting.longer else "in no more time"
