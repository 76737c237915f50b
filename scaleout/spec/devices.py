"""GPUs by their datasheets, one row each, with everything that the book knows about a GPU.

Everything is in base units (bytes, bytes per second, operations per second), and the unit is in the name.
Two conventions remove the usual factors of two:

- FLOP/s are *dense*. Datasheets since the A100 print the figure with 2:4 sparsity too, or only that one.
- Tensor-core figures accumulate in fp32, as training does. Consumer GPUs are twice as fast when they
  accumulate in fp16, and their datasheets lead with that.

Memory is what the driver reports, nvidia-smi's total in MiB (rocm-smi's in bytes), not the round figure in the name: a
GPU sold as 80 GB reports 81,559 MiB, which is 79.6 GiB or 85.5 GB. A program sees a little less, because the driver
keeps a part: CUDA's deviceQuery, and so torch's `total_memory`, says 81,106 MiB of the same GPU (thamada/nvidia-smi on
GitHub, nvsim/H100SXMx8_deviceQuery.py). That part belongs to what a run has to leave free (memory/allocator.py). A
driver of before 2021 counts ECC's own part out and prints less: 32,480 MiB of a V100 (godweiyang/GrabGPU issue 5,
driver 418).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from scaleout.spec.checks import known

GB = 10**9
MIB = 2**20
T = 10**12


@dataclass(frozen=True)
class Device:
    """One accelerator. A rate is None where the device has no such arithmetic unit."""

    name: str  # as it is sold; the last two words are the memory in the name, "80 GB"
    year: int
    memory_bytes: int  # what the driver reports
    memory_bytes_per_s: float
    fp32_flop_per_s: float  # outside the tensor cores: what torch uses for fp32 by default
    tf32_flop_per_s: float | None  # fp32 in and out, 10 bits of mantissa: set_float32_matmul_precision("high")
    fp16_flop_per_s: float
    bf16_flop_per_s: float | None
    fp8_flop_per_s: float | None
    link: str  # the fastest link to another GPU: a key of hardware.LINKS
    source: str  # of all but the memory's size
    memory_source: str = ""  # where the driver's total was printed
    reported: str = ""  # the last words of the name in torch and in nvidia-smi, a regular expression
    architecture: str = ""  # a family of chips whose kernels reach about the same share of their peak
    priced_as: str = ""  # a guess: the family whose shares it takes where none of its own were measured
    multiprocessors: int = 0  # streaming multiprocessors, or compute units; 0 where nobody says
    host: str = ""  # the link to the host's memory, a key of hardware.LINKS; "" for its slot (topology.HOST_LINK)

    @property
    def half(self) -> str:
        """The 16-bit format to train in: bf16 where the device has it, else fp16."""
        return "bf16" if self.bf16_flop_per_s else "fp16"

    def matmul_flop_per_s(self, dtype: str) -> float:
        """Peak dense rate of matrix multiplications in `dtype` ("fp32", "tf32", "fp16", "bf16", "fp8").

        Raises ValueError for an unknown dtype, or one that the device has no unit for.
        """
        rates = {
            "fp32": self.fp32_flop_per_s,
            "tf32": self.tf32_flop_per_s,
            "fp16": self.fp16_flop_per_s,
            "bf16": self.bf16_flop_per_s,
            "fp8": self.fp8_flop_per_s,
        }
        rate = known("dtype", dtype, rates)
        if rate is None:
            able = ", ".join(key for key, peak in rates.items() if peak)
            raise ValueError(f"{self.name} has no {dtype} unit: use one of {able}")
        return rate


def device(key: str) -> Device:
    """The device filed under `key`. Raises ValueError that lists the keys when there is none."""
    return known("device", key, DEVICES)


def reported_as(name: str) -> Device | None:
    """The device that torch or nvidia-smi calls `name`, "NVIDIA H100 80GB HBM3"; None where no row has it."""
    return next((row for row in DEVICES.values() if re.search(rf"\b(?:{row.reported})$", name)), None)


_MODAL = "nvidia-smi, thundergolfer.com/blog/nvidia-gpu-memory-capacity (Modal's cards)"

# By the key that commands, labs and views take, in the order of menus. Menus take those of enough memory
# (`views.choices.cards`).
DEVICES = {
    # 640 tensor cores; fp16 is their only 16-bit format. The 16 GB model differs in memory only.
    "v100": Device(
        name="V100 SXM2 32 GB", year=2018, memory_bytes=32_768 * MIB, memory_bytes_per_s=900 * GB,
        fp32_flop_per_s=15.7 * T, tf32_flop_per_s=None, fp16_flop_per_s=125 * T, bf16_flop_per_s=None,
        fp8_flop_per_s=None, link="nvlink2",
        source="NVIDIA V100 datasheet, January 2020",
        memory_source="nvidia-smi 530.30 on a V100-SXM2-32GB, TU Delft DAIC documentation, Basics of Slurm jobs",
        reported="V100-SXM2-(16|32)GB", architecture="volta", priced_as="ampere", multiprocessors=80,
    ),
    # 320 GB/s = 256 bits at 5,001 MHz, two a clock (product brief: "up to 320"); the datasheet prints "300 GB/s".
    "t4": Device(
        name="T4 16 GB", year=2018, memory_bytes=15_360 * MIB, memory_bytes_per_s=320 * GB,
        fp32_flop_per_s=8.1 * T, tf32_flop_per_s=None, fp16_flop_per_s=65 * T, bf16_flop_per_s=None,
        fp8_flop_per_s=None, link="pcie3",
        source="NVIDIA T4 datasheet, March 2019; memory: T4 product brief (PB-09256)", memory_source=_MODAL,
        reported="T4", architecture="turing", priced_as="ampere", multiprocessors=40,
    ),
    # 312 TFLOP/s = 1,410 MHz * 432 tensor cores * 256 fused multiply-adds * 2.
    "a100-40gb": Device(
        name="A100 SXM 40 GB", year=2020, memory_bytes=40_960 * MIB, memory_bytes_per_s=1555 * GB,
        fp32_flop_per_s=19.5 * T, tf32_flop_per_s=156 * T, fp16_flop_per_s=312 * T, bf16_flop_per_s=312 * T,
        fp8_flop_per_s=None, link="nvlink3",
        source="NVIDIA A100 datasheet, June 2021", memory_source=_MODAL,
        reported="A100-SXM4-40GB", architecture="ampere", multiprocessors=108,
    ),
    "a100-80gb": Device(
        name="A100 SXM 80 GB", year=2020, memory_bytes=81_920 * MIB, memory_bytes_per_s=2039 * GB,
        fp32_flop_per_s=19.5 * T, tf32_flop_per_s=156 * T, fp16_flop_per_s=312 * T, bf16_flop_per_s=312 * T,
        fp8_flop_per_s=None, link="nvlink3",
        source="NVIDIA A100 datasheet, June 2021", memory_source=_MODAL,
        reported="A100-SXM4-80GB", architecture="ampere", multiprocessors=108,
    ),
    # Whitepaper figures with fp32 accumulation; 142 TFLOP/s is with fp16 accumulation.
    "rtx-3090": Device(
        name="RTX 3090 24 GB", year=2020, memory_bytes=24_576 * MIB, memory_bytes_per_s=936 * GB,
        fp32_flop_per_s=35.6 * T, tf32_flop_per_s=35.6 * T, fp16_flop_per_s=71 * T, bf16_flop_per_s=71 * T,
        fp8_flop_per_s=None, link="nvlink3-bridge",
        source="NVIDIA Ampere GA102 whitepaper, v2.1, appendix A",
        memory_source="nvidia-smi 595.84, github.com/noonghunna/club-3090 issue 1128",
        reported="RTX 3090", architecture="ampere", multiprocessors=82,
    ),
    # Whitepaper figures with fp32 accumulation; 330 TFLOP/s in 16 bits is with fp16 accumulation or sparsity.
    "rtx-4090": Device(
        name="RTX 4090 24 GB", year=2022, memory_bytes=24_564 * MIB, memory_bytes_per_s=1008 * GB,
        fp32_flop_per_s=82.6 * T, tf32_flop_per_s=82.6 * T, fp16_flop_per_s=165.2 * T, bf16_flop_per_s=165.2 * T,
        fp8_flop_per_s=330.3 * T, link="pcie4",
        source="NVIDIA Ada GPU architecture whitepaper, v2.1, appendix A",
        memory_source="nvidia-smi 550.163, github.com/RLinf/RLinf issue 255",
        reported="RTX 4090", architecture="ada-rtx", multiprocessors=128,
    ),
    # Whitepaper figures with fp32 accumulation (also in main-horse.github.io/posts/5090-mm-perf). The B200's kernels do
    # not run on it: it has neither their instructions (tcgen05) nor tensor memory. It has the RTX 4090's instructions,
    # and an L2 cache of 96 MB where that has 72.
    "rtx-5090": Device(
        name="RTX 5090 32 GB", year=2025, memory_bytes=32_607 * MIB, memory_bytes_per_s=1792 * GB,
        fp32_flop_per_s=104.8 * T, tf32_flop_per_s=104.8 * T, fp16_flop_per_s=209.5 * T, bf16_flop_per_s=209.5 * T,
        fp8_flop_per_s=419 * T, link="pcie5",
        source="NVIDIA RTX Blackwell GPU architecture whitepaper, v1.1, appendix A",
        memory_source="nvidia-smi 610.57, github.com/noonghunna/club-3090 issue 1261",
        reported="RTX 5090", architecture="blackwell-rtx", priced_as="ada-rtx", multiprocessors=170,
    ),
    # 48 GB of GDDR6. The datasheet's 16-bit rate is that of a lower clock (2,490 MHz) than its others (2,520).
    "l40s": Device(
        name="L40S 48 GB", year=2023, memory_bytes=46_068 * MIB, memory_bytes_per_s=864 * GB,
        fp32_flop_per_s=91.6 * T, tf32_flop_per_s=183 * T, fp16_flop_per_s=362.05 * T, bf16_flop_per_s=362.05 * T,
        fp8_flop_per_s=733 * T, link="pcie4",
        source="NVIDIA L40S datasheet, 2023",
        memory_source="nvidia-smi 595.71, github.com/akash-network/provider-configs pull request 99",
        reported="L40S", architecture="ada", priced_as="ampere", multiprocessors=142,
    ),
    # 756 TFLOP/s in 16 bits: fewer multiprocessors and a lower clock than the SXM module.
    "h100-pcie": Device(
        name="H100 PCIe 80 GB", year=2022, memory_bytes=81_559 * MIB, memory_bytes_per_s=2000 * GB,
        fp32_flop_per_s=51 * T, tf32_flop_per_s=378 * T, fp16_flop_per_s=756 * T, bf16_flop_per_s=756 * T,
        fp8_flop_per_s=1513 * T, link="nvlink4-bridge",
        source="NVIDIA H100 datasheet, 2022; halved where it prints sparsity",
        memory_source=_MODAL + "; a listing of an H100 PCIe by driver 565.57 prints the same",
        reported="H100 PCIe", architecture="hopper", multiprocessors=114,
    ),
    # 989.4 TFLOP/s = 1,830 MHz * 528 tensor cores * 512 fused multiply-adds * 2.
    "h100-sxm": Device(
        name="H100 SXM 80 GB", year=2022, memory_bytes=81_559 * MIB, memory_bytes_per_s=3350 * GB,
        fp32_flop_per_s=67 * T, tf32_flop_per_s=494.7 * T, fp16_flop_per_s=989.4 * T, bf16_flop_per_s=989.4 * T,
        fp8_flop_per_s=1978.9 * T, link="nvlink4",
        source="NVIDIA H100 datasheet, 2023; halved where it prints sparsity",
        memory_source="nvidia-smi 550.54, github.com/NVIDIA/nccl issue 1264",
        reported="H100 80GB HBM3", architecture="hopper", multiprocessors=132,
    ),
    # The compute of the H100 SXM with more and faster memory.
    "h200": Device(
        name="H200 SXM 141 GB", year=2023, memory_bytes=143_771 * MIB, memory_bytes_per_s=4800 * GB,
        fp32_flop_per_s=67 * T, tf32_flop_per_s=494.7 * T, fp16_flop_per_s=989.4 * T, bf16_flop_per_s=989.4 * T,
        fp8_flop_per_s=1978.9 * T, link="nvlink4",
        source="NVIDIA H200 datasheet, 2024; halved where it prints sparsity",
        memory_source=_MODAL + "; sgl-project/sglang issue 3196",
        reported="H200", architecture="hopper", multiprocessors=132,
    ),
    # The H100 SXM's chip beside a Grace CPU; its name ends in the CPU's memory, 120 or 480 GB. The model with 144 GB of
    # HBM3e reports another name and total. NVLink joins those of an NVL32 or a DGX GH200; many stand alone.
    "gh200": Device(
        name="GH200 96 GB", year=2023, memory_bytes=97_871 * MIB, memory_bytes_per_s=4000 * GB,
        fp32_flop_per_s=67 * T, tf32_flop_per_s=494.7 * T, fp16_flop_per_s=989.4 * T, bf16_flop_per_s=989.4 * T,
        fp8_flop_per_s=1978.9 * T, link="nvlink4",
        source="NVIDIA GH200 datasheet, 2023; halved where it prints sparsity",
        memory_source="nvidia-smi 535.154, github.com/slitvinov/grace, README.md",
        reported="GH200 (120|480)GB", architecture="hopper", multiprocessors=132, host="nvlink-c2c",
    ),
    "mi300x": Device(
        name="MI300X 192 GB", year=2023, memory_bytes=196_592 * MIB, memory_bytes_per_s=5300 * GB,
        fp32_flop_per_s=163.4 * T, tf32_flop_per_s=653.7 * T, fp16_flop_per_s=1307.4 * T, bf16_flop_per_s=1307.4 * T,
        fp8_flop_per_s=2614.9 * T, link="infinity-fabric-mi300x",
        source="AMD Instinct MI300X datasheet, 2023",
        memory_source="206,141,652,992 bytes: ROCm/rocm-systems, projects/amdsmi, vram_total_prefer_kfd_test.cc",
        reported="MI300X( VF)?", architecture="cdna3", multiprocessors=304,
    ),
    # The MI300X's chip with more and faster memory. torch prints 255.98 GiB: as on the MI300X, 16 MiB less than sold.
    "mi325x": Device(
        name="MI325X 256 GB", year=2024, memory_bytes=262_128 * MIB, memory_bytes_per_s=6000 * GB,
        fp32_flop_per_s=163.4 * T, tf32_flop_per_s=653.7 * T, fp16_flop_per_s=1307.4 * T, bf16_flop_per_s=1307.4 * T,
        fp8_flop_per_s=2614.9 * T, link="infinity-fabric-mi300x",
        source="AMD CDNA 3 architecture white paper, 2024, table 2",
        memory_source="255.98 GiB, github.com/vllm-project/vllm issue 41963",
        reported="MI325X", architecture="cdna3", multiprocessors=304,
    ),
    # A DGX B200 has 1,440 GB and 64 TB/s in eight GPUs, 72 PFLOP/s fp8 "training", which is with sparsity.
    "b200": Device(
        name="B200 180 GB", year=2024, memory_bytes=183_359 * MIB, memory_bytes_per_s=8000 * GB,
        fp32_flop_per_s=75 * T, tf32_flop_per_s=1125 * T, fp16_flop_per_s=2250 * T, bf16_flop_per_s=2250 * T,
        fp8_flop_per_s=4500 * T, link="nvlink5",
        source="NVIDIA DGX B200 datasheet, 2024, divided by 8; halved where it prints sparsity",
        memory_source="nvidia-smi 580.95, github.com/NVIDIA/TensorRT-LLM issue 10278",
        reported="B200", architecture="blackwell", multiprocessors=148,
    ),
    # A GB200 NVL72 has 72 of them: 360 PFLOP/s in 16 bits and 720 in 8, both with sparsity, and 13.4 TB. Two share a
    # Grace CPU. All 72 are joined by NVLink; the book's views have nodes of 8.
    "gb200": Device(
        name="GB200 186 GB", year=2024, memory_bytes=189_471 * MIB, memory_bytes_per_s=8000 * GB,
        fp32_flop_per_s=80 * T, tf32_flop_per_s=1250 * T, fp16_flop_per_s=2500 * T, bf16_flop_per_s=2500 * T,
        fp8_flop_per_s=5000 * T, link="nvlink5",
        source="NVIDIA GB200 NVL72 page, 2025, divided by 72; halved where it prints sparsity",
        memory_source="nvidia-smi 590.48, github.com/SlinkyProject/slurm-operator, docs/installation.md",
        reported="GB200", architecture="blackwell", multiprocessors=152, host="nvlink-c2c-of-two",
    ),
}  # fmt: skip
