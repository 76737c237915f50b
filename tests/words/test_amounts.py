"""Numbers, bytes and seconds as people say them."""

import pytest

from scaleout.words.amounts import STOPWATCH, amount, clock, count, percent, quantity, short, took


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 ms"),
        (3.2e-5, "32.0 µs"),
        (0.0009996, "1.00 ms"),
        (0.0123, "12.3 ms"),
        (1.58, "1.58 s"),
        (599, "599 s"),
        (7800, "130 min"),
        (76_100, "21.1 h"),
        (1e6, "11.6 days"),
    ],
)
def test_time_is_told_in_the_unit_people_use(seconds, words):
    assert took(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (0.1 + 0.2, "0.3"),
        (2048, "2,048"),
        (1e4, "10k"),
        (2.5e5, "250k"),
        (1e6, "1M"),
        (5e10, "50bn"),
    ],
)
def test_ticks_have_few_characters_and_no_exponent(value, words):
    assert short(value) == words


def test_a_stopwatch_stays_with_seconds():
    assert [took(seconds, STOPWATCH) for seconds in (2.5e-6, 0.9996, -0.25, 7800, 0)] == [
        "2.50 µs", "1.00 s", "-250 ms", "7,800 s", "0 ms",
    ]  # fmt: skip
    assert clock(7800) == ("min", 60.0) and clock(7800, STOPWATCH) == ("s", 1.0)


@pytest.mark.parametrize(
    ("value", "digits", "trim", "words"),
    [
        (1978.9, 4, True, "1,979"),
        (8.0, 4, True, "8"),
        (8.0, 3, False, "8.00"),
        (0.32, 4, True, "0.32"),
        (1200.0, 2, True, "1,200"),
        (0.9996, 3, False, "1.00"),
        (-0.25, 2, False, "-0.25"),
        (0, 3, False, "0"),
    ],
)
def test_a_quantity_has_so_many_digits(value, digits, trim, words):
    assert quantity(value, digits, trim) == words


@pytest.mark.parametrize(
    ("size", "giga", "digits", "words"),
    [
        (26.96e9, 10**9, 3, "27.0 GB"),
        (786_432_000, 10**9, 3, "786 MB"),
        (999.6e6, 10**9, 3, "1.00 GB"),
        (999.6e6, 10**9, 4, "999.6 MB"),
        (1.5 * 2**30, 2**30, 3, "1.50 GiB"),
        (2.8e12, 10**9, 3, "2.80 TB"),
        (4, 10**9, 3, "4 B"),
        (-5e6, 10**9, 4, "-5.000 MB"),
        (0, 2**30, 3, "0 B"),
    ],
)
def test_bytes_have_the_unit_that_leaves_few_digits(size, giga, digits, words):
    assert amount(size, giga, digits) == words


def test_counts_and_shares():
    assert [count(n, "rank") for n in (1, 2, 4096)] == ["1 rank", "2 ranks", "4,096 ranks"]
    assert [percent(share) for share in (0.4123, 0, 3e-4, 0.9999, 1)] == [
        "41.2%", "0%", "under 0.1%", "over 99.9%", "100%",
    ]  # fmt: skip
    assert [percent(share, brief=True) for share in (3e-4, 0.9999, 0.25)] == ["<0.1%", ">99.9%", "25%"]
