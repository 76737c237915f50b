"""The pictures of rung 09: hills that the policies hold, and curves that the model of seconds gives."""

import re
from itertools import pairwise

import pytest

from scaleout.draw import recompute_hills as hills
from scaleout.memory import recompute as memory
from scaleout.memory.accounts import account
from scaleout.memory.allocator import usable
from scaleout.spec.devices import DEVICES

WIDTHS = (680, 354)


def outlines(picture):
    """[(x, y)] of each filled hill, the highest first."""
    return [
        [tuple(map(float, one.split(","))) for one in points.split()]
        for points in re.findall(r'<polygon points="([^"]*)"', picture)
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_hill_is_as_high_as_what_is_held(width):
    found = outlines(hills.hills(width))
    base = max(y for _, y in found[0])
    heights = [base - min(y for _, y in one) for one in found]
    wanted = [hills.peak(one) for one in hills.policies().values()]
    assert [high / heights[0] for high in heights] == pytest.approx([size / wanted[0] for size in wanted], abs=2e-3)


def test_each_block_that_is_made_again_is_a_tooth():
    teeth = []
    for one in outlines(hills.hills(680)):
        after = [y for x, y in one]
        top = after.index(min(after)) if len(teeth) == 0 else 32
        teeth.append(sum(b < a for a, b in zip(after[top:], after[top + 1 :], strict=False)))
    assert teeth == [0, 32, 32]


def test_the_room_is_what_a_card_has_beside_all_else():
    z = hills.sizes()
    held = account(hills.SHAPE, hills.BATCH, hills.SEQ, hills.RECIPE, hills.LAYOUT, memory.none(z)).moments["loss"]
    rest = sum(held.values()) / 1e9 - hills.peak(memory.none(z))
    assert hills.room() + rest == pytest.approx(usable(DEVICES["h100-sxm"].memory_bytes) / 1e9)
    assert all(f">free: {hills.room():.0f}<" in hills.hills(width) for width in WIDTHS)
    assert hills.peak(hills.policies()["cheap recomputed"]) < hills.room() < hills.peak(hills.policies()["all saved"])


def test_tiles_cost_less_than_blocks_and_segments_hold_more_than_either():
    """At each size that whole blocks reach, between the points of the tiles' curve. In segments every block is run
    again as a whole, as with inputs alone: the same seconds for more bytes."""
    found = hills.costs()
    tiles = sorted((size, share) for share, size in found["tiles"])
    for share, size in found["blocks"][1:-1]:
        below = max(one for one in tiles if one[0] <= size)
        above = min(one for one in tiles if one[0] >= size)
        assert max(below[1], above[1]) < share
    order = [size for _, size in found["blocks"]]  # whole blocks go from the first on: the last would free no peak
    z, steps = hills.sizes(), len(order) - 1
    least = (memory.kept(z, memory.none(z)) - memory.kept(z, memory.full(z))) / steps / 1e9
    assert all(a - b == pytest.approx(least) for a, b in pairwise(order[:-1]))
    ends = [found[way][at] for way, at in (("tiles", 0), ("blocks", -1))]
    assert ends[0] == pytest.approx(ends[1])
    assert all(share == pytest.approx(ends[0][0]) and size > ends[0][1] for share, size in found["segments"])


@pytest.mark.parametrize("width", WIDTHS)
def test_a_point_stands_where_its_segment_does(width):
    picture = hills.ways(width)
    at = [tuple(map(float, one)) for one in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', picture)]
    _, sizes = zip(*hills.costs()["segments"], strict=True)
    scale = (at[2][1] - at[0][1]) / (sizes[2] - sizes[0])
    assert at[1] == pytest.approx((at[0][0], at[0][1] + scale * (sizes[1] - sizes[0])), abs=0.05)
