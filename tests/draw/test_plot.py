"""Axes and curves of the live pictures: where a value lands, what is labelled, what is cut off."""

import math
import re

import pytest

from scaleout.draw.plot import Axis, Plane, log_ticks

PLANE = Plane(100, 10, 200, 100, Axis(1, 1e4, log=True), Axis(0, 50))


def points(mark):
    return [tuple(map(float, pair.split(","))) for pair in re.search(r'points="([^"]*)"', mark)[1].split()]


def test_values_land_where_the_scale_says():
    assert (PLANE.at_x(1), PLANE.at_x(100), PLANE.at_x(1e4)) == (100, 200, 300)
    assert (PLANE.at_y(0), PLANE.at_y(25), PLANE.at_y(50)) == (110, 60, 10)


def test_values_beyond_the_axes_stay_at_the_edge():
    assert (PLANE.at_x(0), PLANE.at_x(-5), PLANE.at_x(1e9)) == (100, 100, 300)
    assert (PLANE.at_y(-1), PLANE.at_y(99)) == (110, 10)


def test_ticks():
    assert log_ticks(1, 1e4) == [1, 10, 100, 1000, 10000]
    assert log_ticks(5, 2000) == [10, 100, 1000]
    assert log_ticks(1e-6, 1e6) == pytest.approx([1e-6, 1e-3, 1, 1e3, 1e6], rel=1e-12)
    assert Axis(0, 50).ticks() == [0, 10, 20, 30, 40, 50]
    assert Axis(30, 50).ticks() == [30, 35, 40, 45, 50]


def test_a_curve_is_cut_where_it_leaves_the_plane():
    rising = points(PLANE.curve([(1, 0), (1e4, 100)], "c1"))
    assert rising == [(100, 110), (200, 10)]  # y = 50 is reached at half of the logarithm of x
    assert points(PLANE.curve([(1, 60), (1e4, 70)], "c1")) == []
    through = points(PLANE.curve([(1, -50), (10, 0), (100, 50), (1000, 100)], "c1"))
    assert through == [(150, 110), (200, 10)]
    assert points(PLANE.curve([(0, 10), (1, 10), (100, 10)], "c1")) == [(100, 90), (200, 90)]


def test_dots_outside_are_not_drawn():
    marks = PLANE.dots([(10, 10), (1e6, 10), (10, 60), (-1, 10)], "c2", title="two & three")
    assert marks.count("<circle") == 1
    assert "<title>two &amp; three</title>" in marks


def test_grid_names_the_axes_and_a_rule_its_value():
    grid = PLANE.grid("bytes", "seconds", x_ticks=[(1, "one"), (1e4, "many")])
    assert re.findall(r">([^<]+)</text>", grid) == [
        "seconds",
        "one",
        "many",
        "0",
        "10",
        "20",
        "30",
        "40",
        "50",
        "bytes",
    ]
    assert 'x1="200"' in PLANE.rule(100, words="here") and ">here<" in PLANE.rule(100, words="here")
    assert 'text-anchor="end"' in PLANE.rule(9000, words="here")


@pytest.mark.parametrize("ends", [(1, 1), (2, 1), (0, math.inf), (math.nan, 1)])
def test_an_empty_axis_is_refused(ends):
    with pytest.raises(ValueError, match="lo < hi"):
        Axis(*ends)


def test_a_logarithmic_axis_starts_above_zero():
    with pytest.raises(ValueError, match="above 0"):
        Axis(0, 10, log=True)
