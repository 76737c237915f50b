"""Quantities as people write them."""

import pytest

from scaleout.exercises import units

name = pytest.mark.parametrize


@name(("text", "base"), [
    ("12.5 GB", 12.5e9), ("12,5 GB", 12.5e9), ("1.2e10 bytes", 1.2e10), ("1.2 x 10^10 B", 1.2e10),
    ("1.2×10^10 bytes", 1.2e10), ("1,024 MiB", 2**30), ("1.234,5 GB", 1234.5e9), ("1,234.5 GB", 1234.5e9),
    ("1 024 MiB", 2**30), ("1\u202f024 MiB", 2**30), ("1_024 MiB", 2**30), ("1.234.567 bytes", 1234567),
    ("0,125 GB", 0.125e9), (".5 GB", 0.5e9), ("7 gib", 7 * 2**30), ("7 Gigabytes", 7e9), ("8. GB", 8e9),
    ("1 PiB", 2**50), ("140 GBytes", 140e9), ("140 GByte", 140e9), ("2 GiBytes", 2 * 2**30),
    ("1.4·10^11 bytes", 1.4e11), ("1.4 ⋅ 10^11 bytes", 1.4e11), ("3 kBytes", 3000),
])  # fmt: skip
def test_quantities_as_people_write_them(text, base):
    assert units.parse(text, "bytes", "GB").base == pytest.approx(base, rel=1e-12)


@name("text", ["12 Gb", "12 Gbit", "96 bits", "1 Mb"])
def test_bits_are_not_bytes(text):
    with pytest.raises(ValueError, match="8 bits"):
        units.parse(text, "bytes", "GB")


@name(("text", "words"), [("140 G", "use GB .* or GiB"), ("140 Gi", "use GB .* or GiB"), ("3 k", "use kB .* or KiB"),
                         ("3 M", "use MB .* or MiB")])  # fmt: skip
def test_a_prefix_alone_is_told_the_units_it_may_stand_for(text, words):
    with pytest.raises(ValueError, match=f"of what.*{words}"):
        units.parse(text, "bytes", "GB")


@name("text", ["16 bytes/parameter", "16 bytes / parameter", "16 bytes per parameter", "16 Bytes per param",
               "16 bytes for each parameter", "16 B / param", "128 bits per parameter"])  # fmt: skip
def test_bytes_of_a_parameter(text):
    assert units.parse(text, "bytes/parameter", "bytes/parameter").base == 16


def test_counts_of_parameters():
    assert units.parse("5 billion", "parameters", "billion").base == 5e9
    assert units.parse("5B", "parameters", "billion").base == 5e9
    assert units.parse("5e9 parameters", "parameters", "billion").base == 5e9
    assert units.parse("128 bits/param", "bytes/parameter", "bytes/parameter").base == 16


@name(("text", "dimension", "base"), [
    ("0.3 s", "seconds", 0.3), ("300 ms", "seconds", 0.3), ("300 milliseconds", "seconds", 0.3),
    ("12 µs", "seconds", 12e-6), ("12 \u03bcs", "seconds", 12e-6), ("12 us", "seconds", 12e-6), ("2 sec", "seconds", 2),
    ("50 GB/s", "bytes/s", 50e9), ("50 gb/s", "bytes/s", 50e9), ("50 GB per second", "bytes/s", 50e9),
    ("50 GB/sec", "bytes/s", 50e9), ("400 Gbit/s", "bytes/s", 50e9), ("400 Gb/s", "bytes/s", 50e9),
    ("400 Gbps", "bytes/s", 50e9), ("400 gbps", "bytes/s", 50e9), ("800 Mbit/s", "bytes/s", 1e8),
    ("46.566 GiB/s", "bytes/s", 46.566 * 2**30), ("14 steps", "steps", 14), ("14", "steps", 14), ("1 step", "steps", 1),
    ("62.5%", "share", 0.625), ("62.5 %", "share", 0.625), ("62,5 percent", "share", 0.625),
    ("0.625 share", "share", 0.625),
])  # fmt: skip
def test_times_rates_steps_and_shares(text, dimension, base):
    default = {"seconds": "ms", "bytes/s": "GB/s", "steps": "steps", "share": "%"}[dimension]
    assert units.parse(text, dimension, default).base == pytest.approx(base, rel=1e-12)


@name(("dimension", "default", "words"), [("seconds", "ms", "use s or ms"), ("bytes/s", "GB/s", "use GB/s or Gbit/s"),
                                          ("share", "%", "use share or %")])  # fmt: skip
def test_a_bare_time_rate_or_share_is_asked_for_its_unit(dimension, default, words):
    with pytest.raises(ValueError, match=f"12 of what.*{words}"):
        units.parse("12", dimension, default)


@name(("text", "dimension"), [("12 GB", "seconds"), ("12 ms", "bytes/s"), ("12 Gb", "bytes/s"), ("12 h", "seconds")])
def test_a_unit_of_another_dimension_is_refused(text, dimension):
    with pytest.raises(ValueError, match="is not a unit here: use "):
        units.parse(text, dimension, {"seconds": "ms"}.get(dimension, "GB/s"))
