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
