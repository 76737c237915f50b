"""Shared scales of a histogram, on average: against numbers drawn from it, block by block."""

import math
import random

import pytest

from scaleout.numerics.blocks import BLOCKS, RULES, Blocks, quantized, relative_error, scale_of
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.octaves import Histogram, histogram
from scaleout.numerics.recorded import GRADIENTS
from scaleout.numerics.shared import shared, spread, windows

CHANCE = random.Random(3)
NORMAL = histogram(CHANCE.gauss(0, 1e-3) for _ in range(30_000))
RECORDED = GRADIENTS["last step"]["activations"]["block 4, queries and keys"]


def drawn(h, count):
    """Numbers of a histogram, by chance."""
    most, dice = math.log2(h.largest), random.Random(5)
    return [2.0 ** min(most, spread(h).quantile(dice.random())) for _ in range(count)]


WIDE, NARROW = drawn(RECORDED, 30_000), drawn(NORMAL, 30_000)


def blocks(element, size, scale, tensor=False):
    return Blocks("own", FORMATS[element], size, FORMATS[scale], tensor)


WAYS = [(BLOCKS[name], rule) for name in ("mxfp8", "mxfp8-e5m2", "mxfp4") for rule in RULES]
WAYS += [(BLOCKS[name], "floor") for name in ("nvfp4", "fp8-tensor", "fp8-tensor-e5m2")]
WAYS += [
    (blocks("e4m3", 128, "fp32"), "floor"),
    (blocks("e2m1", 8, "e8m0"), "up"),
    (blocks("e4m3", 16, "e4m3", True), "up"),
]


@pytest.mark.parametrize(("b", "rule"), WAYS, ids=lambda one: one if isinstance(one, str) else one.name)
def test_it_is_what_numbers_drawn_by_chance_come_to(b, rule):
    for h, values in ((NORMAL, NARROW), (RECORDED, WIDE)):
        found, wanted = shared(h, b, rule), quantized(values, b, rule, largest=h.largest)
        assert found.zero == pytest.approx(wanted.flushed / len(values), abs=0.012, rel=0.03)
        assert found.clipped == pytest.approx(wanted.clipped / len(values), abs=0.0035, rel=0.08)
        assert found.error == pytest.approx(relative_error(wanted.values, values), rel=0.08)


@pytest.mark.parametrize(("b", "rule"), WAYS, ids=lambda one: one if isinstance(one, str) else one.name)
def test_shares_add_up(b, rule):
    found = shared(RECORDED, b, rule)
    parts = (found.zero, found.few, found.whole, found.clipped)
    assert sum(parts) == pytest.approx(1) and min(parts) >= 0
    if rule == "up" and b.scale.mantissa == 0:
        assert found.clipped == 0


def test_smaller_blocks_lose_less_and_are_nearer():
    for element, scale, tensor in (("e2m1", "e4m3", True), ("e2m1", "fp32", False), ("e5m2", "e8m0", False)):
        found = [shared(RECORDED, blocks(element, size, scale, tensor), "up") for size in (16, 64, 256, 1024)]
        assert [one.zero for one in found] == sorted(one.zero for one in found)
        assert found[0].error <= found[-1].error
    assert found[-1].zero <= shared(RECORDED, blocks("e5m2", None, "fp32")).zero


def test_what_is_off_grows_with_what_is_cut():
    """arXiv 2506.08027: rounded down, the largest number of a block is cut; rounded up, it is not."""
    for name in ("mxfp8", "mxfp4"):
        down, up = (shared(RECORDED, BLOCKS[name], rule) for rule in RULES)
        assert down.clipped > 0.004 and up.clipped == 0 and up.error < 0.85 * down.error


def test_a_histogram_of_one_size():
    """Every number is its block's largest: in one octave, all are rounded alike."""
    h = histogram([1.0] * 100)
    assert shared(h, blocks("e4m3", 32, "e8m0")).whole == 1
    assert shared(h, blocks("e4m3", 32, "fp32")).error < 0.01
    with pytest.raises(ValueError, match="zeros alone has no sizes"):
        shared(Histogram(0, (), zeros=3), BLOCKS["mxfp8"])


def test_quantiles_and_shares_are_each_others_inverse():
    sizes = spread(RECORDED)
    for share in (0.001, 0.1, 0.4124, 0.5, 0.9, 0.999):
        assert sizes.share_below(sizes.quantile(share)) == pytest.approx(share)
    assert sizes.share_below(-25) == pytest.approx(RECORDED.below(-25))
    assert sizes.share_below(-99) == 0 and sizes.share_below(0) == pytest.approx(1)
    assert sizes.quantile(1.0) == pytest.approx(math.log2(RECORDED.largest), abs=1 / 8)


def test_windows_follow_the_largest_number_of_each_block():
    tops = {}
    for size in (16, 128, 1024, None):
        b = blocks("e4m3", size, "fp32")
        found = windows(RECORDED, b, "floor", 9)
        tops[size] = [top for top, _ in found]
        assert tops[size] == sorted(tops[size]) and tops[size][-1] <= math.log2(RECORDED.largest)
        assert all(scale * 448 == pytest.approx(2**top, rel=1e-6) for top, scale in found)
    middles = [tops[size][4] for size in (16, 128, 1024, None)]
    assert middles == sorted(middles) and tops[None] == [math.log2(RECORDED.largest)] * 9
    nv = BLOCKS["nvfp4"]
    top, scale = windows(RECORDED, nv, "floor", 1)[0]
    tensor = RECORDED.largest / 6 / 448
    assert scale == pytest.approx(scale_of(2**top, nv, "floor", tensor) * tensor, rel=1e-6)


def test_the_largest_of_a_block_is_as_large_as_by_chance():
    """The median of the largest of 32, from blocks that are drawn."""
    tops = sorted(max(WIDE[i : i + 32]) for i in range(0, len(WIDE), 32))
    ((top, _),) = windows(RECORDED, BLOCKS["mxfp8"], "floor", 1)
    assert top == pytest.approx(math.log2(tops[len(tops) // 2]), abs=0.2)
