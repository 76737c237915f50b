"""The answers of `collectives`'s exercises, against published figures, arithmetic by hand, and rings on real ranks."""

import json
import random
from collections import Counter
from functools import partial
from math import log2

import answers
import pytest
from cases import each
from repo import ROOT

from scaleout import exercises
from scaleout.collectives import messages as simulation
from scaleout.collectives.alpha_beta import cost
from scaleout.exercises.collectives import ring as collectives_ring
from scaleout.spec.topology import Wire

GB = 10**9


value = partial(answers.value, "collectives")
right = partial(answers.right, "collectives")
solution = partial(answers.solution, "collectives")


def test_numbers_that_follow_from_one_line_of_arithmetic():
    assert value("nic-rate") == 800e9 / 8 / 4
    assert value("hierarchical") == 2 * 3 / 4 * (8 * GB / 8)
    assert value("ring-seconds") == pytest.approx(6 * 2.5 / 50)  # six steps with chunks of 2.5 GB
    assert value("bucketing") == pytest.approx(0.060 - 0.024)


def test_bus_bandwidth_is_the_published_one():
    published = json.loads((ROOT / "tests/published/allreduce_measured.json").read_text(encoding="utf-8"))["h200_8GiB"]
    by_ring = dict(zip(published["gpus"], published["ring"], strict=True))
    assert value("bus-bandwidth") / GB == pytest.approx(by_ring[6], rel=1e-3)
    bus = exercises.exercise("collectives", "bus-bandwidth")
    assert "8.59 GB" in bus.prompt and "39.2 ms" in bus.prompt and "219.1 GB/s" in bus.solution


def test_the_switch_explains_what_the_link_cannot():
    exercise = exercises.exercise("collectives", "above-the-link")
    assert "**480 GB/s**" in exercise.prompt and "450 GB/s" in exercise.prompt
    assert f"{480 / 1.75:.0f} GB/s" == "274 GB/s" and "274 GB/s" in exercise.solution
    assert right("above-the-link") == "in-network"
    assert f"{480e9 / 2**30:.0f} GiB/s" in next(option.reason for option in exercise.options if option.name == "units")


def test_the_right_choice_is_what_the_model_says():
    wire = Wire(5e-6, 50e9)
    tiny = {name: cost("all_reduce", name, 8, 64, wire).seconds for name in ("naive", "ring", "tree")}
    assert right("tiny-message") == min(tiny, key=tiny.get) == "tree"
    assert tiny["ring"] == pytest.approx(630e-6, rel=0.01)
    wire = Wire(10e-6, 50e9)
    eight_ranks, ranks_512 = (cost("all_reduce", "ring", 10 * GB, ranks, wire).seconds for ranks in (8, 512))
    assert right("more-ranks") == "little"
    assert (eight_ranks, ranks_512) == (pytest.approx(0.35, abs=0.001), pytest.approx(0.41, abs=0.001))
    assert ranks_512 / eight_ranks == pytest.approx(7 / 6, abs=0.01)
    reduce_scatter, all_gather, all_reduce = (
        cost(name, "ring", GB, 8, wire).sent_bytes for name in ("reduce_scatter", "all_gather", "all_reduce")
    )
    assert right("two-halves") == "rs-ag"
    assert reduce_scatter + all_gather == pytest.approx(all_reduce)
    assert all_reduce + all_gather == pytest.approx(1.5 * all_reduce)  # "half as much again"


@each([2, 3, 4, 5, 8, 13])
def test_chunks_are_those_of_the_simulation(ranks):
    """Where the simulation starts with another chunk, the numbers are shifted by the same for all ranks and steps."""
    chunk = solution("chunk-to-send")
    ring = [
        message
        for message in simulation.messages("all_reduce", "ring", ranks)
        if message.target == (message.source + 1) % ranks
    ]
    assert len(ring) == 2 * (ranks - 1) * ranks
    shifts = {(message.chunk - chunk(message.source, message.step, ranks)) % ranks for message in ring}
    assert len(shifts) == 1


def test_a_ring_passes_on_what_it_received():
    chunk = solution("chunk-to-send")
    for ranks in (2, 3, 7):
        for rank in range(ranks):
            assert chunk(rank, 0, ranks) == rank
            for step in range(1, 2 * (ranks - 1)):
                assert chunk(rank, step, ranks) == chunk((rank - 1) % ranks, step - 1, ranks)


def test_the_reduce_scatter_of_the_solution_is_that_of_the_simulation():
    """The reference is no ring: columns are added, and numbers counted from the part that stays behind."""
    play, draw = solution("reduce-scatter"), random.Random(0)
    for _ in range(40):
        ranks, length = draw.randint(1, 7), draw.randint(0, 20)
        lists = [[draw.randint(-9, 9) for _ in range(length)] for _ in range(ranks)]
        parts, sent = play(lists)
        assert [parts, sent] == collectives_ring._scatter(lists) == collectives_ring._ring(lists)
        assert [number for part in parts for number in part] == [sum(column) for column in zip(*lists, strict=True)]
        moves = simulation.messages("reduce_scatter", "ring", ranks)
        assert sent == simulation.sent(moves, simulation.chunk_sizes(length, ranks), ranks)
        at_end = simulation.run(moves, simulation.start("reduce_scatter", ranks, ranks))[-1]
        assert all(at_end[rank][rank] == Counter(range(ranks)) for rank in range(ranks))


def test_at_the_crossover_both_take_the_same_time():
    crossing = solution("crossover")
    for ranks, alpha, rate in exercises.exercise("collectives", "crossover").cases:
        n, steps = crossing(ranks, alpha, rate), log2(ranks)
        ring = 2 * (ranks - 1) * (alpha + n / ranks / rate)
        assert ring == pytest.approx(2 * steps * (alpha + n / rate))
        assert n > 0


@each(
    [
        ("nic-rate", "25 GiB/s", "gb-as-gib"),
        ("nic-rate", "23.28 GB/s", "gib"),
        ("nic-rate", "25 GB/s", ""),
        ("nic-rate", "100 GB/s", "whole-node"),
        ("nic-rate", "800 GB/s", "node-in-bits"),
        ("bus-bandwidth", "365 GiB/s", "gb-as-gib"),
        ("bus-bandwidth", "340 GB/s", "gib"),
        ("bus-bandwidth", "340 GiB/s", ""),
        ("bus-bandwidth", "2922 Gbit/s", ""),
        ("bus-bandwidth", "2922 GB/s", "bits"),
        ("bus-bandwidth", "2191 GB/s", "all-links"),
        ("ring-seconds", "2.4 s", "bits-twice"),
        ("ring-seconds", "0.6 s", "no-factor-two"),
        ("ring-seconds", "300 ms", ""),
        ("hierarchical", "3 GB", "split-by-nodes"),
        ("bucketing", "39 ms", "tensors-in-a-bucket"),
    ]
)
def test_units_and_factors_are_told_apart(key, answer, slip):
    verdict = answers.verdict("collectives", key, answer)
    assert (verdict["ok"], verdict["slip"]) == (not slip, slip)


SCATTER = answers.code_of(exercises.exercise("collectives", "reduce-scatter"))


@each(
    [
        ("(ranks - 1) * length", "whole-every-step"),
        ("ranks - 1", "counted-messages"),
        ("0", "sent-nothing"),
        ("length * (ranks > 1)", "whole-list"),
        ("length - len(parts[(rank + 1) % ranks])", "counted-another-ring"),
        ("length - len(parts[rank])", ""),
        ("(ranks - 1) * length / ranks", "wrong-result"),
    ]
)
def test_right_parts_with_the_wrong_count_are_named(sent, slip):
    counted = f"\n    return parts, [{sent} for rank in range(ranks)]\n"
    source = SCATTER.replace("return [", "parts = ").replace(", sent]\n", counted)
    verdict = answers.verdict("collectives", "reduce-scatter", source)
    assert (verdict["ok"], verdict["slip"]) == (not slip, slip)


@each(
    [
        ("rank - 1 - step", "rank - step", "reads-another-part"),
        ("rank - 1 - step", "rank + 1 - step", "wrong-way"),
        ("rank - 1 - step", "rank - 2 - step", "one-too-far"),
        ("rank - 1 - step", "rank - 1 + step", "counts-up"),
        ("range(ranks - 1)", "range(ranks - 2)", "one-step-short"),
        ("range(ranks - 1)", "range(ranks)", "one-step-more"),
        ("+= held[rank]", "= held[rank]", "replaced"),
        ("rank - 1 - step", "rank + step", "counts-up-from-its-own"),
        ("length % ranks", "0", "dropped-rest"),
        ("one[bounds[rank]:bounds[rank + 1]]", "one", "whole-lists"),
        ("min(part, length % ranks)", "length % ranks * (part == ranks)", "rest-last"),
        (
            "part * (length // ranks) + min(part, length % ranks)",
            "min(length, part * -(-length // ranks))",
            "rounded-up",
        ),
    ]
)
def test_a_reduce_scatter_with_one_change_is_told_its_cause(old, new, slip):
    assert old in SCATTER
    assert answers.verdict("collectives", "reduce-scatter", SCATTER.replace(old, new))["slip"] == slip
