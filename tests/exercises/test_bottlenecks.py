"""The answers of `bottlenecks`' exercises, against the lab's Record, published peaks, and arithmetic by hand."""

from functools import partial
from itertools import permutations
from random import Random
from statistics import median

import answers
import pytest
import repo
from cases import each

from scaleout import exercises
from scaleout.exercises.bottlenecks import gauges, ranks_waiting, runs, sealed
from scaleout.records import results
from scaleout.spec.devices import DEVICES
from scaleout.timing import verdict
from scaleout.timing.verdict import ARITHMETIC, CAPACITY, NETWORK, RESOURCES, TRAFFIC, WAITING, Counters

value = partial(answers.value, "bottlenecks")
right = partial(answers.right, "bottlenecks")
texts = partial(answers.texts, "bottlenecks")
RECORD = results.load(repo.ROOT / sealed.RECORD)


def read(name, number):
    """A figure of a run of the Record, as it stands there."""
    return RECORD.series[f"{name}, run {number}"]


def counters(number):
    fields = Counters.__dataclass_fields__
    return Counters(**{name: read(name, number)[0] for name in fields})


def test_numbers_that_follow_from_one_line_of_arithmetic():
    per_sequence = (7.0 - 5.2) / 16
    assert value("fixed-share") == pytest.approx(1 - 16 * per_sequence / 5.2)
    assert value("wrong-remedy") == pytest.approx(0.08 - 0.08 / 5)
    assert value("amdahl") == pytest.approx(100 / (38 + 62 / 1.7))
    achieved = 0.36 * 4 * 1979e12  # FLOP/s
    assert value("gauge-16") == pytest.approx(achieved / (16 * 989.5e12))
    assert 2 * DEVICES["h100-sxm"].bf16_flop_per_s == pytest.approx(1979e12, rel=1e-3)


def test_no_exercise_repeats_the_first_example_of_the_text():
    assert "26.9" not in "".join(map(texts, ("fixed-share", "two-batches"))) and "45.51" not in texts("gauge-16")


def test_intensity_by_counting_bytes():
    """A matmul of m x k by k x n: 2 m k n FLOPs over the two-byte elements of three matrices."""
    below = ["A"] if gauges.GELU < gauges.BALANCE else []
    for name, (m, k, n) in gauges.KERNELS.items():
        moved = sum(2 * rows * columns for rows, columns in ((m, k), (k, n), (m, n)))
        assert gauges.matmul(m, k, n) == pytest.approx(2 * m * k * n / moved)
        assert gauges.matmul(m, k, n) < min(m, k, n)
        below += [name] if gauges.matmul(m, k, n) < gauges.BALANCE else []
    assert "-".join(below).lower() == right("intensity") and round(gauges.BALANCE) == 295
    assert all(f"{size:,}" in texts("intensity") for sizes in gauges.KERNELS.values() for size in sizes)


def test_sealed_runs_are_the_records():
    words = {ARITHMETIC: "arithmetic", CAPACITY: "capacity", TRAFFIC: "bandwidth"}
    named = []
    for letter, (number, seen) in sealed.RUNS.items():
        c = counters(number)
        assert seen == sealed.Seen(
            round(1e3 * c.wall), round(1e3 * c.compute, 1), round(1e3 * c.flops / c.flop_per_s, 1),
            round(1e3 * c.bytes / c.bytes_per_s, 1), round(c.flops / c.model_flops, 2), round(100 * c.memory / c.limit),
        )  # fmt: skip
        named.append(f"{letter} {words[verdict.verdict(c).resource]}")
    option = next(one for one in exercises.exercise("bottlenecks", "sealed-counters").options if one.right)
    assert option.label == ", ".join(named)


def test_ranks_that_wait_are_the_records():
    for number, seen in ranks_waiting.RUNS.values():
        assert [round(1e3 * wait, 1) for wait in read("wait by rank", number)] == list(seen.waits)
        assert [round(1e3 * spent, 1) for spent in read("compute by rank", number)] == list(seen.compute)
        assert round(1e3 * read("wall", number)[0]) == seen.step
        assert round(1e3 * read("transfer", number)[0], 1) == seen.transfer
    found = {name: verdict.verdict(counters(number)).resource for name, (number, _) in ranks_waiting.RUNS.items()}
    assert found == {"A": NETWORK, "B": WAITING, "C": TRAFFIC}
    waits, step = ranks_waiting.RUNS["B"][1].waits, ranks_waiting.RUNS["B"][1].step
    assert right("which-rank") == f"b-{waits.index(min(waits))}" and step - max(waits) < step / 2
    others = [run for name, (_, run) in ranks_waiting.RUNS.items() if name != "B"]
    assert all(run.step - max(run.waits) > run.step / 2 for run in others)


def test_the_rule_of_ranks_that_wait():
    name = partial(answers.solution, "bottlenecks")("waits-least")
    random = Random(7)
    for _ in range(200):
        waits = [random.uniform(0, 0.3) for _ in range(random.randint(2, 9))]
        slow, step = waits.index(min(waits)), random.uniform(0.2, 3)
        gap = median(wait for rank, wait in enumerate(waits) if rank != slow) - waits[slow]
        assert name(waits, step) == (slow if gap > 0.1 * step else -1)


def test_two_measurements_of_a_line_give_the_line():
    fit = partial(answers.solution, "bottlenecks")("two-batches")
    for fixed, per_token in ((26.8, 23.5e-6), (0.1, 1e-3), (5.0, 1e-5)):
        for tokens in permutations((8192, 20000, 524288), 2):
            found = fit(*(number for n in tokens for number in (n, fixed + per_token * n)))
            assert found == pytest.approx([fixed, per_token], rel=1e-6)
    assert fit(1000, 1.0, 4000, 6.0) == [0, 1e-3]


def test_the_cheapest_levers_satisfy_both_and_nothing_cheaper_does():
    search = partial(answers.solution, "bottlenecks")("order-of-levers")
    for levers, gb, ms, usable, target in exercises.exercise("bottlenecks", "order-of-levers").cases:
        good = {}
        for mask in range(2 ** len(levers)):
            chosen = [i for i in range(len(levers)) if mask >> i & 1]
            frees, adds, price = (sum(levers[i][column] for i in chosen) for column in range(3))
            if gb + frees <= usable and ms + adds <= target:
                good.setdefault(price, []).append(chosen)
        if not good:
            assert search(levers, gb, ms, usable, target) == [-1]
        else:
            assert good[min(good)] == [search(levers, gb, ms, usable, target)], "one set alone is the cheapest"


def test_the_numbers_of_the_verdict_are_the_packages_resources():
    space = {}
    exec(exercises.exercise("bottlenecks", "find-bottleneck").stub.split("def")[0], space)
    names = {"BANDWIDTH": TRAFFIC, **{name.upper(): name for name in RESOURCES if name != TRAFFIC}}
    assert {RESOURCES[space[name]] for name in names} == set(RESOURCES)
    assert all(RESOURCES[space[name]] == resource for name, resource in names.items()) and space["NONE"] == -1


@each(range(1, 9))
def test_the_function_names_the_records_runs(number):
    c = {name: read(name, number)[0] for name in Counters.__dataclass_fields__ if name != "doubled"}
    answer = partial(answers.solution, "bottlenecks")("find-bottleneck")(c)
    assert RESOURCES[answer] == verdict.verdict(counters(number)).resource
    assert RECORD.checks[next(name for name in RECORD.checks if name.startswith(f"run {number}:"))]["passed"]


def test_every_verdict_is_among_the_cases():
    found = [runs.scarce(*case) for case in exercises.exercise("bottlenecks", "find-bottleneck").cases]
    assert set(found) == {*range(len(RESOURCES)), -1}


def test_the_class_plan_says_what_the_records_show():
    plan = repo.text("book/instructor/bottlenecks.md")
    again = counters(next(number for number in range(1, 9) if RECORD.checks and read("memory", number)[0] < 2.2e6))
    assert f"makes {again.flops / again.model_flops:.2f} times the FLOPs" in plan
    assert f"its memory is {again.memory / again.limit:.0%} full" in plan
    computing = [read("wall", number)[0] for number in (1, 6)]
    assert all(0.15 < seconds < 0.55 for seconds in computing) and "take 150 to 550 ms" in plan
    assert 10 < 1e3 * read("timer", 4)[0] < 15 and "In run 4 the job's own timer shows 10 to 15 ms" in plan


def test_five_runs_name_five_resources():
    assert len(set(runs.RIGHT.values())) == 5


def test_the_short_path_has_two():
    assert {exercise.key for exercise in exercises.catalogue("bottlenecks") if exercise.short} == {
        "fixed-share", "tallest-next",
    }  # fmt: skip
