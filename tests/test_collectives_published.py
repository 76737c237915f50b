"""The model of collectives against published bus bandwidths; figures and sources are in tests/published/.

What the model promises: with the rate that a link reaches, 10% from 64 MiB on, and a factor of 2 below. Where it is
off by more, the case is named here with its ratio (model / measured).
"""

import json
import re
from pathlib import Path

import pytest

from scaleout import collectives as c
from scaleout.hardware import SWITCHES_REACH
from scaleout.step import WIRE_EFFICIENCY
from scaleout.topology import Cluster, Wire, cluster, wire

PUBLISHED = Path(__file__).parent / "published"
MEASURED, NCCL = (
    json.loads((PUBLISHED / f"{name}.json").read_text()) for name in ("allreduce_measured", "nccl_tests")
)
SPEC = {"h200": wire("nvlink4"), "b200": wire("nvlink5")}
GIB = 2**30


def bus(collective, algorithm, size, ranks, link):
    """GB/s of bus bandwidth by the model."""
    found = c.cost(collective, algorithm, size, ranks, link)
    return c.bus_bandwidth(collective, size, ranks, found.seconds) / 1e9


def test_links_are_those_of_the_source():
    for name, gigabytes in MEASURED["nvlink_spec"].items():
        assert SPEC[name].bytes_per_s == gigabytes * 1e9
    dgx = NCCL["dgx_h100"]
    assert 2 * SPEC["h200"].bytes_per_s == dgx["nvlink_both_ways"] * 1e9
    node = cluster(2, dgx["gpus"], nics=dgx["adapters"])
    assert node.pool.bytes_per_s * 8 == dgx["adapters"] * dgx["adapter_gigabit_per_s"] * 1e9


@pytest.mark.parametrize("name", NCCL["busbw_factor"])
@pytest.mark.parametrize("n", [2, 3, 8, 1024])
def test_factors_are_those_of_nccl_tests(name, n):
    printed = re.sub(r"(\d)([(n])", r"\1*\2", NCCL["busbw_factor"][name])  # 2(n-1)/n
    top, _, bottom = printed.partition("/")
    value = {"2*(n-1)": 2 * (n - 1), "(n-1)": n - 1, "1": 1}[top] / {"n": n, "": 1}[bottom]
    assert c.bus_factor(name, n) == value


# Share of the datasheet's rate that a ring of 4 to 8 GPUs reached, all five within half a percent of it.
REACHED = {"h200": 0.811, "b200": 0.754}


@pytest.mark.parametrize("name", REACHED)
def test_a_ring_reaches_the_same_share_of_its_links_for_any_number_of_gpus(name):
    table = MEASURED[f"{name}_8GiB"]
    for gpus, measured in zip(table["gpus"], table["ring"], strict=True):
        share = measured / bus("all_reduce", "ring", 8 * GIB, gpus, SPEC[name])
        assert share == pytest.approx(REACHED[name], rel=0.008), gpus
    assert REACHED["h200"] == pytest.approx(WIRE_EFFICIENCY, rel=0.02)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
def test_half_a_ring_reaches_that_share_too(name):
    share = MEASURED["h200_8_gpus_16GiB"][name] / bus(name, "ring", 16 * GIB, 8, SPEC["h200"])
    assert share == pytest.approx(WIRE_EFFICIENCY, rel=0.02)


# Where NCCL's default was faster than its ring, the switches added: 5 to 8 H200, 6 to 8 B200.
ADDED = [
    (name, gpus, default)
    for name in SPEC
    for gpus, default, ring in zip(*(MEASURED[f"{name}_8GiB"][key] for key in ("gpus", "default", "ring")), strict=True)
    if default > ring * 1.01
]
IN_NETWORK_REACHED = {"h200": SWITCHES_REACH["nvlink4"], "b200": SWITCHES_REACH["nvlink5"]}


def test_where_the_switches_added():
    assert [(name, gpus) for name, gpus, _ in ADDED] == [
        *(("h200", gpus) for gpus in (5, 6, 7, 8)), *(("b200", gpus) for gpus in (6, 7, 8))
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "gpus", "measured"), ADDED)
def test_in_network_reduction_explains_busbw_by_the_number_of_gpus(name, gpus, measured):
    """Sending size (1 + 1/p), one share of the links explains all of them to 2%."""
    share = measured / bus("all_reduce", "in-network", 8 * GIB, gpus, SPEC[name])
    assert share == pytest.approx(IN_NETWORK_REACHED[name], rel=0.02)


def test_sending_the_message_exactly_once_would_explain_it_less_well():
    """The share would have to grow with the number of GPUs, by 4% from 5 to 8."""
    once = [measured / (450 * c.bus_factor("all_reduce", gpus)) for name, gpus, measured in ADDED if name == "h200"]
    assert once == sorted(once) and once[-1] / once[0] > 1.04


def test_busbw_above_the_wire_is_in_network_reduction():
    measured = MEASURED["h200_8_gpus_16GiB"]["all_reduce_in_network"]
    wired = SPEC["h200"].bytes_per_s / 1e9
    assert measured > wired > bus("all_reduce", "ring", 16 * GIB, 8, SPEC["h200"]) > 0.99 * wired
    assert bus("all_reduce", "in-network", 16 * GIB, 8, SPEC["h200"]) > measured
    h100 = NCCL["reported"]["8xH100_all_reduce_busbw"]
    share = h100 / bus("all_reduce", "in-network", 16 * GIB, 8, SPEC["h200"])
    assert share == pytest.approx(IN_NETWORK_REACHED["h200"], rel=0.015)


# --- four nodes: busbw by message size ---------------------------------------------------------------------------

SWEEP = MEASURED["four_nodes"]
ROWS = list(zip(SWEEP["KiB"], SWEEP["busbw"], SWEEP["algbw"], strict=True))
# The source does not name the hardware. One figure comes from the sweep itself, the rate of a node's adapters: what
# 16 GiB reached. Latencies are those of hardware.py; NVLink 3, whose rate does not matter at these.
NODES = Cluster(4, 8, wire("nvlink3", WIRE_EFFICIENCY), Wire(4e-6, SWEEP["busbw"][-1] * 1e9 / 4), 4)


def modelled(kib):
    size = kib * 1024
    fastest = min(c.cost_on("all_reduce", name, size, NODES).seconds for name in ("ring", "tree", "hierarchical"))
    return c.bus_bandwidth("all_reduce", size, 32, fastest) / 1e9


def test_the_sweep_is_of_32_ranks():
    for kib, busbw, algbw in ROWS:
        assert busbw / algbw == pytest.approx(c.bus_factor("all_reduce", SWEEP["ranks"]), rel=0.015), kib


# KiB: model / measured. At 16 and 32 MiB this machine is faster than its own plateau; the model never is.
OFF = {16384: 0.78, 32768: 0.78}


@pytest.mark.parametrize(("kib", "busbw", "algbw"), ROWS)
def test_busbw_rises_with_the_message_and_saturates_at_the_adapters(kib, busbw, algbw):
    found = modelled(kib) / busbw
    if kib in OFF:
        assert found == pytest.approx(OFF[kib], abs=0.01)
    elif kib >= 65536:
        assert 1 / 1.1 < found < 1.1
    else:
        assert 0.5 < found < 2


def test_the_shape_of_the_sweep():
    curve = [modelled(kib) for kib, *_ in ROWS]
    assert curve == sorted(curve)
    assert curve[0] < 0.02 * curve[-1] and curve[-1] == pytest.approx(SWEEP["busbw"][-1], rel=0.01)
    half = next(kib for (kib, *_), value in zip(ROWS, curve, strict=True) if value > curve[-1] / 2)
    measured_half = next(kib for kib, value, _ in ROWS if value > SWEEP["busbw"][-1] / 2)
    assert half in (measured_half // 2, measured_half, measured_half * 2)


# --- single reports ----------------------------------------------------------------------------------------------


def test_three_nodes_of_a100_with_four_adapters_each():
    found = c.cost_on("all_reduce", "ring", 8 * GIB, Cluster(3, 8, wire("nvlink3"), wire("ib-hdr"), 4))
    ratio = c.bus_bandwidth("all_reduce", 8 * GIB, 24, found.seconds) / 1e9 / NCCL["reported"]["3x8A100_4xHDR_busbw"]
    assert ratio == pytest.approx(1.04, abs=0.01)


def test_an_adapter_reaches_more_of_its_rate_than_nvlink():
    assert all(0.9 < rate / (wire("ib-ndr").bytes_per_s / 1e9) < 1 for rate in NCCL["reported"]["NDR_adapter"])


def test_off_eight_a100_as_reported_in_an_issue():
    """A single report: at the share that H200 reach, the model is 20% above it."""
    found = bus("all_reduce", "ring", 8 * GIB, 8, wire("nvlink3", WIRE_EFFICIENCY))
    assert found / NCCL["reported"]["8xA100_all_reduce_busbw"] == pytest.approx(1.2, abs=0.01)
