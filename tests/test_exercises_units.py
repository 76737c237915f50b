"""Quantities as people write them."""

import pytest

from scaleout.exercises import units

name = pytest.mark.parametrize


@name(("text", "base"), [
    ("12.5 GB", 12.5e9), ("12,5 GB", 12.5e9), ("1.2e10 bytes", 1.2e10), ("1.2 x 10^10 B", 1.2e10),
    ("1.2×10^10 bytes", 1.2e10), ("1,024 MiB", 2**30), ("1.234,5 GB", 1234.5e9), ("1,234.5 GB", 1234.5e9),
    ("1 024 MiB", 2**30), ("1\u202f024 MiB", 2**30), ("1_024 MiB", 2**30), ("1.234.567 bytes", 1234567),
    ("0,125 GB", 0.125e9), (".5 GB", 0.5e9), ("7 gib", 7 * 2**30), ("7 Gigabytes", 7e9), ("8. GB", 8e9),
    ("1 PiB", 2**50),
])  # fmt: skip
def test_quantities_as_people_write_them(text, base):
    assert units.parse(text, "bytes", "GB").base == pytest.approx(base, rel=1e-12)


@name("text", ["12 Gb", "12 Gbit", "96 bits", "1 Mb"])
def test_bits_are_not_bytes(text):
    with pytest.raises(ValueError, match="8 bits"):
        units.parse(text, "bytes", "GB")


def test_counts_of_parameters():
    assert units.parse("5 billion", "parameters", "billion").base == 5e9
    assert units.parse("5B", "parameters", "billion").base == 5e9
    assert units.parse("5e9 parameters", "parameters", "billion").base == 5e9
    assert units.parse("128 bits/param", "bytes/parameter", "bytes/parameter").base == 16
