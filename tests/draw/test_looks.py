"""One kind of action, and one way of cutting a sheet, look alike in a chapter's drawings and in its widget."""

import re

import pytest

from scaleout import views
from scaleout.draw import cuts, sheets, stages, svg


def fills(drawn):
    """By kind of action, the fills of its blocks."""
    found = {}
    for fill, inner in re.findall(r'<g fill="([^"]+)" stroke="[^"]+">((?:<rect[^>]*/>)+)</g>', drawn):
        for kind in re.findall(r'data-mark="([FBW])\d+r\dc\d"', inner):
            found.setdefault(kind, set()).add(fill)
    return found


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_an_action_has_its_colour_in_every_drawing(width):
    widget = fills(views.render("pipeline", {"schedule": "zb1"}, width)["svg"])
    drawn = fills(stages.split(width))
    assert drawn.keys() == {"F", "B", "W"} and all(drawn[kind] <= widget[kind] for kind in drawn)
    assert fills(stages.opening(width)) == {kind: drawn[kind] for kind in "FB"}


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_a_rank_has_one_half_solid_and_the_other_pale(width):
    drawn = cuts.product(width)
    halves = len(re.findall(rf'fill-opacity="{sheets.PALE}" data-mark="[^"]+-rest"', drawn))
    assert halves == 2 * 4 and len(re.findall(r'data-mark="[^"]+-lit"', drawn)) == 2 * 6
