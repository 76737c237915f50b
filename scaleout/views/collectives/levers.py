"""What the view `collectives` says: what the algorithm takes, and the one lever that is worth trying."""

from __future__ import annotations

from scaleout.collectives.algorithms import Cost
from scaleout.views.collectives.links import LARGEST, LINKS, OWN_LINK, SMALLEST, TIE, Setting
from scaleout.views.collectives.words import NAMES, SHORT, share, size
from scaleout.words.amounts import took

LARGE_SHARE = 0.5  # of the time: then it is what to work on


def sentence(links: Setting, algorithm: str, amount: float) -> str:
    """What the algorithm takes, and whether it can be had. With `advice` at most two lines."""
    way = links.way(algorithm, amount)
    result = f"**{took(way.cost.seconds)}** for {size(amount)} over {links.words}"
    part = (
        f"{share(way.share)} of it latency"
        if way.share > LARGE_SHARE
        else f"{share(1 - way.share)} of it spent moving bytes"
    )
    if links.can(algorithm):
        subject = "Switches that add take" if algorithm == "in-network" else f"{_the(algorithm).capitalize()} takes"
        return f"{subject} {result}, {part}."
    if algorithm == "in-network":
        name, cost = _best(links, amount)
        instead = f"the best alternative is the **{SHORT[name]}**, {took(cost.seconds)}"
        return f"The switches here do not add: {instead}. If they did, it would take {result}, {part}."
    return f"NCCL, NVIDIA’s library, never all-reduces this way; it would take {result}."


def advice(links: Setting, algorithm: str, amount: float) -> str:
    """The lever worth trying now; "" where the sentence has said what there is instead."""
    if links.can(algorithm):
        return _lever(links, algorithm, amount)
    if algorithm == "in-network":
        return ""
    name, cost = _best(links, amount)
    faster = cost.seconds < links.way(algorithm, amount).cost.seconds / (1 + TIE)
    return f"{'Try' if faster else 'It has'} {_REASONS[name](cost)}: {took(cost.seconds)}."


def _best(links: Setting, amount: float) -> tuple[str, Cost]:
    """What takes least of all that can be had."""
    return min(((name, way.cost) for name, way in links.by_library(amount).items()), key=lambda item: item[1].seconds)


def _the(algorithm: str) -> str:
    return f"the {NAMES[algorithm]}" if algorithm in ("ring", "tree") else NAMES[algorithm]


def _lever(links: Setting, algorithm: str, amount: float) -> str:
    current = links.way(algorithm, amount)
    seconds = current.cost.seconds
    best, cost = _best(links, amount)
    if cost.seconds < seconds / (1 + TIE):
        return f"Try {_REASONS[best](cost)}: {took(cost.seconds)}."
    more_bytes = amount * 10
    if current.share > LARGE_SHARE and more_bytes <= LARGEST:
        longer = f"{links.way(algorithm, more_bytes).cost.seconds / seconds:.2g}"
        return (
            f"Latency is the same for all sizes: try **{size(more_bytes)}**, ten times the bytes in {longer} times "
            "the time."
        )
    if links.link != OWN_LINK:
        seconds_by_link = {key: links.other(link=key).way(algorithm, amount).cost.seconds for key in LINKS}
        key, faster = min(seconds_by_link.items(), key=lambda item: item[1])
        if faster < seconds / (1 + TIE):
            return f"Nothing is faster on these links; try **{LINKS[key][-1]}**: {took(faster)}."
    fewer_bytes = amount / 2
    if fewer_bytes < SMALLEST:
        return "Nothing here is faster."
    half = links.way(algorithm, fewer_bytes).cost.seconds
    return (
        f"Only a smaller message is faster here: try **{size(fewer_bytes)}**, as with bf16 instead of fp32: "
        f"{took(half)}."
    )


_REASONS = {
    "ring": lambda cost: f"the **{SHORT['ring']}**, in which each rank sends only {size(cost.sent_bytes, 4)}",
    "tree": lambda cost: f"the **{SHORT['tree']}**, which needs {cost.steps:,} hops",
    "in-network": lambda cost: f"**{SHORT['in-network']}** that add, so that each GPU sends {size(cost.sent_bytes, 4)}",
    "halving-doubling": lambda cost: f"**{SHORT['halving-doubling']}**, which needs {cost.steps:,} hops",
    "naive": lambda cost: f"**{SHORT['naive']}**, which needs {cost.steps:,} hops",
}  # fmt: skip
