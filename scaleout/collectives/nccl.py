"""The time of a collective on the links of `hardware.LINKS` with NCCL, for each algorithm and protocol.

One alpha and one rate a link do not hold from 1 kB to 1 GB. NCCL has three protocols that trade the one for the other,
and takes for every call the algorithm and protocol that its own estimate finds fastest; so does this module, with the
constants of `scaleout.spec.protocols`. Wires that are no link of the tables (a calibrated one) have one protocol,
their own.

Latencies, rates and the 0.92 of trees are NCCL's; the share of a link's rate that is reached is measured
(`hardware.REACHED`). What a machine reaches also changes with NCCL's settings: eight nodes of 8 H100 by 22% with
NCCL_MIN_CTAS=24 (NVIDIA/nccl-tests, issue 309). On one node of H100 this module goes over to the switches a size early,
at 1 MiB where NCCL does at 2. Against published sweeps: tests/collectives/test_nccl.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from scaleout.collectives import alpha_beta
from scaleout.collectives.algorithms import NOTHING, Cost
from scaleout.spec.hardware import LINKS, SWITCHES_REACH
from scaleout.spec.protocols import (
    CALL,
    HOPS,
    LL128_OF_ONE_GPU_A_NODE,
    LL_AT_MOST,
    POST,
    PROTOCOLS,
    RING_SHARE,
    TREE_LL128_IN_A_NODE,
    TREE_SHARE,
)
from scaleout.spec.topology import Cluster, Wire

# All-reduce by switches that add, within a node: (seconds to start, share of the rate that is otherwise reached) for
# short and for long messages. 23 us is NCCL's; 0.54 and 75 us are fitted to one sweep, 8 H200 by NCCL 2.30.7
# (stas00/ml-engineering, network/benchmarks/README.md): blocks have to fill the switches before they stream.
SWITCHES = ((23e-6, 0.54), (75e-6, 1.0))

# GPUs of one NVLink domain up to which switches were measured: nodes of 8, and a rack of 72 GB200, whose bus bandwidth
# is that of 8 B200 (839 and 838 GB/s: coreweave/nccl-tests, pull request 43; stas00/ml-engineering). The formula of
# bytes alone would have it grow by a quarter.
SWITCHED, AS_EIGHT = 72, 8

# Over nodes each node adds in its switches, and a tree joins the nodes. NCCL counts 14 us a level, and of the adapters'
# rate 5/6, half of that on more than two nodes.
SWITCH_TREE_LEVEL, SWITCH_TREE_SHARE = 14e-6, 5 / 6

# What trees over nodes of several GPUs reach of 0.92 of their adapters' rate: (bytes, share), with a straight line over
# the logarithm between. Fitted to 4 to 16 MiB on four nodes of 8 H100 (NVIDIA/nccl-tests, issue 309), and to 16 GiB on
# four nodes of 8 B200 (togethercomputer/together-nccl-tests). NCCL's own corrections there are 0.7 to 0.9 and 0.9 to 1;
# what was measured is lower. With one GPU a node, and between partitions of GB200, all of it is reached (issue 232 of
# NVIDIA/nccl-tests; issue 1801 of NVIDIA/nccl): the latter are predicted here at half of what they reach.
TREE_REACHES = ((2**24, 0.35), (2**28, 0.57))


@dataclass(frozen=True)
class Choice:
    """One way to run a collective. protocol: "" on wires that have none."""

    algorithm: str
    protocol: str
    cost: Cost

    @property
    def seconds(self) -> float:
        return self.cost.seconds


def choices(collective: str, size: float, cluster: Cluster) -> list[Choice]:
    """The ways NCCL has for `size` bytes (see `collectives`) on these nodes: fewer for all but all_reduce.

    An all-to-all is sends and receives of all pairs: what is for other nodes shares the adapters.

    ValueError for an unknown collective, one that NCCL has no ring of, a size below 0.
    """
    algorithm = "pairwise" if collective == "all_to_all" else "ring"
    alpha_beta.check(collective, algorithm, size, cluster.ranks)
    if cluster.ranks == 1:
        return [Choice(algorithm, "", NOTHING)]
    known = protocols(cluster)
    options = [
        Choice(algorithm, protocol, _called(collective, algorithm, protocol, size, cluster)) for protocol in known
    ]
    if collective != "all_reduce":
        return options
    if _custom(cluster):
        if min(cluster.nodes, cluster.gpus_per_node) == 1:
            options.append(Choice("tree", "", alpha_beta.cost_on(collective, "tree", size, cluster)))
        return options
    return options + _tree_choices(size, cluster)


def _tree_choices(size: float, cluster: Cluster) -> list[Choice]:
    """What an all-reduce over links has beside rings."""
    options = [Choice("tree", protocol, _tree(protocol, size, cluster)) for protocol in protocols(cluster)]
    if _switched(cluster):
        options.append(Choice("in-network", "Simple", _switches(size, cluster)))
    return options


def _switched(cluster: Cluster) -> bool:
    """Whether there are switches that add."""
    return 1 < cluster.gpus_per_node <= SWITCHED and cluster.inside.link in SWITCHES_REACH


def _ring_line(collective: str, protocol: str, cluster: Cluster) -> tuple[float, int, float, float]:
    """(latency, steps, bytes per second, seconds of the call) of a ring by this protocol, for any size."""
    effective = _effective(protocol, cluster)
    empty = alpha_beta.cost_on(collective, "ring", 0, effective)
    call = CALL["ring"][PROTOCOLS.index(protocol)]
    return empty.latency_seconds, empty.steps, effective.slowest().bytes_per_s, call


def price(collective: str, size: float, cluster: Cluster) -> Choice:
    """The fastest of `choices`."""
    return min(choices(collective, size, cluster), key=lambda choice: choice.seconds)


def seconds(collective: str, cluster: Cluster) -> Callable[[float], float]:
    """A function from bytes to the seconds of `price`; sizes seen before are not priced again.

    A widget prices thousands of messages: what does not depend on their size is found once.
    """
    known: dict[float, float] = {}
    if cluster.ranks == 1 or collective == "all_to_all" or _custom(cluster):
        rings, with_trees = [], False
    else:
        rings = [_ring_line(collective, protocol, cluster) for protocol in protocols(cluster)]
        with_trees = collective == "all_reduce"
        trees = [_tree_line(protocol, cluster) for protocol in protocols(cluster)] if with_trees else []

    def priced(size: float) -> float:
        if size not in known:
            known[size] = _priced(size) if rings and size >= 0 else price(collective, size, cluster).seconds
        return known[size]

    def _priced(size: float) -> float:
        p = cluster.ranks
        options = [latency + steps * size / p / rate + call for latency, steps, rate, call in rings]
        if with_trees:
            reached = _tree_reaches(size, cluster)
            options += [latency + size * max(inside, network / reached) for latency, inside, network in trees]
            options += [_switches(size, cluster).seconds] if _switched(cluster) else []
        return min(options)

    return priced


def protocols(cluster: Cluster) -> tuple[str, ...]:
    """What NCCL uses on such nodes: LL128 only where all of a node is NVLink and adapters reach the GPUs' memory.

    ("",) on wires that are no links of the tables.
    """
    if _custom(cluster):
        return ("",)
    nvlink = cluster.gpus_per_node == 1 or LINKS[cluster.near.link].scope == "between GPUs"
    direct = cluster.nodes == 1 or _beyond(cluster.across) <= 0
    return PROTOCOLS if nvlink and direct else ("LL", "Simple")


def textbook(collective: str, algorithm: str, size: float, cluster: Cluster) -> Cost:
    """An algorithm of `collectives` by the fastest protocol, at what a ring pays: for what NCCL does not have."""
    if cluster.ranks == 1:
        return NOTHING
    return min(
        (_called(collective, algorithm, protocol, size, cluster) for protocol in protocols(cluster)),
        key=lambda cost: cost.seconds,
    )


# --- one way each ---------------------------------------------------------------------------------------------


def _lines(cluster: Cluster) -> list[Wire]:
    """What a group of several ranks goes over: a GPU's wire in its node, a node's adapters."""
    return [cluster.near] * (cluster.gpus_per_node > 1) + [cluster.pool] * (cluster.nodes > 1)


@lru_cache(maxsize=256)
def _custom(cluster: Cluster) -> bool:
    """Whether a wire is no link of the tables, so that it has no protocols."""
    return not all(line.link for line in _lines(cluster))


def _beyond(wire: Wire) -> float:
    """Seconds of a hop beyond its link's own: a path through the hosts' memory and TCP (see `topology`)."""
    return wire.alpha_seconds - LINKS[wire.link].alpha_seconds


def _hop(wire: Wire, algorithm: str, protocol: str) -> float:
    return HOPS[algorithm][LINKS[wire.link].scope][PROTOCOLS.index(protocol)] + _beyond(wire)


def _rate(line: Wire, protocol: str, share: float, nodes: int) -> float:
    """Bytes per second that a long message reaches on a line by a protocol which leaves `share` for data."""
    rate = line.bytes_per_s * LINKS[line.link].reached * share
    return min(rate, LL_AT_MOST["node" if nodes == 1 else "nodes"]) if protocol == "LL" else rate


def _called(collective: str, algorithm: str, protocol: str, size: float, cluster: Cluster) -> Cost:
    """`cost_on` with wires as a ring of this protocol finds them, and what the call itself takes."""
    if _custom(cluster):
        return alpha_beta.cost_on(collective, algorithm, size, cluster)
    cost = alpha_beta.cost_on(collective, algorithm, size, _effective(protocol, cluster))
    call = CALL["ring"][PROTOCOLS.index(protocol)]
    return replace(cost, seconds=cost.seconds + call, latency_seconds=cost.latency_seconds + call)


@lru_cache(maxsize=256)  # a widget prices many sizes on few clusters
def _effective(protocol: str, cluster: Cluster) -> Cluster:
    """The cluster with wires as a ring of this protocol finds them."""
    alone = cluster.gpus_per_node == 1 and protocol == "LL128"
    share = LL128_OF_ONE_GPU_A_NODE if alone else RING_SHARE[protocol]
    post = POST[PROTOCOLS.index(protocol)] if cluster.nodes > 1 else 0.0
    inside, pool = (
        Wire(max(_hop(wire, "ring", protocol), post), _rate(wire, protocol, share, cluster.nodes))
        if wire.link
        else wire
        for wire in (cluster.near, cluster.pool)
    )
    driven = min(cluster.nics_per_node, cluster.gpus_per_node)
    nic = Wire(pool.alpha_seconds, pool.bytes_per_s / driven)
    return replace(cluster, inside=inside, across=nic)


def _tree(protocol: str, size: float, cluster: Cluster) -> Cost:
    """Up and down a chain in each node, and a double tree between nodes."""
    n, g = cluster.nodes, cluster.gpus_per_node
    latency, inside, network = _tree_line(protocol, cluster)
    moved = max((_crossings(n) if n > 1 else 0) + (g > 1), 2 if g > 2 else 0) * size
    seconds = latency + size * max(inside, network / _tree_reaches(size, cluster))
    return Cost(2 * sum(k for k, _ in _tree_hops(cluster)), moved, moved, seconds, latency)


def _crossings(nodes: int) -> float:
    """Messages that leave the busiest node: each of two trees has half of the message, and a node passes it up one as
    a leaf, and up the other and down to its children as an inner node: one child of two nodes, two of four."""
    return 0.5 * min(nodes, 4)


def _tree_hops(cluster: Cluster) -> list[tuple[int, Wire]]:
    n, g = cluster.nodes, cluster.gpus_per_node
    return [(g - 1, cluster.near)] * (g > 1) + [(_levels(n), cluster.pool)] * (n > 1)


def _tree_line(protocol: str, cluster: Cluster) -> tuple[float, float, float]:
    """(tuning.cc's latency, seconds a byte in a node, seconds a byte between nodes) of a tree by this protocol. A GPU
    passes the whole message on up its node's chain and down; over nodes `_tree_reaches` a part of the rate."""
    share = TREE_LL128_IN_A_NODE if protocol == "LL128" and cluster.nodes == 1 else TREE_SHARE[protocol]
    hops = sum(k * _hop(line, "tree", protocol) for k, line in _tree_hops(cluster))
    n, node, pool = cluster.nodes, cluster.near, cluster.pool
    inside = 2 / _rate(node, protocol, share, n) if cluster.gpus_per_node > 1 else 0.0
    network = _crossings(n) / _rate(pool, protocol, share, n) if n > 1 else 0.0
    return CALL["tree"][PROTOCOLS.index(protocol)] + 2 * hops, inside, network


def _switches(size: float, cluster: Cluster) -> Cost:
    """Switches that add: alone in a node; over nodes with a tree between them, where only long blocks are sent."""
    g, n = cluster.gpus_per_node, cluster.nodes
    eight = max(1.0, (1 - 1 / g) / (1 - 1 / AS_EIGHT) * (1 + 1 / AS_EIGHT) / (1 + 1 / g))
    full = cluster.near.bytes_per_s * SWITCHES_REACH[cluster.inside.link] / (1 + 1 / g) / eight
    moved = (1 + 1 / g) * size
    if n == 1:
        ways = [Cost(4, moved, moved, start + size / (full * share), start) for start, share in SWITCHES]
        return min(ways, key=lambda cost: cost.seconds)
    adapters = cluster.pool.bytes_per_s * LINKS[cluster.pool.link].reached * SWITCH_TREE_SHARE
    latency = SWITCHES[-1][0] + 2 * _levels(n) * (SWITCH_TREE_LEVEL + _beyond(cluster.pool))
    seconds = latency + size / min(full, adapters if n == 2 else adapters / 2)
    moved += size / g
    return Cost(4 + 2 * _levels(n), moved, moved, seconds, latency)


def _tree_reaches(size: float, cluster: Cluster) -> float:
    if min(cluster.nodes, cluster.gpus_per_node) == 1:
        return 1.0
    (short, low), (long, high) = TREE_REACHES
    return low + (high - low) * math.log(min(max(size, short), long) / short, long / short)


def _levels(nodes: int) -> int:
    """Levels of a tree, as tuning.cc counts them: log2 of the nodes, rounded down."""
    return nodes.bit_length() - 1
