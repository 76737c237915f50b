"""ZeRO's stages as pictures: filled areas are bytes, and the update stands where the stage puts it."""

import re

import pytest

from scaleout.draw import patterns, zero_stages
from scaleout.memory import zero
from scaleout.memory.states import state_bytes
from scaleout.spec.layout import Layout
from scaleout.spec.transformer import PRESETS, total_parameters

WIDTH = 680
BOX = re.compile(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)")


def areas(picture):
    """Filled area of each colour, by panel from left to right, of a picture with four panels in a row."""
    out = [0.0] * 4
    for path, fill in re.findall(r'<path d="([^"]*)" fill="([^"]*)"', picture):
        if fill != "none":
            for x, _, width, height in BOX.findall(path):
                out[int(float(x) // (WIDTH / 4))] += float(width) * float(height)
    return out


def test_filled_areas_are_the_bytes_of_the_stages():
    found = areas(zero_stages.opening(WIDTH))
    assert [area / found[0] for area in found] == pytest.approx([1, 7 / 16, 5.5 / 16, 4 / 16], rel=1e-3)


@pytest.mark.parametrize("stage", range(4))
def test_what_a_panel_says_is_the_states(stage):
    parameters = total_parameters(PRESETS["llama-2-7b"])
    held = sum(state_bytes(parameters, zero_stages.RECIPE, Layout(dp=4, zero=stage)).values())
    assert zero_stages.state_bytes(stage) == held
    said = f"{held / 1e9:.1f} GB" + (": too much" if held > zero_stages.USABLE else " per GPU")
    for width in (WIDTH, 354):
        assert f">{said}<" in zero_stages.opening(width)


@pytest.mark.parametrize("stage", range(4))
def test_the_update_comes_when_its_gradients_are_there(stage):
    """After the last reduction of gradients; before the new weights, where any are gathered."""
    sums = [one for one in zero_stages.WIRE[stage] if one[3] in ("g", "RS g", "AG g")]
    weights = [one for one in zero_stages.WIRE[stage] if one[3] in ("w", "AG w")]
    assert max(end for _, end, *_ in sums) == zero_stages.UPDATE[stage]
    after = [one for one in weights if one[0] >= zero_stages.UPDATE[stage] + 1]
    assert len(after) == (stage in (1, 2)) and len(weights) == {0: 0, 1: 1, 2: 1, 3: 8}[stage]
    assert zero.widths(zero_stages.RECIPE)["weights"] == 2


def test_two_halves_are_an_all_reduce():
    """Where the first ends the second begins; together they are the third."""
    (start, middle), (again, end), whole = (patterns.states(name) for name in zero_stages.HALVES)
    assert middle == again and whole == (start, end)
    for width in (WIDTH, 354):
        drawn = zero_stages.halves(width)
        assert all(f">{patterns.NAMES[name]}<" in drawn for name in zero_stages.HALVES)
