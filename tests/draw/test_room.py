"""Blocks take the room that they say, and what stands below or beside them moves with it."""

import re

import pytest

from scaleout.draw import room, svg
from scaleout.draw.room import Block, Lane


def box(width, height, name):
    return Block(width, height, lambda x, y: f"{name}@{x:g},{y:g} ")


def test_a_column_is_as_high_as_all_and_a_row_as_wide():
    column = room.column(box(10, 4, "a"), room.space(3), box(20, 6, "b"))
    assert (column.width, column.height, column.at(1, 2)) == (20, 13, "a@1,2 b@1,9 ")
    row = room.row([box(10, 4, "a"), box(20, 6, "b")], 5)
    assert (row.width, row.height, row.at(1, 2)) == (35, 6, "a@1,2 b@16,2 ")


@pytest.mark.parametrize(
    ("columns", "places"),
    [(2, "a@0,0 b@55,0 c@0,4 "), (3, "a@0,0 b@36.6667,0 c@73.3333,0 "), (1, "a@0,0 b@0,4 c@0,8 ")],
)
def test_tiles_share_the_width_whatever_is_in_them(columns, places):
    tiles = room.tiles([box(width, 4, name) for width, name in ((1, "a"), (99, "b"), (5, "c"))], 100, columns, 10)
    assert tiles.at(0, 0) == places and tiles.height == 4 * -(-3 // columns)
    assert columns * room.share(100, columns, 10) + 10 * (columns - 1) == pytest.approx(100)


def test_a_line_more_moves_what_is_under_it_and_the_figure_grows():
    lines = [room.words("a line"), room.words("another")]
    short, long = (room.column(*lines[:n], room.title("below")).figure(300, "label") for n in (1, 2))
    below = [float(re.search(r'y="([\d.]+)"[^>]*>below<', picture)[1]) for picture in (short, long)]
    heights = [float(re.search(r'viewBox="0 0 300 ([\d.]+)"', picture)[1]) for picture in (short, long)]
    assert below[1] - below[0] == heights[1] - heights[0] == room.BASELINE


def test_a_key_leaves_each_name_its_space():
    names = ["weights", "gradients of all ranks", "x"]
    places = [float(x) for x in re.findall(r'<text x="([\d.]+)"', room.key([("c1", name) for name in names]).at(0, 0))]
    for start, end, name in zip(places, places[1:], names, strict=False):
        assert end - start > svg.measure(name, svg.SMALLEST) + room.SWATCH


def test_a_box_has_the_first_name_that_fits():
    lane = Lane(10, 0, 10, 20)
    for end, text in ((20, ">update<"), (3, ">up<"), (1, None)):
        drawn = lane.box(0, end, "compute", ("update", "up"))
        assert (text in drawn) if text else ("<text" not in drawn)
        assert f'width="{10 * end - 1}"' in drawn and 'x="10"' in drawn
