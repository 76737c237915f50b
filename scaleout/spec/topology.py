"""The links of a cluster: inside a node, network adapters between nodes, switches that reduce."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from scaleout.spec import checks
from scaleout.spec.checks import is_number
from scaleout.spec.devices import Device
from scaleout.spec.hardware import LINKS, Link, link

# Without RDMA a message goes through the memory of both hosts and the kernel's TCP stack. The copies between GPU and
# host are pipelined with the network, so they cost two hops over PCIe in latency, and the rate is that of the slower
# of the two. What the TCP stack adds to a message is the book's assumption: measure yours with a ping-pong of 1 byte.
TCP_SECONDS = 20e-6

# The PCIe slot of a GPU with this link. A GPU without NVLink is joined by its slot itself.
HOST_LINK = {
    "nvlink2": "pcie3", "nvlink3": "pcie4", "nvlink3-bridge": "pcie4", "nvlink4": "pcie5",
    "nvlink4-bridge": "pcie5", "nvlink5": "pcie5", "infinity-fabric-mi300x": "pcie5",
}  # fmt: skip


@dataclass(frozen=True)
class Wire:
    """The link of one rank, one way; it sends and receives at the same time (full duplex).

    A message of n bytes takes alpha_seconds + n / bytes_per_s. link: its key in `hardware.LINKS`, which tells
    `scaleout.collectives.nccl` what a library makes of it; "" for a wire of one's own. ValueError for a negative
    latency, no rate.
    """

    alpha_seconds: float
    bytes_per_s: float
    link: str = ""

    def __post_init__(self) -> None:
        if not (is_number(self.alpha_seconds) and self.alpha_seconds >= 0):
            raise ValueError(f"alpha_seconds must be a number from 0 up, not {self.alpha_seconds!r}")
        if not (is_number(self.bytes_per_s) and self.bytes_per_s > 0):
            raise ValueError(f"bytes_per_s must be a finite number above 0, not {self.bytes_per_s!r}")
        if self.link != "":
            checks.known("link", self.link, LINKS)

    @property
    def peers(self) -> int:
        """See `hardware.Link`; 0 for a wire of one's own."""
        return LINKS[self.link].peers if self.link else 0

    @property
    def reached(self) -> float:
        """The share of its rate that long messages reach (`hardware.Link`); all of it of a wire of one's own."""
        return LINKS[self.link].reached if self.link else 1.0

    def seconds(self, size: float) -> float:
        """Seconds of one message of `size` bytes."""
        return self.alpha_seconds + size / self.bytes_per_s


@dataclass(frozen=True)
class Cluster:
    """`nodes` times `gpus_per_node` ranks; ranks 0 to gpus_per_node - 1 are on node 0, and so on.

    inside: the wire of one GPU within its node. across: one network adapter. in_network: the switches add (NVLink
    SHARP inside, SHARP across). ValueError for counts below 1.

    The adapters of a node are pooled: a collective runs as several channels, each through its own adapter, so what
    leaves a node leaves by all of them, be it one rank's bytes or all ranks'. A GPU drives one adapter at most.
    """

    nodes: int
    gpus_per_node: int
    inside: Wire
    across: Wire
    nics_per_node: int
    in_network: bool = False

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node", "nics_per_node"):
            checks.whole(name, getattr(self, name))
        checks.flag("in_network", self.in_network)
        for name in ("inside", "across"):
            checks.instance(name, getattr(self, name), Wire)

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus_per_node

    @cached_property  # asked for with every price
    def near(self) -> Wire:
        """The wire of one GPU to the others of its node: what its link gives to a group of this size.

        Links to fixed peers (Infinity Fabric) give the part of those that are in the group; a bridge joins two cards,
        and more of them meet over their PCIe slots.
        """
        peers, neighbours = self.inside.peers, self.gpus_per_node - 1
        if peers == 1 and neighbours > 1:
            return wire(HOST_LINK[self.inside.link])
        if 0 < neighbours < peers:
            return replace(self.inside, bytes_per_s=self.inside.bytes_per_s * neighbours / peers)
        return self.inside

    @cached_property
    def pool(self) -> Wire:
        """All adapters of one node that its GPUs can drive, as one wire."""
        driven = min(self.nics_per_node, self.gpus_per_node)
        return replace(self.across, bytes_per_s=driven * self.across.bytes_per_s)

    @cached_property
    def share(self) -> Wire:
        """One GPU's part of the adapters when all GPUs of the node send at once."""
        return replace(self.across, bytes_per_s=self.pool.bytes_per_s / self.gpus_per_node)

    def node(self, rank: int) -> int:
        """The node that a rank is on."""
        return rank // self.gpus_per_node

    def wire(self, a: int, b: int) -> Wire:
        """What joins ranks a and b while all other ranks send too. ValueError for a rank that is not there."""
        for rank in (a, b):
            if not 0 <= rank < self.ranks:
                raise ValueError(f"rank {rank!r} is not there: ranks go from 0 to {self.ranks - 1}")
        if self.node(a) != self.node(b):
            return self.share
        peers = self.inside.peers
        return replace(self.inside, bytes_per_s=self.inside.bytes_per_s / peers) if peers > 1 else self.near

    def slowest(self) -> Wire:
        """The wire of the slowest hop of a ring through all ranks: it enters and leaves each node once."""
        if self.nodes == 1:
            return self.near
        if self.gpus_per_node == 1:
            return self.pool
        alpha = max(self.near.alpha_seconds, self.pool.alpha_seconds)
        return Wire(alpha, min(self.near.bytes_per_s, self.pool.bytes_per_s))


def wire(key: str) -> Wire:
    """The wire of a link of `hardware.LINKS`, at its datasheet's rate. ValueError for an unknown key."""
    datasheet = link(key)
    return Wire(datasheet.alpha_seconds, datasheet.one_way_bytes_per_s, key)


def host(device: Device) -> Link:
    """What joins a GPU to the memory of its host: what its row names, or its PCIe slot."""
    return LINKS[device.host or HOST_LINK.get(device.link, device.link)]


def cluster(
    nodes: int,
    gpus: int,
    inside: str = "nvlink4",
    across: str = "ib-ndr",
    nics: int = 8,
    rdma: bool = True,
    in_network: bool = False,
) -> Cluster:
    """A cluster of links by their keys in `hardware.LINKS`; `nics` adapters per node. ValueError as in `Cluster`.

    rdma: the adapters reach the GPUs' memory (InfiniBand, or RoCE on Ethernet). Without: see TCP_SECONDS.
    """
    if link(inside).scope == "between nodes":
        raise ValueError(f"inside is {inside!r}, a network: use NVLink or PCIe, such as 'nvlink4' or 'pcie5'")
    if link(across).scope != "between nodes":
        raise ValueError(f"across is {across!r}, no network: use one such as 'ib-ndr' or 'ethernet-100g'")
    network = wire(across)
    if not rdma:
        host = wire(HOST_LINK.get(inside, inside))
        alpha = network.alpha_seconds + 2 * host.alpha_seconds + TCP_SECONDS
        network = Wire(alpha, min(network.bytes_per_s, host.bytes_per_s), across)
    return Cluster(nodes, gpus, wire(inside), network, nics, in_network)
