"""The picture of attention's tiles: as many tiles as there are, one of them on the chip."""

import re

import pytest

from scaleout.draw import attention_tiles as tiles


@pytest.mark.parametrize("width", [680, 354])
def test_one_tile_is_on_the_chip_and_all_are_drawn(width):
    drawn = tiles.naive_beside_tiled(width)
    squares = tiles.SIDE**2
    assert len(re.findall(r'fill="var\(--c5', drawn)) == squares  # naive: all of them are in memory
    assert len(re.findall(r'fill="var\(--compute', drawn)) == 1
    done = tiles.ROW * tiles.SIDE + tiles.NOW
    outlines = re.findall(r'fill="none" stroke="var\(--(\w+)', drawn)
    assert outlines.count("muted") == done and outlines.count("grid") == squares - done - 1
