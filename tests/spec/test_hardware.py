"""Datasheet numbers against what can be computed about them, and against measured ceilings."""

import re

import pytest
from cases import refused

from scaleout.spec import topology
from scaleout.spec.devices import DEVICES, Device, device, reported_as
from scaleout.spec.hardware import LINKS, link

T = 1e12

# Boost clock (Hz) * fused multiply-adds per tensor core and cycle * 2 * tensor cores.
FROM_CLOCK = {
    "v100": 1530e6 * 64 * 2 * 640,
    "a100-40gb": 1410e6 * 256 * 2 * 432,
    "a100-80gb": 1410e6 * 256 * 2 * 432,
    "h100-sxm": 1830e6 * 512 * 2 * 528,
    "rtx-4090": 2520e6 * 64 * 2 * 512,
    "rtx-5090": 2407e6 * 64 * 2 * 680,
    "l40s": 2520e6 * 128 * 2 * 568,
    "mi300x": 2100e6 * 256 * 2 * 1216,
    "mi325x": 2100e6 * 256 * 2 * 1216,
}

# Datasheets of one GPU may name different clocks: an L40S's 362 TFLOP/s in 16 bits are at 2,490 MHz, its 733 in 8 and
# 183 of TF32 at 2,520. A figure with sparsity, or with fp16 accumulation, is off by a factor of 2.
OTHER_CLOCK = 0.03

# Best bf16 matrix products measured, in TFLOP/s: stas00/ml-engineering, compute/accelerator/README.md.
MEASURED = {"a100-80gb": 271.2, "h100-sxm": 794.5, "b200": 1745.0, "mi300x": 668.4}

# One way, GB/s: stas00/ml-engineering, network/README.md (PCIe rounded down there).
ONE_WAY = {"nvlink3": 300, "nvlink4": 450, "nvlink5": 900, "pcie4": 31, "pcie5": 63, "ib-ndr": 50}


@pytest.mark.parametrize("key", FROM_CLOCK)
def test_peak_follows_from_the_clock(key):
    assert DEVICES[key].fp16_flop_per_s == pytest.approx(FROM_CLOCK[key], rel=OTHER_CLOCK)


@pytest.mark.parametrize("key", MEASURED)
def test_dense_peak_is_above_what_was_measured_and_below_twice_it(key):
    peak = DEVICES[key].bf16_flop_per_s / T
    assert MEASURED[key] < peak < 2 * MEASURED[key]  # a sparse figure would be above


@pytest.mark.parametrize("key", ONE_WAY)
def test_links_are_one_way(key):
    assert LINKS[key].one_way_bytes_per_s / 1e9 == pytest.approx(ONE_WAY[key], rel=0.02)


@pytest.mark.parametrize("key", DEVICES)
def test_each_device_is_whole(key):
    one = DEVICES[key]
    assert one.link in LINKS and LINKS[one.link].scope != "between nodes"
    assert len(one.source) > 15 and len(LINKS[one.link].source) > 8
    assert 2017 < one.year < 2027
    sold = int(one.name.split()[-2])  # the name ends in what it is sold as, in GB or in GiB
    assert 0.99 * sold * 1e9 < one.memory_bytes <= sold * 2**30 and len(one.memory_source) > 20
    assert one.reported and one.architecture and one.multiprocessors
    assert one.fp32_flop_per_s < one.fp16_flop_per_s
    assert one.bf16_flop_per_s in (None, one.fp16_flop_per_s)


@pytest.mark.parametrize("key", DEVICES)
def test_numbers_of_half_the_bits_are_multiplied_twice_as_fast(key):
    one = DEVICES[key]
    for wide, narrow in ((one.tf32_flop_per_s, one.fp16_flop_per_s), (one.fp16_flop_per_s, one.fp8_flop_per_s)):
        assert not wide or not narrow or narrow == pytest.approx(2 * wide, rel=OTHER_CLOCK)


def test_tf32_is_several_times_fp32():
    ratio = {key: DEVICES[key].tf32_flop_per_s / DEVICES[key].fp32_flop_per_s for key in ("a100-80gb", "h100-sxm")}
    assert ratio == pytest.approx({"a100-80gb": 8, "h100-sxm": 7.4}, abs=0.05)
    assert DEVICES["v100"].tf32_flop_per_s is None and DEVICES["t4"].tf32_flop_per_s is None


def test_a_t4_s_memory_is_what_its_pins_give():
    """256 bits at 5,001 MHz, two transfers a clock. Its datasheet rounds down, to 300 GB/s."""
    assert DEVICES["t4"].memory_bytes_per_s == pytest.approx(256 / 8 * 2 * 5001e6, rel=1e-3)


def test_every_kind_of_link_has_a_share_that_is_reached():
    assert all(0 < one.reached < 1 for one in LINKS.values())
    mi300x = LINKS["infinity-fabric-mi300x"]
    assert mi300x.one_way_bytes_per_s / mi300x.peers * mi300x.reached == 48e9


def test_a_dgx_h100_has_eight_of_ours():
    h100 = DEVICES["h100-sxm"]
    assert h100.name.endswith(" 80 GB") and 640e9 < 8 * h100.memory_bytes < 640 * 2**30
    assert 8 * h100.fp8_flop_per_s * 2 == pytest.approx(32e15, rel=0.02)  # printed with sparsity
    assert 2 * LINKS[h100.link].one_way_bytes_per_s == 900e9  # printed for both directions


def test_what_the_hardware_page_says_of_flop_per_byte():
    v100, h100, h200 = (
        DEVICES[key].fp16_flop_per_s / DEVICES[key].memory_bytes_per_s for key in ("v100", "h100-sxm", "h200")
    )
    assert 2.0 < h100 / v100 < 2.2
    assert 1 - h200 / h100 == pytest.approx(1 / 3, abs=0.04)


def test_a_pair_of_3090s_is_faster_over_its_bridge_than_over_pcie():
    bridge = link(device("rtx-3090").link)
    assert 2 * bridge.one_way_bytes_per_s == 112.5e9 == 2 * 4 * 14.0625e9  # printed for both directions; four links
    assert bridge.one_way_bytes_per_s > link("pcie4").one_way_bytes_per_s


# What torch.cuda.get_device_name and nvidia-smi print.
REPORTED = {
    "Tesla V100-SXM2-16GB": "v100", "Tesla T4": "t4", "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "A100-SXM4-80GB": "a100-80gb", "NVIDIA GeForce RTX 3090": "rtx-3090", "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 4090 D": None, "NVIDIA GeForce RTX 5090": "rtx-5090", "NVIDIA L40S": "l40s",
    "NVIDIA L40": None, "NVIDIA H100 PCIe": "h100-pcie", "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 NVL": None, "NVIDIA H200": "h200", "NVIDIA H200 NVL": None, "NVIDIA GH200 480GB": "gh200",
    "NVIDIA GH200 144G HBM3e": None, "NVIDIA B200": "b200", "NVIDIA GB200": "gb200", "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI325X": "mi325x", "NVIDIA T400 4GB": None, "": None,
}  # fmt: skip


@pytest.mark.parametrize("name", REPORTED)
def test_a_gpu_is_found_by_the_name_that_its_driver_reports(name):
    assert reported_as(name) is (device(REPORTED[name]) if REPORTED[name] else None)
    assert sum(bool(re.search(rf"\b(?:{one.reported})$", name)) for one in DEVICES.values()) <= 1, "one row only"


@pytest.mark.parametrize("key", DEVICES)
def test_a_gpu_reaches_its_host_over_a_link_that_is_there(key):
    assert topology.host(DEVICES[key]).scope == "host to GPU"


def test_lookup_and_rates():
    assert device("t4").matmul_flop_per_s("fp16") == 65e12
    assert device("h100-sxm").matmul_flop_per_s("fp8") == 1978.9e12
    assert isinstance(device("b200"), Device)
    assert link("pcie5").name == "PCIe 5 x16"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: device("h100"), "h100-sxm"),
        (lambda: device(None), "use one of"),
        (lambda: device([1]), "use one of v100, t4"),
        (lambda: link({}), "use one of nvlink2"),
        (lambda: device("t4").matmul_flop_per_s([]), "use one of fp32, tf32"),
        (lambda: link("nvlink9"), "nvlink4"),
        (lambda: device("t4").matmul_flop_per_s("bf16"), "use one of fp32, fp16"),
        (lambda: device("v100").matmul_flop_per_s("tf32"), "has no tf32 unit"),
        (lambda: device("t4").matmul_flop_per_s("int3"), "fp32, tf32, fp16, bf16, fp8"),
    ],
)
def test_wrong_names_say_which_are_right(call, words):
    refused(call, words)
