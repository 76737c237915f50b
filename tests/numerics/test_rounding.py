"""Rounding: what must hold in every format, and the points where formats differ."""

import math
import random
import struct
from bisect import bisect_left
from itertools import pairwise

import pytest

from scaleout.numerics.formats import FORMATS
from scaleout.numerics.rounding import beyond, decode, encode, endless, numbers, rounded, ulp

SMALL = [name for name, f in FORMATS.items() if f.bits <= 8]


def nearest(x, row):
    """The number of an ascending row nearest to x, of two the one at an even place."""
    at = bisect_left(row, x)
    near = sorted({max(at - 1, 0), min(at, len(row) - 1)}, key=lambda i: (abs(row[i] - x), i % 2))
    return row[near[0]]


@pytest.mark.parametrize("name", SMALL)
def test_the_nearest_of_all_numbers(name):
    f = FORMATS[name]
    row, chance = numbers(f), random.Random(0)
    middles = [(a + b) / 2 for a, b in pairwise(row)]
    tried = middles + [math.nextafter(x, way) for x in middles for way in (0, math.inf)]
    tried += [chance.uniform(0, f.largest) for _ in range(500)] + [x * (1 + 1e-9) for x in row[:-1]]
    for x in tried:
        wanted = nearest(x, row)
        if name == "e8m0":  # whose code 0 is odd: a tie goes up, as every number's significand is 1
            wanted = next((b for a, b in pairwise(row) if x == (a + b) / 2), wanted)
        assert rounded(x, f) == wanted, x
        if f.signed:
            assert rounded(-x, f) == -wanted, x


def test_fp16_is_pythons():
    chance, f = random.Random(1), FORMATS["fp16"]
    for _ in range(20_000):
        x = chance.uniform(-1, 1) * 2.0 ** chance.randint(-30, 15)
        assert rounded(x, f) == struct.unpack("e", struct.pack("e", x))[0]
        assert encode(x, f) == struct.unpack("H", struct.pack("e", x))[0]


def test_fp32_is_pythons():
    chance, f = random.Random(1), FORMATS["fp32"]
    for _ in range(20_000):
        x = chance.uniform(-1, 1) * 2.0 ** chance.randint(-155, 127)
        assert rounded(x, f) == struct.unpack("f", struct.pack("f", x))[0]
        assert encode(x, f) == struct.unpack("I", struct.pack("f", x))[0]


@pytest.mark.parametrize(
    ("name", "x", "wanted"),
    [
        ("e4m3", 1000.0, 448.0),
        ("e4m3", math.inf, 448.0),
        ("e4m3", -math.inf, -448.0),
        ("e2m1", 7.0, 6.0),
        ("e5m2", 61439.0, 57344.0),
        ("e5m2", 61440.0, math.inf),
        ("fp16", 65519.0, 65504.0),
        ("fp16", 65520.0, math.inf),
        ("fp16", -65520.0, -math.inf),
        ("e8m0", 0.0, 2.0**-127),
        ("e8m0", 3.0, 4.0),
        ("e8m0", 5.9, 4.0),
        ("fp16", 2.0**-25, 0.0),
        ("fp16", 2.0**-25 * 1.001, 2.0**-24),
        ("bf16", 1 - 1e-3, 1.0),
    ],
)
def test_ends(name, x, wanted):
    assert rounded(x, FORMATS[name]) == wanted


def test_beyond_begins_half_a_step_above_the_largest():
    for name, edge in (("fp16", 65520.0), ("e5m2", 61440.0), ("bf16", 2.0**128 - 2.0**119), ("e2m1", 7.0)):
        assert beyond(edge, FORMATS[name])
        assert not beyond(math.nextafter(edge, 0), FORMATS[name])
    assert not beyond(464.0, FORMATS["e4m3"]), "its last number is even: the tie stays"
    assert beyond(-465.0, FORMATS["e4m3"])
    assert beyond(math.inf, FORMATS["fp16"])


def test_where_there_is_no_infinity_it_is_nan():
    for name in ("e4m3fnuz", "e5m2fnuz", "e8m0"):
        assert math.isnan(rounded(math.inf, FORMATS[name]))
        assert math.isnan(rounded(FORMATS[name].largest * 2, FORMATS[name]))
    assert math.isnan(rounded(math.nan, FORMATS["e4m3"]))
    with pytest.raises(ValueError, match="e2m1 has no NaN: every code is a number"):
        rounded(math.nan, FORMATS["e2m1"])
    with pytest.raises(ValueError, match="e8m0 has no sign: use a number from 0 up, not -1"):
        rounded(-1.0, FORMATS["e8m0"])


def test_minus_zero_stays_where_there_is_one():
    assert encode(-1e-30, FORMATS["fp16"]) == 0x8000
    assert encode(-1e-30, FORMATS["e4m3fnuz"]) == 0
    assert math.copysign(1, rounded(-1e-30, FORMATS["bf16"])) == -1


def test_steps_double_from_octave_to_octave_and_are_even_below():
    f = FORMATS["fp16"]
    assert ulp(1.0, f) == f.epsilon == 2.0**-10
    assert ulp(2.0**-14, f) == ulp(1e-7, f) == ulp(0.0, f) == f.smallest
    assert ulp(-3.0, f) == 2 * ulp(1.9, f)
    assert endless(1e6, f) == 1e6 - 1e6 % 512 + 512 * (1e6 % 512 > 256)


def test_a_code_is_sign_exponent_mantissa():
    assert encode(-1.5, FORMATS["bf16"]) == 0b1_01111111_1000000
    assert decode(0b0_00001_0000000000, FORMATS["fp16"]) == 2.0**-14
    assert encode(1.0, FORMATS["e8m0"]) == 127
