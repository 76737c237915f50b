"""Sums whose total is kept in few bits: where they stop, and what mends them."""

import math
import random

import pytest

from scaleout.numerics.formats import FORMATS
from scaleout.numerics.rounding import rounded
from scaleout.numerics.sums import METHODS, running, swamped_from, total

ONES = [1.0] * 5000


@pytest.mark.parametrize(("name", "stops"), [("bf16", 256), ("fp16", 2048), ("e4m3", 16), ("e5m2", 8)])
def test_ones_stop_at_two_to_the_digits(name, stops):
    f = FORMATS[name]
    assert total(ONES, f) == stops == swamped_from(1.0, f)
    assert running(ONES, f)[: stops + 1] == [*range(1, stops + 1), stops]


@pytest.mark.parametrize("addend", [1.0, 0.1, 3.0, 0.7, 2.0**-20])
def test_swamped_is_the_first_total_that_stays(addend):
    f = FORMATS["bf16"]
    edge = swamped_from(addend, f)
    assert rounded(edge + addend, f) == edge
    before = edge * (1 - 2.0**-8)
    assert rounded(before + addend, f) > before
    assert swamped_from(1e4, FORMATS["fp16"]) == math.inf


def test_an_update_a_thousandth_of_its_weight_vanishes_in_bf16():
    updates = [1.0] + [-1e-3] * 1000
    assert total(updates, FORMATS["bf16"]) == 1.0
    assert total(updates, FORMATS["fp32"]) == pytest.approx(0.0, abs=1e-5)


def test_each_remedy_mends():
    chance, f = random.Random(6), FORMATS["bf16"]
    values = [rounded(chance.random(), f) for _ in range(4096)]
    wanted = math.fsum(values)
    off = {how: abs(total(values, f, how) / wanted - 1) for how in METHODS}
    assert off["plain"] > 0.5
    assert off["kahan"] < 2**-8
    assert off["pairwise"] < 2**-6
    assert off["promoted"] < 0.02 < off["plain"]
    assert abs(total(values, f, "promoted", 16) / wanted - 1) < off["promoted"]


def test_all_ways_are_exact_where_nothing_is_cut():
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert {how: total(values, FORMATS["bf16"], how) for how in METHODS} == dict.fromkeys(METHODS, 15.0)
    assert {how: total([], FORMATS["bf16"], how) for how in METHODS} == dict.fromkeys(METHODS, 0.0)
    assert running(values, FORMATS["bf16"], "promoted", 2) == [1, 3, 6, 10, 15]


def test_a_sum_without_an_order_is_refused():
    with pytest.raises(ValueError, match="method must be one of plain, kahan, promoted, not 'pairwise'"):
        running([1.0], FORMATS["bf16"], "pairwise")
    with pytest.raises(ValueError, match="addend must be a finite number above 0"):
        swamped_from(0.0, FORMATS["bf16"])
