"""Collectives under the alpha-beta model: bytes that a rank sends, steps, time; bandwidths as in nccl-tests.

`size` is nccl-tests' (doc/PERFORMANCE.md): of all_gather what a rank holds afterwards, of reduce_scatter and
all_to_all what it holds before, otherwise the message. Ranks move in step: a step lasts as long as the slowest rank's
alpha + bytes / rate, and a rank sends and receives at the same time (Hockney 1994; Thakur, Rabenseifner and Gropp
2005); only a ring over nodes goes at the pace of its parts. Adding is free. The formulas are in
`scaleout.collectives.algorithms`; `scaleout.collectives.messages` has the same algorithms message by message, and
tests hold one against the other.
"""

from __future__ import annotations

from scaleout.collectives.algorithms import FORMULAS, Cost
from scaleout.spec import checks
from scaleout.spec.topology import Cluster, Wire

ALGORITHMS = {
    name: tuple(algorithm for collective, algorithm in FORMULAS if collective == name)
    for name in dict.fromkeys(collective for collective, _ in FORMULAS)
}
COLLECTIVES = tuple(ALGORITHMS)


def cost(collective: str, algorithm: str, size: float, ranks: int, wire: Wire) -> Cost:
    """A collective of `size` bytes among ranks that are all joined by the same wire.

    ValueError for an unknown name, a size below 0, ranks below 1, and "hierarchical", which needs nodes.
    """
    check(collective, algorithm, size, ranks)
    if algorithm == "hierarchical":
        raise ValueError("hierarchical needs nodes: use cost_on with a cluster")
    return FORMULAS[collective, algorithm](size, Cluster(1, ranks, wire, wire, 1, in_network=True))


def cost_on(collective: str, algorithm: str, size: float, cluster: Cluster) -> Cost:
    """The same on nodes of GPUs: what leaves a node shares its adapters (see `Cluster`).

    By the latencies and rates that the wires have, at one regime of message size; `scaleout.collectives.nccl` has
    what a library makes of links. ValueError as in `cost`, for a "tree" over nodes of several GPUs, and for
    "in-network" where the switches do not add.
    """
    check(collective, algorithm, size, cluster.ranks)
    if algorithm == "in-network" and not cluster.in_network:
        raise ValueError("the switches of this cluster do not add: give it in_network=True")
    return FORMULAS[collective, algorithm](size, cluster)


def algorithm_bandwidth(size: float, seconds: float) -> float:
    """nccl-tests' algbw: size / time, in bytes per second. ValueError where no time has passed."""
    checks.above_0("seconds", seconds)
    return size / seconds


def bus_factor(collective: str, ranks: int) -> float:
    """busbw / algbw by nccl-tests: what a link must carry for each byte of the message, if no switch adds."""
    check(collective, None, 0, ranks)
    if collective in ("broadcast", "send"):
        return 1.0
    return (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks


def bus_bandwidth(collective: str, size: float, ranks: int, seconds: float) -> float:
    """nccl-tests' busbw, in bytes per second: comparable with a link's rate whatever the number of ranks."""
    return algorithm_bandwidth(size, seconds) * bus_factor(collective, ranks)


def ring_wire(alpha_seconds: float, seconds_per_byte: float, ranks: int) -> Wire:
    """The wire on which a ring all-reduce takes alpha_seconds + size * seconds_per_byte: a calibrated line as a link.

    ValueError for fewer than 2 ranks or a line without a slope.
    """
    check("all_reduce", "ring", 0, ranks)
    if ranks < 2 or not seconds_per_byte > 0:
        raise ValueError("a wire comes from a line with a slope above 0, measured on 2 ranks or more")
    return Wire(alpha_seconds / (2 * (ranks - 1)), bus_factor("all_reduce", ranks) / seconds_per_byte)


def check(collective: str, algorithm: str | None, size: float, ranks: int) -> None:
    """ValueError, one line that says what would be right, where one of the four cannot be; None: any algorithm."""
    if not isinstance(collective, str) or collective not in ALGORITHMS:
        raise ValueError(f"collective {collective!r} is unknown: use one of {', '.join(COLLECTIVES)}")
    names = ALGORITHMS[collective]
    if algorithm is not None and algorithm not in names:
        raise ValueError(f"{collective} has no algorithm {algorithm!r}: use one of {', '.join(names)}")
    if not checks.is_number(size) or size < 0:
        raise ValueError(f"size must be a number of bytes from 0 up, not {size!r}")
    checks.whole("ranks", ranks)
