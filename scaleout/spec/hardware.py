"""Datasheet numbers of links, and the shares of peak rates that are assumed. GPUs are in `spec/devices.py`.

Rates are in bytes per second and *one way*: NVLink datasheets print the sum of both directions.
"""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.spec.checks import known
from scaleout.spec.devices import GB
from scaleout.spec.protocols import HOPS, PROTOCOLS


@dataclass(frozen=True)
class Link:
    """One connection of one GPU (or, for networks, of one adapter), by its rate in one direction.

    peers: the GPUs that its rate is divided among, one fixed part each; 0 where a switch gives any of them all of it.
    share: of its rate that a long message reaches, where that was measured of this link itself.
    """

    name: str
    scope: str  # a key of ALPHA_SECONDS
    one_way_bytes_per_s: float
    source: str
    peers: int = 0
    share: float | None = None

    @property
    def alpha_seconds(self) -> float:
        """Latency of one message between two ranks of a collective, without its bytes."""
        return ALPHA_SECONDS[self.scope]

    @property
    def reached(self) -> float:
        """The share of its rate that a long message of a collective reaches."""
        return XGMI_REACHES if self.peers > 1 else self.share or REACHED[self.scope]


def link(key: str) -> Link:
    """The link filed under `key`. Raises ValueError that lists the keys when there is none."""
    return known("link", key, LINKS)


def _pcie(generation: int, transfers_per_s: float) -> Link:
    """Sixteen lanes with the 128b/130b line code of PCIe 3 to 5: GT/s * 16 lanes * 128/130 / 8 bits."""
    rate = transfers_per_s * 16 * 128 / 130 / 8
    source = f"PCI-SIG, PCI Express Base Specification {generation}.0: x16, 128b/130b"
    return Link(f"PCIe {generation} x16", "host to GPU", rate, source)


def _network(name: str, bits_per_s: float, source: str) -> Link:
    return Link(name, "between nodes", bits_per_s / 8, source)


# Power of a node of 8 H100 at most, and of one GPU with its share of it. NVIDIA, DGX H100/H200 user guide, power
# specifications: 10.2 kW. The GPU's own limit, 700 W, is little more than half of that.
NODE_WATTS = 10_200
GPU_WATTS = NODE_WATTS / 8

# Host memory of a node of 8 H100: 2 TB, 250 GB for each GPU. NVIDIA, DGX H100/H200 user guide, hardware overview.
NODE_HOST_BYTES = 2 * 10**12

# Share of a device's 16-bit rate that forward and backward are taken to reach, in the widgets and in the text: an
# assumption, made once. Whole jobs on A100 reach 43 to 52% of it, what they wait for counted and recomputation too
# (Narayanan et al. 2021, arXiv 2104.04473, table 1); compute alone reaches somewhat more.
COMPUTE_SHARE = 0.5

# Latency of one hop of a ring by kind of link, protocol LL128: NVLink 1.9, PCIe 2.5, network 4.0 us. See
# `scaleout.spec.protocols` for the other two, and `scaleout.collectives.nccl` for what a call costs by all three.
# Infinity Fabric is taken for NVLink.
ALPHA_SECONDS = {scope: hop[PROTOCOLS.index("LL128")] for scope, hop in HOPS["ring"].items()}

# Share of a link's rate that a ring reaches with long messages, one for each kind of link.
# NVLink: 8 H200 0.816, 8 B200 0.758, 8 A100 0.78 (stas00/ml-engineering, network/README.md: 367, 682 and 235 GB/s).
# Network: 46 to 48 of the 50 GB/s of an NDR adapter (NVIDIA/nccl-tests, issue 290), 0.94 of four nodes with eight
# adapters of 400 Gbit/s (ml-engineering). PCIe: NCCL counts 12 GB/s for generation 3 x16 (src/graph/topo.h).
# Infinity Fabric: 48 of 64 GB/s are left of a link after protocol and error correction (ROCm/rccl, issue 1210).
REACHED = {"between GPUs": 0.8, "host to GPU": 0.76, "between nodes": 0.94}
XGMI_REACHES = 0.75

# Share of a link's rate that an all-reduce of 8 GiB reached while the switches added: 5 to 8 H200, 6 to 8 B200, 1.5%
# around it. stas00/ml-engineering, network/README.md: busbw over that of the model ("in-network") at the full rate.
SWITCHES_REACH = {"nvlink4": 0.68, "nvlink5": 0.60}

LINKS = {
    # NVLink, total of one GPU. The sources print both directions together: 300, 600, 900 and 1,800 GB/s.
    "nvlink2": Link("NVLink 2", "between GPUs", 150 * GB, "NVIDIA V100 datasheet, 2020: 300 GB/s both ways"),
    "nvlink3": Link("NVLink 3", "between GPUs", 300 * GB, "NVIDIA A100 datasheet, 2021: 600 GB/s both ways"),
    "nvlink4": Link("NVLink 4", "between GPUs", 450 * GB, "NVIDIA H100 datasheet, 2023: 900 GB/s both ways"),
    "nvlink5": Link("NVLink 5", "between GPUs", 900 * GB, "NVIDIA HGX B200 page, 2024: 1.8 TB/s both ways"),
    # Three NVLink 4 bridges between a pair of H100 PCIe cards: 600 GB/s both ways. An all-reduce of 1 to 4 GiB reached
    # 115 to 116 GB/s of bus bandwidth, a single report (NVIDIA/nccl, issue 1161).
    "nvlink4-bridge": Link(
        "NVLink 4 bridge",
        "between GPUs",
        300 * GB,
        "NVIDIA H100 datasheet, 2022: 600 GB/s both ways",
        peers=1,
        share=0.387,
    ),
    # Four links of 14.0625 GB/s one way, over a bridge between a pair of cards.
    "nvlink3-bridge": Link(
        "NVLink 3 bridge",
        "between GPUs",
        56.25 * GB,
        "NVIDIA Ampere GA102 whitepaper, v2.1: 112.5 GB/s both ways",
        peers=1,
    ),
    # Seven links of 64 GB/s one way, one to each of the other seven GPUs of a node.
    "infinity-fabric-mi300x": Link(
        "Infinity Fabric", "between GPUs", 448 * GB, "AMD MI300X datasheet, 2023: 7 times 128 GB/s both ways", peers=7
    ),
    # A Grace CPU's link to its GPU; on a GB200 two GPUs share it. Measured 375 GB/s to the GPU and 297 back, 0.75 of it
    # together (arXiv 2407.07850), as much as PCIe reaches.
    "nvlink-c2c": Link("NVLink-C2C", "host to GPU", 450 * GB, "NVIDIA GH200 datasheet, 2023: 900 GB/s both ways"),
    "nvlink-c2c-of-two": Link(
        "NVLink-C2C, shared by two", "host to GPU", 225 * GB, "NVIDIA GB200 superchip: 900 GB/s both ways for two GPUs"
    ),
    "pcie3": _pcie(3, 8e9),
    "pcie4": _pcie(4, 16e9),
    "pcie5": _pcie(5, 32e9),
    # One four-lane port of one adapter. A DGX H100 node has eight NDR ports, one for each GPU.
    "ib-hdr": _network("InfiniBand HDR", 200e9, "NVIDIA ConnectX-6 datasheet, 2020: 200 Gbit/s"),
    "ib-ndr": _network("InfiniBand NDR", 400e9, "NVIDIA ConnectX-7 datasheet, 2021: 400 Gbit/s"),
    "ethernet-10g": _network("Ethernet 10 Gbit/s", 10e9, "IEEE 802.3ae"),
    "ethernet-100g": _network("Ethernet 100 Gbit/s", 100e9, "IEEE 802.3ba"),
    "ethernet-400g": _network("Ethernet 400 Gbit/s", 400e9, "IEEE 802.3bs"),
}
