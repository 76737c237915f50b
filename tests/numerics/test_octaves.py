"""Histograms by octave against the numbers that they count, rounded one by one."""

import math
import random

import pytest

from scaleout.numerics.formats import FORMATS
from scaleout.numerics.octaves import Histogram, fate, histogram, kept_bits, together
from scaleout.numerics.rounding import beyond, rounded, ulp

CHANCE = random.Random(7)
SIZES = [2.0 ** CHANCE.gauss(-24, 4.4) for _ in range(20_000)]


def test_an_octave_holds_what_lies_from_its_power_of_two_to_the_next():
    h = histogram([1.0, -1.999, 2.0, 0.25, 0.0, -0.0])
    assert h == Histogram(-2, (1, 0, 2, 1), 2, 2.0)
    assert (h.total, h.items(), h.below(0)) == (6, [(-2, 1), (-1, 0), (0, 2), (1, 1)], 0.25)
    assert histogram([]) == Histogram(0, ()) == together([])
    assert h.scaled(3) == histogram([8.0, 8 * 1.999, 16.0, 2.0, 0.0, 0.0])
    assert together([h, h.scaled(2)]).total == 12
    assert together([histogram(SIZES[:999]), histogram(SIZES[999:])]) == histogram(SIZES)


@pytest.mark.parametrize("name", ["fp16", "bf16", "e5m2", "e4m3", "e4m3fnuz"])
@pytest.mark.parametrize("octaves", [0, 10, 24, 40])
def test_a_fate_is_what_happens_to_each_number(name, octaves):
    f = FORMATS[name]
    found = fate(histogram(SIZES), f, octaves)
    scaled = [math.ldexp(x, octaves) for x in SIZES]
    beyonds = sum(beyond(x, f) for x in scaled) / len(scaled)
    assert found.zero == sum(not rounded(x, f) for x in scaled) / len(scaled)
    assert found.few == sum(rounded(x, f) > 0 and x < f.smallest_normal for x in scaled) / len(scaled)
    assert found.beyond == pytest.approx(beyonds, abs=0.01)
    assert found.zero + found.few + found.whole + found.beyond == pytest.approx(1)


def test_fp16_loses_what_is_below_half_of_its_smallest_number():
    assert fate(histogram(SIZES), FORMATS["fp16"]).zero == histogram(SIZES).below(-25)
    h = Histogram(-26, (1, 1, 1, 1), largest=2.0**-22)
    assert fate(h, FORMATS["fp16"]).zero == 0.25
    assert fate(h, FORMATS["fp16"], 1).zero == 0


def test_nothing_is_beyond_where_the_largest_is_not():
    h = histogram([260.0, 300.0])
    assert fate(h, FORMATS["e4m3"]).beyond == 0
    assert 0 < fate(histogram([260.0, 500.0]), FORMATS["e4m3"]).beyond < 0.2


@pytest.mark.parametrize("name", ["fp16", "e4m3", "e5m2", "e2m1"])
def test_bits_are_lost_one_by_one(name):
    f = FORMATS[name]
    for octave in range(f.lowest_octave - f.mantissa - 2, f.highest_octave + 2):
        steps = 2.0**octave / ulp(2.0**octave, f)
        wanted = max(0, math.frexp(steps)[1]) if steps >= 1 and octave <= f.highest_octave else 0
        assert kept_bits(octave, f) == wanted, octave
    assert kept_bits(0, f) == f.digits


def test_what_is_no_number_is_refused():
    with pytest.raises(ValueError, match="a histogram is of finite numbers, not nan"):
        histogram([math.nan])
    with pytest.raises(ValueError, match="h must be a Histogram"):
        fate([1.0], FORMATS["fp16"])
    for octaves in (0.5, 5000, -5000):
        with pytest.raises(ValueError, match="octaves must be a whole number"):
            fate(histogram([1.0]), FORMATS["fp16"], octaves)
        with pytest.raises(ValueError, match="octaves must be a whole number"):
            histogram([1.0]).scaled(octaves)


def test_the_middle_has_half_of_the_numbers_at_most_below_it():
    assert histogram([1.0, 2.0, 4.0]).middle() == 1
    assert histogram([1.0, 2.0]).middle() == 0
    assert histogram([0.0] * 9 + [0.25]).middle() == -2, "what is zero does not count"
    h = histogram(SIZES)
    assert h.below(h.middle()) < 0.5 <= h.below(h.middle() + 1)
    with pytest.raises(ValueError, match="has no middle"):
        histogram([0.0]).middle()
