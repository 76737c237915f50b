"""Which resource is scarce: the rule on counters that are made up, one scarcity each, and where it abstains."""

from dataclasses import replace

import pytest

from scaleout.timing.verdict import (
    ARITHMETIC,
    CAPACITY,
    FIXED,
    GAUGE,
    INPUT,
    NAMES,
    NETWORK,
    RESOURCES,
    TRAFFIC,
    WAITING,
    Counters,
    seconds_by,
    verdict,
)

# Each phase takes 10 ms; at full rate the FLOPs take 8 ms and the bytes 2.
EVEN = Counters(
    wall=0.05, timer=0.05, input=0.01, compute=0.01, wait=0.01, transfer=0.01, update=0.01, doubled=0.1,
    flops=8e9, model_flops=8e9, bytes=2e8, flop_per_s=1e12, bytes_per_s=1e11, memory=10.0, limit=100.0,
)  # fmt: skip
LONGER = {NETWORK: "transfer", WAITING: "wait", INPUT: "input", FIXED: "update", ARITHMETIC: "compute"}


@pytest.mark.parametrize(("resource", "field"), LONGER.items())
def test_the_phase_that_is_much_longer_is_named(resource, field):
    found = verdict(replace(EVEN, **{field: 0.1}, wall=0.14, timer=0.14))
    assert found.resource == resource and found.why.startswith(f"{NAMES[resource]} takes 100 ms of 140")


def test_compute_is_memory_traffic_where_the_bytes_take_longer_at_full_rate():
    moved = replace(EVEN, compute=0.1, bytes=9e8)
    assert verdict(moved).resource == TRAFFIC
    assert verdict(replace(moved, flops=10e9, model_flops=10e9)).resource == ARITHMETIC


def test_where_nothing_stands_out_it_names_nothing():
    found = verdict(EVEN)
    assert found.resource is None and "no resource stands out" in found.why
    assert verdict(replace(EVEN, input=0.0149)).resource is None
    assert verdict(replace(EVEN, input=0.0151)).resource == INPUT


def test_a_timer_that_misses_more_than_half_comes_before_all_else():
    lying = replace(EVEN, input=0.1, wall=0.41, timer=0.2)
    assert verdict(lying).resource == GAUGE
    assert verdict(replace(lying, wall=0.39)).resource == INPUT


def test_full_memory_counts_only_where_flops_are_repeated():
    full = replace(EVEN, memory=95.0, input=0.1)
    assert verdict(full).resource == INPUT  # full, but nothing is recomputed for it
    assert verdict(replace(full, flops=9.6e9)).resource == CAPACITY
    assert verdict(replace(full, flops=9.6e9, memory=80.0)).resource == INPUT  # recomputes though it need not


def test_every_resource_but_two_has_seconds_and_all_have_names():
    assert set(seconds_by(EVEN)) == set(RESOURCES) - {CAPACITY, GAUGE} and set(NAMES) == set(RESOURCES)
    assert sum(seconds_by(EVEN).values()) == pytest.approx(0.05)
