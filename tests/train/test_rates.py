"""The learning-rate schedule: its corners, its shape, and steps from minutes."""

import itertools
import math

import pytest

from scaleout.train.rates import Rates, planned_steps


def test_the_corners():
    r = Rates(peak=0.3, steps=100, warmup=10, floor=0.1)
    assert r.rate(0) == pytest.approx(0.3 / 11)
    assert r.rate(9) == pytest.approx(0.3 * 10 / 11)
    assert r.rate(10) == 0.3
    assert r.rate(55) == pytest.approx(0.3 * 0.55), "half way down the cosine"
    assert r.rate(100) == pytest.approx(0.03)
    assert r.rate(10_000) == r.rate(100)


def test_it_climbs_then_falls_and_never_leaves_its_band():
    r = Rates(peak=1.0, steps=200, warmup=40, floor=0.2)
    rates = [r.rate(step) for step in range(200)]
    assert all(a < b for a, b in itertools.pairwise(rates[:41]))
    assert all(a > b for a, b in itertools.pairwise(rates[40:]))
    assert max(rates) == 1.0
    assert min(rates[40:]) > 0.2
    assert sum(rates[40:]) / 160 == pytest.approx(0.6, abs=0.01), "a cosine's mean is half way between its ends"


def test_the_warm_up_does_not_depend_on_the_length():
    assert [Rates(1.0, 100, 20).rate(i) for i in range(20)] == [Rates(1.0, 10**6, 20).rate(i) for i in range(20)]


def test_short_runs():
    assert Rates(1.0, 1).rate(0) == 1.0
    assert [Rates(1.0, 3, 10).rate(i) for i in range(3)] == pytest.approx([1 / 11, 2 / 11, 3 / 11])


def test_steps_of_minutes():
    assert planned_steps(2, 12, 20.0, 0.5, 12) == 12 + 200
    assert planned_steps(0.1, 12, 20.0, 0.5, 12) == 12, "over already: not less than what is done"
    assert planned_steps(1, 0, 0.0, 0.7, 1) == 85


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"peak": 0.0, "steps": 1}, "above 0"),
        ({"peak": math.nan, "steps": 1}, "above 0"),
        ({"peak": 1, "steps": 0}, "steps must be a whole number of at least 1"),
        ({"peak": 1, "steps": 5, "warmup": -1}, "warmup must be a whole number of at least 0"),
        ({"peak": 1, "steps": 5, "floor": 1.5}, "from 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused(words, said):
    with pytest.raises(ValueError, match=said):
        Rates(**words)


def test_no_time_is_refused():
    with pytest.raises(ValueError, match="must take some time"):
        planned_steps(0, 1, 1.0, 0.1, 1)
