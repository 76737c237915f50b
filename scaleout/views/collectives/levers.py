"""The sentence of the view `collectives`: what the algorithm takes, and the one lever that is worth trying."""

from __future__ import annotations

from scaleout.collectives.algorithms import Cost
from scaleout.draw.labels import took
from scaleout.views.collectives.links import LARGEST, LINKS, OWN, SMALLEST, TIE, Setting, setting
from scaleout.views.collectives.words import NAMES, SHORT, share, size

MUCH = 0.5  # of the time: then it is what to work on


def sentence(on: Setting, algorithm: str, amount: float) -> str:
    """At most two lines."""
    way = on.way(algorithm, amount)
    found = f"**{took(way.cost.seconds)}** for {size(amount)} among {on.words}"
    part = f"{share(way.share)} of it latency" if way.share > MUCH else f"{share(1 - way.share)} of it moving bytes"
    if on.can(algorithm):
        who = "Switches that add take" if algorithm == "in-network" else f"{_the(algorithm).capitalize()} takes"
        return f"{who} {found}, {part}. {_lever(on, algorithm, amount)}"
    name, cost = _best(on, amount)
    if algorithm == "in-network":
        instead = f"the best to be had is the **{SHORT[name]}**, {took(cost.seconds)}"
        return f"The switches here do not add: {instead}. If they did, it would take {found}, {part}."
    faster = cost.seconds < way.cost.seconds / (1 + TIE)
    instead = f"{'Try' if faster else 'It has'} {_REASONS[name](cost)}: {took(cost.seconds)}."
    return f"NCCL, NVIDIA’s library, never all-reduces this way; it would take {found}. {instead}"


def _best(on: Setting, amount: float) -> tuple[str, Cost]:
    """What takes least of all that can be had."""
    return min(((name, way.cost) for name, way in on.had(amount).items()), key=lambda item: item[1].seconds)


def _the(algorithm: str) -> str:
    return f"the {NAMES[algorithm]}" if algorithm in ("ring", "tree") else NAMES[algorithm]


def _lever(on: Setting, algorithm: str, amount: float) -> str:
    now = on.way(algorithm, amount)
    seconds = now.cost.seconds
    best, cost = _best(on, amount)
    if cost.seconds < seconds / (1 + TIE):
        return f"Try {_REASONS[best](cost)}: {took(cost.seconds)}."
    more = amount * 10
    if now.share > MUCH and more <= LARGEST:
        longer = f"{on.way(algorithm, more).cost.seconds / seconds:.2g}"
        return f"Starts cost all sizes the same: try **{size(more)}**, ten times the bytes, {longer} times the time."
    if on.key != OWN:
        key, faster = min(_elsewhere(on, algorithm, amount), key=lambda item: item[1])
        if faster < seconds / (1 + TIE):
            return f"Nothing is faster on these links; try **{LINKS[key][-1]}**: {took(faster)}."
    less = amount / 2
    if less < SMALLEST:
        return "Nothing here is faster."
    half = on.way(algorithm, less).cost.seconds
    return f"Nothing is faster here but fewer bytes: try **{size(less)}**, as bf16 in place of fp32: {took(half)}."


def _elsewhere(on: Setting, algorithm: str, amount: float) -> list[tuple[str, float]]:
    """Seconds of the same by other links."""
    return [(key, setting(key, on.ranks).way(algorithm, amount).cost.seconds) for key in LINKS]


_REASONS = {
    "ring": lambda cost: f"the **{SHORT['ring']}**, in which all share the work, {size(cost.sent_bytes, 4)} from each",
    "tree": lambda cost: f"the **{SHORT['tree']}**, which has {cost.steps:,} starts",
    "in-network": lambda cost: f"**{SHORT['in-network']}**, which add on the way, {size(cost.sent_bytes, 4)} from each",
    "halving-doubling": lambda cost: f"**{SHORT['halving-doubling']}**, which has {cost.steps:,} starts",
    "naive": lambda cost: f"**{SHORT['naive']}**, which has {cost.steps:,} starts",
}  # fmt: skip
