"""The formulas of collectives against published bus bandwidths of long messages (tests/published/): what share of a
link's rate a ring reaches, and how switches that add are told. By size of the message: test_nccl.py."""

import json
import re
import statistics
from pathlib import Path

import pytest

from scaleout.collectives import alpha_beta as c
from scaleout.spec.hardware import REACHED as LINKS_REACH
from scaleout.spec.hardware import SWITCHES_REACH
from scaleout.spec.topology import cluster, wire

PUBLISHED = Path(__file__).parents[1] / "published"
MEASURED, NCCL = (json.loads((PUBLISHED / f"{name}.json").read_text()) for name in ("allreduce_measured", "nccl_tests"))
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
    assert LINKS_REACH["between GPUs"] == pytest.approx(statistics.mean(REACHED.values()), rel=0.03)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
def test_half_a_ring_reaches_that_share_too(name):
    share = MEASURED["h200_8_gpus_16GiB"][name] / bus(name, "ring", 16 * GIB, 8, SPEC["h200"])
    assert share == pytest.approx(LINKS_REACH["between GPUs"], rel=0.02)


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
        *(("h200", gpus) for gpus in (5, 6, 7, 8)),
        *(("b200", gpus) for gpus in (6, 7, 8)),
    ]


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
