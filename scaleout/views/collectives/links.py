"""What joins the ranks of the view `collectives`, and what each algorithm costs on it, by size of the message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from math import exp, log

from scaleout.collectives import alpha_beta, nccl
from scaleout.collectives.algorithms import Cost
from scaleout.spec import checks
from scaleout.spec.hardware import link
from scaleout.spec.topology import Cluster, Wire, cluster
from scaleout.views import base
from scaleout.views.base import kept
from scaleout.views.choices import NODE

# By name: (GPUs in a node at most, link inside, link between nodes, adapters per node, words).
LINKS = {
    "node-ib": (NODE, "nvlink4", "ib-ndr", NODE, "nodes of 8 H100, InfiniBand per GPU"),
    "node-100g": (NODE, "nvlink4", "ethernet-100g", 1, "nodes of 8 H100, Ethernet 100 Gbit/s"),
    "pcie": (NODE, "pcie5", "ethernet-100g", 1, "nodes of 8 on PCIe 5, Ethernet 100 Gbit/s"),
    "ib-ndr": (1, "pcie5", "ib-ndr", 1, "single GPUs, InfiniBand 400 Gbit/s"),
    "ethernet-100g": (1, "pcie5", "ethernet-100g", 1, "single GPUs, Ethernet 100 Gbit/s"),
    "ethernet-10g": (1, "pcie5", "ethernet-10g", 1, "single GPUs, Ethernet 10 Gbit/s"),
}
OWN_LINK = "own"  # alpha and rate from the reader's own calibration

SHOWN = ("ring", "tree", "naive", "halving-doubling", "in-network")  # what the view can draw
LIBRARY = ("ring", "tree", "in-network")  # what NCCL chooses from
OWN_NAMES = ("ring", "tree", "naive", "halving-doubling")  # on a wire of one's own
TIE = 0.03  # a lead that is not worth a name: less than prices are off

SMALLEST, LARGEST = 1e3, 1e10  # bytes
DECADES = tuple(10.0**k for k in range(3, 11))
GRID = tuple(SMALLEST * 10 ** (k / 2) for k in range(15))  # bytes at which all is priced
FINE = 1.06  # how near a change is looked for, as a ratio of sizes
BY_RANKS = tuple(2**k for k in range(1, 11))


@dataclass(frozen=True)
class Way:
    """An algorithm at one size: its protocol, "" where there is none to choose, and what it costs."""

    protocol: str
    cost: Cost

    @property
    def share(self) -> float:
        """The part of the time that is latency."""
        return self.cost.latency_seconds / self.cost.seconds


@dataclass(frozen=True)
class Setting(base.Setting):
    """Ranks and what joins them. link: of LINKS, or OWN_LINK for a wire that all of them share; alpha (us) and rate
    (GB/s) are those of the reader's own link."""

    link: str
    ranks: int
    alpha: float = 0.0
    rate: float = 1.0

    @classmethod
    def of(cls, params: dict) -> Setting:
        """Another link than the reader's own knows nothing of his alpha and rate."""
        setting = super().of(params)
        return setting if setting.link == OWN_LINK else setting.other(alpha=0.0, rate=1.0)

    @cached_property
    def cluster(self) -> Cluster:
        """As few nodes as hold the ranks evenly."""
        if self.link == OWN_LINK:
            wire = Wire(self.alpha * 1e-6, self.rate * 1e9)
            return Cluster(1, self.ranks, wire, wire, 1, in_network=True)
        node_gpus, inside, node_link, nics, _ = LINKS[self.link]
        nodes = next(n for n in checks.divisors(self.ranks) if n * node_gpus >= self.ranks)
        return cluster(nodes, self.ranks // nodes, inside, node_link, nics)

    @property
    def words(self) -> str:
        nodes, gpus = self.cluster.nodes, self.cluster.gpus_per_node
        if self.link == OWN_LINK:
            return f"{gpus:,} ranks on your own link"
        _, inside, node_link, *_ = LINKS[self.link]
        if nodes == 1:
            return f"{gpus:,} GPUs on {link(inside).name}"
        gpus_text = f" of {gpus} GPUs" if gpus > 1 else ""
        return f"{nodes:,} {'nodes' if gpus > 1 else 'GPUs'}{gpus_text} on {link(node_link).name}"

    def can(self, algorithm: str) -> bool:
        """Whether it can be had here: on a link what NCCL has."""
        return algorithm in self.by_library(SMALLEST)

    @kept
    def by_library(self, size: float) -> dict[str, Way]:
        """What can be had, NCCL's own by the protocol that is fastest."""
        if self.link == OWN_LINK:
            return {name: Way("", alpha_beta.cost_on("all_reduce", name, size, self.cluster)) for name in OWN_NAMES}
        ways: dict[str, Way] = {}
        for choice in sorted(nccl.choices("all_reduce", size, self.cluster), key=lambda choice: choice.seconds):
            ways.setdefault(choice.algorithm, Way(choice.protocol, choice.cost))
        return {name: ways[name] for name in LIBRARY if name in ways}

    @kept
    def way(self, algorithm: str, size: float) -> Way:
        """One algorithm, by the textbook where NCCL does not have it; switches as if they added, where none do."""
        library = self.by_library(size)
        if algorithm in library:
            return library[algorithm]
        cluster = replace(self.cluster, in_network=True) if algorithm == "in-network" else self.cluster
        return Way("", nccl.textbook("all_reduce", algorithm, size, cluster))

    def costs(self, size: float) -> dict[str, Cost]:
        """Of all that makes sense here, what no library has included."""
        known = {name: way.cost for name, way in self.by_library(size).items()}
        two_levels = min(self.cluster.nodes, self.cluster.gpus_per_node) > 1
        textbook = ("naive", "halving-doubling", *(("hierarchical",) if two_levels else ()))
        return known | {name: self.way(name, size).cost for name in textbook if name not in known}

    def fastest(self, size: float) -> str:
        """The available algorithm that is faster than the next by more than TIE; "" where none is."""
        first, second = sorted(self.by_library(size).items(), key=lambda item: item[1].cost.seconds)[:2]
        return first[0] if second[1].cost.seconds > (1 + TIE) * first[1].cost.seconds else ""

    def sent(self, algorithm: str) -> float:
        """Messages that the busiest rank sends."""
        return self.way(algorithm, 1e9).cost.sent_bytes / 1e9


@lru_cache(maxsize=32)
def sent_by_ranks(key: str, algorithm: str) -> tuple[tuple[int, float], ...]:
    """(ranks, messages that the busiest of them sends), over powers of two."""
    if key != OWN_LINK and algorithm in ("tree", "in-network"):  # these are told by what joins the ranks
        return tuple((p, Setting(key, p).sent(algorithm)) for p in BY_RANKS)
    any_wire = Wire(0.0, 1.0)
    return tuple((p, alpha_beta.cost("all_reduce", algorithm, 1.0, p, any_wire).sent_bytes) for p in BY_RANKS)


@dataclass(frozen=True)
class Band:
    """One algorithm over sizes. points: (bytes, its way, who is fastest there), closer where either changes."""

    points: tuple[tuple[float, Way, str], ...]
    halves: tuple[float, ...]  # bytes at which half of the time is latency: several where the protocol changes
    crossover_bytes: float | None  # below it the tree is faster than the ring, from it on the ring

    @property
    def protocols(self) -> tuple[str, ...]:
        """Those that NCCL takes, by rising size; () where it has none to choose from."""
        return tuple(dict.fromkeys(way.protocol for _, way, _ in self.points if way.protocol))

    @property
    def least_latency(self) -> float:
        """Seconds: of the protocol that starts fastest, which is what the smallest messages take."""
        return min(way.cost.latency_seconds for _, way, _ in self.points)

    def latency(self, way: Way, by_protocol: bool) -> float:
        """Seconds of a way that its band shows as latency.

        By protocol it is the way's own, which jumps where NCCL goes over to one that starts later and moves bytes
        faster. Otherwise it is `least_latency` at every size, so that the band has one smooth curve: a later start is
        then part of what more bytes cost. The time that it is a part of is in both that of NCCL's own choice.
        """
        return self.least_latency if self.protocols and not by_protocol else way.cost.latency_seconds

    def shares(self, by_protocol: bool) -> list[tuple[float, float]]:
        """(bytes, the part of the time that is latency)."""
        return [(size, self.latency(way, by_protocol) / way.cost.seconds) for size, way, _ in self.points]

    @property
    def half_bytes(self) -> float | None:
        """Above it less than half of the time is latency."""
        return self.halves[-1] if self.halves and self.points[-1][1].share < 0.5 else None


@kept
def band(links: Setting, algorithm: str) -> Band:
    """Where the time of an algorithm goes, from SMALLEST to LARGEST bytes."""

    def point(size: float) -> tuple[float, Way, str]:
        return size, links.way(algorithm, size), links.fastest(size)

    def regime(point: tuple[float, Way, str]) -> tuple[float, str]:
        # of links the latency changes with the protocol only, of one's own wire with the blocks of a tree
        return 0 if links.link == OWN_LINK else point[1].cost.latency_seconds, point[2]

    points = [point(GRID[0])]
    for size in GRID[1:]:
        low, high = points[-1], point(size)
        last, low_regime = high, regime(low)
        if regime(high) != low_regime:
            while high[0] / low[0] > FINE:
                middle = point((low[0] * high[0]) ** 0.5)
                low, high = (middle, high) if regime(middle) == low_regime else (low, middle)
            points += [low, high]
        points.append(last)
    return Band(tuple(points), halves([(size, way.share) for size, way, _ in points]), _crossover(links))


def halves(shares: list[tuple[float, float]]) -> tuple[float, ...]:
    """The sizes at which half of the time is latency, rising, to three digits."""
    sizes = []
    for (low, a), (high, b) in pairwise(shares):
        if (a >= 0.5) != (b >= 0.5):
            low_log, high_log = (log(max(1 / share - 1, 1e-9)) for share in (a, b))
            sizes.append(float(f"{exp(log(low) + low_log / (low_log - high_log) * log(high / low)):.3g}"))
    return tuple(sizes)


def _crossover(links: Setting) -> float | None:
    """To three digits. None where one of the two is always ahead, or they change places more than once."""

    def ring_leads(size: float) -> bool:
        library = links.by_library(size)
        return library["ring"].cost.seconds < library["tree"].cost.seconds

    leads = [ring_leads(size) for size in GRID]
    turns = [i for i in range(1, len(GRID)) if leads[i] != leads[i - 1]]
    if len(turns) != 1 or not leads[-1]:
        return None
    low, high = GRID[turns[0] - 1], GRID[turns[0]]
    while high / low > 1.005:
        middle = (low + high) / 2
        low, high = (low, middle) if ring_leads(middle) else (middle, high)
    return float(f"{high:.3g}")
