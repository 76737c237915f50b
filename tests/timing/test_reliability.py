"""Failures and checkpoints: the formulas against their papers, each other in the limit, and a simulation."""

import json
import math
import random
from pathlib import Path
from random import Random
from statistics import mean, stdev

import pytest

from scaleout.timing import reliability as r

PUBLISHED = json.loads((Path(__file__).parents[1] / "published" / "checkpoint_interval.json").read_text())
HOUR, MINUTE = 3600.0, 60.0


# --- against the papers ------------------------------------------------------------------------------------


def test_young_is_the_square_root_of_the_published_formula():
    assert r.young(5 * MINUTE, 24 * HOUR) == pytest.approx(120 * MINUTE)
    assert r.young(5 * MINUTE, 6 * HOUR) == pytest.approx(60 * MINUTE)


def test_mean_time_between_the_interruptions_of_a_large_job():
    found = PUBLISHED["llama3"]
    hours = found["days"] * 24
    for count, between in (("unexpected", "hours_between_unexpected"), ("all", "hours_between_all")):
        device = hours * found["gpus"] / found[count]
        assert r.cluster_mtbf(found["gpus"], device * HOUR) / HOUR == pytest.approx(found[between], rel=1e-12)
    device = hours * found["gpus"] / found["unexpected"] / (24 * 365)
    assert device == pytest.approx(5.8, abs=0.1), "years of one GPU: rare alone, every three hours together"


def test_expected_time_is_the_published_formula():
    tau, delta, mtbf, restart = 3000.0, 60.0, 9000.0, 300.0
    by_hand = mtbf * math.exp(restart / mtbf) * (math.exp((tau + delta) / mtbf) - 1)
    assert r.expected_seconds(tau, tau, delta, mtbf, restart) == pytest.approx(by_hand, rel=1e-12)
    assert r.expected_seconds(7 * tau, tau, delta, mtbf, restart) == pytest.approx(7 * by_hand, rel=1e-12)


# --- against each other ------------------------------------------------------------------------------------


def best_interval(delta, mtbf):
    """The tau with the least `expected_seconds`, which solves 1 - tau/M = exp(-(tau + delta)/M), by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - middle > math.exp(-(middle + delta / mtbf)) else (low, middle)
    return low * mtbf


@pytest.mark.parametrize("delta_over_m", [1e-6, 1e-4, 1e-2, 0.1, 0.5])
def test_the_overhead_is_least_at_the_best_interval(delta_over_m):
    mtbf = 10_000.0
    delta = delta_over_m * mtbf
    best = best_interval(delta, mtbf)
    least = r.overhead(best, delta, mtbf)
    assert all(r.overhead(best * factor, delta, mtbf) > least for factor in (0.8, 0.97, 1.03, 1.25))
    assert 0 < best < mtbf


@pytest.mark.parametrize(("mtbf", "tau"), PUBLISHED["daly"]["tau_by_mtbf"].items())
def test_the_overhead_is_least_near_the_intervals_of_dalys_figures(mtbf, tau):
    found = best_interval(PUBLISHED["daly"]["delta"], float(mtbf))
    assert found == pytest.approx(tau, rel=0.01), "his higher order is an approximation, printed to two or three digits"


def test_young_is_good_where_checkpoints_are_short_and_bad_where_they_are_long():
    good, bad = (r.young(d, 1.0) / best_interval(d, 1.0) for d in (1e-6, 0.5))
    assert good == pytest.approx(1, abs=1e-3)
    assert bad > 1.2


def test_the_best_interval_does_not_depend_on_the_restart():
    for restart in (0.0, 100.0, 5000.0):
        best = min((r.expected_seconds(1, tau, 30, 5000, restart), tau) for tau in range(100, 2000, 10))[1]
        assert best == pytest.approx(best_interval(30, 5000), abs=10)


def test_first_order_overhead_at_youngs_interval():
    delta, mtbf = 1.0, 1e8
    assert r.overhead(r.young(delta, mtbf), delta, mtbf) == pytest.approx(math.sqrt(2 * delta / mtbf), rel=1e-3), (
        "half of it is checkpoints, half is work done twice"
    )


def test_without_failures_only_checkpoints_cost():
    assert r.expected_seconds(1000, 100, 5, r.NEVER) == 1050
    assert r.overhead(100, 5, 1e12) == pytest.approx(5 / 100, rel=1e-8)
    assert r.overhead(100, 0, 1e12) == pytest.approx(0, abs=1e-9)


def test_a_job_that_never_gets_through_is_infinite():
    assert r.expected_seconds(1, 1e6, 0, 1) == math.inf
    assert r.overhead(1e6, 0, 1) == math.inf


# --- clusters ----------------------------------------------------------------------------------------------


def test_rates_of_failure_add():
    assert r.cluster_mtbf(1, 1000) == 1000
    assert r.cluster_mtbf(16384, 16384.0) == 1
    assert r.cluster_mtbf(16, 1600, 8, 200) == pytest.approx(1 / (16 / 1600 + 2 / 200))
    assert r.cluster_mtbf(9, r.NEVER, 8, 200) == 100, "nine devices are on two nodes"
    assert r.cluster_mtbf(8, r.NEVER) == r.NEVER


# --- against a simulation ----------------------------------------------------------------------------------


def simulate(work_seconds, interval_seconds, checkpoint_seconds, mtbf_seconds, restart_seconds=0.0, seed=0):
    """Wall clock (seconds) of one job with failures drawn at random: what `expected_seconds` is the mean of."""
    chance, clock, done = random.Random(seed), 0.0, 0.0
    fails = chance.expovariate(1 / mtbf_seconds)

    def survive(seconds):
        nonlocal clock, fails
        if clock + seconds <= fails:
            clock += seconds
            return True
        clock = fails
        fails = clock + chance.expovariate(1 / mtbf_seconds)
        return False

    while done < work_seconds:
        segment = min(interval_seconds, work_seconds - done)
        if survive(segment + checkpoint_seconds):
            done += segment
        else:
            while not survive(restart_seconds):
                pass
    return clock


@pytest.mark.parametrize(
    ("tau", "delta", "mtbf", "restart"), [(100, 5, 1000, 20), (300, 30, 500, 60), (50, 50, 200, 0), (400, 1, 400, 200)]
)
def test_the_formula_is_the_mean_of_drawn_failures(tau, delta, mtbf, restart):
    times = [simulate(40 * tau, tau, delta, mtbf, restart, seed) for seed in range(200)]
    error = stdev(times) / math.sqrt(len(times))
    assert mean(times) == pytest.approx(r.expected_seconds(40 * tau, tau, delta, mtbf, restart), abs=4 * error)
    assert error / mean(times) < 0.05, "else the test says little"


def test_a_simulation_without_failures_is_work_and_checkpoints():
    assert simulate(1000, 300, 10, 1e15) == pytest.approx(1040)
    assert simulate(1000, 300, 10, 500, seed=3) == simulate(1000, 300, 10, 500, seed=3)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: r.young(0, 1), "checkpoint_seconds is 0"),
        (lambda: r.young(1, -1), "mtbf_seconds is -1"),
        (lambda: r.young(1, math.nan), "mtbf_seconds is nan"),
        (lambda: r.cluster_mtbf(0, 1), "ranks is 0"),
        (lambda: r.expected_seconds(1, 0, 1, 1), "interval_seconds is 0"),
        (lambda: r.expected_seconds(1, 1, -1, 1), "must not be negative"),
    ],
)
def test_bad_numbers_are_one_line(call, said):
    with pytest.raises(ValueError, match=said):
        call()


@pytest.mark.parametrize(("mtbf", "interval", "save", "restart"), [(10_000, 900, 30, 300), (5_000, 600, 60, 900)])
def test_shares_of_the_clock_are_those_of_a_run_that_is_simulated(mtbf, interval, save, restart):
    """Failures at random: work that is kept, saves, restarts, and the rest is lost."""
    random, spent = Random(11), {"work": 0.0, "saves": 0.0, "lost": 0.0, "restarts": 0.0}
    left = random.expovariate(1 / mtbf)
    for _ in range(20_000):
        while left < interval + save:  # a failure before the checkpoint is complete
            spent["lost"] += left
            while (left := random.expovariate(1 / mtbf)) < restart:
                spent["restarts"] += left
            spent["restarts"] += restart
            left -= restart
        spent["work"], spent["saves"], left = spent["work"] + interval, spent["saves"] + save, left - interval - save
    shares, whole = r.effective_time(mtbf, interval, save, restart), sum(spent.values())
    assert math.fsum(shares.values()) == pytest.approx(1)
    for name, share in shares.items():
        assert share == pytest.approx(spent[name] / whole, rel=0.08), name


def test_the_first_order_is_near_where_failures_are_rare_and_below_it_otherwise():
    day = 86_400

    def both(nodes):
        exact = r.effective_time(day / (nodes * 6.5e-3), 3600, 60, 900)["work"]
        return r.effective_ratio(nodes, 6.5e-3, 3600 / day, 60 / day, 900 / day), exact

    assert both(16)[0] == pytest.approx(both(16)[1], rel=1e-3)
    assert all(first < exact for first, exact in map(both, (512, 2048, 8192)))
    assert pytest.approx(1.8, rel=0.01) == 24 / (16_384 / 8 * 6.5e-3)  # hours, as Kokolis et al. project
