"""The picture of number formats: bars are counts, the strip is the format, and what is pressed is what is shown."""

import re

import pytest
from drawn import marks, number

from scaleout import views
from scaleout.draw import svg
from scaleout.numerics.recorded import GRADIENTS
from scaleout.views.precision.setting import PARTS

WIDTHS = [svg.WIDE, svg.NARROW]
OPENING = GRADIENTS["last step"]["activations"]["block 4, queries and keys"]


def shown(width=svg.WIDE, **params):
    return views.render("precision", params, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_bars_are_counts_and_slide_by_octaves(width):
    plain, scaled = (shown(width, scale=k)["svg"] for k in (0, 12))
    found, moved = marks(plain), marks(scaled)
    counts = dict(OPENING.items())
    high = {e: number(found[f"bar {e}"], "height")[0] for e in range(-35, -14)}
    tall = max(counts, key=counts.get)
    for e, one in high.items():
        assert one == pytest.approx(max(0.5, high[tall] * counts[e] / counts[tall]), abs=0.01)
    octave = (number(found["bar -15"], "x")[0] - number(found["bar -35"], "x")[0]) / 20
    slid = float(re.search(r"translate\(([\d.]+) 0\)", moved["histogram"].get("transform"))[1])
    assert slid == pytest.approx(12 * octave, abs=0.02)
    assert found["histogram"].get("transform") == "translate(0 0)"
    zero = number(found["zero line"], "x1")[0]
    for e in range(-35, -14):
        x = number(found[f"bar {e}"], "x")[0]
        assert (x < zero) is ("--accent" in found[f"bar {e}"].get("fill")) is (e < -25)
        assert ("--accent" in moved[f"bar {e}"].get("fill")) is (e + 12 < -25)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_middle_stands_on_the_strip(width):
    for params in ({}, {"scale": 6}, {"scale": 12}, {"scale": 20}, {"format": "bf16"}, {"format": "e5m2", "scale": 7}):
        drawn = shown(width, **params)
        found, values = marks(drawn["svg"]), drawn["values"]
        x, y = number(found["middle"], "cx", "cy")
        low = number(found["zero end"], "y2")[0]
        bit = (low - number(found["zero end"], "y1")[0]) / 11
        assert y == pytest.approx(low - bit * values["middle_bits"], abs=0.02)
        bar = found[f"bar {values['middle_octave'] - values['scale_log2']}"]
        slid = float(re.search(r"translate\(([\d.-]+)", found["histogram"].get("transform"))[1])
        left, wide = number(bar, "x", "width")
        assert x == pytest.approx(left + wide / 2 + slid, abs=0.05)


@pytest.mark.parametrize("width", WIDTHS)
def test_shares_fill_the_bar(width):
    for params in ({}, {"format": "e4m3", "scale": 15, "part": "all"}, {"format": "e2m1", "shared": "floor"}):
        drawn = shown(width, **params)
        found, values = marks(drawn["svg"]), drawn["values"]
        wide = {name: number(found[f"share {name}"], "width")[0] for name in ("zero", "few", "whole", "beyond")}
        for name, one in wide.items():
            assert one / sum(wide.values()) == pytest.approx(values[f"{name}_percent"] / 100, abs=0.001)


def test_cells_fill_and_choose_their_part():
    for kind, head in (("activations", "head"), ("weights", "embeddings")):
        drawn = shown(kind=kind, part="block 2, MLP")
        found = marks(drawn["svg"])
        for part in (*PARTS, head):
            cell, share = found[f"cell {part}"], drawn["values"]["zero_percent_by_part"][part] / 100
            assert number(found[f"zero {part}"], "height")[0] == pytest.approx(27 * share, abs=0.01)
            value = cell.get("data-press").partition("=")[2]
            assert views.render("precision", {"kind": kind, "part": value})["values"]["zero_percent"] == pytest.approx(
                100 * share, abs=0.051
            )
            assert ("shown now" in cell.get("data-label")) is (part == "block 2, MLP")
        assert list(found["cell block 2, MLP"].iter())[-1].get("class") == "live-hit"
        assert number(list(found[f"cell {head}"].iter())[-1], "height")[0] >= 27


@pytest.mark.parametrize("width", WIDTHS)
def test_the_guess_lies_where_its_share_of_the_gradients_ends(width):
    drawn = shown(width)["svg"]
    stops = [[*map(float, pair.split(":"))] for pair in re.search(r'data-stops="([^"]+)"', drawn)[1].split()]
    assert (stops[0][0], stops[-1][0]) == (0, 100) and len(stops) > 30
    at = {round(value, 6): x for value, x in stops}
    zero = number(marks(drawn)["zero line"], "x1")[0]
    assert at[round(100 * OPENING.below(-25), 6)] == pytest.approx(zero, abs=0.01)
    knob = float(re.search(r'cy="([\d.]+)"[^>]*live-knob', drawn)[1])
    tops = [number(one, "y")[0] for name, one in marks(drawn).items() if name.startswith("bar ")]
    assert knob < min(tops) - 10, "the hand is above the bars"


@pytest.mark.parametrize("width", WIDTHS)
def test_each_block_lays_its_window(width):
    def windows(**params):
        found = marks(shown(width, format="e4m3", **params)["svg"])
        return [number(found[name], "x", "width") for name in found if name.startswith("window ")]

    small, whole = windows(shared="up", block=16), windows(shared="tensor")
    assert len(small) == len(whole) >= 13 and len({x for x, _ in whole}) == 1 < len({x for x, _ in small})
    assert [x for x, _ in small] == sorted(x for x, _ in small) and small[-1][0] <= whole[0][0] + 10
    assert len({round(wide, 1) for _, wide in [*small, *whole]}) == 1, "all as wide as the element's range"


def test_the_search_is_drawn_as_far_as_it_came():
    for step in (1, 22, 48):
        drawn = shown(step=step)["svg"]
        found = marks(drawn)
        left, wide = number(found["so far"], "x", "width")
        (x,) = number(found["now"], "cx")
        assert left < x < left + wide
        assert drawn.count('stroke-width="2.5"') == shown(step=step)["values"]["skipped_so_far"]
        assert "cell" not in " ".join(found)
