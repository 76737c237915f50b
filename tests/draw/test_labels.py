"""Words and keys beside a picture, and surfaces that are striped: what people read, and what fits."""

import re
from itertools import pairwise

import pytest

from scaleout.draw import hatch, labels, svg
from scaleout.draw.plot import Axis, Plane, time_axis
from scaleout.words.amounts import clock


@pytest.mark.parametrize("width", [125, 200, 600])
def test_keys_flow_into_the_room_there_is(width):
    items = [("", "at the peak:"), ("c3", "activations 43"), ("c6%", "whole"), ("ink~", "strong"), ("muted-", "ideal")]
    marks, height = labels.keys(10, 4, width, items)
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]+)<', marks)
    assert [words for *_, words in found] == [words for _, words in items]
    rows = {}
    for x, y, words in found:
        rows.setdefault(float(y), []).append((float(x), float(x) + svg.measure(words, svg.SMALL)))
    for row in rows.values():
        assert all(a[1] < b[0] for a, b in pairwise(row)), "no key over another"
        assert row[-1][1] <= 10 + width + 1 or len(row) == 1
    assert height == labels.ROW * len(rows) and labels.keys(10, 4, 600, items, 3)[1] == 3 * labels.ROW


def test_what_does_not_fit_is_cut_with_an_ellipsis():
    assert labels.cut("two ranks", 100) == "two ranks" and labels.cut("", 0) == ""
    short = labels.cut("two ranks on a machine with a long name", 100)
    assert short.endswith("…") and "two ranks" in short and svg.measure(short, svg.SMALL) <= 100


def test_stripes_lie_in_their_rectangle_and_go_on_in_the_next():
    def stripes(*box):
        path = re.search(r'<path d="([^"]*)"', hatch.box(*box))[1]
        return [tuple(map(float, one)) for one in re.findall(r"M([\d.]+) ([\d.]+)l([\d.]+) -[\d.]+", path)]

    for x, y, width, height in ((3, 5, 40, 20), (3.3, 5.1, 0.5, 30), (0, 0, 300, 4)):
        for left, low, long in stripes(x, y, width, height):
            assert x - 0.01 <= left and left + long <= x + width + 0.02
            assert low <= y + height + 0.02 and low - long >= y - 0.02
            assert (left + low) % hatch.PITCH == pytest.approx(0, abs=0.02) or (
                left + low
            ) % hatch.PITCH > hatch.PITCH - 0.02
    assert hatch.area([]) == ""


@pytest.mark.parametrize("seconds", [2e-5, 0.9, 59.0, 4000.0, 3e5])
@pytest.mark.parametrize("width", [300, 592])
def test_a_time_axis_labels_what_fits(seconds, width):
    marks = time_axis(40, 100, width, seconds, 10)
    found = re.findall(r'<text x="([\d.]+)"[^>]*anchor="(\w+)"[^>]*>([^<]+)<', marks)
    unit, one = clock(seconds)
    assert found[0][2] == "0" and found[-1][2].endswith(f" {unit}")
    last = float(found[-1][2].split()[0].replace(",", "").replace("k", "e3"))
    at = 40 + width * last * one / seconds
    assert float(found[-1][0]) == pytest.approx(at, abs=0.02) and at <= 40 + width + 0.01


def test_a_label_beyond_the_plane_ends_at_its_edge():
    plane = Plane(40, 10, 100, 50, Axis(1, 4096, log=True), Axis(0, 1))
    grid = plane.grid("", "share", [(1, "1"), (4096, "4,096")], [(0, "0")])
    assert 'x="144" y="75" text-anchor="end"' in grid and 'x="40" y="75" text-anchor="middle"' in grid
    assert plane.own(1, 2, "beyond").count("<circle") == 3


def test_what_is_to_be_pressed_or_moved_is_a_picture_until_a_script_brings_it_to_life():
    pressed = svg.press(svg.line(0, 0, 9, 9), (0, 0, 24, 24), "cut", True, 'up "by" rows', "cut-up")
    moved = svg.movable(3, 4, svg.rect(0, 0, 9, 9, "c1"), (9, 9), "order", 1, "F0", "forward 0", "F0-1")
    both = svg.press("", (0, 0, 30, 30), "rank", 5, "rank 5", "r5", look="groups", all=True)
    assert 'data-press="rank=5&amp;look=groups&amp;all=true"' in both, "several controls at once"
    assert 'data-mark="cut-up" data-press="cut=true" data-label="up &quot;by&quot; rows"' in pressed
    assert 'transform="translate(3 4)" data-mark="F0-1" data-move="order:1:F0" data-label="forward 0"' in moved
    for drawn in (pressed, moved):
        assert not re.search("role|tabindex|aria|title", drawn) and 'fill="transparent" class="live-hit"' in drawn
