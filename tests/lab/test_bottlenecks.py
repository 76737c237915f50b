"""What the lab of bottlenecks prints: which run has which number, its counters, and what it says of a verdict."""

import pytest
from cases import each, refused

from scaleout.lab import bottlenecks
from scaleout.timing.verdict import INPUT, NAMES, NETWORK, RESOURCES, Counters

STARVED = Counters(
    wall=0.25, timer=0.25, input=0.2, compute=0.03, wait=0.005, transfer=0.01, update=0.005, doubled=0.47,
    flops=4e9, model_flops=4e9, bytes=2e8, flop_per_s=2e11, bytes_per_s=2e10, memory=3e6, limit=5e8,
)  # fmt: skip


def test_each_resource_has_one_number_and_the_order_is_another_than_the_resources():
    sealed = bottlenecks.sealed()
    assert list(sealed) == list(range(1, 9)) and sorted(sealed.values()) == sorted(RESOURCES)
    assert list(sealed.values()) != list(RESOURCES) and bottlenecks.sealed() == sealed
    in_place = [number for number, name in sealed.items() if RESOURCES[number - 1] == name]
    assert len(in_place) < 3, "the number tells nothing"


@each(range(1, 9))
def test_a_verdict_is_read_with_its_number(number):
    for resource in RESOURCES:
        assert bottlenecks.read(f"{number}={resource}") == (number, resource)
    assert bottlenecks.read(f" {number} = input ") == (number, INPUT)


@each(["", "input", "0=input", "9=input", "-1=input", "3.5=input", "=input", "²=input"])
def test_a_verdict_without_a_number_is_refused(words):
    refused(lambda: bottlenecks.read(words), "runs are numbered 1 to 8: write 3=input")


@each(["3", "3=", "3=disk", "3=Input", "3=memory"])
def test_a_verdict_of_no_resource_is_refused(words):
    refused(lambda: bottlenecks.read(words), "a verdict is one of arithmetic, traffic, network, waiting, input, fixed")


def test_counters_are_shown_with_units_and_both_times_at_full_rate():
    text = bottlenecks.counters(STARVED, [(0.03, 0.005), (0.035, 0.0)], emulated=False)
    lines = text.splitlines()
    assert any(line.split()[-1] == "200.0" and line.startswith("input") for line in lines)
    assert "arithmetic: 4.00 GFLOP, 20.0 ms at this machine's 200 GFLOP/s; the model needs 4.00" in lines
    assert "memory traffic: 0.20 GB, 10.0 ms at this machine's 20.0 GB/s" in lines
    assert lines[-2:] == [
        "rank 0: compute 30.0 ms, then waits 5.0 ms for the others",
        "rank 1: compute 35.0 ms, then waits 0.0 ms for the others",
    ]
    assert not any(NAMES[name] in text for name in (NETWORK, INPUT)) or "input: waiting for the batch" in text


def test_a_rank_that_is_emulated_is_called_so():
    lines = bottlenecks.counters(STARVED, [(0.03, 0.2), (0.23, 0.0)], emulated=True).splitlines()
    assert lines[-2].startswith("rank 0:") and lines[-1].startswith("an emulated rank: compute 230")


@pytest.mark.parametrize(("said", "begins"), [(INPUT, "Right. "), (NETWORK, "Not network bandwidth. ")])
def test_a_verdict_is_judged_by_the_run_and_explained_by_its_counters(said, begins):
    number = next(number for number, name in bottlenecks.sealed().items() if name == INPUT)
    words = bottlenecks.judged(number, said, STARVED)
    assert words == f"{begins}Run {number}: input takes 200 ms of 250; next is arithmetic with 30."


def test_remedies_stand_beside_the_run_as_it_is():
    lines = bottlenecks.remedies([("as it is", 0.2), ("wrong: x", 0.2), ("right: y", 0.05)]).splitlines()
    assert [line.split()[-1] for line in lines[-3:]] == ["1.00", "1.00", "0.25"]


def test_predicted_and_measured_stand_in_one_line_with_their_ratio():
    lines = bottlenecks.predicted({"seconds per step, run 1": 0.2}, {"seconds per step, run 1": 0.25}).splitlines()
    assert lines[-1].split() == ["run", "1", "200.0", "250.0", "0.80"]
