"""Float formats against the tables of their specifications (tests/published/number_formats.json)."""

import json
import math
from pathlib import Path

import pytest

from scaleout.numerics.blocks import BLOCKS
from scaleout.numerics.formats import FORMATS, Format, named
from scaleout.numerics.rounding import decode, encode, numbers

TABLES = json.loads((Path(__file__).parents[1] / "published" / "number_formats.json").read_text())
SMALL = {
    name: row for table in ("ofp8", "fnuz", "mx_elements") for name, row in TABLES[table].items() if name != "source"
}


@pytest.mark.parametrize("name", SMALL)
def test_ends_are_those_of_the_specification(name):
    f, row = FORMATS[name], SMALL[name]
    codes = {code: decode(code, f) for code in range(2**f.bits)}
    assert f.bias == row["bias"]
    assert (f.largest, f.smallest_normal, f.smallest) == (row["largest"], row["smallest_normal"], row["smallest"])
    assert [f"{code:#04x}" for code, x in codes.items() if math.isnan(x)] == row["nans"]
    assert sum(map(math.isinf, codes.values())) == row["infinities"]
    below = [x for x in numbers(f) if x < f.smallest_normal]
    assert (max(below) if below else None) == row["largest_subnormal"]


@pytest.mark.parametrize("name", [name for name in TABLES["ieee"] if name != "source"])
def test_ends_of_16_and_32_bits(name):
    f, row = FORMATS[name], TABLES["ieee"][name]
    assert {key: getattr(f, key) for key in row} == row
    assert f.epsilon == 2.0 ** (1 - row["digits"])


def test_fp4_has_eight_sizes():
    assert numbers(FORMATS["e2m1"]) == (0, 0.5, 1, 1.5, 2, 3, 4, 6)


@pytest.mark.parametrize("name", SMALL)
def test_codes_and_numbers_are_one_to_one(name):
    f = FORMATS[name]
    for code in range(2**f.bits):
        x = decode(code, f)
        if math.isnan(x):
            assert math.isnan(decode(encode(x, f), f))
        elif not math.isinf(x) or not f.saturates:
            assert encode(x, f) == code, x
    row = numbers(f)
    assert list(row) == sorted(set(row))


@pytest.mark.parametrize("name", [name for name in TABLES["mx_blocks"] if name != "source"])
def test_blocks_are_those_of_the_specification(name):
    b, row = BLOCKS[name], TABLES["mx_blocks"][name]
    assert (b.element.name, b.size, b.scale.bits) == (row["element"], row["size"], row["scale_bits"])
    assert b.bits() == b.element.bits + row["scale_bits"] / row["size"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((0, 3, 7), "exponent must be a whole number of at least 1"),
        ((4, -1, 7), "mantissa must be a whole number"),
        ((9, 3, 7), "at most 8 bits of exponent"),
        ((4, 3, 7, "fn"), "codes must be one of ieee, nan, zero, all"),
    ],
)
def test_what_is_no_format_is_refused(words, said):
    with pytest.raises(ValueError, match=said):
        Format("mine", *words)


def test_names_are_listed():
    with pytest.raises(ValueError, match="format 'fp8' is unknown: use one of fp32, tf32, fp16"):
        named("fp8")
    with pytest.raises(ValueError, match=r"fp32 has 4,294,967,296 codes: list a format of at most 16 bits"):
        numbers(FORMATS["fp32"])
    with pytest.raises(ValueError, match="e4m3 has codes from 0 to 255, not 256"):
        decode(256, FORMATS["e4m3"])
