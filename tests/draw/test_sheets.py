"""A tensor as sheets: its strips fill it, each of its copies is there, and what the lit rank holds is solid."""

import re

from drawn import marks

from scaleout.draw.sheets import DEPTH, STACK, Sheet, draw

WHOLE = {"x": 10.0, "y": 20.0, "width": 80.0, "height": 40.0, "fill": "c1"}


def sheet(**more):
    return draw(Sheet("one", **WHOLE, **more))


def boxes(path):
    """(x, y, width, height) of the rectangles of a path."""
    return [tuple(map(float, one)) for one in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)", path.get("d"))]


def solid(drawn):
    return tuple(float(drawn["one-lit"].get(key)) for key in ("x", "y", "width", "height"))


def test_strips_fill_the_sheet_and_one_of_them_is_solid():
    for cut, along in (("columns", 0), ("rows", 1)):
        drawn = marks(f"<svg>{sheet(parts=4, cut=cut, lit=2)}</svg>")
        strips = sorted([*boxes(drawn["one-rest"]), solid(drawn)])
        pitch = (WHOLE["width"], WHOLE["height"])[along] / 4
        assert strips[2] == solid(drawn)
        for k, strip in enumerate(strips):
            start = (WHOLE["x"], WHOLE["y"])[along] + k * pitch
            assert strip[along] == start and pitch - 1.3 < strip[2 + along] <= pitch
            assert strip[3 - along] == (WHOLE["height"], WHOLE["width"])[along]


def test_a_stack_has_a_sheet_for_each_copy_up_to_MOST():
    for copies, behind in ((1, 0), (2, 1), (3, 2), (8, STACK - 1)):
        drawn = marks(f"<svg>{sheet(copies=copies)}</svg>")
        found = [name for name in drawn if "copy" in name]
        assert len(found) == behind and solid(drawn) == (10, 20, 80, 40) and "one-rest" not in drawn
    [(x, y, width, height)] = boxes(drawn[f"one-copy{STACK - 1}"])
    assert (x - 10, 20 - y, width, height) == (DEPTH, DEPTH, 80, 40)


def test_shared_heads_are_strips_with_copies_and_terms_of_a_sum_are_hatched():
    drawn = marks(f"<svg>{sheet(parts=2, copies=4, lit=1)}</svg>")
    assert len(boxes(drawn["one-copy3"])) == 2 and len(boxes(drawn["one-rest"])) == 1 and solid(drawn)[0] == 50
    assert 'stroke-width="1.6"' in sheet(copies=4, partial=True) and 'stroke-width="1.6"' not in sheet(copies=4)
