"""The strips of rung 08's first picture are as wide and as high as their formats."""

import math
import re

import pytest

from scaleout.draw import format_strips as strips
from scaleout.draw import ruler
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.recorded import GRADIENTS

WIDTHS = (680, 354)


def corners(path):
    return [tuple(map(float, one)) for one in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_strip_is_as_wide_as_its_range_and_as_high_as_its_bits(width):
    picture = strips.strips(width)
    axis = ruler.Ruler(strips.LO, strips.HI, 58.0, width - 4)
    paths = [corners(one) for one in re.findall(r'<path d="([^"]*)"', picture)]
    assert len(paths) == len(strips.SHOWN)
    for name, path in zip(strips.SHOWN, paths, strict=True):
        f, heights = FORMATS[name], [y for _, y in path]
        assert (max(heights) - min(heights)) / strips.BIT == pytest.approx(f.digits, abs=0.02)
        top = [x for x, y in path if y == min(heights)]
        ends = [axis.x(f.lowest_octave), axis.x(math.log2(f.largest))]
        assert [min(top), max(top)] == pytest.approx(ends, abs=0.01)


def test_ends_are_said_as_the_formats_have_them():
    assert strips.ends(FORMATS["fp16"]) == ("2^−25", "65,504")
    assert strips.ends(FORMATS["bf16"]) == ("2^−134", "2^128")
    assert strips.ends(FORMATS["e4m3"]) == ("2^−10", "448")
    picture = strips.strips(680)
    assert all(f"{FORMATS[name].digits} bits<" in picture for name in strips.SHOWN)


def test_bars_are_the_recorded_gradients_of_all_layers():
    found = strips.gradients()
    parts = GRADIENTS["last step"]["activations"].values()
    assert found.total == sum(one.total for one in parts) and found.largest == max(one.largest for one in parts)
    bars = re.findall(r'height="([\d.]+)"[^>]*data-mark="bar (-?\d+)"', strips.strips(680))
    heights = {int(octave): float(high) for high, octave in bars}
    counts = dict(found.items())
    tallest = max(heights, key=heights.get)
    assert counts[tallest] == max(counts.values())
    assert heights[tallest + 3] / heights[tallest] == pytest.approx(counts[tallest + 3] / counts[tallest], abs=0.01)
