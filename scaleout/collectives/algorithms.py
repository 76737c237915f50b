"""Seconds, steps and bytes of each algorithm of each collective, as closed formulas on a cluster.

Every formula takes (size in bytes, Cluster) and gives a `Cost`. `scaleout.collectives.alpha_beta` says what size
means, checks what it is given, and is what the rest of the book calls.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from scaleout.spec.topology import Cluster

MOST_BLOCKS = 65_536  # of a pipeline; reached only where a message costs nothing to start


@dataclass(frozen=True)
class Cost:
    """One collective. Bytes are those of the busiest rank; `latency_seconds` is the part of `seconds` due to alpha."""

    steps: int
    sent_bytes: float
    received_bytes: float
    seconds: float
    latency_seconds: float


NOTHING = Cost(0, 0.0, 0.0, 0.0, 0.0)  # one rank has nobody to talk to


def height(ranks: int) -> int:
    """Edges from the root of NCCL's binary tree down to its deepest leaf: log2 of the ranks, rounded up."""
    return (ranks - 1).bit_length()


def _hop(cluster: Cluster, inside: float | None, network: float | None) -> tuple[float, float]:
    """(seconds, alpha) of a step: a rank moves `inside` bytes, a node `network` bytes; None: nothing goes there."""
    hops = [
        (wire.seconds(size), wire.alpha_seconds)
        for wire, size in ((cluster.near, inside), (cluster.pool, network))
        if size is not None
    ]
    return max(hops, default=(0.0, 0.0))


def _along(cluster: Cluster, size: float) -> tuple[float, float]:
    """`_hop` of a step in which every rank sends `size` bytes to the next one: one rank of a node sends outside."""
    return _hop(cluster, size if cluster.gpus_per_node > 1 else None, size if cluster.nodes > 1 else None)


def _total(hops: list[tuple[int, tuple[float, float]]], sent: float, received: float | None = None) -> Cost:
    """The cost of stages, each (steps, `_hop` of one of them)."""
    return Cost(
        sum(steps for steps, _ in hops),
        sent,
        sent if received is None else received,
        math.fsum(steps * seconds for steps, (seconds, _) in hops),
        math.fsum(steps * alpha for steps, (_, alpha) in hops),
    )


def _rounds(rounds: int) -> Callable[[float, Cluster], Cost]:
    """`rounds` times round the ring, a p-th of the message in each step (Patarasuk and Yuan 2009).

    A rank waits for the part that it passes on, not for all other ranks. So the latencies add up along the way of one
    part, which leaves a node at every g-th of its hops, and the slowest link sets the pace of the bytes. NCCL counts
    so too (src/graph/tuning.cc; for half a ring it has one hop between nodes less).
    """

    def ring(size: float, cluster: Cluster) -> Cost:
        steps = rounds * (cluster.ranks - 1)
        node_hops = -(-steps // cluster.gpus_per_node) if cluster.nodes > 1 else 0
        latency = node_hops * cluster.pool.alpha_seconds + (steps - node_hops) * cluster.near.alpha_seconds
        sent = steps * size / cluster.ranks
        return Cost(steps, sent, sent, latency + sent / cluster.slowest().bytes_per_s, latency)

    return ring


def _star(ways: int) -> Callable[[float, Cluster], Cost]:
    """Rank 0 deals with the others one by one: ways = 2 gathers, then broadcasts; 1 broadcasts."""

    def star(size: float, cluster: Cluster) -> Cost:
        p, g = cluster.ranks, cluster.gpus_per_node
        node, network = _hop(cluster, size, None), _hop(cluster, None, size)
        total = (p - 1) * size
        received = total if ways == 2 else min(total, size)
        return _total([(ways * (g - 1), node), (ways * (p - g), network)], total, received)

    return star


def _tree(size: float, cluster: Cluster) -> Cost:
    """Double binary tree: half the message up and down each of two trees, in k blocks (Sanders, Speck and Traff 2009).

    An inner rank of one tree is a leaf of the other, so a step moves at most two blocks of size / 2k each way. Up:
    height + k - 1 steps, down the same: 2 (h + k - 1) (alpha + size / (k rate)), smallest near k = sqrt((h - 1) size /
    (alpha rate)). An upper bound: the first and last steps move less. All ranks are on one wire: what NCCL makes of
    a tree on nodes of several GPUs, a chain in each, is in `scaleout.collectives.nccl`. ValueError for such nodes.
    """
    if cluster.nodes > 1 and cluster.gpus_per_node > 1:
        raise ValueError("a double binary tree is for ranks on one wire: for nodes of several GPUs use nccl.choices")
    if cluster.ranks == 1:
        return NOTHING
    wire, h, blocks_a_step = cluster.slowest(), height(cluster.ranks), 1 if cluster.ranks == 2 else 2

    def blocked(k: int) -> Cost:
        hop = (wire.seconds(blocks_a_step * size / (2 * k)), wire.alpha_seconds)
        return _total([(2 * (h + k - 1), hop)], 0.5 * min(cluster.ranks, 4) * size)

    fill = (h - 1) * blocks_a_step * size / 2 / wire.bytes_per_s
    return min((blocked(k) for k in _blocks(fill, wire.alpha_seconds, size / 2)), key=lambda cost: cost.seconds)


def _blocks(fill: float, alpha: float, size: float) -> set[int]:
    """Numbers of blocks around the best: k blocks of at least a byte, cost k * alpha + fill / k but for a constant."""
    limit = max(1, min(MOST_BLOCKS, math.floor(size)))
    ideal = math.sqrt(fill / alpha) if alpha else math.inf if fill else 1.0
    return {1, *(max(1, min(limit, k)) for k in ((math.floor(ideal), math.ceil(ideal)) if ideal < limit else (limit,)))}


@lru_cache(maxsize=1024)
def _loads(gpus_per_node: int, pairs: Callable[[int, int], list[tuple[int, int]]], ranks: int, distance: int):
    """(whether any pair stays in its node, pairs that leave or enter the busiest node) of a step."""
    hops = [(a // gpus_per_node, b // gpus_per_node) for a, b in pairs(ranks, distance)]
    crossing = [hop for hop in hops if hop[0] != hop[1]]
    busiest = max((n for side in (0, 1) for n in Counter(hop[side] for hop in crossing).values()), default=0)
    return len(crossing) < len(hops), busiest


def _pairs(size: float, cluster: Cluster, pairs: Callable, distance: int = 0) -> tuple[float, float]:
    """`_hop` of a step in which each (source, target) of pairs(ranks, distance) moves `size` bytes."""
    if cluster.nodes == 1:
        return _hop(cluster, size, None)
    stays, crossings = _loads(cluster.gpus_per_node, pairs, cluster.ranks, distance)
    return _hop(cluster, size if stays else None, crossings * size if crossings else None)


def fold(ranks: int) -> tuple[int, list[int]]:
    """(ranks that sit out, the ranks that take part): a power of two takes part, each of the first `folded` odd ranks
    for itself and the even rank before it (Thakur, Rabenseifner and Gropp 2005)."""
    power = 2 ** (ranks.bit_length() - 1)
    folded = ranks - power
    return folded, [2 * i + 1 if i < folded else i + folded for i in range(power)]


def _halving_doubling(size: float, cluster: Cluster) -> Cost:
    """Vector halving with distance doubling, then back (Thakur, Rabenseifner and Gropp 2005)."""
    if cluster.ranks == 1:
        return NOTHING
    power = 2 ** (cluster.ranks.bit_length() - 1)
    folded = cluster.ranks - power
    hops = [(2, _pairs(size, cluster, _folded))] if folded else []
    for k in range(height(power)):
        hops.append((2, _pairs(size / 2 ** (k + 1), cluster, _partners, 2**k)))
    moved = 2 * (power - 1) / power * size + (size if folded else 0)
    return _total(hops, moved)


def _folded(ranks: int, distance: int) -> list[tuple[int, int]]:
    return [(2 * i, 2 * i + 1) for i in range(fold(ranks)[0])]


def _partners(ranks: int, distance: int) -> list[tuple[int, int]]:
    part = fold(ranks)[1]
    return [(rank, part[i ^ distance]) for i, rank in enumerate(part)]


def _hierarchical(size: float, cluster: Cluster) -> Cost:
    """Reduce-scatter in each node, a ring between nodes for each GPU's part, all-gather in each node."""
    g, n = cluster.gpus_per_node, cluster.nodes
    node, network = _hop(cluster, size / g, None), _hop(cluster, None, size / n)  # all GPUs of a node send size / (g n)
    return _total([(2 * (g - 1), node), (2 * (n - 1), network)], (2 * (g - 1) / g + 2 * (n - 1) / n / g) * size)


def _in_network(size: float, cluster: Cluster) -> Cost:
    """Switches that add, streaming: no rank's bytes are sent on by another rank.

    Inside a node (NVLink SHARP, as NCCL's NVLS uses it) each of g ranks takes charge of 1/g: it loads that part, which
    the switch adds up from all, and stores the sum, which the switch copies to all. So a rank sends size (1 + 1/g), and
    receives as much; a load and a store go to the switch and back. Between nodes (SHARP; Graham et al. 2016) each GPU
    sends its size / g once and receives it once.
    """
    g, n = cluster.gpus_per_node, cluster.nodes
    stages, moved = [], 0.0
    if g > 1:
        moved += size * (1 + 1 / g)
        stages.append((4, cluster.near, moved))
    if n > 1:
        moved += size / g
        stages.append((2, cluster.pool, size))
    latency = math.fsum(steps * wire.alpha_seconds for steps, wire, _ in stages)
    streaming = math.fsum(size_moved / wire.bytes_per_s for _, wire, size_moved in stages)
    return Cost(sum(steps for steps, *_ in stages), moved, moved, latency + streaming, latency)


def _binomial(size: float, cluster: Cluster) -> Cost:
    """Ranks that hold the message double in each step (Thakur, Rabenseifner and Gropp 2005)."""
    h = height(cluster.ranks)
    hops = [(1, _pairs(size, cluster, _doubling, 2**k)) for k in range(h)]
    return _total(hops, h * size, size if h else 0.0)


def _doubling(ranks: int, distance: int) -> list[tuple[int, int]]:
    return [(a, a + distance) for a in range(0, ranks - distance, 2 * distance)]


def _chain(size: float, cluster: Cluster) -> Cost:
    """A ring cut open: rank r passes the message to r + 1 in k blocks, (p + k - 2)(alpha + size / (k rate))."""
    p = cluster.ranks
    if p == 1:
        return NOTHING
    slow = cluster.slowest()

    def blocked(k: int) -> Cost:
        return _total([(p + k - 2, _along(cluster, size / k))], size)

    options = _blocks((p - 2) * size / slow.bytes_per_s, slow.alpha_seconds, size)
    return min((blocked(k) for k in options), key=lambda cost: cost.seconds)


def _pairwise(size: float, cluster: Cluster) -> Cost:
    """In step s each rank sends its part for the rank s further on. Of a node, min(s, g, p - s) ranks send outside."""
    p, g, part = cluster.ranks, cluster.gpus_per_node, size / cluster.ranks
    if cluster.nodes == 1:
        return _total([(p - 1, _hop(cluster, part, None))], (p - 1) * part)
    hops = [(1, _hop(cluster, part if s < g or s > p - g else None, min(s, g, p - s) * part)) for s in range(1, p)]
    return _total(hops, (p - 1) * part)


def _direct(size: float, cluster: Cluster) -> Cost:
    """Rank 0 to the last rank."""
    if cluster.ranks == 1:
        return NOTHING
    return _total([(1, _hop(cluster, size, None) if cluster.nodes == 1 else _hop(cluster, None, size))], size)


FORMULAS = {
    ("all_reduce", "naive"): _star(2), ("all_reduce", "ring"): _rounds(2), ("all_reduce", "tree"): _tree,
    ("all_reduce", "halving-doubling"): _halving_doubling, ("all_reduce", "hierarchical"): _hierarchical,
    ("all_reduce", "in-network"): _in_network, ("reduce_scatter", "ring"): _rounds(1),
    ("all_gather", "ring"): _rounds(1), ("broadcast", "naive"): _star(1), ("broadcast", "tree"): _binomial,
    ("broadcast", "ring"): _chain, ("all_to_all", "pairwise"): _pairwise, ("send", "direct"): _direct,
}  # fmt: skip
