"""Loss scaling: what a scaler does in the end, whatever it began with. Step by step with torch's: the truth's test."""

import pytest

from scaleout.numerics.formats import FORMATS
from scaleout.numerics.scaling import Scaler, search, static

FP16 = FORMATS["fp16"]


@pytest.mark.parametrize("begin", [1.0, 2.0**16, 2.0**40])
def test_it_comes_to_the_largest_scale_that_overflows_nothing(begin):
    course = search([0.1] * 400, FP16, Scaler(begin, interval=4))
    settled = course[200:]
    assert {step.scale for step in settled} == {2.0**19, 2.0**20}, "65504 / 0.1 lies between the two"
    assert all(step.skipped == (step.scale == 2.0**20) for step in settled)
    assert sum(step.skipped for step in settled) / len(settled) == pytest.approx(1 / 5, abs=0.01)


def test_a_step_left_out_halves_and_forgets_the_good_ones():
    course = search([1.0, 1.0, 1.0, 1e9, 1.0, 1.0, 1.0], FP16, Scaler(8.0, interval=3))
    assert [step.scale for step in course] == [8, 8, 8, 16, 8, 8, 8]
    assert [step.skipped for step in course] == [False] * 3 + [True] + [False] * 3
    assert course[-1].after == 16
    assert course[1].largest == 8.0


def test_a_gradient_comes_again_where_its_step_was_left_out():
    course = search([3.0, 1e9, 1e9, 1e9], FP16, Scaler(interval=100), repeats=True)
    assert [step.skipped for step in course] == [True, True, False, True]
    assert [step.largest / step.scale for step in course] == [3.0, 3.0, 3.0, 1e9]
    assert [step.scale for step in course] == [2.0**16, 2.0**15, 2.0**14, 2.0**14]


def test_a_static_scale_stays():
    course = search([1e9, 1.0], FP16, static(1024.0))
    assert [(step.scale, step.skipped, step.after) for step in course] == [(1024, True, 1024), (1024, False, 1024)]


def test_bf16_never_skips_a_gradient_of_fp32():
    assert not any(step.skipped for step in search([1e30, 1e-30], FORMATS["bf16"], static(2.0**10)))
    assert search([1000.0], FORMATS["e4m3"], static(1.0))[0].skipped, "it saturates, and so would show nothing"


def test_a_scale_does_not_grow_to_infinity():
    course = search([0.0] * 10, FP16, Scaler(2.0**126, interval=1))
    assert [step.after for step in course] == [2.0**127] * 10


def test_a_scale_ends_above_zero():
    course = search([1e60] * 200, FP16, Scaler(1.0))
    assert all(step.skipped for step in course)
    assert course[-1].after == course[160].after == FORMATS["fp32"].smallest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"scale": 0}, "scale must be a finite number from 1.4"),
        ({"growth": 0.5}, "growth must be a finite number"),
        ({"backoff": 2}, "backoff is a share"),
        ({"interval": 0}, "interval must be a whole number of at least 1"),
        ({"good": -1}, "good must be"),
    ],
)
def test_what_is_no_scaler_is_refused(words, said):
    with pytest.raises(ValueError, match=said):
        Scaler(**words)
    with pytest.raises(ValueError, match="a largest gradient must be a finite number from 0 up"):
        search([float("inf")], FP16)
