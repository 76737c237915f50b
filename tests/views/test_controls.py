"""Controls: what each takes, what it says of anything else, and where a logarithmic slider rests."""

from __future__ import annotations

import itertools
import math

import pytest

from scaleout.views.controls import (
    arrange,
    code,
    guess,
    more,
    number,
    order,
    play,
    rows_of,
    select,
    slider,
    stops,
    toggle,
)

COUNT = slider("count", "Count", 4, 1, 64, unit="GPUs", log=True)
RATE = slider("rate", "Rate", 0.5, 0.0, 1.0, step=0.1)
SEQ = select("seq", "Tokens", 2048, [(1024, "1,024"), (2048, "2,048")])
NAME = select("name", "Name", "a", [("a", "A"), ("b", "B")])
ORDER = arrange("order", "Order", [["F0", "F1", "B0"], ["F0", "B0"]])


def test_a_slider_of_powers_of_two_rests_on_them_and_between():
    assert stops(COUNT) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64]
    assert all(isinstance(stop, int) for stop in stops(COUNT))


def test_a_slider_over_decades_rests_on_preferred_numbers():
    wide = slider("wide", "Wide", 1.0, 0.1, 100.0, step=0.01, log=True)
    assert stops(wide)[:12] == [0.1, 0.12, 0.16, 0.2, 0.25, 0.32, 0.4, 0.5, 0.63, 0.8, 1.0, 1.25]
    assert stops(wide)[-1] == 100.0


@pytest.mark.parametrize(("lo", "hi"), [(1, 2), (1, 1000), (3, 1_000_000), (7, 11)])
def test_stops_rise_from_lo_to_hi_in_even_ratios(lo, hi):
    found = stops(slider("x", "X", lo, lo, hi, log=True))
    assert (found[0], found[-1]) == (lo, hi)
    assert found == sorted(set(found))
    large = [stop for stop in found if stop > 20]
    assert all(high / low < 1.34 for low, high in itertools.pairwise(large))


@pytest.mark.parametrize(
    ("control", "value", "clean"),
    [
        (COUNT, 8, 8),
        (COUNT, 8.0, 8),
        (COUNT, 37, 37),
        (RATE, 1, 1.0),
        (RATE, 0.25, 0.25),
        (SEQ, 1024, 1024),
        (SEQ, 1024.0, 1024),
        (SEQ, "1024", 1024),
        (NAME, "b", "b"),
        (toggle("on", "On", False), True, True),
        (code("text", "Text", ""), "x = 1", "x = 1"),
        (play("t", "T", 0, 0, 9), 9.0, 9),
        (number("n", "N", 1.5, 0.0, 9.0), 9, 9.0),
        (ORDER, "F0.B0.F1_B0.F0", "F0.B0.F1_B0.F0"),
    ],
)
def test_a_good_value_comes_out_clean(control, value, clean):
    assert control.clean(value) == clean
    assert type(control.clean(value)) is type(clean)


@pytest.mark.parametrize(
    ("control", "value", "words"),
    [
        (COUNT, 0, "count must be from 1 to 64 GPUs, not 0"),
        (COUNT, 65, "count must be from 1 to 64 GPUs, not 65"),
        (COUNT, 1e308, "count must be from 1 to 64 GPUs, not 1e+308"),
        (COUNT, 2.5, "count must be a whole number, not 2.5"),
        (COUNT, math.nan, "count must be a finite number, not nan"),
        (COUNT, -math.inf, "count must be a finite number, not -inf"),
        (COUNT, 10**400, "count must be a finite number, not inf"),
        (COUNT, "8", "count must be a number, not '8'"),
        (COUNT, True, "count must be a number, not True"),
        (COUNT, None, "count must be a number, not None"),
        (COUNT, [8], "count must be a number, not [8]"),
        (SEQ, 512, "seq must be one of 1024, 2048, not 512"),
        (NAME, "", "name must be one of a, b, not ''"),
        (NAME, None, "name must be one of a, b, not None"),
        (ORDER, "F0.F1.B0", "order must be 2 rows with _ between them, as in F0.F1.B0_F0.B0, not 'F0.F1.B0'"),
        (ORDER, None, "order must be 2 rows with _ between them, as in F0.F1.B0_F0.B0, not None"),
        (ORDER, "_" * 90, f"order must be 2 rows with _ between them, as in F0.F1.B0_F0.B0, not '{'_' * 58}…"),
        (ORDER, "F0.F1.F1_F0.B0", "order must hold F0, F1, B0 once each in row 1, not F0.F1.F1"),
        (ORDER, "F0\nF1_B0", "order must hold F0, F1, B0 once each in row 1, not F0 F1"),
        (SEQ, 10**99, f"seq must be one of 1024, 2048, not 1{'0' * 79}…"),
        pytest.param(
            SEQ,
            10**5000,
            "seq must be one of 1024, 2048, not a value of type int that is too long to write out",
            id="too long to write out",
        ),
        (ORDER, "F0.F1.B0_F0", "order must hold F0, B0 once each in row 2, not F0"),
        (toggle("on", "On", False), 1, "on must be True or False, not 1"),
        (code("text", "Text", ""), 3, "text must be text, not 3"),
        (code("text", "Text", ""), "x" * 20_001, "text has 20,001 characters: use at most 20,000"),
    ],
)
def test_a_bad_value_is_refused_in_one_line_that_says_what_is_right(control, value, words):
    with pytest.raises(ValueError) as caught:
        control.clean(value)
    assert str(caught.value) == words


def test_a_control_that_cannot_work_is_refused_when_it_is_made():
    for make, words in [
        (lambda: slider("x", "X", 1, 5, 5), "lo < hi"),
        (lambda: slider("x", "X", 1, 1, 5, step=0), "step above 0"),
        (lambda: slider("x", "X", 9, 1, 5), "x must be from 1 to 5, not 9"),
        (lambda: slider("x", "X", 0, 0, 5, log=True), "lo above 0"),
        (lambda: select("x", "X", "c", [("a", "A")]), "one of a"),
        (lambda: arrange("x", "X", [["a", "a"]]), "each item once, not a.a"),
        (lambda: arrange("x", "X", [["a_b"], []]), "letters and digits"),
    ]:
        with pytest.raises(ValueError, match=words):
            make()


def test_a_spec_holds_what_the_front_end_needs():
    assert COUNT.spec()["stops"] == stops(COUNT)
    assert "stops" not in RATE.spec()
    assert RATE.spec() == {
        "kind": "slider",
        "name": "rate",
        "label": "Rate",
        "default": 0.5,
        "lo": 0.0,
        "hi": 1.0,
        "step": 0.1,
    }
    assert SEQ.spec()["options"] == [[1024, "1,024"], [2048, "2,048"]]
    assert ORDER.spec() == {"kind": "arrange", "name": "order", "label": "Order", "default": "F0.F1.B0_F0.B0"}
    assert order(rows_of(ORDER.default)) == ORDER.default
    asked = guess("How much?", "peak_gb", "GB", hi=90, step=0.5).spec()
    assert (asked["lo"], asked["hi"], asked["step"], asked["unit"]) == (0.0, 90, 0.5, "GB")
    assert [one.spec().get("more") for one in (SEQ, *more(SEQ, RATE))] == [None, True, True]
