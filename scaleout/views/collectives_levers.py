"""The sentence of the view `collectives`: what the algorithm takes, and the one lever that is worth trying."""

from __future__ import annotations

from scaleout.spec.hardware import link
from scaleout.views.collectives_setting import LARGEST, LINKS, OWN, SMALLEST, TIE, Setting, setting
from scaleout.views.collectives_words import NAMES, SHORT, share, size, time

MUCH = 0.5  # of the time: then it is what to work on


def sentence(on: Setting, algorithm: str, amount: float) -> str:
    """At most two lines."""
    way = on.way(algorithm, amount)
    took = f"**{time(way.cost.seconds)}** for {size(amount)} among {on.words}"
    part = f"{share(way.share)} of it latency" if way.share > MUCH else f"{share(1 - way.share)} of it moving bytes"
    return f"{_who(on, algorithm)} {took}, {part}. {_lever(on, algorithm, amount)}"


def _who(on: Setting, algorithm: str) -> str:
    name = NAMES[algorithm]
    if on.can(algorithm):
        return "Switches that add take" if algorithm == "in-network" else f"The {name} takes".replace("The halv", "Halv")
    if algorithm != "in-network":
        return f"A textbook’s {name}, which NCCL lacks, would take"
    inside, across = LINKS[on.key][1:3] if on.key != OWN else ("", "")
    where = "your own link" if on.key == OWN else link(inside if on.cluster.nodes == 1 else across).name
    return f"If switches of {where} added, as here they do not, it would take"


def _lever(on: Setting, algorithm: str, amount: float) -> str:
    now = on.way(algorithm, amount)
    seconds = now.cost.seconds
    had = on.had(amount)
    best = min(had, key=lambda name: had[name].cost.seconds)
    if had[best].cost.seconds < seconds / (1 + TIE):
        return f"Try {_REASONS[best](had[best].cost)}: {time(had[best].cost.seconds)}."
    more = amount * 10
    if now.share > MUCH and more <= LARGEST:
        longer = on.way(algorithm, more).cost.seconds / seconds
        return f"Starts cost the same for any size: try **{size(more)}**, ten times the bytes in {longer:.2g} times the time."
    if on.key != OWN:
        key, faster = min(_elsewhere(on, algorithm, amount), key=lambda item: item[1])
        if faster < seconds / (1 + TIE):
            return f"Nothing here is faster on these links; try **{LINKS[key][-1]}**: {time(faster)}."
    less = amount / 2
    if less < SMALLEST:
        return "Nothing here is faster."
    half = on.way(algorithm, less).cost.seconds
    return f"Nothing here is faster; fewer bytes are: try **{size(less)}**, gradients in bf16 for fp32: {time(half)}."


def _elsewhere(on: Setting, algorithm: str, amount: float) -> list[tuple[str, float]]:
    """Seconds of the same by other links."""
    return [(key, setting(key, on.ranks).way(algorithm, amount).cost.seconds) for key in LINKS]


_REASONS = {
    "ring": lambda cost: f"the **{SHORT['ring']}**, whose ranks share the bytes evenly, {size(cost.sent_bytes, 4)} from each",
    "tree": lambda cost: f"the **{SHORT['tree']}**, which has {cost.steps:,} starts",
    "in-network": lambda cost: f"**{SHORT['in-network']}**, which add on the way, {size(cost.sent_bytes, 4)} from each",
    "halving-doubling": lambda cost: f"**{SHORT['halving-doubling']}**, which has {cost.steps:,} starts",
    "naive": lambda cost: f"**{SHORT['naive']}**, which has {cost.steps:,} starts",
}  # fmt: skip
