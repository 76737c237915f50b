"""What the view `collectives` says: sizes and times for people, what a step does, and the law with its numbers."""

from __future__ import annotations

from scaleout.collectives.algorithms import Cost, fold
from scaleout.draw.parcels import Frames
from scaleout.views.collectives.links import OWN_LINK, Setting
from scaleout.words.amounts import amount, count, took

NAMES = {
    "ring": "ring", "tree": "double tree", "naive": "gather and broadcast", "halving-doubling": "halving-doubling",
    "in-network": "switches that add", "hierarchical": "hierarchical all-reduce",
}  # fmt: skip
SHORT = {
    "ring": "ring",
    "tree": "tree",
    "naive": "naive",
    "halving-doubling": "halving",
    "in-network": "switches",
}


def size(message: float, digits: int = 3) -> str:
    """Bytes for people, in powers of ten."""
    half_up = message * (1 + 1e-9)  # 1.125 is 1.13 to three digits
    return amount(half_up, digits=digits, trim=True).replace(" B", " bytes")


def share(part: float) -> str:
    """A part of a whole, without claiming all or nothing."""
    return "under 1%" if part < 0.01 else f"{part:.0%}" if part < 0.995 else "nearly all"


def under_way(shown: Frames, step: int) -> list[tuple[str, bool]]:
    """Lines for the middle of the circle, (words, bold): where the next step belongs, what it does, what is moved."""
    if step == shown.steps:
        return [("done", False), ("all hold the sum", True), (f"{shown.steps} steps", False)]
    parcels, p = shown.parcels[step], shown.ranks
    sums = [cell.bit_count() for move in parcels for cell in (shown.held[step][move.source][c] for c in move.chunks)]
    most_ranks, several = max(sums), len(parcels) > 1
    content = "the sum" if most_ranks == p else "one rank’s data" if most_ranks == 1 else f"a sum of {most_ranks}"
    parcel = f"{'sent: up to' if several and min(sums) < most_ranks else 'sent:'} {content}"
    adds = {move.adds for move in parcels}
    verb = "add and copy down" if len(adds) > 1 else "add" if True in adds else "copy"
    phase, count = "", f"step {step + 1} of {shown.steps}"
    if shown.algorithm == "ring":
        phase = f"lap {1 if True in adds else 2} of 2"
        count = f"step {step % (p - 1) + 1} of {p - 1}"
    elif shown.algorithm == "tree":
        phase = "two trees, half each"
        verb = verb if len(adds) > 1 else "add going up" if True in adds else "copy down"
    elif shown.algorithm == "naive":
        phase, verb = "all through rank 0", "gather and add" if True in adds else "broadcast"
    elif shown.algorithm == "halving-doubling":
        phase, verb = _pairs(shown, step), "swap and add" if True in adds else "copy back"
    else:
        verb = _SWITCH[step]
    return [(phase, False), (verb, True), (count, False), (parcel, False)]


_SWITCH = ("add all", "load a sum", "store it", "copy to all")


def _pairs(shown: Frames, step: int) -> str:
    parcels = shown.parcels[step]
    if len(parcels) < len(fold(shown.ranks)[1]):
        return f"{fold(shown.ranks)[0]} ranks sit out"
    part = fold(shown.ranks)[1]
    return f"partners {abs(part.index(parcels[0].source) - part.index(parcels[0].target))} apart"


def law(links: Setting, algorithm: str, amount: float, cost: Cost) -> list[str]:
    """Bytes that a rank sends, as a formula with its numbers, and the seconds that follow."""
    lead, factor = _LAWS[algorithm](links)
    formula = f"{factor} × {size(amount)} = {size(cost.sent_bytes, 4)}"
    moving = cost.seconds - cost.latency_seconds
    rate_text = f"at {size(cost.sent_bytes / moving)}/s: " if algorithm == "ring" else "bytes take "
    hops = count(cost.steps, "hop")
    return [lead, formula, f"{rate_text}{took(moving)}, and {hops}: {took(cost.latency_seconds)}"]


def _ring(links: Setting) -> tuple[str, str]:
    p = links.ranks
    return "each of W ranks sends, in two laps of W − 1 chunks,", f"2 × ({p:,} − 1)/{p:,}"


def _tree(links: Setting) -> tuple[str, str]:
    """The picture has two trees over all ranks; what is priced has a chain in each node, or more and smaller blocks."""
    nodes, gpus = links.cluster.nodes, links.cluster.gpus_per_node
    if links.link == OWN_LINK:
        text = "drawn with few blocks; computed with the number that is fastest. An inner rank of a tree sends"
    elif gpus == 1:
        text = "drawn in blocks, step by step; computed by levels, as in NCCL. An inner rank of a tree sends"
    else:
        chain = "a chain in each node and two trees between nodes" if nodes > 1 else "a chain in the node"
        text = f"drawn: two trees over all ranks; computed: NCCL’s, {chain}. The busiest GPU sends"
    return text, f"{links.sent('tree'):g}"


def _naive(links: Setting) -> tuple[str, str]:
    return "rank 0 receives W − 1 messages one by one, then sends as many:", f"({links.ranks:,} − 1)"


def _halving(links: Setting) -> tuple[str, str]:
    idle_ranks, part = fold(links.ranks)
    p = len(part)
    if idle_ranks:
        return (
            f"{idle_ranks:,} of {links.ranks:,} ranks sit out; one that stands for two sends",
            f"(2 × ({p:,} − 1)/{p:,} + 1)",
        )
    return "a half, a quarter, an eighth and so on, then back again:", f"2 × ({p:,} − 1)/{p:,}"


def _switches(links: Setting) -> tuple[str, str]:
    g, n = links.cluster.gpus_per_node, links.cluster.nodes
    if g == 1:
        return "each sends its message once, to switches that add:", "1"
    across_text = f" + 1/{g}" if n > 1 else ""
    action = "each sends its message and stores its part of the sum"
    return f"{action}{', which also goes between nodes' if n > 1 else ''}:", f"(1 + 1/{g:,}{across_text})"


_LAWS = {"ring": _ring, "tree": _tree, "naive": _naive, "halving-doubling": _halving, "in-network": _switches}
