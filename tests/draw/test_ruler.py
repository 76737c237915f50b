"""The ruler in octaves: where sizes lie, the strip of a format, words that keep clear of each other."""

import re

import pytest

from scaleout.draw import svg
from scaleout.draw.ruler import STEPS, Clear, Ruler, bars, power, raised, strip, two
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.octaves import kept_bits

RULER = Ruler(-50, 30, 10, 410)


def points(d):
    return [(float(x), float(y)) for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", d)]


def test_a_size_lies_where_its_logarithm_says():
    assert RULER.octave == 5 and RULER.at(0) == 260 and RULER.at(-60) < 10 == RULER.x(-60)
    assert RULER.holds(-50) and not RULER.holds(31)
    assert "2<tspan" in RULER.axis(100, 8) and RULER.axis(100, 8).count("<text") == 9


@pytest.mark.parametrize("name", ["fp16", "e5m2", "e4m3", "e2m1"])
def test_a_strip_is_as_wide_as_a_format_and_as_high_as_its_bits(name):
    f = FORMATS[name]
    found = points(strip(RULER, f, 100, 2))
    left = RULER.at(f.lowest_octave)
    high = {x: (100 - y) / 2 for x, y in found[1 : 2 * STEPS + 1 : 2]}
    assert high == {RULER.at(e): kept_bits(e, f) for e in range(f.lowest_octave - STEPS, f.lowest_octave)}
    assert found[-3][0] == left and (100 - found[-3][1]) / 2 == f.digits
    assert 2 ** ((found[-1][0] - 260) / 5) == pytest.approx(f.largest, rel=0.01)


def test_strips_have_as_many_points_so_that_one_can_become_another():
    assert len({len(points(strip(RULER, f, 100, 2))) for f in FORMATS.values() if f.signed}) == 1
    found = points(strip(RULER, FORMATS["bf16"], 100, 2))
    assert {x for x, _ in found} == {10, 410}, "from end to end"


def test_bars_move_as_one_and_end_with_the_ruler():
    fills = [("c6", 1.0), ("accent", 1.0), ("c6", 0.5)]
    rows = [(-60, 4.0, ""), (0, 8.0, "half of them"), (20, 0.1, "")]
    drawn = bars(RULER, rows, 8, 100, fills)
    assert 'transform="translate(40 0)"' in drawn and "bar -60" not in drawn
    assert re.search(r'height="8" fill="var\(--accent[^>]*"bar 0"', drawn)
    assert drawn.count("<title>") == 1 and "<title>half of them</title>" in drawn
    assert 'height="0.5"' in drawn, "the lowest can be seen"
    assert "bar 20" not in bars(RULER, rows, 10, 100, fills)


def test_exponents_stand_above_the_line():
    drawn = raised(svg.text(0, 0, f"zero below {two(-25)} and up"))
    assert re.search(r'2<tspan dy="-4" font-size="11">−25</tspan><tspan dy="4"> and up</tspan></text>$', drawn)
    assert raised(svg.text(0, 0, two(16))).endswith(">16</tspan></text>") and power(-126) == "2⁻¹²⁶"


def test_words_keep_clear():
    clear = Clear(0, 200, 100)
    assert 'x="50"' in clear.words("first", [(50, 20, "middle")])
    assert 'y="40"' in clear.words("second", [(50, 22, "middle"), (50, 40, "middle")])
    assert clear.words("nowhere", [(50, 21, "start"), (199, 60, "start"), (50, 99, "start")]) == ""
