"""Quantities as people write them."""

import math
import random

import pytest
from cases import each

from scaleout.exercises.engine import units


@each(
    [
        ("12.5 GB", 12.5e9),
        ("12,5 GB", 12.5e9),
        ("1.2e10 bytes", 1.2e10),
        ("1.2 x 10^10 B", 1.2e10),
        ("1.2×10^10 bytes", 1.2e10),
        ("1.2·10¹⁰ bytes", 1.2e10),
        ("1,024 MiB", 2**30),
        ("1.024 GB", 1.024e9),
        ("140,000 GB", 140e12),
        ("1.000.000 bytes", 1e6),
        ("1,000,000 bytes", 1e6),
        ("1.234,5 GB", 1234.5e9),
        ("1,234.5 GB", 1234.5e9),
        ("1 234,567 GB", 1234.567e9),
        ("1 024 MiB", 2**30),
        ("1\u202f024 MiB", 2**30),
        ("1_024 MiB", 2**30),
        ("1'024 MiB", 2**30),
        ("1.234.567 bytes", 1234567),
        ("12,5678 GB", 12.5678e9),
        ("0,125 GB", 0.125e9),
        (".5 GB", 0.5e9),
        ("7 gib", 7 * 2**30),
        ("7 Gigabytes", 7e9),
        ("8. GB", 8e9),
        ("1 PiB", 2**50),
        ("140 GBytes", 140e9),
        ("140 GByte", 140e9),
        ("2 GiBytes", 2 * 2**30),
        ("2 gibibytes", 2 * 2**30),
        ("1.4·10^11 bytes", 1.4e11),
        ("1.4 ⋅ 10^11 bytes", 1.4e11),
        ("3 kBytes", 3000),
        ("140 GBs", 140e9),
        ("140GB.", 140e9),
        ("about 140 GB", 140e9),
        ("~140 GB", 140e9),
        ("≈ 140 GB", 140e9),
        ("= 140 GB", 140e9),
        ("approx. 140 GB", 140e9),
        ("answer: 140 GB", 140e9),
        ("It is about 140 GB!", 140e9),
        ("140 GB per GPU", 140e9),
        ("140 GB in total.", 140e9),
        ("weights = 2 * 70 = 140 GB", 140e9),
        ("140 billion bytes", 140e9),
        ("7/4 GB", 1.75e9),
        ("2*70 GB", 140e9),
        ("2 x 70 GB", 140e9),
        ("2 × 70e9 bytes", 140e9),
        ("2 · 70 GB", 140e9),
        ("70 billion * 2 bytes", 140e9),
        ("280 ÷ 2 GB", 140e9),
        ("(16 - 2) * (6 + 4) GB", 140e9),
        ("2^30 bytes", 2**30),
        ("2**30 B", 2**30),
        ("2³⁰ bytes", 2**30),
        ("2^-1 GB", 0.5e9),
        ("150 - 10 GB", 140e9),
        ("2 + 3 * 4 GB", 14e9),
        ("１４０ GB", 140e9),
        ("١٤٠ GB", 140e9),
        ("+140 GB", 140e9),
        ("140-GB", 140e9),
        ("140 GB (2 bytes each)", 140e9),
        ("20(8-1) GB", 140e9),
        ("2 x (70 + 0) GB", 140e9),
        ("100 GB + 40 GB", 140e9),
        ("150GB - 10GB", 140e9),
        ("1e+2 GB + 4e+1 GB", 140e9),
        ("I get 140 GB in all", 140e9),
    ]
)
def test_quantities_as_people_write_them(text, base):
    assert units.parse(text, "bytes", "GB").base == pytest.approx(base, rel=1e-12)


@each(
    [
        ("34 GB", (0.5e9,), 0),
        ("34.0 GB", (0.05e9,), 0),
        ("140 GB", (0.5e9, 5e9), 0),
        ("3.4e10 bytes", (0.5e9,), 0),
        ("0.034 TB", (0.5e9,), 0),
        ("1,024 GB", (0.5e9,), 0),
        ("7/4 GB", (), 0),
        ("30 GB", (0.5e9,), 5e9),
        ("3 GB", (), 0.5e9),
        ("0.3 TB", (), 0.05e12),
    ]
)
def test_how_exactly_a_number_is_written(text, halves, lone):
    """What it may be off by, the zeros at its end counted and then not."""
    quantity = units.parse(text, "bytes", "GB")
    assert (quantity.halves, quantity.lone) == (pytest.approx(halves), pytest.approx(lone))


@each(
    [
        "1,02,4 GB",
        "1400,000 GB",
        "1.2.3 GB",
        "1 2 GB",
        "1,2.5 GB",
        "12²3 GB x",
        "² GB",
        "2**9**9 GB",
        "9" * 101 + " GB",
        "1/0 GB",
        "(1 GB",
        "2* GB",
        "140-150 GB",
        "1e31 GB",
        "eval(1) GB",
    ]
)
def test_what_is_not_one_number_is_refused(text):
    with pytest.raises(ValueError, match=r"write a number and a unit, such as|is not a unit here: use"):
        units.parse(text, "bytes", "GB")


@each(
    [
        "140-141 GB",
        "140 - 141 GB",
        "140 to 141 GB",
        "140\u2013141 GB",
        "140 GB \u2014 141 GB",
        "140 GB to 141 GB",
        "140..141 GB",
        "140 \u2026 141 GB",
        "from 140 to 141 GB",
        "between 140 and 141 GB",
        "about 1,000-2,000 GB",
        "1e2-1.5e2 GB",
        "1-2 TB or so",
    ]
)
def test_a_range_is_no_difference(text):
    with pytest.raises(ValueError, match=r"\d is a range, and one number is asked for: write a number and a unit"):
        units.parse(text, "bytes", "GB")


@each(
    [("2 to 3 ms", "seconds", "s"), ("10-12 min", "seconds", "s"), ("7-8 %", "share", "%"), ("7% to 8%", "share", "%")]
)
def test_a_range_of_anything_is_none(text, dimension, unit):
    with pytest.raises(ValueError, match="is a range, and one number is asked for"):
        units.parse(text, dimension, unit)


@each(
    [
        ("150-10 GB", 140e9),
        ("2 - 3*4 + 20 GB", 10e9),
        ("141-1 GB", 140e9),
        ("2-3/2 GB", 0.5e9),
        ("9-8+1 GB", 2e9),
        ("1.4e-04 PB", 140e9),
        ("1.4e-4 PB", 140e9),
    ]
)
def test_a_difference_is_no_range(text, size):
    assert units.parse(text, "bytes", "GB").base == pytest.approx(size)


@each(["12 Gb", "12 Gbit", "96 bits", "1 Mb"])
def test_bits_are_not_bytes(text):
    with pytest.raises(ValueError, match="8 bits"):
        units.parse(text, "bytes", "GB")


@each(
    [
        ("140 G", "use GB .* or GiB"),
        ("140 Gi", "use GB .* or GiB"),
        ("3 k", "use kB .* or KiB"),
        ("3 M", "use MB .* or MiB"),
        ("140 billion", "GB or GiB"),
    ]
)
def test_a_prefix_alone_is_told_the_units_it_may_stand_for(text, words):
    with pytest.raises(ValueError, match=f"of what.*{words}"):
        units.parse(text, "bytes", "GB")


@each(
    [
        ("70B × 2 bytes", "bytes", 140e9),
        ("70B × 2", "bytes", 140e9),
        ("2 × 70B bytes", "bytes", 140e9),
        ("2 * 70B", "bytes", 140e9),
        ("350M*4 bytes", "bytes", 1.4e9),
        ("140000000000", "bytes", 140e9),
        ("140 B", "bytes", 140),
        ("7.5B * 16 / 1e9 GB", "bytes", 120e9),
        ("6.74B × 16 / 32", "bytes", 3.37e9),
        ("2B × 3", "parameters", 6e9),
        ("sqrt(16) GB", "bytes", 4e9),
        ("√16 GB", "bytes", 4e9),
        ("√(2 × 20 × 14,400) s", "seconds", 758.9466),
        ("sqrt(2*20*4*3600) s", "seconds", 758.9466),
        ("2 sqrt(9) s", "seconds", 6),
        ("√(2·20·14400) = 759 s", "seconds", 759),
        ("log2(8/6)", "share", 0.4150375),
        ("1 - log2(3/2)", "share", 0.4150375),
        ("log_2(8/6)", "share", 0.4150375),
        ("log₂(8/6)", "share", 0.4150375),
        ("2 * log2(16)", "steps", 8),
        ("log10(1000) steps", "steps", 3),
        ("ln(2)/ln(4)", "share", 0.5),
        ("100 + max(200, 260) ms", "seconds", 0.36),
        ("max(200; 260) ms", "seconds", 0.26),
        ("min(3, 2, 7) s", "seconds", 2),
        ("ceil(10/4) steps", "steps", 3),
        ("floor(10/4)", "steps", 2),
        ("5 + 32×8 = 261 ms", "seconds", 0.261),
        ("23 thousand", "times", 23e3),
        ("23 thousand times", "times", 23e3),
        ("0.46 million times", "times", 0.46e6),
        ("0.576 million s", "seconds", 576e3),
        ("half", "share", 0.5),
        ("a half", "share", 0.5),
        ("one third", "share", 1 / 3),
        ("a quarter of it", "share", 0.25),
        ("two thirds", "share", 2 / 3),
        ("Three-quarters", "share", 0.75),
        ("about half", "share", 0.5),
        ("half of the step", "share", 0.5),
        ("eleven", "steps", 11),
        ("Eleven halvings", "steps", 11),
        ("two times", "times", 2),
    ]
)
def test_counts_in_words_suffixes_and_functions(text, dimension, base):
    default = {"bytes": "GB", "seconds": "s", "share": "%", "parameters": "billion"}.get(dimension, dimension)
    assert units.parse(text, dimension, default).base == pytest.approx(base, rel=1e-6)


@each(
    [
        "sqrt(-4) GB",
        "sqrt GB",
        "sqrt() GB",
        "log2(0) GB",
        "log2(-1) GB",
        "log2 8 GB",
        "max() GB",
        "max(1,) GB",
        "min(2 GB",
        "exp(9) GB",
        "sqrt(1, 2) GB",
        "log2(1, 2) GB",
        "__import__('os') GB",
        "max(1, eval(2)) GB",
        "sqrt" * 20 + "(4) GB",
        "(" * 99,
        "√" * 99,
        "sqrt(" * 19 + "1",
        "-" * 90 + "1 GB",
        "2^sqrt(1e30) GB",
        "9^9^9 GB",
        "half of",
        "ceil(1e31) GB",
    ]
)
def test_what_only_looks_like_a_function_is_refused_in_one_line(text):
    with pytest.raises(ValueError) as refused:
        units.parse(text, "bytes", "GB")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 200


@each(
    [
        ("759", "seconds", "s", 759),
        ("49", "share", "%", 0.49),
        ("0.49", "share", "%", 0.49),
        ("25", "bytes/s", "GB/s", 25e9),
        ("130.4", "bytes", "GiB", 130.4 * 2**30),
        ("140000000000", "bytes", "GB", 140e9),
    ]
)
def test_where_the_question_says_the_unit_a_bare_number_is_in_it(text, dimension, unit, base):
    assert units.parse(text, dimension, unit, unit_given=True).base == pytest.approx(base, rel=1e-12)


@each(
    [
        "16 bytes/parameter",
        "16 bytes / parameter",
        "16 bytes per parameter",
        "16 Bytes per param",
        "16 bytes for each parameter",
        "16 B / param",
        "128 bits per parameter",
    ]
)
def test_bytes_of_a_parameter(text):
    assert units.parse(text, "bytes/parameter", "bytes/parameter").base == 16


@each(
    [
        "5,000,000,000",
        "5e9",
        "5 billion weights",
        "5 billion",
        "5B",
        "5e9 parameters",
        "5 billion parameters",
        "5B params",
        "5,000 million",
        "5 bn",
        "5,000M parameters",
        "0.005 trillion",
        "5 * 10^9 parameters",
        "10/2 billion",
    ]
)
def test_counts_of_parameters(text):
    assert units.parse(text, "parameters", "billion").base == 5e9


@each(["655360", "655,360", "10000"])
def test_a_count_written_out_needs_no_unit(text):
    assert units.parse(text, "parameters", "million").base == float(text.replace(",", ""))
    with pytest.raises(ValueError, match="of what"):
        units.parse("9999", "parameters", "million")


@each(
    [
        ("0.3 s", "seconds", 0.3),
        ("300 ms", "seconds", 0.3),
        ("300 milliseconds", "seconds", 0.3),
        ("12 µs", "seconds", 12e-6),
        ("12 \u03bcs", "seconds", 12e-6),
        ("12 us", "seconds", 12e-6),
        ("2 sec", "seconds", 2),
        ("13 minutes", "seconds", 780),
        ("13 min", "seconds", 780),
        ("1.5 hours", "seconds", 5400),
        ("12 h", "seconds", 43200),
        ("39 ms", "seconds", 0.039),
        ("12 min 39 s", "seconds", 759),
        ("1 hour and 2 minutes", "seconds", 3720),
        ("50 GBps", "bytes/s", 50e9),
        ("50 MBps", "bytes/s", 50e6),
        ("50 GByte/s", "bytes/s", 50e9),
        ("2x", "times", 2),
        ("50 gigabytes per second", "bytes/s", 50e9),
        ("50 gigabyte/s", "bytes/s", 50e9),
        ("2-fold", "times", 2),
        ("400 gigabits per second", "bytes/s", 50e9),
        ("2 ×", "times", 2),
        ("400 Gbit/s", "bytes/s", 50e9),
        ("400 Gbits/sec", "bytes/s", 50e9),
        ("800 Mbps", "bytes/s", 1e8),
        ("62.5 per cent", "share", 0.625),
        ("62.5 percent", "share", 0.625),
        ("0.625", "share", 0.625),
        ("5/8", "share", 0.625),
        ("62.5 pct", "share", 0.625),
        ("5/8 = 62.5%", "share", 0.625),
        ("1", "share", 1),
        ("50 GB/s", "bytes/s", 50e9),
        ("50 gb/s", "bytes/s", 50e9),
        ("50 GB per second", "bytes/s", 50e9),
        ("50 GB/sec", "bytes/s", 50e9),
        ("400 Gbit/s", "bytes/s", 50e9),
        ("400 Gb/s", "bytes/s", 50e9),
        ("400 Gbps", "bytes/s", 50e9),
        ("400 gbps", "bytes/s", 50e9),
        ("800 Mbit/s", "bytes/s", 1e8),
        ("46.566 GiB/s", "bytes/s", 46.566 * 2**30),
        ("14 steps", "steps", 14),
        ("14", "steps", 14),
        ("2 x (8-1)", "steps", 14),
        ("1 step", "steps", 1),
        ("11 halvings", "steps", 11),
        ("62.5%", "share", 0.625),
        ("62.5 %", "share", 0.625),
        ("62,5 percent", "share", 0.625),
        ("0.625 share", "share", 0.625),
    ]
)
def test_times_rates_steps_and_shares(text, dimension, base):
    default = {"seconds": "ms", "bytes/s": "GB/s", "share": "%"}.get(dimension, dimension)
    assert units.parse(text, dimension, default).base == pytest.approx(base, rel=1e-12)


@each([("seconds", "ms", "use s or ms"), ("bytes/s", "GB/s", "use GB/s or Gbit/s"), ("share", "%", "use share or %")])
def test_a_bare_time_rate_or_share_is_asked_for_its_unit(dimension, default, words):
    with pytest.raises(ValueError, match=f"12 of what.*{words}"):
        units.parse("12", dimension, default)


def test_only_units_that_count_are_asked_for():
    with pytest.raises(ValueError, match=r"use GB/s$"):
        units.parse("25", "bytes/s", "GB/s", ("GB/s", "MB/s"))


@each([(1, "steps", "1 step"), (1, "bytes", "1 byte"), (1, "parameters", "1 parameter"), (11, "steps", "11 steps")])
def test_one_of_a_thing_is_singular(base, unit, words):
    assert units.show(base, unit, unit) == words


@each([("12 GB", "seconds"), ("12 ms", "bytes/s"), ("12 Gb", "bytes/s"), ("12 GB/s", "bytes"), ("12 days", "seconds")])
def test_a_unit_of_another_dimension_is_refused(text, dimension):
    with pytest.raises(ValueError, match="is not a unit here: use "):
        units.parse(text, dimension, {"seconds": "ms"}.get(dimension, "GB/s"))


def test_capitals_alone_do_not_tell_bits_from_bytes():
    with pytest.raises(ValueError, match="use Gbit/s or GB/s"):
        units.parse("50 GBPS", "bytes/s", "GB/s")


def test_whatever_is_typed_is_a_quantity_or_refused_in_one_line():
    """4,000 sentences of the parser's own words and marks: no other exception, nothing infinite, no long line."""
    draw = random.Random(0)
    words = [
        "12",
        "3.5",
        "1e9",
        "1,024",
        "0",
        "half",
        "two",
        "thousand",
        "70B",
        "GB",
        "ms",
        "%",
        "min",
        "(",
        ")",
        "√",
        "sqrt(",
        "log2(",
        "ln(",
        "max(",
        "ceil(",
        ",",
        ";",
        ", ",
        "+",
        "-",
        "*",
        "/",
        "^",
        "x",
        "=",
        " ",
        "of",
        "third",
        "e",
        "²",
        "x10^",
    ]
    for _ in range(4000):
        text = "".join(draw.choice(words) + draw.choice(["", " "]) for _ in range(draw.randint(1, 9)))
        for dimension in ("bytes", "seconds", "share", "steps"):
            try:
                quantity = units.parse(
                    text, dimension, next(iter(units.UNITS[dimension])), unit_given=draw.random() < 0.5
                )
            except ValueError as error:
                assert "\n" not in str(error) and len(str(error)) < 200, text
            else:
                assert 0 <= quantity.base < math.inf, text
