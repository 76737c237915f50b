"""Datasheet numbers of accelerators and links.

Everything is in base units (bytes, bytes per second, operations per second), and the unit is in the name.
Three conventions remove the usual factors of two:

- FLOP/s are *dense*. Datasheets since the A100 print the figure with 2:4 sparsity too, or only that one.
- Tensor-core figures accumulate in fp32, as training does. Consumer cards are twice as fast when they
  accumulate in fp16, and their datasheets lead with that.
- Link rates are *one way*. NVLink datasheets print the sum of both directions.

Memory is what the driver reports, nvidia-smi's total in MiB (rocm-smi's in bytes), not the round figure in the name: a
card sold as 80 GB reports 81,559 MiB, which is 79.6 GiB or 85.5 GB. A program sees a little less, because the driver
keeps a part: CUDA's deviceQuery, and so torch's `total_memory`, says 81,106 MiB of the same card (thamada/nvidia-smi on
GitHub, nvsim/H100SXMx8_deviceQuery.py). That part belongs to what a run has to leave free (memory/allocator.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.spec.checks import known
from scaleout.spec.protocols import HOPS, PROTOCOLS

GB = 10**9
MIB = 2**20
T = 10**12


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


@dataclass(frozen=True)
class Device:
    """One accelerator. A rate is None where the device has no such arithmetic unit."""

    name: str
    year: int
    memory_bytes: int  # what the driver reports
    memory_bytes_per_s: float
    fp32_flop_per_s: float  # outside the tensor cores: what torch uses for fp32 unless told otherwise
    tf32_flop_per_s: float | None  # fp32 in and out, products of 10 bits: set_float32_matmul_precision("high")
    fp16_flop_per_s: float
    bf16_flop_per_s: float | None
    fp8_flop_per_s: float | None
    link: str  # the fastest link to another GPU: a key of LINKS
    source: str
    architecture: str = ""  # a family of chips whose kernels reach about the same share of their peak
    multiprocessors: int = 0  # streaming multiprocessors, or compute units; 0 where nobody says

    @property
    def half(self) -> str:
        """The 16-bit format to train in: bf16 where the device has it, else fp16."""
        return "bf16" if self.bf16_flop_per_s else "fp16"

    def matmul_flop_per_s(self, dtype: str) -> float:
        """Peak dense rate of matrix products in `dtype` ("fp32", "tf32", "fp16", "bf16", "fp8").

        Raises ValueError for an unknown dtype, or one that the device has no unit for.
        """
        rates = {
            "fp32": self.fp32_flop_per_s,
            "tf32": self.tf32_flop_per_s,
            "fp16": self.fp16_flop_per_s,
            "bf16": self.bf16_flop_per_s,
            "fp8": self.fp8_flop_per_s,
        }
        if known("dtype", dtype, rates) is None:
            able = ", ".join(key for key, rate in rates.items() if rate)
            raise ValueError(f"{self.name} has no {dtype} unit: use one of {able}")
        return rates[dtype]


def device(key: str) -> Device:
    """The device filed under `key`. Raises ValueError that lists the keys when there is none."""
    return known("device", key, DEVICES)


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
        "NVLink 4 bridge", "between GPUs", 300 * GB, "NVIDIA H100 datasheet, 2022: 600 GB/s both ways", peers=1,
        share=0.387,
    ),
    # Four links of 14.0625 GB/s one way, over a bridge between a pair of cards.
    "nvlink3-bridge": Link(
        "NVLink 3 bridge", "between GPUs", 56.25 * GB, "NVIDIA Ampere GA102 whitepaper, v2.1: 112.5 GB/s both ways",
        peers=1,
    ),
    # Seven links of 64 GB/s one way, one to each of the other seven GPUs of a node.
    "infinity-fabric-mi300x": Link(
        "Infinity Fabric", "between GPUs", 448 * GB, "AMD MI300X datasheet, 2023: 7 times 128 GB/s both ways", peers=7
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

DEVICES = {
    # 640 tensor cores; fp16 is their only 16-bit format. The 16 GB model differs in memory only.
    "v100": Device(
        name="V100 SXM2 32 GB", year=2018, memory_bytes=32_768 * MIB, memory_bytes_per_s=900 * GB,
        fp32_flop_per_s=15.7 * T, tf32_flop_per_s=None, fp16_flop_per_s=125 * T, bf16_flop_per_s=None,
        fp8_flop_per_s=None, link="nvlink2",
        source="NVIDIA V100 datasheet, January 2020",
        architecture="volta", multiprocessors=80,
    ),
    # 320 GB/s = 256 bits at 5,001 MHz, two a clock (product brief: "up to 320"); the datasheet prints "300 GB/s".
    "t4": Device(
        name="T4 16 GB", year=2018, memory_bytes=15_360 * MIB, memory_bytes_per_s=320 * GB,
        fp32_flop_per_s=8.1 * T, tf32_flop_per_s=None, fp16_flop_per_s=65 * T, bf16_flop_per_s=None,
        fp8_flop_per_s=None, link="pcie3",
        source="NVIDIA T4 datasheet, March 2019; memory: T4 product brief (PB-09256)",
        architecture="turing", multiprocessors=40,
    ),
    # 312 TFLOP/s = 1,410 MHz * 432 tensor cores * 256 fused multiply-adds * 2.
    "a100-40gb": Device(
        name="A100 SXM 40 GB", year=2020, memory_bytes=40_960 * MIB, memory_bytes_per_s=1555 * GB,
        fp32_flop_per_s=19.5 * T, tf32_flop_per_s=156 * T, fp16_flop_per_s=312 * T, bf16_flop_per_s=312 * T,
        fp8_flop_per_s=None, link="nvlink3",
        source="NVIDIA A100 datasheet, June 2021",
        architecture="ampere", multiprocessors=108,
    ),
    "a100-80gb": Device(
        name="A100 SXM 80 GB", year=2020, memory_bytes=81_920 * MIB, memory_bytes_per_s=2039 * GB,
        fp32_flop_per_s=19.5 * T, tf32_flop_per_s=156 * T, fp16_flop_per_s=312 * T, bf16_flop_per_s=312 * T,
        fp8_flop_per_s=None, link="nvlink3",
        source="NVIDIA A100 datasheet, June 2021",
        architecture="ampere", multiprocessors=108,
    ),
    # Whitepaper figures with fp32 accumulation; 142 TFLOP/s is with fp16 accumulation.
    "rtx-3090": Device(
        name="RTX 3090 24 GB", year=2020, memory_bytes=24_576 * MIB, memory_bytes_per_s=936 * GB,
        fp32_flop_per_s=35.6 * T, tf32_flop_per_s=35.6 * T, fp16_flop_per_s=71 * T, bf16_flop_per_s=71 * T,
        fp8_flop_per_s=None, link="nvlink3-bridge",
        source="NVIDIA Ampere GA102 whitepaper, v2.1, appendix A",
        architecture="ampere", multiprocessors=82,
    ),
    # Whitepaper figures with fp32 accumulation; 330 TFLOP/s in 16 bits is with fp16 accumulation or sparsity.
    "rtx-4090": Device(
        name="RTX 4090 24 GB", year=2022, memory_bytes=24_564 * MIB, memory_bytes_per_s=1008 * GB,
        fp32_flop_per_s=82.6 * T, tf32_flop_per_s=82.6 * T, fp16_flop_per_s=165.2 * T, bf16_flop_per_s=165.2 * T,
        fp8_flop_per_s=330.3 * T, link="pcie4",
        source="NVIDIA Ada GPU architecture whitepaper, v2.1, appendix A",
        architecture="ada", multiprocessors=128,
    ),
    # 756 TFLOP/s in 16 bits: fewer multiprocessors and a lower clock than the SXM module.
    "h100-pcie": Device(
        name="H100 PCIe 80 GB", year=2022, memory_bytes=81_559 * MIB, memory_bytes_per_s=2000 * GB,
        fp32_flop_per_s=51 * T, tf32_flop_per_s=378 * T, fp16_flop_per_s=756 * T, bf16_flop_per_s=756 * T,
        fp8_flop_per_s=1513 * T, link="nvlink4-bridge",
        source="NVIDIA H100 datasheet, 2022; halved where it prints sparsity",
        architecture="hopper", multiprocessors=114,
    ),
    # 989.4 TFLOP/s = 1,830 MHz * 528 tensor cores * 512 fused multiply-adds * 2.
    "h100-sxm": Device(
        name="H100 SXM 80 GB", year=2022, memory_bytes=81_559 * MIB, memory_bytes_per_s=3350 * GB,
        fp32_flop_per_s=67 * T, tf32_flop_per_s=494.7 * T, fp16_flop_per_s=989.4 * T, bf16_flop_per_s=989.4 * T,
        fp8_flop_per_s=1978.9 * T, link="nvlink4",
        source="NVIDIA H100 datasheet, 2023; halved where it prints sparsity",
        architecture="hopper", multiprocessors=132,
    ),
    # The compute of the H100 SXM with more and faster memory.
    "h200": Device(
        name="H200 SXM 141 GB", year=2023, memory_bytes=143_771 * MIB, memory_bytes_per_s=4800 * GB,
        fp32_flop_per_s=67 * T, tf32_flop_per_s=494.7 * T, fp16_flop_per_s=989.4 * T, bf16_flop_per_s=989.4 * T,
        fp8_flop_per_s=1978.9 * T, link="nvlink4",
        source="NVIDIA H200 datasheet, 2024; halved where it prints sparsity",
        architecture="hopper", multiprocessors=132,
    ),
    "mi300x": Device(
        name="MI300X 192 GB", year=2023, memory_bytes=196_592 * MIB, memory_bytes_per_s=5300 * GB,
        fp32_flop_per_s=163.4 * T, tf32_flop_per_s=653.7 * T, fp16_flop_per_s=1307.4 * T, bf16_flop_per_s=1307.4 * T,
        fp8_flop_per_s=2614.9 * T, link="infinity-fabric-mi300x",
        source="AMD Instinct MI300X datasheet, 2023",
        architecture="cdna3", multiprocessors=304,
    ),
    # A DGX B200 has 1,440 GB and 64 TB/s in eight GPUs, 72 PFLOP/s fp8 "training", which is with sparsity.
    "b200": Device(
        name="B200 180 GB", year=2024, memory_bytes=183_359 * MIB, memory_bytes_per_s=8000 * GB,
        fp32_flop_per_s=75 * T, tf32_flop_per_s=1125 * T, fp16_flop_per_s=2250 * T, bf16_flop_per_s=2250 * T,
        fp8_flop_per_s=4500 * T, link="nvlink5",
        source="NVIDIA DGX B200 datasheet, 2024, divided by 8; halved where it prints sparsity",
        architecture="blackwell", multiprocessors=148,
    ),
}  # fmt: skip

# Where each total was printed. A driver of before 2021 counts ECC's own part out and prints less: 32,480 MiB of a V100
# (godweiyang/GrabGPU issue 5, driver 418).
_MODAL = "nvidia-smi, thundergolfer.com/blog/nvidia-gpu-memory-capacity (Modal's cards)"
MEMORY_SOURCES = {
    "v100": "nvidia-smi 530.30 on a V100-SXM2-32GB, TU Delft DAIC documentation, Basics of Slurm jobs",
    "t4": _MODAL,
    "a100-40gb": _MODAL,
    "a100-80gb": _MODAL,
    "rtx-3090": "nvidia-smi 595.84, github.com/noonghunna/club-3090 issue 1128",
    "rtx-4090": "nvidia-smi 550.163, github.com/RLinf/RLinf issue 255",
    "h100-pcie": _MODAL + "; a listing of an H100 PCIe by driver 565.57 prints the same",
    "h100-sxm": "nvidia-smi 550.54, github.com/NVIDIA/nccl issue 1264",
    "h200": _MODAL + "; sgl-project/sglang issue 3196",
    "mi300x": "206,141,652,992 bytes: ROCm/rocm-systems, projects/amdsmi, vram_total_prefer_kfd_test.cc",
    "b200": "nvidia-smi 580.95, github.com/NVIDIA/TensorRT-LLM issue 10278",
}
